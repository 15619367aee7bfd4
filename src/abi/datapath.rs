//! The calls of NCCL's progress thread, in neutral types: isend, irecv and iflush.
//! [`super::test_call`] has `test`.
//!
//! `isend` and `irecv` begin with a first step (see [`super::guard`]). Then follows a function for
//! the fast path, or one for the slow path, which checks all arguments.
//!
//! They are `unsafe` for the reason given in [`super::calls`]: NCCL's pointers.

#![deny(clippy::disallowed_methods)]

use super::guard::{catch, fail, on_comm};
use super::handles::{Comm, MemoryHandle, RecvHandle, SendHandle, request as pointer_to};
use super::nccl::{ncclResult_t, ncclSuccess};
use super::output::{missing, put};
use super::test_call::test_flush;
use crate::error::{Error, Result};
use crate::net::data::both_ends::check_length;
use crate::net::data::exclusive_cell::First;
use crate::net::data::recv::{Expected, RecvComm, RecvPath};
use crate::net::data::send::SendPath;
use crate::proto::{MAX_GROUP, MAX_MESSAGE};
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::null_mut;

#[cold]
#[inline(never)]
fn bad_length(size: usize) -> Error {
    Error::argument(format!("the length is {size} bytes; 0 to {MAX_MESSAGE} are allowed"))
}

/// The length, or a number above [`MAX_MESSAGE`] if it is negative.
#[inline(always)]
fn bits(size: c_int) -> u32 {
    const { assert!(MAX_MESSAGE < 1 << 31, "a negative length becomes a greater number") };
    size as u32
}

/// Calls `isend` of version 8 with a 64-bit length, which NCCL passes from version 9 on.
#[inline(always)]
pub(super) fn with_narrow(size: usize, isend: impl FnOnce(c_int) -> ncclResult_t) -> ncclResult_t {
    if size > MAX_MESSAGE as usize { fail_isend(size) } else { isend(size as c_int) }
}

#[cold]
#[inline(never)]
extern "C" fn fail_isend(size: usize) -> ncclResult_t {
    fail("isend", bad_length(size))
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
        return irecv(null_mut());
    }
    // Writes as many as it reads; a wrong `n` is refused later.
    for (i, place) in narrowed.iter_mut().take(usize::try_from(n).unwrap_or(0)).enumerate() {
        // SAFETY: as the caller says.
        let size = unsafe { *sizes.add(i) };
        if size > MAX_MESSAGE as usize {
            return fail("irecv", bad_length(size));
        }
        place.write(size as c_int);
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
    let handle = unsafe { SendHandle::find(send_comm) };
    // SAFETY: as above.
    if let (Some(handle), Some(output)) = (handle, unsafe { request.as_mut() }) {
        *output = null_mut();
        match catch("isend", || handle.inner.comm.path.begin(SendPath::look_for_cts)) {
            Ok(First::Done) => return ncclSuccess,
            // SAFETY: as above.
            Ok(First::Next) => unsafe {
                return isend_next(handle, data, size, tag, mhandle, request);
            },
            Ok(First::Other) => {}
            Err(code) => return code,
        }
    }
    // SAFETY: by NCCL's contract.
    unsafe { isend_in_general(send_comm, data, size, tag, mhandle, request) }
}

/// [`isend`], where the fast path continues.
///
/// # Safety
/// The first step has returned [`First::Next`], and `request` is not NULL.
#[inline(never)]
unsafe extern "C" fn isend_next(
    handle: &SendHandle,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    let send = |path: &mut SendPath| {
        // Not read before the receiver has cleared a message to send.
        // SAFETY: by NCCL's contract.
        let memory = unsafe { MemoryHandle::borrow(mhandle)? };
        // SAFETY: as the caller says.
        let begun = move |entry: &_| unsafe { *request = pointer_to(entry) };
        path.send_next(data as u64, bits(size), tag as u32, memory, begun)
    };
    // SAFETY: as the caller says.
    on_comm("isend", Ok(&handle.inner), |comm| unsafe { comm.comm.path.resume(send) })
}

/// [`isend`] by the slow path.
#[inline(never)]
unsafe extern "C" fn isend_in_general(
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
        unsafe { put(request, null_mut(), "request")? };
        let (addr, length, tag) = (data as u64, bits(size), tag as u32);
        check_length(length)?;
        // SAFETY: by NCCL's contract.
        let memory = unsafe { MemoryHandle::borrow(mhandle)? };
        // SAFETY: written above.
        let begun = move |entry: &_| unsafe { *request = pointer_to(entry) };
        comm.comm.path.enter(|path| path.send(addr, length, tag, memory, begun))
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
    /// Whether there are arrays.
    #[inline(always)]
    fn is_there(&self) -> bool {
        !self.data.is_null() && !self.sizes.is_null() && !self.mhandles.is_null()
    }

    /// Checks that there are arrays.
    fn check(&self) -> Result<()> {
        if self.is_there() { Ok(()) } else { Err(missing("an array")) }
    }

    /// Message `i`; the error is what is no memory handle.
    ///
    /// # Safety
    /// Each array has more than `i` elements; `tags` may be NULL.
    #[inline(always)]
    unsafe fn find<'a>(&self, i: usize) -> std::result::Result<Expected<'a>, *mut c_void> {
        // SAFETY: as the caller says.
        let (data, size, mhandle) =
            unsafe { (*self.data.add(i), *self.sizes.add(i), *self.mhandles.add(i)) };
        // SAFETY: as the caller says.
        let tag = if self.tags.is_null() { 0 } else { unsafe { *self.tags.add(i) } };
        // SAFETY: by NCCL's contract.
        let memory = &unsafe { MemoryHandle::find(mhandle) }.ok_or(mhandle)?.inner;
        Ok(Expected { addr: data as u64, length: bits(size), tag: tag as u32, memory })
    }

    /// Message `i`.
    ///
    /// # Safety
    /// As for [`Self::find`].
    unsafe fn message<'a>(&self, i: usize) -> Result<Expected<'a>> {
        // SAFETY: as the caller says.
        unsafe { self.find(i) }.map_err(MemoryHandle::wrong)
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
    let group = Group { data, sizes, tags, mhandles };
    // SAFETY: by NCCL's contract.
    if let Some(handle) = unsafe { RecvHandle::find(recv_comm) }
        && n == 1
        && group.is_there()
        && !request.is_null()
    {
        // SAFETY: NCCL's arrays have n elements.
        let expected = || unsafe { group.find(0) }.ok();
        // SAFETY: NCCL's output pointer.
        let begun = move |entry: &_| unsafe { *request = pointer_to(entry) };
        let begin = |path: &mut RecvPath| path.begin_single(expected, begun);
        match catch("irecv", || handle.inner.comm.path.begin(begin)) {
            Ok(First::Done) => return ncclSuccess,
            // SAFETY: this is the next step.
            Ok(First::Next) => return unsafe { send_due_cts(&handle.inner) },
            Ok(First::Other) => {}
            Err(code) => return code,
        }
    }
    // SAFETY: by NCCL's contract.
    unsafe { irecv_in_general(recv_comm, n, data, sizes, tags, mhandles, request) }
}

/// [`irecv`], where the fast path continues.
///
/// # Safety
/// The first step has returned [`First::Next`].
#[inline(never)]
unsafe extern "C" fn send_due_cts(comm: &Comm<RecvComm>) -> ncclResult_t {
    // SAFETY: as the caller says.
    on_comm("irecv", Ok(comm), |comm| unsafe { comm.comm.path.resume(RecvPath::send_due_cts) })
}

/// [`irecv`] by the slow path.
#[inline(never)]
unsafe extern "C" fn irecv_in_general(
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
        unsafe { put(request, null_mut(), "request")? };
        let group = Group { data, sizes, tags, mhandles };
        group.check()?;
        // SAFETY: NCCL's arrays have n elements, and irecv only reads those below n.
        let expected = move |i| unsafe { group.message(i) };
        // SAFETY: written above.
        let begun = move |entry: &_| unsafe { *request = pointer_to(entry) };
        comm.comm.path.enter(|path| path.receive(n as usize, expected, begun))
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
        let group = Group { data, sizes, tags: null_mut(), mhandles };
        group.check()?;
        // SAFETY: NCCL's arrays have n elements, and iflush only reads those below n.
        let received = move |i| unsafe { group.message(i) };
        let mut begun = null_mut();
        comm.comm.iflush(n as usize, received, |entry| begun = comm.flush(entry, test_flush))?;
        // SAFETY: NCCL's output pointer.
        unsafe { put(request, begun, "request") }
    })
}
