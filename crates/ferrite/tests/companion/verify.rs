//! `ferrite verify`: what it prints, and that it notices.

use crate::common::{ferrite, loopback};

/// The loopback transport over one connection each way, wrong in the way that `fault` names.
fn verify(arguments: &[&str], fault: &str) -> (i32, String, String) {
    let plugin = loopback();
    let mut all = vec!["verify", "--plugin", plugin.to_str().expect("it is text"), "--verbs", "system"];
    all.extend(arguments);
    ferrite(&all, &[("LOOPBACK_FAULT", fault)])
}

#[test]
fn a_good_transport_is_valid() {
    let (code, stdout, stderr) = verify(&["--over", "single"], "");
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.starts_with("single: Loopback 0.0.1 (interface v8) on loop0 and loop0\n"), "{stdout}");
    for words in
        ["  right  single           0 B", "  right  stream     4194433 B", "  right  group            8 messages"]
    {
        assert!(stdout.contains(words), "{words:?} is missing: {stdout}");
    }
    assert!(stdout.contains("\nvalid run, data right: 43 checks, "), "{stdout}");
    assert!(stdout.ends_with(&format!("; by ferrite {}\n", nccl_net::inspect::version::text())), "{stdout}");
}

#[test]
fn a_long_stream_is_the_only_check() {
    let (code, stdout, stderr) = verify(&["--over", "single", "--long", "100"], "");
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(stdout.contains("  right  long         65536 B                    200 checked\n"), "{stdout}");
    assert!(stdout.contains("1 checks, 200 messages"), "{stdout}");
}

#[test]
fn a_wrong_byte_is_told_and_ends_in_failure() {
    let (code, stdout, stderr) = verify(&["--over", "single"], "corrupt");
    assert_eq!(code, 1, "{stdout}");
    let line = stdout.lines().find(|line| line.contains("WRONG")).expect("one is wrong");
    assert!(line.starts_with("  WRONG  single        4097 B") && line.contains("offset 2048: expected 0x"), "{line}");
    // Three messages each way of the single ones, 24 each way of the stream.
    assert!(stderr.contains("54 of them wrong"), "{stderr}");
}

#[test]
fn what_cannot_be_tried_is_left_out_unless_it_was_named() {
    let (code, stdout, stderr) = verify(&["--over", "fused"], "");
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(stderr.contains("fused: it looks for the ports of one card in /sys/class/infiniband"), "{stderr}");
    let (code, _, stderr) = verify(&["--over", "parallel"], "");
    assert_eq!(code, 2);
    assert!(stderr.contains("Loopback has no device 1: it found 1"), "{stderr}");
    let (code, stdout, _) = verify(&["--long", "10"], "");
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.contains("fused: left out; "), "{stdout}");
}
