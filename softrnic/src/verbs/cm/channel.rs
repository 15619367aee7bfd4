//! Event channels.

use std::sync::Arc;

use crate::abi::rdma_cm::EventChannel;
use crate::host::fd_queue::FdQueue;

/// What the application holds as `rdma_event_channel*` is its first field.
#[repr(C)]
pub(super) struct Channel<T> {
    abi: EventChannel,
    pub(super) queue: FdQueue<T>,
}

impl<T> Channel<T> {
    pub(super) fn new() -> Result<Arc<Self>, i32> {
        let queue = FdQueue::new()?;
        Ok(Arc::new(Self { abi: EventChannel { fd: queue.fd() }, queue }))
    }

    pub(super) fn as_abi(&self) -> *mut EventChannel {
        (&raw const self.abi).cast_mut()
    }
}
