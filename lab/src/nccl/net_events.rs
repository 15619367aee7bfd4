//! NCCL's side of a network's events: the function that `init` is given from version 10 on, and what it has been told in this process.
//! Written from the binary interface's facts: the function's arguments, and the offsets of the record's members.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, PoisonError};

use super::abi::ncclResult_t;

/// NCCL's handle of every message: only the transport passes it on.
pub(crate) const OF: *mut c_void = 0x1000 as *mut c_void;

/// What the function has been told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// An event begins.
    Start {
        /// Its handle; 0: the profiler does not hear it.
        event: usize,
        /// The record.
        message: Message,
    },
    /// The event of this handle ends.
    Stop(usize),
    /// A call that NCCL could not make anything of.
    Wrong,
}

/// A message on a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Message {
    /// The rail.
    pub device: c_int,
    /// The work request.
    pub wr_id: u64,
    /// As `enum ibv_wr_opcode` for a send, `enum ibv_wc_opcode` for a receive.
    pub opcode: c_int,
    /// The queue pair's number.
    pub queue_pair: c_int,
    /// Bytes.
    pub length: usize,
}

#[repr(C)]
struct Record {
    kind: u8,
    message: Message,
}

struct State {
    told: Vec<Told>,
    hears: bool,
}

static STATE: Mutex<State> = Mutex::new(State { told: Vec::new(), hears: true });

fn with_state<R>(body: impl FnOnce(&mut State) -> R) -> R {
    body(&mut STATE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// What has been told since the last call.
pub fn take() -> Vec<Told> {
    with_state(|state| std::mem::take(&mut state.told))
}

/// From now on the profiler hears events, or does not.
pub fn hear(hears: bool) {
    with_state(|state| state.hears = hears);
}

/// The function.
pub(crate) fn function() -> *const c_void {
    callback as *const c_void
}

unsafe extern "C" fn callback(
    event: *mut *mut c_void,
    what: c_int,
    of: *mut c_void,
    kind: i64,
    record: *const c_void,
) -> ncclResult_t {
    with_state(|state| {
        let told = match what {
            // SAFETY: a record of this type and version.
            0 if of == OF && kind == 0x1_0001 => start(state, event, unsafe { &*record.cast() }),
            // SAFETY: the place of an event's handle.
            1 => Told::Stop(unsafe { *event } as usize),
            _ => Told::Wrong,
        };
        state.told.push(told);
    });
    0
}

fn start(state: &State, event: *mut *mut c_void, record: &Record) -> Told {
    if record.kind != 1 {
        return Told::Wrong;
    }
    let number = if state.hears { state.told.len() + 1 } else { 0 };
    if state.hears {
        // SAFETY: the place of the event's handle.
        unsafe { *event = null_mut::<u8>().wrapping_add(number).cast() };
    }
    Told::Start { event: number, message: record.message }
}
