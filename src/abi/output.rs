//! NCCL's output pointers.

use crate::error::{Error, Result};
use std::ffi::{c_int, c_void};

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

/// NCCL's output pointer for a request. NULL there means that NCCL must try again.
#[derive(Debug, Clone, Copy)]
pub(super) struct RequestOutput(*mut *mut c_void);

impl RequestOutput {
    /// Writes NULL until there is a request.
    ///
    /// # Errors
    /// The pointer is NULL.
    ///
    /// # Safety
    /// The pointer is NULL or stays valid for writing.
    #[inline]
    pub(super) unsafe fn new(pointer: *mut *mut c_void) -> Result<Self> {
        // SAFETY: as the caller says.
        unsafe { put(pointer, std::ptr::null_mut(), "request") }.map(|()| Self(pointer))
    }

    /// Stores a request.
    #[inline]
    pub(super) fn set(self, request: *mut c_void) {
        // SAFETY: as the caller of `new` has said.
        unsafe { self.0.write(request) };
    }
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
