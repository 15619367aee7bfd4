//! The arguments of `ferrite hang`, and what it prints.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use clap::Args;

use crate::hang;
use crate::hang::{Finding, State, summary};
use lab::cli::exit::Exit;
use lab::error::{Error, Result};
use lab::system::output;

#[derive(Debug, Args)]
#[command(after_help = "\
A process answers with what its messages wait for. It asks its peers first, on other hosts too, and they ask theirs: this takes \
up to five seconds. If it does not answer, its state and its statistics file show what is outstanding. It must belong to the \
same user, unless you are root.\n\n\
Exit code 0: nothing waits too long; 1: something does, or a process is stopped or blocked in the kernel; the report says what \
and why; 2: there is no such file, or no such process that uses Ferrite. A process that ends during the check does not count.")]
pub(super) struct Hang {
    /// A process id; `all` processes of this user and machine; or the statistics file of a process
    /// that has ended
    #[arg(value_name = "PID|all|FILE")]
    target: String,
    /// Print each connection that waits, with its peer's answer
    #[arg(long)]
    waits: bool,
    /// Time that all processes together have to answer; s
    #[arg(long, value_name = "S", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=600))]
    timeout: u64,
    /// A wait of this many seconds is a hang; s [default: the process's own limit,
    /// FERRITE_HANG_SECONDS]
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
            output::write_stdout(&format!("{}: {}\n", self.target, finding.text()))?;
            return Ok(code(finding.hangs(threshold)));
        }
        let findings = match self.target.parse() {
            Ok(pid) => BTreeMap::from([(pid, of_one(pid, limit)?)]),
            Err(_) => of_all(limit)?,
        };
        let hangs = findings.values().any(|finding| finding.hangs(threshold));
        let healthy = if hangs { "" } else { "nothing waits too long\n" };
        output::write_stdout(&format!("{healthy}{}", summary(&findings, self.waits)))?;
        Ok(code(hangs))
    }
}

/// Of process `pid`, or of what it has left.
fn of_one(pid: u32, limit: Duration) -> Result<Finding> {
    let finding = Finding::of_process(pid, limit);
    match &finding {
        Finding::Outside(State::Ended, traces) if traces.has_file() => Ok(finding),
        Finding::Outside(State::Ended, _) => Err(Error::Unreadable(format!(
            "process {pid} has ended, or there was none, and it has left no statistics file"
        ))),
        _ if !finding.is_of_ferrite() => Err(Error::Unreadable(format!(
            "process {pid} has no connection of Ferrite that can be seen from here: it has none yet, has FERRITE_HANG_SECONDS=0, \
             or is in another container"
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
        return Err(Error::Unreadable("no process of this user uses Ferrite here".into()));
    }
    Ok(findings)
}
