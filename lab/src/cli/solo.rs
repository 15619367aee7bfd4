//! The arguments of `ferrite solo`.

use std::time::Duration;

use clap::Args;

use crate::cli::exit::Exit;
use crate::cli::source_args::{DeviceArgs, SourceArgs, parse_size};
use crate::error::Result;
use crate::solo::{EmptyCalls, Job, Work};
use crate::system::output;

#[derive(Debug, Args)]
#[command(after_help = "\
Listens on dev0 and connects from dev1. One thread does all in a fixed order (receives, sends, then tests), so the \
transport's instructions can be counted: valgrind --tool=callgrind --trace-children=yes ferrite solo ... The transport says nothing unless NCCL_DEBUG is set.\n\n\
Exit code 0: the data is right; 1: it is wrong; 2: it could not be tried.")]
pub(super) struct Solo {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    /// Size of each message, such as 8 or 64K
    #[arg(long, value_name = "BYTES", default_value = "8", value_parser = parse_size)]
    size: usize,
    /// How many messages to send
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    messages: u64,
    /// Messages in flight
    #[arg(long, value_name = "D", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=32))]
    depth: u16,
    /// Calls of isend before each round while there is no receive; each finds nothing
    #[arg(long, value_name = "N", default_value_t = 0)]
    refused_sends: u32,
    /// Tests of the first receive in each round before anything is sent; each finds nothing
    #[arg(long, value_name = "N", default_value_t = 0)]
    empty_tests: u32,
    /// Make and close this number of connections instead of sending
    #[arg(long, value_name = "C", conflicts_with_all = ["size", "messages", "depth", "refused_sends", "empty_tests"])]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=100_000))]
    connections: Option<u32>,
    /// Keep all connections open until the last exists, and print their memory
    #[arg(long, requires = "connections")]
    hold: bool,
    /// No progress for this time counts as hung; s
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

impl Solo {
    pub(super) fn run(self) -> Result<Exit> {
        let work = match self.connections {
            Some(count) => Work::Connections { count, hold: self.hold },
            None => Work::Messages {
                bytes: self.size,
                count: self.messages,
                depth: self.depth.into(),
                empty_calls: EmptyCalls { sends: self.refused_sends, tests: self.empty_tests },
            },
        };
        let job = Job {
            verbs: self.devices.verbs()?,
            devices: self.devices.devices(),
            source: self.source.source()?,
            silence: Duration::from_secs(self.timeout),
            work,
        };
        output::write_stdout(&format!("{}\n", job.run()?))?;
        Ok(Exit::Good)
    }
}
