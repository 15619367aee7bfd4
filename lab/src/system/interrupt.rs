//! Ctrl-C: the first one is heard between two steps, so that what has been measured is not lost; the second one ends the
//! process.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::error::{Error, Result};

static RECEIVED: AtomicBool = AtomicBool::new(false);

extern "C" fn handle_sigint(_: libc::c_int) {
    RECEIVED.store(true, Ordering::Relaxed);
}

/// From now on the first SIGINT is told by [`check`] alone.
pub fn install_handler() {
    let handler: extern "C" fn(libc::c_int) = handle_sigint;
    // SAFETY: an all-zero sigaction has an empty mask; the handler stores into an atomic, which a handler may do.
    // SA_RESETHAND: the second signal does what it does without a handler.
    let failed = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_RESETHAND | libc::SA_RESTART;
        libc::sigaction(libc::SIGINT, &raw const action, std::ptr::null_mut()) != 0
    };
    if failed {
        log::debug!("sigaction: {}", std::io::Error::last_os_error());
    }
}

/// Whether a SIGINT has come.
pub fn received() -> bool {
    RECEIVED.load(Ordering::Relaxed)
}

/// An error once a SIGINT has come.
///
/// # Errors
/// [`Error::Interrupted`].
pub fn check() -> Result<()> {
    if received() { Err(Error::Interrupted) } else { Ok(()) }
}

/// Leaves SIGINT to the parent, which gets it from the terminal too and ends this process. For use between fork and
/// exec: a plain system call.
pub fn ignore_sigint() {
    // SAFETY: a disposition without a handler.
    unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
}
