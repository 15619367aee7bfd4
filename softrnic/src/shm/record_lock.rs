//! Record locks on offsets far behind the end of the file. The kernel drops them when their process dies: they are the authority
//! on which process is alive.
//!
//! They belong to the open file and not to the process: two copies of this library in one process are two processes of the
//! fabric, each of which sees the locks of the other. A forked child inherits the open file and closes it
//! ([`crate::shm::file::SharedFile::abandon`]); while it keeps it open, the locks of its parent are not dropped.

use crate::host::errno::last_errno;
use crate::limits::PROCS;

/// Offset of the lock that serialises creation, destruction and attaching. The crate's page states it: from here on, programs
/// look for locks to learn whether a process takes part.
pub(crate) const CONTROL: i64 = 1 << 40;

/// Offset of the lock that process slot `index` holds while it lives.
pub(crate) fn life_lock(index: usize) -> i64 {
    CONTROL + 1 + index as i64
}

/// Offset of the lock that the helper of the process in slot `index` holds while it may write to the stage.
pub(crate) fn helper_lock(index: usize) -> i64 {
    life_lock(PROCS + index)
}

/// Offset of the lock that tells the number of the process in slot `index`. This one belongs to the process: the lock of an open
/// file tells no number.
pub(crate) fn pid_lock(index: usize) -> i64 {
    helper_lock(PROCS + index)
}

pub(crate) fn lock_range(kind: i32, start: i64, len: i64) -> libc::flock {
    // SAFETY: all zeros is a valid flock.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = kind as i16;
    range.l_whence = libc::SEEK_SET as i16;
    range.l_start = start;
    range.l_len = len;
    range
}

pub(crate) fn set_lock(fd: i32, at: i64, kind: i32, command: i32) -> bool {
    let range = lock_range(kind, at, 1);
    loop {
        // SAFETY: `range` outlives the call.
        if unsafe { libc::fcntl(fd, command, &range) } == 0 {
            return true;
        }
        if last_errno() != libc::EINTR {
            return false;
        }
    }
}

/// Whether another open file, or another process, has a lock in `[at, at + len)`.
pub(crate) fn is_locked(fd: i32, at: i64, len: i64) -> bool {
    let mut range = lock_range(libc::F_WRLCK, at, len);
    // SAFETY: `range` outlives the call.
    let rc = unsafe { libc::fcntl(fd, libc::F_OFD_GETLK, &mut range) };
    rc == 0 && i32::from(range.l_type) != libc::F_UNLCK
}
