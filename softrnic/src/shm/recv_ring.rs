//! The receive queue: one ring in shared memory with three cursors.
//!
//! ```text
//!   polled  <=  done  <=  posted
//!   (owner)   (peer)      (owner)
//! ```
//! The owner fills entries, the peer writes the outcome into the same entry, the owner's poll takes
//! it.

use std::hint::spin_loop;
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use crate::abi::types::Sge;
use crate::limits::MAX_SGE;
use crate::shm::file::{ControlLock, PAGE, RING_PAGES_AT, RINGS_AT, RINGS_BYTES, SharedFile};
use crate::shm::slots::{QpSlot, SrqSlot};

/// Words of an entry before its elements: wr_id; status, opcode; byte count, immediate; flags,
/// number of elements.
const HEAD: usize = 4;

/// View of a ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvRing {
    words: &'static [AtomicU64],
    mask: u64,
    stride: usize,
}

/// Outcome of a receive.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) byte_len: u32,
    pub(crate) imm: u32,
    pub(crate) wc_flags: u32,
}

/// Who has sent a datagram.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sender {
    pub(crate) qpn: u32,
    /// InfiniBand only.
    pub(crate) lid: u16,
    pub(crate) service_level: u8,
}

fn pack(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn unpack(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl RecvRing {
    /// Mask, stride in words, and bytes of a ring for so many receives with so many elements each.
    /// UD has a word more: the sender.
    pub(crate) fn layout((receives, elements): (u32, u32), is_ud: bool) -> (u32, u32, usize) {
        if receives == 0 {
            return (0, HEAD as u32, 0);
        }
        let entries = receives.next_power_of_two();
        let stride = HEAD as u32 + 2 * elements + u32::from(is_ud);
        (entries - 1, stride, entries as usize * stride as usize * 8)
    }

    /// The ring that `slot` describes, if the description holds together.
    #[inline]
    pub(crate) fn of(file: &SharedFile, slot: &QpSlot) -> Option<Self> {
        let (mask, stride) =
            (slot.ring_mask.load(Relaxed), slot.ring_stride.load(Relaxed) as usize);
        let bytes = slot.ring_bytes.load(Relaxed) as usize;
        let words = file.ring_words(slot.ring_at.load(Relaxed), bytes)?;
        let is_sound =
            bytes == 0 || (stride >= HEAD && (mask as usize + 1) * stride <= words.len());
        is_sound.then_some(Self { words, mask: u64::from(mask), stride })
    }

    fn entry(&self, at: u64) -> &[AtomicU64] {
        &self.words[(at & self.mask) as usize * self.stride..][..self.stride]
    }

    /// Owner: fills entry `at`. `sges` fit (checked at post).
    pub(crate) fn fill(&self, at: u64, wr_id: u64, sges: &[Sge]) {
        let entry = self.entry(at);
        entry[0].store(wr_id, Relaxed);
        entry[3].store(pack(0, sges.len() as u32), Relaxed);
        for (words, sge) in entry[HEAD..].chunks_exact(2).zip(sges) {
            words[0].store(sge.addr, Relaxed);
            words[1].store(pack(sge.length, sge.lkey), Relaxed);
        }
    }

    /// Owner: posts a receive. `sges` fit, and there is room (checked at post).
    pub(crate) fn post(&self, slot: &QpSlot, wr_id: u64, sges: &[Sge]) {
        let at = slot.posted.load(Relaxed);
        self.fill(at, wr_id, sges);
        // Pairs with the peer's load in `oldest`: the entry is complete before it is counted.
        slot.posted.store(at + 1, Release);
    }

    /// Peer: the entry that the next message takes, and whether it is posted.
    #[inline]
    pub(crate) fn oldest(slot: &QpSlot) -> (u64, bool) {
        // Written by who was in the queue pair before: the mark orders that.
        let at = slot.done.load(Relaxed);
        (at, at != slot.posted.load(Acquire))
    }

    /// Peer: the elements of entry `at`.
    pub(crate) fn elements(&self, at: u64) -> impl Iterator<Item = Sge> {
        let entry = self.entry(at);
        let count = unpack(entry[3].load(Relaxed)).1 as usize;
        entry[HEAD..].chunks_exact(2).take(count).map(|words| {
            let (length, lkey) = unpack(words[1].load(Relaxed));
            Sge { addr: words[0].load(Relaxed), length, lkey }
        })
    }

    /// Peer: who has sent the datagram of entry `at`. Before [`Self::finish`].
    pub(crate) fn name_sender(&self, at: u64, sender: Sender) {
        if let Some(last) = self.entry(at).last() {
            last.store(
                pack(sender.qpn, u32::from(sender.lid) | u32::from(sender.service_level) << 16),
                Relaxed,
            );
        }
    }

    /// Owner: who has sent the datagram of entry `at`, which is done.
    pub(crate) fn sender(&self, at: u64) -> Sender {
        let (qpn, rest) = unpack(self.entry(at).last().map_or(0, |word| word.load(Relaxed)));
        Sender { qpn, lid: rest as u16, service_level: (rest >> 16) as u8 }
    }

    /// Peer, or owner when no peer can be in the queue pair: writes the outcome of entry `at` and
    /// publishes it.
    pub(crate) fn finish(&self, slot: &QpSlot, at: u64, outcome: &Received) {
        let entry = self.entry(at);
        let sges = unpack(entry[3].load(Relaxed)).1;
        entry[1].store(pack(outcome.status, outcome.opcode), Relaxed);
        entry[2].store(pack(outcome.byte_len, outcome.imm), Relaxed);
        entry[3].store(pack(outcome.wc_flags, sges), Relaxed);
        // Pairs with the owner's load in `take`; after it the data of the message is visible too.
        slot.done.store(at + 1, Release);
    }

    /// Owner: entry `at` if it is done.
    pub(crate) fn take(&self, slot: &QpSlot, at: u64) -> Option<(u64, Received)> {
        if at == slot.done.load(Acquire) {
            return None;
        }
        let entry = self.entry(at);
        let (status, opcode) = unpack(entry[1].load(Relaxed));
        let (byte_len, imm) = unpack(entry[2].load(Relaxed));
        let wc_flags = unpack(entry[3].load(Relaxed)).0;
        Some((entry[0].load(Relaxed), Received { status, opcode, byte_len, imm, wc_flags }))
    }
}

// Which pages of the area for receive rings are in use: a bit each.
//
// A bit is set before its ring is entered in a queue pair, and cleared after the ring has been
// taken out. So a process that is killed in between leaves a bit too many and never one too few;
// [`RingPages::rebuild`] clears those. All under the control lock.

const WORDS: usize = RINGS_BYTES / PAGE / 64;

/// The bits, in the shared file.
#[derive(Debug)]
#[repr(transparent)]
pub(crate) struct RingPages([AtomicU64; WORDS]);

/// The pages of `bytes` from `at` on in the file, by number.
fn pages(at: usize, bytes: usize) -> Range<usize> {
    let first = at.saturating_sub(RINGS_AT) / PAGE;
    first..(first + bytes.div_ceil(PAGE)).min(WORDS * 64)
}

impl SharedFile {
    /// Which pages of the receive rings are in use.
    pub(crate) fn ring_pages(&self) -> &'static RingPages {
        // SAFETY: the bits have storage and consist of atomics.
        unsafe { &*self.base().add(RING_PAGES_AT).cast() }
    }
}

impl RingPages {
    fn is_used(&self, page: usize) -> bool {
        self.0[page / 64].load(Relaxed) & 1 << (page % 64) != 0
    }

    /// The first gap of `bytes`: where it begins in the file.
    pub(crate) fn find(&self, _control: &ControlLock<'_>, bytes: usize) -> Option<usize> {
        let wanted = bytes.div_ceil(PAGE);
        let (mut page, mut free) = (0, 0);
        while page < WORDS * 64 && free < wanted {
            if page.is_multiple_of(64) && self.0[page / 64].load(Relaxed) == u64::MAX {
                (page, free) = (page + 64, 0);
                continue;
            }
            free = if self.is_used(page) { 0 } else { free + 1 };
            page += 1;
        }
        (free == wanted).then(|| RINGS_AT + (page - wanted) * PAGE)
    }

    /// `bytes` from `at` on are in use.
    pub(crate) fn take(&self, _control: &ControlLock<'_>, at: usize, bytes: usize) {
        for page in pages(at, bytes) {
            self.0[page / 64].fetch_or(1 << (page % 64), Relaxed);
        }
    }

    /// They are free again.
    pub(crate) fn give_back(&self, _control: &ControlLock<'_>, at: usize, bytes: usize) {
        for page in pages(at, bytes) {
            self.0[page / 64].fetch_and(!(1 << (page % 64)), Relaxed);
        }
    }

    /// Only `rings` are in use.
    pub(crate) fn rebuild(
        &self,
        control: &ControlLock<'_>,
        rings: impl Iterator<Item = (usize, usize)>,
    ) {
        self.0.iter().for_each(|word| word.store(0, Relaxed));
        rings.for_each(|(at, bytes)| self.take(control, at, bytes));
    }
}

// The ring of a shared receive queue, which those who send to any of its queue pairs take from its
// head.
//
// ```text
//   freed  <=  head  <=  posted
//   (owner)  (takers)    (owner)
// ```
// Who has entered a queue pair whose own ring is empty copies the receive at the head there, marks
// it as that queue pair's, and counts it as posted to it: from there on it is a receive like any
// other. Nobody waits for another one: who finds a receive that is marked at the head moves the
// head on. A taker that is killed after its mark leaves in `QpSlot::wanted` which one it was.

/// Words of an entry before its elements: wr_id; position << 16 | who has taken it; number of
/// elements.
const SRQ_HEAD: usize = 3;
/// Bits of the count of receives of a queue pair in [`QpSlot::wanted`], below the position in the
/// SRQ + 1.
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
        let stride = SRQ_HEAD as u32 + 2 * elements;
        (entries - 1, stride, entries as usize * stride as usize * 8)
    }

    /// The ring that `slot` describes, if the description holds together.
    pub(crate) fn of(file: &SharedFile, slot: &SrqSlot) -> Option<Self> {
        let (mask, stride) =
            (slot.ring_mask.load(Relaxed), slot.ring_stride.load(Relaxed) as usize);
        let words =
            file.ring_words(slot.ring_at.load(Relaxed), slot.ring_bytes.load(Relaxed) as usize)?;
        let is_sound = stride >= SRQ_HEAD && (mask as usize + 1) * stride <= words.len();
        is_sound.then_some(Self { words, mask: u64::from(mask), stride })
    }

    fn entry(&self, at: u64) -> &[AtomicU64] {
        &self.words[(at & self.mask) as usize * self.stride..][..self.stride]
    }

    /// Owner: fills the entry of the receive that is posted next, and posts it. `sges` fit
    /// (checked), and the entry is free.
    pub(crate) fn post(&self, slot: &SrqSlot, wr_id: u64, sges: &[Sge]) {
        let at = slot.posted.load(Relaxed);
        let entry = self.entry(at);
        entry[0].store(wr_id, Relaxed);
        entry[2].store(sges.len() as u64, Relaxed);
        for (words, sge) in entry[SRQ_HEAD..].chunks_exact(2).zip(sges) {
            words[0].store(sge.addr, Relaxed);
            words[1].store(u64::from(sge.length) | u64::from(sge.lkey) << 32, Relaxed);
        }
        entry[1].store(at << 16, Relaxed);
        // Pairs with a taker's load: the entry is complete, and its mark new, before it is counted.
        slot.posted.store(at + 1, Release);
    }

    /// Copies the receive at `at` to entry `count` of `queue`. Its owner may be overwriting it:
    /// then it is another's already.
    fn copy(&self, at: u64, queue: &RecvRing, count: u64) {
        let entry = self.entry(at);
        let mut sges = [Sge::default(); MAX_SGE as usize];
        let number = (entry[2].load(Relaxed) as usize).min(sges.len());
        for (sge, words) in sges[..number].iter_mut().zip(entry[SRQ_HEAD..].chunks_exact(2)) {
            let rest = words[1].load(Relaxed);
            *sge = Sge {
                addr: words[0].load(Relaxed),
                length: rest as u32,
                lkey: (rest >> 32) as u32,
            };
        }
        queue.fill(count, entry[0].load(Relaxed), &sges[..number]);
    }

    /// Takes the receive at `at` as number `count` of queue pair `index`, `qp`, in its ring
    /// `queue`, where it is not posted yet. False: another one has it.
    pub(crate) fn mark(
        &self,
        at: u64,
        (qp, index): (&QpSlot, u32),
        (queue, count): (&RecvRing, u64),
    ) -> bool {
        qp.wanted.store(note(at, count), Relaxed);
        self.copy(at, queue, count);
        // Pairs with the load in `recover`: who finds the mark of one that has died finds the note
        // and the copy too.
        self.entry(at)[1].compare_exchange(at << 16, taken(at, index), Release, Relaxed).is_ok()
    }

    /// For who has entered queue pair `index`, `qp`, or its owner when nobody can be in it: the
    /// receive that a taker has marked as its own when it was killed is posted to it. True if there
    /// was one.
    pub(crate) fn recover(&self, qp: &QpSlot, index: u32) -> bool {
        // These may be old only while a taker lives, and then it is not asked: the kernel tells of
        // a death after all that was written.
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

    /// For who has entered queue pair `index`, `qp`, which has no receive: posts the one at the
    /// head to its ring `queue`. False if there is none.
    pub(crate) fn take(&self, slot: &SrqSlot, qp: &QpSlot, index: u32, queue: &RecvRing) -> bool {
        if self.recover(qp, index) {
            return true;
        }
        let count = qp.done.load(Relaxed);
        loop {
            // An old value of the head, or of a mark, is one of a receive that another one has:
            // then the marks differ.
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
                // It is taken. `SrqSlot::reaches_limit` looks at the limit after this, and its
                // owner at this after the limit.
                let _ = slot.head.compare_exchange(at, at + 1, SeqCst, Relaxed);
            }
            if is_ours {
                return true;
            }
            spin_loop();
        }
    }
}
