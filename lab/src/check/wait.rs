//! Waiting with a limit, and counting what a process holds.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::transport::comm::Request;
use crate::transport::deadline::{Deadline, finished};

/// Time limit for what the peer or the device has to do.
pub(super) const SOON: Duration = Duration::from_secs(8);

/// How long the device and the system may keep objects that are closed.
pub(super) const SETTLED: Duration = Duration::from_secs(2);

/// Tests a request until it is done, within [`SOON`].
///
/// # Errors
/// Those of the transport; [`Error::Stalled`].
pub(super) fn done(request: Request<'_>, sizes: &mut [i32]) -> Result<()> {
    finished(&mut Deadline::new("a request", SOON), request, sizes)
}

/// The code of the call that failed; 0 for none.
pub(super) fn code<T>(result: &Result<T>) -> u32 {
    match result {
        Ok(_) => 0,
        Err(Error::Call { code, .. }) => *code,
        Err(_) => u32::MAX,
    }
}

/// Tries until `attempt` gives something or fails, for `limit` at most; `None` when the time is over.
///
/// # Errors
/// Those of `attempt`.
pub(super) fn within<T>(limit: Duration, mut attempt: impl FnMut() -> Result<Option<T>>) -> Result<Option<T>> {
    let start = Instant::now();
    loop {
        if let Some(found) = attempt()? {
            return Ok(Some(found));
        }
        if start.elapsed() > limit {
            return Ok(None);
        }
        std::thread::yield_now();
    }
}

/// How many files and threads this process has.
pub(super) fn open_files_and_threads() -> (usize, usize) {
    let count = |folder| std::fs::read_dir(folder).map_or(0, Iterator::count);
    (count("/proc/self/fd"), count("/proc/self/task"))
}
