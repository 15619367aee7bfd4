//! Tasks that run at intervals until they report that they are done.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A periodic task.
pub trait PeriodicTask: Debug + Send + Sync {
    /// Runs it. Returns whether there is more to do. It must not wait for a thread that waits for a
    /// watcher.
    fn run(&self) -> bool;
}

/// The tasks of a watcher.
#[derive(Debug, Default)]
pub struct PeriodicTasks(Mutex<ByAddress>);

/// Tasks by address. As long as a task is listed, no other one has its address.
type ByAddress = BTreeMap<usize, Weak<dyn PeriodicTask>>;

impl PeriodicTasks {
    /// Adds a task, to run as long as it lives and returns that there is more to do. Returns
    /// whether there was none before.
    pub fn add(&self, task: &Arc<dyn PeriodicTask>) -> bool {
        let mut tasks = self.lock();
        let is_first = tasks.is_empty();
        tasks.entry(Arc::as_ptr(task).addr()).or_insert_with(|| Arc::downgrade(task));
        is_first
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Runs all of them once.
    pub fn run(&self) {
        // Off the list during the run, so that the list is unlocked and a task can be added again.
        let tasks = std::mem::take(&mut *self.lock());
        for task in tasks.into_values() {
            let Some(task) = task.upgrade() else { continue };
            // The thread has other work, so it must survive a panic of this task.
            match catch_unwind(AssertUnwindSafe(|| task.run())) {
                Ok(true) => {
                    self.add(&task);
                }
                Ok(false) => {}
                Err(_) => {
                    log::warn!("a periodic task has panicked, which is a bug; it no longer runs")
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, ByAddress> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
