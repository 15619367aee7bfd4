//! The boundary to NCCL: an error becomes a result code and one log message, and a panic becomes an error.

use super::{nccl, process};
use crate::error::{Class, Error, Result};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The functions that NCCL's progress thread calls.
const OF_PROGRESS: [&str; 4] = ["isend", "irecv", "iflush", "test"];

/// Runs `body`, the body of NCCL's function `call`.
#[inline(always)]
pub fn guard(call: &'static str, body: impl FnOnce() -> Result<()>) -> nccl::ncclResult_t {
    // State that a panic has left inconsistent is not used again: the communicator's cell stays entered, so that every later
    // call on it fails.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => nccl::ncclSuccess,
        Ok(Err(error)) => report(call, error),
        Err(panic) => report(call, panic_error(panic)),
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
fn report(call: &'static str, error: Error) -> nccl::ncclResult_t {
    if !error.is_logged {
        // NCCL shows the target in front of the message: the name of the call tells users more than a source file.
        log::warn!(target: call, "{call}: {error}");
        if OF_PROGRESS.contains(&call) {
            process::warn_of_what_nccl_makes_of_errors();
        }
    }
    match error.class {
        Class::System => nccl::ncclSystemError,
        Class::Internal => nccl::ncclInternalError,
        Class::Argument => nccl::ncclInvalidArgument,
        Class::Usage => nccl::ncclInvalidUsage,
        Class::Remote => nccl::ncclRemoteError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_an_internal_error() {
        assert_eq!(guard("test", || panic!("on purpose")), nccl::ncclInternalError);
        assert_eq!(guard("test", || Err(Error::remote("gone"))), nccl::ncclRemoteError);
        assert_eq!(guard("test", || Ok(())), nccl::ncclSuccess);
    }
}
