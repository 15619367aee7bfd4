//! Events of the network for a profiler of the user's, from version 10 on: NCCL gives `init` a function that passes them on.
//!
//! There is one event a message: it begins when the message is accepted and ends when `test` says that it is complete or has failed, or when the
//! communicator is closed. Its record is the one that profilers know from the built-in transport, which is compiled without such events in NCCL's
//! releases.
//!
//! Where NCCL's set-up of communicators uses the network as well (`NCCL_OOB_NET_ENABLE`), its messages have no handles for a profiler, and those of
//! operations have: that tells which tags are ranks. Otherwise, and while no profiler hears events, a send or a receive costs one look at [`LOOKS`].

use super::handles::{HeardRequest, RecvHandle, SendHandle};
use super::layout::ProfilerCallback;
use super::nccl::{ncclResult_t, ncclSuccess};
use super::output::Answer;
use super::test_call;
use crate::net::background::notices::INIT;
use crate::net::data::both_ends::Tested;
use crate::net::data::recv::RecvComm;
use crate::net::data::send::SendComm;
use crate::proto::MAX_GROUP;
use crate::proto::requests::Entry;
use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

/// The function: place of the event's handle, what happens, NCCL's handle of the message, type and version of the record, the record.
type Callback = unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> ncclResult_t;

/// What happens to an event.
const START: c_int = 0;
const STOP: c_int = 1;
/// InfiniBand's events, version 1.
const RECORD: i64 = 1 << 16 | 1;

/// The function that `init` was given.
static GIVEN: Mutex<Given> = Mutex::new(Given::None);

enum Given {
    None,
    One(AtomicPtr<c_void>),
    /// Two NCCLs of the process have given functions. Which communicators are whose is not known by version 10, so neither is called.
    Several,
}

/// The function, if a profiler may hear events; or else NULL.
static HEARD: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Whether handles tell which tags are ranks.
static TELLS_RANKS: AtomicBool = AtomicBool::new(false);
/// Whether NCCL's handles are looked at: for either.
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

/// The opcode of a send, as work requests have it: `IBV_WR_RDMA_WRITE_WITH_IMM`.
const SENT: c_int = 1;
/// The opcode of a receive, as completions have it: `IBV_WC_RECV_RDMA_WITH_IMM`.
const RECEIVED: c_int = 129;

impl Record {
    fn new<R>(opcode: c_int, request: &Entry<R>, queue_pair: u32, length: usize) -> Self {
        let (wr_id, queue_pair) = (request.id().to_bits().into(), queue_pair.cast_signed());
        Self { kind: QUEUE_PAIR, message: Message { device: 0, wr_id, opcode, queue_pair, length } }
    }
}

/// `init` is given the function.
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

/// NCCL listens, or has connected, by when it has loaded its profiler: `other` returns its name, if it is not Ferrite's.
pub(super) fn handle_profiler<'a>(other: impl FnOnce() -> Option<&'a str>) {
    let given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    let Given::One(function) = &*given else { return };
    if are_heard() {
        return;
    }
    if let Some(name) = other() {
        hear(function.load(Ordering::Relaxed));
        log::info!(target: INIT, "Ferrite: the profiler {name} may hear of each message");
    }
}

/// A communicator with these requests is closed: events that have not ended do now.
pub(super) fn handle_close(heard: &[HeardRequest]) {
    heard.iter().for_each(stop);
}

/// NCCL sets up communicators over the network too.
pub(super) fn handle_early_connections() {
    let _given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    TELLS_RANKS.store(true, Ordering::Relaxed);
    LOOKS.store(true, Ordering::Relaxed);
}

/// From now on events go to `function`; NULL: to none. To be called with [`GIVEN`] locked.
fn hear(function: *mut c_void) {
    HEARD.store(function, Ordering::Relaxed);
    LOOKS.store(!function.is_null() || TELLS_RANKS.load(Ordering::Relaxed), Ordering::Relaxed);
}

fn are_heard() -> bool {
    !HEARD.load(Ordering::Relaxed).is_null()
}

/// Whether [`isend`] and [`irecv`] are to be called.
#[inline(always)]
pub(super) fn are_looked_at() -> bool {
    LOOKS.load(Ordering::Relaxed)
}

fn callback() -> Option<Callback> {
    let heard = HEARD.load(Ordering::Relaxed);
    // SAFETY: NULL is `None`; or else NCCL's function, which has this type and stays as long as NCCL calls.
    unsafe { std::mem::transmute::<*mut c_void, Option<Callback>>(heard) }
}

/// `isend`, which is called here, of `size` bytes, with NCCL's `phandle`.
///
/// # Safety
/// That of NCCL's pointers.
#[cold]
pub(super) unsafe fn isend(
    send_comm: *mut c_void,
    size: c_int,
    phandle: *mut c_void,
    request: *mut *mut c_void,
    isend: impl FnOnce() -> ncclResult_t,
) -> ncclResult_t {
    // SAFETY: as the caller says.
    let comm = unsafe { SendHandle::find(send_comm) };
    if !phandle.is_null() {
        comm.iter().for_each(|comm| comm.inner.comm.handle_operation());
    }
    let code = isend();
    // SAFETY: as the caller says.
    let begun = unsafe { begun::<SendComm>(code, request) };
    let (Some(comm), Some(begun), Some(callback)) = (comm, begun, callback()) else { return code };
    let record = Record::new(SENT, begun, comm.inner.comm.queue_pair(), size as usize);
    let heard = comm.inner.heard(begun, test);
    // SAFETY: as above.
    unsafe { start(callback, heard, 0, phandle, record) };
    // SAFETY: as above.
    unsafe { replace(request, heard) }
}

/// `irecv`, which is called here, of `n` messages for buffers of `sizes` bytes, with NCCL's `phandles`.
///
/// # Safety
/// That of NCCL's pointers.
#[cold]
pub(super) unsafe fn irecv(
    recv_comm: *mut c_void,
    n: c_int,
    sizes: *const c_int,
    phandles: *mut *mut c_void,
    request: *mut *mut c_void,
    irecv: impl FnOnce() -> ncclResult_t,
) -> ncclResult_t {
    // SAFETY: as the caller says.
    let comm = unsafe { RecvHandle::find(recv_comm) };
    // SAFETY: as the caller says: there is one for each message, and one message at least unless `n` is refused below.
    let is_profiled = !phandles.is_null() && n > 0 && !unsafe { *phandles }.is_null();
    if is_profiled {
        comm.iter().for_each(|comm| comm.inner.comm.handle_operation());
    }
    let code = irecv();
    // SAFETY: as the caller says.
    let begun = unsafe { begun::<RecvComm>(code, request) };
    let (Some(comm), Some(begun), Some(callback)) = (comm, begun, callback()) else { return code };
    if phandles.is_null() {
        return code;
    }
    let (queue_pair, heard) = (comm.inner.comm.queue_pair(), comm.inner.heard(begun, test));
    // The receive has begun, so `n` is one that is possible, and there are so many lengths and handles.
    for i in 0..(n as usize).min(MAX_GROUP) {
        // SAFETY: as the caller says.
        let (length, phandle) = unsafe { (*sizes.add(i), *phandles.add(i)) };
        let record = Record::new(RECEIVED, begun, queue_pair, length as usize);
        // SAFETY: as above.
        unsafe { start(callback, heard, i, phandle, record) };
    }
    // SAFETY: as above.
    unsafe { replace(request, heard) }
}

/// The request of a communicator of type `T` that a call which returned `code` has begun.
///
/// # Safety
/// `request` is that call's output pointer.
unsafe fn begun<'a, T: Tested>(code: ncclResult_t, request: *mut *mut c_void) -> Option<&'a Entry<T::Request>> {
    if code != ncclSuccess || request.is_null() {
        return None;
    }
    // SAFETY: as the caller says: NULL, or an entry of such a communicator's table.
    unsafe { (*request).cast::<Entry<T::Request>>().as_ref() }
}

/// The event of message `i` of the request begins. NCCL's function follows `phandle`, which is NULL for messages that no profiler hears of.
///
/// # Safety
/// `phandle` is NULL or NCCL's.
unsafe fn start(callback: Callback, heard: &HeardRequest, i: usize, phandle: *mut c_void, mut record: Record) {
    if !phandle.is_null() {
        // SAFETY: NCCL's function, with a place for the event and a record that live for the call.
        unsafe { callback(heard.events[i].as_ptr(), START, phandle, RECORD, (&raw mut record).cast()) };
    }
}

/// NCCL is given `heard` in place of the request that it is about, if an event has begun.
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

/// `test` of a request whose messages are heard of.
///
/// # Safety
/// `heard` is such a one, whose communicator is alive.
unsafe extern "C" fn test(heard: *mut c_void, answer: Answer) -> ncclResult_t {
    // SAFETY: as the caller says.
    let heard = unsafe { &*heard.cast::<HeardRequest>() };
    let Answer { done, sizes } = answer;
    // SAFETY: the request that this one stands for, and NCCL's output pointers.
    let code = unsafe { test_call::test(heard.request.load(Ordering::Relaxed), done, sizes) };
    // SAFETY: NCCL's output pointer, as that of the `test` just called.
    if code != ncclSuccess || unsafe { *done } != 0 {
        stop(heard);
    }
    code
}

/// The events end. Their handles are NULL from then on, which NCCL's function must not be given.
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
