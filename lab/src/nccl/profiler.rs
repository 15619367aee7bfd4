//! NCCL's side of a profiler: its table in a plugin, called as NCCL does. Written from the binary
//! interface's facts: the order of slots, and the offsets of an event's members.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;

use crate::error::{Error, Result};
use crate::nccl::debug_log;
use crate::nccl::shared_object::SharedObject;

/// Types of events.
const COLLECTIVE: u64 = 2;
const POINT_TO_POINT: u64 = 4;
const PROXY: u64 = 8;
/// Words of an event in versions 5 and 6.
const EVENT_WORDS: usize = 14;

/// The table of versions 5 and 6.
#[repr(C)]
#[derive(Debug)]
struct Table {
    name: *const c_char,
    init: unsafe extern "C" fn(
        *mut *mut c_void,
        u64,
        *mut c_int,
        *const c_char,
        c_int,
        c_int,
        c_int,
        crate::nccl::abi::ncclDebugLogger_t,
    ) -> u32,
    start_event: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut u64) -> u32,
    stop_event: unsafe extern "C" fn(*mut c_void) -> u32,
    record_event_state: unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> u32,
    finalize: unsafe extern "C" fn(*mut c_void) -> u32,
}

/// A profiler in one of NCCL's communicators.
#[derive(Debug)]
pub struct Profiler {
    table: &'static Table,
    context: *mut c_void,
    mask: c_int,
    rank: c_int,
}

/// Stands for NCCL's handle of a message for a profiler. No profiler receives it here.
pub(crate) const HANDLE: *mut c_void = 0x1000 as *mut c_void;

/// What a profiler has returned for an event; NULL: it does not want to hear of it again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event(*mut c_void);

impl Event {
    /// Whether the profiler wants to hear of it again.
    pub fn is_kept(self) -> bool {
        !self.0.is_null()
    }
}

impl Profiler {
    /// `init` of the profiler of `version` (5 or 6) in `plugin`, for communicator number `id` of
    /// `ranks` ranks.
    ///
    /// # Errors
    /// [`Error::Load`]; [`Error::Symbol`] if the plugin has no such profiler; [`Error::Call`].
    pub fn begin(
        plugin: &Path,
        version: u32,
        id: u64,
        name: &CStr,
        rank: i32,
        ranks: i32,
    ) -> Result<Self> {
        let symbol = format!("ncclProfiler_v{version}");
        let object = SharedObject::open(plugin)?;
        let Some(address) = object.exported(&symbol).filter(|_| (5..=6).contains(&version)) else {
            return Err(Error::Symbol {
                path: plugin.into(),
                symbol,
                hint: "it has no such profiler".into(),
            });
        };
        // SAFETY: by NCCL's contract the symbol is a table of that version; libraries are never
        // unloaded here.
        let table = unsafe { &*(address as *const Table) };
        let (mut context, mut mask) = (null_mut(), -1);
        // SAFETY: the places are valid, and the name is a string.
        let code = unsafe {
            let log = debug_log::callback();
            (table.init)(
                &raw mut context,
                id,
                &raw mut mask,
                name.as_ptr(),
                ranks,
                ranks,
                rank,
                log,
            )
        };
        match code {
            0 => Ok(Self { table, context, mask, rank }),
            code => Err(Error::Call { transport: symbol, call: "init", code }),
        }
    }

    /// The types of events that it wants to hear of, as a mask.
    pub fn mask(&self) -> i32 {
        self.mask
    }

    /// A collective operation is begun, as `number` of its function in the communicator.
    pub fn collective(&self, function: &'static CStr, number: u64) -> Event {
        let mut event = self.event(COLLECTIVE, null_mut());
        (event[3], event[4]) = (number, function.as_ptr() as u64);
        self.start(&mut event)
    }

    /// A send or a receive is begun.
    pub fn point_to_point(&self, function: &'static CStr) -> Event {
        let mut event = self.event(POINT_TO_POINT, null_mut());
        event[3] = function.as_ptr() as u64;
        self.start(&mut event)
    }

    /// A proxy begins with what it does for `parent` over channel 0, to or from the process that
    /// has rank `peer`.
    pub fn proxy(&self, parent: Event, peer: i32, is_send: bool) -> Event {
        let mut event = self.event(PROXY, parent.0);
        let half = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        // Process id and channel; peer and steps; size and direction.
        event[3] = half(std::process::id(), 0);
        event[4] = half(peer.cast_unsigned(), 8);
        event[5] = half(1 << 19, is_send.into());
        self.start(&mut event)
    }

    /// The event ends.
    pub fn stop(&self, event: Event) {
        if event.is_kept() {
            // SAFETY: the profiler has returned it.
            unsafe { (self.table.stop_event)(event.0) };
        }
    }

    fn event(&self, kind: u64, parent: *mut c_void) -> [u64; EVENT_WORDS] {
        let mut words = [0; EVENT_WORDS];
        words[..3].copy_from_slice(&[kind, parent as u64, u64::from(self.rank.cast_unsigned())]);
        words
    }

    fn start(&self, event: &mut [u64; EVENT_WORDS]) -> Event {
        let mut handle = null_mut();
        // SAFETY: the event has the members of its type, and more words than any version reads.
        unsafe { (self.table.start_event)(self.context, &raw mut handle, event.as_mut_ptr()) };
        Event(handle)
    }
}

impl Drop for Profiler {
    fn drop(&mut self) {
        // SAFETY: made by `init`, and ended once.
        unsafe { (self.table.finalize)(self.context) };
    }
}
