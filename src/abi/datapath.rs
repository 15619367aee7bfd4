//! The calls of NCCL's progress thread, in neutral types: isend, irecv, iflush and test.
//!
//! They are `unsafe` for the reason given in [`super::calls`]: NCCL's pointers.

#![deny(clippy::disallowed_methods)]

use super::guard::{guard, guard_steps};
use super::handles::{
    MemoryHandle, RecvHandle, Request, SendHandle, comm_of, flush, request as pointer_to,
};
use super::nccl::ncclResult_t;
use super::output::{Answer, missing, put};
use crate::error::{Error, Result};
use crate::net::data::both_ends::{self, RequestOf, Tested};
use crate::net::data::recv::{Expected, RecvComm};
use crate::proto::MAX_MESSAGE;
use crate::proto::requests::Entry;
use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::null_mut;

/// A message of a communicator has a profiler's handle.
///
/// # Safety
/// That of NCCL's pointer.
#[cold]
#[inline(never)]
pub(super) unsafe fn handle_operation(comm: *mut c_void) {
    let _ = guard("isend or irecv", || {
        // SAFETY: by NCCL's contract.
        unsafe {
            SendHandle::find(comm).iter().for_each(|send| send.inner.handle_operation());
            RecvHandle::find(comm).iter().for_each(|recv| recv.inner.handle_operation());
        }
        Ok(())
    });
}

/// A length as NCCL passes it: `int` in version 8, `size_t` from version 9 on.
pub(super) trait Length: TryInto<u32> + fmt::Display + Copy {
    /// The number of bytes.
    ///
    /// # Errors
    /// It is out of range.
    #[inline(always)]
    fn check(self) -> std::result::Result<u32, Wrong<Self>> {
        match self.try_into() {
            Ok(length) if length <= MAX_MESSAGE => Ok(length),
            _ => Err(Wrong::Length(self)),
        }
    }
}

impl Length for c_int {}
impl Length for usize {}

/// A wrong argument; the error is made where it is reported, since the first step of a call needs
/// none.
#[derive(Clone, Copy)]
pub(super) enum Wrong<L> {
    Length(L),
    Memory(*mut c_void),
}

impl<L: Length> From<Wrong<L>> for Error {
    #[inline(always)]
    fn from(wrong: Wrong<L>) -> Self {
        match wrong {
            Wrong::Length(size) => bad_length(size),
            Wrong::Memory(raw) => MemoryHandle::wrong(raw),
        }
    }
}

#[cold]
#[inline(never)]
fn bad_length(size: impl fmt::Display) -> Error {
    Error::argument(format!("the length is {size} bytes; 0 to {MAX_MESSAGE} are allowed"))
}

#[inline(always)]
pub(super) unsafe fn isend(
    send_comm: *mut c_void,
    data: *mut c_void,
    size: impl Length,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    guard_steps("isend", || {
        // SAFETY: by NCCL's contract.
        let comm = unsafe { SendHandle::borrow(send_comm)? };
        // SAFETY: NCCL's output pointer.
        unsafe { put(request, null_mut(), "request")? };
        // SAFETY: by NCCL's contract.
        let memory = move || unsafe { MemoryHandle::borrow(mhandle) };
        // SAFETY: written above.
        let begun = move |entry: &_| unsafe { *request = pointer_to(entry) };
        Ok(comm.isend(data as u64, size.check()?, tag as u32, memory, begun))
    })
}

/// NCCL's arrays that describe the messages of a group.
#[derive(Clone, Copy)]
struct Group<L> {
    data: *mut *mut c_void,
    sizes: *mut L,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
}

impl<L: Length> Group<L> {
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
    unsafe fn message<'a>(&self, i: usize) -> std::result::Result<Expected<'a>, Wrong<L>> {
        // SAFETY: as the caller says.
        let (data, size, mhandle) =
            unsafe { (*self.data.add(i), *self.sizes.add(i), *self.mhandles.add(i)) };
        // SAFETY: as the caller says.
        let tag = if self.tags.is_null() { 0 } else { unsafe { *self.tags.add(i) } };
        // SAFETY: by NCCL's contract.
        let memory = &unsafe { MemoryHandle::find(mhandle) }.ok_or(Wrong::Memory(mhandle))?.inner;
        Ok(Expected { addr: data as u64, length: size.check()?, tag: tag as u32, memory })
    }
}

#[inline(always)]
pub(super) unsafe fn irecv<L: Length>(
    recv_comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut L,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    guard_steps("irecv", || {
        // SAFETY: by NCCL's contract.
        let comm = unsafe { RecvHandle::borrow(recv_comm)? };
        // SAFETY: NCCL's output pointer.
        unsafe { put(request, null_mut(), "request")? };
        let group = Group { data, sizes, tags, mhandles };
        group.check()?;
        // SAFETY: NCCL's arrays have n elements, and irecv only reads those below n.
        let expected = move |i| unsafe { group.message(i) };
        // SAFETY: written above.
        let begun = move |entry: &_| unsafe { *request = pointer_to(entry) };
        Ok(comm.irecv(n as usize, expected, begun))
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
    guard_steps("iflush", || {
        // SAFETY: by NCCL's contract.
        let comm = unsafe { RecvHandle::borrow(recv_comm)? };
        // SAFETY: NCCL's output pointer.
        unsafe { put(request, null_mut(), "request")? };
        let group = Group { data, sizes, tags: null_mut(), mhandles };
        group.check()?;
        // SAFETY: NCCL's arrays have n elements, and iflush only reads those below n.
        let received = move |i| unsafe { group.message(i) };
        // SAFETY: written above.
        let begun = move |entry: &_| unsafe { *request = flush(comm, entry, test_flush) };
        Ok(comm.iflush(n as usize, received, begun))
    })
}

#[inline(always)]
pub(super) unsafe fn test(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> ncclResult_t {
    if done.is_null() {
        return fail_without_done();
    }
    // SAFETY: NCCL's output pointer.
    unsafe { *done = 0 };
    // SAFETY: by NCCL's contract.
    let Some(found) = (unsafe { Request::find(request) }) else {
        return fail_without_request(request);
    };
    // SAFETY: its own function, which `handles::mark` has stored.
    unsafe { found.test()(request, Answer { done, sizes }) }
}

#[cold]
#[inline(never)]
extern "C" fn fail_without_done() -> ncclResult_t {
    guard("test", || Err(missing("done")))
}

#[cold]
#[inline(never)]
extern "C" fn fail_without_request(raw: *mut c_void) -> ncclResult_t {
    guard("test", || Err(Request::wrong(raw)))
}

/// [`test()`] of a send or of a receive.
///
/// # Safety
/// `request` is one of a communicator of this type, which is alive.
#[inline(never)]
pub(super) unsafe extern "C" fn test_message<T: Tested>(
    request: *mut c_void,
    answer: Answer,
) -> ncclResult_t {
    guard_steps("test", move || {
        // SAFETY: a request is an entry of its communicator's table and lives as long. Only
        // requests of communicators of this type have these functions: `Handle::new_send` and
        // `Handle::new_recv` get the matching one.
        let request = unsafe { &*request.cast::<Entry<RequestOf<T>>>() };
        // SAFETY: as above.
        let comm = unsafe { comm_of::<T, _>(request) };
        let done = move |lengths: &[u32]| answer.finish(lengths);
        Ok(both_ends::test(comm, request, done))
    })
}

/// [`test()`] of a flush.
///
/// # Safety
/// `request` is a flush of a live communicator.
#[inline(never)]
pub(super) unsafe extern "C" fn test_flush(request: *mut c_void, answer: Answer) -> ncclResult_t {
    guard_steps("test", move || {
        // SAFETY: as in `test_message`.
        let request = unsafe { &*request.cast::<Entry<()>>() };
        // SAFETY: as in `test_message`.
        let comm = unsafe { comm_of::<RecvComm, _>(request) };
        Ok(comm.test_flush(request.id(), || answer.finish(&[])))
    })
}
