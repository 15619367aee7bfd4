//! The calls of NCCL's progress thread, in neutral types: isend, irecv, iflush and test.
//!
//! They are `unsafe` for the reason given in [`super::calls`]: NCCL's pointers.

use super::guard::guard;
use super::handles::{Comm, MemoryHandle, Owner, RecvHandle, RequestHandle, SendHandle};
use super::nccl::ncclResult_t;
use super::output::{RequestOutput, missing, put};
use crate::error::{Error, Result};
use crate::net::data::receiver::{Expected, RecvComm};
use crate::net::data::sender::SendComm;
use crate::net::mr::handle::MrHandle;
use crate::proto::requests::RequestId;
use crate::proto::{MAX_GROUP, MAX_MESSAGE};
use std::ffi::{c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;

#[cold]
#[inline(never)]
fn bad_group(n: c_int) -> Error {
    Error::argument(format!("n is {n}; 1 to {MAX_GROUP} are possible"))
}

#[cold]
#[inline(never)]
fn bad_length(size: impl fmt::Display) -> Error {
    Error::argument(format!("a length of {size} bytes; 0 to {MAX_MESSAGE} are possible"))
}

/// A possible length.
///
/// # Errors
/// It is negative or above [`MAX_MESSAGE`].
#[inline]
fn length(size: c_int) -> Result<u32> {
    if bits(size) <= MAX_MESSAGE { Ok(bits(size)) } else { Err(bad_length(size)) }
}

/// The length, or a number above [`MAX_MESSAGE`] if it is negative.
#[inline(always)]
fn bits(size: c_int) -> u32 {
    const { assert!(MAX_MESSAGE < 1 << 31, "a negative length becomes a greater number") };
    size as u32
}

/// Lengths of 64 bits, as NCCL gives them from version 9 on, in the type of version 8, whose calls do the rest.
///
/// # Errors
/// One is above [`MAX_MESSAGE`].
#[inline(always)]
fn narrow(size: usize) -> Result<c_int> {
    if size <= MAX_MESSAGE as usize { Ok(size as c_int) } else { Err(bad_length(size)) }
}

/// Calls `isend` of version 8 with a length of 64 bits.
#[inline(always)]
pub(super) fn with_narrow(size: usize, isend: impl FnOnce(c_int) -> ncclResult_t) -> ncclResult_t {
    match narrow(size) {
        Ok(size) => isend(size),
        Err(error) => fail("isend", error),
    }
}

/// Calls `irecv` of version 8 with the `n` lengths of 64 bits at `sizes`.
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
    // As many are written as are read; a wrong `n` is refused later.
    for (i, place) in narrowed.iter_mut().take(usize::try_from(n).unwrap_or(0)).enumerate() {
        // SAFETY: as the caller says.
        match narrow(unsafe { *sizes.add(i) }) {
            Ok(size) => _ = place.write(size),
            Err(error) => return fail("irecv", error),
        }
    }
    irecv(narrowed.as_mut_ptr().cast())
}

/// Runs the body of a call on a communicator. An error that is the same as the last one is not logged again, since NCCL goes on
/// to call a failed communicator.
#[inline(always)]
fn on_comm<T>(call: &'static str, comm: Result<&Comm<T>>, body: impl FnOnce(&Comm<T>) -> Result<()>) -> ncclResult_t {
    guard(call, || {
        let comm = comm?;
        body(comm).map_err(|e| comm.log_once(e))
    })
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
        let begun = move |id| output.set(comm.request(id));
        // SAFETY: by NCCL's contract.
        let memory = || unsafe { MemoryHandle::borrow(mhandle) };
        match comm.comm.isend_usual(data as u64, bits(size), tag as u32, memory, begun) {
            Some(outcome) => outcome,
            None => comm.comm.isend(data as u64, length(size)?, tag as u32, memory()?, begun),
        }
    })
}

/// NCCL's arrays that describe the messages of a group.
#[derive(Clone, Copy)]
struct Group {
    count: usize,
    data: *mut *mut c_void,
    sizes: *mut c_int,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
}

impl Group {
    #[inline(always)]
    fn new(
        n: c_int,
        data: *mut *mut c_void,
        sizes: *mut c_int,
        tags: *mut c_int,
        mhandles: *mut *mut c_void,
    ) -> Result<Self> {
        if !(1..=MAX_GROUP as c_int).contains(&n) {
            return Err(bad_group(n));
        }
        let count = n as usize;
        if data.is_null() || sizes.is_null() || mhandles.is_null() {
            return Err(missing("an array"));
        }
        Ok(Self { count, data, sizes, tags, mhandles })
    }

    /// Message `i`.
    ///
    /// # Safety
    /// `i` is below `count`, and each array has `count` elements; `tags` may be NULL.
    #[inline(always)]
    unsafe fn message<'a>(&self, i: usize) -> Result<Expected<'a>> {
        // SAFETY: as the caller says.
        let (data, size) = unsafe { (*self.data.add(i), *self.sizes.add(i)) };
        // SAFETY: as the caller says.
        let tag = if self.tags.is_null() { 0 } else { unsafe { *self.tags.add(i) } };
        // SAFETY: as the caller says, and by NCCL's contract.
        let memory: &'a MrHandle = unsafe { MemoryHandle::borrow(*self.mhandles.add(i))? };
        Ok(Expected { addr: data as u64, length: length(size)?, tag: tag as u32, memory })
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
        let group = Group::new(n, data, sizes, tags, mhandles)?;
        // SAFETY: NCCL's arrays have n elements, and irecv asks for those below n.
        let expected = move |i| unsafe { group.message(i) };
        comm.comm.irecv(group.count, expected, move |id| output.set(comm.request(id)))
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
        let group = Group::new(n, data, sizes, std::ptr::null_mut(), mhandles)?;
        // SAFETY: NCCL's arrays have n elements.
        let id = comm.comm.iflush((0..group.count).map(|i| unsafe { group.message(i) }))?;
        // SAFETY: NCCL's output pointer.
        unsafe { put(request, comm.flush(id), "request") }
    })
}

#[inline(always)]
pub(super) unsafe fn test(request: *mut c_void, done: *mut c_int, sizes: *mut c_int) -> ncclResult_t {
    if done.is_null() {
        return fail_without_done();
    }
    // SAFETY: NCCL's output pointer.
    unsafe { *done = 0 };
    // SAFETY: by NCCL's contract.
    let Some(request) = (unsafe { RequestHandle::find(request) }) else { return fail_without_request(request) };
    let (id, answer) = (request.id(), Answer { done, sizes });
    match request.owner() {
        // SAFETY: a request is part of its communicator and lives as long.
        Owner::Send(comm) => test_send(unsafe { &*comm }, id, answer),
        // SAFETY: as above.
        Owner::Receive(comm) => test_receive(unsafe { &*comm }, id, answer),
        // SAFETY: as above.
        Owner::Flush(comm) => test_flush(unsafe { &*comm }, id, answer),
    }
}

/// NCCL's output pointers of `test`: `sizes` has as many elements as the request's group has messages, or is NULL.
#[derive(Clone, Copy)]
#[repr(C)]
struct Answer {
    done: *mut c_int,
    sizes: *mut c_int,
}

impl Answer {
    /// Reports that the request is complete, with the length of each message. `lengths` may be empty.
    #[inline(always)]
    fn finish(self, lengths: &[u32]) {
        // SAFETY: valid by NCCL's contract, which `test` has been called under.
        unsafe {
            *self.done = 1;
            if self.sizes.is_null() {
                return;
            }
            match lengths {
                [one] => *self.sizes.cast::<u32>() = *one,
                many => self.sizes.cast::<u32>().copy_from_nonoverlapping(many.as_ptr(), many.len()),
            }
        }
    }
}

#[inline(never)]
extern "C" fn test_send(comm: &Comm<SendComm>, id: RequestId, answer: Answer) -> ncclResult_t {
    on_comm("test", Ok(comm), |c| c.comm.test(id, move |lengths| answer.finish(lengths)))
}

#[inline(never)]
extern "C" fn test_receive(comm: &Comm<RecvComm>, id: RequestId, answer: Answer) -> ncclResult_t {
    on_comm("test", Ok(comm), |c| c.comm.test(id, move |lengths| answer.finish(lengths)))
}

#[inline(never)]
extern "C" fn test_flush(comm: &Comm<RecvComm>, id: RequestId, answer: Answer) -> ncclResult_t {
    on_comm("test", Ok(comm), |c| {
        if c.comm.test_flush(id)? {
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
    fail("test", RequestHandle::wrong(raw))
}

/// An error that no communicator has.
#[cold]
#[inline(never)]
fn fail(call: &'static str, error: Error) -> ncclResult_t {
    guard(call, || Err(error))
}
