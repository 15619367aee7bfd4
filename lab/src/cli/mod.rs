//! The commands that try, measure and compare transports: arguments into what is to be done.

mod check;
mod compare;
mod connections;
mod cost;
pub mod exit;
mod instructions;
mod judge;
pub mod meeting_args;
mod outlast;
mod solo;
mod source_args;
mod verify;

use std::path::PathBuf;

use clap::Subcommand;

use crate::cli::exit::Exit;
use crate::error::Result;
use crate::nccl::release::NcclRelease;
use crate::pair::parent;
use crate::run::session;
use crate::system::output;

/// A command of the lab.
#[derive(Debug, Subcommand)]
#[allow(private_interfaces, reason = "the arguments of each are its own")]
pub enum Command {
    /// Compare a plugin (B) with NCCL's built-in IB transport (A) on the same device
    Compare(compare::Compare),
    /// Measure one transport
    Bench(compare::Bench),
    /// Check every byte that one transport moves, over one device, two at once and two made into
    /// one
    Verify(verify::Verify),
    /// Check a transport against NCCL's contract, point by point
    Check(check::Check),
    /// Stream checked messages while ports, queue pairs or processes fail, and say how it ended
    Outlast(outlast::Outlast),
    /// Count what a message costs the card and its driver: work requests, doorbells, completions,
    /// bytes, queue memory
    Cost(cost::Cost),
    /// Have one process send to itself in a fixed order, for counting instructions, connections and
    /// memory
    Solo(solo::Solo),
    /// Count a transport's instructions in what callgrind wrote of `solo`
    Instructions(instructions::Instructions),
    /// Find, fetch or verify a stock NCCL library and print its path
    Wheel {
        /// 2.20.5, 2.21.5, 2.25.1, 2.27.5, 2.28.9, 2.29.7, 2.30.7, 2.31.2 or 2.32.3: from the
        /// cache, else fetched with pip [default: as --nccl of `compare`]
        #[arg(conflicts_with = "nccl", value_parser = source_args::parse_release)]
        version: Option<NcclRelease>,
        /// A libnccl.so.2 of one of these
        #[arg(long, value_name = "PATH")]
        nccl: Option<PathBuf>,
    },
    /// Judge times that `nccl-net-ferrite ab` has written
    #[command(hide = true)]
    Judge(judge::Judge),
    /// Make many connections between two processes, once, and print what they took as JSON
    #[command(hide = true)]
    Connections(connections::Connections),
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
    ConnectionsWorker,
}

impl Command {
    /// Does it; the exit code. `words` are the whole command line.
    pub fn run(self, words: Vec<String>) -> i32 {
        match &self {
            Self::Worker => return session::main(),
            Self::StandIn => return parent::main(),
            Self::CheckWorker => return crate::check::runner::main(),
            Self::OutlastWorker => return crate::outlast::worker::main(),
            Self::ConnectionsWorker => return crate::connections::main(),
            Self::CostWorker { job } => {
                return exit::code(crate::cost::main(job).map(|()| Exit::Good));
            }
            Self::Solo(_) | Self::Instructions(_) | Self::Judge(_) | Self::Wheel { .. } => {}
            _ => output::install_handler(),
        }
        exit::code(self.outcome(words))
    }

    fn outcome(self, words: Vec<String>) -> Result<Exit> {
        match self {
            Self::Compare(compare) => compare.run(words),
            Self::Bench(bench) => bench.run(words),
            Self::Verify(verify) => verify.run(),
            Self::Check(check) => check.run(),
            Self::Outlast(outlast) => outlast.run(words),
            Self::Cost(cost) => cost.run(),
            Self::Connections(connections) => connections.run(),
            Self::Solo(solo) => solo.run(),
            Self::Instructions(instructions) => instructions.run(),
            Self::Judge(judge) => judge.run(),
            Self::Wheel { version, nccl } => {
                let path = version
                    .map_or_else(|| source_args::find(nccl.as_deref()), source_args::of_release)?;
                output::write_stdout(&format!("{}\n", path.display())).map(|()| Exit::Good)
            }
            Self::Worker
            | Self::StandIn
            | Self::CheckWorker
            | Self::OutlastWorker
            | Self::ConnectionsWorker
            | Self::CostWorker { .. } => Ok(Exit::Good),
        }
    }
}
