//! The counters of ports.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;
use crate::doctor::row::Row;
use lab::system::root::Root;

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "errors",
        what: "counters of errors of each port since they were cleared, and how often its interface lost the link (10 times are \
               allowed)",
        why: "a bad cable or transceiver shows here first; each error costs a retry",
        cure: "clean or replace cable and transceiver, look at the switch port; `perfquery -x` and `mlxlink -c` show more",
        look: errors,
    },
    Row {
        name: "retries",
        what: "counters of retries, time-outs and lost packets do not move within a second in which nothing but the doctor's own \
               message is sent",
        why: "they move where the fabric loses packets, also those of other jobs on this host",
        cure: "look for the loss: PFC and ECN of the class (`traffic-class`), the switch's drop counters, duplicate addresses",
        look: retries,
    },
];

/// In `counters`.
const ERRORS: [&str; 6] = [
    "symbol_error",
    "link_error_recovery",
    "link_downed",
    "port_rcv_errors",
    "local_link_integrity_errors",
    "excessive_buffer_overrun_errors",
];
/// In `hw_counters`.
const RETRIES: [&str; 8] = [
    "out_of_sequence",
    "packet_seq_err",
    "local_ack_timeout_err",
    "implied_nak_seq_err",
    "rnr_nak_retry_err",
    "roce_adp_retrans_to",
    "rx_icrc_encapsulated",
    "req_remote_access_errors",
];
/// Changes of an interface's link that are allowed: its start makes some.
const CARRIER_CHANGES: i64 = 10;

const CLASS: &str = "/sys/class/infiniband";

/// The folders of all ports, each with the name of the port.
fn ports(root: &Root) -> Vec<(String, String)> {
    let devices = root.names(CLASS).into_iter();
    let of_device = |device: String| {
        let ports = format!("{CLASS}/{device}/ports");
        root.names(&ports).into_iter().map(move |port| (format!("{device}:{port}"), format!("{ports}/{port}")))
    };
    devices.flat_map(of_device).collect()
}

fn errors(machine: &Machine) -> Vec<Finding> {
    let root = &machine.root;
    let found: Vec<Finding> = ports(root)
        .into_iter()
        .filter_map(|(name, folder)| {
            let counters = ERRORS.iter().filter_map(|c| Some((*c, root.number(format!("{folder}/counters/{c}"))?)));
            let mut counters: Vec<(&str, i64)> = counters.collect();
            let interface = root.text(format!("{folder}/gid_attrs/ndevs/0"));
            let changes = interface.and_then(|name| root.number(format!("/sys/class/net/{name}/carrier_changes")));
            counters.extend(changes.map(|changes| ("carrier_changes", changes)));
            if counters.is_empty() {
                return None;
            }
            let most = |counter: &str| if counter == "carrier_changes" { CARRIER_CHANGES } else { 0 };
            let bad: Vec<String> =
                counters.iter().filter(|(c, n)| *n > most(c)).map(|(c, n)| format!("{c} {n}")).collect();
            Some(match bad.is_empty() {
                true => Finding::ok(name, format!("{} counters, no errors", counters.len())),
                false => Finding::warn(name, bad.join(", ")),
            })
        })
        .collect();
    if found.is_empty() { vec![Finding::unknown("", "/sys shows no counters")] } else { found }
}

/// All of [`RETRIES`] that there are, by port.
fn read_retries(root: &Root) -> BTreeMap<(String, &'static str), i64> {
    let of_port = |(name, folder): (String, String)| {
        RETRIES.iter().filter_map(move |counter| {
            Some(((name.clone(), *counter), root.number(format!("{folder}/hw_counters/{counter}"))?))
        })
    };
    ports(root).into_iter().flat_map(of_port).collect()
}

fn retries(machine: &Machine) -> Vec<Finding> {
    let before = read_retries(&machine.root);
    if before.is_empty() {
        return vec![Finding::unknown("", "/sys shows no such counters")];
    }
    machine.loopback();
    std::thread::sleep(Duration::from_secs(1));
    let moved: Vec<Finding> = read_retries(&machine.root)
        .into_iter()
        .filter_map(|(key, now)| {
            let grown = now - before.get(&key).copied()?;
            (grown > 0).then(|| Finding::warn(key.0, format!("{} grew by {grown}", key.1)))
        })
        .collect();
    if moved.is_empty() { vec![Finding::ok("", format!("{} counters, none moved", before.len()))] } else { moved }
}
