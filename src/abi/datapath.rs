//! The calls of NCCL's progress thread, in neutral types: isend, irecv and iflush.
//! [`super::test_call`] has `test`.
//!
//! They are `unsafe` for the reason given in [`super::calls`]: NCCL's pointers.

#![deny(clippy::disallowed_methods)]

use super::guard::{fail, on_comm};
use super::handles::{MemoryHandle, RecvHandle, SendHandle, request as pointer_to};
use super::nccl::ncclResult_t;
use super::output::{RequestOutput, missing, put};
use super::test_call::test_flush;
use crate::error::{Error, Result};
use crate::net::data::recv::Expected;
use crate::net::mr::handle::MrHandle;
use crate::proto::{MAX_GROUP, MAX_MESSAGE};
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;

#[cold]
#[inline(never)]
fn bad_length(size: impl fmt::Display) -> Error {
    Error::argument(format!("the length is {size} bytes; 0 to {MAX_MESSAGE} are allowed"))
}

/// The length, or a number above [`MAX_MESSAGE`] if it is negative.
#[inline(always)]
fn bits(size: c_int) -> u32 {
    const { assert!(MAX_MESSAGE < 1 << 31, "a negative length becomes a greater number") };
    size as u32
}

/// Converts 64-bit lengths, which NCCL passes from version 9 on, for the calls of version 8.
///
/// # Errors
/// A length is above [`MAX_MESSAGE`].
#[inline(always)]
fn narrow(size: usize) -> Result<c_int> {
    if size <= MAX_MESSAGE as usize { Ok(size as c_int) } else { Err(bad_length(size)) }
}

/// Calls `isend` of version 8 with a 64-bit length.
#[inline(always)]
pub(super) fn with_narrow(size: usize, isend: impl FnOnce(c_int) -> ncclResult_t) -> ncclResult_t {
    match narrow(size) {
        Ok(size) => isend(size),
        Err(error) => fail("isend", error),
    }
}

/// Calls `irecv` of version 8 with the `n` 64-bit lengths at `sizes`.
///
/// # Safety
/// `sizes` is NULL or points to `n` lengths.
#[inline(always)]
pub(super) unsafe fn with_narrow_array(
    n: c_int,
    sizes: *const usize,
    irecv: impl FnOnce(*mut c_int) -> ncclResult_t,
) -> ncclResult_t {
    let mut narrowed = [MaybeUninit::uninit(); MAX_GROUP];
    if sizes.is_null() {
        return irecv(std::ptr::null_mut());
    }
    // Writes as many as it reads; a wrong `n` is refused later.
    for (i, place) in narrowed.iter_mut().take(usize::try_from(n).unwrap_or(0)).enumerate() {
        // SAFETY: as the caller says.
        match narrow(unsafe { *sizes.add(i) }) {
            Ok(size) => _ = place.write(size),
            Err(error) => return fail("irecv", error),
        }
    }
    irecv(narrowed.as_mut_ptr().cast())
}

#[inline(always)]
pub(super) unsafe fn isend(
    send_comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: by NCCL's contract.
    let comm = unsafe { SendHandle::borrow(send_comm) };
    on_comm("isend", comm, |comm| {
        // SAFETY: NCCL's output pointer.
        let output = unsafe { RequestOutput::new(request)? };
        // Not read before the receiver has cleared a message to send.
        // SAFETY: by NCCL's contract.
        let memory = move || unsafe { MemoryHandle::borrow(mhandle) };
        let begun = move |entry: &_| output.set(pointer_to(entry));
        comm.comm.isend(data as u64, bits(size), tag as u32, memory, begun)
    })
}

/// NCCL's arrays that describe the messages of a group.
#[derive(Clone, Copy)]
struct Group {
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
}

impl Group {
    /// Checks that there are arrays.
    #[inline(always)]
    fn check(&self) -> Result<()> {
        if self.data.is_null() || self.sizes.is_null() || self.mhandles.is_null() {
            return Err(missing("an array"));
        }
        Ok(())
    }

    /// Message `i`.
    ///
    /// # Safety
    /// Each array has more than `i` elements; `tags` may be NULL.
    #[inline(always)]
    unsafe fn message<'a>(&self, i: usize) -> Result<Expected<'a>> {
        // SAFETY: as the caller says.
        let (data, size) = unsafe { (*self.data.add(i), *self.sizes.add(i)) };
        // SAFETY: as the caller says.
        let tag = if self.tags.is_null() { 0 } else { unsafe { *self.tags.add(i) } };
        // SAFETY: as the caller says, and by NCCL's contract.
        let memory: &'a MrHandle = unsafe { MemoryHandle::borrow(*self.mhandles.add(i))? };
        Ok(Expected { addr: data as u64, length: bits(size), tag: tag as u32, memory })
    }
}

#[inline(always)]
pub(super) unsafe fn irecv(
    recv_comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: by NCCL's contract.
    let comm = unsafe { RecvHandle::borrow(recv_comm) };
    on_comm("irecv", comm, |comm| {
        // SAFETY: NCCL's output pointer.
        let output = unsafe { RequestOutput::new(request)? };
        let group = Group { data, sizes, tags, mhandles };
        group.check()?;
        // SAFETY: NCCL's arrays have n elements, and irecv only reads those below n.
        let expected = move |i| unsafe { group.message(i) };
        comm.comm.irecv(n as usize, expected, move |entry| output.set(pointer_to(entry)))
    })
}

#[inline(always)]
pub(super) unsafe fn iflush(
    recv_comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: by NCCL's contract.
    let comm = unsafe { RecvHandle::borrow(recv_comm) };
    on_comm("iflush", comm, |comm| {
        let group = Group { data, sizes, tags: std::ptr::null_mut(), mhandles };
        group.check()?;
        // SAFETY: NCCL's arrays have n elements, and iflush only reads those below n.
        let received = move |i| unsafe { group.message(i) };
        let mut begun = std::ptr::null_mut();
        comm.comm.iflush(n as usize, received, |entry| begun = comm.flush(entry, test_flush))?;
        // SAFETY: NCCL's output pointer.
        unsafe { put(request, begun, "request") }
    })
}
