//! The built plugin takes no more instructions than it may, for a message and for a call that finds nothing: `ferrite solo` makes the calls,
//! callgrind counts what the library executes, with what its calls into other libraries but libibverbs take. `scripts/instructions.sh`
//! compares the same numbers with NCCL's.
//!
//! Each limit is 5 % or more above the highest count that was seen when it was set: a count differs by up to 4 % from run to run, above all
//! on busy processors. What the set-up of a connection takes more there adds to a count, so up to three are made and the least is compared.
//! A change that needs more raises its limit, and says why.

use std::path::{Path, PathBuf};
use std::process::Command;
use testkit::dist::{built, plugin, softrnic_library_folder};
use testkit::{Missing, Scratch, program, require};

/// Runs `ferrite solo` with `options`, of which callgrind writes to `file`.
fn run(ferrite: &Path, folder: &Scratch, file: &str, options: &str) -> Result<(), Missing> {
    let mut command = Command::new("valgrind");
    command.args(["--tool=callgrind", "--trace-children=yes", "--compress-strings=no", "--compress-pos=no"]);
    command.arg(format!("--callgrind-out-file={}", folder.join(file).display()));
    command.arg(ferrite).args(["solo", "--plugin"]).arg(plugin()?);
    command.arg("--softrnic").arg(softrnic_library_folder()?).args(options.split(' '));
    // Without the thread that looks at connections once a second, which is for few messages here.
    command.env("FERRITE_HANG_SECONDS", "0").env("FERRITE_STATS_DIR", folder.path());
    program::stdout_of(&mut command);
    Ok(())
}

/// Counts that are made at most.
const COUNTS: usize = 3;

/// What counts, if all is there.
fn ferrite() -> Result<PathBuf, Missing> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(Missing::new("limits of instructions for this processor"));
    }
    let is_there = Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success());
    if is_there { built("bin/ferrite") } else { Err(Missing::new("valgrind is missing (package valgrind)")) }
}

/// Instructions of each of the `calls` that a run with the options `more` makes beyond one with `base`.
fn counted(ferrite: &Path, base: &str, more: &str, calls: u32) -> Result<u32, Missing> {
    let folder = Scratch::new();
    run(ferrite, &folder, "base", base)?;
    run(ferrite, &folder, "more", more)?;
    let mut command = Command::new(ferrite);
    command.args(["instructions", "--library", "/libnccl-net.so", "--messages", &calls.to_string(), "--minus"]);
    let said = program::stdout_of(command.arg(folder.join("base")).arg(folder.join("more")));
    Ok(said.trim().parse().unwrap_or_else(|e| panic!("{said}: {e}")))
}

/// That such calls take `limit` instructions at most.
#[track_caller]
fn assert_within(limit: u32, base: &str, more: &str, calls: u32) {
    let ferrite = require!(ferrite());
    let mut counts = Vec::new();
    while counts.len() < COUNTS && counts.iter().all(|count| *count > limit) {
        counts.push(require!(counted(&ferrite, base, more, calls)));
    }
    println!("{more}: {counts:?} instructions");
    assert!(counts.iter().any(|count| *count <= limit), "{more}: {counts:?} instructions, and there may be {limit}");
}

/// A message is its send and its receive.
#[test]
fn small_messages_take_no_more_instructions_than_they_may() {
    assert_within(670, "--messages 1000", "--messages 3000", 2000);
}

#[test]
fn large_messages_take_no_more_instructions_than_they_may() {
    assert_within(600, "--size 64K --depth 8 --messages 1000", "--size 64K --depth 8 --messages 3000", 2000);
}

/// 30 such calls before each message.
#[test]
fn tests_in_vain_take_no_more_instructions_than_they_may() {
    assert_within(60, "--messages 1000", "--messages 1000 --empty-tests 30", 30_000);
}

/// 30 such calls before each message.
#[test]
fn sends_that_are_refused_take_no_more_instructions_than_they_may() {
    assert_within(41, "--messages 1000", "--messages 1000 --refused-sends 30", 30_000);
}
