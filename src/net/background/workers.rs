//! Threads for rare work that may take long: creating, connecting and destroying queue pairs after
//! a fault.
//!
//! Threads exist only while there is work: the first job starts one, and a thread that has been
//! idle for [`IDLE_LIMIT`] ends. One thread at a time runs a job. A job queued while it runs is run
//! again. If no thread can be started, a watcher tries again each second.
//!
//! A forked child has none of its parent's threads, and its copies of locks may be held for ever,
//! so it has its own state.

use crate::error::{Error, Result};
use crate::net::background::periodic::PeriodicTask;
use crate::net::background::signals::without_signals;
use crate::net::control::fork::process_id;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// The most threads. They mostly wait for the kernel and for devices.
const MAX_THREADS: usize = 4;
/// The most connections of a process that begin to recover at once, if they can wait. A card
/// carries out one command after the other, and those of fewer keep it busy.
const MOST_STARTING: u32 = 128;
/// How long an idle thread stays.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// Work that is done in steps.
pub trait Job: Debug + Send + Sync {
    /// Does what is possible now. Returns when to call it again, unless it is queued before.
    fn run(&self) -> Option<Instant>;

    /// Whether it precedes other jobs, because others wait for what it has begun. Asked after each
    /// run.
    fn is_urgent(&self) -> bool {
        false
    }

    /// [`Self::run`] has panicked. The rest of its work is lost, and it does not run until it is
    /// queued again.
    fn handle_panic(&self);
}

/// Names a job within its [`Workers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId(u64);

/// The threads, and the jobs that they run.
#[derive(Debug)]
pub struct Workers {
    /// The most threads. 0: none; the simulator calls [`Workers::run_next`].
    most_threads: usize,
    /// None that can wait begins to recover while so many have just begun.
    most_starting: u32,
    first: OfProcess,
    /// The id of the next job. A forked child continues the numbers, so that its parent's jobs are
    /// not taken for its own.
    next: AtomicU64,
    /// How many threads cannot be started.
    #[cfg(test)]
    refuses: AtomicU64,
}

/// The state of one process.
#[derive(Debug)]
struct OfProcess {
    process: u32,
    /// The number of recovering connections.
    recovering: AtomicU32,
    /// The number of connections that have just begun to recover.
    starting: AtomicU32,
    state: Mutex<State>,
    has_work: Condvar,
    /// The state of a forked child.
    child: OnceLock<Box<Self>>,
}

impl Default for OfProcess {
    fn default() -> Self {
        let (recovering, starting, state, has_work, child) = Default::default();
        Self { process: process_id(), recovering, starting, state, has_work, child }
    }
}

impl OfProcess {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct State {
    jobs: BTreeMap<JobId, Entry>,
    /// The urgent jobs, and the others.
    ready: [VecDeque<JobId>; 2],
    due: BTreeSet<(Instant, JobId)>,
    threads: usize,
    idle: usize,
}

#[derive(Debug)]
struct Entry {
    job: Weak<dyn Job>,
    is_running: bool,
    /// Whether it is ready, or will be when its run ends.
    is_queued: bool,
    is_urgent: bool,
    due: Option<Instant>,
}

impl Default for Workers {
    fn default() -> Self {
        Self::new(MAX_THREADS, MOST_STARTING)
    }
}

impl Workers {
    /// No jobs yet, for up to `most_threads` threads. 0: the caller runs the jobs. While
    /// `most_starting` connections have just begun to recover, others wait if they can.
    pub fn new(most_threads: usize, most_starting: u32) -> Self {
        Self {
            most_threads,
            most_starting,
            first: OfProcess::default(),
            next: AtomicU64::new(0),
            #[cfg(test)]
            refuses: AtomicU64::new(0),
        }
    }

    /// Counts a connection that starts or stops recovering.
    pub fn count_recovering(&self, is_one_more: bool) {
        count(&self.own().recovering, is_one_more);
    }

    /// The number of recovering connections.
    pub fn recovering(&self) -> u32 {
        self.own().recovering.load(Ordering::Relaxed)
    }

    /// Counts a connection that begins to recover, unless too many have just begun. Returns whether
    /// it is counted; [`Self::count_starting`] ends that.
    pub fn may_start(&self) -> bool {
        let one_more = |starting| (starting < self.most_starting).then_some(starting + 1);
        self.own().starting.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_ok()
    }

    /// Counts a connection that begins to recover and cannot wait, or that has not just begun any
    /// more.
    pub fn count_starting(&self, is_one_more: bool) {
        count(&self.own().starting, is_one_more);
    }

    /// The numbers of connections that recover, and that have just begun.
    #[cfg(any(test, feature = "simulator"))]
    pub fn counts(&self) -> (u32, u32) {
        (self.recovering(), self.own().starting.load(Ordering::Relaxed))
    }

    /// Adds a job, which runs only when it is queued.
    pub fn add(&self, job: Weak<dyn Job>) -> JobId {
        let id = JobId(self.next.fetch_add(1, Ordering::Relaxed));
        self.own().lock().jobs.insert(
            id,
            Entry { job, is_running: false, is_queued: false, is_urgent: false, due: None },
        );
        id
    }

    /// Removes a job. It may still be running.
    pub fn remove(&self, id: JobId) {
        let mut state = self.own().lock();
        if let Some(due) = state.jobs.remove(&id).and_then(|entry| entry.due) {
            state.due.remove(&(due, id));
        }
    }

    /// Queues a job, and starts a thread for it if none is idle.
    ///
    /// # Errors
    /// There is no thread, and none can be started. The job runs once there is one.
    pub fn queue(self: &Arc<Self>, id: JobId) -> Result<()> {
        let own = self.own();
        let mut state = own.lock();
        let Some(entry) = state.jobs.get_mut(&id) else { return Ok(()) };
        if !std::mem::replace(&mut entry.is_queued, true) && !entry.is_running {
            state.push(id);
        }
        if state.idle < state.waiting() && state.threads < self.most_threads {
            self.start(&mut state)?;
        }
        drop(state);
        own.has_work.notify_one();
        Ok(())
    }

    /// The state of this process.
    fn own(&self) -> &OfProcess {
        let (process, mut own) = (process_id(), &self.first);
        while own.process != process {
            own = own.child.get_or_init(Box::default);
        }
        own
    }

    fn start(self: &Arc<Self>, state: &mut State) -> Result<()> {
        #[cfg(test)]
        if self
            .refuses
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1))
            .is_ok()
        {
            return Err(Error::system("no thread, for a test"));
        }
        let run = Arc::clone(self);
        let started = without_signals(|| {
            std::thread::Builder::new().name("ferrite-recover".into()).spawn(move || run.work())
        });
        match started {
            Ok(_) => state.threads += 1,
            Err(e) if state.threads == 0 => {
                return Err(Error::io("starting the thread that recovers connections", &e));
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Runs the next job that is ready, or due by `now`. Returns whether there was one, and if not
    /// when the next one is due.
    pub fn run_next(&self, now: Instant) -> (bool, Option<Instant>) {
        let own = self.own();
        let mut state = own.lock();
        state.take_due(now);
        let Some((id, job)) = state.begin() else {
            return (false, state.due.first().map(|(due, _)| *due));
        };
        drop(state);
        // A lost thread would leave its job undone for ever, and be missing for all others.
        let again = catch_unwind(AssertUnwindSafe(|| job.run())).unwrap_or_else(|_| {
            let _ = catch_unwind(AssertUnwindSafe(|| job.handle_panic()));
            None
        });
        let is_urgent = job.is_urgent();
        // It may hold the last reference to the connection: dropped without the lock.
        drop(job);
        own.lock().finish(id, again, is_urgent);
        (true, None)
    }

    fn work(&self) {
        let own = self.own();
        let mut idle_since = Instant::now();
        loop {
            let now = Instant::now();
            if self.run_next(now).0 {
                idle_since = Instant::now();
                continue;
            }
            let mut state = own.lock();
            // Queued since.
            if state.waiting() > 0 {
                continue;
            }
            let limit = idle_since + IDLE_LIMIT;
            // One thread stays while a job is scheduled.
            if now >= limit && (state.due.is_empty() || state.threads > 1) {
                state.threads -= 1;
                return;
            }
            let until = state
                .due
                .first()
                .map_or(limit, |(due, _)| if state.threads > 1 { limit.min(*due) } else { *due });
            state.idle += 1;
            let pause = until.saturating_duration_since(now);
            state =
                own.has_work.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
            state.idle -= 1;
        }
    }
}

/// Adds one to `number`, or takes one off: a connection that a forked child has inherited is not
/// counted in it.
fn count(number: &AtomicU32, is_one_more: bool) {
    let change =
        |number: u32| if is_one_more { number.checked_add(1) } else { number.checked_sub(1) };
    // A child may close what its parent has counted.
    let _ = number.fetch_update(Ordering::Relaxed, Ordering::Relaxed, change);
}

/// Jobs wait for a thread that could not be started.
#[derive(Debug)]
pub struct StartWorkers(pub Arc<Workers>);

impl PeriodicTask for StartWorkers {
    fn run(&self) -> bool {
        let Self(workers) = self;
        let mut state = workers.own().lock();
        state.threads == 0 && state.waiting() > 0 && workers.start(&mut state).is_err()
    }
}

impl State {
    /// Adds a job to the ready ones.
    fn push(&mut self, id: JobId) {
        let is_urgent = self.jobs.get(&id).is_some_and(|entry| entry.is_urgent);
        self.ready[usize::from(!is_urgent)].push_back(id);
    }

    /// The number of ready jobs.
    fn waiting(&self) -> usize {
        self.ready.iter().map(VecDeque::len).sum()
    }

    /// Moves the jobs that are due to the ready ones.
    fn take_due(&mut self, now: Instant) {
        while let Some((due, id)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, id));
            let Some(entry) = self.jobs.get_mut(&id) else { continue };
            entry.due = None;
            if !std::mem::replace(&mut entry.is_queued, true) && !entry.is_running {
                self.push(id);
            }
        }
    }

    /// The next job to run.
    fn begin(&mut self) -> Option<(JobId, Arc<dyn Job>)> {
        while let Some(id) = self.ready.iter_mut().find_map(VecDeque::pop_front) {
            let Some(entry) = self.jobs.get_mut(&id) else { continue };
            let Some(job) = entry.job.upgrade() else {
                self.jobs.remove(&id);
                continue;
            };
            (entry.is_running, entry.is_queued) = (true, false);
            if let Some(due) = entry.due.take() {
                self.due.remove(&(due, id));
            }
            return Some((id, job));
        }
        None
    }

    /// Handles the end of a run, and schedules the next one at `again`.
    fn finish(&mut self, id: JobId, again: Option<Instant>, is_urgent: bool) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        (entry.is_running, entry.is_urgent) = (false, is_urgent);
        if entry.is_queued {
            self.push(id);
        } else if let Some(again) = again {
            entry.due = Some(again);
            self.due.insert((again, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts its runs, and the threads that run it at once.
    #[derive(Debug, Default)]
    struct Counter {
        runs: AtomicU32,
        inside: AtomicU32,
        most: AtomicU32,
        again: Option<Duration>,
        panics: bool,
        panicked: AtomicU32,
    }

    impl Job for Counter {
        fn run(&self) -> Option<Instant> {
            let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(inside, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(100));
            self.inside.fetch_sub(1, Ordering::SeqCst);
            self.runs.fetch_add(1, Ordering::SeqCst);
            assert!(!self.panics, "on purpose");
            self.again.map(|pause| Instant::now() + pause)
        }

        fn handle_panic(&self) {
            self.panicked.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn wait_until(what: &str, is_so: impl Fn() -> bool) {
        let start = Instant::now();
        while !is_so() {
            assert!(start.elapsed() < Duration::from_secs(20), "{what}");
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    fn add(workers: &Workers, job: &Arc<Counter>) -> JobId {
        let job: Weak<Counter> = Arc::downgrade(job);
        workers.add(job)
    }

    /// Otherwise all of many connections would advance together, and all would be late.
    #[test]
    fn what_has_begun_goes_before_what_has_not() {
        let (workers, job): (_, Arc<dyn Job>) = (Workers::default(), Arc::new(Counter::default()));
        let ids = [0; 4].map(|_| workers.add(Arc::downgrade(&job)));
        let mut state = workers.own().lock();
        let next = |state: &mut State| state.begin().map(|(id, _)| id);
        ids.iter().for_each(|id| state.push(*id));
        assert_eq!([next(&mut state), next(&mut state)], [Some(ids[0]), Some(ids[1])]);
        state.finish(ids[1], Some(Instant::now()), true);
        state.take_due(Instant::now());
        state.finish(ids[0], Some(Instant::now()), false);
        state.take_due(Instant::now());
        let order = [0; 5].map(|_| next(&mut state));
        assert_eq!(order, [Some(ids[1]), Some(ids[2]), Some(ids[3]), Some(ids[0]), None]);
    }

    #[test]
    fn one_more_may_start_while_fewer_than_the_most_have_just_begun() {
        let workers = Workers::new(0, 2);
        assert_eq!([0; 3].map(|_| workers.may_start()), [true, true, false]);
        // A fault leaves another one no choice.
        workers.count_starting(true);
        workers.count_starting(false);
        assert!(!workers.may_start());
        workers.count_starting(false);
        assert_eq!([0; 2].map(|_| workers.may_start()), [true, false]);
    }

    #[test]
    fn a_job_that_is_queued_runs_in_one_thread_at_a_time() {
        let workers = Arc::new(Workers::default());
        let jobs: Vec<_> = (0..20).map(|_| Arc::<Counter>::default()).collect();
        let ids: Vec<_> = jobs.iter().map(|job| add(&workers, job)).collect();
        for round in 1..=10 {
            ids.iter().for_each(|id| workers.queue(*id).expect("a thread"));
            wait_until("each has run", || {
                jobs.iter().all(|job| job.runs.load(Ordering::SeqCst) >= round)
            });
        }
        assert!(jobs.iter().all(|job| job.most.load(Ordering::SeqCst) == 1));
        assert!(workers.own().lock().threads <= MAX_THREADS);
    }

    #[test]
    fn a_job_runs_again_at_its_time_until_it_is_removed_or_dropped() {
        let workers = Arc::new(Workers::default());
        let job =
            || Arc::new(Counter { again: Some(Duration::from_micros(200)), ..Counter::default() });
        let (removed, dropped) = (job(), job());
        let ids = [add(&workers, &removed), add(&workers, &dropped)];
        ids.iter().for_each(|id| workers.queue(*id).expect("a thread"));
        wait_until("it runs again", || {
            removed.runs.load(Ordering::SeqCst) > 3 && dropped.runs.load(Ordering::SeqCst) > 3
        });
        workers.remove(ids[0]);
        drop(dropped);
        wait_until("nothing is left", || {
            workers.own().lock().jobs.is_empty() && Arc::strong_count(&removed) == 1
        });
    }

    #[test]
    fn a_job_that_panics_is_reported_and_harms_no_thread() {
        let workers = Arc::new(Workers::default());
        let job = Arc::new(Counter { panics: true, ..Counter::default() });
        let id = add(&workers, &job);
        for round in 1..=2 * MAX_THREADS as u32 {
            workers.queue(id).expect("a thread");
            wait_until("it is told", || job.panicked.load(Ordering::SeqCst) == round);
        }
        let threads = workers.own().lock().threads;
        assert!((1..=MAX_THREADS).contains(&threads), "{threads}");
    }

    #[test]
    fn a_job_runs_after_all_if_no_thread_was_to_be_had_at_first() {
        let workers: Arc<Workers> = Arc::default();
        let job: Arc<Counter> = Arc::default();
        let id = add(&workers, &job);
        workers.refuses.store(2, Ordering::SeqCst);
        assert!(workers.queue(id).is_err());
        let task = StartWorkers(Arc::clone(&workers));
        assert!(task.run(), "there is no thread still");
        assert!(!task.run());
        wait_until("it runs", || job.runs.load(Ordering::SeqCst) == 1);
    }

    /// The lock is held by a thread that does not exist in the child.
    #[test]
    fn a_forked_child_runs_its_own_jobs_and_not_its_parents() {
        let workers: Arc<Workers> = Arc::default();
        let (inherited, own): (Arc<Counter>, Arc<Counter>) = Default::default();
        let id = add(&workers, &inherited);
        let guard = workers.own().lock();
        // SAFETY: the child continues alone with this one thread and ends below, or by the alarm.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child if it waits for ever.
            unsafe { libc::alarm(20) };
            let queued = [id, add(&workers, &own)].map(|id| workers.queue(id).is_ok());
            while own.runs.load(Ordering::SeqCst) == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            let is_right = queued == [true; 2] && inherited.runs.load(Ordering::SeqCst) == 0;
            // SAFETY: ends here.
            unsafe { libc::_exit(if is_right { 0 } else { 1 }) };
        }
        drop(guard);
        let mut status = -1;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0, "the child waits for ever, or runs its parent's job");
    }
}
