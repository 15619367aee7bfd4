//! The edge: an error becomes a result code and one log line, a panic becomes an error.

use super::nccl;
use crate::error::{Class, Error, Result};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs the body of a vtable function.
#[inline(always)]
pub fn guard(call: &'static str, body: impl FnOnce() -> Result<()>) -> nccl::ncclResult_t {
    // What the body had borrowed is not used again after a panic: the communicator's cell stays entered, so every later
    // call on it fails.
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => nccl::ncclSuccess,
        Ok(Err(error)) => report(call, error),
        Err(panic) => report(call, bug(panic)),
    }
}

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn bug(panic: Box<dyn Any + Send>) -> Error {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    Error::internal(format!("a bug in Ferrite: {text}"))
}

#[cold]
#[inline(never)]
#[allow(clippy::needless_pass_by_value)]
fn report(call: &'static str, error: Error) -> nccl::ncclResult_t {
    if !error.quiet {
        // The target is what NCCL shows in front of the line: the operation, for which a place in the source would tell nobody
        // anything.
        log::warn!(target: call, "{call}: {error}");
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
    fn a_panic_stops_at_the_edge() {
        assert_eq!(guard("test", || panic!("on purpose")), nccl::ncclInternalError);
        assert_eq!(guard("test", || Err(Error::remote("gone"))), nccl::ncclRemoteError);
        assert_eq!(guard("test", || Ok(())), nccl::ncclSuccess);
    }
}
