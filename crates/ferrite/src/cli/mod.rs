//! The command line: arguments into what is to be done, and how it ended into an exit code.

mod check;
mod compare;
mod cost;
mod device_args;
mod doctor;
mod doctor_peers;
mod ecmp;
mod exit;
mod hang;
mod instructions;
mod meeting_args;
mod memcpy;
mod outlast;
mod paths;
mod scale;
mod size;
mod solo;
mod source_args;
mod stock;
mod top;
mod trace;
mod verify;

use std::path::PathBuf;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use nccl_net::inspect::version;

use crate::cli::exit::{Exit, INVALID, TABLE};
use crate::doctor::machine;
use crate::error::{Error, Result};
use crate::nccl::release::NcclRelease;
use crate::pair::stand_in;
use crate::results::file_hash;
use crate::run::worker;
use crate::system::dist::Dist;
use crate::system::{interrupt, output};

const ENVIRONMENT: &str = "\
Environment:
  FERRITE_NCCL    libnccl.so.2 to use where no version is named, instead of 2.21.5 in the cache
  XDG_CACHE_HOME  where it is cached (ferrite/nccl-2.21.5/) [default: ~/.cache]
  FERRITE_DIST    folder of lib/libnccl-net.so and softrnic/ [default: above this program's]
  RUST_LOG        debug shows every line that the workers and their transports print
  NCCL_*          reach both sides alike";

#[derive(Debug, Parser)]
#[command(name = "ferrite", about = "Verifies, measures and compares NCCL network transports")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare a plugin (B) with NCCL's built-in IB transport (A) on the same device
    Compare(compare::Compare),
    /// Measure one transport
    Bench(compare::Bench),
    /// Check every byte that one transport moves, over one device, two at once and two made into one
    Verify(verify::Verify),
    /// Hold a transport's bandwidth against plain memcpy of the same buffers
    Memcpy(memcpy::Memcpy),
    /// Check a transport against NCCL's contract, point by point
    Check(check::Check),
    /// Stream checked messages while ports, queue pairs or processes fail, and say how it ended
    Outlast(outlast::Outlast),
    /// Show what the connections of this machine's processes do, as they run
    Top(top::Top),
    /// Show the lanes of connections: what each carries, how fast, and how often lanes were given other paths
    Paths(paths::Paths),
    /// Write a timeline of messages at both ends of connections, for Perfetto, and list the slowest
    Trace(trace::Trace),
    /// Look at this machine before a job: what would keep NCCL from using the plugin, or make it slow
    Doctor(doctor::Doctor),
    /// Say what processes wait for, of which and why
    Hang(hang::Hang),
    /// Have one process send to itself in a fixed order, for counting instructions, connections and memory
    Solo(solo::Solo),
    /// Count what a message costs the card and its driver: work requests, doorbells, completions, bytes, queue memory
    Cost(cost::Cost),
    /// Model a fabric with ECMP: how much of its links jobs can use, by what a transport does with its queue pairs
    Ecmp(ecmp::Ecmp),
    /// Model what the connections of a rank take at up to 131,072 ranks: queue pairs, memory, sockets, set-up time
    Scale(scale::Scale),
    /// Count a transport's instructions in what callgrind wrote of `solo`
    Instructions(instructions::Instructions),
    /// Find, fetch or verify a stock NCCL library and print its path
    Wheel {
        /// 2.20.5, 2.21.5, 2.25.1, 2.27.5, 2.28.9, 2.30.7 or 2.32.3: from the cache, else fetched with pip [default: as --nccl of `compare`]
        #[arg(conflicts_with = "nccl", value_parser = source_args::parse_release)]
        version: Option<NcclRelease>,
        /// A libnccl.so.2 of one of these
        #[arg(long, value_name = "PATH")]
        nccl: Option<PathBuf>,
    },
    /// Print a script that completes this command line in a shell
    Completions(pages::Completions),
    /// Write the man pages of this program into a folder
    #[command(hide = true)]
    Man(pages::Man),
    #[command(hide = true)]
    Worker,
    #[command(hide = true)]
    StandIn,
    #[command(hide = true)]
    CheckWorker,
    #[command(hide = true)]
    OutlastWorker,
    #[command(hide = true)]
    CostWorker { job: String },
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
    let parsed = command.try_get_matches_from(&arguments).and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(problem) if problem.use_stderr() => {
            problem.print().unwrap_or_default();
            return INVALID;
        }
        Err(asked) => return exit::code(output::write_stdout(&asked.render().to_string()).map(|()| Exit::Good)),
    };
    if !matches!(
        cli.command,
        Command::Hang(_)
            | Command::Ecmp(_)
            | Command::Scale(_)
            | Command::Solo(_)
            | Command::Instructions(_)
            | Command::Wheel { .. }
            | Command::Completions(_)
            | Command::Man(_)
            | Command::Worker
            | Command::StandIn
            | Command::CheckWorker
            | Command::OutlastWorker
            | Command::CostWorker { .. }
            | Command::DoctorVerbs
            | Command::DoctorLoopback { .. }
            | Command::DoctorHost { .. }
    ) {
        interrupt::install_handler();
    }
    let words = || arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    exit::code(match cli.command {
        Command::Worker => return worker::main(),
        Command::StandIn => return stand_in::main(),
        Command::CheckWorker => return crate::check::worker::main(),
        Command::OutlastWorker => return crate::outlast::worker::main(),
        Command::CostWorker { job } => crate::cost::worker::main(&job).map(|()| Exit::Good),
        Command::DoctorVerbs => return machine::verbs_worker(),
        Command::DoctorHost { place, plugin } => doctor_peers::host(&place, &plugin),
        Command::DoctorLoopback { plugin } => return machine::loopback_worker(&plugin),
        Command::Wheel { version, nccl } => {
            let found = version.map_or_else(|| stock::find(nccl.as_deref()), stock::of_release);
            found.and_then(|path| output::write_stdout(&format!("{}\n", path.display()))).map(|()| Exit::Good)
        }
        Command::Completions(wanted) => output::write_stdout(&wanted.text(&command_line())).map(|()| Exit::Good),
        Command::Man(wanted) => wanted.write(command_line()).map(|()| Exit::Good).map_err(Error::from),
        Command::Compare(compare) => compare.run(words()),
        Command::Bench(bench) => bench.run(words()),
        Command::Verify(verify) => verify.run(),
        Command::Memcpy(memcpy) => memcpy.run(),
        Command::Check(check) => check.run(),
        Command::Outlast(outlast) => outlast.run(words()),
        Command::Top(top) => top.run(),
        Command::Paths(paths) => paths.run(),
        Command::Trace(trace) => trace.run(),
        Command::Doctor(doctor) => doctor.run(),
        Command::Hang(hang) => hang.run(),
        Command::Solo(solo) => solo.run(),
        Command::Cost(cost) => cost.run(),
        Command::Ecmp(ecmp) => ecmp.run(),
        Command::Scale(scale) => scale.run(),
        Command::Instructions(instructions) => instructions.run(),
    })
}

/// For `--version` alone, since it reads a library: the version, and the plugin that is
/// taken where none is named.
fn long_version(arguments: &[std::ffi::OsString]) -> String {
    let plugin = || -> Result<String> {
        let path = Dist::find()?.plugin()?;
        Ok(format!("\nplugin {} (sha256 {})", path.display(), file_hash::sha256(&path)?))
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
            let parsed = command_line().try_get_matches_from(std::iter::once("ferrite").chain(words));
            let problem = parsed.and_then(|found| Cli::from_arg_matches(&found)).err().filter(clap::Error::use_stderr);
            assert!(problem.is_none(), "{place}: {arguments:?}: {}", problem.expect("there is one"));
        }
    }

    /// In a sentence a command may stand without what it has to have.
    #[test]
    fn each_command_and_option_that_a_sentence_names_exists() {
        let line = command_line();
        for Documented { place, arguments, .. } in documented().iter().filter(|shown| !shown.whole) {
            let named = arguments.iter().find(|word| !word.starts_with('-'));
            let command = named.and_then(|name| line.find_subcommand(name));
            assert!(named.is_none() || command.is_some(), "{place}: {arguments:?}");
            let options = arguments.iter().take_while(|word| *word != "--").filter_map(|word| word.strip_prefix("--"));
            for option in options.map(|word| word.split('=').next().unwrap_or(word)) {
                let is_it = |known: &Arg| known.get_long() == Some(option);
                let known =
                    ["help", "version"].contains(&option) || command.is_some_and(|c| c.get_arguments().any(is_it));
                assert!(known, "{place}: {arguments:?}: --{option}");
            }
        }
    }
}
