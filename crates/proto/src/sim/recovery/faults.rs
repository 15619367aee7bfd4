//! The faults of a run.

use super::super::fabric::End;
use super::super::plan;
use crate::random::Random;
use std::time::Duration;

/// When a fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Step(u64),
    /// After so many actions of the machines of both ends: in the middle of a recovery.
    Action(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A port goes down for some time; its end learns of it.
    PortDown(End, usize, Duration),
    /// What an end sends over a rail is lost for some time. No one is told.
    Cut(End, usize, Duration),
    /// A queue pair goes to the error state.
    QpFails(End, usize),
    /// No acknowledgement reaches a queue pair any more.
    AcksLost(End, usize),
    /// An end takes the connection for stalled.
    Stalled(End),
    /// The control connection breaks for some time.
    ControlBreaks(Duration),
    /// An end does nothing for some time.
    Stops(End, Duration),
    /// An end asks for other queue pairs.
    Changes(End),
    /// The receiver finds that it does not hear any more what arrives.
    Unreported,
    /// An end cannot create or connect queue pairs, or they do not reach the peer, so many times.
    Refuses(End, u32),
    /// The receiver's device acknowledges data and loses it, until all of its queue pairs are
    /// destroyed.
    Forgets,
}

/// What happens when.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) faults: Vec<(When, Fault)>,
    /// Whether a fault never ends, or data is lost: the connection may fail.
    pub(super) may_fail: bool,
    pub(super) give_up: Duration,
}

impl Plan {
    pub(super) fn nothing() -> Self {
        Self { faults: Vec::new(), may_fail: false, give_up: Duration::from_secs(120) }
    }

    /// One to six faults that end.
    pub(super) fn survivable(random: &mut Random, plan: &plan::Plan) -> Self {
        let last = 30 * plan.messages.len() as u64;
        let mut faults = vec![(When::Step(random.below(last)), fault(random, plan))];
        for _ in 0..random.below(6) {
            let when = if random.one_in(3) {
                When::Step(random.below(last))
            } else {
                When::Action(random.below(50))
            };
            faults.push((when, fault(random, plan)));
        }
        Self { faults, ..Self::nothing() }
    }

    /// Many faults that are short, in the middle of what the ends do.
    pub(super) fn restless(random: &mut Random, plan: &plan::Plan) -> Self {
        let mut faults = vec![(When::Step(random.below(100)), Fault::Stalled(end(random)))];
        for _ in 0..20 {
            let mut fault = fault(random, plan);
            if let Fault::PortDown(.., time)
            | Fault::Cut(.., time)
            | Fault::ControlBreaks(time)
            | Fault::Stops(_, time) = &mut fault
            {
                *time = Duration::from_micros(50 + random.below(2000));
            }
            faults.push((When::Action(random.below(200)), fault));
        }
        Self { faults, ..Self::nothing() }
    }

    /// Changes, while the control connection breaks for short times and rails come and go.
    pub(super) fn with_change_requests(random: &mut Random, plan: &plan::Plan) -> Self {
        let last = 30 * plan.messages.len() as u64;
        let mut short = |most| Duration::from_micros(50 + random.below(most));
        let (port, control) = (short(20_000), short(4000));
        let kinds = |random: &mut Random| match random.below(9) {
            0..=3 => Fault::Changes(End::Sender),
            4 => Fault::Changes(End::Receiver),
            5 | 6 => Fault::ControlBreaks(control),
            _ => Fault::PortDown(end(random), random.index(plan.rails()), port),
        };
        let when = |random: &mut Random| match random.one_in(2) {
            true => When::Step(random.below(last)),
            false => When::Action(random.below(200)),
        };
        let faults = (0..30).map(|_| (when(random), kinds(random)));
        Self { faults: faults.collect(), ..Self::nothing() }
    }

    /// Faults that end, at ends that give up before, or at once.
    pub(super) fn impatient(random: &mut Random, plan: &plan::Plan) -> Self {
        let most = [300, 10_000, 300_000][random.index(3)];
        let give_up = Duration::from_micros(random.below(most));
        let faults = if random.one_in(2) {
            Self::restless(random, plan)
        } else {
            Self::survivable(random, plan)
        };
        Self { may_fail: true, give_up, ..faults }
    }

    /// A rail is lost. When the others run, the control connection breaks, and an end that begins
    /// another attempt gives up before it is back.
    pub(super) fn parted(random: &mut Random, _plan: &plan::Plan) -> Self {
        let action = When::Action(14 + random.below(10));
        let faults = vec![
            (
                When::Step(random.below(100)),
                Fault::PortDown(end(random), 0, Duration::from_secs(10)),
            ),
            (action, Fault::ControlBreaks(Duration::from_secs(1))),
            (action, Fault::Stalled(end(random))),
        ];
        Self { faults, may_fail: true, give_up: Duration::from_millis(40) }
    }

    /// The control connection carries nothing for longer than an end recovers, and nothing fails;
    /// ends ask for other queue pairs.
    pub(super) fn unheard(random: &mut Random, plan: &plan::Plan) -> Self {
        let last = 30 * plan.messages.len() as u64;
        let breaks = (When::Step(0), Fault::ControlBreaks(Duration::from_secs(1000)));
        let changes = (0..1 + random.below(5))
            .map(|_| (When::Step(random.below(last)), Fault::Changes(end(random))));
        Self { faults: std::iter::once(breaks).chain(changes).collect(), ..Self::nothing() }
    }

    /// Every rail is cut for good.
    pub(super) fn endless(random: &mut Random, plan: &plan::Plan) -> Self {
        let step = random.below(30 * plan.messages.len() as u64);
        let end = end(random);
        let is_seen = random.one_in(2);
        let cut = |rail| match is_seen {
            true => Fault::PortDown(end, rail, Duration::MAX),
            false => Fault::Cut(end, rail, Duration::MAX),
        };
        let faults = (0..plan.rails()).map(|rail| (When::Step(step), cut(rail))).collect();
        Self { faults, may_fail: true, give_up: Duration::from_secs(10) }
    }

    /// The receiver's device loses data that it has acknowledged, and fails then.
    pub(super) fn forgetful(random: &mut Random, plan: &plan::Plan) -> Self {
        let step = random.below(40 * plan.messages.len() as u64);
        let later = step + random.below(100);
        let faults = vec![
            (When::Step(step), Fault::Forgets),
            (When::Step(later), Fault::Stalled(End::Receiver)),
        ];
        Self { faults, may_fail: true, ..Self::nothing() }
    }
}

fn end(random: &mut Random) -> End {
    if random.one_in(2) { End::Sender } else { End::Receiver }
}

fn fault(random: &mut Random, plan: &plan::Plan) -> Fault {
    let (end, rail, qp) = (end(random), random.index(plan.rails()), random.index(plan.qps()));
    let most = [5, 200, 6000][random.index(3)];
    let time = Duration::from_micros(100 + random.below(1000 * most));
    match random.below(13) {
        0..=2 => Fault::PortDown(end, rail, time),
        3 => Fault::Cut(end, rail, time),
        4 => Fault::QpFails(end, qp),
        5 => Fault::AcksLost(end, qp),
        6 | 7 => Fault::Stalled(end),
        8 | 9 => Fault::ControlBreaks(time),
        10 => Fault::Stops(end, time),
        11 => {
            if random.one_in(4) {
                Fault::Unreported
            } else {
                Fault::Changes(end)
            }
        }
        _ => Fault::Refuses(end, 1 + random.below(3) as u32),
    }
}
