//! The boundary to NCCL: turns errors into result codes and one log message, and panics into
//! errors.

use super::nccl::ncclResult_t;
use super::{nccl, process};
use crate::error::{Class, Error, Result};
use crate::net::data::both_ends::Outcome;
use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

/// The functions that NCCL's progress thread calls.
const OF_PROGRESS: [&str; 4] = ["isend", "irecv", "iflush", "test"];

/// After this many repeated errors, a thread makes a [`PAUSE`] before each further one.
const WITHOUT_PAUSE: u32 = 2_000_000;
/// NCCL up to 2.25 repeats a failed call until the application aborts, and 2.23 to 2.25 even
/// longer, without a pause and with three log lines each time (`ncclProxyProgress` in proxy.cc).
/// The pause keeps it from using a whole processor, and its log from growing by megabytes a second.
const PAUSE: Duration = Duration::from_millis(10);

/// Runs `body`, the body of NCCL's function `call`.
#[inline(always)]
pub fn guard(call: &'static str, body: impl FnOnce() -> Result<()>) -> ncclResult_t {
    guard_steps(call, || body().map(|()| Code(nccl::ncclSuccess)))
}

/// [`guard`] for a body that ends with the result of its last step.
#[inline(always)]
pub(super) fn guard_steps(call: &'static str, body: impl FnOnce() -> Result<Code>) -> ncclResult_t {
    // State that a panic left inconsistent is never used again: the communicator's cell stays
    // entered, so that every later call on it fails.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(Code(code))) => code,
        Ok(Err(error)) => report(call, error),
        Err(panic) => report(call, panic_error(panic)),
    }
}

/// NCCL's result code of a call.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Code(ncclResult_t);

impl Outcome for Code {
    const SUCCESS: Self = Self(nccl::ncclSuccess);

    #[inline(always)]
    fn of(call: &'static str, step: impl FnOnce() -> Result<()>) -> Self {
        Self(guard(call, step))
    }
}

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn panic_error(panic: Box<dyn Any + Send>) -> Error {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Error::internal(format!("a bug in Ferrite: {text}"))
}

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn report(call: &'static str, error: Error) -> ncclResult_t {
    if !error.is_logged {
        // NCCL shows the target before the message: the name of the call is more useful than a
        // source file.
        log::warn!(target: call, "{call}: {error}");
        if OF_PROGRESS.contains(&call) {
            process::warn_of_what_nccl_makes_of_errors();
        }
    } else if OF_PROGRESS.contains(&call) && process::repeats_failed_calls() {
        pause_if_repeated();
    }
    match error.class {
        Class::System => nccl::ncclSystemError,
        Class::Internal => nccl::ncclInternalError,
        Class::Argument => nccl::ncclInvalidArgument,
        Class::Usage => nccl::ncclInvalidUsage,
        Class::Remote => nccl::ncclRemoteError,
    }
}

thread_local! {
    /// The number of repeated errors of the thread, as far as counted.
    static REPEATED: Cell<u32> = const { Cell::new(0) };
}

/// Counts a repeated error of the thread, and pauses if there were too many.
fn pause_if_repeated() {
    let repeated = REPEATED.get();
    if repeated < WITHOUT_PAUSE {
        REPEATED.set(repeated + 1);
    } else {
        thread::sleep(PAUSE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn a_call_that_is_repeated_without_end_takes_a_pause() {
        const MORE: u32 = 5;
        let repeat = || guard("test", || Err(Error::remote("gone").logged()));
        REPEATED.set(WITHOUT_PAUSE - 1);
        let begin = Instant::now();
        for _ in 0..=MORE {
            assert_eq!(repeat(), nccl::ncclRemoteError);
        }
        // A sleep is never shorter than requested.
        assert!(begin.elapsed() >= PAUSE * MORE);
    }

    #[test]
    fn a_panic_becomes_an_internal_error() {
        assert_eq!(guard("test", || panic!("on purpose")), nccl::ncclInternalError);
        assert_eq!(guard("test", || Err(Error::remote("gone"))), nccl::ncclRemoteError);
        assert_eq!(guard("test", || Ok(())), nccl::ncclSuccess);
    }
}
