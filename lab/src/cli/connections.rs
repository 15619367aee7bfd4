//! The arguments of `ferrite connections`, which `scripts/connections.py` calls.

use std::time::Duration;

use clap::Args;

use crate::cli::exit::Exit;
use crate::cli::source_args::SourceArgs;
use crate::connections::{Job, Request};
use crate::error::{Error, Result};
use crate::system::dist::Dist;
use crate::system::output;
use crate::verbs::{Verbs, control_of};

#[derive(Debug, Args)]
pub(super) struct Connections {
    #[command(flatten)]
    source: SourceArgs,
    /// Connections that are held at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    count: u32,
    /// Connections that are made and closed one at a time before
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    singles: u32,
    /// As many lead back
    #[arg(long)]
    both_ways: bool,
    /// How long each carries messages; ms
    #[arg(long, value_name = "MS", default_value_t = 0)]
    traffic_ms: u64,
    /// A fault rule of the software device that is put in force during the traffic
    #[arg(long, value_name = "RULE", requires = "traffic_ms")]
    fault: Option<String>,
    /// When
    #[arg(long, value_name = "MS", default_value_t = 500)]
    fault_at_ms: u64,
    /// How long they are held without a call; ms
    #[arg(long, value_name = "MS", default_value_t = 0)]
    idle_ms: u64,
    /// No progress for this time counts as hung; s
    #[arg(long, value_name = "S", default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
}

impl Connections {
    pub(super) fn run(self) -> Result<Exit> {
        let folder = Dist::find()?.softrnic();
        let request = Request {
            program: std::env::current_exe().map_err(|e| Error::io("no own program", e))?,
            control: control_of(&folder)?,
            silence: Duration::from_secs(self.timeout),
            job: Job {
                source: self.source.source()?,
                verbs: Verbs::softrnic(&folder)?,
                singles: self.singles,
                connections: self.count,
                both_ways: self.both_ways,
                idle_ms: self.idle_ms,
                traffic_ms: self.traffic_ms,
            },
            fault: self.fault.map(|rule| (rule, self.fault_at_ms)),
        };
        output::write_stdout(&format!("{}\n", serde_json::to_string(&request.run()?)?))?;
        Ok(Exit::Good)
    }
}
