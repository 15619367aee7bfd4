//! What messages cost, counted on the software device.

use std::ffi::CString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use testkit::cases;

use serde_json::Value;
use testkit::process::Process;
use testkit::side::enter;
use testkit::{Peer, Scratch, require};

use crate::common::{dist, ferrite, loopback, stock_nccl};
use crate::text;

const PARTS: [&str; 4] =
    ["lib/libnccl-net.so", "softrnic/libibverbs.so.1", "bin/ferrite", "bin/softrnic"];

/// `ferrite cost` of the plugin alone, as JSON.
fn counted(dist: &Path, words: &[&str]) -> Value {
    counted_with(dist, words, &[])
}

/// As [`counted`], with these variables.
fn counted_with(dist: &Path, words: &[&str], env: &[(&str, &str)]) -> Value {
    let path = |part: &str| dist.join(part).display().to_string();
    let (plugin, softrnic) = (path(PARTS[0]), path("softrnic"));
    let all = [&["cost", "--plugin", &plugin, "--softrnic", &softrnic, "--json"], words].concat();
    let (code, stdout, stderr) = ferrite(&all, env);
    assert_eq!(code, 0, "{stdout}{stderr}");
    serde_json::from_str(&stdout).expect("JSON")
}

#[test]
fn each_message_takes_two_doorbells_and_two_completions_or_fewer() {
    let dist = require!(dist(&PARTS));
    let all = counted(&dist, &["--size", "8,64K", "--depth", "1,8"]);
    let cases = all["cases"].as_array().expect("cases");
    assert_eq!(cases.len(), 4);
    for case in cases {
        let side = &case["transports"][0];
        assert_eq!(side["name"], "Ferrite");
        let cost = |name: &str| side["per_message"][name].as_f64().expect(name);
        assert!(cost("doorbells") > 1.0 && cost("doorbells") <= 2.0, "{case}");
        assert!(cost("completions") >= 2.0 && cost("completions") < 2.1, "{case}");
        let is_inline = case["case"]["bytes"] == 8;
        assert_eq!(
            cost("gathered").round(),
            if is_inline { 0.0 } else { 1.0 },
            "the data alone is read from memory: {case}"
        );
        assert!((cost("receives") - 1.0).abs() < 0.1 && cost("receive_posts") < 0.1, "{case}");
        let bytes = case["case"]["bytes"].as_f64().expect("bytes");
        assert!(
            cost("wire_bytes") > bytes + 200.0 && cost("wire_bytes") < 1.1 * bytes + 600.0,
            "{case}"
        );
        assert_eq!(
            (
                side["connection"]["queue_pairs"].as_u64(),
                side["connection"]["completion_queues"].as_u64()
            ),
            (Some(2), Some(2))
        );
    }
}

#[test]
fn a_poll_finds_the_completions_of_all_queue_pairs() {
    let dist = require!(dist(&PARTS));
    let all = counted(&dist, &["--size", "64K", "--depth", "1", "--queue-pairs", "4"]);
    let cost = &all["cases"][0]["transports"][0]["per_message"];
    assert!(cost["completions"].as_f64().expect("a number") >= 8.0, "{cost}");
    assert!(cost["polls"].as_f64().expect("a number") < 2.1, "{cost}");
}

/// One cost of a message of so many bytes, with these variables.
fn cost_of(dist: &Path, bytes: &str, name: &str, env: &[(&str, &str)]) -> f64 {
    let all = counted_with(dist, &["--size", bytes, "--depth", "1"], env);
    all["cases"][0]["transports"][0]["per_message"][name].as_f64().expect(name)
}

#[test]
fn a_short_message_of_host_memory_is_inline_unless_a_variable_says_otherwise() {
    let dist = require!(dist(&PARTS));
    let gathered = |bytes, env: &[_]| cost_of(&dist, bytes, "gathered", env).round();
    assert_eq!([gathered("28", &[]), gathered("29", &[])], [0.0, 1.0]);
    assert_eq!(gathered("28", &[("NCCL_IB_USE_INLINE", "0")]), 2.0, "the clear-to-send, too");
    let of_device = [("SOFTRNIC_MAX_INLINE", "20"), ("SOFTRNIC_INLINE_EXCESS", "grant")];
    assert_eq!(gathered("20", &of_device), 1.0, "the clear-to-send alone: a device may grant less");
}

#[test]
fn queues_in_a_thread_domain_take_no_lock() {
    let dist = require!(dist(&PARTS));
    let (polls, locks) =
        (cost_of(&dist, "8", "polls", &[]), |env: &[_]| cost_of(&dist, "8", "locks", env));
    assert_eq!(locks(&[]), 0.0);
    let without = locks(&[("FERRITE_THREAD_DOMAINS", "0")]);
    assert!(without > polls + 1.9, "{without}");
    for refusal in ["absent", "exhausted"] {
        assert_eq!(locks(&[("SOFTRNIC_THREAD_DOMAINS", refusal)]), without, "{refusal}");
    }
}

#[test]
fn writes_of_a_message_are_chained_unless_a_variable_says_otherwise() {
    let dist = require!(dist(&PARTS));
    let routed = ("NCCL_IB_ADAPTIVE_ROUTING", "1");
    let rung = |env: &[_]| {
        [cost_of(&dist, "16K", "doorbells", env), cost_of(&dist, "16K", "fetched", env)]
    };
    assert_eq!(rung(&[routed]).map(f64::round), [2.0, 2.0]);
    assert_eq!(rung(&[routed, ("FERRITE_CHAIN_WRITES", "0")]).map(f64::round), [3.0, 0.0]);
}

#[test]
fn queues_take_a_third_of_those_of_the_built_in_transport() {
    let dist = require!(dist(&PARTS));
    let stock = require!(stock_nccl()).display().to_string();
    let all = counted(&dist, &["--stock", &stock, "--size", "8"]);
    let sides = all["cases"][0]["transports"].as_array().expect("transports");
    let bytes =
        |side: &Value| side["connection"]["queue_bytes"]["mlx5"].as_f64().expect("a number");
    assert_eq!(sides[0]["name"], "NCCL 2.21.5");
    assert!(bytes(&sides[1]) <= 0.35 * bytes(&sides[0]), "{sides:?}");
}

#[test]
fn the_report_of_measurements_tells_what_messages_cost() {
    let dist = require!(dist(&PARTS));
    let folder = Scratch::new();
    let path = |part: &str| dist.join(part).display().to_string();
    let (plugin, softrnic, report) =
        (path(PARTS[0]), path("softrnic"), folder.path().display().to_string());
    let short = [
        "--sets", "1", "--seconds", "600", "--sizes", "8", "--connections", "1", "--report",
        &report,
    ];
    let all = [&["bench", "--plugin", &plugin, "--softrnic", &softrnic][..], &short].concat();
    let (code, stdout, stderr) = ferrite(&all, &[("FERRITE_LANES", "2")]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a report");
    let record: Value = serde_json::from_str(&read("raw.json")).expect("JSON");
    let costs = record["costs"].as_array().expect("costs");
    assert_eq!(costs.len(), 4);
    let side = &costs[0]["transports"][0];
    assert_eq!(
        (&side["name"], &side["connection"]["queue_pairs"]),
        (&"Ferrite".into(), &4.into()),
        "as is set"
    );
    assert!(side["per_message"]["doorbells"].as_f64().is_some_and(|count| count >= 2.0), "{side}");
    assert!(
        read("report.md").contains("## What a message costs the card\n"),
        "{}",
        read("report.md")
    );
}

#[test]
fn the_same_run_counts_the_same() {
    let dist = require!(dist(&PARTS));
    let of =
        || counted(&dist, &["--size", "8", "--depth", "8", "--queue-pairs", "2"])["cases"].clone();
    assert_eq!(of(), of());
}

#[test]
fn what_cannot_be_tried_is_said() {
    let dist = require!(dist(&PARTS));
    let softrnic = dist.join("softrnic").display().to_string();
    for (words, says) in [
        (&["--plugin", "/no/such.so"][..], "/no/such.so"),
        (&["--size", "0"][..], "between 1 and 128M"),
        (&["--depth", "33"][..], "1..=32"),
        (&["--rails", "3"][..], "1..=2"),
    ] {
        let (code, stdout, stderr) =
            ferrite(&[&["cost", "--softrnic", &softrnic], words].concat(), &[]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{words:?}: {stderr}");
        assert!(stderr.contains(says), "{words:?}: {stderr}");
    }
}

// One process that talks to itself, over the loopback transport and, where it is built, over the
// software device.

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
    let bytes =
        line.split(" us each, ").nth(1).and_then(|rest| rest.split_once(" B resident per comm"));
    let bytes: u64 = bytes.expect("the memory is said").0.parse().expect("it is a number");
    // What the fixture allocates for a communicator, most of it untouched.
    assert!((1_000..100_000).contains(&bytes), "{line}");
}

#[test]
fn wrong_data_is_caught() {
    wrong(
        solo(&["--size", "4097"], "corrupt"),
        "wrong data: message 0 of the last 1, offset 2048: expected 0x",
    );
}

cases! { ();
    a_wrong_size_is_caught =>
        wrong(solo(&["--size", "4097"], "size"), "a message of 4097 B came with 4096 B");
    a_hanging_transport_is_given_up =>
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
        let arguments = [
            "solo",
            side,
            text(path),
            "--refused-sends",
            "300",
            "--empty-tests",
            "300",
            "--depth",
            "8",
        ];
        let line = line(ferrite(&arguments, &[("FERRITE_DIST", text(&dist))]));
        assert!(
            line.contains(" ns per isend without effect, ")
                && line.ends_with(" ns per test without effect\n"),
            "{line}"
        );
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

/// The loopback transport over one connection each way, wrong in the way that `fault` names.
fn verify(arguments: &[&str], fault: &str) -> (i32, String, String) {
    let plugin = loopback();
    let mut all =
        vec!["verify", "--plugin", plugin.to_str().expect("it is text"), "--verbs", "system"];
    all.extend(arguments);
    ferrite(&all, &[("LOOPBACK_FAULT", fault)])
}

#[test]
fn a_good_transport_is_valid() {
    let (code, stdout, stderr) = verify(&["--over", "single"], "");
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(
        stdout.starts_with("single: Loopback 0.0.1 (interface v8) on loop0 and loop0\n"),
        "{stdout}"
    );
    for words in [
        "  right  single           0 B", "  right  stream     4194433 B",
        "  right  group            8 messages",
    ] {
        assert!(stdout.contains(words), "{words:?} is missing: {stdout}");
    }
    assert!(stdout.contains("\nvalid run, data right: 43 checks, "), "{stdout}");
    assert!(
        stdout.ends_with(&format!("; by ferrite {}\n", nccl_net::inspect::version::text())),
        "{stdout}"
    );
}

#[test]
fn a_long_stream_is_the_only_check() {
    let (code, stdout, stderr) = verify(&["--over", "single", "--long", "100"], "");
    assert_eq!(code, 0, "{stdout}{stderr}");
    assert!(
        stdout.contains("  right  long         65536 B                    200 checked\n"),
        "{stdout}"
    );
    assert!(stdout.contains("1 checks, 200 messages"), "{stdout}");
}

#[test]
fn a_wrong_byte_is_told_and_ends_in_failure() {
    let (code, stdout, stderr) = verify(&["--over", "single"], "corrupt");
    assert_eq!(code, 1, "{stdout}");
    let line = stdout.lines().find(|line| line.contains("WRONG")).expect("one is wrong");
    assert!(
        line.starts_with("  WRONG  single        4097 B")
            && line.contains("offset 2048: expected 0x"),
        "{line}"
    );
    // Three messages each way of the single ones, 24 each way of the stream.
    assert!(stderr.contains("54 of them wrong"), "{stderr}");
}

#[test]
fn what_cannot_be_tried_is_left_out_unless_it_was_named() {
    let (code, stdout, stderr) = verify(&["--over", "fused"], "");
    assert_eq!((code, stdout.as_str()), (2, ""));
    assert!(
        stderr.contains("fused: it looks for the ports of one card in /sys/class/infiniband"),
        "{stderr}"
    );
    let (code, _, stderr) = verify(&["--over", "parallel"], "");
    assert_eq!(code, 2);
    assert!(stderr.contains("Loopback has no device 1: it found 1"), "{stderr}");
    let (code, stdout, _) = verify(&["--long", "10"], "");
    assert_eq!(code, 0, "{stdout}");
    assert!(stdout.contains("fused: left out; "), "{stdout}");
}

const LIBRARY: &str = "FERRITE_TEST_LIBRARY";

/// In a process of its own: takes part in the fabric that the environment names until the test lets
/// it end.
fn take_part(_side: usize, mut test: Peer) {
    let library = std::env::var_os(LIBRARY).expect("the test names it");
    let library = CString::new(library.into_vec()).expect("a path");
    // SAFETY: a library of this project, and the function's type in the verbs interface; NULL is no
    // count.
    let list = unsafe {
        let handle = libc::dlopen(library.as_ptr(), libc::RTLD_NOW);
        assert!(!handle.is_null());
        let found = libc::dlsym(handle, c"ibv_get_device_list".as_ptr());
        assert!(!found.is_null());
        let devices: extern "C" fn(*mut i32) -> *mut libc::c_void = std::mem::transmute(found);
        devices(std::ptr::null_mut())
    };
    assert!(!list.is_null());
    test.barrier();
    test.barrier();
}

/// No process has the id in their names, as in another process id namespace.
#[test]
fn fabrics_that_no_process_takes_part_in_are_removed_and_others_are_not() {
    enter(take_part);
    let dist = require!(dist(&["softrnic/libibverbs.so.1"]));
    let library = dist.join("softrnic/libibverbs.so.1");
    let (shm, plugin) = (Scratch::new(), loopback());
    let text = |path: &Path| path.to_str().expect("it is text").to_owned();
    let (library, folder) = (text(&library), text(&shm));
    let [living, dead] = ["ferrite-4194305-0", "ferrite-4194305-1-0a0b0c0d"];
    let join = |fabric| {
        let env = [
            (LIBRARY, library.as_str()),
            ("SOFTRNIC_FABRIC", fabric),
            ("SOFTRNIC_SHM_DIR", &folder),
        ];
        let (process, mut peer) =
            Process::start(0, &[&env[..], &[("SOFTRNIC_QUIET", "1")]].concat());
        peer.barrier();
        (process, peer)
    };
    let (survivor, mut peer) = join(living);
    let (mut killed, _peer) = join(dead);
    killed.signal(libc::SIGKILL);
    assert!(killed.ended().is_killed_by(libc::SIGKILL));
    assert!(shm.join(living).exists() && shm.join(dead).exists());
    let arguments = ["bench", "--plugin", &text(&plugin), "--timeout", "60"];
    // It ends by saying that this transport uses no software device.
    let (_, _, said) =
        ferrite(&arguments, &[("FERRITE_DIST", &text(&dist)), ("SOFTRNIC_SHM_DIR", &folder)]);
    assert!(shm.join(living).exists(), "{said}");
    assert!(!shm.join(dead).exists(), "{said}");
    peer.barrier();
    survivor.finish();
}
