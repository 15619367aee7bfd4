//! Threads for work that is rare and may take long: creating, connecting and destroying queue pairs after a fault.
//!
//! There is no thread while there is nothing to do: the first job starts one, and one that has had nothing to do for
//! [`IDLE_LIMIT`] ends. A job is run by one thread at a time. If it is queued while it runs, it runs again afterwards.

use super::signals::without_signals;
use crate::error::{Error, Result};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt::Debug;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Threads at most. They wait for the kernel and for devices more than they compute.
const MAX_THREADS: usize = 4;
/// How long a thread without work stays.
const IDLE_LIMIT: Duration = Duration::from_secs(10);

/// Work that is done in steps.
pub trait Job: Debug + Send + Sync {
    /// Does what can be done now. Returns when it is to be called again, if it is not queued before.
    fn run(&self) -> Option<Instant>;
}

/// Names a job within its [`Workers`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct JobId(u64);

/// The threads, and the jobs that they run.
#[derive(Debug, Default)]
pub struct Workers {
    state: Mutex<State>,
    has_work: Condvar,
}

#[derive(Debug, Default)]
struct State {
    jobs: BTreeMap<JobId, Entry>,
    ready: VecDeque<JobId>,
    due: BTreeSet<(Instant, JobId)>,
    threads: usize,
    idle: usize,
    next: u64,
    /// The process whose threads these are. A forked child has none of them.
    owner: u32,
}

#[derive(Debug)]
struct Entry {
    job: Weak<dyn Job>,
    is_running: bool,
    /// Whether it is among the ready ones, or is to be when it has run.
    is_queued: bool,
    due: Option<Instant>,
}

impl Workers {
    /// Enters a job, which runs only when it is queued.
    pub fn add(&self, job: Weak<dyn Job>) -> JobId {
        let mut state = self.lock();
        let id = JobId(state.next);
        state.next += 1;
        state.jobs.insert(id, Entry { job, is_running: false, is_queued: false, due: None });
        id
    }

    /// Removes a job. It may still be running.
    pub fn remove(&self, id: JobId) {
        let mut state = self.lock();
        if let Some(due) = state.jobs.remove(&id).and_then(|entry| entry.due) {
            state.due.remove(&(due, id));
        }
    }

    /// Has a job run soon, in a thread of its own if there is none without work.
    ///
    /// # Errors
    /// There is no thread, and none can be started.
    pub fn queue(self: &Arc<Self>, id: JobId) -> Result<()> {
        let mut state = self.lock();
        state.forget_parent();
        let Some(entry) = state.jobs.get_mut(&id) else { return Ok(()) };
        if !std::mem::replace(&mut entry.is_queued, true) && !entry.is_running {
            state.ready.push_back(id);
        }
        if state.idle < state.ready.len() && state.threads < MAX_THREADS {
            self.start(&mut state)?;
        }
        drop(state);
        self.has_work.notify_one();
        Ok(())
    }

    fn start(self: &Arc<Self>, state: &mut State) -> Result<()> {
        let run = Arc::clone(self);
        let started =
            without_signals(|| std::thread::Builder::new().name("ferrite-recover".into()).spawn(move || run.run()));
        match started {
            Ok(_) => state.threads += 1,
            Err(e) if state.threads == 0 => return Err(Error::io("starting the thread that recovers connections", &e)),
            Err(_) => {}
        }
        Ok(())
    }

    fn run(&self) {
        let mut state = self.lock();
        let mut idle_since = Instant::now();
        loop {
            let now = Instant::now();
            state.take_due(now);
            if let Some((id, job)) = state.begin() {
                drop(state);
                let again = job.run();
                // It may be the last that holds the connection: dropped without the lock.
                drop(job);
                state = self.lock();
                state.finish(id, again);
                idle_since = Instant::now();
                continue;
            }
            let limit = idle_since + IDLE_LIMIT;
            // While a job has a time, one thread stays for it.
            if now >= limit && (state.due.is_empty() || state.threads > 1) {
                state.threads -= 1;
                return;
            }
            let until =
                state.due.first().map_or(limit, |(due, _)| if state.threads > 1 { limit.min(*due) } else { *due });
            state.idle += 1;
            let pause = until.saturating_duration_since(now);
            state = self.has_work.wait_timeout(state, pause).unwrap_or_else(PoisonError::into_inner).0;
            state.idle -= 1;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// In a forked child the parent's threads do not exist.
    fn forget_parent(&mut self) {
        let process = std::process::id();
        if self.owner != process {
            (self.owner, self.threads, self.idle) = (process, 0, 0);
        }
    }

    /// Moves the jobs whose time has come to the ready ones.
    fn take_due(&mut self, now: Instant) {
        while let Some((due, id)) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.remove(&(due, id));
            let Some(entry) = self.jobs.get_mut(&id) else { continue };
            entry.due = None;
            if !std::mem::replace(&mut entry.is_queued, true) && !entry.is_running {
                self.ready.push_back(id);
            }
        }
    }

    /// The next job to be run.
    fn begin(&mut self) -> Option<(JobId, Arc<dyn Job>)> {
        while let Some(id) = self.ready.pop_front() {
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

    /// A job has run, and is to be run again at `again`.
    fn finish(&mut self, id: JobId, again: Option<Instant>) {
        let Some(entry) = self.jobs.get_mut(&id) else { return };
        entry.is_running = false;
        if entry.is_queued {
            self.ready.push_back(id);
        } else if let Some(again) = again {
            entry.due = Some(again);
            self.due.insert((again, id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// Counts its runs, and how many threads are in it at once.
    #[derive(Debug, Default)]
    struct Counter {
        runs: AtomicU32,
        inside: AtomicU32,
        most: AtomicU32,
        again: Option<Duration>,
    }

    impl Job for Counter {
        fn run(&self) -> Option<Instant> {
            let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
            self.most.fetch_max(inside, Ordering::SeqCst);
            std::thread::sleep(Duration::from_micros(100));
            self.inside.fetch_sub(1, Ordering::SeqCst);
            self.runs.fetch_add(1, Ordering::SeqCst);
            self.again.map(|pause| Instant::now() + pause)
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

    #[test]
    fn a_job_that_is_queued_runs_in_one_thread_at_a_time() {
        let workers = Arc::new(Workers::default());
        let jobs: Vec<_> = (0..20).map(|_| Arc::<Counter>::default()).collect();
        let ids: Vec<_> = jobs.iter().map(|job| add(&workers, job)).collect();
        for round in 1..=10 {
            ids.iter().for_each(|id| workers.queue(*id).expect("a thread"));
            wait_until("each has run", || jobs.iter().all(|job| job.runs.load(Ordering::SeqCst) >= round));
        }
        assert!(jobs.iter().all(|job| job.most.load(Ordering::SeqCst) == 1));
        assert!(workers.lock().threads <= MAX_THREADS);
    }

    #[test]
    fn a_job_runs_again_at_its_time_until_it_is_removed_or_dropped() {
        let workers = Arc::new(Workers::default());
        let job = || Arc::new(Counter { again: Some(Duration::from_micros(200)), ..Counter::default() });
        let (removed, dropped) = (job(), job());
        let ids = [add(&workers, &removed), add(&workers, &dropped)];
        ids.iter().for_each(|id| workers.queue(*id).expect("a thread"));
        wait_until("it runs again", || {
            removed.runs.load(Ordering::SeqCst) > 3 && dropped.runs.load(Ordering::SeqCst) > 3
        });
        workers.remove(ids[0]);
        drop(dropped);
        wait_until("nothing is left", || workers.lock().jobs.is_empty() && Arc::strong_count(&removed) == 1);
    }
}
