//! The plugin itself, tried on each device.

use crate::doctor::finding::Finding;
use crate::doctor::loopback::LoopbackFacts;
use crate::doctor::machine::Machine;
use crate::doctor::row::Row;
use crate::doctor::rows::devices;

pub(crate) const ROWS: &[Row] = &[Row {
    name: "loopback",
    what: "each device of the plugin connects to itself (listen, connect, accept) and a message of 1 MiB arrives right",
    why: "it is all that NCCL does, but for the way to the peer",
    cure: "as the plugin's words say; a time-out of the step to RTR is a neighbour that is not resolved: link, VLAN, route, GID",
    look: loopback,
}];

fn loopback(machine: &Machine) -> Vec<Finding> {
    if let Err(why) = &machine.plugin {
        return vec![Finding::unknown("", why.as_str())];
    }
    let found: Vec<Finding> = machine
        .loopback()
        .iter()
        .map(|LoopbackFacts { device, result }| match result {
            Ok(ms) => Finding::ok(device.as_str(), format!("1 MiB arrived right; connecting took {ms:.1} ms")),
            Err(why) => Finding::fail(device.as_str(), why.as_str()),
        })
        .collect();
    if found.is_empty() { vec![Finding::fail("", "the plugin has no device").follows(cause(machine))] } else { found }
}

/// The row that says why the plugin has no device.
fn cause(machine: &Machine) -> &'static str {
    match machine.verbs() {
        Err(_) => "libibverbs",
        Ok(facts) if !facts.devices.is_empty() => "ports",
        Ok(_) => devices::cause_of_no_device(machine),
    }
}
