//! Network events for a user's profiler, from version 10 on: NCCL passes `init` a function for
//! them.
//!
//! There is one event per message. It begins when the message is accepted. It ends when `test`
//! reports success or failure, or when the communicator is closed. The record is the one that
//! profilers know from the built-in transport, which has no such events in NCCL's releases.
//!
//! If NCCL also sets up communicators over the network (`NCCL_OOB_NET_ENABLE`), only messages of
//! operations have profiler handles. That shows which tags are ranks. Otherwise, and while no
//! profiler follows events, a send or receive costs one read of [`LOOKS`].

use super::datapath;
use super::guard::{Code, guard_steps};
use super::handles::{HeardRequest, RecvHandle, SendHandle};
use super::layout::ProfilerCallback;
use super::nccl::{ncclResult_t, ncclSuccess};
use super::output::Answer;
use super::v9;
use crate::net::background::notices::INIT;
use crate::net::data::both_ends::{RequestOf, Tested};
use crate::net::data::recv::RecvComm;
use crate::net::data::send::SendComm;
use crate::proto::MAX_GROUP;
use crate::proto::requests::Entry;
use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

/// The function: pointer to the event's handle, action, NCCL's handle of the message, type and
/// version of the record, the record.
type Callback =
    unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> ncclResult_t;

/// The action on an event.
const START: c_int = 0;
const STOP: c_int = 1;
/// InfiniBand's events, version 1.
const RECORD: i64 = 1 << 16 | 1;

/// The function that `init` received.
static GIVEN: Mutex<Given> = Mutex::new(Given::None);

enum Given {
    None,
    One(AtomicPtr<c_void>),
    /// Two NCCLs of the process have passed functions. Version 10 does not show which communicators
    /// are whose, so neither is called.
    Several,
}

/// The function if a profiler may follow events; otherwise NULL.
static HEARD: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Whether handles show which tags are ranks.
static TELLS_RANKS: AtomicBool = AtomicBool::new(false);
/// Whether NCCL's handles are read, for either purpose.
static LOOKS: AtomicBool = AtomicBool::new(false);

/// The record of an event.
#[repr(C)]
struct Record {
    /// [`QUEUE_PAIR`].
    kind: u8,
    message: Message,
}

/// The type of records of messages on a queue pair.
const QUEUE_PAIR: u8 = 1;

/// A message on a queue pair.
#[repr(C)]
struct Message {
    /// The rail.
    device: c_int,
    wr_id: u64,
    opcode: c_int,
    queue_pair: c_int,
    /// Bytes.
    length: usize,
}

const _: () = {
    assert!(size_of::<Record>() == 40 && offset_of!(Record, message) == 8);
    assert!(offset_of!(Message, wr_id) == 8 && offset_of!(Message, length) == 24);
};

/// The opcode of a send, as in work requests: `IBV_WR_RDMA_WRITE_WITH_IMM`.
const SENT: c_int = 1;
/// The opcode of a receive, as in completions: `IBV_WC_RECV_RDMA_WITH_IMM`.
const RECEIVED: c_int = 129;

impl Record {
    fn new<R>(opcode: c_int, request: &Entry<R>, queue_pair: u32, length: usize) -> Self {
        let (wr_id, queue_pair) = (request.id().to_bits().into(), queue_pair.cast_signed());
        Self { kind: QUEUE_PAIR, message: Message { device: 0, wr_id, opcode, queue_pair, length } }
    }
}

/// `init` has received the function.
pub(super) fn handle_init(function: ProfilerCallback) {
    let function = function.cast_mut();
    if function.is_null() {
        return;
    }
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    match &*given {
        Given::None => *given = Given::One(AtomicPtr::new(function)),
        Given::One(before) if before.load(Ordering::Relaxed) == function => {}
        Given::One(_) | Given::Several => {
            *given = Given::Several;
            hear(null_mut());
        }
    }
}

/// NCCL listens or has connected, so it has loaded its profiler. `other` returns the profiler's
/// name if it is not Ferrite's.
pub(super) fn handle_profiler<'a>(other: impl FnOnce() -> Option<&'a str>) {
    let given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let Given::One(function) = &*given else { return };
    if are_heard() {
        return;
    }
    if let Some(name) = other() {
        hear(function.load(Ordering::Relaxed));
        log::info!(target: INIT, "Ferrite: the profiler {name} may receive an event for each message");
    }
}

/// A communicator with these requests is closed: ends its open events.
pub(super) fn handle_close(heard: &[HeardRequest]) {
    heard.iter().for_each(stop);
}

/// NCCL also sets up communicators over the network.
pub(super) fn handle_early_connections() {
    let _given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    TELLS_RANKS.store(true, Ordering::Relaxed);
    LOOKS.store(true, Ordering::Relaxed);
}

/// Sends events to `function` from now on; NULL for none. Call it with [`GIVEN`] locked.
fn hear(function: *mut c_void) {
    HEARD.store(function, Ordering::Relaxed);
    LOOKS.store(!function.is_null() || TELLS_RANKS.load(Ordering::Relaxed), Ordering::Relaxed);
}

fn are_heard() -> bool {
    !HEARD.load(Ordering::Relaxed).is_null()
}

/// Whether to call [`isend`] and [`irecv`].
#[inline(always)]
pub(super) fn are_looked_at() -> bool {
    LOOKS.load(Ordering::Relaxed)
}

fn callback() -> Option<Callback> {
    let heard = HEARD.load(Ordering::Relaxed);
    // SAFETY: NULL is `None`; otherwise NCCL's function, which has this type and lives as long as
    // NCCL calls.
    unsafe { std::mem::transmute::<*mut c_void, Option<Callback>>(heard) }
}

/// `isend` with NCCL's `phandle`.
///
/// # Safety
/// That of NCCL's pointers.
#[cold]
#[inline(never)]
pub(super) unsafe fn isend(
    send_comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    phandle: *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: as the caller says.
    let profiled =
        || unsafe { isend_profiled(send_comm, data, size, tag, mhandle, phandle, request) };
    guard_steps("isend", || Ok(Code(profiled())))
}

unsafe fn isend_profiled(
    send_comm: *mut c_void,
    data: *mut c_void,
    size: usize,
    tag: c_int,
    mhandle: *mut c_void,
    phandle: *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: as the caller says.
    let comm = unsafe { SendHandle::find(send_comm) };
    if !phandle.is_null() {
        comm.iter().for_each(|comm| comm.inner.comm.handle_operation());
    }
    // SAFETY: as the caller says.
    let code = unsafe { v9::isend(send_comm, data, size, tag, mhandle, request) };
    // SAFETY: as the caller says.
    let begun = unsafe { begun::<SendComm>(code, request) };
    let (Some(comm), Some(begun), Some(callback)) = (comm, begun, callback()) else { return code };
    let record = Record::new(SENT, begun, comm.inner.comm.queue_pair(), size);
    let heard = comm.inner.heard(begun, test);
    // SAFETY: as above.
    unsafe { start(callback, heard, 0, phandle, record) };
    // SAFETY: as above.
    unsafe { replace(request, heard) }
}

/// `irecv` of `n` messages with NCCL's `phandles`.
///
/// # Safety
/// That of NCCL's pointers.
#[cold]
#[inline(never)]
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn irecv(
    recv_comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    phandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: as the caller says.
    let profiled =
        || unsafe { irecv_profiled(recv_comm, n, data, sizes, tags, mhandles, phandles, request) };
    guard_steps("irecv", || Ok(Code(profiled())))
}

#[allow(clippy::too_many_arguments)]
unsafe fn irecv_profiled(
    recv_comm: *mut c_void,
    n: c_int,
    data: *mut *mut c_void,
    sizes: *mut usize,
    tags: *mut c_int,
    mhandles: *mut *mut c_void,
    phandles: *mut *mut c_void,
    request: *mut *mut c_void,
) -> ncclResult_t {
    // SAFETY: as the caller says.
    let comm = unsafe { RecvHandle::find(recv_comm) };
    // SAFETY: the caller's contract: there is one for each message, and at least one message unless
    // `n` is refused below.
    let is_profiled = !phandles.is_null() && n > 0 && !unsafe { *phandles }.is_null();
    if is_profiled {
        comm.iter().for_each(|comm| comm.inner.comm.handle_operation());
    }
    // SAFETY: as the caller says.
    let code = unsafe { v9::irecv(recv_comm, n, data, sizes, tags, mhandles, request) };
    // SAFETY: as the caller says.
    let begun = unsafe { begun::<RecvComm>(code, request) };
    let (Some(comm), Some(begun), Some(callback)) = (comm, begun, callback()) else { return code };
    if phandles.is_null() {
        return code;
    }
    let (queue_pair, heard) = (comm.inner.comm.queue_pair(), comm.inner.heard(begun, test));
    // The receive has begun, so `n` is valid and the arrays have that many elements.
    for i in 0..(n as usize).min(MAX_GROUP) {
        // SAFETY: as the caller says.
        let (length, phandle) = unsafe { (*sizes.add(i), *phandles.add(i)) };
        let record = Record::new(RECEIVED, begun, queue_pair, length);
        // SAFETY: as above.
        unsafe { start(callback, heard, i, phandle, record) };
    }
    // SAFETY: as above.
    unsafe { replace(request, heard) }
}

/// The request that a call with result `code` has begun on a communicator of type `T`.
///
/// # Safety
/// `request` is that call's output pointer.
unsafe fn begun<'a, T: Tested>(
    code: ncclResult_t,
    request: *mut *mut c_void,
) -> Option<&'a Entry<RequestOf<T>>> {
    if code != ncclSuccess || request.is_null() {
        return None;
    }
    // SAFETY: as the caller says: NULL, or an entry of such a communicator's table.
    unsafe { (*request).cast::<Entry<_>>().as_ref() }
}

/// Begins the event of message `i` of the request. NCCL's function uses `phandle`, which is NULL
/// for messages that no profiler follows.
///
/// # Safety
/// `phandle` is NULL or NCCL's.
unsafe fn start(
    callback: Callback,
    heard: &HeardRequest,
    i: usize,
    phandle: *mut c_void,
    mut record: Record,
) {
    if !phandle.is_null() {
        // SAFETY: NCCL's function, with a place for the event and a record that live for the call.
        unsafe {
            callback(heard.events[i].as_ptr(), START, phandle, RECORD, (&raw mut record).cast())
        };
    }
}

/// Gives NCCL `heard` in place of the request that it stands for, if an event has begun.
///
/// # Safety
/// `request` is NCCL's output pointer.
unsafe fn replace(request: *mut *mut c_void, heard: &HeardRequest) -> ncclResult_t {
    if heard.events.iter().any(|event| !event.load(Ordering::Relaxed).is_null()) {
        // SAFETY: as the caller says.
        unsafe { *request = std::ptr::from_ref(heard).cast_mut().cast() };
    }
    ncclSuccess
}

/// `test` of a profiled request.
///
/// # Safety
/// `heard` is such a request, and its communicator is alive.
pub(super) unsafe extern "C" fn test(heard: *mut c_void, answer: Answer) -> ncclResult_t {
    // SAFETY: as the caller says.
    guard_steps("test", || Ok(Code(unsafe { test_profiled(heard, answer) })))
}

unsafe fn test_profiled(heard: *mut c_void, answer: Answer) -> ncclResult_t {
    // SAFETY: as the caller says.
    let heard = unsafe { &*heard.cast::<HeardRequest>() };
    let Answer { done, sizes } = answer;
    // SAFETY: the request that this one stands for, and NCCL's output pointers.
    let code = unsafe { datapath::test(heard.request.load(Ordering::Relaxed), done, sizes) };
    // SAFETY: NCCL's output pointer, as that of the `test` just called.
    if code != ncclSuccess || unsafe { *done } != 0 {
        stop(heard);
    }
    code
}

/// Ends the events. Sets their handles to NULL, which must not be passed to NCCL's function.
fn stop(heard: &HeardRequest) {
    for event in &heard.events {
        if let Some(callback) = callback()
            && !event.load(Ordering::Relaxed).is_null()
        {
            // SAFETY: NCCL's function, and the handle of an event that has begun.
            unsafe { callback(event.as_ptr(), STOP, null_mut(), 0, null_mut()) };
        }
        event.store(null_mut(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_functions_in_a_process_none_is_called() {
        let [one, another] = [1, 2].map(std::ptr::without_provenance);
        for function in [std::ptr::null(), one, one] {
            handle_init(function);
            handle_profiler(|| None);
            assert!(!are_heard());
        }
        handle_profiler(|| Some("a profiler"));
        assert!(are_heard());
        handle_init(another);
        handle_profiler(|| Some("a profiler"));
        assert!(!are_heard());
    }
}
