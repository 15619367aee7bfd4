//! The command line: arguments into a [`Request`], a run into output and an exit code.

mod check;
mod memcpy;
mod solo;
mod verify;
mod what;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::check::stage;
use crate::cli::what::What;
use crate::compare::{self, Request};
use crate::dist::Dist;
use crate::error::{Error, Result};
use crate::library::Source;
use crate::plan::{DEPTH, Scope};
use crate::record::{Record, Side};
use crate::report::{self, table};
use crate::session::Runner;
use crate::verbs::Verbs;
use crate::wheel::Release;
use crate::{host, wheel, worker};

/// The run was valid and the data right.
pub const VALID: i32 = 0;
/// The run was not valid: nothing can be concluded from it.
pub const INVALID: i32 = 2;

const HELP: &str = "\
Exit codes: 0 valid run and data right; 2 invalid (also a wrong command line).

Environment:
  FERRITE_NCCL    libnccl.so.2 to use where no version is named, instead of 2.21.5 in the cache
  XDG_CACHE_HOME  where it is cached (ferrite/nccl-2.21.5/) [default: ~/.cache]
  FERRITE_DIST    folder of lib/libnccl-net.so and softrnic/ [default: above this program's]
  RUST_LOG        debug shows every line that the workers and their transports print
  NCCL_*          reach both sides alike";

#[derive(Debug, Parser)]
#[command(name = "ferrite", version, about = "Verifies, measures and compares NCCL network transports")]
#[command(after_help = HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Compare a plugin (B) with NCCL's built-in IB transport (A) on the same device
    Compare(Compare),
    /// Measure one transport
    Bench(Bench),
    /// Check every byte that one transport moves, over one device, two at once and two made into one
    Verify(verify::Verify),
    /// Hold a transport's bandwidth against plain memcpy of the same buffers
    Memcpy(memcpy::Memcpy),
    /// Check a transport against NCCL's contract, point by point
    Check(check::Check),
    /// Have one process send to itself in a fixed order, for counting instructions, connections and memory
    Solo(solo::Solo),
    /// Find, fetch or verify a stock NCCL library and print its path
    Wheel {
        /// 2.21.5, 2.28.9 or 2.30.7: from the cache, else fetched with pip [default: as --nccl of `compare`]
        #[arg(conflicts_with = "nccl", value_parser = what::parse_release)]
        version: Option<Release>,
        /// A libnccl.so.2 of one of these
        #[arg(long, value_name = "PATH")]
        nccl: Option<PathBuf>,
    },
    #[command(hide = true)]
    Worker,
    #[command(hide = true)]
    CheckWorker,
}

#[derive(Debug, Args)]
struct Compare {
    /// B: the plugin [default: ../lib/libnccl-net.so beside this program]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,
    /// A: another plugin instead of the built-in transport
    #[arg(long, value_name = "PLUGIN", conflicts_with = "nccl")]
    baseline: Option<PathBuf>,
    /// libnccl.so.2 of A [default: $FERRITE_NCCL, else NCCL 2.21.5 in the cache, else fetched with pip]
    #[arg(long, value_name = "PATH")]
    nccl: Option<PathBuf>,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Args)]
struct Bench {
    #[command(flatten)]
    what: What,
    #[command(flatten)]
    common: Common,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum VerbsName {
    /// The software RDMA device, private to each pair of processes
    Softrnic,
    /// The libibverbs of this machine
    System,
}

#[derive(Debug, Args)]
struct Where {
    /// Which libibverbs the transports get
    #[arg(long, value_enum, default_value = "softrnic")]
    verbs: VerbsName,
    /// Folder of the software device's libibverbs.so.1 [default: ../softrnic beside this program]
    #[arg(long, value_name = "DIR")]
    softrnic: Option<PathBuf>,
    /// Device index of rank 0 [default: 0]
    #[arg(long, value_name = "N")]
    dev0: Option<usize>,
    /// Device index of rank 1 [default: 1 if there are two devices, else 0]
    #[arg(long, value_name = "N")]
    dev1: Option<usize>,
}

#[derive(Debug, Args)]
struct Common {
    #[command(flatten)]
    place: Where,
    /// Repetitions, each in fresh processes; six or more give intervals of 95 % and above
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    reps: Option<u16>,
    /// Fewer sizes and repetitions: about half a minute instead of two or three
    #[arg(long)]
    quick: bool,
    /// Connections of the many-at-once set-up
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: Option<u32>,
    /// Message sizes of the bandwidth test, such as 8,64K,4M
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size)]
    sizes: Vec<usize>,
    /// Time of each measurement; ms
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(1..=60_000))]
    slice: Option<u64>,
    /// A worker that is silent for so long counts as hung; s
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Let the workers run on any CPU instead of one each
    #[arg(long)]
    no_pin: bool,
    /// Where report.md, report.svg and raw.json go
    #[arg(long, value_name = "DIR", default_value = "report")]
    report: PathBuf,
}

/// Parses the process's arguments and does what they say; the exit code.
pub fn main() -> i32 {
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&arguments) {
        Ok(cli) => cli,
        Err(problem) => {
            // Help and version are no errors; a failing stdout is the reader's business.
            problem.print().unwrap_or_default();
            return if problem.use_stderr() { INVALID } else { VALID };
        }
    };
    let command = arguments.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let outcome = match cli.command {
        Command::Worker => return worker::main(),
        Command::CheckWorker => return stage::main(),
        Command::Wheel { version, nccl } => {
            let found = version.map_or_else(|| wheel::find(nccl.as_deref()), wheel::fetched);
            found.map(|path| host::print(&format!("{}\n", path.display())))
        }
        Command::Compare(compare) => compare.run(command),
        Command::Bench(bench) => bench.run(command),
        Command::Verify(verify) => verify.run(),
        Command::Memcpy(memcpy) => memcpy.run(),
        Command::Check(check) => check.run(),
        Command::Solo(solo) => solo.run(),
    };
    match outcome {
        Ok(()) => VALID,
        Err(problem) => {
            host::tell(format_args!("ferrite: {problem}"));
            host::tell(format_args!("ferrite: invalid run"));
            INVALID
        }
    }
}

impl Compare {
    fn run(self, command: Vec<String>) -> Result<()> {
        let plugin = self.plugin.map_or_else(|| Dist::find()?.plugin(), Ok)?;
        let a = match self.baseline {
            Some(path) => Source::plugin(path),
            None => Source::stock(wheel::find(self.nccl.as_deref())?),
        };
        self.common.run(vec![a, Source::plugin(plugin)], command)
    }
}

impl Bench {
    fn run(self, command: Vec<String>) -> Result<()> {
        self.common.run(vec![self.what.source()?], command)
    }
}

impl Where {
    fn verbs(&self) -> Result<Verbs> {
        match (self.verbs, &self.softrnic) {
            (VerbsName::System, None) => Ok(Verbs::System),
            (VerbsName::System, Some(_)) => {
                Err(Error::Usage("--softrnic and --verbs system exclude each other".into()))
            }
            (VerbsName::Softrnic, Some(folder)) => Verbs::softrnic(folder),
            (VerbsName::Softrnic, None) => Verbs::softrnic(&Dist::find()?.softrnic()),
        }
    }

    fn devices(&self) -> [Option<usize>; 2] {
        [self.dev0, self.dev1]
    }
}

impl Common {
    fn run(self, sources: Vec<Source>, command: Vec<String>) -> Result<()> {
        let runner = Runner {
            program: std::env::current_exe().map_err(|e| Error::io("no own program", e))?,
            silence: Duration::from_secs(self.timeout),
            pin: !self.no_pin,
        };
        let (verbs, devices) = (self.place.verbs()?, self.place.devices());
        let request = Request { sources, verbs, devices, scope: self.scope(), command };
        if host::cpus()?.len() < 2 {
            log::warn!("there is one CPU only: two polling processes share it, times mean little");
        }
        let record = compare::run(&request, &runner)?;
        report::write(&record, &self.report)?;
        host::print(&summary(&record, &self.report));
        Ok(())
    }

    fn scope(&self) -> Scope {
        let mut scope = if self.quick { Scope::quick() } else { Scope::standard() };
        if let Some(reps) = self.reps {
            scope.repetitions = reps.into();
        }
        if let Some(connections) = self.connections {
            scope.connections = connections;
        }
        if let Some(slice) = self.slice {
            scope.slice_ms = slice;
        }
        if !self.sizes.is_empty() {
            scope.bandwidth_sizes.clone_from(&self.sizes);
        }
        scope
    }
}

/// What a user sees at the end.
fn summary(record: &Record, folder: &Path) -> String {
    let mut text = String::new();
    for side in &record.sides {
        text += &format!("{} = {}\n", side.label, side.title());
    }
    let Some(Side { devices: [zero, one], cpus, .. }) = record.sides.first() else {
        return text;
    };
    let cpus = match cpus {
        [Some(zero), Some(one)] => format!("CPUs {zero} and {one}"),
        _ => "any CPU".into(),
    };
    text += &format!(
        "rank 0 on {}, rank 1 on {}, {cpus}; {}, {:.0} s; streams keep {DEPTH} in flight\n",
        zero.name,
        one.name,
        report::repetitions(record),
        record.seconds
    );
    if let Some(warning) = report::busy(record) {
        text += &format!("{warning}\n");
    }
    text += "\n";
    for table in table::tables(record) {
        text += &format!("{}\n", table.text());
    }
    text + &format!("{}\n{1}/report.md  {1}/report.svg  {1}/raw.json\n", report::verdict(record), folder.display())
}

/// `8`, `64K`, `4M`, `1G`, with or without a B or iB after it.
fn parse_size(text: &str) -> std::result::Result<usize, String> {
    let upper = text.trim().to_ascii_uppercase();
    let bare = upper.trim_end_matches('B').trim_end_matches('I');
    let (digits, shift) = match bare.chars().last() {
        Some('K') => (&bare[..bare.len() - 1], 10),
        Some('M') => (&bare[..bare.len() - 1], 20),
        Some('G') => (&bare[..bare.len() - 1], 30),
        _ => (bare, 0),
    };
    let number: usize = digits.parse().map_err(|_| format!("{text} is no size, as 8, 64K or 4M are"))?;
    match number.checked_mul(1 << shift) {
        Some(bytes) if (1..=128 << 20).contains(&bytes) => Ok(bytes),
        _ => Err(format!("{text} is not between 1 and 128M")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes() {
        assert_eq!(parse_size("8"), Ok(8));
        assert_eq!(parse_size("64k"), Ok(65536));
        assert_eq!(parse_size("4MiB"), Ok(4 << 20));
        for wrong in ["", "K", "-1", "0", "1T", "1G", "99999999999999999999"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }
}
