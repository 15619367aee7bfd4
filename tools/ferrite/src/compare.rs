//! A against B: verified first, then measured in turn, each time in fresh processes.
//!
//! A repetition is A, B, A again, and every second one runs backwards: `A B A2, A2 B A, …`. The
//! ratio B/A of a repetition is free of drift to first order because the order alternates; the
//! ratio A2/A of the same repetition shows what the machine alone does to such a ratio.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::error::{Error, Result};
use crate::library::Source;
use crate::plan::{Job, Scope, Task};
use crate::progress::Progress;
use crate::record::{self, Machine, Record, Run, SCHEMA, Side};
use crate::session::{Runner, Session};
use crate::verbs::Verbs;

/// What to run.
#[derive(Debug, Clone)]
pub struct Request {
    /// A, and B for a comparison.
    pub sources: Vec<Source>,
    /// The libibverbs.
    pub verbs: Verbs,
    /// Device index of each rank.
    pub devices: [Option<usize>; 2],
    /// How thorough.
    pub scope: Scope,
    /// The command line, for the record.
    pub command: Vec<String>,
}

/// The order of the sessions: repetition and side (`A`, `B`, `A2`), for one or two sources.
pub fn order(sources: usize, repetitions: usize) -> Vec<(usize, &'static str)> {
    let forward: &[&str] = if sources < 2 { &["A"] } else { &["A", "B", "A2"] };
    let mut order = Vec::new();
    for repetition in 0..repetitions {
        let mut round: Vec<_> = forward.iter().map(|side| (repetition, *side)).collect();
        if repetition % 2 == 1 {
            round.reverse();
        }
        order.extend(round);
    }
    order
}

/// Runs it all.
///
/// # Errors
/// Whatever makes the run invalid: a worker's failure, a refused identity, wrong data.
pub fn run(request: &Request, runner: &Runner) -> Result<Record> {
    let start = Instant::now();
    let machine = Machine::here();
    request.verbs.clean_stale();
    let started_unix = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let order = order(request.sources.len(), request.scope.repetitions);
    let verifying = request.scope.verifying();
    let measuring = request.scope.measuring();
    // A verification reports some steps of its own, so it counts as several.
    let per_check = 12;
    let total = request.sources.len() * per_check + order.len() * measuring.len();
    let mut progress = Progress::new(total as u64);
    let mut reached = 0;
    let mut sides = Vec::new();
    for (source, label) in request.sources.iter().zip(["A", "B"]) {
        progress.phase(format!("verifying {label}"));
        let session = one(request, runner, source, &verifying, &mut progress)?;
        let side = Side::new(label, source, &session.opened, session.checks)?;
        require_right_data(&side)?;
        sides.push(side);
        reached += per_check;
        progress.reach(reached as u64);
    }
    require_same_device(&sides)?;
    let mut sessions = Vec::new();
    for (repetition, label) in order {
        let side = &sides[usize::from(label == "B")];
        progress.phase(format!("{label} {}/{}", repetition + 1, request.scope.repetitions));
        let session = one(request, runner, &side.source, &measuring, &mut progress)?;
        require_same_side(side, &session)?;
        sessions.push(Run {
            side: label.into(),
            repetition,
            seconds: session.seconds,
            samples: session.samples,
            traffic: session.traffic,
        });
        reached += measuring.len();
        progress.reach(reached as u64);
    }
    progress.finish();
    sides.iter().try_for_each(require_same_file)?;
    Ok(Record {
        schema: SCHEMA.into(),
        tool: env!("CARGO_PKG_VERSION").into(),
        command: request.command.clone(),
        started_unix,
        seconds: start.elapsed().as_secs_f64(),
        machine,
        verbs: request.verbs.clone(),
        settings: request
            .verbs
            .settings()
            .into_iter()
            .map(|(name, value)| (name.into(), value.to_string_lossy().into_owned()))
            .collect(),
        scope: request.scope.clone(),
        rows: record::rows(&sessions),
        sides,
        sessions,
    })
}

fn one(
    request: &Request,
    runner: &Runner,
    source: &Source,
    tasks: &[Task],
    progress: &mut Progress,
) -> Result<Session> {
    let job = Job {
        source: source.clone(),
        verbs: request.verbs.clone(),
        devices: request.devices,
        fused: false,
        slice_ms: request.scope.slice_ms,
        tasks: tasks.to_vec(),
    };
    runner.run(&job, &mut |what| progress.step(what))
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
    if a.identity.file == b.identity.file && a.identity.symbol == b.identity.symbol {
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
    let opened = &session.opened[0];
    if opened.identity == side.identity && opened.verbs == side.verbs {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "{} was {:?} when it was verified and is {:?} now",
        side.label, side.identity, opened.identity
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_alternates() {
        let sides =
            |sources, repetitions| -> Vec<&str> { order(sources, repetitions).iter().map(|(_, side)| *side).collect() };
        assert_eq!(sides(2, 3), ["A", "B", "A2", "A2", "B", "A", "A", "B", "A2"]);
        assert_eq!(sides(1, 2), ["A", "A"]);
        assert_eq!(order(2, 2)[3], (1, "A2"));
    }
}
