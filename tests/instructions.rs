//! The built plugin takes no more instructions than it may, for a message and for a call that finds nothing: `ferrite solo` makes the calls,
//! callgrind counts what the library executes, with what its calls into other libraries but libibverbs take. `scripts/instructions.sh`
//! compares the same numbers with NCCL's.
//!
//! Each limit is 5 % or more above the highest count that was seen when it was set: a count differs by up to 4 % from run to run, above all
//! on busy processors. A change that needs more raises its limit, and says why.

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

/// A folder for what is counted, if all is there.
fn counting() -> Result<(PathBuf, Scratch), Missing> {
    let is_there = Command::new("valgrind").arg("--version").output().is_ok_and(|output| output.status.success());
    if is_there {
        Ok((built("bin/ferrite")?, Scratch::new()))
    } else {
        Err(Missing::new("valgrind is missing (package valgrind)"))
    }
}

/// Instructions of each of the `calls` that a run with the options `more` makes beyond the one that wrote `base`.
fn counted(ferrite: &Path, folder: &Scratch, more: &str, calls: u32) -> Result<u32, Missing> {
    run(ferrite, folder, "more", more)?;
    let mut command = Command::new(ferrite);
    command.args(["instructions", "--library", "/libnccl-net.so", "--messages", &calls.to_string(), "--minus"]);
    let said = program::stdout_of(command.arg(folder.join("base")).arg(folder.join("more")));
    Ok(said.trim().parse().unwrap_or_else(|e| panic!("{said}: {e}")))
}

#[track_caller]
fn assert_within(what: &str, counted: u32, limit: u32) {
    println!("{what}: {counted} instructions");
    assert!(counted <= limit, "{what}: {counted} instructions, and there may be {limit}");
}

/// A message is its send and its receive.
#[test]
fn small_messages_and_calls_that_find_nothing_take_no_more_instructions_than_they_may() {
    let (ferrite, folder) = require!(counting());
    require!(run(&ferrite, &folder, "base", "--messages 1000"));
    let counted = |more: &str, calls| counted(&ferrite, &folder, more, calls);
    assert_within("a message of 8 B", require!(counted("--messages 3000", 2000)), 670);
    // So many before each message.
    assert_within("a test in vain", require!(counted("--messages 1000 --empty-tests 30", 30_000)), 60);
    assert_within("an isend in vain", require!(counted("--messages 1000 --refused-sends 30", 30_000)), 41);
}

#[test]
fn large_messages_take_no_more_instructions_than_they_may() {
    let (ferrite, folder) = require!(counting());
    require!(run(&ferrite, &folder, "base", "--size 64K --depth 8 --messages 1000"));
    let counted = require!(counted(&ferrite, &folder, "--size 64K --depth 8 --messages 3000", 2000));
    assert_within("a message of 64 KiB, 8 in flight", counted, 600);
}
