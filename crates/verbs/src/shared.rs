//! Registered memory that a peer's device writes while this process reads it.

use super::mapping::Mapping;
use super::memory::{MemoryRegion, ProtectionDomain, Source};
use super::{device_memory, record};
use crate::error::Result;
use std::sync::Arc;

/// A ring of `RECORDS` records that a peer writes by RDMA WRITE. The last word of a record shows
/// whether it is complete; [`record`] explains why that works.
///
/// A record has one half or two halves of `WORDS` 64-bit words each. The last half is the one that
/// [`Self::read`] reads.
#[derive(Debug)]
pub struct SharedRing<const WORDS: usize, const RECORDS: usize> {
    // Declared first: the regions are deregistered before the memory is unmapped.
    regions: Vec<MemoryRegion>,
    memory: Mapping,
    /// Words from one record to the next.
    stride: usize,
    /// The last half of the first record.
    last_half: *const u64,
}

// SAFETY: the mapping is owned, and read only through volatile loads.
unsafe impl<const WORDS: usize, const RECORDS: usize> Send for SharedRing<WORDS, RECORDS> {}
// SAFETY: as above; writing requires exclusive access to the ring.
unsafe impl<const WORDS: usize, const RECORDS: usize> Sync for SharedRing<WORDS, RECORDS> {}

impl<const WORDS: usize, const RECORDS: usize> SharedRing<WORDS, RECORDS> {
    /// A ring of empty records of one or two `halves`. It is registered in a domain when its key
    /// there is first needed. `empty` returns the last word of an empty record by its index, which
    /// must differ from that of a complete one: zero may be one.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn new(halves: usize, empty: impl Fn(usize) -> u64) -> Result<Self> {
        let stride = Self::stride(halves);
        let memory = Mapping::new(RECORDS * stride * 8)?;
        let last_half = Self::last_half_of(&memory, stride);
        let mut this = Self { regions: Vec::new(), memory, stride, last_half };
        this.clear(empty);
        Ok(this)
    }

    /// Limits each record to this many `halves`, and empties it like [`Self::new`]. Call it before
    /// a peer writes.
    pub fn lay_out(&mut self, halves: usize, empty: impl Fn(usize) -> u64) {
        self.stride = Self::stride(halves).min(self.stride);
        self.last_half = Self::last_half_of(&self.memory, self.stride);
        self.clear(empty);
    }

    fn clear(&mut self, empty: impl Fn(usize) -> u64) {
        for index in 0..RECORDS {
            let last = self.last_half_at(index).wrapping_add(WORDS - 1).cast_mut();
            // SAFETY: the last word of the record: aligned, inside the mapping, and no peer writes
            // yet.
            unsafe { last.write_volatile(empty(index)) };
        }
    }

    fn stride(halves: usize) -> usize {
        const { assert!(WORDS <= 8, "a record must not straddle a cache line") };
        halves.clamp(1, (8 / WORDS).max(1)) * WORDS
    }

    /// Its address, for the peer.
    pub fn addr(&self) -> u64 {
        self.memory.base as u64
    }

    /// Its key for the peer, in `domain`.
    ///
    /// # Errors
    /// It cannot be registered there.
    pub fn rkey(&mut self, domain: &Arc<ProtectionDomain>) -> Result<u32> {
        self.region(domain).map(MemoryRegion::rkey)
    }

    /// Its key for local work requests, in `domain`.
    ///
    /// # Errors
    /// It cannot be registered there.
    pub fn lkey(&mut self, domain: &Arc<ProtectionDomain>) -> Result<u32> {
        self.region(domain).map(MemoryRegion::lkey)
    }

    fn region(&mut self, domain: &Arc<ProtectionDomain>) -> Result<&MemoryRegion> {
        let known = self.regions.iter().position(|region| region.is_in(domain));
        let place = match known {
            Some(place) => place,
            None => {
                // Regions of lost devices are useless, and would keep the devices open.
                self.regions.retain(|region| !region.is_lost());
                let Mapping { base, bytes, .. } = self.memory;
                // SAFETY: the mapping is ours and outlives the regions by the order of the fields.
                // No relaxed ordering here: the sequence number must not overtake the rest of its
                // record.
                let region = unsafe {
                    MemoryRegion::register(domain, base as u64, bytes, Source::Address, false)
                }?;
                self.regions.push(region);
                self.regions.len() - 1
            }
        };
        Ok(&self.regions[place])
    }

    /// A copy of the last half of record `index` (modulo `RECORDS`), if `is_there` accepts its last
    /// word.
    #[inline]
    pub fn read(&self, index: usize, is_there: impl FnOnce(u64) -> bool) -> Option<[u64; WORDS]> {
        // SAFETY: the words of the record.
        let last = unsafe { record::last::<WORDS>(self.last_half_at(index)) };
        is_there(last).then(|| self.read_found(index, last))
    }

    /// A copy of the last half of record `index` (modulo `RECORDS`), which [`Self::is_there`] has
    /// found complete, with `last` as its last word.
    #[inline]
    pub fn read_found(&self, index: usize, last: u64) -> [u64; WORDS] {
        // SAFETY: the words of the record.
        unsafe { record::whole(self.last_half_at(index), last) }
    }

    /// Whether `is_there` accepts the last word of record `index` (modulo `RECORDS`).
    #[inline]
    pub fn is_there(&self, index: usize, is_there: impl FnOnce(u64) -> bool) -> bool {
        // SAFETY: the words of the record.
        is_there(unsafe { record::last::<WORDS>(self.last_half_at(index)) })
    }

    /// A copy of the first half of record `index`, which [`Self::read`] has found complete.
    pub fn read_front(&self, index: usize) -> [u64; WORDS] {
        let words = self.memory.base.cast::<u64>().wrapping_add(index % RECORDS * self.stride);
        // SAFETY: inside the mapping, aligned.
        std::array::from_fn(|i| unsafe { device_memory::load(words.add(i)) })
    }

    /// The last half of record `index` (modulo `RECORDS`): that many aligned words inside the
    /// mapping.
    #[inline(always)]
    fn last_half_at(&self, index: usize) -> *const u64 {
        self.last_half.wrapping_add(index % RECORDS * self.stride)
    }

    /// The last half of the first record.
    fn last_half_of(memory: &Mapping, stride: usize) -> *const u64 {
        memory.base.cast::<u64>().wrapping_add(stride - WORDS)
    }
}
