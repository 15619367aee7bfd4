//! Keeps signal handlers of the host process off Ferrite's threads.

use nix::sys::signal::{SigSet, SigmaskHow};

/// Runs `body` with all signals blocked. A thread started there inherits that, so the host's
/// handlers do not run on it.
pub(in crate::net) fn without_signals<T>(body: impl FnOnce() -> T) -> T {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_SETMASK);
    let result = body();
    // Neither call can fail: the mask is valid.
    let _ = before.and_then(|before| before.thread_set_mask());
    result
}
