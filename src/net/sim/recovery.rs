//! A run whose ends recover from faults: [`crate::net::recovery`] as it ships, in steps.
//!
//! A job of a worker is a step. During each command that it gives to a device, anything else may
//! happen: NCCL's calls at both ends, packets, frames, events, faults. What never waits for a
//! device is one step. Events of devices reach the ends through their watchers, which have no
//! threads here.

use super::device;
use super::ends::{Receiver, Sender};
use super::fabric::{End, Fabric, IMAGINARY, Written};
use super::plan::place_of;
use super::recovery_faults::{Fault, Plan, When};
use super::world::{Outcome, World};
use crate::net::background::workers::Workers;
use crate::net::device::nic::Nic;
use crate::net::peer::state::PeerState;
use crate::net::recovery::conn::ConnRecovery;
use crate::proto::QpIndex;
use crate::proto::frame::Kind;
use crate::proto::random::Random;
use crate::proto::recovery::message::Message;
use crate::verbs::clock;
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Steps after the last fault in which a run ends.
const MOST_STEPS: u64 = 3_000_000;
/// After this number of steps without an event, time jumps to the next timeout.
const IDLE_STEPS: u32 = 100;

/// A fault that ends by itself.
#[derive(Debug, Clone, Copy)]
enum Healing {
    Port(End, usize),
    Cut(End, usize),
    Device(End, usize),
    Control,
}

/// The additional state of a run with recovery.
pub(super) struct Recovering {
    faults: Vec<(When, Fault)>,
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
    pub(super) failures: [Option<String>; 2],
    recoveries: u32,
    /// Those before the last port came back.
    before_back: u32,
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

/// Runs `world` until both ends are closed.
pub(super) fn run(world: World) -> Outcome {
    WORLD.set(Some(world));
    loop {
        match with_world(World::step_recovering) {
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

/// Runs the next job of `end`, if one is ready. Returns whether one was, or when one is due.
fn run_job(end: End, workers: &Workers) -> (bool, Option<Instant>) {
    device::set_meanwhile(Some(|| with_world(World::meanwhile)));
    let ran = workers.run_next(clock::now());
    device::set_meanwhile(None);
    with_world(|world| world.handle_job(end));
    ran
}

impl Recovering {
    pub(super) fn new(
        random: &mut Random,
        plan: Plan,
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

impl World {
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
        let is_due = |(when, _): &(When, Fault)| match when {
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
    pub(super) fn check_frames(&mut self, end: End, frames: Vec<(Kind, Vec<u8>)>) {
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
        let recovery = self.recovery.as_mut().expect("a run with recovery");
        let now = clock::now();
        let healings = recovery.healings.iter().map(|(time, _)| *time);
        let times = due.chain(recovery.stopped_until);
        let next = times.chain(healings).filter(|time| *time > now).min();
        let unknown = Duration::from_millis(1 + self.random.below(100));
        clock::simulated::set(Some(next.unwrap_or(now + unknown)));
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

    fn apply_recovered(&mut self, fault: Fault) {
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
