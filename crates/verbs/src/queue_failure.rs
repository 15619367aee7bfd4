//! Whether a completion queue has failed, according to an event of its device.

use super::sys;
use libc::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The id of no queue.
const NOBODY: u64 = 0;
/// Ids are unique among the queues of this process.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The state of a queue besides its completions. libibverbs holds its address while the queue
/// exists.
#[derive(Debug)]
pub(super) struct QueueFailure {
    id: u64,
    has_failed: AtomicBool,
}

impl QueueFailure {
    /// The state of a new queue.
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            has_failed: AtomicBool::new(false),
        })
    }

    /// What libibverbs gets as the context of the queue.
    pub(super) fn as_context(self: &Arc<Self>) -> *mut c_void {
        Arc::as_ptr(self).cast_mut().cast()
    }

    /// The id of the queue.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Whether [`Self::handle`] has been called.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// The device reports that the queue `raw` has failed. Returns its id.
    ///
    /// # Safety
    /// The queue is not destroyed, and its context comes from [`Self::new`] and lives as long.
    pub(super) unsafe fn handle(raw: *const sys::ibv_cq) -> u64 {
        // SAFETY: both exist, by the caller's contract. libibverbs sets the context once the device
        // has created the queue: before, it is NULL.
        let Some(known) = (unsafe { (*raw).cq_context.cast::<Self>().as_ref() }) else {
            return NOBODY;
        };
        known.has_failed.store(true, Ordering::Release);
        known.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A queue in libibverbs' form, with this context.
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
