//! Memory that a remote device writes while this process reads.

use super::memory::{MemoryRegion, ProtectionDomain, Source};
use crate::error::{Error, Result, errno};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// An array of `RECORDS` records of `WORDS` 64-bit words that a peer fills by RDMA WRITE. The last word of a record tells whether
/// the rest is there.
///
/// The pages are this object's own: libibverbs marks registered pages as not to be inherited by forked children, and
/// nothing else may share that fate.
#[derive(Debug)]
pub struct SharedRing<const WORDS: usize, const RECORDS: usize> {
    // Declared first: the region has to go before the memory.
    region: MemoryRegion,
    memory: Mapping,
}

#[derive(Debug)]
struct Mapping {
    base: *mut u8,
    bytes: usize,
}

// SAFETY: the mapping is owned, and read only through volatile loads.
unsafe impl<const WORDS: usize, const RECORDS: usize> Send for SharedRing<WORDS, RECORDS> {}
// SAFETY: as above; no method writes.
unsafe impl<const WORDS: usize, const RECORDS: usize> Sync for SharedRing<WORDS, RECORDS> {}

impl<const WORDS: usize, const RECORDS: usize> SharedRing<WORDS, RECORDS> {
    /// A ring of zeroed records that remote peers may write.
    ///
    /// # Errors
    /// No memory, or it cannot be registered.
    pub fn new(domain: &Arc<ProtectionDomain>) -> Result<Self> {
        const { assert!(WORDS <= 8, "a record must not straddle a cache line") };
        let memory = Mapping::new(RECORDS * WORDS * 8)?;
        // No relaxed ordering here: the sequence number must not overtake the rest of its record.
        // SAFETY: the mapping is ours and outlives the region by the order of the fields.
        let region =
            unsafe { MemoryRegion::register(domain, memory.base as u64, memory.bytes, Source::Address, false)? };
        Ok(Self { region, memory })
    }

    /// Its address, for the peer.
    pub fn addr(&self) -> u64 {
        self.memory.base as u64
    }

    /// Its key, for the peer.
    pub fn rkey(&self) -> u32 {
        self.region.rkey()
    }

    /// Its key for local work requests.
    pub fn lkey(&self) -> u32 {
        self.region.lkey()
    }

    /// A copy of record `index` (modulo the size of the ring), if `is_there` says so of its last word.
    #[inline]
    pub fn read(&self, index: usize, is_there: impl FnOnce(u64) -> bool) -> Option<[u64; WORDS]> {
        let words = self.memory.base.cast::<u64>().wrapping_add(index % RECORDS * WORDS);
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
}

impl Mapping {
    fn new(bytes: usize) -> Result<Self> {
        // SAFETY: an anonymous mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(Error::os(format_args!("mmap of {bytes} bytes"), errno()));
        }
        Ok(Self { base: base.cast(), bytes })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this size, unmapped once.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
