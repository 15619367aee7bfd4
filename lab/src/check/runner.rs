//! The process that starts a point's two others, waits for them with a limit, and judges.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::check::context::{Context, Host, Point, SOFTWARE_DEVICE, Step, StepJob, Trial};
use crate::check::report::{Outcome, StepResult, Verdict};
use crate::check::{context, points};
use crate::error::{Error, Result};
use crate::nccl::debug_log::ALL_INFO;
use crate::nccl::library::Source;
use crate::pair::parent::{Pair, Setting};
use crate::pair::worker_ctx::{WorkerCtx, WorkerMessage};
use crate::system::output;
use crate::verbs::Verbs;

/// How long a process may take to end when its work is done.
const LEAVING: Duration = Duration::from_secs(5);

/// What the software device is like.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DeviceConfig {
    /// InfiniBand, else RoCE.
    pub(crate) infiniband: bool,
    /// Devices that the transport is to fuse into one: 1 or 2.
    pub(crate) rails: usize,
    /// Junk in undefined fields, and data read late.
    pub(crate) strict: bool,
}

/// Where the software device is.
#[derive(Debug, Clone)]
pub(crate) struct SoftrnicPaths {
    /// The folder of its libibverbs.so.1.
    pub(crate) folder: PathBuf,
    /// Its command line.
    pub(crate) control: PathBuf,
}

/// What to check, and on what.
#[derive(Debug, Clone)]
pub(crate) struct CheckRequest {
    /// This program.
    pub(crate) program: PathBuf,
    /// The transport.
    pub(crate) source: Source,
    /// NCCL 2.21.5, if it is in the cache.
    pub(crate) built_in: Option<PathBuf>,
    /// The software device; `None`: the devices of this machine, without faults.
    pub(crate) softrnic: Option<SoftrnicPaths>,
    /// What it is like.
    pub(crate) device_config: DeviceConfig,
    /// With the points that take minutes.
    pub(crate) long: bool,
    /// The points are those of one-sided operations.
    pub(crate) one_sided: bool,
}

impl CheckRequest {
    /// Tries the points, `jobs` at a time, and tells each outcome to `tell` in the order of the
    /// points. After an interrupt, the outcomes so far.
    ///
    /// # Errors
    /// Those of `tell`, which end it.
    pub(crate) fn run_all(
        &self,
        points: &[Point],
        jobs: usize,
        mut tell: impl FnMut(&Outcome) -> Result<()>,
    ) -> Result<Vec<Outcome>> {
        let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (sender, outcomes) = channel();
        std::thread::scope(|scope| {
            for _ in 0..jobs.clamp(1, points.len().max(1)) {
                let (sender, next, stop) = (sender.clone(), &next, &stop);
                scope.spawn(move || {
                    while let Some((index, point)) =
                        taken(points, next).filter(|_| !stop.load(Ordering::Relaxed))
                    {
                        // This fails after an interrupt, when no more outcomes are wanted.
                        sender.send((index, self.run(point))).unwrap_or_default();
                    }
                });
            }
            drop(sender);
            let told = in_order(&outcomes, &mut tell);
            stop.store(true, Ordering::Relaxed);
            told
        })
    }

    /// Tries one point; nothing after an interrupt.
    fn run(&self, point: &Point) -> Option<Outcome> {
        let start = Instant::now();
        let (verdict, detail, log) = match point.trial {
            Trial::Needs(what) => (Verdict::Skipped, format!("needs {what}"), Vec::new()),
            Trial::Steps(steps) => self.perform(point, steps),
        };
        (!output::received()).then(|| Outcome {
            number: point.number,
            name: point.name.into(),
            claim: point.claim.into(),
            verdict,
            detail,
            seconds: start.elapsed().as_secs_f64(),
            log,
        })
    }

    fn perform(&self, point: &Point, steps: &[Step]) -> (Verdict, String, Vec<String>) {
        let mut details: Vec<String> = Vec::new();
        let mut skipped: Vec<String> = Vec::new();
        for (index, step) in
            steps.iter().enumerate().filter(|(_, step)| self.long || !step.env.long)
        {
            if self.softrnic.is_none() && step.env.needs_softrnic() {
                skipped.push(format!("needs {SOFTWARE_DEVICE}"));
                continue;
            }
            match self.step(point, index, step) {
                Ok(result) if result.skipped => skipped.push(result.detail),
                Ok(result) => details.push(result.detail),
                Err(Error::Worker { rank, what, log, .. }) => {
                    return (
                        Verdict::Failed,
                        format!("{what} (rank {rank}{})", part(index, steps)),
                        log,
                    );
                }
                Err(problem) => {
                    return (
                        Verdict::Failed,
                        format!("{problem}{}", part(index, steps)),
                        Vec::new(),
                    );
                }
            }
        }
        details.retain(|detail| !detail.is_empty());
        details.dedup();
        skipped.dedup();
        if details.is_empty() && !skipped.is_empty() {
            return (Verdict::Skipped, skipped.join("; "), Vec::new());
        }
        skipped.iter_mut().for_each(|why| why.insert_str(0, "left out: "));
        details.extend(skipped);
        (Verdict::Passed, details.join("; "), Vec::new())
    }

    /// One pair of processes from start to end; the result of rank 0.
    fn step(&self, point: &Point, index: usize, step: &Step) -> Result<StepResult> {
        let order = StepJob {
            number: point.number,
            one_sided: self.one_sided,
            step: index,
            source: self.source.clone(),
            built_in: self.built_in.clone(),
            softrnic: self.softrnic.as_ref().map(|device| device.control.clone()),
            rails: self.device_config.rails,
            infiniband: self.device_config.infiniband,
        };
        let fake_verbs = (step.env.host == Host::WithoutVerbs).then(context::folder).transpose()?;
        let setting = self.setting(step, fake_verbs.as_ref())?;
        let (program, arguments) = self.command(step);
        let mut pair = Pair::spawn(&program, &arguments, &setting)?;
        pair.send(&order)?;
        let mut results = [StepResult::nothing(), StepResult::nothing()];
        while let Some((rank, message)) = pair.next_message()? {
            if let WorkerMessage::Value { value } = message {
                results[rank] = serde_json::from_value(value)?;
            }
        }
        pair.ended(LEAVING)?;
        for (rank, result) in results.iter().enumerate() {
            let log = pair.log(rank);
            if let Some(what) = result.log_fault(&log) {
                let log = log.into_iter().rev().take(8).rev().collect();
                return Err(Error::Worker { rank, what, log, wrong: true });
            }
        }
        let [zero, _] = results;
        Ok(zero)
    }

    fn is_faithful(&self, step: &Step) -> bool {
        step.env.host == Host::Faithful
            || self.device_config.rails == 2 && step.env.host == Host::Plain
    }

    fn command(&self, step: &Step) -> (PathBuf, Vec<OsString>) {
        let Some(device) = self.softrnic.as_ref().filter(|_| self.is_faithful(step)) else {
            return (self.program.clone(), vec![WORKER.into()]);
        };
        let mut words: Vec<OsString> =
            vec!["run".into(), "--library".into(), device.folder.clone().into()];
        words.push("--faithful".into());
        if self.device_config.rails == 2 {
            words.push("--same-card".into());
        }
        words.extend(["--".into(), self.program.clone().into(), WORKER.into()]);
        (device.control.clone(), words)
    }

    fn setting(&self, step: &Step, without_verbs: Option<&TempDir>) -> Result<Setting> {
        let verbs = match &self.softrnic {
            Some(device) if without_verbs.is_none() => Verbs::softrnic(&device.folder)?,
            _ => Verbs::System,
        };
        let mut setting = Setting::new(verbs);
        setting.net_plugin = self.source.net_plugin().into();
        setting.silence = Duration::from_secs(step.env.timeout_s);
        let fused = if self.device_config.rails == 2 { "1" } else { "0" };
        let devices = if self.device_config.rails == 2 { "4" } else { "2" };
        setting = setting
            .env("NCCL_DEBUG", "INFO")
            .env(ALL_INFO.0, ALL_INFO.1)
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("NCCL_IB_MERGE_NICS", fused)
            .env("SOFTRNIC_QUIET", "1")
            .env("SOFTRNIC_DEVICES", devices)
            .env("SOFTRNIC_LINK", if self.device_config.infiniband { "ib" } else { "roce" })
            .env("SOFTRNIC_STRICT", if self.device_config.strict { "1" } else { "0" });
        if let Some(folder) = without_verbs {
            setting = setting.env("LD_LIBRARY_PATH", folder.path());
        }
        Ok(step.env.vars.iter().fold(setting, |setting, (name, value)| setting.env(name, value)))
    }
}

/// The next point that no thread has taken.
fn taken<'p>(points: &'p [Point], next: &AtomicUsize) -> Option<(usize, &'p Point)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    points.get(index).map(|point| (index, point))
}

/// Tells the outcomes by index, whatever order they come in, up to the first that there is not.
fn in_order(
    outcomes: &Receiver<(usize, Option<Outcome>)>,
    tell: &mut impl FnMut(&Outcome) -> Result<()>,
) -> Result<Vec<Outcome>> {
    let (mut early, mut told) = (BTreeMap::new(), Vec::new());
    for (index, outcome) in outcomes {
        let Some(outcome) = outcome else { break };
        early.insert(index, outcome);
        while let Some(outcome) = early.remove(&told.len()) {
            tell(&outcome)?;
            told.push(outcome);
        }
    }
    // After an interrupt there are gaps.
    for outcome in early.into_values() {
        tell(&outcome)?;
        told.push(outcome);
    }
    Ok(told)
}

/// Which step it was, where there are several.
fn part(index: usize, steps: &[Step]) -> String {
    if steps.len() == 1 {
        return String::new();
    }
    let vars = steps[index].env.vars.iter().chain(steps[index].env.rank1_vars);
    let vars: Vec<String> = vars.map(|(name, value)| format!("{name}={value}")).collect();
    let with = if vars.is_empty() { String::new() } else { format!(" with {}", vars.join(" ")) };
    format!(", step {}{with}", index + 1)
}

/// The hidden subcommand that makes one of the two processes of this program.
pub(crate) const WORKER: &str = "check-worker";

/// The body of the hidden subcommand `check-worker`; the exit code.
pub(crate) fn main() -> i32 {
    WorkerCtx::main(WORKER, |worker| {
        let job: StepJob = worker.receive_job()?;
        let result = run_step(worker, &job)?;
        worker.report(&result)?;
        // A step may be about the end of the other process, so neither ends before both have their
        // results.
        worker.barrier()
    })
}

fn run_step(worker: &mut WorkerCtx, job: &StepJob) -> Result<StepResult> {
    let points = if job.one_sided { points::one_sided() } else { points::all() };
    let point = points.into_iter().find(|point| point.number == job.number);
    let Some(Point { name, trial: Trial::Steps(steps), .. }) = point else {
        return Err(Error::Misuse("a point that is not tried"));
    };
    let step = steps.get(job.step).ok_or(Error::Misuse("a point without such a step"))?;
    worker.begin(format!("trying {name}"))?;
    if worker.rank() == 1 {
        for (variable, value) in step.env.rank1_vars {
            // SAFETY: this process has one thread so far, and no library is loaded.
            unsafe { std::env::set_var(variable, value) };
        }
        if step.env.alone {
            return Ok(StepResult::nothing());
        }
    }
    match (step.run)(&mut Context::new(worker, job)) {
        Err(missing @ Error::Missing(_)) => Ok(StepResult::skipped(missing.to_string())),
        result => result,
    }
}
