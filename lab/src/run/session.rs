//! One pair of workers from start to end.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::measure::plan::{DEPTH, Job, LARGEST, Task};
use crate::measure::sample::{Key, Sample};
use crate::measure::stream::Bench;
use crate::measure::verify::{Check, Stream};
use crate::measure::{stream, verify};
use crate::nccl::debug_log;
use crate::nccl::library::{Identity, Library};
use crate::pair::parent::{Pair, STAND_IN, WorkerMessage, json_error};
use crate::pair::setting::Setting;
use crate::pair::worker_ctx::{Pages, WorkerCtx};
use crate::results::record::LoadedTransport;
use crate::run::other_host::OtherHost;
use crate::system::{host, output};
use crate::transport::instance;
use crate::transport::instance::Transport;
use crate::verbs::PortCounters;

/// What is the same for all pairs of a run.
#[derive(Debug, Clone)]
pub(crate) struct Runner {
    /// The program that has the [`WORKER`] subcommand: normally this one.
    pub(crate) program: PathBuf,
    /// How long a worker may be silent.
    pub(crate) silence: Duration,
    /// Whether workers keep to a CPU each.
    pub(crate) pin: bool,
    /// What the buffers of each rank lie in: see [`Pages`]. Where data is checked they are fresh,
    /// so that nothing of an earlier pair can pass for what was sent.
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
        let start = Instant::now();
        let setting = Setting {
            net_plugin: job.source.net_plugin().into(),
            pin: self.pin,
            silence: self.silence,
            pages: self.pages.clone(),
            between_hosts: self.other.is_some(),
            ..Setting::new(job.verbs.clone())
        };
        let setting = if job.fused { setting.env("NCCL_IB_MERGE_NICS", "1") } else { setting };
        let setting =
            job.variables.iter().fold(setting, |setting, (name, value)| setting.env(name, value));
        let worker = [OsString::from(WORKER)];
        let mut pair = match &self.other {
            None => Pair::spawn(&self.program, &worker, &setting)?,
            Some(other) => {
                let sockets =
                    other.start(&job.source, &job.variables, self.silence, self.pages.is_some())?;
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
                WorkerMessage::Value { value } => {
                    match serde_json::from_value(value).map_err(|e| json_error(&e))? {
                        Report::Loaded(report) => loaded[rank] = Some(*report),
                        Report::Sample(sample) => samples.push(sample),
                        Report::Checks { checks: more } => checks.extend(more),
                        Report::PortCounters(report) => traffic.push(report),
                    }
                }
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
            return Err(Error::Refused(format!(
                "rank 0 loaded {:?} and rank 1 {:?}",
                zero.identity, one.identity
            )));
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
        Ok(Session {
            loaded: [zero, one],
            samples,
            checks,
            traffic,
            seconds: start.elapsed().as_secs_f64(),
        })
    }
}

/// The hidden subcommand that makes a worker of this program.
pub(crate) const WORKER: &str = "worker";

/// The body of the hidden subcommand `worker`; the exit code.
pub(crate) fn main() -> i32 {
    WorkerCtx::main(WORKER, work)
}

fn work(worker: &mut WorkerCtx) -> Result<()> {
    let job: Job = worker.receive_job()?;
    worker.begin("loading the transport")?;
    let start = Instant::now();
    let library = Library::open(job.source_of(worker.rank()))?;
    let load_ms = start.elapsed().as_secs_f64() * 1e3;
    worker.begin(format!("in init of {}", library.identity().name))?;
    let transport = Transport::without_init(library);
    let start = Instant::now();
    transport.init()?;
    let init_ms = start.elapsed().as_secs_f64() * 1e3;
    let device = match job.fused {
        true => instance::device_of(&transport, worker.rank())?,
        false => transport.device_of(worker.rank(), job.devices[worker.rank()])?,
    };
    let devices = (0..transport.devices()?)
        .map(|device| transport.properties(device))
        .collect::<Result<_>>()?;
    let loaded = LoadedTransport {
        identity: transport.identity().clone(),
        version: version_in_log(transport.name(), &debug_log::lines()),
        verbs: job.verbs.prove()?,
        cpu: worker.cpu(),
        devices,
        device,
        load_ms,
        init_ms,
    };
    let before = PortCounters::read(&loaded.devices[device]);
    worker.report(&Report::Loaded(Box::new(loaded.clone())))?;
    perform(worker, &transport, &loaded, &job)?;
    if let Some(traffic) = before.and_then(|before| before.until_now(&loaded.devices[device])) {
        worker.report(&Report::PortCounters(traffic))?;
    }
    worker.barrier()
}

fn perform(
    worker: &mut WorkerCtx,
    transport: &Transport,
    loaded: &LoadedTransport,
    job: &Job,
) -> Result<()> {
    let device = loaded.device;
    let mut benches: Vec<Bench> = Vec::new();
    for task in &job.tasks {
        worker.begin(task.words())?;
        match task {
            Task::Setup { connections, at_once } => {
                let sample =
                    stream::measure_setup(worker, transport, device, *connections, *at_once)?;
                report(worker, sample)?;
                continue;
            }
            Task::Renumber { connections, times } => {
                for _ in 0..*times {
                    stream::measure_setup(worker, transport, device, *connections, *connections)?;
                }
                continue;
            }
            Task::Parallel { sizes } => {
                let checks = parallel(worker, transport, sizes)?;
                worker.report(&Report::Checks { checks })?;
                continue;
            }
            _ => {}
        }
        while benches.len() < job.streams.max(1) as usize {
            benches.push(Bench::open(worker, transport, device, memory_for(&job.tasks))?);
        }
        let bench = &benches[0];
        match task {
            Task::Setup { .. } | Task::Renumber { .. } | Task::Parallel { .. } => {}
            Task::Latency { bytes } => {
                let sample = stream::measure_latency(worker, bench, *bytes, job.slice_ms)?;
                report(worker, sample)?;
            }
            Task::Stream { metric, bytes, direction } => {
                let key = Key {
                    metric: *metric,
                    bytes: *bytes as u64,
                    direction: *direction,
                    depth: DEPTH,
                };
                let sample = stream::measure(worker, &benches, key, job.slice_ms)?;
                report(worker, sample)?;
            }
            Task::Verify { sizes } => {
                let groups = loaded.devices[device].max_receives.clamp(1, 8);
                let groups = worker.agree(groups as u64)? as usize;
                let checks = verify::all(worker, bench, sizes, groups)?;
                worker.report(&Report::Checks { checks })?;
            }
            Task::Long { bytes, messages } => {
                let checks = long(worker, bench, *bytes, *messages)?;
                worker.report(&Report::Checks { checks })?;
            }
        }
    }
    worker.begin("closing")?;
    benches.into_iter().try_for_each(Bench::close)
}

/// One connection each way on the first device and one on the second, used at once by this thread.
fn parallel(worker: &mut WorkerCtx, transport: &Transport, sizes: &[usize]) -> Result<Vec<Check>> {
    let mut benches = Vec::new();
    for device in 0..2 {
        let device = transport.device_of(worker.rank(), Some(device))?;
        benches.push(Bench::open(worker, transport, device, verify::memory_needed(sizes))?);
    }
    let mut checks = Vec::new();
    for (test, &bytes) in sizes.iter().enumerate() {
        worker.begin(format!("verifying two streams of {bytes} B at once"))?;
        let both: Vec<&Bench> = benches.iter().collect();
        checks.extend(verify::run(
            worker,
            &both,
            Stream::usual("parallel", bytes),
            500 + test as u64,
        )?);
    }
    benches.into_iter().try_for_each(Bench::close)?;
    Ok(checks)
}

/// A long stream, in parts: between two of them this process shows that it is alive.
fn long(worker: &mut WorkerCtx, bench: &Bench, bytes: usize, messages: u64) -> Result<Vec<Check>> {
    const PART: u64 = 1000;
    let mut checks = Vec::new();
    let mut done = 0;
    while done < messages {
        worker.begin(format!("verifying messages from {done} on of {messages}"))?;
        let part = Stream { kind: "long", bytes, messages: PART.min(messages - done) };
        checks.extend(verify::run(worker, &[bench], part, 1000 + done)?);
        done += part.messages;
    }
    Ok(verify::merged(&checks))
}

fn report(worker: &mut WorkerCtx, sample: Option<Sample>) -> Result<()> {
    sample.map_or(Ok(()), |sample| worker.report(&Report::Sample(sample)))
}

/// Bytes of each region that the largest of the tasks needs.
fn memory_for(tasks: &[Task]) -> usize {
    let need = |task: &Task| match task {
        Task::Setup { .. } | Task::Renumber { .. } | Task::Parallel { .. } => 0,
        Task::Latency { bytes } => 2 * bytes.next_multiple_of(4096),
        Task::Stream { bytes, .. } => DEPTH as usize * bytes.next_multiple_of(4096).max(4096),
        Task::Verify { sizes } => verify::memory_needed(sizes),
        Task::Long { bytes, .. } => verify::memory_needed(&[*bytes]),
    };
    tasks.iter().map(need).max().unwrap_or(LARGEST)
}

/// `0.1.0` of a log line that says `NAME 0.1.0` or `NAME v0.1.0` or `NAME version 0.1.0`.
fn version_in_log(name: &str, lines: &[String]) -> Option<String> {
    lines.iter().find_map(|line| {
        line.match_indices(name).find_map(|(at, _)| {
            let rest = line[at + name.len()..].trim_start();
            let rest = rest.strip_prefix("version ").unwrap_or(rest);
            let rest = rest.strip_prefix('v').unwrap_or(rest);
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || ".-+".contains(c)));
            let word = &rest[..end.unwrap_or(rest.len())];
            let numbered = word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
            numbered.then(|| word.trim_end_matches('.').to_owned())
        })
    })
}

/// What a worker reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(super) enum Report {
    /// It is ready.
    Loaded(Box<LoadedTransport>),
    /// One measurement.
    Sample(Sample),
    /// The checks of one process.
    Checks {
        /// One per kind and size.
        checks: Vec<Check>,
    },
    /// What the device's own counters say passed through it.
    PortCounters(PortCounters),
}

/// Without a terminal, at most one line in this time.
const SPARSE: Duration = Duration::from_secs(10);

/// Progress over a known number of steps, on stderr.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    phase: String,
    done: u64,
    total: u64,
    last: Option<Instant>,
}

impl Progress {
    /// A bar if stderr is a terminal, sparse lines else.
    pub(crate) fn new(total: u64) -> Self {
        let bar = host::stderr_is_terminal().then(|| {
            let bar = ProgressBar::new(total);
            let style = "{elapsed_precise} [{bar:32}] {percent:>3}%  {msg}";
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self { bar, phase: String::new(), done: 0, total, last: None }
    }

    /// A new pair of processes.
    pub(crate) fn phase(&mut self, phase: impl Into<String>) {
        self.phase = phase.into();
        if self.bar.is_none() && self.last.is_none_or(|last| last.elapsed() >= SPARSE) {
            let percent = 100 * self.done / self.total.max(1);
            output::write_stderr(format_args!("{percent:>3} %  {}", self.phase));
            self.last = Some(Instant::now());
        }
    }

    /// One more step has begun.
    pub(crate) fn step(&mut self, what: &str) {
        self.done = (self.done + 1).min(self.total);
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
            bar.set_message(format!("{}: {what}", self.phase));
        }
    }

    /// The steps up to `done` are behind, whatever was heard of them.
    pub(crate) fn reach(&mut self, done: u64) {
        self.done = done.min(self.total);
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_the_log() {
        let found = |line: &str| version_in_log("Ferrite", &["x".into(), line.into()]);
        assert_eq!(found("INFO NET/Ferrite : Ferrite 0.1.0 (abc)"), Some("0.1.0".into()));
        assert_eq!(found("INFO Ferrite v1.2.3-rc1, 2 devices"), Some("1.2.3-rc1".into()));
        assert_eq!(found("INFO Ferrite version 1.2."), Some("1.2".into()));
        assert_eq!(found("INFO Ferrite: 2 devices"), None);
        assert_eq!(found("INFO NET/IB 1.2.3"), None);
    }
}
