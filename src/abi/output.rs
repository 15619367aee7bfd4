//! Writing through NCCL's output pointers.

use crate::error::{Error, Result};

/// Writes through an output pointer of NCCL's, called `name` in messages.
///
/// # Errors
/// It is NULL.
///
/// # Safety
/// It is NULL or valid for writing, as NCCL's contract has it.
#[inline]
pub(super) unsafe fn put<T>(place: *mut T, value: T, name: &str) -> Result<()> {
    if place.is_null() {
        return Err(missing(name));
    }
    // SAFETY: not NULL, so valid, as the caller says.
    unsafe { place.write(value) };
    Ok(())
}

/// The error for a pointer that is NULL.
#[cold]
#[inline(never)]
pub(super) fn missing(name: &str) -> Error {
    Error::argument(format!("{name} is NULL"))
}
