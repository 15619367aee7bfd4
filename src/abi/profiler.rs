//! NCCL's profiler interface, versions 4 to 6, through which NCCL reports its operations.
//!
//! NCCL 2.28.3 and later also look for a profiler in the library of the network plugin, unless they
//! have found another one (`NCCL_PROFILER_PLUGIN`, `libnccl-profiler.so`). 2.28 uses version 5,
//! later ones version 6. NCCL 2.27 uses version 4, if `NCCL_PROFILER_PLUGIN` names this file.
//!
//! Ferrite requests ProxyOp events, for which NCCL also sends their parents. That is one or two
//! calls for each operation, channel and direction, and none for a message. `init` never fails:
//! NCCL would continue with a profiler that has no context, or unload it twice.

use super::guard::guard;
use super::nccl::{self, ncclResult_t};
use super::output::put;
use super::process::{self, Process};
use super::profiler_layout::{
    COLLECTIVE, COLLECTIVE_CALL, Collective, Event, InitV4, InitV5, POINT_TO_POINT, PROXY, Proxy,
    Table,
};
use super::table::{Exported, slots};
use crate::net::operations::live::PeerAndDirection;
use crate::net::operations::{communicators, live};
use crate::proto::explain::operation::{Call, Function};
use std::ffi::{CStr, c_char, c_int, c_void};

/// Used by NCCL 2.27.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclProfiler_v4: Exported<Table<InitV4>> = Exported(Table {
    name: process::NAME.as_ptr(),
    init: init_v4,
    start_event: start_event::<4>,
    stop_event,
    record_event_state,
    finalize,
});

/// Used by NCCL 2.28.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclProfiler_v5: Exported<Table<InitV5>> = Exported(Table {
    name: process::NAME.as_ptr(),
    init: init_v5::<5>,
    start_event: start_event::<5>,
    stop_event,
    record_event_state,
    finalize,
});

/// Used by NCCL 2.29 and later.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclProfiler_v6: Exported<Table<InitV5>> = Exported(Table {
    name: process::NAME.as_ptr(),
    init: init_v5::<6>,
    start_event: start_event::<6>,
    stop_event,
    record_event_state,
    finalize,
});

slots! {
    init_v4(
        context: *mut *mut c_void, mask: *mut c_int, name: *const c_char, id: u64, _nodes: c_int, _ranks: c_int,
        rank: c_int, _log_function: nccl::ncclDebugLogger_t,
    ) => begin(4, context, id, mask, name, rank);
}

unsafe extern "C" fn stop_event(handle: *mut c_void) -> ncclResult_t {
    guard("stopEvent", || {
        live::end(handle as u64);
        Ok(())
    })
}

/// States of events are ignored.
unsafe extern "C" fn record_event_state(
    _handle: *mut c_void,
    _state: c_int,
    _arguments: *mut c_void,
) -> ncclResult_t {
    nccl::ncclSuccess
}

unsafe extern "C" fn finalize(context: *mut c_void) -> ncclResult_t {
    guard("finalize", || {
        communicators::end(context as u64);
        Ok(())
    })
}

unsafe extern "C" fn init_v5<const VERSION: u32>(
    context: *mut *mut c_void,
    id: u64,
    mask: *mut c_int,
    name: *const c_char,
    _nodes: c_int,
    _ranks: c_int,
    rank: c_int,
    _log_function: nccl::ncclDebugLogger_t,
) -> ncclResult_t {
    // SAFETY: the arguments are NCCL's.
    unsafe { begin(VERSION, context, id, mask, name, rank) }
}

/// NCCL begins a communicator.
unsafe fn begin(
    version: u32,
    context: *mut *mut c_void,
    id: u64,
    mask: *mut c_int,
    name: *const c_char,
    rank: c_int,
) -> ncclResult_t {
    // The error is already logged.
    let _ = guard("init", || {
        let is_wanted = Process::handle_profiler(version);
        // SAFETY: NCCL's pointer, NULL or a string.
        let name = if name.is_null() { c"" } else { unsafe { CStr::from_ptr(name) } };
        let given = communicators::begin(id, &name.to_string_lossy(), rank.cast_unsigned());
        // SAFETY: NCCL's output pointers.
        unsafe {
            put(context, given as *mut c_void, "context")?;
            put(mask, if is_wanted { PROXY as c_int } else { 0 }, "eActivationMask")
        }
    });
    nccl::ncclSuccess
}

/// An event begins.
unsafe extern "C" fn start_event<const VERSION: u32>(
    context: *mut c_void,
    handle: *mut *mut c_void,
    event: *const Event,
) -> ncclResult_t {
    guard("startEvent", || {
        // SAFETY: NCCL's pointer, NULL or valid; it has the members of its type.
        let event = unsafe { event.as_ref() };
        // SAFETY: as above.
        let given = event.and_then(|event| unsafe { start::<VERSION>(context as u64, event) });
        // NCCL passes handles other than NULL to the other functions. An ignored event has none.
        // SAFETY: NCCL's output pointer.
        unsafe { put(handle, given.unwrap_or(0) as *mut c_void, "eHandle") }
    })
}

/// NCCL's handle for the event.
///
/// # Safety
/// The event has the members of its type.
unsafe fn start<const VERSION: u32>(context: u64, event: &Event) -> Option<u64> {
    // In version 4 NCCL only writes the first byte.
    match event.kind & if VERSION == 4 { 0xff } else { u64::MAX } {
        COLLECTIVE => {
            // SAFETY: as the caller says.
            let Collective { number, function } = unsafe { event.detail.collective };
            // SAFETY: NCCL's pointer, NULL or a string.
            let function = unsafe { named(function) };
            // Version 4 does not mark operations of captured graphs, whose numbers equal those of
            // others.
            let is_counted = VERSION > 4 && event.parent as u64 != communicators::UNCOUNTED;
            let number = Some(number).filter(|_| is_counted);
            Some(communicators::begin_call(context, Call { function, number }))
        }
        COLLECTIVE_CALL => {
            // SAFETY: as the caller says.
            (unsafe { event.detail.collective_call.is_captured } != 0)
                .then_some(communicators::UNCOUNTED)
        }
        POINT_TO_POINT => {
            // SAFETY: as above, both.
            let function = unsafe { named(event.detail.point_to_point.function) };
            Some(communicators::begin_call(context, Call { function, number: None }))
        }
        PROXY => {
            // SAFETY: as the caller says.
            let Proxy { peer, is_send, channel, .. } = unsafe { event.detail.proxy };
            let (peer, rank) = (peer.cast_unsigned(), event.rank.cast_unsigned());
            live::begin(
                context,
                event.parent as u64,
                PeerAndDirection { peer, is_send: is_send != 0, channel, rank },
            )
        }
        _ => None,
    }
}

/// # Safety
/// `name` is NULL or a string.
unsafe fn named(name: *const c_char) -> Function {
    match name.is_null() {
        true => Function::Other,
        // SAFETY: as the caller says.
        false => Function::named(unsafe { CStr::from_ptr(name) }.to_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::operations::snapshot::OperationsSnapshot;
    use crate::proto::explain::operation::{Operation, PeerRank};

    /// An event, by the offsets of NCCL's headers.
    fn event(kind: u64, parent: u64, at: &[(usize, u64)], halves: &[(usize, u32)]) -> [u8; 112] {
        let mut bytes = [0; 112];
        for (offset, value) in [(0, kind), (8, parent)].iter().chain(at) {
            bytes[*offset..][..8].copy_from_slice(&value.to_ne_bytes());
        }
        halves.iter().for_each(|(offset, value)| {
            bytes[*offset..][..4].copy_from_slice(&value.to_ne_bytes())
        });
        bytes
    }

    type Start = unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const Event) -> ncclResult_t;

    fn started(start: Start, context: u64, bytes: &[u8; 112]) -> u64 {
        let mut words = [0_u64; 14];
        words
            .iter_mut()
            .zip(bytes.as_chunks().0)
            .for_each(|(word, bytes)| *word = u64::from_ne_bytes(*bytes));
        let mut handle = 0x5a as *mut c_void;
        // SAFETY: aligned, and as long as NCCL's.
        let code = unsafe { start(context as *mut c_void, &raw mut handle, words.as_ptr().cast()) };
        assert_eq!(code, nccl::ncclSuccess);
        handle as u64
    }

    fn begun(init: InitV5, id: u64) -> u64 {
        let (mut context, mut mask) = (std::ptr::null_mut(), -1);
        // SAFETY: valid places.
        let code =
            unsafe { init(&raw mut context, id, &raw mut mask, c"tp".as_ptr(), 1, 8, 3, None) };
        // No event is requested, since there is no network in this process.
        assert_eq!((code, mask), (nccl::ncclSuccess, 0));
        context as u64
    }

    /// The operation that a connection of communicator `id` sends for to the peer with rank 5.
    fn sent(id: u64) -> Option<Operation> {
        OperationsSnapshot::now()
            .operation(Some(id), true, Some(5))
            .filter(|operation| operation.communicator == id)
    }

    fn collective(function: &CStr, number: u64) -> [u8; 112] {
        event(COLLECTIVE, 0, &[(24, number), (32, function.as_ptr() as u64)], &[(16, 3)])
    }

    fn proxy(parent: u64, is_send: u32) -> [u8; 112] {
        event(
            PROXY,
            parent,
            &[],
            &[(16, 3), (24, 77), (28, 2), (32, 5), (36, 8), (40, 1 << 19), (44, is_send)],
        )
    }

    #[test]
    fn an_operation_is_known_from_its_proxys_beginning_to_its_end() {
        for (id, table) in [(0x501, &ncclProfiler_v5), (0x601, &ncclProfiler_v6)] {
            let (start, context) = (table.0.start_event, begun(table.0.init, id));
            let parent = started(start, context, &collective(c"ReduceScatter", 12));
            assert_eq!(sent(id), None);
            let handle = started(start, context, &proxy(parent, 1));
            let found = sent(id).expect("it is sent");
            assert_eq!(
                (found.to_string(), found.peer),
                ("ReduceScatter number 12 of communicator tp".into(), PeerRank::Known(5))
            );
            // SAFETY: a handle of the profiler's, twice, and its state.
            unsafe {
                (table.0.record_event_state)(handle as *mut c_void, 4, std::ptr::null_mut());
                (table.0.stop_event)(handle as *mut c_void);
                (table.0.stop_event)(handle as *mut c_void);
            }
            assert_eq!(sent(id), None);
            // SAFETY: a context of the profiler's.
            unsafe { (table.0.finalize)(context as *mut c_void) };
        }
    }

    #[test]
    fn an_operation_of_a_captured_graph_has_no_number() {
        let context = begun(ncclProfiler_v6.0.init, 0x603);
        let start = ncclProfiler_v6.0.start_event;
        for (captured, name) in
            [(0_u64, "AllGather number 9 of communicator tp"), (1, "AllGather of communicator tp")]
        {
            let call = started(start, context, &event(COLLECTIVE_CALL, 0, &[(64, captured)], &[]));
            let mut bytes = collective(c"AllGather", 9);
            bytes[8..16].copy_from_slice(&call.to_ne_bytes());
            let handle = started(start, context, &proxy(started(start, context, &bytes), 1));
            assert_eq!(sent(0x603).map(|found| found.to_string()).as_deref(), Some(name));
            // SAFETY: handles of the profiler's.
            unsafe { (stop_event(call as *mut c_void), stop_event(handle as *mut c_void)) };
        }
        // SAFETY: a context of the profiler's.
        unsafe { finalize(context as *mut c_void) };
    }

    #[test]
    fn version_4_tells_no_numbers_and_only_the_first_byte_of_the_type_counts() {
        let (mut context, mut mask) = (std::ptr::null_mut(), -1);
        let table = &ncclProfiler_v4.0;
        // SAFETY: valid places; a communicator need not have a name.
        unsafe {
            (table.init)(&raw mut context, &raw mut mask, std::ptr::null(), 0x401, 1, 8, 3, None)
        };
        let mut bytes = event(POINT_TO_POINT, 0, &[(24, c"Send".as_ptr() as u64)], &[]);
        let collective = collective(c"AllReduce", 7);
        for (mut bytes, name) in
            [(bytes, "Send of communicator 0x401"), (collective, "AllReduce of communicator 0x401")]
        {
            bytes[1..8].fill(0xa5);
            let parent = started(table.start_event, context as u64, &bytes);
            let handle = started(table.start_event, context as u64, &proxy(parent, 1));
            assert_eq!(sent(0x401).map(|found| found.to_string()).as_deref(), Some(name));
            // SAFETY: a handle of the profiler's.
            unsafe { (table.stop_event)(handle as *mut c_void) };
        }
        bytes[1..8].fill(0xa5);
        // SAFETY: a context of the profiler's.
        unsafe { (table.finalize)(context) };
        assert_eq!(
            started(ncclProfiler_v6.0.start_event, context as u64, &bytes),
            0,
            "version 6 reads all of it"
        );
    }

    #[test]
    fn other_events_and_null_pointers_are_no_errors_and_are_not_heard_of_again() {
        let context = begun(ncclProfiler_v6.0.init, 0x602);
        let start = ncclProfiler_v6.0.start_event;
        for kind in [0, 1, 16, 32, 64, 128, 256, 1 << 15, u64::MAX] {
            assert_eq!(started(start, context, &event(kind, 0, &[], &[])), 0, "type {kind}");
        }
        assert_eq!(started(start, context, &proxy(0, 1)), 0, "the operation is not known");
        let mut handle = std::ptr::dangling_mut();
        // SAFETY: NULL is allowed.
        let codes = unsafe {
            let started = start(context as *mut c_void, &raw mut handle, std::ptr::null());
            [started, stop_event(std::ptr::null_mut()), finalize(std::ptr::null_mut())]
        };
        assert_eq!((codes, handle.is_null()), ([nccl::ncclSuccess; 3], true));
        let unnamed = started(start, context, &event(COLLECTIVE, 0, &[(24, 3)], &[]));
        assert_ne!(unnamed, 0, "an operation whose function is not known is one");
        // SAFETY: a context of the profiler's.
        unsafe { finalize(context as *mut c_void) };
    }
}
