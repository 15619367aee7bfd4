//! The faults of a run whose ends recover.

use super::fabric::End;
use super::plan::{self, Recovers};
use crate::proto::random::Random;
use crate::proto::recovery::rail_mask::RailMask;
use std::time::Duration;

/// When a fault happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    Step(u64),
    /// After so many commands to devices: in the middle of a recovery.
    Command(u64),
}

/// A rail or a queue pair is any of the connection's: the number is taken modulo how many it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// A port goes down for some time; its device reports it.
    PortDown(End, usize, Duration),
    /// What an end sends over a rail is lost for some time. Nothing reports it.
    Cut(End, usize, Duration),
    /// A device is lost, and can be opened again after some time.
    DeviceLost(End, usize, Duration),
    /// A queue pair goes to the error state, which its device reports.
    QpFails(End, usize),
    /// The completion queue of a queue pair reports nothing more.
    QueueFails(End, usize),
    /// The same of the next queue over which all that was sent is complete, as after the test of
    /// new queue pairs.
    IdleQueueFails(End),
    /// The next poll of the completion queue of a queue pair fails, and may lose a completion.
    PollFails(End, usize, bool),
    /// No acknowledgement reaches a queue pair any more.
    AcksLost(End, usize),
    /// An end takes the connection for stalled.
    Stalled(End),
    /// The control connection breaks for some time.
    ControlBreaks(Duration),
    /// An end does nothing for some time.
    Stops(End, Duration),
    /// The sender asks for another path for a lane.
    Moves(u8),
    /// The devices of an end refuse so many commands.
    Refuses(End, u32),
    /// The receiver's devices acknowledge messages and lose them, until all of its queue pairs are
    /// destroyed.
    Forgets,
    /// The process of an end is killed.
    Dies(End),
}

/// What happens when.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) faults: Vec<(When, Fault)>,
    pub(super) recovers: Recovers,
    /// Whether a fault never ends, or data is lost: the connection may fail.
    pub(super) may_fail: bool,
    /// Whether no queue pair may be made while the control connection is broken.
    pub(super) is_quiet_until_back: bool,
    /// Whether the ends are quick, their devices report late, and their drivers flush what has
    /// arrived.
    pub(super) is_hasty: bool,
}

impl Plan {
    pub(super) fn nothing(_: &mut Random, _: &plan::Plan) -> Self {
        let calm = Self::of(Vec::new());
        Self { recovers: Recovers { stall_ms: 0, ..calm.recovers }, ..calm }
    }

    fn of(faults: Vec<(When, Fault)>) -> Self {
        let left_out = RailMask::NONE;
        let recovers = Recovers { give_up_s: 120, stall_ms: 60, most_starting: 1, left_out };
        Self { faults, recovers, may_fail: false, is_quiet_until_back: false, is_hasty: false }
    }

    /// One to six faults that end.
    pub(super) fn survivable(random: &mut Random, plan: &plan::Plan) -> Self {
        let last = 30 * plan.messages.len() as u64;
        let mut faults = vec![(When::Step(random.below(last)), fault(random))];
        for _ in 0..random.below(6) {
            let when = if random.one_in(3) {
                When::Step(random.below(last))
            } else {
                When::Command(random.below(100))
            };
            faults.push((when, fault(random)));
        }
        let left_out = if random.one_in(4) { some_rails(random) } else { RailMask::NONE };
        let this = Self::of(faults);
        Self { recovers: Recovers { left_out, ..this.recovers }, ..this }
    }

    /// Ports fall for less than the devices' retries last, while many other connections begin to
    /// recover.
    pub(super) fn soon_over(random: &mut Random, plan: &plan::Plan) -> Self {
        let last = 30 * plan.messages.len() as u64;
        let faults = (0..1 + random.below(3)).map(|_| {
            let (end, index) = (end(random), random.index(64));
            let time = Duration::from_micros(20 + random.below(100));
            (When::Step(random.below(last)), Fault::PortDown(end, index, time))
        });
        let this = Self::of(faults.collect());
        let recovers = Recovers { most_starting: 0, stall_ms: 60_000, ..this.recovers };
        Self { recovers, ..this }
    }

    /// The port of the only rail in use falls for less time than a connection waits, while many
    /// other connections begin to recover. Other rails work, which the ends may not know yet.
    pub(super) fn has_another(random: &mut Random, plan: &plan::Plan) -> Self {
        let last = if random.one_in(2) { 100 } else { 200 * plan.messages.len() as u64 };
        let when = When::Step(random.below(last));
        let fault = Fault::PortDown(End::Sender, 0, Duration::from_millis(1500));
        let left_out = RailMask::first(super::fabric::DEVICES as u8) - RailMask::only(0);
        let this = Self::of(vec![(when, fault)]);
        let recovers = Recovers { most_starting: 0, stall_ms: 60_000, left_out, ..this.recovers };
        Self { recovers, ..this }
    }

    /// A port falls for seconds when everything is delivered, while many other connections begin to
    /// recover.
    pub(super) fn falls_late(random: &mut Random, plan: &plan::Plan) -> Self {
        let when = When::Step(100 * plan.messages.len() as u64 + 1000);
        let fault = Fault::PortDown(end(random), random.index(64), Duration::from_secs(10));
        let this = Self::of(vec![(when, fault)]);
        Self { recovers: Recovers { most_starting: 0, ..this.recovers }, ..this }
    }

    /// Nothing fails, and the connection begins on some of its rails.
    pub(super) fn begins_on_some(random: &mut Random, plan: &plan::Plan) -> Self {
        let calm = Self::nothing(random, plan);
        Self { recovers: Recovers { left_out: some_rails(random), ..calm.recovers }, ..calm }
    }

    /// Many short faults, at any step of the ends.
    pub(super) fn restless(random: &mut Random, _: &plan::Plan) -> Self {
        let mut faults = vec![(When::Step(random.below(100)), Fault::Stalled(end(random)))];
        for _ in 0..20 {
            let mut fault = fault(random);
            if let Fault::PortDown(.., time)
            | Fault::Cut(.., time)
            | Fault::DeviceLost(.., time)
            | Fault::ControlBreaks(time)
            | Fault::Stops(_, time) = &mut fault
            {
                *time = Duration::from_micros(50 + random.below(2000));
            }
            faults.push((When::Command(random.below(400)), fault));
        }
        Self::of(faults)
    }

    /// The ends fence often, soon after messages have arrived.
    pub(super) fn hasty(random: &mut Random, plan: &plan::Plan) -> Self {
        let last = 30 * plan.messages.len() as u64;
        let faults = (0..10).map(|_| {
            let fault = if random.one_in(2) { moves(random) } else { Fault::Stalled(end(random)) };
            (When::Step(random.below(last)), fault)
        });
        Self { is_hasty: true, ..Self::of(faults.collect()) }
    }

    /// Requests for other queue pairs, while the control connection breaks for short times and
    /// rails come and go.
    pub(super) fn with_requests(random: &mut Random, plan: &plan::Plan) -> Self {
        let last = 30 * plan.messages.len() as u64;
        let mut short = |most| Duration::from_micros(50 + random.below(most));
        let (port, control) = (short(20_000), short(4000));
        let kind = |random: &mut Random| match random.below(9) {
            0..=4 => moves(random),
            5 | 6 => Fault::ControlBreaks(control),
            _ => Fault::PortDown(end(random), random.index(64), port),
        };
        let when = |random: &mut Random| match random.one_in(2) {
            true => When::Step(random.below(last)),
            false => When::Command(random.below(400)),
        };
        let faults = (0..20).map(|_| (when(random), kind(random))).collect();
        Self::of(faults)
    }

    /// Faults that end, at ends that give up before.
    pub(super) fn impatient(random: &mut Random, plan: &plan::Plan) -> Self {
        let mut faults = Self::survivable(random, plan);
        for (_, fault) in &mut faults.faults {
            if let Fault::PortDown(.., time)
            | Fault::Cut(.., time)
            | Fault::DeviceLost(.., time)
            | Fault::ControlBreaks(time)
            | Fault::Stops(_, time) = fault
            {
                *time *= 10;
            }
        }
        faults.recovers.give_up_s = 1;
        Self { may_fail: true, ..faults }
    }

    /// The control connection carries nothing for longer than an end recovers, and nothing fails;
    /// the sender asks for other queue pairs.
    pub(super) fn unheard(random: &mut Random, plan: &plan::Plan) -> Self {
        let last = 30 * plan.messages.len() as u64;
        let breaks = (When::Step(0), Fault::ControlBreaks(Duration::from_secs(20)));
        let changes = (0..1 + random.below(5))
            .map(|_| (When::Step(random.below(last)), moves(random)))
            .collect::<Vec<_>>();
        let faults = std::iter::once(breaks).chain(changes).collect();
        Self { is_quiet_until_back: true, ..Self::of(faults) }
    }

    /// Every rail is gone for good, or an end dies.
    pub(super) fn endless(random: &mut Random, plan: &plan::Plan) -> Self {
        let step = random.below(30 * plan.messages.len() as u64);
        let (end, kind) = (end(random), random.below(4));
        let fault = |rail| match kind {
            0 => Fault::PortDown(end, rail, Duration::MAX),
            1 => Fault::Cut(end, rail, Duration::MAX),
            2 => Fault::DeviceLost(end, rail, Duration::MAX),
            _ => Fault::Dies(end),
        };
        let count = if kind < 3 { super::fabric::DEVICES } else { 1 };
        let faults = (0..count).map(|rail| (When::Step(step), fault(rail))).collect();
        let this = Self::of(faults);
        Self { recovers: Recovers { give_up_s: 3, ..this.recovers }, may_fail: true, ..this }
    }

    /// Polls of the receiver lose completions.
    pub(super) fn lossy(random: &mut Random, plan: &plan::Plan) -> Self {
        let last = 30 * plan.messages.len() as u64;
        let faults = (0..2 + random.below(5)).map(|_| {
            let fault = Fault::PollFails(End::Receiver, random.index(64), true);
            (When::Step(random.below(last)), fault)
        });
        Self::of(faults.collect())
    }

    /// Queues fail during recoveries, also after the test of new queue pairs on one rail.
    pub(super) fn tested_queues_fail(random: &mut Random, _: &plan::Plan) -> Self {
        let first = (When::Step(random.below(100)), Fault::Stalled(end(random)));
        let others =
            (0..6).map(|_| (When::Command(random.below(200)), Fault::IdleQueueFails(end(random))));
        Self::of(std::iter::once(first).chain(others).collect())
    }

    /// The receiver's devices lose data that they have acknowledged, and fail then.
    pub(super) fn forgetful(random: &mut Random, plan: &plan::Plan) -> Self {
        let step = random.below(40 * plan.messages.len() as u64);
        let later = step + random.below(100);
        let faults = vec![
            (When::Step(step), Fault::Forgets),
            (When::Step(later), Fault::Stalled(End::Receiver)),
        ];
        Self { may_fail: true, ..Self::of(faults) }
    }
}

fn end(random: &mut Random) -> End {
    End::BOTH[random.index(2)]
}

fn some_rails(random: &mut Random) -> RailMask {
    RailMask(1 + random.below((1 << super::fabric::DEVICES) - 1) as u8)
}

fn moves(random: &mut Random) -> Fault {
    Fault::Moves(random.below(16) as u8)
}

fn fault(random: &mut Random) -> Fault {
    let (end, which) = (end(random), random.index(64));
    let most = [5, 200, 6000][random.index(3)];
    let time = Duration::from_micros(100 + random.below(1000 * most));
    match random.below(17) {
        0..=2 => Fault::PortDown(end, which, time),
        3 => Fault::Cut(end, which, time),
        4 | 5 => Fault::QpFails(end, which),
        6 => Fault::AcksLost(end, which),
        7 | 8 => Fault::Stalled(end),
        9 | 10 => Fault::ControlBreaks(time),
        11 => Fault::Stops(end, time),
        12 => moves(random),
        13 => Fault::QueueFails(end, which),
        14 => Fault::DeviceLost(end, which, time),
        15 => Fault::PollFails(end, which, which < 16),
        _ => Fault::Refuses(end, 1 + random.below(3) as u32),
    }
}
