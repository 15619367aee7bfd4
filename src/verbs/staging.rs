//! Memory that devices take what they write from, where they offer no inline data.

use super::mapping::Mapping;
use super::memory::{MemoryRegion, Source};
use super::queue::QueuePair;
use crate::error::{Error, Result};

/// Registered memory that only this process fills.
#[derive(Debug)]
pub struct Staging {
    // Declared first: the regions have to go before the memory.
    regions: Box<[MemoryRegion]>,
    memory: Mapping,
}

// SAFETY: the mapping is owned, and written by nobody but `put`, which borrows it exclusively.
unsafe impl Send for Staging {}

impl Staging {
    /// `bytes` of memory that each of `pairs` may send from.
    ///
    /// # Errors
    /// No memory, or it cannot be registered.
    pub fn new<'a>(pairs: impl IntoIterator<Item = &'a QueuePair>, bytes: usize) -> Result<Self> {
        let memory = Mapping::new(bytes)?;
        let region = |pair: &QueuePair| {
            // SAFETY: the mapping is ours and outlives the regions by the order of the fields.
            unsafe { MemoryRegion::register(pair.domain(), memory.base as u64, bytes, Source::Address, false) }
        };
        let regions = pairs.into_iter().map(region).collect::<Result<_>>()?;
        Ok(Self { regions, memory })
    }

    /// Copies `records` to `offset`, in bytes, where no device may be reading; their address.
    ///
    /// # Errors
    /// They do not fit.
    pub fn put<const WORDS: usize>(&mut self, offset: usize, records: &[[u64; WORDS]]) -> Result<u64> {
        let bytes = size_of_val(records);
        if offset.checked_add(bytes).is_none_or(|end| end > self.memory.bytes) {
            return Err(Error::internal(format!("{bytes} bytes at {offset} of {}", self.memory.bytes)));
        }
        let place = self.memory.base.wrapping_add(offset);
        // SAFETY: inside the mapping, as was just seen, which is ours alone: the source is elsewhere.
        unsafe { place.copy_from_nonoverlapping(records.as_ptr().cast(), bytes) };
        Ok(place as u64)
    }

    /// The key for work requests of pair number `pair` of those given to [`Self::new`].
    pub fn lkey(&self, pair: usize) -> u32 {
        self.regions.get(pair).map_or(0, MemoryRegion::lkey)
    }
}
