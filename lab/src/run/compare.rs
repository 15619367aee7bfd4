//! A against B: verified first, then measured in turn, each time in fresh processes.
//!
//! Nothing but the transport may differ between a session of A and one of B. Buffers lie in the
//! same pages in all sessions ([`crate::pair::worker_ctx`]). A repetition is a session of A, one of
//! B and one of A again, in an order that changes: over six repetitions each has each place twice,
//! and each comes right after each of the others three times. So what a place or a predecessor
//! does, and what drifts, does the same to both. The ratio of A's two sessions is what the machine
//! alone does to such a ratio.

use std::fmt;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use nccl_net::inspect::version;

use crate::cost::{Case, CaseReport, CostRequest};
use crate::error::{Error, Result};
use crate::measure::plan::{Job, LARGEST, Scope, Task};
use crate::measure::sample::Key;
use crate::nccl::library::Source;
use crate::nccl::{library, release};
use crate::pair::worker_ctx::Pages;
use crate::results::earlier::{EarlierRun, ThisRun};
use crate::results::record::{Machine, Record, Run, SCHEMA, Side};
use crate::results::{record, rows};
use crate::run::other_host::OtherHost;
use crate::run::session::{Progress, Runner, Session};
use crate::system::output;
use crate::verbs::{Verbs, control_of};

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct CompareRequest {
    /// A, and B for a comparison.
    pub(crate) sources: Vec<Source>,
    /// Variables of A's processes alone, and of B's, with their values.
    pub(crate) variables: [Vec<(String, String)>; 2],
    /// The libibverbs.
    pub(crate) verbs: Verbs,
    /// Device index of each rank.
    pub(crate) devices: [Option<usize>; 2],
    /// How thorough.
    pub(crate) scope: Scope,
    /// A run to compare this one with.
    pub(crate) earlier: Option<EarlierRun>,
    /// The command line, for the record.
    pub(crate) command: Vec<String>,
}

/// The orders of six repetitions, the last followed by the first again.
const ORDERS: [[&str; 3]; 6] = [
    ["A", "B", "A2"],
    ["A", "A2", "B"],
    ["A2", "B", "A"],
    ["B", "A", "A2"],
    ["B", "A2", "A"],
    ["A2", "A", "B"],
];

/// The order of the sessions: repetition and side (`A`, `B`, `A2`), for one or two sources.
pub(crate) fn order(sources: usize, repetitions: usize) -> Vec<(usize, &'static str)> {
    let round = |repetition: usize| {
        if sources < 2 { &["A"][..] } else { &ORDERS[repetition % ORDERS.len()][..] }
    };
    (0..repetitions)
        .flat_map(|repetition| round(repetition).iter().map(move |side| (repetition, *side)))
        .collect()
}

/// A verification reports some steps of its own, so it counts as several.
const STEPS_OF_A_CHECK: usize = 12;

/// Runs it all. An interrupt after the first repetition ends it with what there is: see
/// [`Record::complete`].
///
/// # Errors
/// Whatever makes the run invalid: a worker's failure, a refused identity, wrong data;
/// [`Error::Interrupted`].
pub(crate) fn run(request: &CompareRequest, runner: &Runner) -> Result<Record> {
    let start = Instant::now();
    let machine = Machine::here();
    request.verbs.clean_stale();
    let started_unix =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let order = order(request.sources.len(), request.scope.repetitions);
    let steps =
        request.sources.len() * STEPS_OF_A_CHECK + order.len() * request.scope.measuring(0).len();
    let mut progress = Progress::new(steps as u64);
    let other = runner.other.as_deref();
    let outcome = verify(request, runner, &mut progress).and_then(|sides| {
        let this = ThisRun {
            scope: &request.scope,
            verbs: &request.verbs,
            machine: &machine,
            other_machine: other.map(OtherHost::machine),
            sides: &sides,
        };
        let differences =
            request.earlier.as_ref().map(|earlier| earlier.differences(&this)).transpose()?;
        let sessions = measure(request, runner, &sides, &order, &mut progress)?;
        Ok((sides, sessions, differences.unwrap_or_default()))
    });
    progress.finish();
    let (sides, sessions, differences) = outcome?;
    sides.iter().try_for_each(require_same_file)?;
    other.map_or(Ok(()), |other| other.end(output::received()))?;
    // An interrupt, which has ended the measurements, ends this too.
    let is_usual = other.is_none()
        && request.scope.streams == 1
        && request.variables.iter().all(Vec::is_empty);
    let costs =
        if is_usual { count(&request.sources, &request.verbs, runner) } else { Ok(Vec::new()) };
    let costs = costs.unwrap_or_default();
    let settings = if other.is_some() {
        request.verbs.settings_between_hosts()
    } else {
        request.verbs.settings()
    };
    let (rows, groups) = rows::rows(&sessions);
    let keys: Vec<Key> = rows.iter().map(|row| row.key).collect();
    let earlier = request
        .earlier
        .as_ref()
        .map(|earlier| earlier.changes(&sessions, &keys, differences))
        .transpose()?;
    Ok(Record {
        schema: SCHEMA.into(),
        tool: version::text().to_owned(),
        complete: sessions.len() == order.len(),
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
        groups,
        sides,
        sessions,
        earlier,
        costs,
    })
}

/// Verifies each side in a pair of its own, in fresh memory.
fn verify(request: &CompareRequest, runner: &Runner, progress: &mut Progress) -> Result<Vec<Side>> {
    let mut sides = Vec::new();
    for (number, label) in (0..request.sources.len()).zip(["A", "B"]) {
        progress.phase(format!("verifying {label}"));
        let session = one(request, runner, number, &request.scope.verifying(), progress)?;
        let side = Side::new(label, &request.sources[number], &session.loaded, session.checks)?;
        let side = Side { variables: request.variables[number].iter().cloned().collect(), ..side };
        require_right_data(&side)?;
        sides.push(side);
        progress.reach((sides.len() * STEPS_OF_A_CHECK) as u64);
    }
    require_same_device(&sides)?;
    Ok(sides)
}

/// Runs the sessions in order, all in the same memory. After an interrupt, those that have run, if
/// a repetition is complete.
fn measure(
    request: &CompareRequest,
    runner: &Runner,
    sides: &[Side],
    order: &[(usize, &str)],
    progress: &mut Progress,
) -> Result<Vec<Run>> {
    let runner = Runner { pages: Some(Pages::of_both_ranks()?), ..runner.clone() };
    let mut sessions = Vec::new();
    for (repetition, label) in order {
        let number = usize::from(*label == "B");
        let side = &sides[number];
        let measuring = request.scope.measuring(*repetition);
        progress.phase(format!("{label} {}/{}", repetition + 1, request.scope.repetitions));
        let session = match one(request, &runner, number, &measuring, progress) {
            Err(Error::Interrupted) if *repetition > 0 => return Ok(sessions),
            // The other host has heard the interrupt first, and its end has been seen before the
            // interrupt here.
            Err(Error::Worker { wrong: false, .. })
                if *repetition > 0 && runner.other.is_some() && output::received() =>
            {
                return Ok(sessions);
            }
            session => session?,
        };
        require_same_side(side, &session)?;
        sessions.push(Run {
            side: (*label).into(),
            repetition: *repetition,
            seconds: session.seconds,
            samples: session.samples,
            traffic: session.traffic,
        });
        progress.reach((sides.len() * STEPS_OF_A_CHECK + sessions.len() * measuring.len()) as u64);
    }
    Ok(sessions)
}

fn one(
    request: &CompareRequest,
    runner: &Runner,
    side: usize,
    tasks: &[Task],
    progress: &mut Progress,
) -> Result<Session> {
    let job = Job {
        source: request.sources[side].clone(),
        peer: None,
        verbs: request.verbs.clone(),
        devices: devices(request, runner),
        fused: false,
        slice_ms: request.scope.slice_ms,
        variables: request.variables[side].clone(),
        streams: request.scope.streams,
        tasks: tasks.to_vec(),
    };
    runner.run(&job, &mut |what| progress.step(what))
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
    let told_apart_by = |side: &Side| {
        (side.identity.file.clone(), side.identity.symbol.clone(), side.variables.clone())
    };
    if told_apart_by(a) == told_apart_by(b) {
        return Err(Error::Refused(format!(
            "A and B are the same: {} of {}",
            a.identity.symbol,
            a.identity.file.display()
        )));
    }
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
fn require_same_side(side: &Side, session: &Session) -> Result<()> {
    let loaded = &session.loaded[0];
    if loaded.identity == side.identity && loaded.verbs == side.verbs {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "{} was {:?} when it was verified and is {:?} now",
        side.label, side.identity, loaded.identity
    )))
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
        // A plugin merges what the user wants merged; the built-in transports merge what they are
        // told to.
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
    /// Runs the checks in a fresh pair of processes. `begin` hears what rank 0 is about to do.
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
            verbs: self.verbs.clone(),
            devices: self.devices,
            fused: over == Topology::Fused,
            slice_ms: 0,
            variables: Vec::new(),
            streams: 1,
            tasks: vec![task],
        };
        runner.run(&job, begin)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_has_each_place_and_each_predecessor_equally_often() {
        let order = order(2, 24);
        assert_eq!(order.len(), 72);
        let count =
            |wanted: &dyn Fn(usize) -> bool| (0..order.len()).filter(|at| wanted(*at)).count();
        for side in ["A", "B", "A2"] {
            for place in 0..3 {
                assert_eq!(
                    count(&|at| order[at].1 == side && at % 3 == place),
                    8,
                    "{side} in place {place}"
                );
            }
            for before in ["A", "B", "A2"] {
                // The first session comes after none; the table is closed when it is taken to
                // follow the last.
                let follows = count(&|at| order[at].1 == side && order[(at + 71) % 72].1 == before);
                assert_eq!(follows, if side == before { 0 } else { 12 }, "{side} after {before}");
            }
        }
        for (at, (repetition, _)) in order.iter().enumerate() {
            assert_eq!(*repetition, at / 3);
        }
        assert_eq!(super::order(1, 2), [(0, "A"), (1, "A")]);
    }
}
