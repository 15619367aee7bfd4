//! What there is: devices, ports, processes, objects, counters.

use std::io::{IsTerminal, stdout};
use std::thread;
use std::time::Duration;

use clap::Args;
use ibverbs::control::{
    Capacities, Commands, Counters, Cq, Delayed, Device, GidKind, LinkLayer, Network, Path, Port,
    Process, Qp, Report, Work,
};
use serde_json::{Value, json};

use crate::find::{Failure, print};

/// Shows devices, ports, processes, objects and counters.
#[derive(Debug, Args)]
pub(crate) struct Options {
    /// For programs
    #[arg(long)]
    json: bool,
    /// Again every so many seconds, 1 if none are given, until no process uses the fabric any more.
    /// With --json a line each
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1", value_parser = period)]
    watch: Option<Duration>,
}

impl Options {
    pub(crate) fn show(&self, network: &Network) -> Result<(), Failure> {
        match (self.watch, self.json) {
            (None, true) => print(&format!("{:#}\n", as_json(&network.report()))),
            (None, false) => print(&as_text(&network.report())),
            (Some(period), true) => {
                watch(network, period, "", |report| format!("{}\n", as_json(report)))
            }
            (Some(period), false) => watch(network, period, "\n", as_text),
        }
    }
}

fn kind_name(kind: GidKind) -> &'static str {
    match kind {
        GidKind::InfiniBand => "ib",
        GidKind::RoceV1 => "v1",
        GidKind::RoceV2 => "v2",
    }
}

fn link_name(port: &Port) -> &'static str {
    match port.link_layer {
        LinkLayer::InfiniBand => "ib",
        LinkLayer::Ethernet => "roce",
        LinkLayer::Unspecified => "unspecified",
    }
}

fn as_text(report: &Report) -> String {
    let mut text = format!("fabric {}\n", report.fabric);
    report.processes.iter().for_each(|process| text += &process_text(process));
    for device in &report.devices {
        text += &format!(
            "{}{}: {} queue pairs, {} completion queues, {} memory regions of {} bytes\n",
            device.name,
            match () {
                () if device.has_failed => " FAILED",
                () if device.is_refusing => " REFUSES COMMANDS",
                () => "",
            },
            device.queue_pairs.len(),
            device.completion_queues.len(),
            device.memory_regions,
            device.registered_bytes
        );
        device.ports.iter().for_each(|port| text += &port_text(port));
        device.queue_pairs.iter().for_each(|qp| text += &qp_text(qp));
    }
    text
}

fn process_text(process: &Process) -> String {
    let state = if process.is_alive { "" } else { " (dead)" };
    let why =
        process.obstacle.map(|code| format!(" ({})", std::io::Error::from_raw_os_error(code)));
    let ways = match (process.copies_directly, process.copies_staged) {
        (false, false) => "none with others yet".to_owned(),
        (true, false) => "direct".to_owned(),
        (is_both, true) => {
            format!("{}staged{}", if is_both { "direct and " } else { "" }, why.unwrap_or_default())
        }
    };
    format!("process {}{state}, copies {ways}\n", process.pid)
}

fn port_text(port: &Port) -> String {
    let lid = if port.lid == 0 { String::new() } else { format!(" lid {}", port.lid) };
    let wire =
        port.bandwidth.map_or_else(String::new, |bytes| format!(" {} GB/s", bytes as f64 / 1e9));
    let state = if port.is_active { "up" } else { "down" };
    let mut text = format!(
        "  {} {state} {} {} Gb/s mtu {}{lid}, wire {:?}{wire}: {}\n",
        port.name,
        link_name(port),
        port.gbps,
        port.mtu,
        port.latency,
        counters_text(&port.counters)
    );
    text += &delayed_text(&port.delayed);
    for (number, path) in port.paths.iter().enumerate() {
        let pace = path
            .bandwidth
            .map_or_else(String::new, |bytes| format!(" {} GB/s", bytes as f64 / 1e9));
        text += &format!("    path {number} {:?}{pace}: {} bytes\n", path.latency, path.bytes);
    }
    for gid in &port.gids {
        text += &format!("    gid {:2} {} {}\n", gid.index, kind_name(gid.kind), gid.gid);
    }
    text
}

/// Nothing if there never were any.
fn delayed_text(delayed: &Delayed) -> String {
    let Delayed { launched, landed, gone, in_error, wrong_psn, refused, port_down } = delayed;
    if *launched == 0 {
        return String::new();
    }
    format!(
        "    delayed packets: {launched} launched, {landed} landed; dropped: {gone} queue pair gone, {in_error} in error, \
         {wrong_psn} wrong psn, {refused} refused, {port_down} port down\n"
    )
}

fn qp_text(qp: &Qp) -> String {
    let peer =
        qp.peer.map_or_else(|| "nobody".to_owned(), |(port, number)| format!("{port} qp {number}"));
    format!(
        "  qp {} {} {} port {} of process {} to {peer} flow {}: {}\n",
        qp.number,
        qp.transport,
        qp.state,
        qp.port,
        qp.pid,
        qp.flow,
        counters_text(&qp.counters)
    )
}

fn counters_text(c: &Counters) -> String {
    let Counters { messages, bytes, losses, rnr_waits, faults } = c;
    format!(
        "{messages} messages, {bytes} bytes, {losses} losses, {rnr_waits} rnr waits, {faults} faults"
    )
}

fn as_json(report: &Report) -> Value {
    json!({
        "fabric": report.fabric,
        "processes": report.processes.iter().map(process_json).collect::<Vec<_>>(),
        "devices": report.devices.iter().map(device_json).collect::<Vec<_>>(),
    })
}

fn process_json(process: &Process) -> Value {
    json!({
        "pid": process.pid,
        "alive": process.is_alive,
        "copies_directly": process.copies_directly,
        "copies_staged": process.copies_staged,
        "obstacle": process.obstacle,
        "commands": commands_json(&process.commands),
        "port_queries": process.port_queries,
    })
}

fn commands_json(c: &Commands) -> Value {
    json!({
        "create_qp": c.create_qp,
        "modify_qp": c.modify_qp,
        "destroy_qp": c.destroy_qp,
        "create_cq": c.create_cq,
        "destroy_cq": c.destroy_cq,
        "register_mr": c.register_mr,
        "deregister_mr": c.deregister_mr,
        "alloc_pd": c.alloc_pd,
        "alloc_td": c.alloc_td,
    })
}

fn device_json(device: &Device) -> Value {
    json!({
        "name": device.name.to_string(),
        "failed": device.has_failed,
        "refuses_commands": device.is_refusing,
        "node_guid": format!("{:016x}", device.guid),
        "completion_queues": device.completion_queues.iter().map(cq_json).collect::<Vec<_>>(),
        "memory_regions": device.memory_regions,
        "registered_bytes": device.registered_bytes,
        "ports": device.ports.iter().map(port_json).collect::<Vec<_>>(),
        "queue_pairs": device.queue_pairs.iter().map(qp_json).collect::<Vec<_>>(),
    })
}

fn port_json(port: &Port) -> Value {
    let gid = |gid: &ibverbs::control::Gid| json!({ "index": gid.index, "gid": gid.gid.to_string(), "kind": kind_name(gid.kind) });
    json!({
        "name": port.name.to_string(),
        "up": port.is_active,
        "link": link_name(port),
        "mtu": port.mtu,
        "gbps": port.gbps,
        "lid": port.lid,
        "latency_ns": port.latency.as_nanos() as u64,
        "bytes_per_second": port.bandwidth,
        "gids": port.gids.iter().map(gid).collect::<Vec<_>>(),
        "counters": counters_json(&port.counters),
        "delayed": delayed_json(&port.delayed),
        "paths": port.paths.iter().map(path_json).collect::<Vec<_>>(),
    })
}

fn path_json(path: &Path) -> Value {
    json!({
        "latency_ns": path.latency.as_nanos() as u64,
        "bytes_per_second": path.bandwidth,
        "bytes": path.bytes,
    })
}

fn delayed_json(delayed: &Delayed) -> Value {
    json!({
        "launched": delayed.launched,
        "landed": delayed.landed,
        "dropped": {
            "queue_pair_gone": delayed.gone,
            "queue_pair_in_error": delayed.in_error,
            "wrong_psn": delayed.wrong_psn,
            "refused": delayed.refused,
            "port_down": delayed.port_down,
        },
    })
}

fn qp_json(qp: &Qp) -> Value {
    let peer = qp.peer.map(|(port, number)| json!({ "port": port.to_string(), "number": number }));
    json!({
        "number": qp.number,
        "type": qp.transport,
        "state": qp.state,
        "port": qp.port,
        "pid": qp.pid,
        "peer": peer,
        "flow": qp.flow,
        "path": qp.path,
        "capacities": capacities_json(&qp.capacities),
        "counters": counters_json(&qp.counters),
        "work": work_json(&qp.work),
    })
}

fn cq_json(cq: &Cq) -> Value {
    json!({
        "pid": cq.pid,
        "entries": cq.entries,
        "polls": cq.polls,
        "fruitful_polls": cq.fruitful_polls,
        "completions": cq.completions,
        "locks": cq.locks,
        "single_threaded": cq.single_threaded,
    })
}

fn capacities_json(c: &Capacities) -> Value {
    json!({
        "sends": c.sends,
        "receives": c.receives,
        "send_elements": c.send_elements,
        "receive_elements": c.receive_elements,
        "inline": c.inline,
        "operations": c.operations,
        "thread_domain": c.thread_domain,
    })
}

fn work_json(w: &Work) -> Value {
    json!({
        "requests": w.requests,
        "doorbells": w.doorbells,
        "inline": w.inline,
        "gathered": w.gathered,
        "gathered_bytes": w.gathered_bytes,
        "fetched": w.fetched,
        "fetched_bytes": w.fetched_bytes,
        "pushed_bytes": w.pushed_bytes,
        "immediates": w.immediates,
        "packets": w.packets,
        "receives": w.receives,
        "receive_posts": w.receive_posts,
        "locks": w.locks,
    })
}

fn counters_json(c: &Counters) -> Value {
    json!({
        "messages": c.messages, "bytes": c.bytes, "losses": c.losses, "rnr_waits": c.rnr_waits, "faults": c.faults,
    })
}

/// Clears a terminal, and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// The time between two reports.
pub(crate) fn period(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "must be seconds, from 0.01 to 86400".to_owned())
}

/// Prints what `network` is like, as `text`, until no process uses it any more. On a terminal each
/// report replaces the last one; elsewhere they follow each other with `between` them.
pub(crate) fn watch(
    network: &Network,
    period: Duration,
    between: &str,
    text: impl Fn(&Report) -> String,
) -> Result<(), Failure> {
    let (mut before, next) = if stdout().is_terminal() { (CLEAR, CLEAR) } else { ("", between) };
    loop {
        let report = network.report();
        if !report.processes.iter().any(|process| process.is_alive) {
            eprintln!("softrnic: no process uses {} any more", network.name());
            return Ok(());
        }
        print(&format!("{before}{}", text(&report)))?;
        before = next;
        thread::sleep(period);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::stat::period;

    #[test]
    fn a_period_is_a_time_that_can_be_waited() {
        assert_eq!(period("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "inf", "1e9", "soon", ""] {
            assert!(period(wrong).is_err(), "{wrong}");
        }
    }
}
