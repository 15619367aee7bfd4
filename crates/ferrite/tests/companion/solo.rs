//! One process that talks to itself, over the loopback transport and, where it is built, over the
//! software device.

use std::path::Path;

use crate::common::{dist, ferrite, loopback, stock_nccl};
use testkit::require;

fn text(path: &Path) -> &str {
    path.to_str().expect("it is text")
}

/// `ferrite solo` over the loopback transport.
fn solo(arguments: &[&str], fault: &str) -> (i32, String, String) {
    let plugin = loopback();
    let mut all = vec!["solo", "--plugin", text(&plugin), "--verbs", "system"];
    all.extend(arguments);
    ferrite(&all, &[("LOOPBACK_FAULT", fault)])
}

/// The one line of a valid run.
fn line((code, stdout, stderr): (i32, String, String)) -> String {
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert_eq!(stdout.lines().count(), 1, "{stdout}");
    assert_eq!(stderr, "");
    stdout
}

/// The run is invalid and stderr has these words.
fn invalid((code, stdout, stderr): (i32, String, String), words: &str) {
    assert_eq!(code, 2, "{stdout}{stderr}");
    assert!(stdout.is_empty(), "{stdout}");
    assert!(stderr.contains(words), "{words:?} is missing: {stderr}");
    assert_eq!(stderr.lines().filter(|line| line.starts_with("ferrite: ")).count(), 1, "{stderr}");
}

/// The transport was tried and is wrong, and stderr has these words.
fn wrong((code, stdout, stderr): (i32, String, String), words: &str) {
    assert_eq!((code, stdout.as_str()), (1, ""), "{stderr}");
    assert!(stderr.contains(words), "{words:?} is missing: {stderr}");
}

#[test]
fn messages_are_counted_and_timed() {
    let line = line(solo(&["--size", "4K", "--messages", "100", "--depth", "8"], ""));
    assert!(line.starts_with("Loopback: 100 messages of 4096 B, 8 in flight, "), "{line}");
    assert!(line.ends_with(" us per message\n"), "{line}");
}

#[test]
fn fewer_messages_than_a_round_are_sent() {
    let line = line(solo(&["--messages", "3", "--depth", "8"], ""));
    assert!(line.starts_with("Loopback: 3 messages of 8 B, 8 in flight, "), "{line}");
}

#[test]
fn connections_are_timed() {
    let line = line(solo(&["--connections", "20"], ""));
    assert!(line.starts_with("Loopback: 20 connections made and closed, "), "{line}");
}

#[test]
fn the_memory_of_held_connections_is_measured() {
    let line = line(solo(&["--connections", "400", "--hold"], ""));
    assert!(line.starts_with("Loopback: 400 connections held, "), "{line}");
    let bytes = line.split(" us each, ").nth(1).and_then(|rest| rest.split_once(" B resident per comm"));
    let bytes: u64 = bytes.expect("the memory is said").0.parse().expect("it is a number");
    // What the fixture allocates for a communicator, most of it untouched.
    assert!((1_000..100_000).contains(&bytes), "{line}");
}

#[test]
fn wrong_data_is_caught() {
    wrong(solo(&["--size", "4097"], "corrupt"), "wrong data: message 0 of the last 1, offset 2048: expected 0x");
}

#[test]
fn a_wrong_size_is_caught() {
    wrong(solo(&["--size", "4097"], "size"), "a message of 4097 B came with 4096 B");
}

#[test]
fn a_hanging_transport_is_given_up() {
    invalid(solo(&["--timeout", "1"], "hang"), "a message to itself: nothing for 1.0 s");
}

#[test]
fn a_transport_without_devices_is_named() {
    invalid(solo(&[], "none"), "Loopback found no device");
    invalid(solo(&["--dev1", "5"], ""), "Loopback has no device 5: it found 1");
}

#[test]
fn wrong_command_lines_are_invalid() {
    for arguments in [
        &["solo", "--abi", "8", "--stock"][..],
        &["solo", "--plugin", "x", "--stock"],
        &["solo", "--plugin", "x", "--depth", "0"],
        &["solo", "--plugin", "x", "--messages", "0"],
        &["solo", "--plugin", "x", "--hold"],
        &["solo", "--plugin", "x", "--connections", "5", "--depth", "2"],
        &["solo", "--plugin", "x", "--connections", "5", "--empty-tests", "2"],
    ] {
        let (code, _, stderr) = ferrite(arguments, &[]);
        assert_eq!(code, 2, "{arguments:?}: {stderr}");
    }
}

#[test]
fn calls_that_find_nothing_are_timed_on_the_software_device() {
    let parts = ["softrnic/libibverbs.so.1", "lib/libnccl-net.so"];
    let (dist, nccl) = (require!(dist(&parts)), require!(stock_nccl()));
    let plugin = dist.join("lib/libnccl-net.so");
    for (side, path) in [("--plugin", &plugin), ("--stock", &nccl)] {
        let arguments = ["solo", side, text(path), "--refused-sends", "300", "--empty-tests", "300", "--depth", "8"];
        let line = line(ferrite(&arguments, &[("FERRITE_DIST", text(&dist))]));
        assert!(line.contains(" ns per isend in vain, ") && line.ends_with(" ns per test in vain\n"), "{line}");
    }
}

#[test]
fn one_process_connects_to_itself_on_the_software_device() {
    let parts = ["softrnic/libibverbs.so.1", "lib/libnccl-net.so"];
    let (dist, nccl) = (require!(dist(&parts)), require!(stock_nccl()));
    let plugin = dist.join("lib/libnccl-net.so");
    for (side, path, name) in [("--plugin", &plugin, "Ferrite"), ("--stock", &nccl, "IB")] {
        for work in [["--size", "64K"], ["--depth", "8"], ["--connections", "5"]] {
            let mut arguments = vec!["solo", side, text(path)];
            arguments.extend(work);
            let line = line(ferrite(&arguments, &[("FERRITE_DIST", text(&dist))]));
            assert!(line.starts_with(&format!("{name}: ")), "{line}");
        }
    }
}
