//! Protection domains: what may be used together.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::types;
use crate::objects::context::Context;

/// What the application holds as `ibv_pd*` is its first field.
#[repr(C)]
pub(crate) struct Pd {
    abi: types::Pd,
    pub(crate) context: Arc<Context>,
    /// Unique in the fabric.
    pub(crate) id: u32,
    /// Memory regions and QPs in it.
    pub(crate) users: AtomicU32,
}

// SAFETY: `abi` is written once; the application reads it.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    pub(crate) fn new(context: Arc<Context>) -> Result<Arc<Self>, i32> {
        context.require_alive()?;
        let id = context.fabric.header().next_pd.fetch_add(1, SeqCst);
        let abi = types::Pd { context: context.as_abi(), handle: id };
        Ok(Arc::new(Self { abi, context, id, users: AtomicU32::new(0) }))
    }

    pub(crate) fn as_abi(&self) -> *mut types::Pd {
        (&raw const self.abi).cast_mut()
    }
}
