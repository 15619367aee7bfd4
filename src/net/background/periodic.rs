//! Tasks that are done at intervals, until they return that they are done.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// One such task.
pub trait PeriodicTask: Debug + Send + Sync {
    /// Does it; whether there will be more to do. It must not wait for anybody who waits for a watcher.
    fn run(&self) -> bool;
}

/// The tasks of a watcher.
#[derive(Debug, Default)]
pub struct PeriodicTasks(Mutex<Vec<Weak<dyn PeriodicTask>>>);

impl PeriodicTasks {
    /// Takes one up, as long as it lives and returns that there will be more to do. Returns whether there was none before.
    pub fn add(&self, task: &Arc<dyn PeriodicTask>) -> bool {
        let mut tasks = self.lock();
        let is_first = tasks.is_empty();
        if !tasks.iter().any(|known| std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(task))) {
            tasks.push(Arc::downgrade(task));
        }
        is_first
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Does all of them once.
    pub fn run(&self) {
        // Off the list meanwhile, so that one that comes back is put on it; and the list is not locked.
        let tasks = std::mem::take(&mut *self.lock());
        for task in tasks {
            let Some(task) = task.upgrade() else { continue };
            // The thread has other things to do than this task.
            match catch_unwind(AssertUnwindSafe(|| task.run())) {
                Ok(true) => {
                    self.add(&task);
                }
                Ok(false) => {}
                Err(_) => log::warn!("a periodic task has panicked: a bug; it is not done any more"),
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Weak<dyn PeriodicTask>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
