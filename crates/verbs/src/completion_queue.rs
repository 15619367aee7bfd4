//! Completion queues.

use super::context::Context;
use super::queue_failure::QueueFailure;
use super::{create, sys};
use crate::error::{Error, Result};
use std::sync::Arc;

/// The most locked memory of a completion in bytes, for known drivers.
const COMPLETION_BYTES: u64 = 128;

/// A completion queue, which is polled.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(super) raw: *mut sys::ibv_cq,
    /// Its device's `ibv_poll_cq`.
    pub(super) poll: sys::PollCq,
    context: Arc<Context>,
    failure: Arc<QueueFailure>,
}

// SAFETY: libibverbs locks inside; a completion queue may be used by any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// Creates a queue with space for at least `entries` completions.
    ///
    /// # Errors
    /// The device has no more completion queues, or none so large.
    pub fn new(context: &Arc<Context>, entries: u32) -> Result<Arc<Self>> {
        // SAFETY: the context is open, and its device initialised the table when it was opened.
        let poll = unsafe { (*context.raw()).ops.poll_cq };
        let Some(poll) = poll else {
            return Err(Error::misuse(format!("{} has no ibv_poll_cq", context.name())));
        };
        let failure = QueueFailure::new();
        let (null, of_events) = (std::ptr::null_mut(), Arc::as_ptr(&failure).cast_mut().cast());
        let operation = format_args!("ibv_create_cq({}, {entries} entries)", context.name());
        let raw = create::create(operation, u64::from(entries) * COMPLETION_BYTES, || {
            // SAFETY: the context is open; there is no completion channel. `failure` lives as long
            // as the queue.
            unsafe {
                (context.library.ibv_create_cq)(context.raw(), entries as i32, of_events, null, 0)
            }
        })?;
        Ok(Arc::new(Self { raw, poll, context: Arc::clone(context), failure }))
    }

    /// Its id in events of the device. No other queue of this process ever has the same.
    pub fn id(&self) -> u64 {
        self.failure.id()
    }

    /// Whether the device has reported that it has failed: no further completions will arrive.
    pub fn has_failed(&self) -> bool {
        self.failure.has_failed()
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once; the queue pairs that use it hold an Arc and are
        // gone. No pending event names it.
        let rc = unsafe { (self.context.library.ibv_destroy_cq)(self.raw) };
        if rc != 0 {
            // The queue still exists, and an event may name it.
            std::mem::forget(Arc::clone(&self.failure));
        }
        self.context.handle_released("ibv_destroy_cq", rc);
    }
}
