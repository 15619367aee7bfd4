//! Thread domains: what is made in one, the application uses from one thread at a time.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::abi::domains;
use crate::objects::context::Context;

/// What the application holds as `ibv_td*` is its first field.
#[repr(C)]
pub(crate) struct Td {
    abi: domains::Td,
    pub(crate) context: Arc<Context>,
    /// Parent domains that have it.
    pub(crate) users: AtomicU32,
}

// SAFETY: `abi` is written once; the application reads it.
unsafe impl Send for Td {}
// SAFETY: as above.
unsafe impl Sync for Td {}

impl Td {
    pub(crate) fn new(context: Arc<Context>) -> Result<Arc<Self>, i32> {
        context.require_alive()?;
        let abi = domains::Td { context: context.as_abi() };
        Ok(Arc::new(Self { abi, context, users: AtomicU32::new(0) }))
    }

    pub(crate) fn as_abi(&self) -> *mut domains::Td {
        (&raw const self.abi).cast_mut()
    }
}
