//! What messages cost, counted on the software device.

use crate::common::{dist, ferrite, stock_nccl};
use serde_json::Value;
use testkit::{Scratch, require};

const PARTS: [&str; 4] = ["lib/libnccl-net.so", "softrnic/libibverbs.so.1", "bin/ferrite", "bin/softrnic"];

/// `ferrite cost` of the plugin alone, as JSON.
fn counted(dist: &std::path::Path, words: &[&str]) -> Value {
    counted_with(dist, words, &[])
}

/// As [`counted`], with these variables.
fn counted_with(dist: &std::path::Path, words: &[&str], env: &[(&str, &str)]) -> Value {
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
        assert!(cost("wire_bytes") > bytes + 200.0 && cost("wire_bytes") < 1.1 * bytes + 600.0, "{case}");
        assert_eq!(
            (side["connection"]["queue_pairs"].as_u64(), side["connection"]["completion_queues"].as_u64()),
            (Some(2), Some(2))
        );
    }
}

/// One cost of a message of so many bytes, with these variables.
fn cost_of(dist: &std::path::Path, bytes: &str, name: &str, env: &[(&str, &str)]) -> f64 {
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
fn posts_in_a_thread_domain_take_no_lock() {
    let dist = require!(dist(&PARTS));
    let (polls, locks) = (cost_of(&dist, "8", "polls", &[]), |env: &[_]| cost_of(&dist, "8", "locks", env));
    let wanted = ("FERRITE_THREAD_DOMAINS", "1");
    assert_eq!(locks(&[wanted]), polls);
    let without = locks(&[]);
    assert!(without > polls + 1.9, "{without}");
    for refusal in ["absent", "exhausted"] {
        assert_eq!(locks(&[wanted, ("SOFTRNIC_THREAD_DOMAINS", refusal)]), without, "{refusal}");
    }
}

#[test]
fn writes_of_a_message_are_chained_unless_a_variable_says_otherwise() {
    let dist = require!(dist(&PARTS));
    let routed = ("NCCL_IB_ADAPTIVE_ROUTING", "1");
    let rung = |env: &[_]| [cost_of(&dist, "16K", "doorbells", env), cost_of(&dist, "16K", "fetched", env)];
    assert_eq!(rung(&[routed]).map(f64::round), [2.0, 2.0]);
    assert_eq!(rung(&[routed, ("FERRITE_CHAIN_WRITES", "0")]).map(f64::round), [3.0, 0.0]);
}

#[test]
fn queues_take_a_third_of_those_of_the_built_in_transport() {
    let dist = require!(dist(&PARTS));
    let stock = require!(stock_nccl()).display().to_string();
    let all = counted(&dist, &["--stock", &stock, "--size", "8"]);
    let sides = all["cases"][0]["transports"].as_array().expect("transports");
    let bytes = |side: &Value| side["connection"]["queue_bytes"]["mlx5"].as_f64().expect("a number");
    assert_eq!(sides[0]["name"], "NCCL 2.21.5");
    assert!(bytes(&sides[1]) <= 0.35 * bytes(&sides[0]), "{sides:?}");
}

#[test]
fn the_report_of_measurements_tells_what_messages_cost() {
    let dist = require!(dist(&PARTS));
    let folder = Scratch::new();
    let path = |part: &str| dist.join(part).display().to_string();
    let (plugin, softrnic, report) = (path(PARTS[0]), path("softrnic"), folder.path().display().to_string());
    let short = ["--reps", "1", "--slice", "1", "--sizes", "8", "--connections", "1", "--report", &report];
    let all = [&["bench", "--plugin", &plugin, "--softrnic", &softrnic][..], &short].concat();
    let (code, stdout, stderr) = ferrite(&all, &[("FERRITE_LANES", "2")]);
    assert_eq!(code, 0, "{stdout}{stderr}");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a report");
    let record: Value = serde_json::from_str(&read("raw.json")).expect("JSON");
    let costs = record["costs"].as_array().expect("costs");
    assert_eq!(costs.len(), 4);
    let side = &costs[0]["transports"][0];
    assert_eq!((&side["name"], &side["connection"]["queue_pairs"]), (&"Ferrite".into(), &4.into()), "as is set");
    assert!(side["per_message"]["doorbells"].as_f64().is_some_and(|count| count >= 2.0), "{side}");
    assert!(read("report.md").contains("## What a message costs the card\n"), "{}", read("report.md"));
}

#[test]
fn the_same_run_counts_the_same() {
    let dist = require!(dist(&PARTS));
    let of = || counted(&dist, &["--size", "8", "--depth", "8", "--queue-pairs", "2"])["cases"].clone();
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
        let (code, stdout, stderr) = ferrite(&[&["cost", "--softrnic", &softrnic], words].concat(), &[]);
        assert_eq!((code, stdout.as_str()), (2, ""), "{words:?}: {stderr}");
        assert!(stderr.contains(says), "{words:?}: {stderr}");
    }
}
