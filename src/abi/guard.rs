//! The boundary to NCCL: turns errors into result codes and one log message, and panics into
//! errors.
//!
//! `isend`, `irecv` and `test` have a first step, which decides most calls that find nothing. Its
//! panics are caught separately ([`catch`]), and it jumps to a second function with NCCL's ABI,
//! which has its own [`guard`]. Nothing between the two can panic. So the first step needs no stack
//! frame, and no panic leaves a call.

use super::handles::Comm;
use super::nccl::ncclResult_t;
use super::{nccl, process};
use crate::error::{Class, Error, Result};
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

/// Runs `step`, a part of NCCL's function `call`.
///
/// # Errors
/// It has panicked, which is reported: the code for NCCL.
#[inline(always)]
pub(super) fn catch<R>(
    call: &'static str,
    step: impl FnOnce() -> R,
) -> std::result::Result<R, ncclResult_t> {
    // State that a panic left inconsistent is never used again: the communicator's cell stays
    // entered, so that every later call on it fails.
    catch_unwind(AssertUnwindSafe(step)).map_err(|panic| report(call, panic_error(panic)))
}

/// Runs `body`, the body of NCCL's function `call`.
#[inline(always)]
pub fn guard(call: &'static str, body: impl FnOnce() -> Result<()>) -> ncclResult_t {
    match catch(call, body) {
        Ok(Ok(())) => nccl::ncclSuccess,
        Ok(Err(error)) => report(call, error),
        Err(code) => code,
    }
}

/// Runs the body of a call on a communicator. An error equal to the last one is not logged again,
/// since NCCL keeps calling a failed communicator.
#[inline(always)]
pub(super) fn on_comm<T>(
    call: &'static str,
    comm: Result<&Comm<T>>,
    body: impl FnOnce(&Comm<T>) -> Result<()>,
) -> ncclResult_t {
    guard(call, || {
        let comm = comm?;
        body(comm).map_err(|e| comm.log_once(e))
    })
}

/// Handles an error without a communicator.
#[cold]
#[inline(never)]
pub(super) fn fail(call: &'static str, error: Error) -> ncclResult_t {
    guard(call, || Err(error))
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
        assert_eq!(catch("test", || panic!("on purpose")), Err::<(), _>(nccl::ncclInternalError));
        assert_eq!(catch("test", || 7), Ok(7));
    }
}
