//! The timeline in Chrome's trace event format (JSON), which Perfetto and chrome://tracing read.
//!
//! A process is a process, an end of a connection a thread of it. Each message is a slice, and its stages are slices within that. An
//! arrow leads from the `irecv` to the `isend` that its clear-to-send lets pass, and from there to the message's arrival.

use serde_json::{Value, json};

use super::pairs;
use super::timed::Timed;
use super::timeline::{Placed, Timeline};

/// The whole file.
pub(crate) fn document(timeline: &Timeline<'_>) -> Value {
    let mut events = Vec::new();
    let mut last_process = 0;
    for (track, placed) in timeline.ends.iter().enumerate() {
        if placed.process_number != last_process {
            last_process = placed.process_number;
            events.push(named("process_name", placed, track, json!({"name": placed.process_name()})));
            events.push(named("process_sort_index", placed, track, json!({"sort_index": placed.process_number})));
        }
        events.push(named("thread_name", placed, track, json!({"name": placed.name()})));
        events.push(named("thread_sort_index", placed, track, json!({"sort_index": track})));
        slices(timeline, placed, track, &mut events);
    }
    let mut arrows = 0;
    for &(sender, receiver) in &timeline.connections {
        for (sent, received) in pairs::messages(timeline.ends[sender].end, timeline.ends[receiver].end) {
            let (irecv, isend) = ((receiver, received.begin(false)), (sender, sent.sent()));
            // An arrow ends in a slice, and not where that is over.
            let arrival = (receiver, received.at - 1);
            for (name, from, to) in [("clear-to-send", irecv, isend), ("message", isend, arrival)] {
                arrows += 1;
                events.extend([("s", from), ("f", to)].map(|(phase, (track, time))| {
                    let placed = &timeline.ends[track];
                    json!({"ph": phase, "bp": "e", "id": arrows, "name": name, "cat": "ferrite", "pid": placed.process_number,
                        "tid": track + 1, "ts": us(timeline.since_begin(placed, time))})
                }));
            }
        }
    }
    json!({"displayTimeUnit": "ns", "otherData": {"clocks": timeline.clock_lines()}, "traceEvents": events})
}

fn named(what: &str, placed: &Placed<'_>, track: usize, value: Value) -> Value {
    json!({"ph": "M", "name": what, "pid": placed.process_number, "tid": track + 1, "args": value})
}

/// The slices of an end. Messages are timed one after the other; where rounding says otherwise, one begins when the last has ended.
fn slices(timeline: &Timeline<'_>, placed: &Placed<'_>, track: usize, events: &mut Vec<Value>) {
    let end = &placed.end.end;
    let mut free = i64::MIN;
    for message in placed.end.messages.values() {
        let begin = timeline.since_begin(placed, message.begin(end.is_sender)).max(free);
        let over = timeline.since_begin(placed, message.end(end.is_sender)).max(begin);
        free = over;
        events.push(slice(&title(placed, message), placed, track, (begin, over), arguments(placed, message)));
        let mut at = begin;
        for (name, ns) in end.stage_names().iter().zip(message.stages) {
            let until = at.saturating_add(ns).min(over);
            if until > at {
                events.push(slice(name, placed, track, (at, until), json!({})));
            }
            at = until;
        }
    }
}

fn slice(name: &str, placed: &Placed<'_>, track: usize, (begin, end): (i64, i64), arguments: Value) -> Value {
    json!({"ph": "X", "name": name, "cat": if placed.end.end.is_sender { "send" } else { "receive" },
        "pid": placed.process_number, "tid": track + 1, "ts": us(begin), "dur": us(end - begin), "args": arguments})
}

/// What a message is called: its operation, if that is known, and its size.
pub(crate) fn title(placed: &Placed<'_>, message: &Timed) -> String {
    let operation = message.operation.map_or_else(|| format!("message {}", message.number), |call| call.to_string());
    let peer = placed.end.end.peer.rank.map_or_else(String::new, |rank| {
        format!(" {} rank {rank}", if placed.end.end.is_sender { "to" } else { "from" })
    });
    format!("{operation}{peer}, {}", size(message.bytes))
}

fn arguments(placed: &Placed<'_>, message: &Timed) -> Value {
    let end = &placed.end.end;
    let stages = end.stage_names().into_iter().zip(message.stages).map(|(name, ns)| (format!("{name}_ns"), json!(ns)));
    let mut arguments: serde_json::Map<String, Value> = stages.collect();
    arguments.extend(
        [
            ("message", json!(message.number)),
            ("bytes", json!(message.bytes)),
            ("messages_of_irecv", json!(message.messages)),
            ("operation", json!(message.operation.map(|call| call.to_string()))),
            ("connection", json!(format!("{:016x}", placed.end.connection))),
            ("communicator", json!(Some(end.communicator).filter(|id| *id != 0).map(|id| format!("{id:#x}")))),
            ("rank", json!(placed.process.rank)),
            ("peer_rank", json!(end.peer.rank)),
            ("peer_host", json!(end.peer.host)),
            ("peer_process", json!(end.peer.pid)),
            ("device", json!(end.device)),
            ("queue_pairs", json!(end.queue_pairs)),
            ("transport_ns", json!(message.duration(end.is_sender))),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    Value::Object(arguments)
}

/// Microseconds, which is the format's unit.
fn us(ns: i64) -> f64 {
    ns as f64 / 1e3
}

/// A number of bytes in at most eight characters.
pub(crate) fn size(bytes: u64) -> String {
    let scaled = |unit: &str, shift: u32| {
        let value = bytes as f64 / f64::from(1_u32 << shift);
        if bytes.is_multiple_of(1 << shift) { format!("{value:.0} {unit}") } else { format!("{value:.1} {unit}") }
    };
    match bytes {
        b if b >= 1 << 30 => scaled("GiB", 30),
        b if b >= 1 << 20 => scaled("MiB", 20),
        b if b >= 1 << 10 => scaled("KiB", 10),
        b => format!("{b} B"),
    }
}
