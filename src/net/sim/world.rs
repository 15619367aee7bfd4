//! One run: NCCL at both ends, which calls, and the schedule, which picks what happens next.

use super::control::{Cause, Control};
use super::device;
use super::ends::{Connection, Receiver, Sender};
use super::fabric::{End, FLUSHED, MAX_RETRIES, Polls, Written};
use super::faults::Fault;
use super::laws::Laws;
use super::plan::{Plan, Recovers};
use super::recovery::{self, Recovering};
use super::recovery_faults as recovered;
use crate::error::Error;
use crate::net::device::nic::Nic;
use crate::net::peer::state::PeerState;
use crate::proto::cts::{Cts, cts_halves};
use crate::proto::random::Random;
use crate::proto::requests::RequestId;
use crate::proto::{MAX_GROUP, RING_SLOTS};
use crate::verbs::clock;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps after the last fault in which a run ends. Without this law, an end that waits for ever
/// would go unnoticed.
const MOST_STEPS: u64 = 4_000_000;
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
    pub(super) random: Random,
    pub(super) laws: Laws,
    pub(super) control: Control,
    /// The ends, until they are closed or die.
    pub(super) sender: Option<Sender>,
    pub(super) receiver: Option<Receiver>,
    peers: [Arc<PeerState>; 2],
    nics: [Arc<Nic>; 2],
    qps: [Vec<usize>; 2],
    pub(super) rails: usize,
    /// The address of the ring.
    ring: u64,
    now: Instant,
    /// The messages that are not sent, by tag.
    to_send: Vec<VecDeque<usize>>,
    /// The one that the sender tries, if it tries one at a time.
    chosen: Option<usize>,
    pub(super) sending: Vec<(RequestId, usize)>,
    pub(super) next_group: usize,
    pub(super) receiving: VecDeque<(RequestId, Range<usize>)>,
    causes: [Option<Cause>; 2],
    /// Ports that are down for now, and for good.
    flapping: Vec<(End, usize)>,
    down: Vec<(End, usize)>,
    has_deregistered: bool,
    /// `None`: the first fault ends the connection.
    pub(super) recovery: Option<Recovering>,
}

impl World {
    /// One whose ends recover from `faults`.
    pub(super) fn with_recovery(
        mut random: Random,
        mut plan: Plan,
        faults: recovered::Plan,
    ) -> Self {
        let most_starting = if random.one_in(4) { 0 } else { faults.recovers.most_starting };
        plan.terms.recovers = Some(Recovers { most_starting, ..faults.recovers });
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

    /// Runs until both ends are closed, with recovery.
    pub(super) fn recover(self) -> Outcome {
        recovery::run(self)
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
    pub(super) fn handle_call(&mut self, end: End) {
        let frames = self.control.handle_call(end);
        if self.recovery.is_some() {
            self.check_frames(end, frames);
        }
    }

    pub(super) fn post_receive(&mut self) {
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

    pub(super) fn submit(&mut self) {
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
    pub(super) fn test_receive(&mut self) {
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

    pub(super) fn test_sends(&mut self) {
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

    pub(super) fn handle_written(&mut self, written: Option<Written>) {
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
    pub(super) fn close(&mut self) {
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
