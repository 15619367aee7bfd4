//! Calls of libibverbs that create an object and return NULL on failure.
//!
//! Some drivers return NULL without setting errno. So errno is cleared before each call, and the
//! value of an earlier call is not taken for the reason.

use super::memlock;
use crate::error::{Error, Result, errno};
use std::fmt;

/// A call returned NULL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CreateError {
    /// The reason; 0 if the driver set none.
    errno: i32,
}

/// Runs `call`, which creates an object.
///
/// # Errors
/// The call returns NULL.
pub(super) fn try_create<T>(
    call: impl FnOnce() -> *mut T,
) -> std::result::Result<*mut T, CreateError> {
    // SAFETY: this thread's own errno.
    unsafe { *libc::__errno_location() = 0 };
    let object = call();
    if object.is_null() { Err(CreateError { errno: errno() }) } else { Ok(object) }
}

/// Runs `call`, which creates an object. `operation` names it in the error, and locks up to `bytes`
/// of memory.
///
/// # Errors
/// The call returns NULL.
pub(super) fn create<T>(
    operation: impl fmt::Display,
    bytes: u64,
    call: impl FnOnce() -> *mut T,
) -> Result<*mut T> {
    try_create(call).map_err(|error| error.explain(operation, bytes))
}

impl CreateError {
    /// The errno; if the driver set none, `EINVAL`, the most frequent reason.
    pub(super) fn errno(self) -> i32 {
        if self.errno == 0 { libc::EINVAL } else { self.errno }
    }

    /// The error of `operation`, which locks up to `bytes` of memory.
    #[cold]
    pub(super) fn explain(self, operation: impl fmt::Display, bytes: u64) -> Error {
        let error = Error::of_device(operation, self.errno());
        match self.errno {
            0 => error.hint("the driver gives no reason"),
            errno => memlock::explain(error, errno, bytes),
        }
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
    fn the_errno_of_an_earlier_call_is_not_the_reason() {
        set_errno(libc::ENOMEM);
        let silent = try_create(null_mut::<u8>).expect_err("NULL");
        assert_eq!(silent.errno(), libc::EINVAL);
        let text = silent.explain("ibv_create_qp(x)", u64::MAX).text();
        assert!(text.contains("Invalid argument") && text.contains("gives no reason"), "{text}");
        assert!(!text.contains("MEMLOCK"), "{text}");
    }

    #[test]
    fn the_errno_of_the_call_is_the_reason() {
        let refused = || {
            set_errno(libc::ENODEV);
            null_mut::<u8>()
        };
        let text = create("ibv_create_cq(x)", 0, refused).expect_err("NULL").text();
        assert!(text.starts_with("ibv_create_cq(x) failed: No such device"), "{text}");
        assert!(!text.contains("gives no reason"), "{text}");
        assert_eq!(try_create(dangling_mut::<u8>), Ok(dangling_mut()));
    }
}
