//! Registered memory that a peer's device writes while this process reads it.

use super::mapping::Mapping;
use super::memory::{MemoryRegion, ProtectionDomain, Source};
use super::{device_memory, record};
use crate::error::Result;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Memory of several rings that one peer writes to, so that a device registers all of them with one
/// command. Each place is used once: what is left of an ended connection cannot write to a later
/// one. The memory is freed when the last of its rings is dropped.
#[derive(Debug)]
struct Block {
    // Declared first: the regions are deregistered before the memory is unmapped.
    regions: Mutex<Vec<MemoryRegion>>,
    memory: Mapping,
}

// SAFETY: the mapping is owned; rings read and write their own parts of it.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

/// The latest block of a peer.
#[derive(Debug)]
struct LatestBlock {
    block: Weak<Block>,
    /// Bytes of it that rings have taken.
    taken: usize,
}

/// The latest blocks, by the address of the peer's process. A key that a peer gets is for memory
/// that it alone writes to.
#[derive(Debug, Default)]
pub struct RingBlocks(Mutex<BTreeMap<SocketAddr, LatestBlock>>);

/// The most rings in a block. The first block of a peer has one, each further one has twice as
/// many, as long as the one before is in use.
const MOST_RINGS: usize = 16;

impl Block {
    fn new(bytes: usize) -> Result<Arc<Self>> {
        Ok(Arc::new(Self { regions: Mutex::default(), memory: Mapping::new(bytes)? }))
    }

    /// The keys for local and for remote use in `domain`, in which it is registered when they are
    /// first needed.
    fn keys(self: &Arc<Self>, domain: &Arc<ProtectionDomain>) -> Result<(u32, u32)> {
        let mut regions = lock(&self.regions);
        if let Some(region) = regions.iter().find(|region| region.is_in(domain)) {
            return Ok((region.lkey(), region.rkey()));
        }
        // Regions of lost devices are useless, and would keep the devices open. But another ring's
        // peer may still write by their keys.
        if Arc::strong_count(self) == 1 {
            regions.retain(|region| !region.is_lost());
        }
        let Mapping { base, bytes, .. } = self.memory;
        // SAFETY: the mapping is ours and outlives the regions by the order of the fields. No
        // relaxed ordering here: the sequence number must not overtake the rest of its record.
        let region =
            unsafe { MemoryRegion::register(domain, base as u64, bytes, Source::Address, false) }?;
        let keys = (region.lkey(), region.rkey());
        regions.push(region);
        Ok(keys)
    }
}

impl RingBlocks {
    /// `bytes` of zeroed memory that `peer` is to write to: the block, and where they begin in it.
    fn take(&self, peer: SocketAddr, bytes: usize) -> Result<(Arc<Block>, usize)> {
        let mut all = lock(&self.0);
        let mut rings = 1;
        if let Some(latest) = all.get_mut(&peer)
            && let Some(block) = latest.block.upgrade()
        {
            if latest.taken + bytes <= block.memory.bytes {
                let place = latest.taken;
                latest.taken += bytes;
                return Ok((block, place));
            }
            rings = (2 * block.memory.bytes / bytes).clamp(1, MOST_RINGS);
        }
        let block = Block::new(rings * bytes)?;
        all.retain(|_, latest| latest.block.strong_count() > 0);
        all.insert(peer, LatestBlock { block: Arc::downgrade(&block), taken: bytes });
        Ok((block, 0))
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A ring of `RECORDS` records that a peer writes by RDMA WRITE. The last word of a record shows
/// whether it is complete; [`record`] explains why that works.
///
/// A record has one half or two halves of `WORDS` 64-bit words each. The last half is the one that
/// [`Self::read`] reads.
#[derive(Debug)]
pub struct SharedRing<const WORDS: usize, const RECORDS: usize> {
    /// What it lies in.
    block: Arc<Block>,
    first: *mut u64,
    /// Words from one record to the next.
    stride: usize,
    /// The last half of the first record.
    last_half: *const u64,
}

// SAFETY: its part of the block is its own, and read only through volatile loads.
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
        let block = Block::new(RECORDS * Self::stride(halves) * 8)?;
        Ok(Self::at((block, 0), halves, empty))
    }

    /// As [`Self::new`], in a block of `blocks` with other rings that `peer` writes to.
    ///
    /// # Errors
    /// The system has no memory.
    pub fn among(
        (blocks, peer): (&RingBlocks, SocketAddr),
        halves: usize,
        empty: impl Fn(usize) -> u64,
    ) -> Result<Self> {
        let place = blocks.take(peer, RECORDS * Self::stride(halves) * 8)?;
        Ok(Self::at(place, halves, empty))
    }

    fn at(
        (block, place): (Arc<Block>, usize),
        halves: usize,
        empty: impl Fn(usize) -> u64,
    ) -> Self {
        let stride = Self::stride(halves);
        let first = block.memory.base.wrapping_add(place).cast::<u64>();
        let mut this = Self { block, first, stride, last_half: first };
        this.lay_out(halves, empty);
        this
    }

    /// Limits each record to this many `halves`, and empties it like [`Self::new`]. Call it before
    /// a peer writes.
    pub fn lay_out(&mut self, halves: usize, empty: impl Fn(usize) -> u64) {
        self.stride = Self::stride(halves).min(self.stride);
        self.last_half = self.first.wrapping_add(self.stride - WORDS);
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
        self.first as u64
    }

    /// Its key for the peer, in `domain`.
    ///
    /// # Errors
    /// It cannot be registered there.
    pub fn rkey(&mut self, domain: &Arc<ProtectionDomain>) -> Result<u32> {
        self.block.keys(domain).map(|(_, rkey)| rkey)
    }

    /// Its key for local work requests, in `domain`.
    ///
    /// # Errors
    /// It cannot be registered there.
    pub fn lkey(&mut self, domain: &Arc<ProtectionDomain>) -> Result<u32> {
        self.block.keys(domain).map(|(lkey, _)| lkey)
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
        let words = self.first.wrapping_add(index % RECORDS * self.stride);
        // SAFETY: inside the block, aligned.
        std::array::from_fn(|i| unsafe { device_memory::load(words.add(i)) })
    }

    /// The last half of record `index` (modulo `RECORDS`): that many aligned words inside the
    /// mapping.
    #[inline(always)]
    fn last_half_at(&self, index: usize) -> *const u64 {
        self.last_half.wrapping_add(index % RECORDS * self.stride)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BYTES: usize = 4096;

    fn peer(port: u16) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], port))
    }

    /// Bytes of the block, and where the place begins.
    fn place((block, at): &(Arc<Block>, usize)) -> (usize, usize) {
        assert!(at + BYTES <= block.memory.bytes);
        (block.memory.bytes / BYTES, at / BYTES)
    }

    #[test]
    fn blocks_of_a_peer_grow_and_no_place_is_taken_twice() {
        let blocks = RingBlocks::default();
        let mut taken = Vec::new();
        for _ in 0..49 {
            taken.push(blocks.take(peer(1), BYTES).expect("memory"));
        }
        let sizes: Vec<usize> =
            taken.iter().map(place).filter(|(_, at)| *at == 0).map(|(all, _)| all).collect();
        assert_eq!(sizes, [1, 2, 4, 8, 16, 16, 16]);
        // What was used of the last block is not used again.
        let last = taken.pop().expect("there are some");
        let (all, at) = place(&last);
        drop(last);
        assert_eq!(place(&blocks.take(peer(1), BYTES).expect("memory")), (all, at + 1));
    }

    #[test]
    fn peers_share_no_block_and_one_that_nobody_uses_is_freed() {
        let blocks = RingBlocks::default();
        let one = blocks.take(peer(1), BYTES).expect("memory");
        let other = blocks.take(peer(2), BYTES).expect("memory");
        assert!(!Arc::ptr_eq(&one.0, &other.0));
        let freed = Arc::downgrade(&one.0);
        drop(one);
        assert_eq!(freed.strong_count(), 0);
        assert_eq!(place(&blocks.take(peer(1), BYTES).expect("memory")), (1, 0), "it begins again");
    }
}
