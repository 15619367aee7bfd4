//! The context of an NCCL communicator (`ncclComm_t`): `init` of version 11 and later creates it,
//! and `finalize` ends it.
//!
//! NCCL 2.28.3 ends the context of a communicator while its child (`splitShare`) still connects
//! with it. So the memory of a context is never freed: an ended context is reused, after many
//! others.

use super::layout::NetAttributes;
use crate::error::{Error, Result};
use crate::net::setup::nccl_comm::NcclComm;
use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The value after a context's first member, which identifies a context.
const TAG: u64 = u64::from_le_bytes(*b"FerConTx");
/// Unknown, in the masks of [`NetAttributes`].
const UNKNOWN: u32 = u32::MAX;

/// What NCCL's pointer points to.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct Context {
    /// A traffic class that belongs to NCCL: it passes contexts of network plugins to its own
    /// one-sided transport, which takes them for its own and accesses an `int` at their start.
    foreign: AtomicI32,
    tag: AtomicU64,
    /// NCCL's number of the communicator, the same on all ranks.
    id: AtomicU64,
    /// The communicator's traffic class; [`NO_CLASS`] if none.
    class: AtomicI32,
    /// The latest masks of operations, algorithms and protocols from NCCL.
    announced: [AtomicU32; 3],
    has_ended: AtomicBool,
}

const NO_CLASS: i32 = -1;

/// Ended contexts, in the order of their ends. At least this many wait before one is reused.
static ENDED: Mutex<VecDeque<&'static Context>> = Mutex::new(VecDeque::new());
const ENDED_AT_LEAST: usize = 1024;

fn ended() -> MutexGuard<'static, VecDeque<&'static Context>> {
    ENDED.lock().unwrap_or_else(PoisonError::into_inner)
}

const _: () = assert!(offset_of!(Context, foreign) == 0);

impl Context {
    /// A context for NCCL, of communicator `id` with traffic class `class`; `foreign` is NCCL's raw
    /// value of the class.
    pub(super) fn into_raw(id: u64, foreign: c_int, class: Option<u8>) -> *mut c_void {
        let mut ended = ended();
        let again = if ended.len() > ENDED_AT_LEAST { ended.pop_front() } else { None };
        drop(ended);
        let made = again.unwrap_or_else(|| Box::leak(Box::default()));
        made.foreign.store(foreign, Ordering::Relaxed);
        made.id.store(id, Ordering::Relaxed);
        made.class.store(class.map_or(NO_CLASS, i32::from), Ordering::Relaxed);
        made.announced.iter().for_each(|mask| mask.store(UNKNOWN, Ordering::Relaxed));
        made.has_ended.store(false, Ordering::Relaxed);
        made.tag.store(TAG, Ordering::Relaxed);
        std::ptr::from_ref(made).cast_mut().cast()
    }

    /// The context behind NCCL's pointer, which may have ended; `None` for NULL.
    ///
    /// # Errors
    /// It is not a context of this plugin.
    ///
    /// # Safety
    /// `raw` is NULL, or points to a context or to 16 other readable bytes.
    pub(super) unsafe fn borrow(raw: *mut c_void) -> Result<Option<&'static Self>> {
        // SAFETY: as the caller says.
        if raw.is_null() || unsafe { (*raw.cast::<Self>()).tag.load(Ordering::Relaxed) } == TAG {
            // SAFETY: as above; the tag identifies a context, and contexts are never freed.
            return Ok(unsafe { raw.cast::<Self>().as_ref() });
        }
        Err(unknown(raw))
    }

    /// Ends the context; `None` for NULL.
    ///
    /// # Errors
    /// It is not a context of this plugin, or it has ended already.
    ///
    /// # Safety
    /// As for [`Self::borrow`].
    pub(super) unsafe fn end(raw: *mut c_void) -> Result<Option<&'static Self>> {
        // SAFETY: as the caller says.
        let Some(context) = (unsafe { Self::borrow(raw)? }) else { return Ok(None) };
        if context.has_ended.swap(true, Ordering::Relaxed) {
            return Err(unknown(raw));
        }
        ended().push_back(context);
        Ok(Some(context))
    }

    /// The communicator, as far as known.
    pub(super) fn comm(&self) -> NcclComm {
        let class = u8::try_from(self.class.load(Ordering::Relaxed)).ok();
        NcclComm { id: Some(self.id.load(Ordering::Relaxed)), class }
    }

    /// Records what the communicator does from now on. NCCL's progress thread may call it, so it
    /// takes no lock.
    pub(super) fn set_attributes(&self, attributes: &NetAttributes) {
        let NetAttributes { operations, algorithms, protocols, .. } = *attributes;
        for (known, mask) in self.announced.iter().zip([operations, algorithms, protocols]) {
            known.store(mask, Ordering::Relaxed);
        }
    }

    /// The context in words, for the log.
    pub(super) fn describe(&self) -> String {
        let [operations, algorithms, protocols] =
            self.announced.each_ref().map(|mask| mask.load(Ordering::Relaxed));
        let announced = match operations {
            UNKNOWN => String::new(),
            _ => format!(
                ", operations {operations:#x}, algorithms {algorithms:#x}, protocols {protocols:#x}"
            ),
        };
        format!("communicator {:#x}{announced}", self.id.load(Ordering::Relaxed))
    }
}

fn unknown(raw: *mut c_void) -> Error {
    Error::argument(format!("ctx is {raw:p}, which this plugin did not return"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_that_has_ended_can_still_be_used_and_ends_once() {
        let raw = Context::into_raw(7, -1, Some(3));
        // SAFETY: a context, which is never freed; here and below.
        let ended = unsafe { Context::end(raw) }.expect("it is one").expect("and not NULL");
        let others: Vec<_> = (0..100).map(|id| Context::into_raw(id, -1, None)).collect();
        // SAFETY: as above.
        let known =
            unsafe { Context::borrow(raw) }.expect("it is one").expect("and not NULL").comm();
        assert_eq!((known.id, known.class, ended.comm().id), (Some(7), Some(3), Some(7)));
        // SAFETY: as above.
        unsafe {
            assert!(Context::end(raw).is_err(), "it is ended twice");
            others.iter().for_each(|other| assert!(Context::end(*other).is_ok()));
            assert!(Context::end(std::ptr::null_mut()).is_ok_and(|ended| ended.is_none()));
        }
    }

    #[test]
    fn the_memory_of_contexts_is_bounded_however_many_come_and_go() {
        let mut places = std::collections::HashSet::new();
        for id in 0..5 * ENDED_AT_LEAST as u64 {
            let raw = Context::into_raw(id, -1, None);
            places.insert(raw);
            // SAFETY: a context, which is never freed.
            assert!(unsafe { Context::end(raw) }.is_ok());
        }
        assert!(places.len() <= ENDED_AT_LEAST + 200, "{}", places.len());
    }
}
