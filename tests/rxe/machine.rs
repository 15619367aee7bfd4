//! On the host: the one run of the virtual machine, and what came of each test.

use crate::common::setting::stock_nccl;
use crate::guest::Side;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use testkit::dist::{built, dist, plugin};
use testkit::{Missing, require, skipped};

/// For the whole run; s.
const LIMIT: &str = "900";
/// What setup.sh ends with where there can be no such machine.
const UNAVAILABLE: i32 = 77;
/// Arguments of the test harness that change its list of tests into something else.
const FORMATS: [&str; 3] = ["-q", "--quiet", "--nocapture"];

/// What the run left.
enum Run {
    /// Logs and statuses of the tests, and how the machine itself ended.
    Ended { folder: PathBuf, problem: String },
    /// There is no such machine here.
    Unavailable(String),
}

/// How the test of that name ended in the machine. It fails here if it failed there, or has not
/// been run.
pub(crate) fn verdict(name: &str, side: Side) {
    require!(parts(side));
    if is_one_of_many() && !crate::is_deep() && crate::DEEP.contains(&name) {
        skipped("FERRITE_DEEP=1, without which the machine is not started for this test");
        return;
    }
    static RUN: OnceLock<Run> = OnceLock::new();
    match RUN.get_or_init(run) {
        Run::Unavailable(why) => skipped(format!("no virtual machine: {why}")),
        Run::Ended { folder, problem } => {
            // As it is, but for the harness's own words, which are counted where this program is
            // run.
            let log = fs::read_to_string(folder.join(format!("{name}.log"))).unwrap_or_default();
            let passed = log.contains("test result: ok. 1 passed");
            let log = log
                .replace("test result:", "result:")
                .replace("skipped:", "missing in the machine:");
            let status = fs::read_to_string(folder.join(format!("{name}.status")));
            let status = status
                .unwrap_or_else(|_| panic!("{name} was not run to its end:\n{log}\n{problem}"));
            assert_eq!(status.trim(), "0", "{name} failed in the machine:\n{log}");
            assert!(passed, "there is no {name} in the machine:\n{log}");
            // The line may begin with the name of the test.
            for (_, why) in
                log.lines().filter_map(|line| line.split_once("missing in the machine: "))
            {
                skipped(format!("in the machine: {why}"));
            }
        }
    }
}

/// What has to be built or fetched before.
fn parts(side: Side) -> Result<(), Missing> {
    plugin()?;
    built("bin/ferrite")?;
    if side == Side::Stock {
        stock_nccl("2.21.5")?;
    }
    Ok(())
}

/// cargo-nextest gives each test a process of its own: the first of them boots the machine for all
/// tests, the others wait for it and read what it left. Otherwise the tests are threads of one
/// process, which boots it for those it was asked for.
fn run() -> Run {
    let scripts = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/rxe");
    let setup = Command::new(scripts.join("setup.sh")).output().expect("setup.sh runs");
    let said = String::from_utf8_lossy(&setup.stderr).into_owned();
    match setup.status.code() {
        Some(0) => {}
        Some(UNAVAILABLE) => return Run::Unavailable(said.trim().to_owned()),
        _ => panic!("setup.sh: {}: {said}", setup.status),
    }
    let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let folder = temporary.join("rxe");
    let lock = File::create(temporary.join("rxe.lock")).expect("a file to lock");
    lock.lock().expect("a lock");
    let (owner, problem) = (folder.join("run-id"), folder.join("problem"));
    let id = std::env::var("NEXTEST_RUN_ID").ok();
    if id.is_none() || fs::read_to_string(&owner).ok() != id {
        // Of an earlier run, if there was one.
        fs::remove_dir_all(&folder).unwrap_or_default();
        fs::create_dir_all(&folder).expect("a folder for the results");
        fs::write(&problem, "the run of the machine was interrupted")
            .expect("the folder takes files");
        fs::write(&owner, id.unwrap_or_default()).expect("the folder takes files");
        fs::write(&problem, boot(&scripts, &folder)).expect("the folder takes files");
    }
    Run::Ended { problem: fs::read_to_string(problem).unwrap_or_default(), folder }
}

/// Runs the tests in the machine; what went wrong with the machine itself.
fn boot(scripts: &Path, folder: &Path) -> String {
    let program = std::env::current_exe().expect("own path");
    fs::write(folder.join("tests"), chosen(&program)).expect("the folder takes files");
    let words = |text: &Path| format!("'{}'", text.display().to_string().replace('\'', "'\\''"));
    let mut command = String::new();
    for name in ["FERRITE_NCCL", "FERRITE_DEEP", "XDG_CACHE_HOME"] {
        if let Some(value) = std::env::var_os(name) {
            command += &format!("{name}={} ", words(Path::new(&value)));
        }
    }
    command += &format!("FERRITE_DIST={} ", words(&fs::canonicalize(dist()).expect("it is there")));
    command += &format!("{} {}", words(&scripts.join("suite.sh")), words(&program));
    // Progress is shown as it comes, the rest if something goes wrong.
    let output = Command::new(scripts.join("run.sh"))
        .args(["-t", LIMIT, &command])
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::inherit())
        .output()
        .expect("run.sh runs");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Whether cargo-nextest has started this process, for one test.
fn is_one_of_many() -> bool {
    std::env::var_os("NEXTEST").is_some()
}

/// The names of the tests that are to be run, one a line: those that this process was asked for, as
/// threads of it. A process of cargo-nextest's was asked for one among others: then those of every
/// run, or of a deep one.
fn chosen(program: &Path) -> String {
    let is_one_of_many = std::env::var_os("NEXTEST").is_some();
    let arguments = std::env::args_os()
        .skip(1)
        .filter(|a| !is_one_of_many && !FORMATS.iter().any(|format| a == format));
    let output =
        Command::new(program).args(arguments).args(["--list", "--format", "terse"]).output();
    let output = output.expect("this program runs");
    let listed = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = listed.lines().filter_map(|line| line.strip_suffix(": test"));
    let is_wanted =
        |name: &&str| !is_one_of_many || crate::is_deep() || !crate::DEEP.contains(name);
    names.filter(is_wanted).map(|name| format!("{name}\n")).collect()
}
