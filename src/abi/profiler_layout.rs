//! NCCL's profiler structs, versions 4 to 6, written from facts like [`super::layout`]. Only the
//! beginning of an event is here. It is the same in all of these versions, except that version 4
//! only writes the first byte of the type.

use super::nccl::{ncclDebugLogger_t, ncclResult_t};
use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// Types of events. A mask of them selects the events that NCCL reports.
pub(super) const COLLECTIVE: u64 = 2;
/// A send or a receive.
pub(super) const POINT_TO_POINT: u64 = 4;
/// A proxy's part in an operation, over one channel, to or from one peer.
pub(super) const PROXY: u64 = 8;
/// The call of a collective. It precedes its child event of type [`COLLECTIVE`].
pub(super) const COLLECTIVE_CALL: u64 = 512;

/// The beginning of an event.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Event {
    pub(super) kind: u64,
    /// The handle that was returned for the parent event.
    pub(super) parent: *mut c_void,
    /// The rank of the process that owns the event.
    pub(super) rank: c_int,
    pub(super) detail: Detail,
}

/// The type-specific members that follow.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Detail {
    pub(super) collective: Collective,
    pub(super) point_to_point: PointToPoint,
    pub(super) proxy: Proxy,
    pub(super) collective_call: CollectiveCall,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Collective {
    /// How many operations of this function the communicator has had before.
    pub(super) number: u64,
    pub(super) function: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct PointToPoint {
    pub(super) function: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Proxy {
    /// The process that has begun the operation.
    pub(super) pid: c_int,
    pub(super) channel: u8,
    /// Its rank in the communicator.
    pub(super) peer: c_int,
    pub(super) steps: c_int,
    pub(super) chunk_size: c_int,
    pub(super) is_send: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CollectiveCall {
    function: *const c_char,
    count: usize,
    datatype: *const c_char,
    root: c_int,
    stream: *const c_void,
    /// Whether a CUDA graph is being captured, whose operations NCCL does not count; 0 if not.
    pub(super) is_captured: u8,
}

/// `init` of version 4: context, mask of events, name and number of the communicator, nodes, ranks,
/// own rank, logger.
pub(super) type InitV4 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    ncclDebugLogger_t,
) -> ncclResult_t;
/// `init` of versions 5 and 6: context, number of the communicator, mask of events, its name,
/// nodes, ranks, own rank, logger.
pub(super) type InitV5 = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *mut c_int,
    *const c_char,
    c_int,
    c_int,
    c_int,
    ncclDebugLogger_t,
) -> ncclResult_t;

/// The table of a version with this `init`.
#[repr(C)]
#[derive(Debug)]
pub struct Table<Init> {
    pub(super) name: *const c_char,
    pub(super) init: Init,
    /// Context, place for a handle, event.
    pub(super) start_event:
        unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const Event) -> ncclResult_t,
    pub(super) stop_event: unsafe extern "C" fn(*mut c_void) -> ncclResult_t,
    /// Handle, new state, its arguments.
    pub(super) record_event_state:
        unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> ncclResult_t,
    pub(super) finalize: unsafe extern "C" fn(*mut c_void) -> ncclResult_t,
}

const _: () = {
    assert!(size_of::<Table<InitV4>>() == 48 && offset_of!(Table<InitV5>, finalize) == 40);
    assert!(
        offset_of!(Event, parent) == 8
            && offset_of!(Event, rank) == 16
            && offset_of!(Event, detail) == 24
    );
    assert!(offset_of!(Collective, function) == 8 && offset_of!(CollectiveCall, is_captured) == 40);
    assert!(
        offset_of!(Proxy, channel) == 4
            && offset_of!(Proxy, peer) == 8
            && offset_of!(Proxy, steps) == 12
    );
    assert!(offset_of!(Proxy, chunk_size) == 16 && offset_of!(Proxy, is_send) == 20);
};
