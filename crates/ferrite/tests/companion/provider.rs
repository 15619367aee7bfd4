//! The plugin, and NCCL's own IB transport, on the system's own libibverbs and its driver libraries,
//! with softrnic as kernel and card beneath.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use testkit::unique::unique_name;
use testkit::{Missing, require};

use crate::common::{cached_nccl, dist};

/// The built files.
///
/// # Errors
/// They, or the driver library, are missing, or there can be no mount namespaces.
fn built(provider: &str) -> Result<PathBuf, Missing> {
    let dist = dist(&[
        "softrnic-provider/libsoftrnic-provider.so",
        "lib/libnccl-net.so",
        "bin/ferrite",
        "bin/softrnic",
    ])?;
    let probe = beneath(provider, &dist, &[], &["true"]);
    if probe.status.success() {
        return Ok(dist);
    }
    Err(Missing(String::from_utf8_lossy(&probe.stderr).into_owned()))
}

/// A program of the build, run with these options.
fn beneath(provider: &str, dist: &Path, options: &[&str], program: &[&str]) -> Output {
    let fabric = unique_name("provider");
    let mut command = Command::new(dist.join("bin/softrnic"));
    command.args(["run", "--provider", provider, "--fabric", &fabric]);
    // A card waits longer before it sends again.
    command
        .args(["--time-scale", "0.05"])
        .args(options)
        .arg("--")
        .args(program)
        .env("SOFTRNIC_QUIET", "1");
    // Where cargo puts softrnic's own library.
    command.env_remove("LD_LIBRARY_PATH");
    command.output().expect("softrnic runs")
}

/// `ferrite verify` of one side: whether it ended well, and what it said.
fn verify(provider: &str, dist: &Path, options: &[&str], side: &[&str]) -> (Option<i32>, String) {
    let ferrite = dist.join("bin/ferrite");
    let words = [&[ferrite.to_str().expect("text"), "verify", "--verbs", "system"], side].concat();
    let output = beneath(provider, dist, options, &words);
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&said).into_owned())
}

fn right((code, said): (Option<i32>, String)) -> String {
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("valid run, data right: "), "{said}");
    said
}

fn stock(release: &str) -> Result<String, Missing> {
    Ok(cached_nccl(release)?.to_str().expect("text").to_owned())
}

#[test]
fn the_plugin_is_right_over_all_devices() {
    let dist = require!(built("mlx5"));
    let said = right(verify("mlx5", &dist, &["--same-card"], &[]));
    for words in ["single: Ferrite ", " on mlx5_0 and mlx5_1", "parallel: ", "fused: Ferrite "] {
        assert!(said.contains(words), "{words}: {said}");
    }
    // As the page of softrnic has it: no card has two ports.
    let said = right(verify("mlx5", &dist, &[], &[]));
    for words in ["single: Ferrite ", "parallel: ", "fused: left out; Ferrite shows 2 device(s)"] {
        assert!(said.contains(words), "{words}: {said}");
    }
    let (code, said) = verify("mlx5", &dist, &[], &["--over", "fused"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("none of two ports of one card"), "{said}");
}

#[test]
fn the_oldest_and_the_newest_nccl_are_right() {
    let dist = require!(built("mlx5"));
    for release in ["2.21.5", "2.32.3"] {
        let nccl = require!(stock(release));
        right(verify("mlx5", &dist, &[], &["--over", "single", "--stock", &nccl]));
    }
}

#[test]
fn the_plugin_and_nccl_are_right_on_erdma() {
    let dist = require!(built("erdma"));
    let said = right(verify("erdma", &dist, &[], &["--over", "single"]));
    assert!(said.contains("erdma_0"), "{said}");
    let fault = ["--faults", "qp-error message=500 times=1"];
    right(verify("erdma", &dist, &fault, &LONG));
    let nccl = require!(stock("2.21.5"));
    right(verify("erdma", &dist, &[], &["--over", "single", "--stock", &nccl]));
    // This one asks for queue pairs without receives, which the driver does not make.
    let nccl = require!(stock("2.32.3"));
    let (code, said) = verify("erdma", &dist, &[], &["--over", "single", "--stock", &nccl]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("ibv_create_qp failed with error Invalid argument"), "{said}");
}

#[test]
fn the_plugin_and_nccl_are_right_on_bnxt_re() {
    let dist = require!(built("bnxt_re"));
    let said = right(verify("bnxt_re", &dist, &[], &["--over", "single"]));
    assert!(said.contains("bnxt_re0"), "{said}");
    let fault = ["--faults", "qp-error message=500 times=1"];
    right(verify("bnxt_re", &dist, &fault, &LONG));
    for release in ["2.21.5", "2.32.3"] {
        let nccl = require!(stock(release));
        right(verify("bnxt_re", &dist, &[], &["--over", "single", "--stock", &nccl]));
    }
}

#[test]
fn the_plugin_keeps_the_contract() {
    let dist = require!(built("mlx5"));
    let ferrite = dist.join("bin/ferrite");
    let words = [ferrite.to_str().expect("text"), "check", "--verbs", "system"];
    let output = beneath("mlx5", &dist, &["--same-card"], &words);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let passed = said.matches("  pass  ").count();
    assert!(passed >= 40 && said.contains(" 0 failed, "), "{passed}: {said}");
}

const LONG: [&str; 4] = ["--over", "single", "--long", "2000"];

/// A port that is down for so long that the card gives up, and a queue pair that fails by itself.
#[test]
fn the_plugin_resumes_after_faults() {
    let dist = require!(built("mlx5"));
    for fault in
        ["port-down=1500ms device=softrnic0/1 message=500 times=1", "qp-error message=500 times=1"]
    {
        right(verify("mlx5", &dist, &["--faults", fault], &LONG));
    }
    right(verify("mlx5", &dist, &["--faults", "drop chance=0.01"], &LONG));
}

#[test]
fn nccl_retries_what_is_lost_and_ends_where_a_queue_pair_fails() {
    let (dist, nccl) = (require!(built("mlx5")), require!(stock("2.21.5")));
    let side = [&LONG[..], &["--stock", &nccl]].concat();
    right(verify("mlx5", &dist, &["--faults", "drop chance=0.01"], &side));
    let fault = ["--faults", "qp-error message=500 times=1"];
    let (code, said) = verify("mlx5", &dist, &fault, &[&side[..], &["--timeout", "5"]].concat());
    assert_eq!(code, Some(2), "{said}");
    // It names the error of the card that libmlx5 reports, and stale fields beside it.
    assert!(said.contains("with status=2 ") && said.contains("mlx5_1:1"), "{said}");
}
