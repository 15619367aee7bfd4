//! The recovery of one connection: [`Recovery`] decides, and this module executes with verbs.
//!
//! NCCL's threads and the watchers only put events into the inbox. A thread of [`Workers`] takes
//! them out, passes them to the state machine, and executes the resulting actions.

use super::devices::DevicesInUse;
use super::end::{End, Owner};
use super::inbox::{Inbox, Input};
use super::new_qps::{NewQps, NewQpsProgress};
use super::rails::ConnRails;
use crate::error::{Error, Result};
use crate::net::background::port_listeners::{PortEvent, PortListener};
use crate::net::background::workers::{Job, JobId, Workers};
use crate::net::control::observers::RecoveryEvents;
use crate::net::device::nic::Nic;
use crate::net::peer::name::PeerName;
use crate::net::peer::recovery_progress::{RailStanding, RecoveryProgress};
use crate::net::peer::state::PeerState;
use crate::net::qp::reach::SilentQps;
use crate::net::qp::set::QpSet;
use crate::proto::QpIndex;
use crate::proto::control::Time;
use crate::proto::control::event::PeerChange;
use crate::proto::frame::{Frame, Kind};
use crate::proto::handshake::Negotiated;
use crate::proto::recovery::machine::Recovery;
use crate::proto::recovery::machine::{Action, Role};
use crate::proto::recovery::message::Message;
use crate::proto::recovery::missing_list::MissingList;
use crate::proto::recovery::move_budget::{MoveBudget, Speed};
use crate::proto::recovery::rail_mask::RailMask;
use crate::verbs::clock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How often to check the ports while the connection does not run: not every port change raises an
/// event.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// The interval when it has not run for seconds.
const LOOK_SELDOM: Duration = Duration::from_millis(200);
/// A recovery that takes longer than this publishes its progress, at this interval.
const NOTE_AFTER: Duration = Duration::from_millis(500);
const NOTE_EVERY: Duration = Duration::from_millis(200);
/// Interval between warnings that a connection does not run.
const WARN_EVERY: Duration = Duration::from_secs(10);
/// How often to probe the peer's device while the peer is suspected to be dead.
const PROBE_EVERY: Duration = Duration::from_millis(250);
/// A recovery that takes longer waits for a port or the peer, not for the commands of other
/// recoveries.
const STARTING_FOR: Duration = Duration::from_millis(500);
/// A fault may end by itself: the port comes back, and the card sends again what was lost. For this
/// long, a connection waits for that while many others begin to recover. With `NCCL_IB_TIMEOUT=18`
/// a card sends again after 1.07 s, or up to four times as late by the InfiniBand specification.
const WAIT_TO_START: Duration = Duration::from_secs(2);
/// The most batches of completions that are polled to find a failed queue pair. A connection with
/// more is in use, and NCCL polls.
const MOST_POLLS: u32 = 256;
/// How often to check whether all messages that have begun are acknowledged.
const DRAIN_EVERY: Duration = Duration::from_millis(1);

/// The recovery of one connection at one end.
#[derive(Debug)]
pub struct ConnRecovery {
    nic: Arc<Nic>,
    peer: Arc<PeerState>,
    terms: Negotiated,
    owner: OnceLock<Weak<dyn Owner>>,
    workers: Arc<Workers>,
    job: OnceLock<JobId>,
    start: Instant,
    /// Whether it is counted as recovering.
    is_recovering: AtomicBool,
    /// Whether it is counted as having just begun to recover.
    is_starting: AtomicBool,
    /// Whether its queue pairs are destroyed and not yet replaced, so that the peer waits.
    is_under_way: AtomicBool,
    /// No lane moves before this time, in milliseconds since `start`.
    next_move_ms: AtomicU64,
    /// The devices that its queue pairs are on.
    in_use: Arc<DevicesInUse>,
    inbox: Inbox,
    /// Locked by the worker's thread only.
    work: Mutex<Work>,
}

/// The recovery's mutable state.
#[derive(Debug)]
struct Work {
    machine: Recovery,
    /// Whether to check the end for messages that are not acknowledged.
    is_draining: bool,
    /// Since when it has run although none of its rails can be used, as many others begin to
    /// recover.
    lacks_rails: Option<Time>,
    /// Since when the connection does not run.
    stopped: Option<Instant>,
    /// When to warn next that the connection does not run.
    next_warning: Option<Instant>,
    /// When the progress was last published.
    noted: Option<Instant>,
    rails: ConnRails,
    new_qps: NewQps,
    /// The budget of moves of lanes to other paths.
    moves: MoveBudget,
    /// The lane for which the peer was asked for a change that has not begun.
    moving: Option<QpIndex>,
}

impl ConnRecovery {
    /// The recovery of a connection on `terms` that runs on `qps`. [`Self::start`] starts it.
    pub fn new(
        nic: &Arc<Nic>,
        peer: &Arc<PeerState>,
        terms: &Negotiated,
        role: Role,
        qps: &QpSet,
    ) -> Arc<Self> {
        let rails = ConnRails::of(nic, role, terms.count, qps);
        let give_up = Duration::from_secs(nic.config.give_up_s);
        let machine = Recovery::new(role, rails.all(), give_up).over(terms.striping.rail_numbers());
        let new_qps = NewQps::new(nic, peer, role, terms, qps);
        let work = Work {
            machine,
            is_draining: false,
            lacks_rails: None,
            stopped: None,
            next_warning: None,
            noted: None,
            rails,
            new_qps,
            moves: MoveBudget::default(),
            moving: None,
        };
        let this = Arc::new(Self {
            nic: Arc::clone(nic),
            peer: Arc::clone(peer),
            terms: *terms,
            owner: OnceLock::new(),
            workers: Arc::clone(&nic.workers),
            job: OnceLock::new(),
            start: clock::now(),
            is_recovering: AtomicBool::new(false),
            is_starting: AtomicBool::new(false),
            is_under_way: AtomicBool::new(false),
            next_move_ms: AtomicU64::new(0),
            in_use: Arc::clone(&work.rails.devices.in_use),
            inbox: Inbox::default(),
            work: Mutex::new(work),
        });
        let job: Weak<Self> = Arc::downgrade(&this);
        this.job.get_or_init(|| this.workers.add(job));
        this
    }

    /// Starts handling events, first the earlier ones. The communicator exists, and `owner` holds
    /// it.
    pub fn start(self: &Arc<Self>, owner: Weak<dyn Owner>) {
        self.owner.get_or_init(|| owner);
        let events: Weak<Self> = Arc::downgrade(self);
        self.peer.on_recovery_events(events);
        let ports: Arc<dyn PortListener> = Arc::clone(self) as _;
        self.nic.watch_ports(&ports);
        // Losses before this point were not reported to this connection.
        self.handle_loss();
        if self.terms.count != self.terms.striping.rails() {
            self.put_or_retry_later(Input::PortChanged);
        }
    }

    /// Reports a fault that new queue pairs may cure. `lagging` is the mask of queue pairs whose
    /// lanes acknowledge nothing; 0 if unknown. NCCL's calls must post nothing until new queue
    /// pairs exist.
    ///
    /// # Errors
    /// No worker thread can be started.
    pub fn report(&self, cause: &str, lagging: u32) -> Result<()> {
        if self.peer.handle_fault() {
            return Ok(());
        }
        if lagging != 0 {
            self.inbox.push(Input::LaggingLanes(lagging));
        }
        warn_of_fault(&self.nic, &self.peer, cause);
        self.put(Input::Fault(cause.to_owned()))
    }

    /// Whether to recover now from a fault that was noticed `waited` ago and may end by itself. If
    /// so, call [`Self::report`]. If not, look again later: the connection runs until then.
    pub fn may_start(&self, waited: Duration) -> bool {
        // Without a limit nothing shows later that a message was lost meanwhile.
        let can_wait = waited < WAIT_TO_START && self.nic.config.stall_ms > 0;
        if !can_wait || self.is_starting.load(Ordering::Relaxed) {
            return true;
        }
        let may_start = self.workers.may_start();
        if may_start && self.is_starting.swap(true, Ordering::Relaxed) {
            self.workers.count_starting(false);
        }
        may_start
    }

    fn put(&self, input: Input) -> Result<()> {
        self.inbox.push(input);
        self.job.get().map_or(Ok(()), |job| self.workers.queue(*job))
    }

    /// [`Self::put`] where no caller can handle an error: if no thread can be started, a watcher
    /// tries again.
    fn put_or_retry_later(&self, input: Input) {
        if let Err(e) = self.put(input) {
            self.nic.start_workers_later(&e);
        }
    }

    /// The time since the connection was created.
    pub fn now(&self) -> Time {
        clock::since(self.start)
    }

    /// Passes the events of the inbox to the state machine.
    fn handle_inputs(&self, work: &mut Work, end: &dyn End) -> Result<()> {
        loop {
            // One by one, so that the lock is not held while the machine works.
            let Some(input) = self.inbox.pop() else { return Ok(()) };
            let now = self.now();
            match input {
                Input::Fault(cause) => work.machine.handle_fault(now, &cause),
                Input::Frame(frame) => {
                    let tells_ports = matches!(frame.kind, Kind::Halt | Kind::Ports);
                    let message = Message::parse(frame.kind, &frame.body, self.terms.count);
                    let handled =
                        message.and_then(|message| work.machine.handle_message(now, message));
                    handled.map_err(|violation| {
                        Error::remote(format!("{}: {violation}", self.peer.peer()))
                    })?;
                    let may_change = work.rails.depend_on_peer() || work.lacks_rails.is_some();
                    if tells_ports && may_change {
                        self.check_ports(work, end);
                    }
                }
                Input::Back => work.machine.handle_back(now),
                Input::Doubted | Input::PeerGone => {}
                Input::TooMuch => {
                    return Err(Error::remote(format!(
                        "{} sends control messages faster than this process handles them",
                        self.peer.peer()
                    )));
                }
                Input::PortChanged => self.check_ports(work, end),
                Input::PortReady => {
                    work.rails.shorten_waits();
                    self.check_ports(work, end);
                }
                // The completions say which, but NCCL may not poll them, and others may precede them.
                Input::QueuePairFailed => {
                    for _ in 0..MOST_POLLS {
                        if end.poll()? == 0 {
                            break;
                        }
                    }
                }
                Input::SlowLane(qp, speed) => self.move_lane(work, qp, speed),
                Input::LaggingLanes(qps) => work.new_qps.leave_paths(SilentQps(qps)),
            }
        }
    }

    fn check_ports(&self, work: &mut Work, end: &dyn End) {
        let in_use =
            if work.machine.has_queue_pairs() { work.machine.rails() } else { RailMask::NONE };
        work.rails.reopen_lost(end.memory(), (work.machine.usable_by_peer(), in_use));
        work.new_qps.leave_lost_devices();
        let (now, usable) = (self.now(), work.rails.usable());
        let failed = self.in_use.lost(work.machine.rails());
        let lost = (work.machine.rails() - usable) | failed;
        if work.machine.is_running() && !lost.is_empty() {
            let since = *work.lacks_rails.get_or_insert(now);
            // On other rails it resumes before the port is back, also on those it does not use now.
            let others = work.machine.rails() | work.machine.usable_by_peer();
            let can_wait = failed.is_empty() && (others & usable).is_empty();
            if can_wait && !self.may_start(now - since) {
                return;
            }
            self.peer.handle_fault();
            let cause = match failed.is_empty() {
                true => format!(
                    "{} cannot be used: its port is down, or has no address",
                    work.rails.names(lost)
                ),
                false => format!("{}: fatal device error", work.rails.names(failed)),
            };
            warn_of_fault(&self.nic, &self.peer, &cause);
            work.machine.handle_fault(now, &cause);
        }
        work.lacks_rails = None;
        work.machine.handle_usable(now, usable);
    }

    /// Executes an action of the state machine.
    fn perform(&self, work: &mut Work, end: &dyn End, action: Action) -> Result<()> {
        // A recovery that does not succeed would fill the log.
        let level = match work.machine.lasted(self.now()) {
            (_, 0..=3) => log::Level::Debug,
            _ => log::Level::Trace,
        };
        log::log!(
            level,
            "{}: recovering the connection to {}, after {:.3} s: {action}",
            self.nic.name,
            self.peer.peer(),
            self.now().as_secs_f64()
        );
        match action {
            Action::Send(message) => self.peer.stream().send(message.kind(), message.body()),
            Action::Fence => {
                work.is_draining = false;
                let qps = end.take_qps()?;
                self.in_use.clear();
                let drained = qps.fence(&self.peer);
                if let Some(error) = drained.failure {
                    return Err(error);
                }
                end.handle_drained(&drained)?;
                work.new_qps.keep_queues(drained.queues);
                work.machine.handle_fenced(self.now());
                self.check_ports(work, end);
            }
            Action::Create { attempt, rails } => {
                let ports = work.rails.ports(rails);
                let created = ports.and_then(|ports| work.new_qps.create(end, &ports));
                let created = created.map_err(|e| self.describe_failure(work, &e));
                work.machine.handle_created(self.now(), attempt, created);
            }
            Action::Connect { attempt, rails, remote } => {
                work.rails.learn(work.machine.usable_by_peer(), rails, &remote);
                let ports = work.rails.ports(rails);
                if let Err(e) =
                    ports.and_then(|ports| work.new_qps.connect(end, attempt, &ports, remote))
                {
                    let why = self.describe_failure(work, &e);
                    work.machine.handle_connected(self.now(), attempt, Err(why));
                }
            }
            Action::Discard => {
                work.new_qps.discard_of(work.machine.was_late());
                self.check_ports(work, end);
            }
            Action::Resume { attempt, missing_list: Some(missing_list) } => {
                self.resume(work, end, attempt, Some(&missing_list))?
            }
            // At the receiver.
            Action::Resume { attempt, missing_list: None } => {
                if let Err(e) = work.new_qps.prove(attempt, work.machine.reach()) {
                    self.describe_failure(work, &e);
                    work.machine.handle_unreachable(self.now(), attempt, RailMask::NONE);
                }
            }
            Action::Drain => {
                self.begin_change(work);
                end.drain()?;
                work.is_draining = true;
            }
            Action::Continue => {
                work.is_draining = false;
                // After a fault it resumes over other queue pairs. The peer's state keeps a fault
                // that arrives before this is done.
                if !self.peer.has_fault() {
                    end.keep_queue_pairs()?;
                }
            }
            Action::Recovered { duration, attempts, rails } => {
                work.rails.handle_running(rails);
                log_recovered(&self.nic, &self.peer, &work.rails, (duration, attempts, rails));
            }
            Action::Fail(reason) => {
                let can_both = !(work.rails.usable() & work.machine.usable_by_peer()).is_empty();
                let paths =
                    if can_both { work.new_qps.describe_paths(&reason) } else { String::new() };
                return Err(Error::remote(format!("{reason}{paths}{}", losses(work))));
            }
        }
        Ok(())
    }

    /// Handles that the peer has gone and the recovery cannot succeed.
    fn handle_gone(&self) {
        let state = self.peer.state();
        // Unless the peer has closed, what it received is unknown, and no queue pairs exist whose
        // completions would show it.
        if state.is_recovering() && !state.is_broken() && !state.has_closed() {
            self.peer.fail(&self.peer.reason());
        }
    }

    /// Avoids the rail whose queue pairs could not be created, for a while. Returns the reason.
    fn describe_failure(&self, work: &mut Work, error: &Error) -> String {
        if let Some(rail) = error.rail {
            work.rails.avoid(rail);
        }
        error.text()
    }

    /// Publishes the progress of a long recovery, for reports and error messages.
    fn note_progress(&self, work: &mut Work) {
        if work.machine.is_running() {
            if work.noted.take().is_some() {
                self.peer.set_progress(None);
            }
            return;
        }
        let now = clock::now();
        let (lasted, attempts) = work.machine.lasted(self.now());
        if lasted < NOTE_AFTER || work.noted.is_some_and(|noted| now < noted + NOTE_EVERY) {
            return;
        }
        work.noted = Some(now);
        let (usable, usable_by_peer) = (work.machine.usable(), work.machine.usable_by_peer());
        let standing = |number| RailStanding {
            number,
            port: work.rails.names(RailMask::only(number)),
            is_usable: usable.contains(number),
            is_usable_by_peer: usable_by_peer.contains(number),
        };
        self.peer.set_progress(Some(RecoveryProgress {
            since: now.checked_sub(lasted).unwrap_or(now),
            attempts,
            cause: work.machine.cause().to_owned(),
            waits_for: work.machine.waited_for(),
            rails: work.rails.all().iter().map(standing).collect(),
        }));
    }

    /// Warns at intervals while the connection does not run.
    fn warn_if_late(&self, work: &mut Work) {
        if work.machine.is_running() {
            work.next_warning = None;
            return;
        }
        let now = clock::now();
        let next = *work.next_warning.get_or_insert(now + WARN_EVERY);
        if now < next {
            return;
        }
        work.next_warning = Some(now + WARN_EVERY);
        let so_far = format!("{}{}", work.machine.describe(self.now()), losses(work));
        warn_of_delay(&self.nic, &self.peer, &so_far);
    }

    /// Counts the connection as recovering, and as having just begun, or no longer.
    fn count(&self, is_recovering: bool, is_starting: bool) {
        if self.is_recovering.swap(is_recovering, Ordering::Relaxed) != is_recovering {
            self.workers.count_recovering(is_recovering);
        }
        if self.is_starting.swap(is_starting, Ordering::Relaxed) != is_starting {
            self.workers.count_starting(is_starting);
        }
    }

    /// Does everything that is due. Returns when there is more to do: also at once, where a time
    /// has come since the ports were `looked` at.
    fn run_all(&self, work: &mut Work, end: &dyn End, looked: Instant) -> Result<Option<Instant>> {
        let mut next_step = None;
        loop {
            self.handle_inputs(work, end)?;
            if self.peer.is_lost() {
                work.machine.handle_lost(self.now());
            }
            // Before requests are handled: one may have had no answer.
            work.machine.handle_timeout(self.now());
            if !work.machine.is_about_to_change() {
                work.moving = None;
            }
            if work.machine.waits_for_fence() && !end.is_reporting()? {
                work.machine.handle_unreported(self.now());
            }
            if let Some(action) = work.machine.poll_action() {
                self.perform(work, end, action)?;
                next_step = None;
                continue;
            }
            if next_step.is_none_or(|next| next <= clock::now()) {
                next_step = self.advance(work, end)?;
                if next_step.is_some() {
                    continue;
                }
            }
            if work.is_draining && end.is_drained()? {
                work.is_draining = false;
                work.machine.handle_drained(self.now());
                continue;
            }
            break;
        }
        self.warn_if_late(work);
        self.note_progress(work);
        let is_doubted = self.peer.is_doubted();
        if is_doubted {
            end.probe()?;
        }
        let now = clock::now();
        let timeout = work.machine.poll_timeout().map(|time| self.start + time);
        let drain = work.is_draining.then(|| now + DRAIN_EVERY);
        let look = if work.machine.is_running() {
            work.stopped = None;
            work.lacks_rails.map(|since| now + (self.now() - since).clamp(LOOK_EVERY, LOOK_SELDOM))
        } else {
            let stopped = *work.stopped.get_or_insert(now);
            Some(now + (now.saturating_duration_since(stopped) / 10).clamp(LOOK_EVERY, LOOK_SELDOM))
        };
        let probe = is_doubted.then(|| now + PROBE_EVERY);
        Ok([timeout, next_step, drain, look, probe, work.rails.next_change(looked)]
            .into_iter()
            .flatten()
            .min())
    }
}

// Steps with the new queue pairs.
impl ConnRecovery {
    /// Continues with the new queue pairs. Returns when to call it again.
    fn advance(&self, work: &mut Work, end: &dyn End) -> Result<Option<Instant>> {
        let now = self.now();
        let Some(progress) = work.new_qps.advance(end)? else { return Ok(None) };
        match progress {
            NewQpsProgress::Wait(until) => return Ok(Some(until)),
            NewQpsProgress::Connected(attempt, endpoint, reach) => {
                work.machine.handle_reach(reach);
                work.machine.handle_connected(now, attempt, Ok(endpoint));
            }
            NewQpsProgress::Unreachable(attempt, dead, why) => {
                work.machine.handle_unusable(now, attempt, dead, why)
            }
            NewQpsProgress::Unproven(attempt, dead, why) => {
                // The sender learns it from the rails that this end reports as usable. A rail that
                // was not tested beside others may not be to blame: the rest may be worse.
                if dead != work.machine.rails() {
                    dead.iter().for_each(|rail| work.rails.avoid(rail));
                }
                work.machine.handle_unusable(now, attempt, dead, why);
            }
            NewQpsProgress::Proven(attempt) if work.machine.is_resuming(attempt) => {
                self.resume(work, end, attempt, None)?
            }
            // The peer has begun another attempt meanwhile: do not use these queue pairs.
            NewQpsProgress::Proven(attempt) => {
                work.new_qps.discard();
                work.machine.handle_unreachable(now, attempt, RailMask::NONE);
            }
            NewQpsProgress::Failed(attempt, e) => {
                let why = self.describe_failure(work, &e);
                work.machine.handle_connected(now, attempt, Err(why));
            }
        }
        Ok(Some(clock::now()))
    }

    /// Resumes over the queue pairs of `attempt`; the sender with the receiver's `missing_list`.
    fn resume(
        &self,
        work: &mut Work,
        end: &dyn End,
        attempt: u32,
        missing_list: Option<&MissingList>,
    ) -> Result<()> {
        let (qps, weights) = work.new_qps.take()?;
        self.in_use.use_qps(&qps);
        self.peer.handle_new_queue_pairs();
        // Only from here on is an event of a failed queue a new fault.
        let failed =
            qps.failed_queue().map(|port| format!("{port}: a completion queue has failed"));
        let missing_list = end.resume(qps, weights, missing_list)?;
        work.machine.handle_resumed(self.now(), attempt, missing_list);
        if end.is_drained()? {
            work.machine.handle_acknowledged();
        }
        if !self.in_use.lost(work.machine.rails()).is_empty() {
            self.check_ports(work, end);
        }
        failed.map_or(Ok(()), |cause| self.report(&cause, 0))
    }
}

// Voluntary changes of queue pairs: other paths for slow lanes.
impl ConnRecovery {
    /// Sender: reports that the lane of queue pair `qp` has stayed slow while others have not.
    /// `speed` is that of the connection, if known.
    pub fn report_slow_lane(&self, qp: QpIndex, speed: Option<Speed>) {
        // Wakes no thread while no lane may move.
        if self.now().as_millis() as u64 >= self.next_move_ms.load(Ordering::Relaxed) {
            self.put_or_retry_later(Input::SlowLane(qp, speed));
        }
    }

    /// Whether a change waits until outstanding messages are acknowledged, so that none may begin.
    #[cfg(any(test, feature = "simulator"))]
    pub fn is_draining(&self) -> bool {
        self.work.try_lock().is_ok_and(|work| work.is_draining)
    }

    /// Forgets the latest move: the next slow lane may move at once.
    #[cfg(any(test, feature = "simulator"))]
    pub fn allow_move(&self) {
        // The simulator may call it in the middle of a job, which is then at a command to a device.
        if let Ok(mut work) = self.work.try_lock() {
            work.moves = MoveBudget::default();
        }
        self.next_move_ms.store(0, Ordering::Relaxed);
    }

    /// The peer has answered: applies the change to the next attempt.
    fn begin_change(&self, work: &mut Work) {
        if let Some(qp) = work.moving {
            work.new_qps.leave_paths(SilentQps(1_u32.wrapping_shl(qp.0.into())));
            log_move(&self.nic, &self.peer, qp);
        }
    }

    /// Moves a slow lane to another path, within the budgets of the connection and the card.
    fn move_lane(&self, work: &mut Work, qp: QpIndex, speed: Option<Speed>) {
        let now = self.now();
        let Some(rail) = work.rails.port(work.new_qps.rail_of(qp).into()).map(Arc::clone) else {
            return;
        };
        // Anything else in progress is about to replace the queue pairs. While the control
        // connection is lost, the peer would not receive the request.
        if !work.machine.is_running() || !self.peer.state().is_open() {
            return;
        }
        let Work { machine, moves, .. } = work;
        let mut is_begun = false;
        let none_for = rail.card.move_lane(|| {
            let cause = || format!("to move slow lane {} to another path", qp.0);
            is_begun = moves.poll_move(now, speed) && machine.handle_change_request(now, cause());
            is_begun
        });
        let next = none_for.map_or_else(|| moves.next(), |none_for| now + none_for);
        // Rounded up, so that threads are not woken before the time has come.
        self.next_move_ms.store(next.as_millis() as u64 + 1, Ordering::Relaxed);
        if is_begun {
            work.moving = Some(qp);
        }
    }
}

// Events from the peer, the ports, and failed queue pairs.
impl ConnRecovery {
    /// Handles a possibly lost device. If the queue pairs are on it, NCCL's calls post nothing any
    /// more, since memory that is registered from now on has no keys there.
    fn handle_loss(&self) {
        if let Some(name) = self.in_use.lost_name()
            && let Err(e) = self.report(&format!("{name}: fatal device error"), 0)
        {
            self.nic.start_workers_later(&e);
        }
        if self.nic.cards.iter().any(|card| card.device().is_lost()) {
            self.put_or_retry_later(Input::PortChanged);
        }
    }
}

impl RecoveryEvents for ConnRecovery {
    fn handle_frame(&self, frame: Frame) {
        self.put_or_retry_later(Input::Frame(frame));
    }

    fn handle_fault(&self, reason: &str) {
        if let Err(e) = self.report(reason, 0) {
            self.peer.fail(&e.text());
        }
    }

    fn handle_change(&self, change: &PeerChange) {
        match change {
            PeerChange::Back => self.put_or_retry_later(Input::Back),
            // A running connection needs no action, so no thread is started.
            PeerChange::Unknown(_) | PeerChange::Closed(_) | PeerChange::Broken(_) => {
                if self.peer.is_recovering() {
                    self.put_or_retry_later(Input::PeerGone);
                }
            }
            PeerChange::Doubted => self.put_or_retry_later(Input::Doubted),
            PeerChange::Lost(_) | PeerChange::Frame(_) | PeerChange::Inquiry(_) => {}
        }
    }
}

impl PortListener for ConnRecovery {
    fn handle_port_event(&self, _port: u8, what: PortEvent) -> usize {
        match what {
            PortEvent::QueuePairError => self.put_or_retry_later(Input::QueuePairFailed),
            PortEvent::DeviceFatal => self.handle_loss(),
            PortEvent::Active | PortEvent::GidChange | PortEvent::LidChange => {
                self.put_or_retry_later(Input::PortReady)
            }
            PortEvent::Down => self.put_or_retry_later(Input::PortChanged),
        }
        usize::from(matches!(what, PortEvent::Down | PortEvent::DeviceFatal))
    }
}

impl Job for ConnRecovery {
    fn run(&self) -> Option<Instant> {
        let owner = self.owner.get()?.upgrade()?;
        let end = owner.end();
        let mut work = lock(&self.work);
        if self.peer.is_gone() {
            work.new_qps.give_up();
            self.count(false, false);
            self.handle_gone();
            return None;
        }
        let looked = clock::now();
        let is_whole = !(work.rails.has_avoided() || work.rails.devices.is_one_away());
        if !work.machine.is_running() || !is_whole || work.lacks_rails.is_some() {
            self.check_ports(&mut work, end);
        }
        let others = self
            .workers
            .recovering()
            .saturating_sub(u32::from(self.is_recovering.load(Ordering::Relaxed)));
        work.machine.handle_others(others);
        let permanent_loss =
            work.rails.devices.permanent_loss().filter(|_| !work.machine.is_running());
        let outcome = permanent_loss.map_or_else(|| self.run_all(&mut work, end, looked), Err);
        self.is_under_way.store(work.machine.has_fenced(), Ordering::Relaxed);
        let is_recovering = outcome.is_ok() && !work.machine.is_running();
        let has_just_begun = |begun| clock::now().saturating_duration_since(begun) < STARTING_FOR;
        self.count(is_recovering, is_recovering && work.stopped.is_none_or(has_just_begun));
        match outcome {
            Ok(next) => next,
            Err(e) => {
                work.new_qps.give_up();
                // Nothing is written to a buffer after the error.
                if !work.machine.has_fenced()
                    && let Ok(qps) = end.take_qps()
                {
                    qps.fence(&self.peer);
                }
                log::warn!("{}", line_of_end(&self.nic.name, self.peer.peer(), &e.text()));
                self.peer.fail(&e.text());
                None
            }
        }
    }

    fn is_urgent(&self) -> bool {
        self.is_under_way.load(Ordering::Relaxed)
    }

    fn handle_panic(&self) {
        self.count(false, false);
        self.peer.fail("an internal error during the recovery of the connection");
    }
}

impl Drop for ConnRecovery {
    fn drop(&mut self) {
        self.count(false, false);
        if let Some(job) = self.job.get() {
            self.workers.remove(*job);
        }
    }
}

/// For messages: the lost devices of the connection.
fn losses(work: &Work) -> String {
    match work.rails.devices.describe_losses() {
        losses if losses.is_empty() => losses,
        losses => format!(". {losses}"),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

// Log lines: one line for all connections that recover at the same time.

/// The connection of `nic` to `peer` recovers from `cause`.
fn warn_of_fault(nic: &Nic, peer: &PeerState, cause: &str) {
    let text = format!("{}: connection to {} is recovering: {cause}", nic.name, peer.peer());
    match nic.notices.line_unless_repeated("fault", &text) {
        Some(line) => log::warn!("{line}"),
        None => log::debug!("{text}"),
    }
}

/// The lane of queue pair `qp` moves to another path.
fn log_move(nic: &Nic, peer: &PeerState, qp: QpIndex) {
    let text = format!(
        "{}: lane {} of the connection to {} stays slow and moves to another path",
        nic.name,
        qp.0,
        peer.peer()
    );
    match nic.notices.line("path", &text) {
        Some(line) => log::info!("{line}"),
        None => log::debug!("{text}"),
    }
}

/// The connection does not run yet; `so_far` says why.
fn warn_of_delay(nic: &Nic, peer: &PeerState, so_far: &str) {
    let text = line_of_delay(&nic.name, peer.peer(), so_far);
    if let Some(line) = nic.notices.line("late", &text) {
        log::warn!("{line}. It fails after FERRITE_GIVE_UP={} s", nic.config.give_up_s);
    }
}

fn line_of_delay(name: &str, peer: &PeerName, so_far: &str) -> String {
    format!("{name}: the connection to {peer} is still recovering: {so_far}")
}

fn line_of_end(name: &str, peer: &PeerName, why: &str) -> String {
    format!("{name}: the connection to {peer} ends: {why}")
}

/// The connection runs on `in_use` of its `rails` again, after this time and number of attempts.
fn log_recovered(
    nic: &Nic,
    peer: &PeerState,
    rails: &ConnRails,
    (duration, attempts, in_use): (Duration, u32, RailMask),
) {
    let all = rails.all();
    let of = if in_use == all { String::new() } else { format!(" on rail(s) {in_use} of {all}") };
    let (name, peer, ms) = (&nic.name, peer.peer(), duration.as_millis());
    let text =
        format!("{name}: connection to {peer} recovered{of} in {ms} ms ({attempts} attempt(s))");
    match nic.notices.line("recovered", &text) {
        Some(line) => log::info!("{line}"),
        None => log::debug!("{text}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::new_qps::likely;
    use super::*;
    use crate::log_line::{self, DEVICE, HOST, shown};

    #[test]
    fn what_the_log_says_of_a_recovery_that_takes_long_and_is_given_up() {
        let seconds = Duration::from_secs;
        let mut machine = Recovery::new(Role::Sender, RailMask::first(2), seconds(120));
        machine
            .handle_fault(Time::ZERO, "no data has been acknowledged for 88 ms (FERRITE_STALL_MS)");
        machine.handle_usable(Time::ZERO, RailMask::only(1));
        machine.handle_fenced(Time::ZERO);
        let peer = PeerName::from("rank 118 on n-0412 (pid 3021; mlx5_3 port 1, 10.3.4.12:40211)");
        let delay = line_of_delay("mlx5_0", &peer, &machine.describe(seconds(10)));
        machine.handle_timeout(seconds(120));
        let Some(Action::Fail(reason)) = std::iter::from_fn(|| machine.poll_action()).last() else {
            panic!("it is given up")
        };
        let paths = ["mlx5_0:1 (GID 10.3.4.7) to GID 10.3.4.12".to_owned()];
        let end = line_of_end("mlx5_0", &peer, &format!("{reason}{}", likely(None, &paths)));
        testkit::snapshot!("recovery", &format!("{delay}\n{end}\n"));
    }

    /// The first failure has its whole text, and the devices of all four rails are named.
    #[test]
    fn a_log_with_long_names_shows_how_far_a_recovery_is_and_why_it_was_given_up() {
        let seconds = Duration::from_secs;
        let mut machine = Recovery::new(Role::Sender, RailMask::first(4), seconds(120));
        let first = format!(
            "sending data on {DEVICE}: no acknowledgement (status 12), vendor error 136; {}",
            "long ".repeat(100)
        );
        machine.handle_fault(Time::ZERO, &first);
        machine.handle_usable(Time::ZERO, RailMask::first(3));
        let delay =
            shown(&line_of_delay(DEVICE, &log_line::peer(), &machine.describe(seconds(99))));
        for part in [
            HOST,
            "in 99 s",
            "The old queue pairs are not destroyed",
            "Usable rails: 0, 1, 2 here, all at the peer, of 0, 1, 2, 3",
            "(status 12)",
        ] {
            assert!(delay.contains(part), "{part}: {delay}");
        }
        assert!(!delay.contains("long"), "{delay}");
        machine.handle_timeout(seconds(121));
        let Some(Action::Fail(reason)) = std::iter::from_fn(|| machine.poll_action()).last() else {
            panic!("it is given up")
        };
        let paths = [0, 1, 2, 3]
            .map(|rail| format!("{DEVICE}:{rail} (GID fd00::{rail}) to GID fd01::{rail}"));
        let trouble = "the two are in different networks, and no router joins them";
        let why = format!("{reason}{}", likely(Some(trouble), &paths));
        let end = shown(&line_of_end(DEVICE, &log_line::peer(), &why));
        for part in
            [HOST, "within 121 s", "Usable rails: ", "(status 12)", trouble, "too small an MTU"]
        {
            assert!(end.contains(part), "{part}: {end}");
        }
    }
}
