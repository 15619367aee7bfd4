//! The arguments of `ferrite hang`, and what it prints.

use std::collections::{BTreeMap, BTreeSet};
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
A process answers with what its messages wait for, after asking its peers: this takes up to five seconds. If it does not \
answer, its state and its statistics file show what is outstanding. It must belong to the same user, unless you are root.\n\n\
Exit code 0: nothing waits too long; 1: something does, or a process is stopped or blocked in the kernel, and the report says what and why; 2: there is no \
such file, and no such process that uses Ferrite. A process that ends meanwhile changes nothing.")]
pub(super) struct Hang {
    /// A process id; `all` processes of this user and machine; or the statistics file of a process
    /// that has ended
    #[arg(value_name = "PID|all|FILE")]
    target: String,
    /// How long a process has for its answer; s
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
        output::write_stdout(&summary(&findings))?;
        Ok(code(findings.values().any(|finding| finding.hangs(threshold))))
    }
}

/// Of process `pid`, or of what it has left.
fn of_one(pid: u32, limit: Duration) -> Result<Finding> {
    let finding = Finding::of_process(pid, limit);
    match &finding {
        Finding::Outside(State::Ended, traces) if traces.has_file() => Ok(finding),
        Finding::Outside(State::Ended, _) => Err(Error::Unreadable(format!(
            "there is no process {pid}, and no statistics file of it"
        ))),
        Finding::Outside(state, _) if !finding.is_of_ferrite() => {
            Err(Error::Unreadable(format!("process {pid}: {}", state.text())))
        }
        _ => Ok(finding),
    }
}

/// Of all processes of this user and machine that use Ferrite. One that ends meanwhile is none.
fn of_all(limit: Duration) -> Result<BTreeMap<u32, Finding>> {
    let pids: BTreeSet<u32> = hang::known().into_iter().chain(hang::processes()).collect();
    // All at once: each may take seconds.
    let asked = pids
        .into_iter()
        .map(|pid| (pid, std::thread::spawn(move || Finding::of_process(pid, limit))));
    let asked: Vec<_> = asked.collect();
    let findings = asked.into_iter().filter_map(|(pid, thread)| Some((pid, thread.join().ok()?)));
    let findings: BTreeMap<u32, Finding> =
        findings.filter(|(_, finding)| finding.is_of_ferrite()).collect();
    if findings.is_empty() {
        return Err(Error::Unreadable("no process of this user uses Ferrite here".into()));
    }
    Ok(findings)
}
