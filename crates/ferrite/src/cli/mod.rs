//! The command line: arguments into what is to be done, and how it ended into an exit code.

mod doctor;
mod hang;
mod top;
mod trace;

use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use lab::cli::exit::{self, Exit, INVALID, TABLE};
use lab::error::{Error, Result};
use lab::results::record;
use lab::system::dist::Dist;
use lab::system::output;
use nccl_net::inspect::version;

use crate::doctor::machine;

const ENVIRONMENT: &str = "\
Environment:
  FERRITE_NCCL    libnccl.so.2 to use if no version is given [default: 2.21.5 in the cache]
  XDG_CACHE_HOME  folder of the cache (ferrite/nccl-2.21.5/) [default: ~/.cache]
  FERRITE_DIST    folder of lib/libnccl-net.so and softrnic/ [default: parent of this program's]
  RUST_LOG        debug: show every line that the workers and their transports print
  NCCL_*          passed to both sides";

#[derive(Debug, Parser)]
#[command(
    name = "ferrite",
    about = "Checks machines and running jobs; verifies, measures and compares NCCL network transports"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
#[allow(clippy::large_enum_variant, reason = "there is one of it in a run")]
enum Command {
    /// Check this machine before a job: what keeps NCCL from using the plugin, or makes it slow
    Doctor(doctor::Doctor),
    /// Show devices and connections of this machine's processes while they run
    Top(top::Top),
    /// Show the lanes of each connection: share of the data, speed, moves to other paths
    Paths(top::Paths),
    /// Write a timeline of messages at both ends, for Perfetto, and list the slowest
    Trace(trace::Trace),
    /// Show what waiting processes wait for, and the cause
    Hang(hang::Hang),
    #[command(flatten)]
    Lab(lab::cli::Command),
    /// Print a script that completes this command line in a shell
    Completions(pages::Completions),
    /// Write the man pages of this program into a folder
    #[command(hide = true)]
    Man(pages::Man),
    #[command(hide = true)]
    DoctorVerbs,
    #[command(hide = true)]
    DoctorLoopback { plugin: PathBuf },
    #[command(hide = true)]
    DoctorHost { place: String, plugin: PathBuf },
}

/// What is parsed, with what its help has at the end.
fn command_line() -> clap::Command {
    Cli::command().after_help(format!("{TABLE}\n\n{ENVIRONMENT}")).version(version::text())
}

/// Parses the process's arguments and does what they say; the exit code.
pub fn main() -> i32 {
    let arguments: Vec<_> = std::env::args_os().collect();
    let command = command_line().long_version(long_version(&arguments));
    let parsed = command
        .try_get_matches_from(&arguments)
        .and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(problem) if problem.use_stderr() => {
            problem.print().unwrap_or_default();
            return INVALID;
        }
        Err(asked) => {
            return exit::code(
                output::write_stdout(&asked.render().to_string()).map(|()| Exit::Good),
            );
        }
    };
    if matches!(
        cli.command,
        Command::Doctor(_) | Command::Top(_) | Command::Paths(_) | Command::Trace(_)
    ) {
        output::install_handler();
    }
    exit::code(match cli.command {
        Command::Doctor(doctor) => doctor.run(),
        Command::Top(top) => top.run(),
        Command::Paths(paths) => paths.run(),
        Command::Trace(trace) => trace.run(),
        Command::Hang(hang) => hang.run(),
        Command::Lab(command) => {
            return command
                .run(arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect());
        }
        Command::Completions(wanted) => {
            output::write_stdout(&wanted.text(&command_line())).map(|()| Exit::Good)
        }
        Command::Man(wanted) => {
            wanted.write(command_line()).map(|()| Exit::Good).map_err(|problem| {
                Error::io(format!("cannot write {}", problem.path.display()), problem.source)
            })
        }
        Command::DoctorVerbs => return machine::verbs_worker(),
        Command::DoctorHost { place, plugin } => doctor::host(&place, &plugin),
        Command::DoctorLoopback { plugin } => return machine::loopback_worker(&plugin),
    })
}

/// For `--version` alone, since it reads a library: the version, and the plugin that is
/// taken where none is named.
fn long_version(arguments: &[std::ffi::OsString]) -> String {
    let plugin = || -> Result<String> {
        let path = Dist::find()?.plugin()?;
        Ok(format!("\nplugin {} (sha256 {})", path.display(), record::sha256(&path)?))
    };
    let asked = arguments.iter().any(|word| word == "--version");
    version::text().to_owned() + &if asked { plugin().unwrap_or_default() } else { String::new() }
}

#[cfg(test)]
mod tests {
    use clap::Arg;
    use testkit::documented::{Documented, commands};

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().version("0").debug_assert();
    }

    #[test]
    fn what_help_shows_an_operator_on_a_terminal_of_80_columns() {
        let mut line = command_line().term_width(80);
        line.build();
        let mut all = String::new();
        for name in ["doctor", "hang", "paths", "top", "trace"] {
            let command = line.find_subcommand_mut(name).expect("it is there");
            all += &format!("{}\n", command.render_long_help());
        }
        assert!(all.lines().all(|line| line.chars().count() <= 80), "{all}");
        testkit::snapshot!("help", &all);
    }

    /// Words of `nccl-net-ferrite` that it takes itself.
    const OF_THE_PACKAGE: [&str; 7] = ["path", "env", "ab", "matrix", "ddp", "job", "softrnic"];

    /// What the pages show of this program, and of the wheel's command that passes words on to it.
    fn documented() -> Vec<Documented> {
        let mut of_package = commands("nccl-net-ferrite");
        of_package.retain(|shown| !OF_THE_PACKAGE.contains(&shown.arguments[0].as_str()));
        let all = [commands("ferrite"), of_package].concat();
        assert!(all.len() > 60 && all.iter().filter(|shown| shown.whole).count() > 20, "{all:?}");
        all
    }

    #[test]
    fn each_command_that_a_page_shows_is_understood() {
        for Documented { place, arguments, .. } in documented().iter().filter(|shown| shown.whole) {
            // What may be left out is in brackets.
            let words = arguments.iter().map(|word| word.trim_matches(['[', ']']));
            let parsed =
                command_line().try_get_matches_from(std::iter::once("ferrite").chain(words));
            let problem = parsed
                .and_then(|found| Cli::from_arg_matches(&found))
                .err()
                .filter(clap::Error::use_stderr);
            assert!(
                problem.is_none(),
                "{place}: {arguments:?}: {}",
                problem.expect("there is one")
            );
        }
    }

    /// In a sentence a command may stand without what it has to have.
    #[test]
    fn each_command_and_option_that_a_sentence_names_exists() {
        let line = command_line();
        for Documented { place, arguments, .. } in documented().iter().filter(|shown| !shown.whole)
        {
            let named = arguments.iter().find(|word| !word.starts_with('-'));
            let command = named.and_then(|name| line.find_subcommand(name));
            assert!(named.is_none() || command.is_some(), "{place}: {arguments:?}");
            let options = arguments
                .iter()
                .take_while(|word| *word != "--")
                .filter_map(|word| word.strip_prefix("--"));
            for option in options.map(|word| word.split('=').next().unwrap_or(word)) {
                let is_it = |known: &Arg| known.get_long() == Some(option);
                let known = ["help", "version"].contains(&option)
                    || command.is_some_and(|c| c.get_arguments().any(is_it));
                assert!(known, "{place}: {arguments:?}: --{option}");
            }
        }
    }
}
