//! A queue of tokens behind a real file descriptor: one read of the descriptor, one token.
//!
//! Used for asynchronous events and completion channels: applications poll the descriptor and set `O_NONBLOCK` on it.

use std::collections::VecDeque;
use std::sync::Mutex;

use crate::host::errno::last_errno;
use crate::host::lock::lock;

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

    /// Takes the oldest token; `on_take` runs before anyone else can see the queue again. Waits unless the
    /// descriptor is non-blocking.
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
            // SAFETY: preadv2, which glibc has from 2.26 on only, reads 8 bytes into `count`, without waiting whatever the descriptor's
            // mode; its position is in two words, the second of which has no meaning on a 64-bit system.
            unsafe {
                libc::syscall(libc::SYS_preadv2, self.fd, &raw const part, 1_usize, -1_i64, 0_i64, libc::RWF_NOWAIT)
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
