//! The guard of the data path, explored by a model checker: every order of the threads' steps, and
//! every value that the memory model lets a load return. The sources are the plugin's, with the
//! checker's atomics in place of the processor's, and with a fence in place of each half of the
//! memory barrier: what `src/net/data/sync.rs` says that they do together.

// The sources are larger than what is explored.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "files of the plugin")]

mod error {
    #[derive(Debug, PartialEq, Eq)]
    pub struct Error;

    impl Error {
        pub fn internal(_text: &str) -> Self {
            Self
        }

        pub fn logged(self) -> Self {
            self
        }
    }

    pub type Result<T> = std::result::Result<T, Error>;
}

/// In place of `src/net/data/sync.rs`.
mod sync {
    pub use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
    pub use loom::thread::{yield_now as pause, yield_now as spin_loop};

    pub const SPINS: u32 = 1;

    loom::thread_local! {
        static ID: std::cell::Cell<usize> = std::cell::Cell::new(2);
    }

    /// From now on the calling thread has this number. Other threads have 2.
    pub fn set_thread_id(id: usize) {
        ID.with(|own| own.set(id));
    }

    pub fn thread_id() -> usize {
        ID.with(std::cell::Cell::get)
    }

    loom::lazy_static! {
        static ref HAS_BARRIER: AtomicBool = AtomicBool::new(false);
    }

    pub fn has_barrier() -> bool {
        HAS_BARRIER.load(Ordering::Acquire)
    }

    /// The kernel allows the barrier.
    pub fn enable_barrier() {
        HAS_BARRIER.store(true, Ordering::Release);
    }

    pub fn light_barrier() {
        assert!(has_barrier(), "without the other half this one orders nothing");
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    pub fn heavy_barrier() -> crate::error::Result<()> {
        assert!(has_barrier(), "the kernel refuses");
        loom::sync::atomic::fence(Ordering::SeqCst);
        Ok(())
    }

    #[derive(Debug)]
    pub struct Wait;

    impl Wait {
        pub fn new(_limit: std::time::Duration) -> Self {
            Self
        }

        pub fn step(&self) -> bool {
            pause();
            true
        }
    }
}

#[path = "../../../src/net/data/exclusive_cell.rs"]
mod exclusive_cell;
#[path = "../../../src/net/data/state_word.rs"]
mod state_word;

mod net {
    pub(crate) mod data {
        pub(crate) use crate::{state_word, sync};
    }
}

use exclusive_cell::ExclusiveCell;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A cell, and a number whose use by two threads at once the checker notices.
struct Guarded {
    cell: ExclusiveCell<()>,
    number: UnsafeCell<u32>,
}

impl Guarded {
    /// Of nobody.
    fn unowned() -> Arc<Self> {
        let cell = ExclusiveCell::new((), &std::sync::Arc::default());
        Arc::new(Self { cell, number: UnsafeCell::new(0) })
    }

    /// Of nobody, and the kernel allows the barrier.
    fn unowned_with_barrier() -> Arc<Self> {
        sync::enable_barrier();
        Self::unowned()
    }

    /// Owned by the calling thread, which has entered once.
    fn owned() -> Arc<Self> {
        let this = Self::unowned_with_barrier();
        assert!(this.enter());
        assert!(this.cell.enter_if_clear(|()| ()).is_some());
        this
    }

    fn increment(&self) -> error::Result<()> {
        // SAFETY: the checker notices an access at the same time.
        self.number.with_mut(|number| unsafe { *number += 1 });
        Ok(())
    }

    fn number(&self) -> u32 {
        // SAFETY: as above.
        self.number.with(|number| unsafe { *number })
    }

    /// Whether NCCL's thread could enter.
    fn enter(&self) -> bool {
        self.cell.enter(|()| self.increment()).is_ok()
    }

    fn visit(&self) -> bool {
        self.cell.visit(|()| self.increment()).is_ok()
    }

    fn try_visit(&self) -> bool {
        self.cell.try_visit(|()| self.increment()).is_ok()
    }
}

/// Has another thread do `other` while the owner enters three times. Each `Ok` of theirs is counted in
/// the number.
fn explore(new: fn() -> Arc<Guarded>, other: fn(&Guarded) -> bool, may_owner_fail: bool) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(move || {
        let guarded = new();
        let before = guarded.number();
        let thread = {
            let guarded = Arc::clone(&guarded);
            thread::spawn(move || {
                sync::set_thread_id(4);
                u32::from(other(&guarded))
            })
        };
        let entered = (0..3).filter(|_| guarded.enter()).count() as u32;
        assert!(may_owner_fail || entered == 3, "it waits for visitors");
        let others = thread.join().expect("it does not panic");
        guarded.cell.visit(|()| Ok(())).expect("all have left");
        assert_eq!(guarded.number(), before + entered + others);
    });
}

#[test]
fn a_visitor_and_the_owner_are_never_inside_at_once() {
    explore(Guarded::owned, Guarded::visit, false);
}

#[test]
fn a_visitor_that_does_not_wait_and_the_owner_are_never_inside_at_once() {
    explore(Guarded::owned, Guarded::try_visit, false);
}

#[test]
fn two_threads_of_nccls_are_never_inside_at_once() {
    explore(Guarded::owned, Guarded::enter, true);
}

#[test]
fn a_visitor_and_the_first_thread_that_enters_are_never_inside_at_once() {
    explore(Guarded::unowned_with_barrier, Guarded::visit, false);
}

#[test]
fn two_threads_that_enter_first_are_never_inside_at_once() {
    explore(Guarded::unowned_with_barrier, Guarded::enter, true);
}

/// The kernel allows the barrier before, between or after the entries of the thread that becomes
/// the owner.
#[test]
fn a_visitor_and_a_thread_that_enters_before_the_barrier_are_never_inside_at_once() {
    let visit = |guarded: &Guarded| {
        sync::enable_barrier();
        guarded.visit()
    };
    explore(Guarded::unowned, visit, false);
}

#[test]
fn two_threads_that_enter_before_the_barrier_are_never_inside_at_once() {
    let enter = |guarded: &Guarded| {
        sync::enable_barrier();
        guarded.enter()
    };
    explore(Guarded::unowned, enter, true);
}

#[test]
fn without_the_barrier_two_threads_are_never_inside_at_once() {
    explore(Guarded::unowned, Guarded::visit, false);
    explore(Guarded::unowned, Guarded::enter, true);
}
