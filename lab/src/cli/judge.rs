//! The arguments of `ferrite judge`, which `nccl-net-ferrite ab` starts, and what it prints.

use std::path::PathBuf;

use clap::Args;

use crate::cli::exit::Exit;
use crate::error::Result;
use crate::report::times::Times;
use crate::system::output;

#[derive(Debug, Args)]
pub(super) struct Judge {
    /// Times of collectives, or the raw.json of an earlier report of such times
    file: PathBuf,
    /// A difference that must not be missed
    #[arg(long, value_name = "PERCENT", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    find: u32,
    /// Where report.html, report.md, report.svg and raw.json go
    #[arg(long, value_name = "DIR", default_value = "report")]
    report: PathBuf,
}

impl Judge {
    pub(super) fn run(self) -> Result<Exit> {
        let judged = Times::read(&self.file)?.judged(f64::from(self.find) / 100.0);
        // Each is written even if the other cannot be.
        let printed = output::write_stdout(&format!("{}\n", judged.summary()));
        judged.write(&self.report)?;
        printed?;
        output::write_stdout(&format!("report: {}\n", self.report.join("report.md").display()))?;
        Ok(judged.conclusion().into())
    }
}
