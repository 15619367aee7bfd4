//! A cell whose value one thread at a time may use: NCCL's, or the one that recovers the
//! connection.
//!
//! NCCL calls from one thread, many millions of times a second, and others come a few times in the
//! life of a connection, or once a second. So the first thread of NCCL's that enters owns the cell
//! and enters by plain loads and stores; the others pay.
//!
//! | | the fast path | the slow path |
//! |---|---|---|
//! | who | the owner, while the [`StateWord`] is clear | the owner otherwise; visitors; another thread of NCCL's |
//! | begins | stores [`INSIDE`] as its position, [`light_barrier`], loads the word: it is clear | sets the word's bit `held`, which was clear; then, if it is not the owner, [`heavy_barrier`], loads the owner's position until that is not [`INSIDE`] |
//! | ends | stores its own id as its position | clears the bit |
//!
//! Two threads on the slow path exclude each other by the bit. The owner on the slow path is not on
//! the fast one at the same time. For another thread on the slow path and the owner on the fast
//! one, the two halves of the barrier ensure that the owner finds the bit set, and steps back,
//! or the other thread finds the owner inside, and waits. An owner that steps back may be seen as
//! inside for a moment, which costs the other one a pause.
//!
//! Nobody but the owner stores its position, and there is one owner in the life of a cell: another
//! one could not be sure that the first one is not just about to store. When a second thread of
//! NCCL's enters, the word becomes shared: it is never clear again, and all take the slow path. An
//! owner that has ended may leave its id to a new thread, which is the owner then; and so it is in
//! a forked child, where a position that says [`INSIDE`] keeps everybody out.
//!
//! As long as the kernel has not allowed the barrier there is no owner: nobody's id is the
//! position, and all take the slow path, on which the bit alone excludes. A thread becomes the
//! owner while it holds the bit and knows that the barrier is allowed. Each later holder of the bit
//! knows both, so each thread that could meet an owner on the fast path has its half of the
//! barrier.

#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::net::data::state_word::StateWord;
use crate::net::data::sync::{
    AtomicBool, AtomicU32, AtomicUsize, Ordering, SPINS, Wait, has_barrier, heavy_barrier,
    light_barrier, pause, spin_loop, thread_id,
};
use std::cell::UnsafeCell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

/// A cell for the state of the data path, which NCCL uses from one thread at a time. If two of
/// NCCL's threads enter at once, one of them or both get an error instead of undefined behaviour.
/// Entering waits only for visitors: the thread that recovers the connection, and the one that
/// looks what it waits for.
#[repr(C)]
pub struct ExclusiveCell<T> {
    // First, here and in what holds a cell: so all have one address, which takes one register.
    state: UnsafeCell<T>,
    /// The owner's id while it is outside or on the slow path, or [`INSIDE`]. Before there is an
    /// owner, [`NOBODY`].
    position: AtomicUsize,
    /// The owner's id, [`NOBODY`], or [`ALL`]. Changed on the slow path.
    owner: AtomicUsize,
    word: Arc<StateWord>,
    /// Odd while a visitor is inside or wants to enter: incremented before and after.
    visits: AtomicU32,
    /// Whether there is a visitor: two of them would make the number even.
    has_visitor: AtomicBool,
    /// Whether NCCL has got an error of [`Self::enter`] itself.
    has_refused: AtomicBool,
}

/// What the first step of a call has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FirstStep {
    /// The call is complete.
    Done,
    /// The fast path continues.
    Next,
    /// Nothing has changed: the slow path decides.
    Other,
}

/// A [`FirstStep`], and with [`FirstStep::Next`] the thread inside.
#[derive(Debug)]
pub enum BegunCall<'a, T> {
    /// The call is complete.
    Done,
    /// The fast path continues.
    Next(Inside<'a, T>),
    /// Nothing has changed: the slow path decides.
    Other,
}

/// This thread is inside, by the fast path.
#[derive(Debug)]
#[must_use]
#[repr(transparent)]
pub struct Inside<'a, T>(&'a ExclusiveCell<T>, PhantomData<*const ()>);

/// Who is inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Occupant {
    /// NCCL's thread, or one that has panicked inside.
    Nccl,
    /// A visitor.
    Visitor,
}

// No ids of threads.
/// The owner is on the fast path, or has panicked there.
const INSIDE: usize = 1;
/// There is no owner yet.
const NOBODY: usize = usize::MAX;
/// There is no owner any more: the word is shared.
const ALL: usize = usize::MAX - 2;

/// How long a thread that recovers the connection waits for NCCL's to leave. NCCL's stays for
/// microseconds, unless it is stopped, or has panicked inside and will never leave.
const VISIT_LIMIT: Duration = Duration::from_secs(60);

// SAFETY: one caller at a time is inside, so `T` moves between threads but is never shared.
unsafe impl<T: Send> Sync for ExclusiveCell<T> {}

impl<T> ExclusiveCell<T> {
    /// A cell with `state` in it. `word` is used by no other cell.
    pub fn new(state: T, word: &Arc<StateWord>) -> Self {
        Self {
            position: AtomicUsize::new(NOBODY),
            owner: AtomicUsize::new(NOBODY),
            word: Arc::clone(word),
            visits: AtomicU32::new(0),
            has_visitor: AtomicBool::new(false),
            has_refused: AtomicBool::new(false),
            state: UnsafeCell::new(state),
        }
    }

    /// Runs `body` with exclusive access to the state, if this thread is the owner and the word is
    /// clear, or else returns `None`.
    #[cfg(test)]
    pub fn enter_if_clear<R>(&self, body: impl FnOnce(&mut T) -> R) -> Option<R> {
        let mut result = None;
        self.begin(|state| {
            result = Some(body(state));
            FirstStep::Done
        });
        result
    }

    /// Runs `step`, the first of a call, with exclusive access to the state, if this thread is the
    /// owner and the word is clear. After [`FirstStep::Next`] the thread stays inside, until
    /// [`Inside::resume`]; also after a panic, so that nobody can enter any more.
    #[inline(always)]
    pub fn begin(&self, step: impl FnOnce(&mut T) -> FirstStep) -> BegunCall<'_, T> {
        if !self.begin_fast() {
            return BegunCall::Other;
        }
        // SAFETY: this thread is inside, so there is no other reference, and none is made before it
        // leaves.
        match step(unsafe { &mut *self.state.get() }) {
            FirstStep::Next => BegunCall::Next(Inside(self, PhantomData)),
            FirstStep::Done => {
                self.end_fast();
                BegunCall::Done
            }
            FirstStep::Other => {
                self.end_fast();
                BegunCall::Other
            }
        }
    }

    /// Runs `body` with exclusive access to the state. If `body` panics, the state may be
    /// inconsistent, and nobody can enter any more.
    ///
    /// # Errors
    /// Another of NCCL's threads is inside, or `body` fails.
    #[inline(always)]
    pub fn enter<R>(&self, body: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let is_fast = self.begin_fast();
        if !is_fast {
            self.begin_slow().map_err(|e| self.log_once(e))?;
        }
        // SAFETY: as in `begin`.
        let result = body(unsafe { &mut *self.state.get() });
        if is_fast {
            self.end_fast();
        } else {
            self.word.release();
        }
        result
    }

    /// As [`Self::enter`], for the one thread that recovers the connection. It waits for NCCL's
    /// thread to leave, and NCCL's thread waits for it: `body` has to be short.
    ///
    /// # Errors
    /// NCCL's thread does not leave within [`VISIT_LIMIT`], or `body` fails.
    pub fn visit<R>(&self, body: impl FnOnce(&mut T) -> Result<R>) -> Result<R> {
        let wait = Wait::new(VISIT_LIMIT);
        while self.has_visitor.swap(true, Ordering::Acquire) {
            // One that has panicked inside will never leave.
            if !wait.step() {
                return Err(occupied());
            }
        }
        let _visit = Visit::begin(self);
        while !self.word.try_hold() {
            if !wait.step() {
                return Err(occupied());
            }
        }
        self.keep_owner_out(|| wait.step()).inspect_err(|_| self.word.release())?;
        // SAFETY: as in `begin`.
        let result = body(unsafe { &mut *self.state.get() });
        self.word.release();
        result
    }

    /// Runs `body`, which has to be short, unless somebody is inside. NCCL's thread waits for it.
    ///
    /// # Errors
    /// NCCL's thread or another visitor is inside.
    pub fn try_visit<R>(&self, body: impl FnOnce(&mut T) -> R) -> std::result::Result<R, Occupant> {
        // Seen without keeping NCCL's thread from anything.
        if self.position.load(Ordering::Relaxed) == INSIDE {
            return Err(Occupant::Nccl);
        }
        if self.has_visitor.swap(true, Ordering::Acquire) {
            return Err(Occupant::Visitor);
        }
        let _visit = Visit::begin(self);
        if !self.word.try_hold() {
            return Err(Occupant::Nccl);
        }
        if self.keep_owner_out(|| false).is_err() {
            self.word.release();
            return Err(Occupant::Nccl);
        }
        // SAFETY: as in `begin`.
        let result = body(unsafe { &mut *self.state.get() });
        self.word.release();
        Ok(result)
    }

    /// The state, unless somebody has panicked inside.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        let is_left = !self.word.is_held() && self.position.load(Ordering::Acquire) != INSIDE;
        is_left.then(|| self.state.get_mut())
    }

    /// Whether the calling thread has entered by the fast path.
    #[inline(always)]
    fn begin_fast(&self) -> bool {
        let me = thread_id();
        if self.position.load(Ordering::Relaxed) != me {
            return false;
        }
        self.position.store(INSIDE, Ordering::Relaxed);
        light_barrier();
        let is_clear = self.word.is_clear();
        if !is_clear {
            self.position.store(me, Ordering::Release);
        }
        is_clear
    }

    #[inline(always)]
    fn end_fast(&self) {
        // Asked for again, which is cheaper than to keep it.
        self.position.store(thread_id(), Ordering::Release);
    }

    /// Enters by the slow path, for a thread of NCCL's, once a visitor has left.
    ///
    /// # Errors
    /// It is not a visitor that is inside.
    #[cold]
    #[inline(never)]
    fn begin_slow(&self) -> Result<()> {
        let mut spins = 0;
        loop {
            let visits = self.visits.load(Ordering::SeqCst);
            if self.word.try_hold() {
                break;
            }
            // Without a visit meanwhile, it is one of NCCL's threads that is inside.
            if visits.is_multiple_of(2) && self.visits.load(Ordering::SeqCst) == visits {
                return Err(occupied());
            }
            // Most visits are looks of a few microseconds.
            if spins < SPINS {
                spins += 1;
                spin_loop();
            } else {
                pause();
            }
        }
        self.admit(thread_id()).inspect_err(|_| self.word.release())
    }

    /// Marks all errors but the first as logged, since NCCL repeats a failed call.
    #[cold]
    fn log_once(&self, error: Error) -> Error {
        let is_first = !self.has_refused.swap(true, Ordering::Relaxed);
        if is_first { error } else { error.logged() }
    }

    /// A thread of NCCL's holds the word.
    ///
    /// # Errors
    /// The owner is inside, which is another thread or has panicked there.
    fn admit(&self, me: usize) -> Result<()> {
        match self.owner.load(Ordering::Relaxed) {
            NOBODY if has_barrier() => {
                self.owner.store(me, Ordering::Relaxed);
                self.position.store(me, Ordering::Relaxed);
            }
            ALL | NOBODY => {}
            owner => {
                if owner != me {
                    self.word.share();
                }
                self.keep_owner_out(|| false)?;
                if owner != me {
                    self.owner.store(ALL, Ordering::Relaxed);
                }
            }
        }
        Ok(())
    }

    /// Waits for the owner to leave, which does not enter again while the calling thread holds the
    /// word. `step` waits for a moment; when it returns false, the wait ends.
    ///
    /// # Errors
    /// The wait has ended, or the kernel refuses the barrier.
    fn keep_owner_out(&self, step: impl Fn() -> bool) -> Result<()> {
        match self.owner.load(Ordering::Relaxed) {
            ALL | NOBODY => return Ok(()),
            owner if owner == thread_id() => {}
            _ => heavy_barrier()?,
        }
        while self.position.load(Ordering::Acquire) == INSIDE {
            if !step() {
                return Err(occupied());
            }
        }
        Ok(())
    }
}

impl<T> Inside<'_, T> {
    /// Runs `step`, the last of the call, with exclusive access to the state, and leaves. `failed`
    /// gets its error first.
    ///
    /// # Errors
    /// `step` fails.
    #[inline(always)]
    pub fn resume<R>(
        self,
        step: impl FnOnce(&mut T) -> Result<R>,
        failed: impl FnOnce(&mut T, Error) -> Error,
    ) -> Result<R> {
        // SAFETY: as in `begin`, whose reference is gone.
        match step(unsafe { &mut *self.0.state.get() }) {
            Ok(value) => {
                self.0.end_fast();
                Ok(value)
            }
            Err(error) => Err(self.fail(error, failed)),
        }
    }

    /// Leaves after an error.
    #[cold]
    #[inline(never)]
    fn fail(self, error: Error, failed: impl FnOnce(&mut T, Error) -> Error) -> Error {
        // SAFETY: as above.
        let error = failed(unsafe { &mut *self.0.state.get() }, error);
        self.0.end_fast();
        error
    }
}

/// A visit, which ends when this is dropped, also by a panic. The word stays held then, and NCCL's
/// thread gets an error.
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
