//! Completion queues: made and destroyed. They are polled in [`super::work`].

use super::context::Context;
use super::cq_ex::{self, ExtendedQueue};
use super::queue_failure::QueueFailure;
use super::thread_domain::ThreadDomain;
use super::{create, sys};
use crate::error::{Error, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most locked memory of a completion in bytes, for known drivers.
const COMPLETION_BYTES: u64 = 128;

/// A completion queue. Its owner polls it, and also owns the queue pairs that complete into it:
/// destroying or resetting one looks into the queue.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(super) raw: *mut sys::ibv_cq,
    pub(super) how: Polling,
    pub(super) handle: Arc<QueueHandle>,
}

// SAFETY: it is polled by who has exclusive access; a shared reference polls nothing.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

/// How a completion queue is polled.
#[derive(Debug, Clone, Copy)]
pub(super) enum Polling {
    /// Its device's `ibv_poll_cq`.
    Batches(sys::PollCq),
    /// One completion after the other.
    Singly(ExtendedQueue),
    /// As before, once the error is reported: going to the next completion has failed, and that
    /// one may be lost.
    Broken(ExtendedQueue),
}

/// What a completion queue and its queue pairs share. The last of them destroys the queue.
#[derive(Debug)]
pub(super) struct QueueHandle {
    raw: *mut sys::ibv_cq,
    context: Arc<Context>,
    failure: Arc<QueueFailure>,
    /// Whether it can serve no other queue pairs: one could not be destroyed, or a completion may
    /// be lost.
    is_spent: AtomicBool,
}

// SAFETY: the raw pointer is owned, and is used to destroy the queue only.
unsafe impl Send for QueueHandle {}
// SAFETY: as above.
unsafe impl Sync for QueueHandle {}

impl CompletionQueue {
    /// Creates a queue with space for at least `entries` completions.
    ///
    /// # Errors
    /// The device has no more completion queues, or none so large.
    pub fn new(context: &Arc<Context>, entries: u32) -> Result<Self> {
        // SAFETY: the context is open, and its device initialised the table when it was opened.
        let poll = unsafe { (*context.raw()).ops.poll_cq };
        let Some(poll) = poll else {
            return Err(Error::misuse(format!("{} has no ibv_poll_cq", context.name())));
        };
        let failure = QueueFailure::new();
        let (null, of_events) = (std::ptr::null_mut(), failure.as_context());
        let operation = format_args!("ibv_create_cq({}, {entries} entries)", context.name());
        let raw = create::create(operation, u64::from(entries) * COMPLETION_BYTES, || {
            // SAFETY: the context is open; there is no completion channel. `failure` lives as long
            // as the queue.
            unsafe {
                (context.library.ibv_create_cq)(context.raw(), entries as i32, of_events, null, 0)
            }
        })?;
        Ok(Self::of(context, raw, Polling::Batches(poll), failure))
    }

    /// As [`Self::new`], for the queue pairs in `thread`: the driver takes no lock to poll it, if
    /// it can.
    ///
    /// # Errors
    /// As for [`Self::new`].
    pub fn in_thread(thread: &ThreadDomain, entries: u32) -> Result<Self> {
        let (context, failure) = (thread.context(), QueueFailure::new());
        // If a driver refuses this for any reason, the older call is tried.
        match cq_ex::create(context, entries, &failure) {
            Some(queue) => Ok(Self::of(context, queue.raw(), Polling::Singly(queue), failure)),
            None => Self::new(context, entries),
        }
    }

    fn of(
        context: &Arc<Context>,
        raw: *mut sys::ibv_cq,
        how: Polling,
        failure: Arc<QueueFailure>,
    ) -> Self {
        let is_spent = AtomicBool::new(false);
        let handle = QueueHandle { raw, context: Arc::clone(context), failure, is_spent };
        Self { raw, how, handle: Arc::new(handle) }
    }

    /// Its id in events of the device. No other queue of this process ever has the same.
    pub fn id(&self) -> u64 {
        self.handle.failure.id()
    }

    /// Whether the device has reported that it has failed: no further completions will arrive.
    pub fn has_failed(&self) -> bool {
        self.handle.failure.has_failed()
    }

    /// The error of a poll that has failed.
    #[cold]
    #[inline(never)]
    pub fn poll_error(&self) -> Error {
        Error::of_poll(self.handle.context.name())
    }
}

impl QueueHandle {
    /// The queue can serve no other queue pairs.
    #[cold]
    pub(super) fn mark_exhausted(&self) {
        self.is_spent.store(true, Ordering::Release);
    }

    /// Whether it has no queue pairs, and can serve others.
    pub(super) fn is_free(self: &Arc<Self>) -> bool {
        Arc::strong_count(self) == 1 && !self.is_spent.load(Ordering::Acquire)
    }
}

impl Drop for QueueHandle {
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
