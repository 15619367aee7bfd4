//! The receive queue: one ring in shared memory with three cursors.
//!
//! ```text
//!   polled  <=  done  <=  posted
//!   (owner)   (peer)      (owner)
//! ```
//! The owner fills entries, the peer writes the outcome into the same entry, the owner's poll takes it.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::abi::types::Sge;
use crate::host::sync::AtomicU64;
use crate::shm::file::SharedFile;
use crate::shm::slots::QpSlot;

/// Words of an entry before its elements: wr_id; status, opcode; byte count, immediate; flags, number of elements.
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
    /// Mask, stride in words, and bytes of a ring for so many receives with so many elements each. UD has a word more: the sender.
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
        let (mask, stride) = (slot.ring_mask.load(Relaxed), slot.ring_stride.load(Relaxed) as usize);
        let bytes = slot.ring_bytes.load(Relaxed) as usize;
        let words = file.ring_words(slot.ring_at.load(Relaxed), bytes)?;
        let is_sound = bytes == 0 || (stride >= HEAD && (mask as usize + 1) * stride <= words.len());
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
            last.store(pack(sender.qpn, u32::from(sender.lid) | u32::from(sender.service_level) << 16), Relaxed);
        }
    }

    /// Owner: who has sent the datagram of entry `at`, which is done.
    pub(crate) fn sender(&self, at: u64) -> Sender {
        let (qpn, rest) = unpack(self.entry(at).last().map_or(0, |word| word.load(Relaxed)));
        Sender { qpn, lid: rest as u16, service_level: (rest >> 16) as u8 }
    }

    /// Peer, or owner when no peer can be in the queue pair: writes the outcome of entry `at` and publishes it.
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
