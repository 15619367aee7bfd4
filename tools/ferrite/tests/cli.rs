//! The tool as a user meets it: exit codes, messages, and the files it writes.

mod common;

use common::{fake_nccl, ferrite, loopback, scratch, shared_object};
use ferrite::record::Record;
use ferrite::sample::Metric;

/// A run of seconds, without any NIC.
const FAST: [&str; 7] = ["--verbs", "system", "--quick", "--slice", "5", "--timeout", "10"];

fn bench(fault: &str) -> (i32, String, String) {
    let report = scratch(&format!("bench-{fault}"));
    let plugin = loopback();
    let mut arguments = vec!["bench", "--plugin", plugin.to_str().expect("it is text")];
    arguments.extend(FAST);
    arguments.extend(["--reps", "1", "--report", report.to_str().expect("it is text")]);
    ferrite(&arguments, &[("LOOPBACK_FAULT", fault)])
}

/// The run is invalid and stderr has these words.
fn invalid((code, stdout, stderr): (i32, String, String), words: &[&str]) {
    assert_eq!(code, 2, "{stdout}{stderr}");
    for word in words.iter().chain(&["invalid run"]) {
        assert!(stderr.contains(word), "{word:?} is missing: {stderr}");
    }
}

#[test]
fn help_and_version_are_valid() {
    for arguments in [["--help"], ["--version"]] {
        assert_eq!(ferrite(&arguments, &[]).0, 0);
    }
}

#[test]
fn wrong_command_lines_are_invalid() {
    for arguments in [
        &[][..],
        &["frobnicate"],
        &["bench"],
        &["bench", "--plugin", "x", "--stock"],
        &["compare", "--reps", "0"],
        &["compare", "--sizes", "8,huge"],
        &["bench", "--plugin", "x", "--verbs", "system", "--softrnic", "y"],
        &["bench", "--plugin", "/no/such/plugin.so", "--verbs", "system"],
        &["worker"],
    ] {
        let (code, stdout, stderr) = ferrite(arguments, &[]);
        assert_eq!(code, 2, "{arguments:?}: {stdout}{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn a_missing_software_device_is_named() {
    let (code, _, stderr) = ferrite(&["bench", "--plugin", "x", "--softrnic", "/no/such/folder"], &[]);
    assert_eq!(code, 2);
    assert!(stderr.contains("/no/such/folder/libibverbs.so.1"), "{stderr}");
}

#[test]
fn a_good_transport_is_valid() {
    let (code, stdout, stderr) = bench("");
    assert_eq!(code, 0, "{stderr}");
    for words in ["A = Loopback 0.0.1 (sha256 ", "#wrong", "GB/s", "valid run, data right"] {
        assert!(stdout.contains(words), "{words:?} is missing: {stdout}");
    }
}

#[test]
fn no_device_shows_the_transports_log() {
    invalid(bench("none"), &["Loopback found no device", "NET/Loopback : Loopback 0.0.1"]);
}

#[test]
fn a_failing_init_is_named() {
    invalid(bench("init"), &["init returned 2 (ncclSystemError", "told to fail"]);
}

#[test]
fn a_failing_send_is_named() {
    invalid(bench("error"), &["isend returned 6 (ncclRemoteError"]);
}

#[test]
fn corrupt_data_is_caught_with_size_and_offset() {
    invalid(bench("corrupt"), &["wrong data", "single of 4097 B", "offset 2048: expected 0x", ", got 0x"]);
}

#[test]
fn a_write_past_the_end_is_caught() {
    invalid(bench("past"), &["past the end, offset 0: expected 0xee, got 0xef"]);
}

#[test]
fn a_wrong_size_is_caught() {
    invalid(bench("size"), &["the size is 4096, not 4097"]);
}

#[test]
fn a_dying_transport_is_caught() {
    invalid(bench("die"), &["the process died while verifying", "SIGSEGV"]);
}

#[test]
fn a_hanging_transport_is_given_up() {
    invalid(bench("hang"), &["a single message: nothing for 8.0 s"]);
}

#[test]
fn a_device_that_does_not_exist_is_named() {
    let plugin = loopback();
    let mut arguments = vec!["bench", "--plugin", plugin.to_str().expect("it is text"), "--dev1", "3"];
    arguments.extend(FAST);
    invalid(ferrite(&arguments, &[]), &["rank 1: Loopback has no device 3: it found 1"]);
}

#[test]
fn a_comparison_writes_its_report() {
    let folder = scratch("compare");
    let (nccl, plugin) = (fake_nccl(), loopback());
    let mut arguments = vec!["compare", "--nccl", nccl.to_str().expect("it is text")];
    arguments.extend(["--plugin", plugin.to_str().expect("it is text"), "--reps", "2"]);
    arguments.extend(FAST);
    arguments.extend(["--report", folder.to_str().expect("it is text")]);
    let (code, stdout, stderr) = ferrite(&arguments, &[]);
    assert_eq!(code, 0, "{stderr}");
    for words in ["A = IB (built in, NCCL 2.21.5)", "B = Loopback 0.0.1", "B/A [50 %]", "A/A [50 %]", "median B/A"] {
        assert!(stdout.contains(words), "{words:?} is missing: {stdout}");
    }
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("it was written");
    let record: Record = serde_json::from_str(&read("raw.json")).expect("it is a record");
    assert_eq!(record.schema, "ferrite-run/1");
    let sides: Vec<&str> = record.sessions.iter().map(|run| run.side.as_str()).collect();
    assert_eq!(sides, ["A", "B", "A2", "A2", "B", "A"]);
    for metric in [Metric::SetupOne, Metric::SetupMany, Metric::Latency, Metric::MessageRate, Metric::Bandwidth] {
        let row = record.rows.iter().find(|row| row.key.metric == metric).expect("it was measured");
        assert!(row.ratio.is_some_and(|ratio| ratio.median > 0.0), "{row:?}");
    }
    assert_eq!(record.sides[1].sha256.len(), 64);
    assert!(read("report.md").contains("| size | #wrong | A min | A typ | A p99 | B min |"));
    let svg = read("report.svg");
    assert!(svg.starts_with("<svg ") && svg.trim_end().ends_with("</svg>"));
    assert!(!svg.contains("NaN"), "a value has no place");
}

#[test]
fn a_transport_is_not_compared_with_itself() {
    let plugin = loopback();
    let plugin = plugin.to_str().expect("it is text");
    let mut arguments = vec!["compare", "--baseline", plugin, "--plugin", plugin];
    arguments.extend(FAST);
    invalid(ferrite(&arguments, &[]), &["refused: A and B are the same"]);
}

#[test]
fn a_library_without_the_symbol_is_named() {
    let path = shared_object("loopback", &["-DONLY_V6"]);
    let mut arguments = vec!["bench", "--plugin", path.to_str().expect("it is text")];
    arguments.extend(FAST);
    invalid(ferrite(&arguments, &[]), &["has no symbol ncclNetPlugin_v8: it exports ncclNetPlugin_v5"]);
}

#[test]
fn a_plugin_that_is_replaced_during_the_run_is_refused() {
    let folder = scratch("replaced");
    let plugin = folder.join("libplugin.so");
    std::fs::copy(loopback(), &plugin).expect("it can be copied");
    let file = plugin.to_str().expect("it is text");
    let mut arguments = vec!["bench", "--plugin", file, "--reps", "1"];
    arguments.extend(FAST);
    let outcome = ferrite(&arguments, &[("LOOPBACK_FAULT", "grow"), ("LOOPBACK_FILE", file)]);
    invalid(outcome, &["was replaced during the run"]);
}
