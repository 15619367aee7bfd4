//! Registered memory as a source for writes, where a device has too little inline data.

#![deny(clippy::disallowed_methods)]

use super::mapping::Mapping;
use super::memory::{MemoryRegion, Source};
use super::queue_pair::QueuePair;
use crate::error::{Error, Result};

/// Registered memory that only this process writes and its devices read.
#[derive(Debug)]
pub struct Staging {
    // Declared first: the regions are deregistered before the memory is unmapped.
    regions: Box<[MemoryRegion]>,
    memory: Mapping,
}

// SAFETY: the mapping is owned, and only `put` writes it, which borrows it exclusively.
unsafe impl Send for Staging {}

impl Staging {
    /// `bytes` of memory that each of `qps` can send from.
    ///
    /// # Errors
    /// The system has no memory, or it cannot be registered.
    pub fn new<'a>(qps: impl IntoIterator<Item = &'a QueuePair>, bytes: usize) -> Result<Self> {
        let memory = Mapping::new(bytes)?;
        let region = |qp: &QueuePair| {
            // SAFETY: the mapping is ours and outlives the regions by the order of the fields.
            unsafe {
                MemoryRegion::register(
                    qp.domain(),
                    memory.base as u64,
                    bytes,
                    Source::Address,
                    false,
                )
            }
        };
        let regions = qps.into_iter().map(region).collect::<Result<_>>()?;
        Ok(Self { regions, memory })
    }

    /// Copies `records` to `offset`, in bytes, and returns their address. No device may be reading
    /// there at the time.
    ///
    /// # Errors
    /// The records do not fit.
    pub fn put<const WORDS: usize>(
        &mut self,
        offset: usize,
        records: &[[u64; WORDS]],
    ) -> Result<u64> {
        let bytes = size_of_val(records);
        if offset.checked_add(bytes).is_none_or(|end| end > self.memory.bytes) {
            return Err(Error::misuse(format!(
                "{bytes} bytes at {offset} of {}",
                self.memory.bytes
            )));
        }
        let place = self.memory.base.wrapping_add(offset);
        // SAFETY: inside the mapping, as checked above, which is ours alone: the source is
        // elsewhere.
        unsafe { place.copy_from_nonoverlapping(records.as_ptr().cast(), bytes) };
        Ok(place as u64)
    }

    /// The key for work requests on queue pair number `qp` of those given to [`Self::new`].
    pub fn lkey(&self, qp: usize) -> u32 {
        self.regions.get(qp).map_or(0, MemoryRegion::lkey)
    }
}
