//! The arguments of `ferrite hang`, and what it prints.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use clap::Args;

use crate::cli::exit::Exit;
use crate::error::{Error, Result};
use crate::hang::finding::{Finding, summary};
use crate::hang::{ask, stats_file};
use crate::system::output;

#[derive(Debug, Args)]
#[command(after_help = "\
A process answers with what its messages wait for, after asking its peers: this takes up to five seconds. Of one that does not \
answer, its state and its statistics file tell what is outstanding. It has to be of the same user, or this one of root.\n\n\
Exit code 0: nothing waits; 1: something does, or a process does not go on; 2: there is no such process or file.")]
pub(super) struct Hang {
    /// A process id; `all` processes of this user and machine; or the statistics file of a process that has ended
    #[arg(value_name = "PID|all|FILE")]
    target: String,
    /// How long a process has for its answer; s
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
}

impl Hang {
    pub(super) fn run(self) -> Result<Exit> {
        let limit = Duration::from_secs(self.timeout);
        let is_there = |pid: &u32| Path::new(&format!("/proc/{pid}")).exists();
        let findings: BTreeMap<u32, Finding> = if self.target == "all" {
            let pids: BTreeSet<u32> =
                ask::known().into_iter().chain(stats_file::processes()).filter(is_there).collect();
            if pids.is_empty() {
                return Err(Error::Unreadable("no process of this user uses Ferrite here".into()));
            }
            // All at once: each may take seconds.
            let asked = pids.into_iter().map(|pid| (pid, std::thread::spawn(move || Finding::of_process(pid, limit))));
            let asked: Vec<_> = asked.collect();
            asked.into_iter().filter_map(|(pid, thread)| Some((pid, thread.join().ok()?))).collect()
        } else if let Ok(pid) = self.target.parse() {
            if !is_there(&pid) && stats_file::of_process(pid).is_none() {
                return Err(Error::Unreadable(format!("there is no process {pid}, and no statistics file of it")));
            }
            BTreeMap::from([(pid, Finding::of_process(pid, limit))])
        } else {
            let finding = Finding::of_file(Path::new(&self.target))?;
            output::write_stdout(&format!("{}: {}\n", self.target, finding.text()))?;
            return Ok(if finding.is_waiting() { Exit::Worse } else { Exit::Good });
        };
        output::write_stdout(&summary(&findings))?;
        Ok(if findings.values().any(Finding::is_waiting) { Exit::Worse } else { Exit::Good })
    }
}
