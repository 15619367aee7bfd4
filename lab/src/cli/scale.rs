//! The arguments of `ferrite scale`.

use clap::Args;

use crate::cli::exit::Exit;
use crate::error::Result;
use crate::scale::demand::Setting;
use crate::scale::group::Group;
use crate::scale::layout::parse_ranks;
use crate::scale::report::{self, Request};
use crate::system::output;

#[derive(Debug, Args)]
#[command(after_help = "\
A model over constants, most of them measured on the software device: no network is used, and each run gives the same numbers. \
What it assumes and what follows from it: docs/scale.md.

Groups:
  ring               one communicator of all ranks, rings
  tree               the same, double binary trees
  all-to-all         the same, each rank sends to each, with PXN (NCCL's default)
  all-to-all-direct  the same without PXN
  hybrid             tensor parallel in the node; pipeline, data and expert parallel between nodes

Examples:
  ferrite scale                                      8 to 131,072 ranks, all groups
  ferrite scale --ranks 1024 --groups hybrid --constants
  ferrite scale --groups all-to-all --queue-pairs 4 --command-us 500

Exit code 0: done; 2: it could not be.")]
pub(super) struct Scale {
    /// Ranks: powers of two from 8 to 1048576, 8 of them a node
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8,64,1024,16384,131072", value_parser = parse_ranks)]
    ranks: Vec<u64>,
    /// What the communicators of the job are
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "ring,tree,all-to-all,all-to-all-direct,hybrid"
    )]
    groups: Vec<Group>,
    /// Communicators of each kind, over the same processes
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024))]
    communicators: u16,
    /// Channels of a communicator on one NIC; a ring or tree has one connection for each
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=32))]
    channels: u8,
    /// Queue pairs of a connection: NCCL_IB_QPS_PER_CONNECTION
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=128))]
    queue_pairs: u8,
    /// Microseconds that a card takes for a command. None was measured
    #[arg(long, value_name = "US", default_value_t = 100, value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    command_us: u32,
    /// The constants too, and where they and the limits come from
    #[arg(long)]
    constants: bool,
    /// One JSON object instead of tables
    #[arg(long)]
    json: bool,
}

impl Scale {
    pub(super) fn run(self) -> Result<Exit> {
        let setting = Setting {
            communicators: self.communicators.into(),
            channels: self.channels.into(),
            queue_pairs: self.queue_pairs.into(),
            command_us: self.command_us.into(),
        };
        let request = Request { ranks: self.ranks, groups: self.groups, setting, has_constants: self.constants };
        let text = if self.json { report::json(&request)? } else { report::text(&request) };
        output::write_stdout(&text).map(|()| Exit::Good)
    }
}
