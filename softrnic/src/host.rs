//! The machine: errno, standard error, the clock, environment variables, descriptors. Nothing here
//! knows about RDMA.

use std::collections::VecDeque;
use std::fmt;
use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Monotonic time in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes one timespec.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// All variables that are read; another one that begins like them is taken for a misspelt one.
pub(crate) const KNOWN: &[&str] = &[
    "SOFTRNIC_CARD", "SOFTRNIC_CHAOS", "SOFTRNIC_COMMAND_US", "SOFTRNIC_DEVICES",
    "SOFTRNIC_DRIVER", "SOFTRNIC_ECE", "SOFTRNIC_ENDLESS_RETRIES", "SOFTRNIC_ERROR_DROPS",
    "SOFTRNIC_FABRIC", "SOFTRNIC_FAULTS", "SOFTRNIC_FLUSH_ONLY", "SOFTRNIC_GIDS", "SOFTRNIC_GPU",
    "SOFTRNIC_GPU_HELPER", "SOFTRNIC_GRANT_MORE", "SOFTRNIC_INLINE_EXCESS", "SOFTRNIC_LINES",
    "SOFTRNIC_LINK", "SOFTRNIC_LOOPBACK_DOWN", "SOFTRNIC_MAX_CQ", "SOFTRNIC_MAX_INLINE",
    "SOFTRNIC_MAX_MR", "SOFTRNIC_MAX_QP", "SOFTRNIC_MAX_QP_WR", "SOFTRNIC_MTU",
    "SOFTRNIC_NETWORK_BITS", "SOFTRNIC_OLD_SPEED", "SOFTRNIC_OWN_PORT_DOWN", "SOFTRNIC_PATHS",
    "SOFTRNIC_PATH_MBS", "SOFTRNIC_PATH_US", "SOFTRNIC_PORTS", "SOFTRNIC_QPN_REUSE",
    "SOFTRNIC_QUIET", "SOFTRNIC_RESOLVE_MS", "SOFTRNIC_RNR_PLACES", "SOFTRNIC_SAME_GUID",
    "SOFTRNIC_SEED", "SOFTRNIC_SHM_DIR", "SOFTRNIC_SILENT_FAILURE", "SOFTRNIC_SPEED",
    "SOFTRNIC_SPRAY", "SOFTRNIC_STAGED", "SOFTRNIC_STALE_COMPLETIONS", "SOFTRNIC_STAT",
    "SOFTRNIC_STRICT", "SOFTRNIC_THREAD_DOMAINS", "SOFTRNIC_TIME_SCALE", "SOFTRNIC_TRACE",
    "SOFTRNIC_ZERO_KEYS",
];

/// The value of a variable. An empty value counts as absent.
pub(crate) fn text(name: &str) -> Result<Option<String>, String> {
    debug_assert!(KNOWN.contains(&name), "{name} is read, and not among those that are known");
    match std::env::var(name) {
        Ok(value) if value.is_empty() => Ok(None),
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(raw)) => {
            Err(format!("{name}={raw:?}: must be UTF-8 text"))
        }
    }
}

/// The text of an errno value.
pub(crate) fn errno_text(code: i32) -> String {
    std::io::Error::from_raw_os_error(code).to_string()
}

/// The calling thread's errno.
pub fn last_errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// Sets the calling thread's errno.
pub(crate) fn set_errno(code: i32) {
    // SAFETY: libc hands out a valid pointer to this thread's own errno.
    unsafe { *libc::__errno_location() = code };
}

/// Locks a mutex of this process. A panic of another thread that held it does not make its data
/// unusable.
pub fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Prints one line that begins with `softrnic: `.
pub fn say(line: fmt::Arguments<'_>) {
    let _ = writeln!(std::io::stderr(), "softrnic: {line}");
}

// A queue of tokens behind a real file descriptor: one read of the descriptor, one token.
//
// Used for asynchronous events and completion channels: applications poll the descriptor and set
// `O_NONBLOCK` on it.

/// Tokens that wait to be read.
#[derive(Debug)]
pub(crate) struct FdQueue<T> {
    fd: i32,
    tokens: Mutex<VecDeque<T>>,
}

impl<T> FdQueue<T> {
    pub(crate) fn new() -> Result<Self, i32> {
        // SAFETY: no preconditions.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_SEMAPHORE) };
        if fd < 0 { Err(last_errno()) } else { Ok(Self { fd, tokens: Mutex::default() }) }
    }

    pub(crate) fn fd(&self) -> i32 {
        self.fd
    }

    pub(crate) fn push(&self, token: T) {
        let mut tokens = lock(&self.tokens);
        tokens.push_back(token);
        let one = 1u64;
        // SAFETY: writes 8 bytes from `one`; an eventfd far below its maximum does not block.
        unsafe { libc::write(self.fd, (&raw const one).cast(), 8) };
    }

    /// Takes the oldest token; `on_take` runs before anyone else can see the queue again. Waits
    /// unless the descriptor is non-blocking.
    pub(crate) fn pop(&self, on_take: impl Fn(&T)) -> Result<T, i32> {
        loop {
            let mut count = 0u64;
            // SAFETY: reads 8 bytes into `count`.
            if unsafe { libc::read(self.fd, (&raw mut count).cast(), 8) } != 8 {
                return Err(last_errno());
            }
            // A purge may have taken the token that this count stood for.
            if let Some(token) = lock(&self.tokens).pop_front().inspect(|t| on_take(t)) {
                return Ok(token);
            }
        }
    }

    #[cfg(any(feature = "tools", test))]
    pub(crate) fn is_empty(&self) -> bool {
        lock(&self.tokens).is_empty()
    }

    /// Moves those tokens to another queue, in their order.
    #[cfg(any(feature = "tools", test))]
    pub(crate) fn pass_on(&self, other: &Self, is_moved: impl Fn(&T) -> bool) {
        self.take_out(is_moved).into_iter().for_each(|token| other.push(token));
    }

    /// Removes tokens whose object is going away.
    pub(crate) fn purge(&self, is_dead: impl Fn(&T) -> bool) {
        drop(self.take_out(is_dead));
    }

    fn take_out(&self, is_out: impl Fn(&T) -> bool) -> VecDeque<T> {
        let mut tokens = lock(&self.tokens);
        let (out, kept): (VecDeque<_>, VecDeque<_>) = tokens.drain(..).partition(is_out);
        *tokens = kept;
        for _ in 0..out.len() {
            let mut count = 0u64;
            let part = libc::iovec { iov_base: (&raw mut count).cast(), iov_len: 8 };
            // SAFETY: preadv2, which glibc has from 2.26 on only, reads 8 bytes into `count`,
            // without waiting whatever the descriptor's mode; its position is in two words, the
            // second of which has no meaning on a 64-bit system.
            unsafe {
                libc::syscall(
                    libc::SYS_preadv2,
                    self.fd,
                    &raw const part,
                    1_usize,
                    -1_i64,
                    0_i64,
                    libc::RWF_NOWAIT,
                )
            };
        }
        out
    }
}

impl<T> Drop for FdQueue<T> {
    fn drop(&mut self) {
        // SAFETY: owned by this value.
        unsafe { libc::close(self.fd) };
    }
}

/// Whether a thread is in an object. Looked at only where the application has promised that there
/// is never more than one.
#[derive(Debug)]
pub(crate) struct InUse {
    is_promised: bool,
    is_in: AtomicBool,
}

impl InUse {
    pub(crate) fn new(is_promised: bool) -> Self {
        Self { is_promised, is_in: AtomicBool::new(false) }
    }

    /// Whether one thread alone is to use the object.
    pub(crate) fn is_promised(&self) -> bool {
        self.is_promised
    }

    /// A thread comes into `object`. Ends the process, as mlx5 does, if one is in it that was not
    /// to be.
    #[inline]
    pub(crate) fn enter(&self, object: &str) {
        if self.is_promised {
            if self.is_in.load(Acquire) {
                broken(object);
            }
            // Without a locked instruction, as mlx5: threads that come at the same moment are not
            // noticed.
            self.is_in.store(true, Relaxed);
        }
    }

    #[inline]
    pub(crate) fn leave(&self) {
        if self.is_promised {
            self.is_in.store(false, Release);
        }
    }

    /// As `enter`, until the result is dropped.
    #[inline]
    pub(crate) fn while_in(&self, object: &str) -> Inside<'_> {
        self.enter(object);
        Inside(self)
    }
}

/// A thread is in the object.
#[derive(Debug)]
pub(crate) struct Inside<'a>(&'a InUse);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.leave();
    }
}

#[cold]
fn broken(object: &str) -> ! {
    say(format_args!(
        "two threads are in {object} at once, which the application has promised to use from one thread at a time; \
         mlx5 takes no lock there. The process ends"
    ));
    std::process::abort();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_that_take_turns_keep_the_promise() {
        let promised = InUse::new(true);
        drop(promised.while_in("a queue"));
        promised.enter("a queue");
        promised.leave();
        drop(promised.while_in("a queue"));
        let shared = InUse::new(false);
        let _first = shared.while_in("a queue");
        let _second = shared.while_in("a queue");
    }
}
