//! Memory that a remote device writes while this process reads.

use super::mapping::Mapping;
use super::memory::{MemoryRegion, ProtectionDomain, Source};
use crate::error::Result;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// An array of `RECORDS` records that a peer fills by RDMA WRITE. The last word of a record tells whether the rest is there.
///
/// A record is `WORDS` 64-bit words; where there is room, as many again may come before them.
#[derive(Debug)]
pub struct SharedRing<const WORDS: usize, const RECORDS: usize> {
    // Declared first: the regions have to go before the memory.
    regions: Vec<MemoryRegion>,
    memory: Mapping,
    /// Words from one record to the next.
    pitch: usize,
    /// The last `WORDS` words of the first record.
    tail: *const u64,
}

// SAFETY: the mapping is owned, and read only through volatile loads.
unsafe impl<const WORDS: usize, const RECORDS: usize> Send for SharedRing<WORDS, RECORDS> {}
// SAFETY: as above; no method writes.
unsafe impl<const WORDS: usize, const RECORDS: usize> Sync for SharedRing<WORDS, RECORDS> {}

impl<const WORDS: usize, const RECORDS: usize> SharedRing<WORDS, RECORDS> {
    /// A ring of zeroed records, with room for each of one or two times `WORDS` words, that remote peers may write through
    /// any of `domains`.
    ///
    /// # Errors
    /// No memory, or it cannot be registered.
    pub fn new<'a>(domains: impl IntoIterator<Item = &'a Arc<ProtectionDomain>>, halves: usize) -> Result<Self> {
        let pitch = Self::pitch(halves);
        let memory = Mapping::new(RECORDS * pitch * 8)?;
        // No relaxed ordering here: the sequence number must not overtake the rest of its record.
        let region = |domain| {
            // SAFETY: the mapping is ours and outlives the regions by the order of the fields.
            unsafe { MemoryRegion::register(domain, memory.base as u64, memory.bytes, Source::Address, false) }
        };
        let regions = domains.into_iter().map(region).collect::<Result<_>>()?;
        let tail = Self::tail_of(&memory, pitch);
        Ok(Self { regions, memory, pitch, tail })
    }

    /// Lays the records closer together, if there was more room than it takes. To be done before a peer writes.
    pub fn lay_out(&mut self, halves: usize) {
        self.pitch = Self::pitch(halves).min(self.pitch);
        self.tail = Self::tail_of(&self.memory, self.pitch);
    }

    fn pitch(halves: usize) -> usize {
        const { assert!(WORDS <= 8, "a record must not straddle a cache line") };
        halves.clamp(1, (8 / WORDS).max(1)) * WORDS
    }

    /// Its address, for the peer.
    pub fn addr(&self) -> u64 {
        self.memory.base as u64
    }

    /// Its key for the peer, by domain.
    pub fn rkey(&self, domain: usize) -> u32 {
        self.regions.get(domain).map_or(0, MemoryRegion::rkey)
    }

    /// Its key for local work requests, by domain.
    pub fn lkey(&self, domain: usize) -> u32 {
        self.regions.get(domain).map_or(0, MemoryRegion::lkey)
    }

    /// A copy of the last words of record `index` (modulo the size of the ring), if `is_there` says so of its last word.
    #[inline]
    pub fn read(&self, index: usize, is_there: impl FnOnce(u64) -> bool) -> Option<[u64; WORDS]> {
        let words = self.tail.wrapping_add(index % RECORDS * self.pitch);
        let mut record = [0; WORDS];
        // SAFETY: inside the mapping, aligned; volatile, since the device writes it behind the compiler's back.
        record[WORDS - 1] = unsafe { words.add(WORDS - 1).read_volatile() };
        if !is_there(record[WORDS - 1]) {
            return None;
        }
        // Pairs with the device's ascending write of the record: what precedes the last word is there already, and must
        // not be read before it.
        fence(Ordering::Acquire);
        for (i, word) in record.iter_mut().enumerate().take(WORDS - 1) {
            // SAFETY: as above.
            *word = unsafe { words.add(i).read_volatile() };
        }
        Some(record)
    }

    /// A copy of the first words of record `index`, which [`Self::read`] has found to be there.
    pub fn read_front(&self, index: usize) -> [u64; WORDS] {
        let words = self.memory.base.cast::<u64>().wrapping_add(index % RECORDS * self.pitch);
        // SAFETY: inside the mapping, aligned; volatile, since the device writes it behind the compiler's back.
        std::array::from_fn(|i| unsafe { words.add(i).read_volatile() })
    }

    /// The last words of the first record, where there are `pitch` from one to the next.
    fn tail_of(memory: &Mapping, pitch: usize) -> *const u64 {
        memory.base.cast::<u64>().wrapping_add(pitch - WORDS)
    }
}
