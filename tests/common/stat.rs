//! What softrnic tells of this process's fabric.

use serde_json::Value;
use std::process::Command;
use testkit::dist::softrnic_program;
use testkit::program;

/// All of its devices, as `softrnic stat --json` prints them.
pub(crate) fn devices() -> Vec<Value> {
    let path = softrnic_program().unwrap_or_else(|missing| panic!("{missing}"));
    let printed = program::stdout_of(Command::new(path).args(["stat", "--json"]));
    let stat: Value = serde_json::from_str(&printed).expect("JSON");
    stat["devices"].as_array().expect("a list of devices").clone()
}

/// The `queue_pairs` or `completion_queues` of all processes.
pub(crate) fn queues(kind: &str) -> Vec<Value> {
    devices().iter().filter_map(|device| device[kind].as_array()).flatten().cloned().collect()
}

/// Those of this process.
pub(crate) fn own_queues(kind: &str) -> Vec<Value> {
    queues(kind).into_iter().filter(|queue| queue["pid"] == std::process::id()).collect()
}
