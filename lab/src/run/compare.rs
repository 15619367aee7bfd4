//! A against B: verified first, each in processes of its own; then measured in sets until it is
//! known which is better, or the time is over.
//!
//! A set is a fresh pair of processes, in which both sides are loaded and connected. They take turns
//! over the same devices and the same pages ([`crate::measure::turns`],
//! [`crate::pair::worker_ctx`]). So each set has new addresses of code, heaps and queues, by
//! chance, and a new order of the sides. [`crate::results::judgement`] judges the sets.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nccl_net::inspect::version;

use crate::cost::{Case, CaseReport, CostRequest};
use crate::error::{Error, Result};
use crate::measure::metric::Key;
use crate::measure::plan::{Beside, Job, LARGEST, Scope, Task, word};
use crate::nccl::library::Source;
use crate::nccl::{library, release};
use crate::pair::worker_ctx::{LABELS, Pages};
use crate::report::verdict;
use crate::results::judgement;
use crate::results::record;
use crate::results::record::{Machine, Record, SCHEMA, Side};
use crate::results::rows::{self, Blocks, Group, Set};
use crate::run::session::{Progress, Runner, Session};
use crate::system::output;
use crate::verbs::{Verbs, control_of};

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct CompareRequest {
    /// A, and B for a comparison.
    pub(crate) sources: Vec<Source>,
    /// Variables of A alone, and of B, with their values.
    pub(crate) variables: [Vec<(String, String)>; 2],
    /// The libibverbs.
    pub(crate) verbs: Verbs,
    /// Device index of each rank.
    pub(crate) devices: [Option<usize>; 2],
    /// What, and how long.
    pub(crate) scope: Scope,
    /// After so many sets it ends in any case.
    pub(crate) most_sets: usize,
    /// The command line, for the record.
    pub(crate) command: Vec<String>,
}

/// By how much the last set may exceed the time that was given.
const GRACE: Duration = Duration::from_secs(8);

/// Runs it all. If an error ends it after the first set, the record has the sets so far. The error
/// is returned beside it, unless it is an interrupt ([`Record::complete`]).
///
/// # Errors
/// Whatever makes the run invalid before a set is complete: a worker's failure, a refused identity,
/// wrong data; [`Error::Interrupted`].
pub(crate) fn run(request: &CompareRequest, runner: &Runner) -> Result<(Record, Option<Error>)> {
    let start = Instant::now();
    let end = start + Duration::from_secs(request.scope.seconds);
    let runner = &Runner { until: Some(end + GRACE), ..runner.clone() };
    let machine = Machine::here();
    request.verbs.clean_stale();
    let started_unix =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let mut progress = Progress::new(request.scope.seconds);
    let other = runner.other.as_deref();
    let outcome = verify(request, runner, &mut progress).and_then(|sides| {
        // The count fails only if it is interrupted: then the run ends.
        let is_usual = other.is_none()
            && request.scope.streams == 1
            && request.variables.iter().all(Vec::is_empty);
        let costs =
            if is_usual { count(&request.sources, &request.verbs, runner)? } else { Vec::new() };
        let measured = measure(request, runner, (&sides, end), &mut progress)?;
        Ok((sides, costs, measured))
    });
    progress.finish();
    let (mut sides, costs, (sets, problem)) = outcome?;
    for (side, label) in sides.iter_mut().zip(LABELS) {
        side.blocks = Blocks::of(label, &sets);
    }
    let is_interrupted = output::received() || matches!(problem, Some(Error::Interrupted));
    if problem.is_none() || is_interrupted {
        sides.iter().try_for_each(require_same_file)?;
        other.map_or(Ok(()), |other| other.end(is_interrupted))?;
    }
    let settings = if other.is_some() {
        request.verbs.settings_between_hosts()
    } else {
        request.verbs.settings()
    };
    let (rows, groups) = rows::judged(&sets, request.scope.find());
    let is_one_sided = sides.len() < 2;
    let problem = problem.filter(|_| !is_interrupted);
    let record = Record {
        schema: SCHEMA.into(),
        tool: version::text().to_owned(),
        complete: problem.is_none() && !is_interrupted,
        problem: problem.as_ref().map(ToString::to_string),
        command: request.command.clone(),
        started_unix,
        seconds: start.elapsed().as_secs_f64(),
        machine,
        other_machine: other.map(|other| other.machine().clone()),
        verbs: request.verbs.clone(),
        settings: settings
            .into_iter()
            .map(|(name, value)| (name.into(), value.to_string_lossy().into_owned()))
            .collect(),
        scope: request.scope.clone(),
        rows,
        groups: if is_one_sided { Vec::new() } else { groups },
        sides,
        sets,
        costs,
    };
    Ok((record, problem))
}

/// Verifies each side in a pair of its own, in fresh memory.
fn verify(request: &CompareRequest, runner: &Runner, progress: &mut Progress) -> Result<Vec<Side>> {
    let mut sides = Vec::new();
    for (number, label) in (0..request.sources.len()).zip(["A", "B"]) {
        let verified = (|| {
            let tasks = request.scope.verifying();
            let job = job(request, runner, number, tasks);
            let session = runner
                .run(&job, &mut |what| progress.tell(&format!("every byte of {label}: {what}")))?;
            let side =
                Side::new(label, &request.sources[number], &session.loaded[0], session.checks)?;
            let variables = request.variables[number].iter().cloned().collect();
            let side = Side { variables, ..side };
            require_right_data(&side).map(|()| side)
        })();
        let of_side = |problem| of_side(&request.sources, number, problem, None);
        sides.push(verified.map_err(of_side)?);
    }
    require_same_device(&sides)?;
    Ok(sides)
}

/// Adds to an error the side that it comes from. An interrupt comes from neither.
fn of_side(sources: &[Source], side: usize, problem: Error, so_far: Option<String>) -> Error {
    match (problem, sources.get(side)) {
        (problem @ (Error::Interrupted | Error::Side { .. }), _) | (problem, None) => problem,
        (problem, Some(source)) => {
            let side = format!("{} = {}", ["A", "B"][side % 2], source.file().display());
            Error::Side { side, problem: Box::new(problem), so_far }
        }
    }
}

/// Runs sets until all is known or the time is over. Also returns the error that ended it early, if
/// there is a set by then; otherwise fails with it.
fn measure(
    request: &CompareRequest,
    runner: &Runner,
    (sides, end): (&[Side], Instant),
    progress: &mut Progress,
) -> Result<(Vec<Set>, Option<Error>)> {
    let pages = Pages::of_both_ranks()?;
    let runner = &Runner { pages: Some(pages.clone()), ..runner.clone() };
    let chance = RandomState::new().hash_one(0);
    let mut sets: Vec<Set> = Vec::new();
    let mut open = request.scope.rows();
    let mut so_far = String::from("connecting both sides");
    let mut longest = Duration::ZERO;
    while !open.is_empty()
        && sets.len() < request.most_sets
        && (sets.is_empty() || Instant::now() + longest < end)
    {
        let begin = Instant::now();
        let seed = word(chance, sets.len() as u64);
        let set = one(request, runner, (sides, &open), seed, &mut |_| progress.tell(&so_far));
        match set {
            Ok(set) => sets.push(set),
            // The time is over, or the user has interrupted the run. Another host may notice that
            // first, and its end may be seen here before.
            Err(Error::Late { .. }) if !sets.is_empty() => break,
            Err(_) if !sets.is_empty() && output::received() => {
                return Ok((sets, Some(Error::Interrupted)));
            }
            Err(problem) => {
                let rank = if let Error::Worker { rank, .. } = problem { rank } else { 0 };
                let side = match pages[rank.min(1)].side_shown() {
                    Some('A') => 0,
                    Some('B') => 1,
                    _ => return Err(problem),
                };
                let measured = match sets.len() {
                    0 => "nothing was measured until then".into(),
                    1 => "measured until then: 1 set".into(),
                    count => format!("measured until then: {count} sets"),
                };
                let problem = of_side(&request.sources, side, problem, Some(measured));
                return if sets.is_empty() { Err(problem) } else { Ok((sets, Some(problem))) };
            }
        }
        longest = begin.elapsed();
        let count = sets.len();
        if sides.len() > 1 && (judgement::is_look(count) || count.is_power_of_two()) {
            let (_, groups) = rows::judged(&sets, request.scope.find());
            so_far = format!("set {count}: {}", verdict::in_short(&groups));
            open.retain(|key| !is_known_now(&groups, *key, count));
        } else if sides.len() < 2 {
            so_far = format!("set {count}");
        }
    }
    Ok((sets, None))
}

/// Whether this look, after `sets` sets, knows enough of the key's group.
fn is_known_now(groups: &[Group], key: Key, sets: usize) -> bool {
    let group = groups.iter().find(|group| group.metric == key.metric);
    judgement::is_look(sets) && group.is_some_and(rows::is_known)
}

/// One set: a pair of processes.
fn one(
    request: &CompareRequest,
    runner: &Runner,
    (sides, rows): (&[Side], &[Key]),
    seed: u64,
    begin: &mut dyn FnMut(&str),
) -> Result<Set> {
    // To start the processes takes as long for few rows as for many.
    let rounds = (request.scope.rows().len() / rows.len().max(1)).clamp(1, 5);
    let task = Task::Turns { rows: rows.to_vec(), seed, rounds };
    let beside = request.sources.get(1).map(|source| Beside {
        source: source.clone(),
        variables: request.variables[1].clone(),
        is_first: word(seed, 0) >> 63 == 1,
    });
    let job = Job { beside, ..job(request, runner, 0, vec![task]) };
    let session = runner.run(&job, begin)?;
    require_same_sides(sides, &session)?;
    Ok(Set { seconds: session.seconds, turns: session.turns, traffic: session.traffic })
}

fn job(request: &CompareRequest, runner: &Runner, side: usize, tasks: Vec<Task>) -> Job {
    Job {
        source: request.sources[side].clone(),
        peer: None,
        beside: None,
        verbs: request.verbs.clone(),
        devices: devices(request, runner),
        fused: false,
        variables: request.variables[side].clone(),
        streams: request.scope.streams,
        tasks,
    }
}

/// Rank 1 has the second device of its host, where there is one, so that it is not rank 0's; on
/// another host it has the first one.
fn devices(request: &CompareRequest, runner: &Runner) -> [Option<usize>; 2] {
    let [zero, one] = request.devices;
    [zero, one.or_else(|| runner.other.as_ref().map(|_| 0))]
}

fn require_right_data(side: &Side) -> Result<()> {
    let wrong: u64 = side.checks.iter().map(|check| check.wrong).sum();
    let faults: Vec<&str> = side.checks.iter().filter_map(|check| check.fault.as_deref()).collect();
    if wrong == 0 {
        return Ok(());
    }
    const SHOWN: usize = 8;
    Err(Error::Data(format!(
        "{} = {}: {wrong} faults in {} messages, the first of each kind and size:\n  {}{}",
        side.label,
        side.title(),
        side.checked(),
        faults[..faults.len().min(SHOWN)].join("\n  "),
        if faults.len() > SHOWN { "\n  …" } else { "" }
    )))
}

/// A and B have to use the same ports, or they are not compared.
fn require_same_device(sides: &[Side]) -> Result<()> {
    let [a, b] = sides else { return Ok(()) };
    if !a.verbs.is_empty() && !b.verbs.is_empty() && a.verbs != b.verbs {
        return Err(Error::Refused(format!("A uses {:?} and B uses {:?}", a.verbs, b.verbs)));
    }
    for rank in 0..2 {
        let (left, right) = (&a.devices[rank], &b.devices[rank]);
        // Some pass the GUID on as the device gives it, in network order, and some as a number.
        let same_card = left.guid == right.guid || left.guid == right.guid.swap_bytes();
        if !same_card || left.port != right.port {
            return Err(Error::Refused(format!(
                "rank {rank} uses {} port {} (guid {:#x}) with A and {} port {} (guid {:#x}) with B; \
                 --dev0 and --dev1 choose the devices",
                left.name, left.port, left.guid, right.name, right.port, right.guid
            )));
        }
    }
    Ok(())
}

/// A library that is built anew in the middle of a run makes two things of one side.
fn require_same_file(side: &Side) -> Result<()> {
    let now = record::sha256(&side.identity.file)?;
    if now == side.sha256 {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "{} = {} was replaced during the run: its sha256 was {} and is {now}",
        side.label,
        side.identity.file.display(),
        side.sha256
    )))
}

/// What was verified is what is measured.
fn require_same_sides(sides: &[Side], session: &Session) -> Result<()> {
    for (side, [loaded, _]) in sides.iter().zip(&session.loaded) {
        let device = &loaded.devices[loaded.device];
        if loaded.identity != side.identity || loaded.verbs != side.verbs {
            return Err(Error::Refused(format!(
                "{} was {:?} when it was verified and is {:?} now",
                side.label, side.identity, loaded.identity
            )));
        }
        if *device != side.devices[0] {
            return Err(Error::Refused(format!(
                "{} used {:?} when it was verified and uses {device:?} now",
                side.label, side.devices[0]
            )));
        }
    }
    Ok(())
}

/// Sizes and messages in flight, over as many queue pairs as the environment says.
const CASES: [(usize, usize); 4] = [(8, 1), (8, 8), (64 << 10, 1), (64 << 10, 8)];

/// Of each of `sources`. Nothing, with a warning, where it cannot be counted: what was measured is
/// kept. Nothing where other devices than the software device are compared.
pub(crate) fn count(sources: &[Source], verbs: &Verbs, runner: &Runner) -> Result<Vec<CaseReport>> {
    let Verbs::Softrnic { folder } = verbs else { return Ok(Vec::new()) };
    let counted = control_of(folder).and_then(|control| {
        let case = |(bytes, depth)| Case { bytes, depth, queue_pairs: 0, rails: 1 };
        let request = CostRequest {
            program: runner.program.clone(),
            control,
            folder: folder.clone(),
            sources: sources.to_vec(),
            cases: CASES.map(case).into(),
            silence: runner.silence,
        };
        request.run(&mut |what| log::debug!("{what}"))
    });
    match counted {
        Err(Error::Interrupted) => Err(Error::Interrupted),
        Err(error) => {
            log::warn!("what messages cost is not in the report: {error}");
            Ok(Vec::new())
        }
        counted => counted,
    }
}

/// Sizes of streamed messages: around words, cache lines, pages and stripes of 128 bytes, odd ones,
/// and past the largest.
pub(crate) const STREAMED: [usize; 10] =
    [1, 3, 8, 129, 4097, 16384 - 8, 65537, 1_000_003, LARGEST, LARGEST + 129];
/// The message size of the long stream.
pub(crate) const LONG: usize = 64 << 10;

/// NCCL's settings by which a user has devices merged.
const MERGE_SETTINGS: [&str; 2] = ["NCCL_NET_FORCE_MERGE", "NCCL_NET_MERGE_LEVEL"];

/// What the connections of a verification lie on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Topology {
    /// One connection each way, each rank on its device.
    Single,
    /// Two at once, on the first two devices.
    Parallel,
    /// One each way over two devices that are made into one.
    Fused,
}

impl Topology {
    /// All of them.
    pub(crate) const ALL: [Self; 3] = [Self::Single, Self::Parallel, Self::Fused];

    /// Why it cannot be tried with this transport on this machine.
    ///
    /// # Errors
    /// Those of [`release::verify`] and [`library::require_plugin`].
    pub(crate) fn obstacle(self, source: &Source) -> Result<Option<String>> {
        if self != Self::Fused {
            return Ok(None);
        }
        // A plugin merges what the user wants merged; the built-in transports merge what
        // `NCCL_IB_MERGE_NICS` allows.
        let is_wanted = MERGE_SETTINGS
            .iter()
            .any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
        let later = match source {
            Source::Stock { nccl } => release::verify(nccl)?.interface > 8,
            Source::Plugin { path, abi } => is_wanted && library::require_plugin(path, *abi)? > 8,
            Source::Loader { nccl, .. } => is_wanted && release::verify(nccl)?.interface > 8,
        };
        // Version 8 has no call for it: the transport itself looks for ports of one card.
        let links = std::fs::read_dir("/sys/class/infiniband").into_iter().flatten().flatten();
        if later
            || links
                .map(|entry| entry.path().join("device"))
                .any(|conn: std::path::PathBuf| conn.exists())
        {
            return Ok(None);
        }
        Ok(Some(
            "it looks for the ports of one card in /sys/class/infiniband, which names no cards"
                .into(),
        ))
    }
}

impl fmt::Display for Topology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Single => "single",
            Self::Parallel => "parallel",
            Self::Fused => "fused",
        })
    }
}

/// What to verify.
#[derive(Debug, Clone)]
pub(crate) struct VerifyRequest {
    /// The transport.
    pub(crate) source: Source,
    /// Another build of it, for rank 1.
    pub(crate) peer: Option<Source>,
    /// The libibverbs.
    pub(crate) verbs: Verbs,
    /// Device index of each rank, for [`Topology::Single`].
    pub(crate) devices: [Option<usize>; 2],
    /// Messages of a long stream each way instead of everything else; not for
    /// [`Topology::Parallel`].
    pub(crate) long: Option<u64>,
}

impl VerifyRequest {
    /// Runs the checks in a fresh pair of processes. `begin` gets what rank 0 is about to do.
    ///
    /// # Errors
    /// Those of [`Runner::run`]. A wrong byte is no error here: it is counted.
    pub(crate) fn run(
        &self,
        over: Topology,
        runner: &Runner,
        begin: &mut dyn FnMut(&str),
    ) -> Result<Session> {
        let sizes = STREAMED.to_vec();
        let task = match (over, self.long) {
            (Topology::Parallel, Some(_)) => {
                return Err(Error::Usage("a long stream has one connection each way".into()));
            }
            (Topology::Parallel, None) => Task::Parallel { sizes },
            (_, Some(messages)) => Task::Long { bytes: LONG, messages },
            (_, None) => Task::Verify { sizes },
        };
        let job = Job {
            source: self.source.clone(),
            peer: self.peer.clone(),
            beside: None,
            verbs: self.verbs.clone(),
            devices: self.devices,
            fused: over == Topology::Fused,
            variables: Vec::new(),
            streams: 1,
            tasks: vec![task],
        };
        runner.run(&job, begin)
    }
}
