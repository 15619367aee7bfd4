//! What is shown, as one JSON object.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::rates::Row;
use super::table::View;
use nccl_net::inspect::stats::layout::{header, record};

/// One line: an object with `time` (seconds since 1970), `processes`, `connections`, `ports`, `dead` and `unreadable`. Times of stages are in seconds.
pub(crate) fn line(view: &View<'_>) -> String {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64());
    let processes = view.now.living.values().map(|process| {
        json!({"pid": process.file.pid(), "rank": process.file.rank(), "host": process.file.host(),
            "program": process.file.text(header::PROGRAM, header::PROGRAM_WORDS)})
    });
    let ports = view.ports.iter().map(|((device, port), about)| {
        json!({"device": device, "port": port, "state": about.state, "counters": about.counters})
    });
    let unreadable = view.now.unreadable.iter().map(|(path, why)| json!({"file": path, "why": why}));
    let object = json!({
        "time": time,
        "processes": processes.collect::<Vec<_>>(),
        "connections": view.rows.iter().map(connection).collect::<Vec<_>>(),
        "ports": ports.collect::<Vec<_>>(),
        "dead": view.now.dead,
        "unreadable": unreadable.collect::<Vec<_>>(),
    });
    format!("{object}\n")
}

fn connection(row: &Row) -> Value {
    let end = &row.end;
    let counter = |at: usize| end.counters[at];
    let stages: serde_json::Map<String, Value> = end
        .stage_names()
        .iter()
        .enumerate()
        .map(|(stage, name)| {
            let seconds = |share| row.quantile(stage, share).map(|ns| ns / 1e9);
            let longest = end.longest[stage] as f64 / 1e9;
            ((*name).to_owned(), json!({"p50": seconds(0.5), "p99": seconds(0.99), "longest": longest}))
        })
        .collect();
    let rails = end
        .rails
        .iter()
        .zip(&row.rail_bytes)
        .map(|((name, total), new)| json!({"name": name, "bytes": total, "new_bytes": new}));
    let lanes = end.lanes.iter().zip(&row.lane_bytes).map(|(total, new)| json!({"bytes": total, "new_bytes": new}));
    let operation = end.operation.as_ref().map(
        |(call, name)| json!({"function": call.function.name(), "number": call.number, "communicator_name": name}),
    );
    let recovering =
        end.recovering.map(|(since, attempts)| json!({"since_unix": since as f64 / 1e9, "attempts": attempts}));
    json!({
        "recovering": recovering,
        "operation": operation, "communicator": Some(end.communicator).filter(|id| *id != 0).map(|id| format!("{id:#x}")),
        "pid": row.pid, "rank": row.rank, "direction": if end.is_sender { "send" } else { "receive" },
        "peer": {"rank": end.peer.rank, "host": end.peer.host, "pid": end.peer.pid},
        "device": end.device, "queue_pairs": end.queue_pairs, "lanes": lanes.collect::<Vec<_>>(),
        "moves": counter(record::MOVES), "rails": rails.collect::<Vec<_>>(),
        "begun": counter(record::BEGUN), "done": counter(record::DONE), "bytes": counter(record::BYTES),
        "outstanding": end.outstanding(), "waits": counter(record::WAITS), "flushes": counter(record::FLUSHES),
        "recoveries": counter(record::RECOVERIES), "resent": counter(record::RESENT),
        "resent_bytes": counter(record::RESENT_BYTES), "stalls": counter(record::STALLS),
        "stall": end.stall as f64 / 1e9, "longest_stall": end.longest_stall as f64 / 1e9,
        "bytes_per_second": row.bytes_per_second(), "messages_per_second": row.per_second(record::DONE),
        "stages": stages,
    })
}
