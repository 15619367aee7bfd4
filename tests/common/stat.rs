//! What softrnic reports about this process's fabric.

use serde_json::Value;
use std::process::Command;
use testkit::dist::softrnic_program;
use testkit::program;

/// What `softrnic stat --json` prints.
fn stat() -> Value {
    let path = softrnic_program().unwrap_or_else(|missing| panic!("{missing}"));
    let printed = program::stdout_of(Command::new(path).args(["stat", "--json"]));
    serde_json::from_str(&printed).expect("JSON")
}

/// How often this process has queried a port.
pub(crate) fn port_queries() -> u64 {
    let stat = stat();
    let own = stat["processes"]
        .as_array()
        .expect("a list")
        .iter()
        .find(|process| process["pid"] == std::process::id());
    own.expect("this process")["port_queries"].as_u64().expect("a number")
}

/// All of its devices.
pub(crate) fn devices() -> Vec<Value> {
    stat()["devices"].as_array().expect("a list of devices").clone()
}

/// The `queue_pairs` or `completion_queues` of all processes.
pub(crate) fn queues(kind: &str) -> Vec<Value> {
    devices().iter().filter_map(|device| device[kind].as_array()).flatten().cloned().collect()
}

/// Those of this process.
pub(crate) fn own_queues(kind: &str) -> Vec<Value> {
    queues(kind).into_iter().filter(|queue| queue["pid"] == std::process::id()).collect()
}
