//! Descriptors of dma-bufs. [`super::memory`] registers them.

use crate::error::{Error, Result, errno};
use rustix::process::{Resource, getrlimit};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// The lowest descriptor to use: stdin, stdout and stderr may be closed, and must not be replaced.
const FIRST: RawFd = 3;

/// Duplicates the dma-buf descriptor `fd`. Exec closes the duplicate. It leaves half of the
/// process's descriptors to others.
///
/// # Errors
/// `fd` is invalid, or the process already has at least half as many descriptors as it may have.
pub fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: plain numbers; the kernel checks the descriptor.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FIRST) };
    if copy < 0 {
        return Err(Error::os(format_args!("duplicating descriptor {fd}"), errno()));
    }
    // SAFETY: just created, and not owned by anything else.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    match getrlimit(Resource::Nofile).current {
        Some(most) if copy.as_raw_fd() as u64 >= most / 2 => Err(Error::os(
            format_args!("the process has half of the {most} descriptors that it may have"),
            libc::EMFILE,
        )),
        _ => Ok(copy),
    }
}
