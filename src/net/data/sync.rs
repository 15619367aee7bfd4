//! Primitives of the data path's guard: thread identity, an asymmetric memory barrier, and pauses.
//! `tests/models` replaces this file by a model checker's atomics, threads and barriers.
//!
//! Say thread A stores `x`, calls [`light_barrier`] and loads `y`. Thread B stores `y`, calls
//! [`heavy_barrier`] and loads `x`. Then at least one of them sees the other's store, as if both
//! had executed `fence(SeqCst)`.
//!
//! The light half only keeps the compiler from reordering. The heavy half is the system call
//! `membarrier`, during which each running thread of the process executes a full fence. A thread
//! that does not run executed one when it was descheduled, and executes another before it runs
//! again. If A's fence precedes its store, A loads `y` after B's store. Otherwise B loads `x` after
//! A's store.

#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::net::background::signals::without_signals;
use std::io;
use std::sync::atomic::{compiler_fence, fence};
use std::time::{Duration, Instant};

pub use std::hint::spin_loop;
pub use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// Whether [`enable_barrier`] has succeeded.
static HAS_BARRIER: AtomicBool = AtomicBool::new(false);

/// Whether threads can be distinguished, and the kernel is known to allow [`heavy_barrier`].
/// Once true, it stays true.
pub fn has_barrier() -> bool {
    // Acquire pairs with the Release in `enable_barrier`: the process is registered.
    HAS_BARRIER.load(Ordering::Acquire)
}

/// Asks the kernel to allow [`heavy_barrier`] in this process, and returns its answer. In a process
/// with threads that takes some 10 ms.
pub fn enable_barrier() -> bool {
    let is_allowed = thread_id() != 0 && register().is_ok() && heavy_barrier().is_ok();
    if is_allowed {
        HAS_BARRIER.store(true, Ordering::Release);
    } else {
        log::info!(
            "the kernel refuses the system call membarrier: each isend, irecv and test takes a lock, about 10 ns more"
        );
    }
    is_allowed
}

/// Starts a thread that calls [`enable_barrier`], so that no call of NCCL's waits for the kernel,
/// unless it has succeeded.
pub fn start_enabling_barrier() {
    if has_barrier() {
        return;
    }
    let thread = || std::thread::Builder::new().name("ferrite-init".into()).spawn(enable_barrier);
    if let Err(e) = without_signals(thread) {
        log::debug!("no thread that asks for membarrier: {e}");
    }
}

/// The cheap half of the barrier, for the thread that needs it often.
#[inline(always)]
pub fn light_barrier() {
    // Miri does not know `membarrier`, so each half is a fence there.
    if cfg!(miri) {
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// The expensive half, for threads that need it rarely. It takes about a microsecond.
///
/// # Errors
/// The kernel refuses: a seccomp filter was installed after [`enable_barrier`] succeeded.
pub fn heavy_barrier() -> Result<()> {
    let again = |error: io::Error| match error.raw_os_error() {
        // A forked child inherits the registration on all known kernels; this covers a kernel where
        // it does not.
        Some(libc::EPERM) => {
            register().and_then(|()| membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED))
        }
        // The kernel allocates a set of processors.
        Some(libc::ENOMEM) => membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED),
        _ => Err(error),
    };
    let outcome = membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED).or_else(again);
    outcome.map_err(|error| Error::os("membarrier", error.raw_os_error().unwrap_or(0)))
}

/// Registers this process for barriers.
fn register() -> io::Result<()> {
    membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> io::Result<()> {
    if cfg!(miri) {
        fence(Ordering::SeqCst);
        return Ok(());
    }
    // SAFETY: a system call that takes numbers and touches no memory.
    let rc = unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) };
    if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// An id that no other living thread of the process has: the address of its control block, which is
/// neither 0 nor odd. A new thread may reuse the id of one that has ended. It sees all writes of
/// the old thread, since the C library and the kernel synchronise before they reuse a thread's
/// memory.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline(always)]
pub fn thread_id() -> usize {
    let id;
    // SAFETY: in the ABI of x86-64 the first word of a thread's control block is its own address,
    // and `fs` points there.
    unsafe {
        std::arch::asm!("mov {}, fs:0", out(reg) id, options(readonly, nostack, preserves_flags))
    };
    id
}

/// As on x86-64.
#[cfg(all(target_arch = "aarch64", not(miri)))]
#[inline(always)]
pub fn thread_id() -> usize {
    let id;
    // SAFETY: the register points to the thread's control block in the ABI, and may be read by any
    // program.
    unsafe {
        std::arch::asm!("mrs {}, tpidr_el0", out(reg) id, options(nomem, nostack, preserves_flags))
    };
    id
}

/// As on x86-64, for Miri, which does not know these instructions.
#[cfg(miri)]
pub fn thread_id() -> usize {
    std::thread_local! {
        static OWN: u64 = const { 0 };
    }
    OWN.with(|own| std::ptr::from_ref(own).addr())
}

/// Threads cannot be distinguished cheaply, so there is no barrier.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64", miri)))]
#[inline(always)]
pub fn thread_id() -> usize {
    0
}

/// How often a thread polls before it pauses, when it waits for some microseconds (about 10).
pub const SPINS: u32 = 200;

/// Pauses for a moment. Yielding would not do: on a busy machine a yielding thread is scheduled
/// last.
pub fn pause() {
    std::thread::sleep(Duration::from_micros(20));
}

/// A wait with a limit.
#[derive(Debug)]
pub struct Wait {
    start: Instant,
    limit: Duration,
}

impl Wait {
    /// Begins a wait.
    pub fn new(limit: Duration) -> Self {
        Self { start: Instant::now(), limit }
    }

    /// Pauses for a moment. Returns false once the limit has passed.
    pub fn step(&self) -> bool {
        pause();
        self.start.elapsed() <= self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_live_at_once_have_different_numbers_and_each_keeps_its_own() {
        let main = thread_id();
        let other =
            std::thread::scope(|scope| scope.spawn(thread_id).join().expect("it does not panic"));
        assert_eq!(thread_id(), main);
        assert_ne!(main, other);
        assert!(!enable_barrier() || main != 0 && main.is_multiple_of(2));
    }

    #[test]
    fn a_forked_child_has_the_barrier_too() {
        if !enable_barrier() {
            println!("skipped: the kernel refuses membarrier");
            return;
        }
        // SAFETY: the child makes system calls and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let status = i32::from(heavy_barrier().is_err());
            // SAFETY: ends here.
            unsafe { libc::_exit(status) };
        }
        let mut status = -1;
        // SAFETY: our own child.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
