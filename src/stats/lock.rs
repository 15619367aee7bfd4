//! The lock that shows whether the process of a file is alive.
//!
//! It is a POSIX lock on the first byte of the file. The kernel releases it when the process ends
//! for any reason; a forked child does not hold it. Closing any descriptor of the file releases it
//! too, so the process opens its own file once.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

fn first_byte() -> libc::flock {
    // SAFETY: plain numbers, for which 0 is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence, lock.l_len) =
        (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short, 1);
    lock
}

/// Locks this process's own file, if the file system supports locks.
pub(super) fn take(file: BorrowedFd<'_>) {
    let lock = first_byte();
    // SAFETY: a valid descriptor and a valid lock.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) };
}

/// Whether another process holds the lock of its file.
pub(super) fn is_taken(file: BorrowedFd<'_>) -> bool {
    let mut lock = first_byte();
    // SAFETY: a valid descriptor and a valid lock.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    asked == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
}
