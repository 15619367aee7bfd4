//! Registered memory whose content is never read: the target of peers' path tests, and the source
//! of own ones.

use super::mapping::Mapping;
use super::memory::{MemoryRegion, ProtectionDomain, Source};
use crate::error::Result;
use std::sync::Arc;

/// The sink of one protection domain.
#[derive(Debug)]
pub struct Sink {
    // Declared first: the region is deregistered before the memory is unmapped.
    region: MemoryRegion,
    memory: Mapping,
}

// SAFETY: the mapping is owned, and no method reads or writes it.
unsafe impl Send for Sink {}
// SAFETY: as above.
unsafe impl Sync for Sink {}

impl Sink {
    /// A sink of `bytes`, registered in `domain`.
    ///
    /// # Errors
    /// The system has no memory, or it cannot be registered.
    pub fn new(domain: &Arc<ProtectionDomain>, bytes: usize) -> Result<Self> {
        let memory = Mapping::new(bytes)?;
        // SAFETY: the mapping is ours and outlives the region by the order of the fields.
        let region = unsafe {
            MemoryRegion::register(domain, memory.base as u64, bytes, Source::Address, false)
        }?;
        Ok(Self { region, memory })
    }

    /// Its address.
    pub fn addr(&self) -> u64 {
        self.memory.base as u64
    }

    /// Its key for the peer.
    pub fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    /// Its key for local work requests.
    pub fn lkey(&self) -> u32 {
        self.region.lkey()
    }
}
