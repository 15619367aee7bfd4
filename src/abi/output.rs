//! NCCL's output pointers.

use crate::error::{Error, Result};
use std::ffi::c_int;

/// Writes `value` through one of NCCL's output pointers, called `name` in messages.
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

/// NCCL's output pointers of `test`: `sizes` is NULL or has an element for each message of the
/// request's group.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Answer {
    pub(super) done: *mut c_int,
    pub(super) sizes: *mut c_int,
}

impl Answer {
    /// Reports that the request is complete, with the length of each message. `lengths` may be
    /// empty.
    #[inline(always)]
    pub(super) fn finish(self, lengths: &[u32]) {
        // SAFETY: valid by NCCL's contract, which `test` has been called under.
        unsafe {
            *self.done = 1;
            if self.sizes.is_null() {
                return;
            }
            match lengths {
                [one] => *self.sizes.cast::<u32>() = *one,
                many => {
                    self.sizes.cast::<u32>().copy_from_nonoverlapping(many.as_ptr(), many.len())
                }
            }
        }
    }
}
