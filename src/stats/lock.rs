//! The lock that shows whether the process of a file is alive.
//!
//! It is a POSIX lock on the first byte of the file. The kernel releases it when the process ends
//! for any reason; a forked child does not hold it. Closing any descriptor of the file releases it
//! too, so the process opens its own file once.

use nix::fcntl::{FcntlArg, fcntl};
use std::os::fd::BorrowedFd;

fn first_byte() -> libc::flock {
    libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    }
}

/// Locks this process's own file, if the file system supports locks.
pub(super) fn take(file: BorrowedFd<'_>) {
    let _ = fcntl(file, FcntlArg::F_SETLK(&first_byte()));
}

/// The other process that holds the lock of its file, by its number in this process's namespace; 0:
/// it is not in that. `None`: nobody does.
pub fn holder(file: BorrowedFd<'_>) -> Option<u32> {
    let mut lock = first_byte();
    fcntl(file, FcntlArg::F_GETLK(&mut lock)).ok()?;
    let is_held = lock.l_type != libc::F_UNLCK as libc::c_short;
    is_held.then(|| u32::try_from(lock.l_pid).unwrap_or(0))
}
