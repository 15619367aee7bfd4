//! One pair of workers from start to end.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::measure::plan::{Job, LARGEST, Task};
use crate::measure::stream::Bench;
use crate::measure::turns::{Side, Turns};
use crate::measure::verify::{Check, Stream};
use crate::measure::{turns, verify};
use crate::nccl::debug_log;
use crate::nccl::library::{Identity, Library, Source};
use crate::pair::parent::{Pair, STAND_IN, Setting, WORKER};
use crate::pair::worker_ctx::{Pages, WorkerCtx, WorkerMessage};
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
    /// When all has to be over.
    pub(crate) until: Option<Instant>,
}

/// What a pair reported.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Session {
    /// What each rank loaded, of each side.
    pub(crate) loaded: Vec<[LoadedTransport; 2]>,
    /// The measurements.
    pub(crate) turns: Vec<Turns>,
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
        Ok(Self { program, silence, pin, pages: None, other: None, until: None })
    }

    /// Runs the job in a fresh pair of processes. `begin` gets what rank 0 is about to do.
    ///
    /// # Errors
    /// [`Error::Worker`] if a process failed, died or hung; [`Error::NotFused`];
    /// [`Error::Refused`] if the two loaded different things, or if the counters of a card stood
    /// still that had to reach another one.
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
        // If one process has both sides, each side has an environment of its own there.
        let variables: &[(String, String)] =
            if job.beside.is_none() { &job.variables } else { &[] };
        let setting =
            variables.iter().fold(setting, |setting, (name, value)| setting.env(name, value));
        let worker = [OsString::from(WORKER)];
        let mut pair = match &self.other {
            None => Pair::spawn(&self.program, &worker, &setting)?,
            Some(other) => {
                let sockets = other.start(job, variables, self.silence, self.pages.is_some())?;
                let stand_in = [OsString::from(STAND_IN)];
                Pair::spawn_with_other_host(&self.program, [&worker, &stand_in], &setting, sockets)?
            }
        };
        pair.until = self.until;
        pair.send(job)?;
        let mut loaded = [[None, None], [None, None]];
        let (mut turns, mut checks, mut traffic) = (Vec::new(), Vec::new(), Vec::new());
        let mut not_fused = None;
        while let Some((rank, message)) = pair.next_message()? {
            match message {
                WorkerMessage::Begin { what } if rank == 0 => begin(&what),
                WorkerMessage::Value { value } => match serde_json::from_value(value)? {
                    Report::Loaded { side, loaded: report } => {
                        loaded[side.min(1)][rank] = Some(*report);
                    }
                    Report::Turns { turns: more } => turns.extend(more),
                    Report::Checks { checks: more } => checks.extend(more),
                    Report::PortCounters(report) => traffic.push(report),
                    Report::NotFused { why } => not_fused = Some(why),
                },
                _ => {}
            }
        }
        if let Some(why) = not_fused {
            return Err(Error::NotFused(why));
        }
        let sides = loaded.into_iter().take(1 + usize::from(job.beside.is_some()));
        let loaded = sides.map(|loaded| self.alike(loaded, job.peer.is_some()));
        let loaded = loaded.collect::<Result<Vec<_>>>()?;
        // A card that sends to itself may not count that traffic.
        let card = |loaded: &LoadedTransport| loaded.devices[loaded.device].guid;
        let is_one_card = loaded.iter().all(|[zero, one]| card(zero) == card(one));
        let still = traffic.iter().find(|report: &&PortCounters| !report.moved());
        if let Some(still) = still.filter(|_| self.other.is_some() || !is_one_card) {
            return Err(Error::Refused(format!(
                "the counters of {} stood still: the data went another way",
                still.device
            )));
        }
        Ok(Session { loaded, turns, checks, traffic, seconds: start.elapsed().as_secs_f64() })
    }

    /// What both ranks loaded of one side, which has to be the same.
    fn alike(
        &self,
        loaded: [Option<LoadedTransport>; 2],
        has_peer: bool,
    ) -> Result<[LoadedTransport; 2]> {
        let [Some(zero), Some(one)] = loaded else {
            return Err(Error::Unreadable("a worker ended without saying what it loaded".into()));
        };
        // Files of two hosts are known to be the same by their contents, wherever they are.
        let place = if self.other.is_some() { &zero.identity.file } else { &one.identity.file };
        let identity = Identity { file: place.clone(), ..one.identity.clone() };
        let is_same_verbs = zero.verbs == one.verbs || self.other.is_some();
        if (zero.identity != identity && !has_peer) || !is_same_verbs {
            return Err(Error::Refused(format!(
                "rank 0 loaded {:?} and rank 1 {:?}",
                zero.identity, one.identity
            )));
        }
        Ok([zero, one])
    }
}

/// The body of the hidden subcommand `worker`; the exit code.
pub(crate) fn main() -> i32 {
    WorkerCtx::main(WORKER, work)
}

fn work(worker: &mut WorkerCtx) -> Result<()> {
    let job: Job = worker.receive_job()?;
    let mut opened: Vec<Opened> = Vec::new();
    if let Some(beside) = &job.beside {
        worker.separate([&job.variables, &beside.variables])?;
    }
    let is_b_first = job.beside.as_ref().is_some_and(|beside| beside.is_first);
    let places = if is_b_first { &[1, 0][..] } else { &[0, 1] };
    for place in places.iter().copied().take(1 + usize::from(job.beside.is_some())) {
        let source = match job.beside.as_ref().filter(|_| place == 1) {
            Some(beside) => &beside.source,
            None => job.source_of(worker.rank()),
        };
        worker.enter_side(place)?;
        let is_copy = opened.iter().any(|opened| is_same_plugin(&opened.source, source));
        match Opened::new(worker, &job, source, (place, is_copy)) {
            Err(Error::NotFused(why)) => {
                worker.report(&Report::NotFused { why })?;
                return worker.barrier();
            }
            made => opened.push(made?),
        }
    }
    opened.sort_by_key(|opened| opened.place);
    let device = |opened: &Opened| opened.loaded.devices[opened.loaded.device].clone();
    let device = device(&opened[0]);
    let before = PortCounters::read(&device);
    for Opened { place, loaded, .. } in &opened {
        worker.report(&Report::Loaded { side: *place, loaded: Box::new(loaded.clone()) })?;
    }
    perform(worker, &opened, &job)?;
    if let Some(traffic) = before.and_then(|before| before.until_now(&device)) {
        worker.report(&Report::PortCounters(traffic))?;
    }
    worker.barrier()
}

/// A transport of this process, ready.
struct Opened {
    place: usize,
    source: Source,
    transport: Transport,
    loaded: LoadedTransport,
}

impl Opened {
    fn new(
        worker: &mut WorkerCtx,
        job: &Job,
        source: &Source,
        (place, is_copy): (usize, bool),
    ) -> Result<Self> {
        worker.begin("loading the transport")?;
        let lines_before = debug_log::lines().len();
        let start = Instant::now();
        let library = match source {
            Source::Plugin { path, abi } if is_copy => Library::open_copy(path, *abi)?,
            source => Library::open(source)?,
        };
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
        let lines = debug_log::lines();
        let loaded = LoadedTransport {
            identity: transport.identity().clone(),
            version: version_in_log(
                transport.name(),
                lines.get(lines_before..).unwrap_or_default(),
            ),
            verbs: job.verbs.prove()?,
            cpu: worker.cpu(),
            devices,
            device,
            load_ms,
            init_ms,
        };
        Ok(Self { place, source: source.clone(), transport, loaded })
    }
}

/// Whether both are plugins in one file.
fn is_same_plugin(one: &Source, other: &Source) -> bool {
    let file = |source: &Source| match source {
        Source::Plugin { path, .. } => std::fs::canonicalize(path).ok(),
        _ => None,
    };
    file(one).is_some_and(|path| file(other) == Some(path))
}

fn perform(worker: &mut WorkerCtx, opened: &[Opened], job: &Job) -> Result<()> {
    let Opened { transport, loaded, .. } = &opened[0];
    let device = loaded.device;
    let mut bench = None;
    for task in &job.tasks {
        worker.begin(task.words())?;
        match task {
            Task::Turns { rows, seed, rounds } => {
                let sides = opened.iter();
                let sides: Vec<Side<'_>> = sides
                    .map(|one| Side { transport: &one.transport, device: one.loaded.device })
                    .collect();
                let streams = job.streams.max(1) as usize;
                let turns = turns::measure(worker, &sides, rows, (*seed, *rounds, streams))?;
                worker.report(&Report::Turns { turns })?;
                continue;
            }
            Task::Parallel { sizes } => {
                let checks = parallel(worker, transport, sizes)?;
                worker.report(&Report::Checks { checks })?;
                continue;
            }
            _ => {}
        }
        let bench = match &mut bench {
            Some(bench) => bench,
            none => none.insert(Bench::open(worker, transport, device, memory_for(&job.tasks))?),
        };
        let checks = match task {
            Task::Turns { .. } | Task::Parallel { .. } => continue,
            Task::Verify { sizes } => {
                let groups = loaded.devices[device].max_receives.clamp(1, 8);
                let groups = worker.agree(groups as u64)? as usize;
                verify::all(worker, bench, sizes, groups)?
            }
            Task::Long { bytes, messages } => long(worker, bench, *bytes, *messages)?,
        };
        worker.report(&Report::Checks { checks })?;
    }
    worker.begin("closing")?;
    bench.map_or(Ok(()), Bench::close)
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

/// Bytes of each region that the largest of the tasks needs.
fn memory_for(tasks: &[Task]) -> usize {
    let need = |task: &Task| match task {
        Task::Turns { .. } | Task::Parallel { .. } => 0,
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
    Loaded {
        /// 0: A, 1: B.
        side: usize,
        /// What it has loaded.
        loaded: Box<LoadedTransport>,
    },
    /// The measurements over one set of connections.
    Turns {
        /// One of each row.
        turns: Vec<Turns>,
    },
    /// The checks of one process.
    Checks {
        /// One per kind and size.
        checks: Vec<Check>,
    },
    /// What the device's own counters say passed through it.
    PortCounters(PortCounters),
    /// [`Error::NotFused`]: it ends.
    NotFused {
        /// Its words.
        why: String,
    },
}

/// Without a terminal, at most one line in this time.
const SPARSE: Duration = Duration::from_secs(10);

/// Progress over a known time, on stderr.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    start: Instant,
    seconds: u64,
    last: Option<Instant>,
}

impl Progress {
    /// A bar if stderr is a terminal, sparse lines else.
    pub(crate) fn new(seconds: u64) -> Self {
        let bar = host::stderr_is_terminal().then(|| {
            let bar = ProgressBar::new(seconds);
            if let Ok(style) = ProgressStyle::with_template("{pos:>3} s of {len}  {wide_msg}") {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self { bar, start: Instant::now(), seconds, last: None }
    }

    /// What is being done now.
    pub(crate) fn tell(&mut self, what: &str) {
        let passed = self.start.elapsed().as_secs().min(self.seconds);
        if let Some(bar) = &self.bar {
            bar.set_position(passed);
            bar.set_message(what.to_owned());
        } else if self.last.is_none_or(|last| last.elapsed() >= SPARSE) {
            output::write_stderr(format_args!("{passed:>3} s of {}  {what}", self.seconds));
            self.last = Some(Instant::now());
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
