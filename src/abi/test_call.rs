//! NCCL's `test`.
//!
//! It is `unsafe` for the reason given in [`super::calls`]: NCCL's pointers.

use super::guard::{fail, guard_beginning, on_comm};
use super::handles::{Request, comm_of};
use super::nccl::{ncclResult_t, ncclSuccess};
use super::output::{Answer, missing};
use crate::error::Error;
use crate::net::data::both_ends::{Batch, Completion, FirstLook, Tested};
use crate::net::data::exclusive_cell::Inside;
use crate::net::data::recv::RecvComm;
use crate::proto::requests::Entry;
use std::ffi::{c_int, c_void};

#[inline(always)]
pub(super) unsafe fn test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> ncclResult_t {
    if done.is_null() {
        return fail_without_done();
    }
    // SAFETY: NCCL's output pointer.
    unsafe { *done = 0 };
    // SAFETY: by NCCL's contract.
    let Some(found) = (unsafe { Request::find(request) }) else { return fail_without_request(request) };
    // SAFETY: its own function.
    unsafe { found.test()(request, Answer { done, sizes }) }
}

/// [`test()`] of a send or of a receive.
///
/// # Safety
/// `request` is one of a communicator of this type, which is alive.
#[inline(never)]
pub(super) unsafe extern "C" fn test_message<T: Tested>(request: *mut c_void, answer: Answer) -> ncclResult_t {
    // SAFETY: a request is an entry of its communicator's table and lives as long. Those of a communicator of this type alone have this
    // function: `Handle::new_send` and `Handle::new_recv` are given the one that fits.
    let request = unsafe { &*request.cast::<Entry<T::Request>>() };
    // SAFETY: as above.
    let comm = unsafe { comm_of::<T, _>(request) };
    match comm.comm.first_look(request, move |lengths| answer.finish(lengths)) {
        FirstLook::Over => ncclSuccess,
        FirstLook::Inside(inside) => poll::<T>(request, answer, inside),
        FirstLook::Closed => test_in_general::<T>(request, answer),
    }
}

/// [`test_message()`] of a request that is not complete: polls. What is needed after the poll is looked up again, which costs less than
/// to save registers for it.
#[inline(never)]
extern "C" fn poll<T: Tested>(
    request: &Entry<T::Request>,
    answer: Answer,
    mut inside: Inside<'_, T::Path>,
) -> ncclResult_t {
    let mut batch = Batch::default();
    match T::poll(inside.state(), &mut batch) {
        Ok([]) => {}
        Ok(completions) => return handle_polled::<T>(request, answer, completions),
        Err(e) => return handle_failed_poll::<T>(request, e),
    }
    // SAFETY: as in `test_message`; and as in `handle_polled`.
    let mut inside = unsafe { comm_of::<T, _>(request).comm.path().go_on_inside() };
    if T::has_nothing_to_do(inside.state()) {
        inside.leave();
        return ncclSuccess;
    }
    handle_empty_poll::<T>(request, inside)
}

#[inline(never)]
fn handle_polled<T: Tested>(request: &Entry<T::Request>, answer: Answer, completions: &[Completion]) -> ncclResult_t {
    // SAFETY: as in `test_message`.
    let comm = unsafe { comm_of::<T, _>(request) };
    // SAFETY: the thread has entered before the poll, and what says so is not used any more.
    let mut inside = unsafe { comm.comm.path().go_on_inside() };
    let done = move |lengths: &[u32]| answer.finish(lengths);
    let usual = || {
        let others = T::handle_usual(inside.state(), completions, request, done);
        if others.is_none() {
            inside.leave();
        }
        others
    };
    guard_beginning("test", usual, |others| match others {
        None => ncclSuccess,
        Some(others) => handle_others::<T>(request, answer, others),
    })
}

/// As [`handle_polled()`], where there is more to do than usual.
#[inline(never)]
fn handle_others<T: Tested>(request: &Entry<T::Request>, answer: Answer, completions: &[Completion]) -> ncclResult_t {
    // SAFETY: as in `test_message`.
    let comm = unsafe { comm_of::<T, _>(request) };
    // SAFETY: as in `handle_polled`.
    let inside = unsafe { comm.comm.path().go_on_inside() };
    let done = move |lengths: &[u32]| answer.finish(lengths);
    on_comm("test", Ok(comm), |c| c.comm.handle_others(inside, completions, request, done))
}

#[cold]
#[inline(never)]
fn handle_empty_poll<T: Tested>(request: &Entry<T::Request>, inside: Inside<'_, T::Path>) -> ncclResult_t {
    // SAFETY: as in `test_message`.
    let comm = unsafe { comm_of::<T, _>(request) };
    on_comm("test", Ok(comm), |c| c.comm.handle_empty_poll(inside, request))
}

#[cold]
#[inline(never)]
fn handle_failed_poll<T: Tested>(request: &Entry<T::Request>, error: Error) -> ncclResult_t {
    // SAFETY: as in `test_message`.
    let comm = unsafe { comm_of::<T, _>(request) };
    // SAFETY: as in `handle_polled`.
    let inside = unsafe { comm.comm.path().go_on_inside() };
    on_comm("test", Ok(comm), |c| c.comm.handle_failed_poll(inside, error))
}

#[inline(never)]
extern "C" fn test_in_general<T: Tested>(request: &Entry<T::Request>, answer: Answer) -> ncclResult_t {
    // SAFETY: as in `test_message`.
    let comm = unsafe { comm_of::<T, _>(request) };
    on_comm("test", Ok(comm), |c| c.comm.test(request, move |lengths| answer.finish(lengths)))
}

/// [`test()`] of a flush.
///
/// # Safety
/// `request` is a flush of a communicator that is alive.
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
