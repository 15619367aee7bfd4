//! Calls of libibverbs that make an object or give NULL, and why they did.
//!
//! Some drivers give NULL without setting errno. It is cleared before each call, so that what an earlier call has left
//! there does not pass for the reason.

use super::memlock;
use crate::error::{Error, Result, errno};
use std::fmt;

/// A call gave NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CreateError {
    /// 0: the driver did not say why.
    errno: i32,
}

/// What `call` makes.
///
/// # Errors
/// It gives NULL.
pub(super) fn attempt<T>(call: impl FnOnce() -> *mut T) -> std::result::Result<*mut T, CreateError> {
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() = 0 };
    let made = call();
    if made.is_null() { Err(CreateError { errno: errno() }) } else { Ok(made) }
}

/// As [`attempt`], of an `operation` that locks up to `bytes` of memory.
///
/// # Errors
/// It gives NULL.
pub(super) fn made<T>(operation: impl fmt::Display, bytes: u64, call: impl FnOnce() -> *mut T) -> Result<*mut T> {
    attempt(call).map_err(|refusal| refusal.explain(operation, bytes))
}

impl CreateError {
    /// The errno; `EINVAL`, which it mostly means, where there is none.
    pub(super) fn errno(self) -> i32 {
        if self.errno == 0 { libc::EINVAL } else { self.errno }
    }

    /// In words: of `operation`, which locks up to `bytes` of memory.
    #[cold]
    pub(super) fn explain(self, operation: impl fmt::Display, bytes: u64) -> Error {
        let mut error = Error::os(operation, self.errno());
        if self.errno == 0 {
            error.text += " (the driver refuses without saying why)";
        }
        memlock::explain(error, self.errno, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{dangling_mut, null_mut};

    fn set_errno(value: i32) {
        // SAFETY: this thread's own errno.
        unsafe { *libc::__errno_location() = value };
    }

    #[test]
    fn what_an_earlier_call_left_is_not_the_reason() {
        set_errno(libc::ENOMEM);
        let silent = attempt(null_mut::<u8>).expect_err("NULL");
        assert_eq!(silent.errno(), libc::EINVAL);
        let text = silent.explain("ibv_create_qp(x)", u64::MAX).text.clone();
        assert!(text.contains("Invalid argument") && text.contains("without saying why"), "{text}");
        assert!(!text.contains("MEMLOCK"), "{text}");
    }

    #[test]
    fn a_reason_that_is_given_is_told() {
        let refused = || {
            set_errno(libc::ENODEV);
            null_mut::<u8>()
        };
        let text = made("ibv_create_cq(x)", 0, refused).expect_err("NULL").text.clone();
        assert!(text.starts_with("ibv_create_cq(x) failed: No such device"), "{text}");
        assert!(!text.contains("without saying why"), "{text}");
        assert_eq!(attempt(dangling_mut::<u8>), Ok(dangling_mut()));
    }
}
