//! How packets are addressed.

use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::machine::Machine;
use crate::doctor::row::Row;
use crate::doctor::verbs_facts::GidFacts;

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "gid",
        what: "each port that is used has a GID: the one that the plugin takes, and why; warn if it is RoCE v1, link-local only or outside NCCL_IB_ADDR_RANGE",
        why: "RoCE v1 and link-local addresses are not routed, and an index may mean another GID on another host",
        cure: "give the interface an IP address; unset NCCL_IB_GID_INDEX, or set one of the entries that the line shows; \
               NCCL_IB_ADDR_FAMILY and NCCL_IB_ADDR_RANGE choose by address",
        look: gid,
    },
    Row {
        name: "pkey",
        what: "the entry of the partition key table that NCCL_IB_PKEY or NCCL_IB_PKEY_VALUE names can be used for a queue pair",
        why: "a queue pair belongs to one partition, and peers in another one do not hear it",
        cure: "unset NCCL_IB_PKEY and NCCL_IB_PKEY_VALUE, or have the subnet manager put this port into the partition (`cat /sys/class/infiniband/DEV/ports/1/pkeys/*`)",
        look: pkey,
    },
];

fn gid(machine: &Machine) -> Vec<Finding> {
    let Ok(facts) = machine.verbs() else { return Finding::no_verbs() };
    let found: Vec<Finding> = facts
        .rails
        .iter()
        .map(|rail| match &rail.gid {
            Some(Err(why)) => Finding::fail(rail.name(), why.as_str()),
            _ if rail.infiniband => Finding::ok(rail.name(), rail.description.as_str()),
            Some(Ok(gid)) => Finding::judge(is_good(gid), Verdict::Warn, rail.name(), rail.description.as_str()),
            None => Finding::unknown(rail.name(), "it was not looked at"),
        })
        .collect();
    if found.is_empty() { vec![Finding::unknown("", "no port is used")] } else { found }
}

/// The plugin's description says what is not.
fn is_good(gid: &GidFacts) -> bool {
    !gid.link_local && gid.roce_version != Some(1) && !gid.is_outside_range
}

fn pkey(machine: &Machine) -> Vec<Finding> {
    let Ok(facts) = machine.verbs() else { return Finding::no_verbs() };
    let used = facts.ports().filter(|(_, device, port)| facts.is_used(device, port));
    let found: Vec<Finding> = used
        .filter_map(|(name, device, port)| {
            Some(match port.pkey.as_ref()? {
                Ok(index) => Finding::ok(
                    name,
                    format!("entry {index} of {}{}", port.pkey_count, value(machine, &device.name, port.port, *index)),
                ),
                Err(why) => Finding::fail(name, why.as_str()),
            })
        })
        .collect();
    if found.is_empty() { vec![Finding::unknown("", "no port is used")] } else { found }
}

/// The partition key, where /sys shows it.
fn value(machine: &Machine, device: &str, port: u8, index: u16) -> String {
    let text = machine.root.text(format!("/sys/class/infiniband/{device}/ports/{port}/pkeys/{index}"));
    text.map_or(String::new(), |key| format!(", {key}"))
}
