//! Completion channels.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::abi::types;
use crate::host::fd_queue::FdQueue;
use crate::objects::context::Context;

/// What the application holds as `ibv_comp_channel*` is its first field.
#[repr(C)]
pub(crate) struct Channel {
    abi: types::CompChannel,
    pub(crate) context: Arc<Context>,
    /// Application's `ibv_cq*` of each notification.
    pub(crate) tokens: FdQueue<usize>,
    pub(crate) users: AtomicU32,
}

// SAFETY: `abi` is written once; the application reads it.
unsafe impl Send for Channel {}
// SAFETY: as above.
unsafe impl Sync for Channel {}

impl Channel {
    pub(crate) fn new(context: Arc<Context>) -> Result<Box<Self>, i32> {
        let tokens = FdQueue::new()?;
        let abi = types::CompChannel { context: context.as_abi(), fd: tokens.fd(), refcnt: 0 };
        Ok(Box::new(Self { abi, context, tokens, users: AtomicU32::new(0) }))
    }

    pub(crate) fn as_abi(&self) -> *mut types::CompChannel {
        (&raw const self.abi).cast_mut()
    }
}
