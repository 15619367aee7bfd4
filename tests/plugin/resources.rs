//! What connections take of the device, held against the IB transport of NCCL 2.21.5 in the same
//! programme.

use crate::common::prelude::*;
use std::process::Command;
use testkit::dist::built;

/// The most that a process had of the device at a time.
#[derive(Debug, PartialEq, Eq)]
struct Taken {
    queue_pairs: u64,
    completion_queues: u64,
    /// Registered memory.
    bytes: u64,
}

/// What `ferrite solo` takes with `transport`.
fn taken(transport: &[&str], work: &[&str]) -> Taken {
    let command = &mut Command::new(dist().join("bin/ferrite"));
    let printed =
        program::run(command.arg("solo").args(transport).args(work).env("SOFTRNIC_STAT", "1"));
    assert!(printed.status.success(), "{transport:?}: {printed}");
    let line = printed
        .stderr
        .lines()
        .find(|line| line.starts_with("softrnic: at most"))
        .expect("the device's line");
    let host = line.split(';').next().unwrap_or(line);
    let numbers: Vec<u64> = host.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let [queue_pairs, completion_queues, _, bytes] = numbers[..] else { panic!("{line}") };
    Taken { queue_pairs, completion_queues, bytes }
}

/// `count` connections of a process with itself, each with both ends.
fn held(transport: &[&str], count: u64) -> Taken {
    taken(transport, &["--connections", &count.to_string(), "--hold"])
}

#[test]
fn a_connection_takes_one_queue_pair_an_end_and_a_quarter_of_the_registered_memory() {
    require!(setting());
    require!(built("bin/ferrite"));
    require!(stock_nccl("2.21.5"));
    let plugin = require!(plugin());
    let ours = ["--plugin", plugin.to_str().expect("it is text")];
    let theirs = ["--stock", "2.21.5"];
    let (one, fifty) = (held(&ours, 1), held(&ours, 50));
    assert_eq!((one.queue_pairs, one.completion_queues), (2, 2));
    assert_eq!((fifty.queue_pairs, fifty.completion_queues), (100, 100));
    // Of each, what 49 more connections add: nothing but bookkeeping, as no messages are sent.
    let added = |transport: &[&str]| held(transport, 50).bytes - held(transport, 1).bytes;
    let (ours, theirs) = (added(&ours), added(&theirs));
    assert!(ours * 4 <= theirs, "{ours} and {theirs} bytes");
}
