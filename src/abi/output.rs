//! Writing through NCCL's output pointers.

use crate::error::{Error, Result};

/// Writes through an output pointer of NCCL's.
#[inline]
pub(super) unsafe fn put<T>(place: *mut T, value: T, name: &str) -> Result<()> {
    if place.is_null() {
        return Err(missing(name));
    }
    // SAFETY: not NULL, and valid by NCCL's contract.
    unsafe { place.write(value) };
    Ok(())
}

#[cold]
#[inline(never)]
pub(super) fn missing(name: &str) -> Error {
    Error::argument(format!("{name} is NULL"))
}
