//! The context of one of NCCL's communicators (`ncclComm_t`): what `init` of version 11 and later makes and `finalize` ends.

use super::layout::NetAttributes;
use crate::error::{Error, Result};
use crate::net::setup::nccl_comm::NcclComm;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

/// The value after a context's first members, by which one is recognised.
const TAG: u64 = u64::from_le_bytes(*b"FerConTx");
/// Not known, in the masks of [`NetAttributes`].
const UNKNOWN: u32 = u32::MAX;

/// What NCCL's pointer points to.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Context {
    /// A traffic class that is not Ferrite's own: NCCL passes contexts of network plugins to its own one-sided transport, which takes
    /// them for its own, and reads and writes an `int` at their start.
    foreign: AtomicI32,
    tag: AtomicU64,
    /// NCCL's number of the communicator, the same on all ranks.
    id: u64,
    /// The communicator's traffic class, if it has one.
    class: Option<u8>,
    /// Masks of the operations, algorithms and protocols that NCCL has announced last.
    announced: [AtomicU32; 3],
}

const _: () = assert!(offset_of!(Context, foreign) == 0);

impl Context {
    /// A context for NCCL, of communicator `id` with traffic class `class`; `foreign` is what NCCL gave for that.
    pub(super) fn into_raw(id: u64, foreign: c_int, class: Option<u8>) -> *mut c_void {
        let foreign = AtomicI32::new(foreign);
        let announced = [UNKNOWN; 3].map(AtomicU32::new);
        Box::into_raw(Box::new(Self { foreign, tag: AtomicU64::new(TAG), id, class, announced })).cast()
    }

    /// The context behind NCCL's pointer; `None` for NULL.
    ///
    /// # Errors
    /// It is no context of this plugin's.
    ///
    /// # Safety
    /// `raw` is NULL, or points to a live context or to 16 readable bytes that are none.
    pub(super) unsafe fn borrow<'a>(raw: *mut c_void) -> Result<Option<&'a Self>> {
        // SAFETY: as the caller says.
        if raw.is_null() || unsafe { (*raw.cast::<Self>()).tag.load(Ordering::Relaxed) } == TAG {
            // SAFETY: as above; the tag says that it is one.
            return Ok(unsafe { raw.cast::<Self>().as_ref() });
        }
        Err(Error::argument(format!("ctx is {raw:p}, which is none that this plugin gave out")))
    }

    /// Ends the context; `None` for NULL.
    ///
    /// # Errors
    /// As [`Self::borrow`].
    ///
    /// # Safety
    /// As [`Self::borrow`]; NCCL does not use `raw` any more.
    pub(super) unsafe fn take(raw: *mut c_void) -> Result<Option<Box<Self>>> {
        // SAFETY: as the caller says.
        let Some(context) = (unsafe { Self::borrow(raw)? }) else { return Ok(None) };
        context.tag.store(0, Ordering::Relaxed);
        // SAFETY: made by `into_raw`, and given back once.
        Ok(Some(unsafe { Box::from_raw(raw.cast()) }))
    }

    /// What is known of the communicator.
    pub(super) fn comm(&self) -> NcclComm {
        NcclComm { id: Some(self.id), class: self.class }
    }

    /// NCCL says what the communicator does from now on. Its progress thread may say so, so this takes no lock.
    pub(super) fn set_attributes(&self, attributes: &NetAttributes) {
        let NetAttributes { operations, algorithms, protocols, .. } = *attributes;
        for (known, mask) in self.announced.iter().zip([operations, algorithms, protocols]) {
            known.store(mask, Ordering::Relaxed);
        }
    }

    /// The context in words, for the log.
    pub(super) fn describe(&self) -> String {
        let [operations, algorithms, protocols] = self.announced.each_ref().map(|mask| mask.load(Ordering::Relaxed));
        let announced = match operations {
            UNKNOWN => String::new(),
            _ => format!(", operations {operations:#x}, algorithms {algorithms:#x}, protocols {protocols:#x}"),
        };
        format!("communicator {:#x}{announced}", self.id)
    }
}
