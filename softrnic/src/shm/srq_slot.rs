//! The entry of a shared receive queue.

use std::sync::atomic::Ordering::SeqCst;

use crate::host::sync::{AtomicU32, AtomicU64};

/// The part of an SRQ that takers see.
#[repr(C, align(64))]
pub(crate) struct SrqSlot {
    // Written by the owner.
    pub(crate) owner: AtomicU32,
    pub(crate) pd: AtomicU32,
    pub(crate) ring_at: AtomicU64,
    pub(crate) ring_bytes: AtomicU32,
    /// Entries - 1.
    pub(crate) ring_mask: AtomicU32,
    /// 8-byte words per entry.
    pub(crate) ring_stride: AtomicU32,
    /// The owner is told when fewer receives than this are left; 0: it is not. With [`LIMIT_REACHED`] it is to be told. One word, so that
    /// a taker cannot die in between.
    pub(crate) limit: AtomicU32,
    /// Receives posted.
    pub(crate) posted: AtomicU64,
    /// Receives taken. Written by takers.
    pub(crate) head: AtomicU64,
}

/// [`SrqSlot::limit`]: fewer are left. Cleared by the owner's service thread.
pub(crate) const LIMIT_REACHED: u32 = 1 << 31;

impl SrqSlot {
    /// Receives that nobody has taken.
    pub(crate) fn left(&self) -> u64 {
        // In this order, or the head could be beyond what was posted.
        let head = self.head.load(SeqCst);
        self.posted.load(SeqCst).saturating_sub(head)
    }

    /// Whether the limit is reached just now: the owner is to be told, once.
    pub(crate) fn reaches_limit(&self) -> bool {
        let limit = self.limit.load(SeqCst);
        let is_reached = limit != 0 && limit & LIMIT_REACHED == 0 && self.left() < u64::from(limit);
        is_reached && self.limit.compare_exchange(limit, LIMIT_REACHED, SeqCst, SeqCst).is_ok()
    }
}
