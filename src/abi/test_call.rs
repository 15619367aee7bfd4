//! NCCL's `test`.
//!
//! It is `unsafe` for the reason given in [`super::calls`]: NCCL's pointers.

use super::guard::{fail, on_comm};
use super::handles::{Request, comm_of};
use super::nccl::ncclResult_t;
use super::output::{Answer, missing};
use crate::net::data::both_ends::Tested;
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
    // SAFETY: a request is an entry of its communicator's table and lives as long. Only requests of
    // communicators of this type have this function: `Handle::new_send` and `Handle::new_recv` get
    // the matching one.
    let request = unsafe { &*request.cast::<Entry<T::Request>>() };
    // SAFETY: as above.
    let comm = unsafe { comm_of::<T, _>(request) };
    on_comm("test", Ok(comm), |c| c.comm.test(request, move |lengths| answer.finish(lengths)))
}

/// [`test()`] of a flush.
///
/// # Safety
/// `request` is a flush of a live communicator.
#[inline(never)]
pub(super) unsafe extern "C" fn test_flush(request: *mut c_void, answer: Answer) -> ncclResult_t {
    // SAFETY: as in `test_message`.
    let request = unsafe { &*request.cast::<Entry<()>>() };
    // SAFETY: as in `test_message`.
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
