//! A cell for state that one thread at a time may use.

use crate::error::{Error, Result};
use std::cell::UnsafeCell;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};

/// State of the data path. NCCL calls it from one thread at a time; if it ever does not, the second caller gets an error
/// instead of undefined behaviour. Never waits.
pub struct SingleCaller<T> {
    entered: AtomicBool,
    state: UnsafeCell<T>,
}

// SAFETY: `enter` gives out one guard at a time, so `T` moves between threads but is never shared.
unsafe impl<T: Send> Sync for SingleCaller<T> {}

/// Access to the state; ends when dropped.
#[must_use]
pub struct Entered<'a, T>(&'a SingleCaller<T>);

impl<T> SingleCaller<T> {
    /// Wraps `state`.
    pub fn new(state: T) -> Self {
        Self { entered: AtomicBool::new(false), state: UnsafeCell::new(state) }
    }

    /// Exclusive access.
    ///
    /// # Errors
    /// Another thread is inside.
    #[inline]
    pub fn enter(&self) -> Result<Entered<'_, T>> {
        // Acquire pairs with the Release in `drop`: what the thread before us wrote is seen.
        if self.entered.swap(true, Ordering::Acquire) {
            return Err(occupied());
        }
        Ok(Entered(self))
    }
}

#[cold]
fn occupied() -> Error {
    Error::internal(
        "two threads are in one communicator's isend, irecv, iflush or test at once, or one has panicked there",
    )
}

impl<T> Deref for Entered<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard is the only one, by `entered`.
        unsafe { &*self.0.state.get() }
    }
}

impl<T> DerefMut for Entered<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and the guard is exclusively borrowed.
        unsafe { &mut *self.0.state.get() }
    }
}

impl<T> Drop for Entered<'_, T> {
    #[inline]
    fn drop(&mut self) {
        // After a panic the state may be anything: it stays shut.
        if !std::thread::panicking() {
            self.0.entered.store(false, Ordering::Release);
        }
    }
}

impl<T> fmt::Debug for SingleCaller<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SingleCaller").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Entered<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Entered").finish_non_exhaustive()
    }
}

/// A request was tested after it had ended: the caller's mistake.
pub fn stale(violation: crate::proto::Violation) -> Error {
    Error::internal(violation.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_caller_is_turned_away() {
        let cell = SingleCaller::new(1);
        let mut first = cell.enter().expect("nobody is inside");
        *first += 1;
        assert!(cell.enter().is_err());
        drop(first);
        assert_eq!(*cell.enter().expect("nobody is inside"), 2);
    }
}
