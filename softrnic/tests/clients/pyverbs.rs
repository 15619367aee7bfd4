//! The test suite of rdma-core, pyverbs: each of its tests has the verdict that `pyverbs.txt` says.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use super::common::tools::Bench;
use testkit::{Missing, Scratch, require};

/// As the package python3-pyverbs has its tests.
const SUITE: &str = "/usr/share/doc/rdma-core/tests";
/// The Python that has pyverbs.
const PYTHON: &str = "/usr/bin/python3";

/// The tests of pyverbs, in a folder of this test's own.
fn suite() -> Result<Scratch, Missing> {
    let is_there = Command::new(PYTHON)
        .args(["-c", "import pyverbs"])
        .output()
        .is_ok_and(|it| it.status.success());
    if !is_there || !Path::new(SUITE).is_dir() {
        return Err(Missing(format!(
            "pyverbs with its tests in {SUITE} (package python3-pyverbs)"
        )));
    }
    // The names of its tests are those of this release.
    let version =
        Command::new("dpkg-query").args(["-W", "-f", "${Version}", "python3-pyverbs"]).output();
    let version =
        version.map(|it| String::from_utf8_lossy(&it.stdout).into_owned()).unwrap_or_default();
    if !version.starts_with("44.") {
        return Err(Missing(format!("pyverbs 44 (there is {version})")));
    }
    let folder = Scratch::new();
    for entry in fs::read_dir(SUITE).expect("it is readable") {
        let path = entry.expect("it is readable").path();
        if path.is_dir() {
            continue;
        }
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let text = if name.ends_with(".gz") {
            Command::new("gzip").arg("-dc").arg(&path).output().expect("gzip").stdout
        } else {
            fs::read(&path).expect("it is readable")
        };
        fs::write(folder.join(name.trim_end_matches(".gz")), text).expect("it can be written");
    }
    Ok(folder)
}

/// The verdict on each test, one a line: `passes`, `skipped: ` and the suite's reason, or `either`
/// of a test that asks for what it chooses at random and skips where that is refused, or that the
/// machine decides about.
const VERDICTS: &str = include_str!("pyverbs.txt");

fn listed(text: &str) -> BTreeMap<&str, &str> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once(": "))
        .collect()
}

/// The verdicts of a run: each at the end of the line with the name of a test, or of one of those
/// that follow.
fn found(report: &str) -> BTreeMap<&str, String> {
    let mut found = BTreeMap::new();
    let mut name = None;
    for line in report.lines() {
        if let Some(at) = line.find(" (tests.") {
            name = line[at + 2..].split_once(')').map(|(name, _)| name);
        }
        let said = line.rsplit_once(" ... ").map_or(line, |(_, said)| said);
        let verdict = match said {
            "ok" => "passes".to_owned(),
            "FAIL" | "ERROR" => said.to_owned(),
            _ => match said.strip_prefix("skipped ") {
                Some(reason) => format!("skipped: {}", reason.trim_matches(['\'', '"'])),
                None => continue,
            },
        };
        if let Some(name) = name.take() {
            found.insert(name, verdict);
        }
    }
    found
}

/// Where a run differs from the list, either way.
fn differences(report: &str, list: &str) -> Vec<String> {
    let (found, listed) = (found(report), listed(list));
    let is_as_listed = |found: &str, listed: &str| match listed {
        "either" => found == "passes" || found.starts_with("skipped: "),
        listed => found == listed,
    };
    let wrong = listed.iter().filter_map(|(name, listed)| match found.get(name) {
        None => Some(format!("{name} has not run")),
        Some(found) if !is_as_listed(found, listed) => {
            Some(format!("{name}: {found}, and not {listed}"))
        }
        Some(_) => None,
    });
    let more = found.iter().filter(|(name, _)| !listed.contains_key(*name));
    wrong.chain(more.map(|(name, verdict)| format!("{name} is not listed: {verdict}"))).collect()
}

#[test]
fn a_test_that_vanishes_comes_or_changes_is_a_difference() {
    let report = "test_a (tests.m.C.test_a) ... ok\ntest_b (tests.m.C.test_b)\nWhat it does. ... skipped 'no card'\n\
                  test_c (tests.m.C.test_c) ... FAIL\ntest_d (tests.m.C.test_d) ... it says this\n\
                  skipped \"it's not there\"\n";
    let list = "# A head.\ntests.m.C.test_a: passes\ntests.m.C.test_b: skipped: no card\ntests.m.C.test_d: either\n";
    assert_eq!(differences(report, list), ["tests.m.C.test_c is not listed: FAIL"]);
    let other = list.replace("passes", "skipped: no card").replace("test_b", "test_e");
    let told = differences(report, &other);
    assert_eq!(told.len(), 4, "{told:?}");
    assert!(
        told.contains(&"tests.m.C.test_a: passes, and not skipped: no card".to_owned()),
        "{told:?}"
    );
    assert!(told.contains(&"tests.m.C.test_e has not run".to_owned()), "{told:?}");
}

/// `FERRITE_UPDATE=1` writes what was found into the list; which tests are `either`, somebody has
/// to say.
#[test]
fn the_suite_of_rdma_core() {
    let folder = require!(suite());
    let bench =
        require!(Bench::of(("ibv_devinfo", "ibverbs-utils"), &[("PYTHONDONTWRITEBYTECODE", "1")]));
    let bench = require!(bench.faithful());
    let program = folder.join("run_tests.py");
    let program = program.to_str().expect("UTF-8");
    let report = bench.run(PYTHON, &[program, "--dev", "softrnic0", "--gid", "1", "-v"]).well();
    if std::env::var_os("FERRITE_UPDATE").is_some() {
        let keep = |name: &str, verdict: &str| {
            listed(VERDICTS).get(name) == Some(&"either") && !verdict.contains("FAIL")
        };
        let head = VERDICTS
            .lines()
            .take_while(|line| line.starts_with('#'))
            .map(|line| format!("{line}\n"));
        let lines = found(&report).into_iter().map(|(name, verdict)| {
            let verdict = if keep(name, &verdict) { "either".to_owned() } else { verdict };
            format!("{name}: {verdict}\n")
        });
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients/pyverbs.txt");
        return fs::write(path, head.chain(lines).collect::<String>()).expect("it can be written");
    }
    assert!(listed(VERDICTS).len() > 250, "{} tests: too few to believe", listed(VERDICTS).len());
    let wrong = differences(&report, VERDICTS);
    assert!(wrong.is_empty(), "{wrong:#?}");
}
