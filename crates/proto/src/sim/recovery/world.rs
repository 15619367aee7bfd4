//! One run: the schedule, which picks what happens next.

use super::super::fabric::{End, Status};
use super::super::plan;
use super::ends::{Caller, Outside, Receiver, Sender, connected};
use super::fabric::{Executed, Fabric};
use super::faults::{Fault, Plan, When};
use super::laws::Laws;
use crate::control::Time;
use crate::random::Random;
use crate::recovery::message::Message;
use std::collections::VecDeque;
use std::time::Duration;

/// Steps after the last fault in which a run ends.
const MOST_STEPS: u64 = 3_000_000;
/// So many steps without an event, and time goes on to the next timeout.
const IDLE_STEPS: u32 = 120;
const STEP: Duration = Duration::from_micros(50);

/// How a run has ended.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) is_all_delivered: bool,
    pub(super) recoveries: u64,
    pub(super) replayed: u32,
    pub(super) late_packets: u32,
    pub(super) failures: [Option<String>; 2],
    /// The latest attempts of both ends when the control connection was back for the first time.
    pub(super) before_back: [u32; 2],
}

/// A fault that ends by itself.
#[derive(Debug, Clone, Copy)]
enum Healing {
    Port(End, usize),
    Cut(End, usize),
    Control,
}

pub(super) struct World {
    outside: Outside,
    sender: Sender,
    receiver: Receiver,
    faults: Vec<(When, Fault)>,
    healings: Vec<(Time, Healing)>,
    attempts: [u32; 2],
    before_back: Option<[u32; 2]>,
    idle: u32,
}

impl World {
    pub(super) fn new(mut random: Random, plan: plan::Plan, faults: Plan) -> Self {
        let job_steps = [4, 4, 60][random.index(3)];
        let frame_steps = [1, 1, 20][random.index(3)];
        let mut outside = Outside {
            laws: Laws::new(&plan),
            plan,
            random,
            fabric: Fabric::new(),
            now: Time::from_secs(1),
            frames: [VecDeque::new(), VecDeque::new()],
            is_connected: true,
            goodbyes: [None, None],
            actions: 0,
            recoveries: 0,
            replayed: 0,
            may_fail: faults.may_fail,
            job_steps,
            frame_steps,
        };
        let (sender, receiver) = connected(&mut outside, faults.give_up);
        let Plan { faults, .. } = faults;
        Self {
            outside,
            sender,
            receiver,
            faults,
            healings: Vec::new(),
            attempts: [0; 2],
            before_back: None,
            idle: 0,
        }
    }

    pub(super) fn run(mut self) -> Outcome {
        let mut last_fault = 0;
        for step in 0.. {
            let actions = self.outside.actions;
            let is_due = |when: &When| match when {
                When::Step(at) => *at <= step,
                When::Action(at) => *at <= actions,
            };
            if let Some(i) = self.faults.iter().position(|(when, _)| is_due(when)) {
                let (_, fault) = self.faults.swap_remove(i);
                self.apply(fault);
                last_fault = step;
            }
            if step % 16 == 0 && self.is_finished() {
                break;
            }
            let is_any = self.step();
            self.check_attempts();
            self.idle = if is_any { 0 } else { self.idle + 1 };
            self.outside.now += STEP;
            if self.idle > IDLE_STEPS {
                self.idle = 0;
                self.skip();
            }
            let machines =
                || (&self.sender.caller.machine, &self.receiver.caller.machine, self.outside.now);
            assert!(step - last_fault < MOST_STEPS, "hangs: {:?}", machines());
        }
        self.outcome()
    }

    fn outcome(self) -> Outcome {
        let Outside { fabric, laws, recoveries, replayed, .. } = self.outside;
        Outcome {
            is_all_delivered: laws.is_all_delivered(),
            recoveries,
            replayed,
            late_packets: fabric.late_packets,
            failures: [self.sender.caller.failure, self.receiver.caller.failure],
            before_back: self.before_back.unwrap_or_default(),
        }
    }

    /// Whether nothing more happens: both ends have failed, or all is delivered and repaired.
    fn is_finished(&self) -> bool {
        let callers = [&self.sender.caller, &self.receiver.caller];
        if callers.iter().all(|caller| caller.failure.is_some()) {
            return true;
        }
        let is_at_rest = |caller: &&Caller| caller.machine.is_running() && !caller.is_busy();
        let is_quiet =
            callers.iter().all(is_at_rest) && self.outside.frames.iter().all(VecDeque::is_empty);
        let no_faults = self.faults.iter().all(|(when, _)| matches!(when, When::Action(_)))
            && self.healings.is_empty();
        if !is_quiet || !no_faults || !self.outside.laws.is_all_delivered() {
            return false;
        }
        let [a, b] = callers.map(|caller| (caller.machine.attempt(), caller.machine.rails()));
        let is_whole = a == b && a.1 == self.outside.plan.striping.rail_numbers();
        if is_whole {
            let existing =
                [End::Sender, End::Receiver].map(|end| self.outside.fabric.existing(end));
            assert_eq!(
                existing,
                callers.map(|caller| caller.in_use.clone()),
                "queue pairs are left over"
            );
        }
        is_whole
    }

    fn step(&mut self) -> bool {
        let Self { outside, sender, receiver, .. } = self;
        let (sends, receives) =
            (sender.caller.is_awake(outside), receiver.caller.is_awake(outside));
        match outside.random.below(20) {
            0 if receives => receiver.irecv(outside),
            1 if sends => sender.isend(outside),
            2 if receives => receiver.test(outside),
            3 if sends => sender.test(outside),
            4 | 5 => self.control(),
            6..=8 if sends => sender.work(outside),
            9..=11 if receives => receiver.work(outside),
            12..=14 => {
                self.on_queue_pair(Fabric::live, |fabric, qp, _| (fabric.deliver(qp, false), false))
            }
            15 if self.outside.random.one_in(10) => self
                .on_queue_pair(Fabric::detained, |fabric, qp, _| (fabric.deliver(qp, true), false)),
            15 => false,
            16 | 17 => {
                self.on_queue_pair(Fabric::live, |fabric, qp, _| (None, fabric.acknowledge(qp)))
            }
            18 => self.on_queue_pair(Fabric::live, |fabric, qp, random| {
                (fabric.retry(qp, random), false)
            }),
            _ => self.heal(),
        }
    }

    /// Something happens on one of `those` queue pairs. `event` returns what is executed, and
    /// whether anything has happened besides.
    fn on_queue_pair(
        &mut self,
        those: fn(&Fabric) -> &[usize],
        event: impl Fn(&mut Fabric, usize, &mut Random) -> (Option<Executed>, bool),
    ) -> bool {
        let Outside { fabric, random, laws, .. } = &mut self.outside;
        let numbers = those(fabric);
        if numbers.is_empty() {
            return false;
        }
        let qp = numbers[random.index(numbers.len())];
        let (executed, is_any) = event(fabric, qp, random);
        let Some(Executed { wr, rail, is_read_now, .. }) = executed else { return is_any };
        if let Some(bytes) = wr.bytes {
            if is_read_now {
                laws.handle_read(bytes.message);
            }
            laws.handle_write(rail, bytes);
        }
        if let Some((first, halves)) = wr.cts {
            self.sender.handle_cts(first, halves);
        }
        true
    }

    /// A control message arrives.
    fn control(&mut self) -> bool {
        let Outside { random, frames, now, plan, frame_steps, .. } = &mut self.outside;
        let end = random.index(2);
        let caller = if end == 0 { &mut self.sender.caller } else { &mut self.receiver.caller };
        if caller.stopped_until > *now || !random.one_in(*frame_steps) {
            return false;
        }
        let Some(message) = frames[end].pop_front() else { return false };
        // As it is told on the wire.
        let message = Message::parse(message.kind(), &message.body(), plan.rails() as u8);
        message.iter().for_each(|message| caller.hear(message));
        let handled = message.and_then(|message| caller.machine.handle_message(*now, message));
        handled.unwrap_or_else(|e| panic!("{e}"));
        true
    }

    fn check_attempts(&mut self) {
        let now =
            [&self.sender.caller, &self.receiver.caller].map(|caller| caller.machine.attempt());
        assert!(now[0] >= self.attempts[0] && now[1] >= self.attempts[1], "an attempt goes back");
        assert!(now[0].abs_diff(now[1]) <= 1, "an end is two attempts ahead: {now:?}");
        self.attempts = now;
    }

    /// Goes on to the next time at which something happens by itself.
    fn skip(&mut self) {
        let callers = [&self.sender.caller, &self.receiver.caller];
        let has_frames = |caller: &Caller| !self.outside.frames[caller.end as usize].is_empty();
        let has_work = |caller: &Caller| caller.is_busy() || has_frames(caller);
        if callers
            .iter()
            .filter(|caller| caller.is_awake(&self.outside))
            .any(|caller| has_work(caller))
        {
            return;
        }
        let timeouts = callers.iter().filter_map(|caller| caller.machine.poll_timeout());
        let stops = callers
            .iter()
            .map(|caller| caller.stopped_until)
            .filter(|until| *until > self.outside.now);
        let healings = self.healings.iter().map(|(time, _)| *time);
        if let Some(next) = timeouts.chain(stops).chain(healings).min() {
            self.outside.now = self.outside.now.max(next);
        }
    }

    fn heal(&mut self) -> bool {
        let now = self.outside.now;
        let Some(i) = self.healings.iter().position(|(time, _)| *time <= now) else { return false };
        let (_, healing) = self.healings.swap_remove(i);
        match healing {
            Healing::Port(end, rail) => {
                self.set_port(end, rail, true);
                match self.outside.random.below(8) {
                    0 => self.caller(end.other()).machine.handle_fault(now, "at the same time"),
                    1 | 2 => drop(self.caller(end).machine.handle_change_request(now)),
                    _ => {}
                }
            }
            Healing::Cut(end, rail) => self.outside.fabric.cut[end as usize][rail] = false,
            Healing::Control => {
                self.before_back.get_or_insert(self.attempts);
                self.outside.is_connected = true;
                (self.sender.caller.has_back, self.receiver.caller.has_back) = (true, true);
            }
        }
        true
    }

    fn set_port(&mut self, end: End, rail: usize, is_up: bool) {
        self.outside.fabric.ports[end as usize][rail] = is_up;
        self.caller(end).has_port_event = true;
    }

    fn caller(&mut self, end: End) -> &mut Caller {
        if end == End::Sender { &mut self.sender.caller } else { &mut self.receiver.caller }
    }

    /// Some of what is under way over `rail` is late.
    fn detain(&mut self, rail: usize) {
        let Outside { fabric, random, .. } = &mut self.outside;
        for qp in fabric.live().to_vec() {
            if usize::from(fabric.qps[qp].rail) == rail {
                fabric.detain(qp, random);
            }
        }
    }

    fn apply(&mut self, fault: Fault) {
        let now = self.outside.now;
        let mut heal_after = |time: Duration, healing| {
            if time != Duration::MAX {
                self.healings.push((now + time, healing));
            }
        };
        match fault {
            Fault::PortDown(end, rail, time) => {
                heal_after(time, Healing::Port(end, rail));
                self.detain(rail);
                self.set_port(end, rail, false);
            }
            Fault::Cut(end, rail, time) => {
                heal_after(time, Healing::Cut(end, rail));
                self.detain(rail);
                self.outside.fabric.cut[end as usize][rail] = true;
            }
            Fault::ControlBreaks(time) => {
                heal_after(time, Healing::Control);
                self.outside.is_connected = false;
                self.outside.frames.iter_mut().for_each(VecDeque::clear);
            }
            Fault::QpFails(end, index) => {
                if let Some(qp) = self.caller(end).in_use.get(index).copied() {
                    self.on_queue_pair_number(qp, |fabric, qp, random| {
                        fabric.fail(qp, Status::RemoteError, random)
                    });
                }
            }
            Fault::AcksLost(end, index) => {
                if let Some(qp) = self.caller(end).in_use.get(index).copied() {
                    self.outside.fabric.lose_acks(qp);
                }
            }
            Fault::Stalled(end) => self.caller(end).machine.handle_fault(now, "nothing goes on"),
            Fault::Changes(end) => drop(self.caller(end).machine.handle_change_request(now)),
            Fault::Unreported => {
                let machine = &mut self.receiver.caller.machine;
                machine.handle_fault(now, "a completion queue has failed");
                if machine.waits_for_fence() {
                    machine.handle_unreported(now);
                }
            }
            Fault::Stops(end, time) => self.caller(end).stopped_until = now + time,
            Fault::Refuses(end, times) => self.caller(end).refusals = times,
            Fault::Forgets => self.outside.fabric.forgets = true,
        }
    }

    fn on_queue_pair_number(
        &mut self,
        qp: usize,
        event: impl Fn(&mut Fabric, usize, &mut Random) -> Option<Executed>,
    ) {
        let Outside { fabric, random, laws, .. } = &mut self.outside;
        if let Some(Executed { wr, rail, .. }) = event(fabric, qp, random)
            && let Some(bytes) = wr.bytes
        {
            laws.handle_write(rail, bytes);
        }
    }
}
