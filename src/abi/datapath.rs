//! The calls of NCCL's progress thread, in neutral types: isend, irecv and iflush. [`super::test_call`] has test.
//!
//! They are `unsafe` for the reason given in [`super::calls`]: NCCL's pointers.

use super::guard::{fail, fail_on, guard_beginning, on_comm};
use super::handles::{MemoryHandle, RecvHandle, SendHandle, request as pointer_to};
use super::nccl::{ncclResult_t, ncclSuccess};
use super::output::{RequestOutput, missing, put};
use super::test_call::test_flush;
use crate::error::{Error, Result};
use crate::net::data::both_ends::FirstLook;
use crate::net::data::recv::Expected;
use crate::net::data::send::SendComm;
use crate::net::mr::handle::MrHandle;
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
    if let Some(SendHandle { inner: comm, .. }) = unsafe { SendHandle::find(send_comm) }
        && !request.is_null()
    {
        // SAFETY: NCCL's output pointer.
        unsafe { request.write(std::ptr::null_mut()) };
        match comm.comm.look_for_cts() {
            FirstLook::Over => return ncclSuccess,
            // SAFETY: the thread is inside, what says so is dropped here, and the pointers are NCCL's.
            FirstLook::Inside(_) => return unsafe { isend_inside(send_comm, data, size, tag, mhandle, request) },
            FirstLook::Closed => {}
        }
    }
    // SAFETY: by NCCL's contract.
    unsafe { isend_in_general(send_comm, data, size, tag, mhandle, request) }
}

/// `isend`, whose thread has entered the communicator.
///
/// # Safety
/// That of NCCL's pointers; and the thread has entered by [`SendComm::look_for_cts`] and dropped the
/// [`Inside`](crate::net::data::exclusive_cell::Inside).
#[inline(never)]
unsafe extern "C" fn isend_inside(
    send_comm: *mut c_void,
    data: *mut c_void,
    size: c_int,
    tag: c_int,
    mhandle: *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: the caller has found it there.
    let comm = unsafe { &(*send_comm.cast::<SendHandle>()).inner };
    // SAFETY: as the caller says.
    let inside = unsafe { comm.comm.path.go_on_inside() };
    // SAFETY: NCCL's output pointer, which the caller has written to.
    let output = unsafe { RequestOutput::of_null(request) };
    let begun = move |entry: &_| output.set(pointer_to(entry));
    // SAFETY: by NCCL's contract.
    let memory = || unsafe { MemoryHandle::find(mhandle) }.map(|handle| &handle.inner);
    let usual = || SendComm::isend_usual(inside, data as u64, bits(size), tag as u32, memory, begun);
    guard_beginning("isend", usual, |outcome| match outcome {
        Some(Ok(())) => ncclSuccess,
        Some(Err(e)) => fail_on("isend", comm, e),
        // SAFETY: by NCCL's contract.
        None => unsafe { isend_in_general(send_comm, data, size, tag, mhandle, request) },
    })
}

/// `isend`, from its beginning.
///
/// # Safety
/// That of NCCL's pointers.
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
        let output = unsafe { RequestOutput::new(request)? };
        // SAFETY: by NCCL's contract.
        let memory = unsafe { MemoryHandle::borrow(mhandle)? };
        comm.comm.isend(data as u64, length(size)?, tag as u32, memory, move |entry| output.set(pointer_to(entry)))
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

    /// The first message, whatever its length; `None` where [`Self::new`] fails, or [`Self::message`] for another reason than the length. Each
    /// pointer is looked at when it is followed, which costs less than to look at all of them before.
    ///
    /// # Safety
    /// The arrays that are not NULL have an element.
    #[inline(always)]
    unsafe fn usual_message<'a>(&self) -> Option<Expected<'a>> {
        let Self { data, sizes, tags, mhandles, .. } = *self;
        // SAFETY: as the caller says.
        let mhandle = unsafe { *mhandles.as_ref()? };
        // SAFETY: by NCCL's contract.
        let memory: &'a MrHandle = unsafe { &MemoryHandle::find(mhandle)?.inner };
        // SAFETY: as the caller says.
        let (size, data) = unsafe { (*sizes.as_ref()?, *data.as_ref()?) };
        // SAFETY: as the caller says.
        let tag = if tags.is_null() { 0 } else { unsafe { *tags } };
        let expected = Expected { addr: data as u64, length: bits(size), tag: tag as u32, memory };
        Some(expected)
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
    if let Some(RecvHandle { inner: comm, .. }) = unsafe { RecvHandle::find(recv_comm) }
        && n == 1
    {
        let one = Group { count: 1, data, sizes, tags, mhandles };
        // SAFETY: NCCL's arrays have one element.
        let expected = || if request.is_null() { None } else { unsafe { one.usual_message() } };
        // SAFETY: NCCL's output pointer, which is not NULL if a message was expected.
        let begun = |entry: &_| unsafe { request.write(pointer_to(entry)) };
        let usual = || comm.comm.irecv_usual(expected, begun);
        return guard_beginning("irecv", usual, |outcome| match outcome {
            Some(Ok(())) => ncclSuccess,
            Some(Err(e)) => fail_on("irecv", comm, e),
            // SAFETY: by NCCL's contract.
            None => unsafe { irecv_in_general(recv_comm, n, data, sizes, tags, mhandles, request) },
        });
    }
    // SAFETY: by NCCL's contract.
    unsafe { irecv_in_general(recv_comm, n, data, sizes, tags, mhandles, request) }
}

/// `irecv`, from its beginning.
///
/// # Safety
/// That of NCCL's pointers.
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
        let output = unsafe { RequestOutput::new(request)? };
        let group = Group::new(n, data, sizes, tags, mhandles)?;
        // SAFETY: NCCL's arrays have n elements, and irecv asks for those below n.
        let expected = move |i| unsafe { group.message(i) };
        comm.comm.irecv(group.count, expected, move |entry| output.set(pointer_to(entry)))
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
        let received = (0..group.count).map(|i| unsafe { group.message(i) });
        let mut begun = std::ptr::null_mut();
        comm.comm.iflush(received, |entry| begun = comm.flush(entry, test_flush))?;
        // SAFETY: NCCL's output pointer.
        unsafe { put(request, begun, "request") }
    })
}
