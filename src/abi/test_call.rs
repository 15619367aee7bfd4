//! NCCL's `test`.
//!
//! It is `unsafe` for the reason given in [`super::calls`]: NCCL's pointers.

use super::guard::{catch, fail, on_comm};
use super::handles::{Comm, Request, comm_of};
use super::nccl::{ncclResult_t, ncclSuccess};
use super::output::{Answer, missing};
use crate::net::data::both_ends::{Done, Path, RequestOf, Test, Tested};
use crate::net::data::exclusive_cell::First;
use crate::net::data::recv::RecvComm;
use crate::proto::requests::Entry;
use std::ffi::{c_int, c_void};

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
    // SAFETY: its own function.
    unsafe { found.test()(request, Answer { done, sizes }) }
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
    // SAFETY: as the caller says.
    let (comm, test) = unsafe { message::<T>(request, answer) };
    match catch("test", || comm.comm.path().begin(|path| path.check(&test))) {
        Ok(First::Done) => ncclSuccess,
        // SAFETY: as the caller says.
        Ok(First::Next) => unsafe { poll_message::<T>(request, answer) },
        // SAFETY: as the caller says.
        Ok(First::Other) => unsafe { test_in_general::<T>(request, answer) },
        Err(code) => code,
    }
}

/// [`test_message`], where the fast path continues.
///
/// # Safety
/// As there; and it has returned [`First::Next`].
#[inline(never)]
unsafe extern "C" fn poll_message<T: Tested>(request: *mut c_void, answer: Answer) -> ncclResult_t {
    // SAFETY: as the caller says.
    let (comm, test) = unsafe { message::<T>(request, answer) };
    // SAFETY: as the caller says.
    on_comm("test", Ok(comm), |c| unsafe { c.comm.path().resume(|path| path.poll_for(&test)) })
}

/// [`test_message`] by the slow path.
///
/// # Safety
/// As there.
#[inline(never)]
unsafe extern "C" fn test_in_general<T: Tested>(
    request: *mut c_void,
    answer: Answer,
) -> ncclResult_t {
    // SAFETY: as the caller says.
    let (comm, test) = unsafe { message::<T>(request, answer) };
    on_comm("test", Ok(comm), |c| c.comm.path().enter(|path| path.test_in_general(&test)))
}

/// The communicator of a send or of a receive, and the call.
///
/// # Safety
/// As for [`test_message`].
#[inline(always)]
unsafe fn message<'a, T: Tested>(
    request: *mut c_void,
    answer: Answer,
) -> (&'a Comm<T>, Test<'a, RequestOf<T>, impl Done>) {
    // SAFETY: a request is an entry of its communicator's table and lives as long. Only requests of
    // communicators of this type have these functions: `Handle::new_send` and `Handle::new_recv`
    // get the matching one.
    let request = unsafe { &*request.cast::<Entry<RequestOf<T>>>() };
    let test = Test { request, done: move |lengths: &[u32]| answer.finish(lengths) };
    // SAFETY: as above.
    (unsafe { comm_of(request) }, test)
}

/// [`test()`] of a flush.
///
/// # Safety
/// `request` is a flush of a live communicator.
#[inline(never)]
pub(super) unsafe extern "C" fn test_flush(request: *mut c_void, answer: Answer) -> ncclResult_t {
    // SAFETY: as in `message`.
    let request = unsafe { &*request.cast::<Entry<()>>() };
    // SAFETY: as in `message`.
    let comm = unsafe { comm_of::<RecvComm, _>(request) };
    on_comm("test", Ok(comm), |c| {
        if c.comm.test_flush(request.id())? {
            answer.finish(&[]);
        }
        Ok(())
    })
}

#[cold]
#[inline(never)]
extern "C" fn fail_without_done() -> ncclResult_t {
    fail("test", missing("done"))
}

#[cold]
#[inline(never)]
extern "C" fn fail_without_request(raw: *mut c_void) -> ncclResult_t {
    fail("test", Request::wrong(raw))
}
