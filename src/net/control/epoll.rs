//! Many descriptors that are waited on at once.

use super::fork::Unshared;
use crate::error::{Error, Result, errno};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// A set of descriptors, each under a key.
#[derive(Debug)]
pub struct Epoll {
    // Declared first: it goes before the descriptor is closed.
    _unshared: Unshared,
    fd: OwnedFd,
    /// How many of the next descriptors are refused, as by a kernel that has no memory.
    #[cfg(test)]
    pub(in crate::net) refuses: std::sync::atomic::AtomicU32,
}

/// When a descriptor is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// As long as there is something to read. It has to be removed before it is closed, or a copy of it in a forked child
    /// is reported for ever.
    Level,
    /// Once for whatever comes: readers have to read until there is nothing.
    Edge,
    /// The same, and when there is room to write again. What can be written to from the first is reported at once.
    Room,
}

/// How many descriptors one wait reports at most.
const BATCH: usize = 64;

/// Place for what is reported.
pub type Batch = [libc::epoll_event; BATCH];

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new() -> Result<Self> {
        // SAFETY: plain numbers.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(Error::os("epoll_create1", errno()));
        }
        // SAFETY: just made, owned by nobody else.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Self {
            _unshared: Unshared::new(fd.as_raw_fd()),
            fd,
            #[cfg(test)]
            refuses: Default::default(),
        })
    }

    /// Its own descriptor, which is ready to read while there is something to report.
    pub fn fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }

    /// A place for a batch.
    pub fn batch() -> Batch {
        [libc::epoll_event { events: 0, u64: 0 }; BATCH]
    }

    /// Adds `fd` under `key`.
    ///
    /// # Errors
    /// The kernel has no memory for it, or knows it already.
    pub fn add(&self, fd: RawFd, key: u64, trigger: Trigger) -> Result<()> {
        #[cfg(test)]
        if self.refuses.load(std::sync::atomic::Ordering::Relaxed) > 0 {
            self.refuses.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
            return Err(Error::os("epoll_ctl", libc::ENOSPC));
        }
        let events = match trigger {
            Trigger::Level => libc::EPOLLIN,
            Trigger::Edge => libc::EPOLLIN | libc::EPOLLET,
            Trigger::Room => libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLET,
        };
        let mut event = libc::epoll_event { events: events as u32, u64: key };
        // SAFETY: a valid event; the kernel checks the descriptors.
        match unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event) } {
            0 => Ok(()),
            _ => Err(Error::os("epoll_ctl", errno())),
        }
    }

    /// Removes `fd`, if it is there.
    pub fn remove(&self, fd: RawFd) {
        // SAFETY: no memory is passed; the kernel checks the descriptors.
        unsafe { libc::epoll_ctl(self.fd.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) };
    }

    /// The keys of what is reported, after at most `timeout_ms` milliseconds, or -1 for no limit.
    ///
    /// # Errors
    /// The errno. An interrupted wait is no error, but finds nothing.
    pub fn wait<'b>(
        &self,
        batch: &'b mut Batch,
        timeout_ms: i32,
    ) -> std::result::Result<impl Iterator<Item = u64> + use<'b>, i32> {
        // SAFETY: the batch is valid for its length.
        let count = unsafe { libc::epoll_wait(self.fd.as_raw_fd(), batch.as_mut_ptr(), BATCH as i32, timeout_ms) };
        if count < 0 && errno() != libc::EINTR {
            return Err(errno());
        }
        Ok(batch.iter().take(usize::try_from(count).unwrap_or(0)).map(|event| event.u64))
    }
}
