//! A cell whose value one thread at a time may use: NCCL's, or the one that recovers the connection.

use crate::error::{Error, Result};
use std::cell::UnsafeCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A cell for the state of the data path, which NCCL uses from one thread at a time. If two of NCCL's threads enter at once, the
/// second one gets an error instead of undefined behaviour. Entering waits only for visitors: the thread that recovers the connection, and the one
/// that looks what it waits for.
pub struct ExclusiveCell<T> {
    entered: AtomicBool,
    /// Odd while the thread that recovers the connection is inside or wants to enter: incremented before and after.
    visits: AtomicU32,
    /// Whether there is a visitor: two of them would make the number even.
    has_visitor: AtomicBool,
    state: UnsafeCell<T>,
}

/// Who is inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occupant {
    /// NCCL's thread, or one that has panicked inside.
    Nccl,
    /// A visitor.
    Visitor,
}

/// A pause between two attempts to enter. To yield would not do: a thread that yields comes last on a busy machine.
const PAUSE: Duration = Duration::from_micros(20);
/// How long a thread that recovers the connection waits for NCCL's to leave. NCCL's stays for microseconds, unless it is stopped,
/// or has panicked inside and will never leave.
const VISIT_LIMIT: Duration = Duration::from_secs(60);

// SAFETY: `enter` lets one caller in at a time, so `T` moves between threads but is never shared.
unsafe impl<T: Send> Sync for ExclusiveCell<T> {}

impl<T> ExclusiveCell<T> {
    /// A cell with `state` in it.
    pub fn new(state: T) -> Self {
        Self {
            entered: AtomicBool::new(false),
            visits: AtomicU32::new(0),
            has_visitor: AtomicBool::new(false),
            state: UnsafeCell::new(state),
        }
    }

    /// Runs `body` with exclusive access to the state. If `body` panics, the state may be inconsistent, and nobody can enter any
    /// more.
    ///
    /// # Errors
    /// Another of NCCL's threads is inside, or `body` fails.
    #[inline(always)]
    pub fn enter<R>(&self, body: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        // Acquire pairs with the Release below: the writes of the thread that was inside before are visible.
        if self.entered.swap(true, Ordering::Acquire) {
            self.wait_for_visitor()?;
        }
        // SAFETY: `entered` was clear and is set now, so there is no other reference, and none is made before it is cleared.
        let result = body(unsafe { &mut *self.state.get() });
        self.entered.store(false, Ordering::Release);
        result
    }

    /// As [`Self::enter`], for the one thread that recovers the connection. It waits for NCCL's thread to leave, and NCCL's thread
    /// waits for it: `body` has to be short.
    ///
    /// # Errors
    /// NCCL's thread does not leave within [`VISIT_LIMIT`], or `body` fails.
    pub fn visit<R>(&self, body: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let start = Instant::now();
        while self.has_visitor.swap(true, Ordering::Acquire) {
            // One that has panicked inside will never leave.
            if start.elapsed() > VISIT_LIMIT {
                return Err(occupied());
            }
            std::thread::sleep(PAUSE);
        }
        let _visit = Visit::begin(self);
        let mut is_free = true;
        while self.entered.swap(true, Ordering::Acquire) {
            if start.elapsed() > VISIT_LIMIT {
                is_free = false;
                break;
            }
            std::thread::sleep(PAUSE);
        }
        if !is_free {
            return Err(occupied());
        }
        // SAFETY: as in `enter`.
        let result = body(unsafe { &mut *self.state.get() });
        self.entered.store(false, Ordering::Release);
        result
    }

    /// Runs `body`, which has to be short, unless somebody is inside. NCCL's thread waits for it.
    ///
    /// # Errors
    /// NCCL's thread or another visitor is inside.
    pub fn try_visit<R>(&self, body: impl FnOnce(&mut T) -> R) -> std::result::Result<R, Occupant> {
        if self.has_visitor.swap(true, Ordering::Acquire) {
            return Err(Occupant::Visitor);
        }
        let _visit = Visit::begin(self);
        if self.entered.swap(true, Ordering::Acquire) {
            return Err(Occupant::Nccl);
        }
        // SAFETY: as in `enter`.
        let result = body(unsafe { &mut *self.state.get() });
        self.entered.store(false, Ordering::Release);
        Ok(result)
    }

    /// Enters once the thread that recovers the connection has left.
    ///
    /// # Errors
    /// It is not that thread that is inside.
    #[cold]
    #[inline(never)]
    fn wait_for_visitor(&self) -> Result<()> {
        loop {
            let visits = self.visits.load(Ordering::SeqCst);
            if !self.entered.swap(true, Ordering::Acquire) {
                return Ok(());
            }
            // Without a visit meanwhile, it is one of NCCL's threads that is inside.
            if visits.is_multiple_of(2) && self.visits.load(Ordering::SeqCst) == visits {
                return Err(occupied());
            }
            std::thread::sleep(PAUSE);
        }
    }
}

/// A visit, which ends when this is dropped, also by a panic. The cell stays entered then, and NCCL's thread gets an error.
struct Visit<'a> {
    visits: &'a AtomicU32,
    has_visitor: &'a AtomicBool,
}

impl<'a> Visit<'a> {
    /// There is no other visitor.
    fn begin<T>(cell: &'a ExclusiveCell<T>) -> Self {
        cell.visits.fetch_add(1, Ordering::SeqCst);
        Self { visits: &cell.visits, has_visitor: &cell.has_visitor }
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.visits.fetch_add(1, Ordering::SeqCst);
        self.has_visitor.store(false, Ordering::Release);
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
    fn a_visitor_and_nccls_thread_wait_for_each_other() {
        let cell = ExclusiveCell::new(0u64);
        let times = 20_000;
        let increment = |state: &mut u64| {
            *state += 1;
            Ok(())
        };
        std::thread::scope(|scope| {
            scope.spawn(|| (0..times).for_each(|_| cell.visit(increment).expect("it waits")));
            scope.spawn(|| (0..times).for_each(|_| cell.enter(increment).expect("it waits")));
        });
        assert_eq!(cell.enter(|state| Ok(*state)), Ok(2 * times));
    }

    #[test]
    fn two_visitors_disturb_neither_each_other_nor_nccls_thread() {
        let (cell, is_over) = (ExclusiveCell::new(0), AtomicBool::new(false));
        let goes_on = || !is_over.load(Ordering::Relaxed);
        let increment = |state: &mut usize| *state += 1;
        let visit = |state: &mut usize| {
            increment(state);
            // So long that both others come meanwhile.
            std::thread::sleep(Duration::from_micros(50));
            Ok(())
        };
        let enter = |state: &mut usize| {
            increment(state);
            Ok(())
        };
        let visits = 300;
        let (tried, entered) = std::thread::scope(|scope| {
            let tries =
                scope.spawn(|| std::iter::from_fn(|| goes_on().then(|| cell.try_visit(increment))).flatten().count());
            let enters =
                scope.spawn(|| std::iter::from_fn(|| goes_on().then(|| cell.enter(enter).expect("it waits"))).count());
            (0..visits).for_each(|_| cell.visit(visit).expect("it waits"));
            is_over.store(true, Ordering::Relaxed);
            (tries.join().expect("it does not panic"), enters.join())
        });
        let entered = entered.expect("NCCL's thread waits for visitors");
        assert_eq!(cell.enter(|state| Ok(*state)), Ok(visits + tried + entered));
        assert_eq!(cell.enter(|_| Ok(cell.try_visit(|_| ()))), Ok(Err(Occupant::Nccl)));
        assert_eq!(cell.visit(|_| Ok(cell.try_visit(|_| ()))), Ok(Err(Occupant::Visitor)));
    }

    #[test]
    fn nobody_can_enter_after_a_panic() {
        let cell = ExclusiveCell::new(());
        let panicked =
            std::panic::catch_unwind(AssertUnwindSafe(|| cell.enter(|()| -> Result<()> { panic!("on purpose") })));
        assert!(panicked.is_err());
        assert!(cell.enter(|()| Ok(())).is_err());
    }

    #[test]
    fn nccls_thread_gets_an_error_after_a_visitor_has_panicked() {
        let cell = ExclusiveCell::new(());
        let look = || cell.try_visit(|()| panic!("on purpose"));
        assert!(std::panic::catch_unwind(AssertUnwindSafe(look)).is_err());
        assert!(cell.enter(|()| Ok(())).is_err(), "it does not wait for ever");
        assert_eq!(cell.try_visit(|()| ()), Err(Occupant::Nccl));
    }
}
