//! One pair of workers from start to end.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::measure::byte_check::Check;
use crate::measure::plan::Job;
use crate::measure::sample::Sample;
use crate::nccl::library::Identity;
use crate::pair::message::{WorkerMessage, json_error};
use crate::pair::pages::Pages;
use crate::pair::parent::Pair;
use crate::pair::setting::Setting;
use crate::pair::stand_in::STAND_IN;
use crate::results::loaded::LoadedTransport;
use crate::run::other_host::OtherHost;
use crate::run::worker::WORKER;
use crate::run::worker_report::Report;
use crate::verbs::port_counters::PortCounters;

/// What is the same for all pairs of a run.
#[derive(Debug, Clone)]
pub(crate) struct Runner {
    /// The program that has the [`WORKER`] subcommand: normally this one.
    pub(crate) program: PathBuf,
    /// How long a worker may be silent.
    pub(crate) silence: Duration,
    /// Whether workers keep to a CPU each.
    pub(crate) pin: bool,
    /// What the buffers of each rank lie in: see [`Pages`]. Where data is checked they are fresh, so that nothing of an
    /// earlier pair can pass for what was sent.
    pub(crate) pages: Option<[Pages; 2]>,
    /// Where rank 1 runs, if not on this host.
    pub(crate) other: Option<Arc<OtherHost>>,
}

/// What a pair reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Session {
    /// What each rank loaded.
    pub(crate) loaded: [LoadedTransport; 2],
    /// The measurements.
    pub(crate) samples: Vec<Sample>,
    /// The checks of both ranks.
    pub(crate) checks: Vec<Check>,
    /// What each rank's device counted, where it does.
    pub(crate) traffic: Vec<PortCounters>,
    /// How long the pair ran; s.
    pub(crate) seconds: f64,
}

impl Runner {
    /// This program, with fresh memory for each pair.
    ///
    /// # Errors
    /// [`Error::Io`] if the system does not say where this program is.
    pub(crate) fn of_this_program(silence: Duration, pin: bool) -> Result<Self> {
        let program = std::env::current_exe().map_err(|e| Error::io("no own program", e))?;
        Ok(Self { program, silence, pin, pages: None, other: None })
    }

    /// Runs the job in a fresh pair of processes. `begin` hears what rank 0 is about to do.
    ///
    /// # Errors
    /// [`Error::Worker`] if a process failed, died or hung; [`Error::Refused`] if the two loaded
    /// different things, or if the counters of a card stood still that had to reach another one.
    pub(crate) fn run(&self, job: &Job, begin: &mut dyn FnMut(&str)) -> Result<Session> {
        let start = std::time::Instant::now();
        let setting = Setting {
            net_plugin: job.source.net_plugin().into(),
            pin: self.pin,
            silence: self.silence,
            pages: self.pages.clone(),
            between_hosts: self.other.is_some(),
            ..Setting::new(job.verbs.clone())
        };
        let setting = if job.fused { setting.env("NCCL_IB_MERGE_NICS", "1") } else { setting };
        let setting = job.variables.iter().fold(setting, |setting, (name, value)| setting.env(name, value));
        let worker = [OsString::from(WORKER)];
        let mut pair = match &self.other {
            None => Pair::spawn(&self.program, &worker, &setting)?,
            Some(other) => {
                let sockets = other.start(&job.source, &job.variables, self.silence, self.pages.is_some())?;
                let stand_in = [OsString::from(STAND_IN)];
                Pair::spawn_with_other_host(&self.program, [&worker, &stand_in], &setting, sockets)?
            }
        };
        pair.send(job)?;
        let mut loaded = [None, None];
        let (mut samples, mut checks, mut traffic) = (Vec::new(), Vec::new(), Vec::new());
        while let Some((rank, message)) = pair.next_message()? {
            match message {
                WorkerMessage::Begin { what } if rank == 0 => begin(&what),
                WorkerMessage::Value { value } => match serde_json::from_value(value).map_err(|e| json_error(&e))? {
                    Report::Loaded(report) => loaded[rank] = Some(*report),
                    Report::Sample(sample) => samples.push(sample),
                    Report::Checks { checks: more } => checks.extend(more),
                    Report::PortCounters(report) => traffic.push(report),
                },
                _ => {}
            }
        }
        let [Some(zero), Some(one)] = loaded else {
            return Err(Error::Unreadable("a worker ended without saying what it loaded".into()));
        };
        // Files of two hosts are known to be the same by their contents, wherever they are.
        let place = if self.other.is_some() { &zero.identity.file } else { &one.identity.file };
        let identity = Identity { file: place.clone(), ..one.identity.clone() };
        let is_same_verbs = zero.verbs == one.verbs || self.other.is_some();
        if (zero.identity != identity && job.peer.is_none()) || !is_same_verbs {
            return Err(Error::Refused(format!("rank 0 loaded {:?} and rank 1 {:?}", zero.identity, one.identity)));
        }
        // A card that talks to itself need not count it.
        let card = |loaded: &LoadedTransport| loaded.devices[loaded.device].guid;
        let still = traffic.iter().find(|report: &&PortCounters| !report.moved());
        if let Some(still) = still.filter(|_| self.other.is_some() || card(&zero) != card(&one)) {
            return Err(Error::Refused(format!(
                "the counters of {} stood still: the data went another way",
                still.device
            )));
        }
        Ok(Session { loaded: [zero, one], samples, checks, traffic, seconds: start.elapsed().as_secs_f64() })
    }
}
