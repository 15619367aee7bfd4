//! Each transport in each case, each in a process of its own.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use crate::cost::case::Case;
use crate::cost::report::{CaseReport, Side};
use crate::cost::worker::{CostJob, CostReport, WORKER};
use crate::error::{Error, Result};
use crate::nccl::library::Source;
use crate::pair::message::to_json;
use crate::system::{interrupt, subprocess};
use crate::verbs::libibverbs::{Verbs, new_fabric_name};

/// Messages that are counted in each case, at least.
const MESSAGES: u64 = 512;

/// What to count.
#[derive(Debug, Clone)]
pub(crate) struct CostRequest {
    /// This program.
    pub(crate) program: PathBuf,
    /// The software device's command line.
    pub(crate) control: PathBuf,
    /// The folder of its library.
    pub(crate) folder: PathBuf,
    /// The transports.
    pub(crate) sources: Vec<Source>,
    pub(crate) cases: Vec<Case>,
    /// How long a process may say nothing.
    pub(crate) silence: Duration,
}

impl CostRequest {
    /// Counts; `begin` hears what comes next.
    ///
    /// # Errors
    /// [`Error::Worker`] if a transport cannot be tried, or does the wrong thing; [`Error::Interrupted`].
    pub(crate) fn run(&self, begin: &mut dyn FnMut(&str)) -> Result<Vec<CaseReport>> {
        let mut reports = Vec::new();
        for &case in &self.cases {
            let mut sides = Vec::new();
            for source in &self.sources {
                interrupt::check()?;
                begin(&format!("{case}: {}", source.file().display()));
                sides.push(Side::of(&self.count(source, case)?));
            }
            reports.push(CaseReport { case, sides });
        }
        Ok(reports)
    }

    fn count(&self, source: &Source, case: Case) -> Result<CostReport> {
        let verbs = Verbs::softrnic(&self.folder)?;
        let fabric = new_fabric_name();
        let job = CostJob {
            source: source.clone(),
            verbs: verbs.clone(),
            case,
            rounds: MESSAGES.div_ceil(case.depth as u64),
            control: self.control.clone(),
            fabric: fabric.clone(),
            silence: self.silence.as_secs(),
        };
        let mut command = self.command(case, &to_json(&job)?);
        verbs.apply(&mut command, &fabric);
        if std::env::var_os("NCCL_DEBUG").is_none() {
            command.env_remove("NCCL_DEBUG");
        }
        command.env("NCCL_NET_PLUGIN", source.net_plugin()).envs(case.environment());
        let printed = subprocess::run_command(command, self.silence);
        verbs.clean(&fabric);
        interrupt::check()?;
        // The built-in transports print there, too.
        let report = printed.lines.iter().rev().find_map(|line| serde_json::from_str(line).ok());
        match report {
            Some(report) if printed.failure.is_none() => Ok(report),
            _ => Err(Error::Worker {
                rank: 0,
                what: format!("{} with {case}: {}", source.file().display(), printed.words()),
                log: printed.log.iter().rev().take(8).rev().cloned().collect(),
                wrong: printed.code == Some(1),
            }),
        }
    }

    /// Two ports are one device to a transport that finds them on one card in sysfs, which the software device's command line shows.
    fn command(&self, case: Case, job: &str) -> Command {
        let mut command = match case.rails {
            1 => Command::new(&self.program),
            _ => {
                let mut command = Command::new(&self.control);
                command.arg("run").arg("--library").arg(&self.folder);
                command.args(["--faithful", "--same-card", "--"]).arg(&self.program);
                command
            }
        };
        command.args([WORKER, job]);
        command
    }
}
