//! Checks all ends of the process once a second, and triggers reports of waits that are too long.

use super::end::ExplainedEnd;
use super::output;
use super::set_up::{self, SetUp, SetUpWait};
use super::socket::{Opening, ReportSocket};
use super::text;
use crate::host::config::Config;
use crate::host::{launcher, sysfs};
use crate::net::background::periodic::PeriodicTask;
use crate::net::background::weak_registry::WeakRegistry;
use crate::net::background::workers::{Job, JobId, Workers};
use crate::net::control::observers::InquiryEvents;
use crate::net::operations::snapshot::OperationsSnapshot;
use crate::proto::control::Time;
use crate::proto::explain::inquiry::{EndId, Inquiry, STOPPED};
use crate::proto::explain::report_times::{Due, ReportTimes};
use crate::proto::explain::snapshot::{CheckedEnd, EndCheck};
use crate::proto::frame::{Frame, Kind};
use crate::proto::identity::Identity;
use std::collections::BTreeMap;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The watchers of several cards run this task; the first one does the work.
const LOOK_EVERY: Duration = Duration::from_millis(900);

/// Explains the waits of this process.
#[derive(Debug)]
pub struct Explainer {
    start: Instant,
    /// The process that owns it. A forked child has none of the connections, and its copies of
    /// locks may be held for ever.
    owner: u32,
    pub(super) folder: String,
    pub(super) limit: Duration,
    /// Whether the user has set the limit.
    pub(super) is_limit_set: bool,
    /// Separate threads, so that recoveries never wait for a file system.
    workers: Arc<Workers>,
    job: OnceLock<JobId>,
    ends: Mutex<WeakRegistry<dyn ExplainedEnd>>,
    /// Listeners, and connections being set up.
    set_ups: Mutex<WeakRegistry<SetUpWait>>,
    /// The latest question and answer of peers, by end and whether it is a question.
    inbox: Mutex<BTreeMap<(EndId, bool), Frame>>,
    /// `None`: not opened yet, or opening failed.
    socket: Mutex<Option<ReportSocket>>,
    state: Mutex<State>,
}

/// An end and its number.
pub(super) type NumberedEnd = (EndId, Arc<dyn ExplainedEnd>);

/// State under the lock, which is only held briefly.
#[derive(Debug)]
pub(super) struct State {
    pub(super) inquiry: Inquiry,
    pub(super) report_times: ReportTimes,
    /// The report times for connection set-up.
    pub(super) set_up_times: ReportTimes,
    looked: Option<Time>,
    /// The ends that were idle then, and how many messages had begun there.
    idle: Vec<(EndId, u64)>,
    /// Nothing is known of earlier times: this process was stopped.
    floor: Time,
    /// Since when the cause of a long wait is being looked for.
    pub(super) asking: Option<Time>,
    /// A log line about the end of a reported wait.
    pub(super) ended: Option<String>,
    /// Whether a report about set-up is due.
    pub(super) is_set_up_due: bool,
    /// Further lines about set-up.
    pub(super) notes: Vec<String>,
    /// The latest report of a wait.
    pub(super) said: String,
    /// When the log last mentioned that a peer waits for this process.
    pub(super) said_owed: Option<Time>,
    pub(super) reports: u32,
    /// Programs that requested a report, and are waiting for it.
    pub(super) requests: Vec<UnixStream>,
    pub(super) requested: Time,
    /// Whether to open the socket.
    pub(super) opening: Opening,
}

impl Explainer {
    /// A new explainer, without ends.
    pub fn new(config: &Config) -> Arc<Self> {
        let limit = Duration::from_secs(config.hang_s);
        // Reads the environment now.
        output::nccl_shows_warnings();
        let me = Identity {
            host: sysfs::host_name().to_owned(),
            pid: std::process::id(),
            rank: None,
            label: launcher::rank().map(|(_, rank)| rank),
        };
        let state = State {
            inquiry: Inquiry::new(me),
            report_times: ReportTimes::new(limit, !config.is_hang_set),
            set_up_times: ReportTimes::new(limit, !config.is_hang_set),
            looked: None,
            idle: Vec::new(),
            floor: Time::ZERO,
            asking: None,
            ended: None,
            is_set_up_due: false,
            notes: Vec::new(),
            said: String::new(),
            said_owed: None,
            reports: 0,
            requests: Vec::new(),
            requested: Time::ZERO,
            opening: Opening::default(),
        };
        let this = Arc::new(Self {
            start: Instant::now(),
            owner: std::process::id(),
            folder: config.report_folder.clone(),
            limit,
            is_limit_set: config.is_hang_set,
            workers: Arc::default(),
            job: OnceLock::new(),
            ends: Mutex::new(WeakRegistry::new(0)),
            set_ups: Mutex::new(WeakRegistry::new(0)),
            inbox: Mutex::default(),
            socket: Mutex::default(),
            state: Mutex::new(state),
        });
        let job: Weak<Self> = Arc::downgrade(&this);
        this.job.get_or_init(|| this.workers.add(job));
        this
    }

    /// Explains the waits of `end` from now on, as long as it lives. Returns whether to run it as a
    /// [`PeriodicTask`].
    pub fn add(self: &Arc<Self>, end: &Arc<dyn ExplainedEnd>) -> bool {
        let number = lock(&self.ends).add(end);
        let handler: Weak<Self> = Arc::downgrade(self);
        end.peer().on_inquiries(number, handler);
        !self.limit.is_zero()
    }

    /// [`Self::add`] for a set-up.
    pub fn add_set_up(&self, wait: &Arc<SetUpWait>) -> bool {
        lock(&self.set_ups).add(wait);
        !self.limit.is_zero()
    }

    /// All ends.
    pub(super) fn ends(&self) -> Vec<NumberedEnd> {
        lock(&self.ends).numbered()
    }

    /// The waiting set-ups by importance, and whether there are others. `state` records those that
    /// NCCL has abandoned.
    pub(super) fn set_ups(&self, state: &mut State, now: Time) -> (Vec<SetUp>, bool) {
        let all = lock(&self.set_ups).all();
        let (moment, floor) = (self.instant(now), self.instant(state.floor));
        let (mut waiting, mut left) = (Vec::new(), Vec::new());
        for wait in &all {
            let Some(found) = wait.state_at(moment, floor) else { continue };
            if !self.limit.is_zero()
                && !found.is_asked()
                && found.age >= self.limit
                && wait.take_reported()
            {
                left.push(found.clone());
            }
            waiting.push(found);
        }
        set_up::sort(&mut waiting);
        set_up::sort(&mut left);
        state.notes.extend(text::of_set_ups(&left, left.len()));
        (waiting, !all.is_empty())
    }

    /// Checks `ends`, which are all ends, unless that was done within the last `pause`. Writes into
    /// each record which operation it waits in. Returns the locked state and the time. `asked`:
    /// whether the peer of an end has just asked about it.
    pub(super) fn check_ends(
        &self,
        ends: &[NumberedEnd],
        pause: Duration,
        asked: impl Fn(EndId) -> bool,
    ) -> (MutexGuard<'_, State>, Time) {
        let is_recent =
            |state: &State, now: Time| state.looked.is_some_and(|looked| now < looked + pause);
        let mut state = lock(&self.state);
        let now = self.start.elapsed();
        let is_known = state.idle.iter().any(|(number, _)| asked(*number));
        if is_recent(&state, now) && !is_known {
            return (state, now);
        }
        // Those that are still idle cost a look at their records only. These do not show which
        // clear-to-sends have arrived at a sender, which its peer has to know.
        let mut known = std::mem::take(&mut state.idle);
        known.retain(|(number, _)| !asked(*number));
        drop(state);
        let (seen, mut idle, mut others) =
            (OperationsSnapshot::now(), Vec::with_capacity(known.len()), vec![]);
        let checked_ends = ends.iter().map(|numbered @ (number, end)| {
            let begun = end.labels().idle_after().filter(|_| end.peer().state().is_open());
            let found = begun.and_then(|begun| known.binary_search(&(*number, begun)).ok());
            if let Some(place) = found {
                idle.push(known[place]);
                return CheckedEnd::unchanged(*number);
            }
            others.push(numbered);
            let checked_end = checked_end(*number, end.as_ref(), &seen);
            let is_idle = checked_end.recovery.is_empty()
                && matches!(&checked_end.found, EndCheck::Snapshot(look) if look.is_idle());
            idle.extend(begun.filter(|_| is_idle).map(|begun| (*number, begun)));
            checked_end
        });
        let checked_ends: Vec<CheckedEnd> = checked_ends.collect();
        let mut state = lock(&self.state);
        let now = self.start.elapsed();
        state.inquiry.handle_checked_ends(now, checked_ends, seen.progress());
        let looked = state.looked.replace(now);
        idle.retain(|(number, _)| !(asked(*number) || state.inquiry.is_asked(now, *number)));
        state.idle = idle;
        if looked.is_some_and(|looked| now > looked + STOPPED) {
            state.handle_stop(now);
        }
        for (number, end) in others {
            let operation = state.inquiry.operation(*number);
            end.labels().set_operation(
                operation.map_or(0, |one| one.call.to_bits()),
                operation.map_or("", |one| &one.name),
            );
            let recovery = end.peer().progress();
            end.labels()
                .set_recovery(recovery.map(|recovery| (recovery.lasted(), recovery.attempts)));
        }
        (state, now)
    }

    /// Wakes the thread to handle what is asked, answered or due.
    fn wake(&self) {
        let queued = self.job.get().map_or(Ok(()), |job| self.workers.queue(*job));
        if let Err(e) = queued {
            log::debug!("cannot report waits of connections: {e}");
        }
    }

    /// Opens the socket for `ferrite hang`, unless it is open. A short-lived process has none.
    pub(super) fn open_socket(&self) {
        if lock(&self.socket).is_some() {
            return;
        }
        // Without the lock, which a watcher needs.
        match ReportSocket::open(&self.folder) {
            Ok(made) => *lock(&self.socket) = Some(made),
            Err(e) => {
                log::info!("`ferrite hang` cannot ask this process: {e} (FERRITE_REPORT_DIR)")
            }
        }
        // The last end may have been closed meanwhile.
        if lock(&self.state).opening == Opening::WithoutEnds {
            drop(lock(&self.socket).take());
        }
    }

    /// Questions and answers of peers since the last call.
    pub(super) fn take_inbox(&self) -> BTreeMap<(EndId, bool), Frame> {
        std::mem::take(&mut *lock(&self.inbox))
    }

    /// Converts a time to an instant.
    pub(super) fn instant(&self, time: Time) -> Instant {
        self.start + time
    }
}

impl State {
    /// This process was stopped until `now`: what was known of waits is outdated.
    fn handle_stop(&mut self, now: Time) {
        (self.floor, self.asking, self.is_set_up_due) = (now, None, false);
        self.idle.clear();
        self.report_times.forget();
        self.set_up_times.forget();
    }

    /// Handles that the ends and `set_ups` have just been checked. Returns whether there is work
    /// for the thread.
    pub(super) fn handle_time(&mut self, now: Time, set_ups: &[SetUp]) -> bool {
        self.handle_set_ups(set_ups) | self.handle_ends(now)
    }

    fn handle_set_ups(&mut self, set_ups: &[SetUp]) -> bool {
        match self.set_up_times.check(set_up::longest(set_ups), false) {
            Due::Nothing => {}
            Due::Report => self.is_set_up_due = true,
            Due::WentOn(after, _) | Due::Closed(after) => {
                self.notes.push(text::set_up_ended(after))
            }
        }
        self.is_set_up_due || !self.notes.is_empty()
    }

    fn handle_ends(&mut self, now: Time) -> bool {
        if self.asking.is_some() {
            return true;
        }
        let longest = self.inquiry.longest_wait(now);
        let is_closed = self.inquiry.take_lost_wait();
        let due = self.report_times.check(longest, is_closed);
        match due {
            Due::Nothing => {}
            Due::Report => self.asking = Some(now),
            Due::WentOn(after, next) => self.ended = Some(text::wait_ended(after, next)),
            Due::Closed(after) => self.ended = Some(text::closed(after, &self.said)),
        }
        let is_near = self.report_times.is_near(longest);
        if is_near {
            self.inquiry.ask(now);
        }
        is_near || due != Due::Nothing
    }
}

impl InquiryEvents for Explainer {
    fn handle_frame(&self, end: EndId, frame: &Frame) {
        lock(&self.inbox).insert((end, frame.kind == Kind::WaitQuestion), frame.clone());
        self.wake();
    }
}

impl PeriodicTask for Explainer {
    fn run(&self) -> bool {
        if self.owner != std::process::id() {
            return false;
        }
        let ends = self.ends();
        let pause = if ends.is_empty() { Duration::ZERO } else { LOOK_EVERY };
        let (mut state, now) = self.check_ends(&ends, pause, |_| false);
        let (set_ups, has_set_ups) = self.set_ups(&mut state, now);
        let is_idle = ends.is_empty() && !has_set_ups;
        // The thread may just be opening it, so there are no requests yet.
        let requests = match self.socket.try_lock() {
            Ok(socket) => socket.as_ref().map(ReportSocket::accept).unwrap_or_default(),
            Err(_) => Vec::new(),
        };
        let mut is_due = state.opening.handle_time(now, !is_idle) || !requests.is_empty();
        if !requests.is_empty() && state.requests.is_empty() {
            state.requested = now;
        }
        state.requests.extend(requests);
        is_due |= state.handle_time(now, &set_ups);
        drop(state);
        if is_idle {
            drop(lock(&self.socket).take());
        }
        if is_due {
            self.wake();
        }
        !is_idle
    }
}

impl Job for Explainer {
    fn run(&self) -> Option<Instant> {
        self.inquire()
    }

    fn handle_panic(&self) {
        log::warn!("a bug in Ferrite: cannot explain what connections wait for");
    }
}

/// Observes an end, whose messages belong to one of the operations in `seen`.
fn checked_end(id: EndId, end: &dyn ExplainedEnd, seen: &OperationsSnapshot) -> CheckedEnd {
    CheckedEnd {
        id,
        found: end.check(),
        peer: end.peer().peer().identity(),
        operation: seen.operation_of(end.labels()),
        recovery: end.peer().progress().map(|progress| progress.summary()).unwrap_or_default(),
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
