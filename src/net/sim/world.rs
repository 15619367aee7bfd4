//! One run: NCCL at both ends, which calls, and the schedule, which picks what happens next.

use super::control::{Cause, Control};
use super::device;
use super::ends::{Connection, End, Receiver, Sender};
use super::fabric::{FLUSHED, MAX_RETRIES, Written};
use super::faults::Fault;
use super::laws::Laws;
use super::plan::Plan;
use crate::error::Error;
use crate::host::clock;
use crate::proto::MAX_GROUP;
use crate::proto::cts::{Cts, cts_halves};
use crate::proto::random::Random;
use crate::proto::requests::RequestId;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Steps after the last fault in which a run ends. Without this law, an end that waits for ever
/// would go unnoticed.
const MOST_STEPS: u64 = 4_000_000;
/// A step takes at most so long.
const LONGEST_STEP_MS: u64 = 1000;

/// How a run has ended.
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) is_all_delivered: bool,
    /// Whether a message was completed by the receiver and reported as failed by the sender.
    pub(super) has_disagreement: bool,
    pub(super) late_writes: u32,
    /// The first error of each end.
    pub(super) causes: [Option<Cause>; 2],
}

pub(super) struct World {
    plan: Plan,
    random: Random,
    laws: Laws,
    control: Control,
    /// The ends, until they are closed or die.
    sender: Option<Sender>,
    receiver: Option<Receiver>,
    qps: [Vec<usize>; 2],
    rails: usize,
    /// The address of the ring.
    ring: u64,
    now: Instant,
    /// The messages that are not sent, by tag.
    to_send: BTreeMap<u32, VecDeque<usize>>,
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
}

impl World {
    pub(super) fn new(mut random: Random, plan: Plan) -> Self {
        device::with(|fabric| fabric.begin(Random::new(random.below(u64::MAX))));
        let now = Instant::now();
        clock::simulate(Some(now));
        let Connection { sender, receiver, peers, qps, rails, ring } = Connection::new(&plan);
        let mut to_send: BTreeMap<u32, VecDeque<usize>> = BTreeMap::new();
        for (i, message) in plan.messages.iter().enumerate() {
            to_send.entry(message.tag).or_default().push_back(i);
        }
        Self {
            laws: Laws::new(&plan),
            control: Control::new(&peers),
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
        }
    }

    /// Runs until both ends are closed or dead. `faults` happen at the given steps, which ascend.
    pub(super) fn run(mut self, faults: &[(u64, Fault)]) -> Outcome {
        let mut faults = faults.iter().copied().peekable();
        let mut last_fault = 0;
        for step in 0.. {
            if self.sender.is_none() && self.receiver.is_none() {
                device::with(|fabric| fabric.check_released());
                clock::simulate(None);
                return Outcome {
                    is_all_delivered: self.laws.is_all_delivered(),
                    has_disagreement: self.laws.has_disagreement(),
                    late_writes: self.laws.late_writes,
                    causes: self.causes,
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
        clock::simulate(Some(self.now));
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

    fn post_receive(&mut self) {
        let Some(receiver) = &self.receiver else { return };
        if self.next_group == self.plan.groups.len() {
            return;
        }
        let outcome = receiver.irecv(self.next_group, &self.plan);
        self.control.handle_call(End::Receiver);
        match outcome {
            Ok(_) if self.causes[1].is_some() => panic!("irecv succeeds after an error"),
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
        let outcome = sender.isend(message, &self.plan);
        self.control.handle_call(End::Sender);
        match outcome {
            Ok(_) if self.causes[0].is_some() => panic!("isend succeeds after an error"),
            Ok(None) => {}
            Ok(Some(id)) => {
                assert!(
                    self.sending.iter().all(|(other, _)| *other != id),
                    "a request id is used twice at once"
                );
                self.laws.handle_sent(message);
                self.sending.push((id, message));
                let tag = self.plan.messages[message].tag;
                self.to_send.get_mut(&tag).and_then(VecDeque::pop_front);
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
        let firsts: Vec<_> =
            self.to_send.values().filter_map(|queue| queue.front().copied()).collect();
        let oldest = *firsts.iter().min()?;
        let is_one_at_a_time = self.plan.one_at_a_time;
        // A sender that waits for one must not look further ahead than the window of
        // clear-to-sends.
        let choice: Vec<_> =
            firsts.into_iter().filter(|i| !is_one_at_a_time || *i < oldest + MAX_GROUP).collect();
        let message = choice[self.random.index(choice.len())];
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
        self.control.handle_call(End::Receiver);
        match outcome {
            Ok(None) => return,
            Ok(Some(lengths)) => {
                assert_eq!(lengths.len(), messages.len(), "a group has another number of lengths");
                messages
                    .zip(lengths)
                    .for_each(|(i, length)| self.laws.handle_receive_completed(i, length));
            }
            Err(error) => {
                messages.for_each(|i| self.laws.handle_receive_failed(i));
                self.handle_error(End::Receiver, &error);
            }
        }
        self.receiving.pop_front();
    }

    fn test_sends(&mut self) {
        let mut i = 0;
        while let (Some(sender), Some((id, message))) = (&self.sender, self.sending.get(i).copied())
        {
            let outcome = sender.test(id);
            self.control.handle_call(End::Sender);
            match outcome {
                Ok(None) => {
                    i += 1;
                    continue;
                }
                Ok(Some(length)) => self.laws.handle_send_completed(message, length),
                Err(error) => {
                    self.laws.handle_send_failed(message);
                    self.handle_error(End::Sender, &error);
                }
            }
            self.sending.swap_remove(i);
        }
    }

    fn handle_error(&mut self, end: End, error: &Error) {
        assert!(self.laws.may_fail, "{end:?} fails without a fault: {error}");
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
        let has_posted_all = self.causes[1].is_some() || self.next_group == self.plan.groups.len();
        if let Some(receiver) = &mut self.receiver
            && has_posted_all
            && self.receiving.is_empty()
        {
            if !std::mem::replace(&mut self.has_deregistered, true) {
                return receiver.deregister();
            }
            self.receiver.take().into_iter().for_each(Receiver::close);
            return self.control.close(End::Receiver);
        }
        let has_sent_all =
            self.causes[0].is_some() || self.to_send.values().all(VecDeque::is_empty);
        if has_sent_all && self.sending.is_empty() && self.sender.is_some() {
            self.sender.take().into_iter().for_each(Sender::close);
            self.control.close(End::Sender);
        }
    }
}
