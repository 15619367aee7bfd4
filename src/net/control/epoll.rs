//! A set of descriptors to wait for.

use crate::error::{Error, Result};
use crate::net::control::fork::CloseOnFork;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// A set of descriptors, each under a key.
#[derive(Debug)]
pub struct Epoll {
    // Declared first, to be dropped before the descriptor is closed.
    _unshared: CloseOnFork,
    fd: OwnedFd,
    /// How many of the next descriptors to refuse, as a kernel without memory would.
    #[cfg(test)]
    pub(in crate::net) refuses: std::sync::atomic::AtomicU32,
}

/// When a descriptor is reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// While there is something to read. Remove it before closing it, or a copy in a forked child
    /// is reported for ever.
    Level,
    /// Once per arrival: readers must read until nothing is left.
    Edge,
    /// Like `Edge`, and when there is room to write again. A descriptor that is writable from the
    /// start is reported at once.
    Room,
}

/// The most descriptors that one wait reports.
const BATCH: usize = 64;

impl Epoll {
    /// An empty set.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn new() -> Result<Self> {
        let fd = epoll::create(CreateFlags::CLOEXEC)
            .map_err(|e| Error::os("epoll_create1", e.raw_os_error()))?;
        Ok(Self {
            _unshared: CloseOnFork::new(fd.as_raw_fd()),
            fd,
            #[cfg(test)]
            refuses: Default::default(),
        })
    }

    /// Adds `fd` under `key`.
    ///
    /// # Errors
    /// The kernel has no memory for it, or knows it already.
    pub fn add(&self, fd: impl AsFd, key: u64, trigger: Trigger) -> Result<()> {
        #[cfg(test)]
        if self.refuses.load(std::sync::atomic::Ordering::Relaxed) > 0 {
            self.refuses.fetch_sub(1, std::sync::atomic::Ordering::Relaxed);
            return Err(Error::os("epoll_ctl", libc::ENOSPC));
        }
        let flags = match trigger {
            Trigger::Level => EventFlags::IN,
            Trigger::Edge => EventFlags::IN | EventFlags::ET,
            Trigger::Room => EventFlags::IN | EventFlags::OUT | EventFlags::ET,
        };
        epoll::add(&self.fd, fd, EventData::new_u64(key), flags)
            .map_err(|e| Error::os("epoll_ctl", e.raw_os_error()))
    }

    /// Removes `fd`, if it is there.
    pub fn remove(&self, fd: impl AsFd) {
        let _ = epoll::delete(&self.fd, fd);
    }

    /// Waits at most `timeout_ms` milliseconds (-1 for no limit), and returns the keys of ready
    /// descriptors.
    ///
    /// # Errors
    /// The errno. An interrupted wait is no error and returns no keys.
    pub fn wait(
        &self,
        timeout_ms: i32,
    ) -> std::result::Result<impl Iterator<Item = u64> + use<>, i32> {
        let mut batch = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; BATCH];
        let timeout = u32::try_from(timeout_ms).ok().map(|ms| Timespec {
            tv_sec: i64::from(ms / 1000),
            tv_nsec: i64::from(ms % 1000) * 1_000_000,
        });
        let count = match epoll::wait(&self.fd, &mut batch[..], timeout.as_ref()) {
            Ok(count) => count,
            Err(Errno::INTR) => 0,
            Err(e) => return Err(e.raw_os_error()),
        };
        Ok(batch.into_iter().take(count).map(|event| event.data.u64()))
    }
}

impl AsFd for Epoll {
    /// Its own descriptor, which is readable while there is something to report.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
