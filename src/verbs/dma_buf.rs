//! Descriptors of dma-bufs.

use crate::error::{Error, Result, errno};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Another descriptor of the dma-buf that `fd` is one of. It is closed by exec.
///
/// # Errors
/// `fd` is none, or the process has as many descriptors as it may have.
pub fn duplicate(fd: RawFd) -> Result<OwnedFd> {
    // SAFETY: plain numbers; the kernel checks the descriptor.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return Err(Error::os(format_args!("duplicating descriptor {fd}"), errno()));
    }
    // SAFETY: just made, and nobody else's.
    Ok(unsafe { OwnedFd::from_raw_fd(copy) })
}
