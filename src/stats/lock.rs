//! The lock that tells whether the process of a file is alive.
//!
//! It is a POSIX lock on the first byte of the file. The kernel takes it away when the process
//! ends, however it ends, and a forked child does not have it. It also goes when the process closes
//! any descriptor of the file: the process opens its own file once.

#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};

fn first_byte() -> libc::flock {
    // SAFETY: plain numbers, for which 0 is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence, lock.l_len) =
        (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short, 1);
    lock
}

/// Takes the lock of this process's own file. A file system without locks leaves it without.
pub(super) fn take(file: BorrowedFd<'_>) {
    let lock = first_byte();
    // SAFETY: a valid descriptor and a valid lock.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) };
}

/// Whether another process has the lock of its file.
pub(super) fn is_taken(file: BorrowedFd<'_>) -> bool {
    let mut lock = first_byte();
    // SAFETY: a valid descriptor and a valid lock.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    asked == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
}
