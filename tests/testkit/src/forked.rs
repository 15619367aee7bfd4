//! A child that this process forks: it has all that the process has, and only the calling thread.
//!
//! A lock that another thread held at the fork stays locked in the child for good. One such lock is
//! the standard library's, which a thread holds while it prints the message of a panic: where tests
//! run beside each other in one process, a panic in the child would wait for it without end. So a
//! test calls this in a process of its own ([`crate::side::alone`], [`crate::side::pair`]).

use crate::name::is_only_test;
use crate::process::die_with_parent;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitStatus;

/// Status of a child whose body panicked, as a test program's is.
const PANICKED: i32 = 101;

/// A forked child. It is killed when this is dropped, and by the kernel when the thread that forked
/// it ends.
#[derive(Debug)]
pub struct ForkedChild {
    pid: libc::pid_t,
}

impl ForkedChild {
    /// Forks a child that goes through `body` and ends, without exit handlers and destructors, with
    /// status 0.
    #[must_use]
    #[track_caller]
    pub fn start(body: impl FnOnce()) -> Self {
        assert!(
            is_only_test(),
            "a test forks in a process of its own: call this within testkit::alone or testkit::pair"
        );
        // SAFETY: the child has only this one thread; what it uses was made before or is
        // made by itself.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "{}", io::Error::last_os_error());
        if pid == 0 {
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                die_with_parent().expect("prctl");
                body();
            }));
            // SAFETY: ends here.
            unsafe { libc::_exit(if outcome.is_ok() { 0 } else { PANICKED }) };
        }
        Self { pid }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid as u32
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: i32) {
        // SAFETY: plain numbers; the child has not been waited for, so its id is its own.
        assert_eq!(unsafe { libc::kill(self.pid, signal) }, 0, "{}", io::Error::last_os_error());
    }

    /// Waits for its end.
    #[must_use]
    pub fn ended(self) -> ExitStatus {
        let status = wait(self.pid);
        std::mem::forget(self);
        status
    }
}

impl Drop for ForkedChild {
    fn drop(&mut self) {
        // SAFETY: plain numbers; the child has not been waited for, so its id is its own.
        unsafe { libc::kill(self.pid, libc::SIGKILL) };
        wait(self.pid);
    }
}

fn wait(pid: libc::pid_t) -> ExitStatus {
    let mut status = 0;
    // SAFETY: a valid place for the status of our own child.
    let rc = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(rc, pid, "{}", io::Error::last_os_error());
    ExitStatus::from_raw(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::side::alone;

    fn pause() {
        // SAFETY: no arguments.
        unsafe { libc::pause() };
    }

    #[test]
    fn the_status_tells_how_the_body_ended() {
        alone(&[], || {
            assert_eq!(ForkedChild::start(|| ()).ended().code(), Some(0));
            assert_eq!(ForkedChild::start(|| panic!("on purpose")).ended().code(), Some(PANICKED));
            let child = ForkedChild::start(pause);
            child.signal(libc::SIGTERM);
            assert_eq!(child.ended().signal(), Some(libc::SIGTERM));
        });
    }

    #[test]
    fn a_child_that_is_dropped_is_gone() {
        alone(&[], || {
            let child = ForkedChild::start(pause);
            let pid = child.pid;
            drop(child);
            // SAFETY: only asks whether there is such a child.
            let rc = unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
            assert_eq!((rc, io::Error::last_os_error().raw_os_error()), (-1, Some(libc::ECHILD)));
        });
    }
}
