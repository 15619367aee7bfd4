//! A cell whose value one thread at a time may use.

use crate::error::{Error, Result};
use std::cell::UnsafeCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

/// A cell for the state of the data path, which NCCL uses from one thread at a time. If two threads enter at once, the second
/// one gets an error instead of undefined behaviour. Entering never waits.
pub struct ExclusiveCell<T> {
    entered: AtomicBool,
    state: UnsafeCell<T>,
}

// SAFETY: `enter` lets one caller in at a time, so `T` moves between threads but is never shared.
unsafe impl<T: Send> Sync for ExclusiveCell<T> {}

impl<T> ExclusiveCell<T> {
    /// A cell with `state` in it.
    pub fn new(state: T) -> Self {
        Self { entered: AtomicBool::new(false), state: UnsafeCell::new(state) }
    }

    /// Runs `body` with exclusive access to the state. If `body` panics, the state may be inconsistent, and nobody can enter any
    /// more.
    ///
    /// # Errors
    /// Another thread is inside, or `body` fails.
    #[inline(always)]
    pub fn enter<R>(&self, body: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        // Acquire pairs with the Release below: the writes of the thread that was inside before are visible.
        if self.entered.swap(true, Ordering::Acquire) {
            return Err(occupied());
        }
        // SAFETY: `entered` was clear and is set now, so there is no other reference, and none is made before it is cleared.
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
    fn the_second_caller_gets_an_error() {
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
    fn nobody_can_enter_after_a_panic() {
        let cell = ExclusiveCell::new(());
        let panicked =
            std::panic::catch_unwind(AssertUnwindSafe(|| cell.enter(|()| -> Result<()> { panic!("on purpose") })));
        assert!(panicked.is_err());
        assert!(cell.enter(|()| Ok(())).is_err());
    }
}
