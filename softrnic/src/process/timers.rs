//! Work that has to be done later: by a poll of the application or by the service thread, whichever comes first.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Mutex;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::host::clock::now_ns;
use crate::host::lock::lock;

/// Work with a time.
pub(crate) trait Task: Debug + Send {
    /// Does it.
    fn run(self: Box<Self>);
}

/// Tasks by time.
#[derive(Debug)]
pub(crate) struct Timers {
    /// Earliest time in `tasks`; `u64::MAX` if there is none.
    next: AtomicU64,
    /// Key: time, and a serial number that keeps tasks of the same time apart.
    tasks: Mutex<BTreeMap<(u64, u64), Box<dyn Task>>>,
    serial: AtomicU64,
}

impl Default for Timers {
    fn default() -> Self {
        Self { next: AtomicU64::new(u64::MAX), tasks: Mutex::default(), serial: AtomicU64::new(0) }
    }
}

impl Timers {
    /// Adds `task`, to be done at `at` (ns). True if it is the earliest now.
    pub(crate) fn insert(&self, at: u64, task: Box<dyn Task>) -> bool {
        let mut tasks = lock(&self.tasks);
        tasks.insert((at, self.serial.fetch_add(1, Relaxed)), task);
        let is_earliest = at < self.next.load(Relaxed);
        if is_earliest {
            self.next.store(at, SeqCst);
        }
        is_earliest
    }

    /// When the next task is due; `u64::MAX`: never.
    pub(crate) fn next(&self) -> u64 {
        self.next.load(SeqCst)
    }

    /// Runs the tasks that are due.
    #[inline]
    pub(crate) fn run_due(&self) {
        let next = self.next.load(Relaxed);
        if next != u64::MAX && next <= now_ns() {
            self.run();
        }
    }

    #[cold]
    fn run(&self) {
        let mut tasks = lock(&self.tasks);
        let later = tasks.split_off(&(now_ns() + 1, 0));
        let due = std::mem::replace(&mut *tasks, later);
        self.next.store(tasks.keys().next().map_or(u64::MAX, |key| key.0), SeqCst);
        drop(tasks);
        due.into_values().for_each(|task| task.run());
    }
}
