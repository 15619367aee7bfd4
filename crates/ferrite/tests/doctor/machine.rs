//! The command itself: what it prints, how it ends, and that it leaves nothing.

use std::path::Path;

use testkit::{Scratch, dist, require};

use crate::common::ferrite;
use crate::setup;

#[test]
fn a_warning_is_no_failure_unless_it_is_to_be_one() {
    let warned = || setup("control").map(|setup| setup.env("NCCL_SOCKET_IFNAME", "lo"));
    let report = require!(warned()).look();
    assert_eq!((report.code, report.verdict.as_str()), (0, "warn"));
    assert_eq!(require!(warned()).word("--fail-on-warn").look().code, 1);
}

#[test]
fn wrong_command_lines_are_invalid_and_name_what_there_is() {
    let (code, _, stderr) = ferrite(&["doctor", "--only", "nothing"], &[]);
    assert_eq!(code, 2);
    assert!(stderr.contains("there is no such row") && stderr.contains("memlock"), "{stderr}");
    assert_eq!(ferrite(&["doctor", "--sysroot", "/no/such/folder"], &[]).0, 2);
}

#[test]
fn lines_have_verdict_row_fact_and_cure() {
    let root = Scratch::new();
    let words = ["doctor", "--only", "settings", "--sysroot", root.to_str().expect("text")];
    let (code, stdout, stderr) = ferrite(&words, &[("NCCL_IB_TIMEOUT", "32"), ("HOME", "/root")]);
    assert_eq!(code, 1, "{stdout}{stderr}");
    let lines: Vec<&str> = stdout.lines().collect();
    assert!(lines[0].starts_with("FAIL     settings        NCCL_IB_TIMEOUT=32: "), "{stdout}");
    assert!(lines[1].trim_start().starts_with("-> correct the variable"), "{stdout}");
    assert_eq!(lines[2], format!("1 FAIL, 0 warn, 0 unknown, 0 ok; by ferrite {}", nccl_net::inspect::version::text()));
}

#[test]
fn all_rows_are_looked_at_and_no_file_is_left() {
    let (library, plugin) = (require!(dist::softrnic_library_folder()), require!(dist::plugin()));
    let dist = plugin.parent().and_then(Path::parent).expect("dist/lib");
    let folders = [Scratch::new(), Scratch::new(), Scratch::new()];
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let names = ["SOFTRNIC_SHM_DIR", "FERRITE_STATS_DIR", "FERRITE_REPORT_DIR"];
    let mut env: Vec<(&str, String)> = names.into_iter().zip(folders.iter().map(|folder| text(folder))).collect();
    env.extend([("LD_LIBRARY_PATH", text(&library)), ("FERRITE_DIST", text(dist)), ("SOFTRNIC_QUIET", "1".into())]);
    let env: Vec<(&str, &str)> = env.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let (code, stdout, stderr) = ferrite(&["doctor"], &env);
    assert!([0, 1].contains(&code), "{stdout}{stderr}");
    assert!(stdout.contains("softrnic1:1: 1 MiB arrived right"), "{stdout}");
    let (_, listed, _) = ferrite(&["doctor", "--list"], &[]);
    for name in listed.lines().filter_map(|line| line.split_whitespace().next()) {
        let has_row = |line: &str| line.split_whitespace().nth(1) == Some(name);
        assert!(stdout.lines().any(has_row), "{name} is missing: {stdout}");
    }
    for (folder, name) in folders.iter().zip(names) {
        assert_eq!(std::fs::read_dir(folder.path()).expect("readable").count(), 0, "{name}");
    }
}
