//! The ring of a shared receive queue, which those who send to any of its queue pairs take from its head.
//!
//! ```text
//!   freed  <=  head  <=  posted
//!   (owner)  (takers)    (owner)
//! ```
//! Who has entered a queue pair whose own ring is empty copies the receive at the head there, marks it as that queue pair's, and counts
//! it as posted to it: from there on it is a receive like any other. Nobody waits for another one: who finds a receive that is marked at
//! the head moves the head on. A taker that is killed after its mark leaves in `QpSlot::wanted` which one it was.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::abi::types::Sge;
use crate::host::sync::{AtomicU64, spin_loop};
use crate::limits::MAX_SGE;
use crate::shm::file::SharedFile;
use crate::shm::recv_ring::RecvRing;
use crate::shm::slots::QpSlot;
use crate::shm::srq_slot::SrqSlot;

/// Words of an entry before its elements: wr_id; position << 16 | who has taken it; number of elements.
const HEAD: usize = 3;
/// Bits of the count of receives of a queue pair in [`QpSlot::wanted`], below the position in the SRQ + 1.
const COUNT_BITS: u32 = 24;

/// View of a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SrqRing {
    words: &'static [AtomicU64],
    mask: u64,
    stride: usize,
}

/// The mark of queue pair `qp`, by its index, at a receive.
fn taken(at: u64, qp: u32) -> u64 {
    at << 16 | u64::from(qp + 1)
}

/// What a taker notes before it takes the receive at `at` as number `count` of its queue pair.
fn note(at: u64, count: u64) -> u64 {
    (at + 1) << COUNT_BITS | count & ((1 << COUNT_BITS) - 1)
}

impl SrqRing {
    /// Mask, stride in words, and bytes of a ring for so many receives with so many elements each.
    pub(crate) fn layout(receives: u32, elements: u32) -> (u32, u32, usize) {
        let entries = receives.next_power_of_two();
        let stride = HEAD as u32 + 2 * elements;
        (entries - 1, stride, entries as usize * stride as usize * 8)
    }

    /// The ring that `slot` describes, if the description holds together.
    pub(crate) fn of(file: &SharedFile, slot: &SrqSlot) -> Option<Self> {
        let (mask, stride) = (slot.ring_mask.load(Relaxed), slot.ring_stride.load(Relaxed) as usize);
        let words = file.ring_words(slot.ring_at.load(Relaxed), slot.ring_bytes.load(Relaxed) as usize)?;
        let is_sound = stride >= HEAD && (mask as usize + 1) * stride <= words.len();
        is_sound.then_some(Self { words, mask: u64::from(mask), stride })
    }

    fn entry(&self, at: u64) -> &[AtomicU64] {
        &self.words[(at & self.mask) as usize * self.stride..][..self.stride]
    }

    /// Owner: fills the entry of the receive that is posted next, and posts it. `sges` fit (checked), and the entry is free.
    pub(crate) fn post(&self, slot: &SrqSlot, wr_id: u64, sges: &[Sge]) {
        let at = slot.posted.load(Relaxed);
        let entry = self.entry(at);
        entry[0].store(wr_id, Relaxed);
        entry[2].store(sges.len() as u64, Relaxed);
        for (words, sge) in entry[HEAD..].chunks_exact(2).zip(sges) {
            words[0].store(sge.addr, Relaxed);
            words[1].store(u64::from(sge.length) | u64::from(sge.lkey) << 32, Relaxed);
        }
        entry[1].store(at << 16, Relaxed);
        // Pairs with a taker's load: the entry is complete, and its mark new, before it is counted.
        slot.posted.store(at + 1, Release);
    }

    /// Copies the receive at `at` to entry `count` of `queue`. Its owner may be overwriting it: then it is another's already.
    fn copy(&self, at: u64, queue: &RecvRing, count: u64) {
        let entry = self.entry(at);
        let mut sges = [Sge::default(); MAX_SGE as usize];
        let number = (entry[2].load(Relaxed) as usize).min(sges.len());
        for (sge, words) in sges[..number].iter_mut().zip(entry[HEAD..].chunks_exact(2)) {
            let rest = words[1].load(Relaxed);
            *sge = Sge { addr: words[0].load(Relaxed), length: rest as u32, lkey: (rest >> 32) as u32 };
        }
        queue.fill(count, entry[0].load(Relaxed), &sges[..number]);
    }

    /// Takes the receive at `at` as number `count` of queue pair `index`, `qp`, in its ring `queue`, where it is not posted yet. False:
    /// another one has it.
    pub(crate) fn mark(&self, at: u64, (qp, index): (&QpSlot, u32), (queue, count): (&RecvRing, u64)) -> bool {
        qp.wanted.store(note(at, count), Relaxed);
        self.copy(at, queue, count);
        // Pairs with the load in `recover`: who finds the mark of one that has died finds the note and the copy too.
        self.entry(at)[1].compare_exchange(at << 16, taken(at, index), Release, Relaxed).is_ok()
    }

    /// For who has entered queue pair `index`, `qp`, or its owner when nobody can be in it: the receive that a taker has marked as its own
    /// when it was killed is posted to it. True if there was one.
    pub(crate) fn recover(&self, qp: &QpSlot, index: u32) -> bool {
        // These may be old only while a taker lives, and then it is not asked: the kernel tells of a death after all that was written.
        let count = qp.done.load(Relaxed);
        let wanted = qp.wanted.load(Relaxed);
        let Some(at) = (wanted >> COUNT_BITS).checked_sub(1) else { return false };
        let is_ours = count == qp.posted.load(Relaxed)
            && wanted == note(at, count)
            && self.entry(at)[1].load(Acquire) == taken(at, index);
        if is_ours {
            // As in `take`.
            qp.posted.store(count + 1, Release);
        }
        is_ours
    }

    /// For who has entered queue pair `index`, `qp`, which has no receive: posts the one at the head to its ring `queue`. False if there is
    /// none.
    pub(crate) fn take(&self, slot: &SrqSlot, qp: &QpSlot, index: u32, queue: &RecvRing) -> bool {
        if self.recover(qp, index) {
            return true;
        }
        let count = qp.done.load(Relaxed);
        loop {
            // An old value of the head, or of a mark, is one of a receive that another one has: then the marks differ.
            let at = slot.head.load(Relaxed);
            if at == slot.posted.load(Acquire) {
                return false;
            }
            let seen = self.entry(at)[1].load(Relaxed);
            let is_ours = seen == at << 16 && self.mark(at, (qp, index), (queue, count));
            if is_ours {
                // Pairs with the load in `RecvRing::oldest`, of who comes when this one has died.
                qp.posted.store(count + 1, Release);
            }
            if is_ours || seen >> 16 == at && seen != at << 16 {
                // It is taken. `SrqSlot::reaches_limit` looks at the limit after this, and its owner at this after the limit.
                let _ = slot.head.compare_exchange(at, at + 1, SeqCst, Relaxed);
            }
            if is_ours {
                return true;
            }
            spin_loop();
        }
    }
}
