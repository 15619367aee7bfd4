//! The arguments of `ferrite hang`, and what it prints.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use clap::Args;

use crate::doctor::report;
use crate::hang;
use crate::hang::{Finding, State, summary};
use lab::cli::exit::Exit;
use lab::error::{Error, Result};
use lab::system::output;

#[derive(Debug, Args)]
#[command(after_help = "\
Each process first asks its peers, also on other hosts, and they ask theirs. This takes up to five seconds. If a process does \
not answer, the command reports its state, and from its statistics file what is outstanding. Only root can ask processes of \
other users.\n\n\
Exit code 0: nothing waits too long; 1: something does, or a process is stopped or blocked in the kernel; 2: there is no such \
file, or no such process that uses Ferrite. A process that ends during the check does not count.")]
pub(super) struct Hang {
    /// A process id; `all` for all processes of this user on this machine; or the statistics file of
    /// a process that has ended
    #[arg(value_name = "PID|all|FILE")]
    target: String,
    /// Also print each connection that waits, with its peer's answer
    #[arg(long)]
    waits: bool,
    /// Seconds that all processes together have to answer
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
    /// Seconds after which a wait is a hang [default: the process's FERRITE_HANG_SECONDS]
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86400))]
    threshold: Option<u64>,
}

impl Hang {
    pub(super) fn run(self) -> Result<Exit> {
        let limit = Duration::from_secs(self.timeout);
        let threshold = self.threshold.map(Duration::from_secs);
        let code = |hangs: bool| if hangs { Exit::Worse } else { Exit::Good };
        if self.target != "all" && self.target.parse::<u32>().is_err() {
            let finding = Finding::of_file(Path::new(&self.target))?;
            let text = format!("{}: {}\n", self.target, finding.text());
            output::write_stdout(&report::fitted(&text, output::width()))?;
            return Ok(code(finding.hangs(threshold)));
        }
        let findings = match self.target.parse() {
            Ok(pid) => BTreeMap::from([(pid, of_one(pid, limit)?)]),
            Err(_) => of_all(limit)?,
        };
        let hangs = findings.values().any(|finding| finding.hangs(threshold));
        let healthy = if hangs { "" } else { "nothing waits too long\n" };
        let text = format!("{healthy}{}", summary(&findings, self.waits));
        output::write_stdout(&report::fitted(&text, output::width()))?;
        Ok(code(hangs))
    }
}

/// Of process `pid`, or of what it has left.
fn of_one(pid: u32, limit: Duration) -> Result<Finding> {
    let finding = Finding::of_process(pid, limit);
    match &finding {
        Finding::Outside(State::Ended, traces) if traces.has_file() => Ok(finding),
        Finding::Outside(State::Ended, _) => Err(Error::Unreadable(format!(
            "process {pid} has ended or never existed, and left no statistics file"
        ))),
        _ if !finding.is_of_ferrite() => Err(Error::Unreadable(format!(
            "process {pid} has no connection of Ferrite that can be seen from here. It has none yet, or FERRITE_HANG_SECONDS=0, \
             or runs in another container"
        ))),
        _ => Ok(finding),
    }
}

/// Of all processes of this user and machine that use Ferrite. One that ends meanwhile is none.
fn of_all(limit: Duration) -> Result<BTreeMap<u32, Finding>> {
    let mut findings =
        Finding::of_processes(hang::known().into_iter().chain(hang::processes()), limit);
    findings.retain(|_, finding| finding.is_of_ferrite());
    if findings.is_empty() {
        return Err(Error::Unreadable(
            "no process of this user uses Ferrite on this machine".into(),
        ));
    }
    Ok(findings)
}
