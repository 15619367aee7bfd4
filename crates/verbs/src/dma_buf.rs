//! Descriptors of dma-bufs.

use crate::error::{Error, Result, errno};
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Descriptors from here on are none of stdin, stdout and stderr, which a process may have closed.
const FIRST: RawFd = 3;

/// Another descriptor of the dma-buf that `fd` is one of. It is closed by exec. Half of the descriptors that the process may have are
/// left to others.
///
/// # Errors
/// `fd` is none, or the process has at least half of the descriptors that it may have.
pub fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: plain numbers; the kernel checks the descriptor.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FIRST) };
    if copy < 0 {
        return Err(Error::os(format_args!("duplicating descriptor {fd}"), errno()));
    }
    // SAFETY: just made, and nobody else's.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    match getrlimit(Resource::Nofile).current {
        Some(most) if copy.as_raw_fd() as u64 >= most / 2 => Err(Error::os(
            format_args!("the process has half of the {most} descriptors that it may have"),
            libc::EMFILE,
        )),
        _ => Ok(copy),
    }
}
