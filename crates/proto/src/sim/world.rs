//! One run: NCCL at both ends, which calls, and the schedule, which picks what happens next.

use super::control::{Cause, Control};
use super::fabric::{End, Fabric, MAX_RETRIES, Status};
use super::faults::Fault;
use super::laws::Laws;
use super::outside::Outside;
use super::plan::Plan;
use super::receiver::Receiver;
use super::sender::Sender;
use crate::cts::{CtsWords, cts_halves};
use crate::random::Random;
use crate::requests::RequestId;
use crate::{MAX_GROUP, QpIndex, RING_SLOTS};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

/// Steps after the last fault in which a run ends. Without this law, an end that waits for ever would go unnoticed.
pub(super) const MOST_STEPS: u64 = 4_000_000;

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
    outside: Outside,
    laws: Laws,
    /// The ends, until they are closed or die.
    sender: Option<Sender>,
    receiver: Option<Receiver>,
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
    pub(super) fn new(random: Random, plan: Plan) -> Self {
        let mut fabric = Fabric::new(plan.rails(), plan.qps());
        let ring = vec![CtsWords::default(); RING_SLOTS * cts_halves(plan.rails())];
        let mut to_send: BTreeMap<u32, VecDeque<usize>> = BTreeMap::new();
        for (i, message) in plan.messages.iter().enumerate() {
            to_send.entry(message.tag).or_default().push_back(i);
        }
        Self {
            laws: Laws::new(&plan),
            sender: Some(Sender::new(&plan)),
            receiver: Some(Receiver::new(&plan, &mut fabric)),
            outside: Outside { plan, fabric, control: Control::new(), random, ring },
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
        let qp = QpIndex(self.outside.random.index(self.outside.plan.qps()) as u8);
        // Clear-to-sends and probes are on the first queue pair of each rail.
        let first_qp = QpIndex(self.outside.random.index(self.outside.plan.rails()) as u8);
        match self.outside.random.below(16) {
            0 => self.post_receive(),
            1 | 2 => self.submit(),
            3 => self.test_receive(),
            4 => self.test_sends(),
            5 => self.deliver_cts(first_qp),
            6 => self.outside.fabric.deliver_ack(End::Sender, qp),
            7 => self.outside.fabric.deliver_ack(End::Receiver, first_qp),
            8 => self.watch(),
            9 => self.close(),
            10 => self.retry(qp),
            _ => self.deliver_data(qp),
        }
    }

    fn apply(&mut self, fault: Fault) {
        self.laws.may_fail |= fault.is_fatal();
        let Outside { fabric, control, random, .. } = &mut self.outside;
        match fault {
            Fault::PortFlaps(end, rail) => {
                fabric.set_port(end, rail, false);
                self.flapping.push((end, rail));
            }
            Fault::ControlLost => control.lose(),
            Fault::PortDown(end, rail) => {
                fabric.set_port(end, rail, false);
                self.down.push((end, rail));
            }
            Fault::QpFails(end, qp) => {
                let part = fabric.fail(end, qp, Status::RemoteError, Some(random));
                self.write_part(qp, part);
            }
            Fault::AcksLost(end, qp) => fabric.lose_acks(end, qp),
            Fault::Killed(end) | Fault::HostFails(end) => {
                fabric.destroy(end, random);
                control.kill(end, matches!(fault, Fault::HostFails(_)));
                match end {
                    End::Sender => self.sender = None,
                    End::Receiver => (self.receiver, self.laws.receiver_lives) = (None, false),
                }
            }
        }
    }

    fn post_receive(&mut self) {
        let Some(receiver) = &mut self.receiver else { return };
        if self.next_group == self.outside.plan.groups.len() {
            return;
        }
        match receiver.irecv(self.next_group, &mut self.outside) {
            Ok(_) if self.causes[1].is_some() => panic!("irecv succeeds after an error"),
            Ok(None) => {}
            Ok(Some(id)) => {
                self.receiving.push_back((id, self.outside.plan.groups[self.next_group].clone()));
                self.next_group += 1;
            }
            Err(cause) => self.handle_error(End::Receiver, cause),
        }
    }

    fn submit(&mut self) {
        let Some(message) = self.choose() else { return };
        let Some(sender) = &mut self.sender else { return };
        match sender.isend(message, &mut self.outside) {
            Ok(_) if self.causes[0].is_some() => panic!("isend succeeds after an error"),
            Ok(None) => {}
            Ok(Some(id)) => {
                assert!(self.sending.iter().all(|(other, _)| *other != id), "a request id is used twice at once");
                self.laws.handle_sent(message);
                self.sending.push((id, message));
                let tag = self.outside.plan.messages[message].tag;
                self.to_send.get_mut(&tag).and_then(VecDeque::pop_front);
                self.chosen = None;
            }
            Err(cause) => self.handle_error(End::Sender, cause),
        }
    }

    /// The message to be sent next: the first one of any tag, or the one that the sender tries.
    fn choose(&mut self) -> Option<usize> {
        if self.chosen.is_some() {
            return self.chosen;
        }
        let firsts: Vec<_> = self.to_send.values().filter_map(|queue| queue.front().copied()).collect();
        let oldest = *firsts.iter().min()?;
        let is_one_at_a_time = self.outside.plan.one_at_a_time;
        // A sender that waits for one must not look further ahead than the window of clear-to-sends.
        let choice: Vec<_> = firsts.into_iter().filter(|i| !is_one_at_a_time || *i < oldest + MAX_GROUP).collect();
        let message = choice[self.outside.random.index(choice.len())];
        self.chosen = is_one_at_a_time.then_some(message);
        Some(message)
    }

    /// As NCCL does: only the oldest.
    fn test_receive(&mut self) {
        let (Some(receiver), Some((id, messages))) = (&mut self.receiver, self.receiving.front().cloned()) else {
            return;
        };
        if self.outside.plan.tests_rarely && !self.outside.random.one_in(16) {
            return;
        }
        match receiver.test(id, &mut self.outside) {
            Ok(None) => return,
            Ok(Some(lengths)) => {
                messages.zip(lengths).for_each(|(i, length)| self.laws.handle_receive_completed(i, length));
            }
            Err(cause) => {
                messages.for_each(|i| self.laws.handle_receive_failed(i));
                self.handle_error(End::Receiver, cause);
            }
        }
        self.receiving.pop_front();
    }

    fn test_sends(&mut self) {
        let mut i = 0;
        while let (Some(sender), Some((id, message))) = (&mut self.sender, self.sending.get(i).copied()) {
            match sender.test(id, &mut self.outside) {
                Ok(None) => {
                    i += 1;
                    continue;
                }
                Ok(Some(length)) => self.laws.handle_send_completed(message, length),
                Err(cause) => {
                    self.laws.handle_send_failed(message);
                    self.handle_error(End::Sender, cause);
                }
            }
            self.sending.swap_remove(i);
        }
    }

    fn handle_error(&mut self, end: End, cause: Cause) {
        assert!(self.laws.may_fail, "{end:?} fails without a fault: {cause:?}");
        self.causes[end as usize].get_or_insert(cause);
    }

    fn deliver_cts(&mut self, qp: QpIndex) {
        let Outside { fabric, ring, .. } = &mut self.outside;
        let Some((first, halves)) = fabric.deliver(End::Receiver, qp, |_| true).and_then(|wr| wr.cts) else { return };
        let per_slot = ring.len() / RING_SLOTS;
        for (i, half) in halves.into_iter().enumerate() {
            let before = std::mem::replace(&mut ring[first + i], half);
            if (first + i) % per_slot == per_slot - 1 {
                Laws::handle_cts(&before, &half);
            }
        }
    }

    fn deliver_data(&mut self, qp: QpIndex) {
        let Outside { plan, fabric, random, .. } = &mut self.outside;
        if random.below(16) >= plan.speeds[usize::from(plan.striping.rail_of(qp))] {
            return;
        }
        let wr = fabric.deliver(End::Sender, qp, |wr| self.laws.is_registered(wr));
        if let Some(bytes) = wr.and_then(|wr| wr.bytes) {
            self.laws.handle_write(qp, bytes);
        }
    }

    /// The retransmission timers of a queue pair run out at both ends, and ports that flap come back in time.
    fn retry(&mut self, qp: QpIndex) {
        let Outside { fabric, random, .. } = &mut self.outside;
        if !self.flapping.is_empty() && (fabric.most_retries() >= MAX_RETRIES / 2 || random.one_in(16)) {
            for (end, rail) in self.flapping.drain(..).filter(|port| !self.down.contains(port)) {
                fabric.set_port(end, rail, true);
            }
        }
        fabric.retry(End::Receiver, qp, random);
        let part = fabric.retry(End::Sender, qp, random);
        self.write_part(qp, part);
    }

    fn write_part(&mut self, qp: QpIndex, part: Option<super::fabric::WorkRequest>) {
        let part = part.filter(|wr| self.laws.is_registered(wr));
        if let Some(bytes) = part.and_then(|wr| wr.bytes) {
            self.laws.handle_write(qp, bytes);
        }
    }

    fn watch(&mut self) {
        let end = if self.outside.random.one_in(2) { End::Sender } else { End::Receiver };
        let may_dial = self.outside.random.one_in(40);
        self.outside.control.watch(end, may_dial);
    }

    /// NCCL gives back what it does not need any more: regions whose receives have ended, and ends that have finished.
    fn close(&mut self) {
        let Outside { plan, fabric, control, random, .. } = &mut self.outside;
        if !random.one_in(4) {
            return;
        }
        let has_posted_all = self.causes[1].is_some() || self.next_group == plan.groups.len();
        if self.receiver.is_some() && has_posted_all && self.receiving.is_empty() {
            if !std::mem::replace(&mut self.has_deregistered, true) {
                return self.laws.handle_deregistered();
            }
            if let Some(mut receiver) = self.receiver.take() {
                receiver.close(&mut self.outside);
                self.outside.fabric.destroy(End::Receiver, &mut self.outside.random);
            }
            return;
        }
        let has_sent_all = self.causes[0].is_some() || self.to_send.values().all(VecDeque::is_empty);
        if has_sent_all && self.sending.is_empty() && self.sender.take().is_some() {
            control.close(End::Sender);
            fabric.destroy(End::Sender, random);
        }
    }
}
