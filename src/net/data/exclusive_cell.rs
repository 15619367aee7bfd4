//! A cell for state that one thread at a time may use.

use crate::error::{Error, Result};
use std::cell::UnsafeCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// State of the data path. NCCL calls it from one thread at a time; if it ever does not, the second caller gets an error
/// instead of undefined behaviour. Never waits.
pub struct ExclusiveCell<T> {
    entered: AtomicBool,
    state: UnsafeCell<T>,
}

// SAFETY: `enter` lets one caller in at a time, so `T` moves between threads but is never shared.
unsafe impl<T: Send> Sync for ExclusiveCell<T> {}

impl<T> ExclusiveCell<T> {
    /// Wraps `state`.
    pub fn new(state: T) -> Self {
        Self { entered: AtomicBool::new(false), state: UnsafeCell::new(state) }
    }

    /// Runs `body` with exclusive access to the state. If it panics, the state may be anything: it stays shut.
    ///
    /// # Errors
    /// Another thread is inside, or what `body` says.
    #[inline(always)]
    pub fn enter<R>(&self, body: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        // Acquire pairs with the Release below: what the thread before us wrote is seen.
        if self.entered.swap(true, Ordering::Acquire) {
            return Err(occupied());
        }
        // SAFETY: `entered` was not set and is now, so nobody else has a reference, nor gets one before it is cleared.
        let result = body(unsafe { &mut *self.state.get() });
        self.entered.store(false, Ordering::Release);
        result
    }
}

#[cold]
#[inline(never)]
fn occupied() -> Error {
    Error::internal(
        "two threads are in one communicator's isend, irecv, iflush or test at once, or one has panicked there",
    )
}

impl<T> fmt::Debug for ExclusiveCell<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExclusiveCell").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::panic::AssertUnwindSafe;

    #[test]
    fn the_second_caller_is_turned_away() {
        let cell = ExclusiveCell::new(1);
        let inside = |state: &mut i32| {
            *state += 1;
            assert!(cell.enter(|_| Ok(())).is_err());
            Ok(*state)
        };
        assert_eq!(cell.enter(inside), Ok(2));
        assert_eq!(cell.enter(inside), Ok(3));
    }

    #[test]
    fn a_panic_leaves_it_shut() {
        let cell = ExclusiveCell::new(());
        let panicked =
            std::panic::catch_unwind(AssertUnwindSafe(|| cell.enter(|()| -> Result<()> { panic!("on purpose") })));
        assert!(panicked.is_err());
        assert!(cell.enter(|()| Ok(())).is_err());
    }
}
