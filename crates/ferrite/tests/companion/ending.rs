//! How a run ends that cannot be told, or that somebody ends.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{fake_nccl, ferrite, loopback};
use lab::results::record::Record;
use testkit::Scratch;
use testkit::unique::unique_name;

fn text(path: &Path) -> &str {
    path.to_str().expect("it is text")
}

#[test]
fn a_full_disk_behind_stdout_ends_with_2() {
    let plugin = loopback();
    for arguments in [
        &["verify", "--verbs", "system", "--over", "single", "--long", "10", "--plugin", text(&plugin)][..],
        &["--help"],
        &["--version"],
        &["check", "--list"],
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_ferrite"))
            .args(arguments)
            .stdout(File::options().write(true).open("/dev/full").expect("it is there"))
            .output()
            .expect("the tool can be started");
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {stderr}");
        assert!(stderr.contains("cannot write to stdout: No space left on device"), "{arguments:?}: {stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
    }
}

#[test]
fn a_report_is_written_although_stdout_is_full() {
    let (folder, plugin) = (Scratch::new(), loopback());
    let output = Command::new(env!("CARGO_BIN_EXE_ferrite"))
        .args(["bench", "--verbs", "system", "--quick", "--slice", "1", "--sizes", "8", "--reps", "1", "--plugin"])
        .args([text(&plugin), "--connections", "2", "--report", text(&folder)])
        .stdout(File::options().write(true).open("/dev/full").expect("it is there"))
        .output()
        .expect("the tool can be started");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("cannot write to stdout"), "{stderr}");
    for file in ["raw.json", "report.md", "report.svg"] {
        assert!(folder.join(file).exists(), "{file}");
    }
}

#[test]
fn a_failed_check_ends_with_1() {
    let plugin = loopback();
    let arguments = ["check", "--verbs", "system", "--only", "init-again", "--plugin", text(&plugin)];
    let (code, stdout, stderr) = ferrite(&arguments, &[("LOOPBACK_FAULT", "init")]);
    assert_eq!(code, 1, "{stdout}{stderr}");
    assert!(stderr.contains("1 of the checks that were named failed") && !stderr.contains("invalid"), "{stderr}");
}

/// Starts the tool with a variable of its own, waits until `enough` lines of its stderr have the words, interrupts it,
/// and returns how it ended, its stdout and the rest of its stderr. None of its processes may be left.
fn interrupted(arguments: &[&str], words: &str, enough: usize) -> (Option<i32>, String, String) {
    let (mark, folder) = (unique_name("interrupted"), Scratch::new());
    let mut child = Command::new(env!("CARGO_BIN_EXE_ferrite"))
        .args(arguments)
        .current_dir(folder.path())
        .env("RUST_LOG", "debug")
        .env("FERRITE_INTERRUPTED_TEST", &mark)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the tool can be started");
    let mut lines = BufReader::new(child.stderr.take().expect("it is piped")).lines().map_while(|line| line.ok());
    let seen = lines.by_ref().filter(|line| line.contains(words)).take(enough).count();
    assert_eq!(seen, enough, "it ended by itself");
    // SAFETY: a signal to the child, which has not been waited for.
    unsafe { libc::kill(child.id().cast_signed(), libc::SIGINT) };
    let rest: Vec<String> = lines.collect();
    let mut stdout = String::new();
    child.stdout.take().expect("it is piped").read_to_string(&mut stdout).expect("it is text");
    let status = child.wait().expect("it ends");
    let marked = |entry: &std::fs::DirEntry| {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        environment.windows(mark.len()).any(|bytes| bytes == mark.as_bytes())
    };
    let left: Vec<_> = std::fs::read_dir("/proc").expect("it is there").flatten().filter(marked).collect();
    assert!(left.is_empty(), "processes are left: {left:?}");
    (status.code(), stdout, rest.join("\n"))
}

#[test]
fn an_interrupted_comparison_reports_what_it_has() {
    let (folder, nccl, plugin) = (Scratch::new(), fake_nccl(), loopback());
    let mut arguments = vec!["compare", "--verbs", "system", "--nccl", text(&nccl), "--plugin", text(&plugin)];
    arguments.extend(["--quick", "--slice", "1", "--sizes", "8", "--reps", "1000", "--report", text(&folder)]);
    // Two pairs verify; the third of the second repetition is the eighth; each has two processes that say this.
    let (code, stdout, stderr) = interrupted(&arguments, "Loopback 0.0.1", 16);
    assert_eq!(code, Some(130), "{stderr}");
    assert!(stdout.contains("PARTIAL: interrupted after ") && stdout.contains("B/A [interval]"), "{stdout}");
    assert!(stderr.ends_with("ferrite: interrupted"), "{stderr}");
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("it was written");
    let record: Record = serde_json::from_str(&read("raw.json")).expect("it is a record");
    assert!(!record.complete && record.sessions.len() >= 3, "{} sessions", record.sessions.len());
    assert!(read("report.md").contains("**PARTIAL: interrupted after "), "{}", read("report.md"));
}

#[test]
fn an_interrupt_before_any_result_is_told_in_one_line() {
    let (folder, plugin) = (Scratch::new(), loopback());
    let arguments = ["bench", "--verbs", "system", "--plugin", text(&plugin), "--report", text(&folder)];
    let (code, stdout, stderr) = interrupted(&arguments, "Loopback 0.0.1", 1);
    assert_eq!((code, stdout.as_str()), (Some(130), ""), "{stderr}");
    assert!(stderr.ends_with("ferrite: interrupted"), "{stderr}");
    assert_eq!(std::fs::read_dir(&folder).expect("it is there").count(), 0);
}
