//! One run: NCCL at both ends, which calls, and the schedule, which picks what happens next.
//!
//! In a run with recovery, [`crate::net::recovery`] as it ships runs in steps: a job of a worker is
//! a step. During each command that it gives to a device, anything else may happen: NCCL's calls at
//! both ends, packets, frames, events, faults. What never waits for a device is one step. Events of
//! devices reach the ends through their watchers, which have no threads here.

use super::control::{Cause, Control};
use super::device;
use super::ends::{Connection, Receiver, Sender};
use super::fabric::{End, FLUSHED, Fabric, IMAGINARY, MAX_RETRIES, Polls, Written};
use super::faults::Fault;
use super::laws::Laws;
use super::plan::{Plan, place_of};
use super::recovery_faults::{self as recovered, When};
use crate::error::Error;
use crate::net::background::workers::Workers;
use crate::net::device::nic::Nic;
use crate::net::peer::state::PeerState;
use crate::net::recovery::conn::ConnRecovery;
use crate::proto::cts::{Cts, cts_halves};
use crate::proto::frame::Kind;
use crate::proto::random::Random;
use crate::proto::recovery::message::Message;
use crate::proto::requests::RequestId;
use crate::proto::{MAX_GROUP, QpIndex, RING_SLOTS};
use crate::verbs::clock;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps after the last fault in which a run ends. Without this law, an end that waits for ever
/// would go unnoticed.
const MOST_STEPS: u64 = 4_000_000;
/// After this number of steps without an event, time jumps to the next timeout.
const IDLE_STEPS: u32 = 100;
/// A step takes at most so long.
const LONGEST_STEP_MS: u64 = 1000;

/// How a run has ended.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Outcome {
    pub(super) is_all_delivered: bool,
    /// Whether a message was completed by the receiver and reported as failed by the sender.
    pub(super) has_disagreement: bool,
    pub(super) late_writes: u32,
    /// The first error of each end.
    pub(super) causes: [Option<Cause>; 2],
    /// With recovery: the first errors, how often the connection has recovered, how many packets
    /// were late, how many messages were sent again, and how many steps the run has taken.
    pub(super) failures: [Option<String>; 2],
    pub(super) recoveries: u32,
    /// Those before the last port came back.
    pub(super) before_back: u32,
    /// The longest time that an end counted without a break as one that has just begun to recover.
    pub(super) longest_start: Duration,
    pub(super) late_packets: u32,
    pub(super) resent: u32,
    /// Whether completions were read one after the other, or polled in batches.
    pub(super) polled: [bool; 2],
    pub(super) polls: [Polls; 2],
    pub(super) steps: u64,
}

/// Whether an error with this `text` says that the receiver has lost what its device had
/// acknowledged. `polls`: the receiver's.
pub(super) fn says_lost(text: &str, polls: Polls) -> bool {
    let is_acknowledged = text.contains("acknowledged by the peer's device and lost there");
    is_acknowledged || polls.have_lost && text.contains("a received message is lost")
}

pub(super) struct World {
    plan: Plan,
    random: Random,
    laws: Laws,
    control: Control,
    /// The ends, until they are closed or die.
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    peers: [Arc<PeerState>; 2],
    nics: [Arc<Nic>; 2],
    qps: [Vec<usize>; 2],
    rails: usize,
    /// The address of the ring.
    ring: u64,
    now: Instant,
    /// The messages that are not sent, by tag.
    to_send: Vec<VecDeque<usize>>,
    /// The one that the sender tries, if it tries one at a time.
    chosen: Option<usize>,
    sending: Vec<(RequestId, usize)>,
    next_group: usize,
    receiving: VecDeque<(RequestId, Range<usize>)>,
    causes: [Option<Cause>; 2],
    /// Ports that are down for now, and for good.
    flapping: Vec<(End, usize)>,
    down: Vec<(End, usize)>,
    has_deregistered: bool,
    /// `None`: the first fault ends the connection.
    recovery: Option<Recovering>,
}

impl World {
    /// One whose ends recover from `faults`.
    pub(super) fn with_recovery(random: Random, mut plan: Plan, faults: recovered::Plan) -> Self {
        plan.terms.recovers = Some(faults.recovers);
        if !faults.recovers.left_out.is_empty() {
            plan.terms.ends.iter_mut().for_each(|(rails, _)| *rails = 2.max(*rails));
        }
        let mut world = Self::new(random, plan);
        (world.laws.may_fail, world.laws.may_repeat) = (faults.may_fail, true);
        let (nics, peers) = (world.nics.clone(), world.peers.clone());
        let recovery = Recovering::new(&mut world.random, faults, nics, peers);
        world.recovery = Some(recovery);
        world
    }

    pub(super) fn new(mut random: Random, plan: Plan) -> Self {
        device::with(|fabric| fabric.begin(Random::new(random.below(u64::MAX))));
        let now = Instant::now();
        clock::simulated::set(Some(now));
        let Connection { sender, receiver, peers, nics, qps, rails, ring } = Connection::new(&plan);
        let mut to_send = Vec::new();
        for (i, message) in plan.messages.iter().enumerate() {
            let tag = message.tag as usize;
            to_send.resize(to_send.len().max(tag + 1), VecDeque::new());
            to_send[tag].push_back(i);
        }
        Self {
            laws: Laws::new(&plan),
            peers: peers.each_ref().map(|(peer, _)| Arc::clone(peer)),
            nics,
            control: Control::new(peers),
            sender: Some(sender),
            receiver: Some(receiver),
            plan,
            random,
            qps,
            rails,
            ring,
            now,
            to_send,
            chosen: None,
            sending: Vec::new(),
            next_group: 0,
            receiving: VecDeque::new(),
            causes: [None; 2],
            flapping: Vec::new(),
            down: Vec::new(),
            has_deregistered: false,
            recovery: None,
        }
    }

    /// Runs until both ends are closed or dead. `faults` happen at the given steps, which ascend.
    pub(super) fn run(mut self, faults: &[(u64, Fault)]) -> Outcome {
        let mut faults = faults.iter().copied().peekable();
        let mut last_fault = 0;
        for step in 0.. {
            if self.sender.is_none() && self.receiver.is_none() {
                device::with(|fabric| fabric.check_released());
                clock::simulated::set(None);
                return Outcome {
                    is_all_delivered: self.laws.is_all_delivered(),
                    has_disagreement: self.laws.has_disagreement(),
                    late_writes: self.laws.late_writes,
                    causes: self.causes,
                    ..Outcome::default()
                };
            }
            while let Some((_, fault)) = faults.next_if(|(when, _)| *when <= step) {
                last_fault = step;
                self.apply(fault);
            }
            self.step();
            device::with(|fabric| fabric.check());
            assert!(
                step - last_fault < MOST_STEPS,
                "hangs: {} receives, {} sends, errors {:?}",
                self.receiving.len(),
                self.sending.len(),
                self.causes
            );
        }
        unreachable!("steps are not limited")
    }

    fn step(&mut self) {
        self.now += Duration::from_millis(self.random.below(LONGEST_STEP_MS));
        clock::simulated::set(Some(self.now));
        let qp = self.random.index(self.qps[0].len());
        // Clear-to-sends and probes are on the first queue pair of each rail.
        let first_qp = self.random.index(self.rails);
        match self.random.below(16) {
            0 => self.post_receive(),
            1 | 2 => self.submit(),
            3 => self.test_receive(),
            4 => self.test_sends(),
            5 => self.deliver(End::Receiver, first_qp),
            6 => device::with(|fabric| fabric.deliver_ack(self.qps[0][qp])),
            7 => device::with(|fabric| fabric.deliver_ack(self.qps[1][first_qp])),
            8 => self.watch(),
            9 => self.close(),
            10 => self.retry(qp),
            _ if self.random.below(16) >= self.plan.speeds[qp % self.rails] => {}
            _ => self.deliver(End::Sender, qp),
        }
    }

    fn apply(&mut self, fault: Fault) {
        self.laws.may_fail |= fault.is_fatal();
        let qp_of =
            |end: End, which: usize| self.qps[end as usize][which % self.qps[end as usize].len()];
        match fault {
            Fault::PortFlaps(end, rail) => {
                let rail = rail % self.rails;
                device::with(|fabric| fabric.set_port(end.device(rail), false));
                self.flapping.push((end, rail));
            }
            Fault::ControlLost => self.control.lose(),
            Fault::PortDown(end, rail) => {
                let rail = rail % self.rails;
                device::with(|fabric| fabric.set_port(end.device(rail), false));
                self.down.push((end, rail));
            }
            Fault::QpFails(end, qp) => {
                let part = device::with(|fabric| fabric.fail(qp_of(end, qp), FLUSHED, true));
                self.handle_written(part);
            }
            Fault::AcksLost(end, qp) => device::with(|fabric| fabric.lose_acks(qp_of(end, qp))),
            Fault::Killed(end) | Fault::HostFails(end) => {
                self.control.kill(end, matches!(fault, Fault::HostFails(_)));
                match end {
                    End::Sender => self.sender.take().into_iter().for_each(Sender::close),
                    End::Receiver => {
                        self.receiver.take().into_iter().for_each(Receiver::close);
                        self.laws.receiver_lives = false;
                    }
                }
            }
        }
    }

    /// Sends the frames of `end`'s last call on their way.
    fn handle_call(&mut self, end: End) {
        let frames = self.control.handle_call(end);
        if self.recovery.is_some() {
            self.check_frames(end, frames);
        }
    }

    fn post_receive(&mut self) {
        let Some(receiver) = &self.receiver else { return };
        if self.next_group == self.plan.groups.len() {
            return;
        }
        let outcome = receiver.irecv(self.next_group, &self.plan);
        self.handle_call(End::Receiver);
        match outcome {
            Ok(_) if self.has_failed(End::Receiver) => panic!("irecv succeeds after an error"),
            Ok(None) => {}
            Ok(Some(id)) => {
                assert!(
                    self.receiving.iter().all(|(other, _)| *other != id),
                    "a request id is used twice at once"
                );
                self.receiving.push_back((id, self.plan.groups[self.next_group].clone()));
                self.next_group += 1;
            }
            Err(error) => self.handle_error(End::Receiver, &error),
        }
    }

    fn submit(&mut self) {
        let Some(message) = self.choose() else { return };
        let Some(sender) = &self.sender else { return };
        let is_draining = self.recovery_of(End::Sender).is_some_and(|it| it.is_draining());
        let outcome = sender.isend(message, &self.plan);
        self.handle_call(End::Sender);
        assert!(!(is_draining && matches!(outcome, Ok(Some(_)))), "isend before a change begins");
        match outcome {
            Ok(_) if self.has_failed(End::Sender) => panic!("isend succeeds after an error"),
            Ok(None) => {}
            Ok(Some(id)) => {
                assert!(
                    self.sending.iter().all(|(other, _)| *other != id),
                    "a request id is used twice at once"
                );
                self.laws.handle_sent(message);
                self.sending.push((id, message));
                self.to_send[self.plan.messages[message].tag as usize].pop_front();
                self.chosen = None;
            }
            Err(error) => self.handle_error(End::Sender, &error),
        }
    }

    /// The message to be sent next: the first one of any tag, or the one that the sender tries.
    fn choose(&mut self) -> Option<usize> {
        if self.chosen.is_some() {
            return self.chosen;
        }
        let firsts = self.to_send.iter().filter_map(|queue| queue.front().copied());
        let oldest = firsts.clone().min()?;
        let is_one_at_a_time = self.plan.one_at_a_time;
        // A sender that waits for one must not look further ahead than the window of
        // clear-to-sends.
        let mut choice = firsts.filter(|i| !is_one_at_a_time || *i < oldest + MAX_GROUP);
        let message = choice.nth(self.random.index(choice.clone().count()))?;
        self.chosen = is_one_at_a_time.then_some(message);
        Some(message)
    }

    /// As NCCL does: only the oldest.
    fn test_receive(&mut self) {
        let (Some(receiver), Some((id, messages))) =
            (&self.receiver, self.receiving.front().cloned())
        else {
            return;
        };
        if self.plan.tests_rarely && !self.random.one_in(16) {
            return;
        }
        let outcome = receiver.test(id);
        self.handle_call(End::Receiver);
        match outcome {
            Ok(None) => return,
            Ok(Some(lengths)) => {
                assert_eq!(lengths.len(), messages.len(), "a group has another number of lengths");
                messages
                    .zip(lengths)
                    .for_each(|(i, length)| self.laws.handle_receive_completed(i, length));
            }
            Err(error) => {
                self.handle_error(End::Receiver, &error);
                messages.for_each(|i| self.laws.handle_receive_failed(i));
            }
        }
        self.receiving.pop_front();
    }

    fn test_sends(&mut self) {
        let mut i = 0;
        while let (Some(sender), Some((id, message))) = (&self.sender, self.sending.get(i).copied())
        {
            let outcome = sender.test(id);
            self.handle_call(End::Sender);
            match outcome {
                Ok(None) => {
                    i += 1;
                    continue;
                }
                Ok(Some(length)) => self.laws.handle_send_completed(message, length),
                Err(error) => {
                    self.handle_error(End::Sender, &error);
                    self.laws.handle_send_failed(message);
                }
            }
            self.sending.swap_remove(i);
        }
    }

    fn has_failed(&self, end: End) -> bool {
        let recovered = self.recovery.as_ref().map(|recovery| &recovery.failures[end as usize]);
        self.causes[end as usize].is_some() || recovered.is_some_and(Option::is_some)
    }

    fn handle_error(&mut self, end: End, error: &Error) {
        log::debug!("{end:?} reports: {error}");
        // Where a device has lost messages that it had acknowledged.
        let polls = device::with(|fabric| fabric.polls[End::Receiver as usize]);
        let is_lost = says_lost(&error.text(), polls);
        self.laws.may_fail |= self.laws.may_lie && is_lost;
        assert!(self.laws.may_fail, "{end:?} fails without a fault: {error}");
        if let Some(recovery) = &mut self.recovery {
            assert!(!error.text().contains("internal error"), "{end:?}: {error}");
            recovery.failures[end as usize].get_or_insert_with(|| error.text());
        }
        if self.recovery.is_some() {
            return;
        }
        self.causes[end as usize].get_or_insert_with(|| Cause::of(error));
    }

    /// The other end executes the next work request of `from`.
    fn deliver(&mut self, from: End, qp: usize) {
        let written = device::with(|fabric| fabric.deliver(self.qps[from as usize][qp]));
        self.handle_written(written);
    }

    fn handle_written(&mut self, written: Option<Written>) {
        match written {
            None | Some(Written::Nothing) => {}
            Some(Written::Message { source, target, length }) => {
                self.laws.handle_write(source, target, length)
            }
            Some(Written::Memory { target, before, after }) => {
                let halves = cts_halves(self.rails);
                let ring = self.ring..self.ring + (RING_SLOTS * halves * Cts::BYTES) as u64;
                if !ring.contains(&target) {
                    // A test of a path.
                    return;
                }
                let first = (target - self.ring) as usize / (halves * Cts::BYTES);
                Laws::handle_cts(first, halves, &before, &after);
            }
        }
    }

    /// The retransmission timers of a queue pair run out at both ends, and ports that flap come
    /// back in time.
    fn retry(&mut self, qp: usize) {
        let most_retries = device::with(|fabric| fabric.most_retries());
        if !self.flapping.is_empty() && (most_retries >= MAX_RETRIES / 2 || self.random.one_in(16))
        {
            for (end, rail) in self.flapping.drain(..).filter(|port| !self.down.contains(port)) {
                device::with(|fabric| fabric.set_port(end.device(rail), true));
            }
        }
        for end in [End::Receiver, End::Sender] {
            let part = device::with(|fabric| fabric.retry(self.qps[end as usize][qp]));
            self.handle_written(part);
        }
    }

    fn watch(&mut self) {
        let end = if self.random.one_in(2) { End::Sender } else { End::Receiver };
        let may_dial = self.random.one_in(40);
        self.control.watch(end, may_dial);
    }

    /// NCCL gives back what it does not need any more: regions whose receives have ended, and ends
    /// that have finished.
    fn close(&mut self) {
        if !self.random.one_in(4) {
            return;
        }
        let has_posted_all =
            self.has_failed(End::Receiver) || self.next_group == self.plan.groups.len();
        if let Some(receiver) = &mut self.receiver
            && has_posted_all
            && self.receiving.is_empty()
        {
            if !std::mem::replace(&mut self.has_deregistered, true) {
                return receiver.deregister();
            }
            log::debug!("the receiver is closed");
            self.receiver.take().into_iter().for_each(Receiver::close);
            return self.control.close(End::Receiver);
        }
        let has_sent_all =
            self.has_failed(End::Sender) || self.to_send.iter().all(VecDeque::is_empty);
        if has_sent_all && self.sending.is_empty() && self.sender.is_some() {
            log::debug!("the sender is closed");
            self.sender.take().into_iter().for_each(Sender::close);
            self.control.close(End::Sender);
        }
    }
}

/// A fault that ends by itself.
#[derive(Debug, Clone, Copy)]
enum Healing {
    Port(End, usize),
    Cut(End, usize),
    Device(End, usize),
    Control,
}

/// The additional state of a run with recovery.
struct Recovering {
    faults: Vec<(When, recovered::Fault)>,
    healings: Vec<(Instant, Healing)>,
    nics: [Arc<Nic>; 2],
    peers: [Arc<PeerState>; 2],
    /// How long a step takes.
    step: Duration,
    /// One in so many steps in which a frame may arrive, or a job run, is one in which it does.
    frame_steps: u64,
    job_steps: u64,
    /// The most that happens during a command.
    most_meanwhile: u64,
    /// An end does nothing until then.
    stopped_until: [Instant; 2],
    idle: u32,
    steps: u64,
    last_fault: u64,
    /// Commands before the first step, and queue pairs.
    set_up: (u64, usize),
    /// The latest attempt of each end for which a frame was sent; that of the latest offer, and of
    /// the latest missing list.
    attempts: [u32; 2],
    offered: u32,
    listed: u32,
    failures: [Option<String>; 2],
    recoveries: u32,
    /// Those before the last port came back.
    before_back: u32,
    /// Since when each end has counted as one that has just begun to recover.
    starting: [Option<Instant>; 2],
    /// Since when each end has counted as one that recovers, although its peer has gone.
    left: [Option<Instant>; 2],
    longest_start: Duration,
    late_packets: u32,
    resent: u32,
    is_quiet_until_back: bool,
}

/// What the next step is.
enum Step {
    Done,
    Taken,
    /// A job of this end runs.
    Job(End, Arc<Workers>),
    /// Nothing happens by itself for a while: the ready jobs of these run, or time jumps.
    Idle(Vec<(End, Arc<Workers>)>),
}

thread_local! {
    static WORLD: RefCell<Option<World>> = const { RefCell::new(None) };
}

fn with_world<R>(body: impl FnOnce(&mut World) -> R) -> R {
    WORLD.with_borrow_mut(|world| body(world.as_mut().expect("a run")))
}

/// Runs the next job of `end`, if one is ready. Returns whether one was, or when one is due.
fn run_job(end: End, workers: &Workers) -> (bool, Option<Instant>) {
    device::set_meanwhile(Some(|| with_world(World::meanwhile)));
    let ran = workers.run_next(clock::now());
    device::set_meanwhile(None);
    with_world(|world| world.handle_job(end));
    ran
}

impl Recovering {
    fn new(
        random: &mut Random,
        plan: recovered::Plan,
        nics: [Arc<Nic>; 2],
        peers: [Arc<PeerState>; 2],
    ) -> Self {
        let now = clock::now();
        let is_hasty = plan.is_hasty;
        // What a driver flushes it has seen.
        if is_hasty || random.one_in(3) {
            device::with(|fabric| fabric.flush_arrivals());
        }
        if is_hasty || random.one_in(3) {
            device::with(|fabric| fabric.be_slow());
        }
        let mut pick = |choices: [u64; 4]| choices[if is_hasty { 0 } else { random.index(4) }];
        let tick = pick([0, 100, 100, 3_000]);
        clock::simulated::set_tick(Duration::from_nanos(tick));
        // In a step one queue pair does something; those of a device work side by side.
        let qps = device::with(|fabric| fabric.qp_count()) as u64;
        let nanos = pick([2_000, 2_000, 10_000, 40_000]) * 2 / qps;
        Self {
            faults: plan.faults,
            healings: Vec::new(),
            nics,
            peers,
            step: Duration::from_nanos(nanos),
            frame_steps: pick([1, 1, 1, 20]),
            job_steps: pick([1, 1, 4, 30]),
            most_meanwhile: pick([0, 0, 2, 8]),
            stopped_until: [now; 2],
            idle: 0,
            steps: 0,
            last_fault: 0,
            set_up: device::with(|fabric| (fabric.commands, fabric.qp_count())),
            attempts: [0; 2],
            offered: 0,
            listed: 0,
            failures: [None, None],
            recoveries: 0,
            before_back: 0,
            starting: [None; 2],
            left: [None; 2],
            longest_start: Duration::ZERO,
            late_packets: 0,
            resent: 0,
            is_quiet_until_back: plan.is_quiet_until_back,
        }
    }

    /// Whether `end` does anything now.
    fn is_awake(&self, end: End) -> bool {
        self.stopped_until[end as usize] <= clock::now()
    }

    fn heal_after(&mut self, time: Duration, healing: Healing) {
        if time != Duration::MAX {
            self.healings.push((clock::now() + time, healing));
        }
    }
}

// A run with recovery.
impl World {
    /// Runs until both ends are closed, with recovery.
    pub(super) fn recover(self) -> Outcome {
        WORLD.set(Some(self));
        loop {
            match with_world(Self::step_recovering) {
                Step::Done => break,
                Step::Taken => {}
                Step::Job(end, workers) => drop(run_job(end, &workers)),
                Step::Idle(all) => {
                    let ran = all.iter().map(|(end, workers)| run_job(*end, workers));
                    let ran: Vec<_> = ran.collect();
                    if !ran.iter().any(|(is_any, _)| *is_any) {
                        with_world(|world| world.skip(ran.into_iter().filter_map(|(_, due)| due)));
                    }
                }
            }
        }
        let world = WORLD.take().expect("a run");
        let outcome = world.recovered();
        drop(world);
        device::with(|fabric| fabric.check_released());
        clock::simulated::set(None);
        clock::simulated::set_tick(Duration::ZERO);
        outcome
    }

    /// The time until `end` recovers if the other end acknowledges nothing from now on.
    #[cfg(test)]
    pub(super) fn time_to_recover(mut self, end: End) -> Duration {
        self.post_receive();
        while end == End::Sender && self.sending.is_empty() {
            let announced: Vec<_> = device::with(|fabric| fabric.live_of(End::Receiver).collect());
            announced.into_iter().for_each(|qp| self.deliver_on(qp));
            self.submit();
        }
        let begin = clock::now();
        while !self.peers[end as usize].is_recovering() {
            clock::simulated::advance(Duration::from_millis(1));
            match end {
                End::Sender => self.test_sends(),
                End::Receiver => self.test_receive(),
            }
        }
        let time = clock::now() - begin;
        self.sender.take().into_iter().for_each(Sender::close);
        self.receiver.take().into_iter().for_each(Receiver::close);
        clock::simulated::set(None);
        time
    }

    fn recovering(&mut self) -> &mut Recovering {
        self.recovery.as_mut().expect("a run with recovery")
    }

    fn recovered(&self) -> Outcome {
        let recovery = self.recovery.as_ref().expect("a run with recovery");
        Outcome {
            is_all_delivered: self.laws.is_all_delivered(),
            failures: recovery.failures.clone(),
            recoveries: recovery.recoveries,
            before_back: recovery.before_back,
            longest_start: recovery.longest_start,
            late_packets: recovery.late_packets,
            resent: recovery.resent,
            polled: device::with(|fabric| fabric.polled),
            polls: device::with(|fabric| fabric.polls),
            steps: recovery.steps,
            ..Outcome::default()
        }
    }

    fn step_recovering(&mut self) -> Step {
        device::with(|fabric| fabric.check());
        if self.sender.is_none() && self.receiver.is_none() {
            return Step::Done;
        }
        let recovery = self.recovering();
        recovery.steps += 1;
        let (steps, age) = (recovery.steps, recovery.steps - recovery.last_fault);
        assert!(age < MOST_STEPS, "hangs: {}", self.describe());
        self.pass_time();
        let before = self.activity();
        if steps.is_multiple_of(16) && self.may_close() {
            self.close();
        }
        let step = self.pick(true);
        let is_any = before != self.activity();
        let recovery = self.recovering();
        recovery.idle = if is_any { 0 } else { recovery.idle + 1 };
        if recovery.idle <= IDLE_STEPS {
            return step;
        }
        recovery.idle = 0;
        // Nobody handles the events of an end that is closed.
        let is_there = [self.sender.is_some(), self.receiver.is_some()];
        let recovery = self.recovering();
        let is_awake = |end: &End| is_there[*end as usize] && recovery.is_awake(*end);
        let awake: Vec<_> = End::BOTH.into_iter().filter(is_awake).collect();
        let workers = |end: &End| (*end, Arc::clone(&recovery.nics[*end as usize].workers));
        let all = awake.iter().map(workers).collect();
        let has_news = |end: &End| {
            self.control.has_news(*end) || device::with(|fabric| fabric.has_event_of(*end))
        };
        if awake.iter().any(has_news) {
            return step;
        }
        Step::Idle(all)
    }

    /// What happens during a command to a device.
    fn meanwhile(&mut self) {
        let most = self.recovering().most_meanwhile;
        for _ in 0..self.random.below(most + 1) {
            self.pass_time();
            let _ = self.pick(false);
        }
    }

    fn handle_job(&mut self, end: End) {
        self.handle_call(end);
        self.look_at_posts();
    }

    /// The time of a step passes, and faults happen that are due.
    fn pass_time(&mut self) {
        let recovery = self.recovering();
        clock::simulated::advance(recovery.step);
        let steps = recovery.steps;
        if recovery.faults.is_empty() {
            return;
        }
        let commands = device::with(|fabric| fabric.commands) - recovery.set_up.0;
        let is_due = |(when, _): &(When, recovered::Fault)| match when {
            When::Step(at) => *at <= steps,
            When::Command(at) => *at <= commands,
        };
        if let Some(i) = recovery.faults.iter().position(is_due) {
            let (_, fault) = recovery.faults.swap_remove(i);
            recovery.last_fault = steps;
            self.apply_recovered(fault);
        }
    }

    /// Changes whenever anything has happened.
    fn activity(&self) -> (u64, usize, usize, usize, bool) {
        let changes = device::with(|fabric| fabric.changes);
        let news = End::BOTH.iter().any(|end| self.control.has_news(*end));
        (changes, self.next_group, self.receiving.len(), self.sending.len(), news)
    }

    fn pick(&mut self, may_run_jobs: bool) -> Step {
        let recovery = self.recovering();
        let [sends, receives] = End::BOTH.map(|end| recovery.is_awake(end));
        let (frame_steps, job_steps) = (recovery.frame_steps, recovery.job_steps);
        match self.random.below(20) {
            0 if receives => self.post_receive(),
            1 if sends => self.submit(),
            2 if receives => self.test_receive(),
            3 if sends => self.test_sends(),
            4 | 5 => {
                let end = End::BOTH[self.random.index(2)];
                if self.recovering().is_awake(end) && self.random.one_in(frame_steps) {
                    let may_dial = self.random.one_in(4);
                    self.control.watch(end, may_dial);
                }
            }
            6..=8 if sends && may_run_jobs && self.random.one_in(job_steps) => {
                return self.job(End::Sender);
            }
            9..=11 if receives && may_run_jobs && self.random.one_in(job_steps) => {
                return self.job(End::Receiver);
            }
            12..=14 => {
                let qp = self.any(Fabric::live);
                qp.into_iter().for_each(|qp| self.deliver_on(qp));
            }
            15 if self.random.one_in(8) => {
                let qp = self.any(Fabric::detained);
                self.recovering().late_packets += qp.is_some() as u32;
                qp.into_iter().for_each(|qp| self.deliver_on(qp));
            }
            15 => self.handle_events(),
            16 | 17 => {
                let qp = self.any(Fabric::live);
                qp.into_iter().for_each(|qp| device::with(|fabric| fabric.deliver_ack(qp)));
            }
            18 => {
                let qp = self.any(Fabric::live);
                let part = qp.and_then(|qp| device::with(|fabric| fabric.retry(qp)));
                self.handle_written(part);
            }
            19 => self.heal(),
            _ => {}
        }
        self.look_at_posts();
        Step::Taken
    }

    /// The workers of an end run its next job.
    fn job(&mut self, end: End) -> Step {
        Step::Job(end, Arc::clone(&self.recovering().nics[end as usize].workers))
    }

    /// One of `those` queue pairs.
    fn any(&mut self, those: fn(&Fabric) -> &[usize]) -> Option<usize> {
        device::with(|fabric| {
            let all = those(fabric);
            (!all.is_empty()).then(|| all[self.random.index(all.len())])
        })
    }

    fn deliver_on(&mut self, qp: usize) {
        let (is_read, written) =
            device::with(|fabric| (fabric.next_source(qp).is_some(), fabric.deliver(qp)));
        if let Some(Written::Message { source, .. }) = &written
            && is_read
        {
            self.laws.handle_read(place_of(*source).0);
        }
        self.handle_written(written);
    }

    /// Checks the posted messages: one that has arrived whole is not sent again.
    fn look_at_posts(&mut self) {
        for source in device::with(|fabric| fabric.take_posted()) {
            debug_assert!(source >= IMAGINARY, "only messages are noted");
            self.laws.handle_posted(place_of(source).0);
        }
    }

    /// The watchers of an end handle the events of its devices.
    fn handle_events(&mut self) {
        let end = End::BOTH[self.random.index(2)];
        if !self.recovering().is_awake(end) {
            return;
        }
        if device::with(|fabric| fabric.has_event_of(end)) {
            let nic = Arc::clone(&self.recovering().nics[end as usize]);
            let watchers = nic.cards.iter().filter_map(|card| card.started_watcher());
            watchers.for_each(|watcher| watcher.handle_device());
        }
        self.handle_call(end);
    }

    /// Checks the frames that an end has sent.
    fn check_frames(&mut self, end: End, frames: Vec<(Kind, Vec<u8>)>) {
        let count = self.rails as u8;
        for (kind, body) in frames {
            let message = Message::parse(kind, &body, count).expect("what a Ferrite says");
            let recovery = self.recovering();
            if let Some(attempt) = message.attempt() {
                let latest = &mut recovery.attempts[end as usize];
                assert!(attempt >= *latest, "an attempt goes back");
                *latest = attempt;
            }
            match message {
                Message::Offer { attempt, .. } if recovery.offered < attempt => {
                    recovery.offered = attempt;
                    device::with(|fabric| fabric.check_sender_fenced());
                }
                Message::MissingList { attempt, missing_list } if recovery.listed < attempt => {
                    recovery.listed = attempt;
                    recovery.recoveries += 1;
                    recovery.resent += missing_list.missing.len() as u32;
                    device::with(|fabric| fabric.check_receiver_fenced());
                    for missing in &missing_list.missing {
                        self.laws.handle_listed(place_of(missing.cts.addr).0);
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether the ends may be closed: all is delivered and repaired, or one of them has failed.
    fn may_close(&mut self) -> bool {
        let recovery = self.recovering();
        let is_gone = recovery.peers.iter().any(|peer| peer.is_gone());
        if is_gone || recovery.failures.iter().any(Option::is_some) {
            return true;
        }
        let has_faults = recovery.faults.iter().any(|(when, _)| matches!(when, When::Step(_)));
        let is_open = recovery.peers.iter().all(|peer| peer.state().is_open());
        if has_faults || !recovery.healings.is_empty() || !is_open || !self.control.is_quiet() {
            return false;
        }
        let counts = self.recovering().nics.each_ref().map(|nic| nic.workers.counts());
        assert_eq!(counts, [(0, 0); 2], "connections are counted that do not recover any more");
        self.laws.is_all_delivered() && device::with(|fabric| fabric.is_whole(self.rails))
    }

    /// Sets the clock to the next time at which something happens by itself.
    fn skip(&mut self, due: impl Iterator<Item = Instant>) {
        self.look_at_counts();
        let recovery = self.recovery.as_mut().expect("a run with recovery");
        let now = clock::now();
        let healings = recovery.healings.iter().map(|(time, _)| *time);
        let times = due.chain(recovery.stopped_until);
        let next = times.chain(healings).filter(|time| *time > now).min();
        let unknown = Duration::from_millis(1 + self.random.below(100));
        clock::simulated::set(Some(next.unwrap_or(now + unknown)));
    }

    /// Checks the counts of recovering connections when each job has run.
    fn look_at_counts(&mut self) {
        let (recovery, now) = (self.recovering(), clock::now());
        for end in End::BOTH.into_iter().filter(|end| recovery.is_awake(*end)).collect::<Vec<_>>() {
            let counts = recovery.nics[end as usize].workers.counts();
            // A job whose time has not come may still count it.
            let is_left = counts != (0, 0) && recovery.peers[end as usize].is_gone();
            let since = &mut recovery.left[end as usize];
            *since = is_left.then(|| since.unwrap_or(now));
            let is_soon = since.is_none_or(|since| now - since < Duration::from_secs(1));
            assert!(is_soon, "{counts:?} connections to no peer recover");
            let since = &mut recovery.starting[end as usize];
            *since = (counts.1 > 0).then(|| since.unwrap_or(now));
            let lasts = since.map_or(Duration::ZERO, |since| now - since);
            recovery.longest_start = recovery.longest_start.max(lasts);
        }
    }

    fn heal(&mut self) {
        let (recovery, now) = (self.recovering(), clock::now());
        let Some(i) = recovery.healings.iter().position(|(time, _)| *time <= now) else { return };
        let (_, healing) = recovery.healings.swap_remove(i);
        let qps = recovery.set_up.1;
        match healing {
            Healing::Port(end, rail) => {
                recovery.before_back = recovery.recoveries;
                device::with(|fabric| fabric.set_port(end.device(rail), true));
            }
            Healing::Cut(end, rail) => {
                device::with(|fabric| fabric.cut(end.device(rail), false));
            }
            Healing::Device(end, rail) => {
                device::with(|fabric| fabric.bring_back(end.device(rail)));
            }
            Healing::Control => {
                if self.recovering().is_quiet_until_back {
                    let now = device::with(|fabric| fabric.qp_count());
                    assert_eq!(now, qps, "what works is given up, and the peer has not answered");
                }
                self.control.set_reachable(true);
            }
        }
    }

    pub(super) fn recovery_of(&self, end: End) -> Option<Arc<ConnRecovery>> {
        match end {
            End::Sender => self.sender.as_ref()?.comm.recovery.clone(),
            End::Receiver => self.receiver.as_ref()?.comm.recovery.clone(),
        }
    }

    fn apply_recovered(&mut self, fault: recovered::Fault) {
        use recovered::Fault;
        log::debug!("fault: {fault:?}");
        let rails = self.rails;
        let device_of = |end: End, rail: usize| end.device(rail % rails);
        let nth = |end: End, index: usize| {
            device::with(|fabric| {
                let all: Vec<_> = fabric.live_of(end).collect();
                (!all.is_empty()).then(|| all[index % all.len()])
            })
        };
        let recovery = self.recovering();
        match fault {
            Fault::PortDown(end, rail, time) => {
                recovery.heal_after(time, Healing::Port(end, rail % rails));
                device::with(|fabric| fabric.set_port(device_of(end, rail), false));
            }
            Fault::Cut(end, rail, time) => {
                recovery.heal_after(time, Healing::Cut(end, rail % rails));
                device::with(|fabric| fabric.cut(device_of(end, rail), true));
            }
            Fault::DeviceLost(end, rail, time) => {
                recovery.heal_after(time, Healing::Device(end, rail % rails));
                self.laws.may_lie |= end == End::Receiver;
                device::with(|fabric| fabric.lose(device_of(end, rail)));
            }
            Fault::ControlBreaks(time) => {
                recovery.heal_after(time, Healing::Control);
                self.control.set_reachable(false);
                self.control.lose();
            }
            Fault::QpFails(end, index) => {
                let part =
                    nth(end, index).and_then(|qp| device::with(|fabric| fabric.fail_loudly(qp)));
                self.handle_written(part);
            }
            Fault::QueueFails(end, index) => {
                self.laws.may_lie |= end == End::Receiver;
                nth(end, index)
                    .into_iter()
                    .for_each(|qp| device::with(|fabric| fabric.fail_queue(qp)));
            }
            Fault::IdleQueueFails(end) => {
                self.laws.may_lie |= end == End::Receiver;
                device::with(|fabric| fabric.fail_next_idle_queue(end));
            }
            Fault::PollFails(end, index, loses) => {
                self.laws.may_lie |= end == End::Receiver && loses;
                nth(end, index)
                    .into_iter()
                    .for_each(|qp| device::with(|fabric| fabric.break_queue(qp, loses)));
            }
            Fault::AcksLost(end, index) => {
                nth(end, index)
                    .into_iter()
                    .for_each(|qp| device::with(|fabric| fabric.lose_acks(qp)));
            }
            Fault::Stalled(end) => {
                if let Some(recovery) = self.recovery_of(end) {
                    recovery.report("nothing is acknowledged", 0).expect("no thread is needed");
                }
            }
            Fault::Moves(qp) => {
                if let Some(recovery) = self.recovery_of(End::Sender) {
                    recovery.allow_move();
                    recovery.report_slow_lane(QpIndex(qp), None);
                }
            }
            Fault::Stops(end, time) => {
                recovery.stopped_until[end as usize] = clock::now() + time;
            }
            Fault::Refuses(end, times) => device::with(|fabric| fabric.refuse(end, times)),
            Fault::Forgets => {
                self.laws.may_lie = true;
                device::with(|fabric| fabric.forget());
            }
            Fault::Dies(end) => {
                self.control.kill(end, false);
                match end {
                    End::Sender => self.sender.take().into_iter().for_each(Sender::close),
                    End::Receiver => {
                        self.receiver.take().into_iter().for_each(Receiver::close);
                        self.laws.receiver_lives = false;
                    }
                }
            }
        }
    }

    fn describe(&mut self) -> String {
        let left = (self.receiving.len(), self.sending.len());
        let recovery = self.recovering();
        let states = recovery.peers.each_ref().map(|peer| (peer.state(), peer.reason()));
        let qps = device::with(|fabric| fabric.describe());
        let (rails, is_quiet, now) = (self.rails, self.control.is_quiet(), clock::now());
        let recovery = self.recovering();
        let (healings, faults) = (&recovery.healings, &recovery.faults);
        format!(
            "{left:?} receives and sends, {states:?}, {healings:?}, {faults:?}, {qps}, {rails} rails, {is_quiet}, {now:?} \
             attempts {:?}, failures {:?}",
            recovery.attempts, recovery.failures
        )
    }
}
