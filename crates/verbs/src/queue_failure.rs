//! Whether a completion queue has failed, as an event of its device says.

use super::sys;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The name of no queue.
const NOBODY: u64 = 0;
/// No two queues of this process have the same.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// What is known of a queue beside its completions. libibverbs has its address for as long as the queue exists.
#[derive(Debug)]
pub(super) struct QueueFailure {
    id: u64,
    has_failed: AtomicBool,
}

impl QueueFailure {
    /// That of a new queue.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { id: NEXT_ID.fetch_add(1, Ordering::Relaxed), has_failed: AtomicBool::new(false) })
    }

    /// The name of the queue.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Whether [`Self::handle`] has been called.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// The device says that the queue `raw` has failed. Returns its name.
    ///
    /// # Safety
    /// The queue is not destroyed, and its context is one of [`Self::new`] that lives as long.
    pub(super) unsafe fn handle(raw: *const sys::ibv_cq) -> u64 {
        // SAFETY: both exist, as the caller promises. libibverbs writes the context when the device has made the queue: before, it is NULL.
        let Some(known) = (unsafe { (*raw).cq_context.cast::<Self>().as_ref() }) else { return NOBODY };
        known.has_failed.store(true, Ordering::Release);
        known.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue as libibverbs has it, with this context.
    fn queue(context: *const QueueFailure) -> sys::ibv_cq {
        // SAFETY: numbers and pointers, for which zero is a value.
        let mut raw: sys::ibv_cq = unsafe { std::mem::zeroed() };
        raw.cq_context = context.cast_mut().cast();
        raw
    }

    #[test]
    fn an_event_names_its_queue_alone_and_nobody_before_libibverbs_has_set_the_context() {
        let (first, second) = (QueueFailure::new(), QueueFailure::new());
        let named = [Arc::as_ptr(&first), std::ptr::null()].map(|of| {
            let raw = queue(of);
            // SAFETY: the queue exists, and so does the context that it has.
            unsafe { QueueFailure::handle(&raw const raw) }
        });
        assert_eq!(named, [first.id(), NOBODY]);
        assert_eq!([first.has_failed(), second.has_failed()], [true, false]);
        assert!(first.id() != second.id() && second.id() != NOBODY);
    }
}
