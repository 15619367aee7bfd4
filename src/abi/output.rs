//! NCCL's output pointers.

use crate::error::{Error, Result};

/// Writes `value` through one of NCCL's output pointers, which messages call `name`.
///
/// # Errors
/// The pointer is NULL.
///
/// # Safety
/// The pointer is NULL or valid for writing.
#[inline]
pub(super) unsafe fn put<T>(pointer: *mut T, value: T, name: &str) -> Result<()> {
    if pointer.is_null() {
        return Err(missing(name));
    }
    // SAFETY: not NULL, so valid, as the caller says.
    unsafe { pointer.write(value) };
    Ok(())
}

/// The error for a NULL pointer called `name`.
#[cold]
#[inline(never)]
pub(super) fn missing(name: &str) -> Error {
    Error::argument(format!("{name} is NULL"))
}
