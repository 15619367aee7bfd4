//! Registered memory of a card, shared by all its connections.

use crate::error::{Error, Result};
use crate::verbs::memory::{MemoryRegion, ProtectionDomain, Source};
use std::collections::HashMap;
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Where registered memory lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Host memory.
    Host,
    /// GPU memory.
    Gpu,
}

/// What NCCL holds for a registration.
#[derive(Debug, Clone)]
pub struct Registration {
    // Kept for as long as NCCL holds this.
    _region: Arc<MemoryRegion>,
    /// Key for local use.
    pub lkey: u32,
    /// Key for the peer.
    pub rkey: u32,
    /// Where the memory lives.
    pub kind: MemoryKind,
    start: u64,
    size: u64,
}

impl Registration {
    /// Checks that `length` bytes at `addr` are inside.
    ///
    /// # Errors
    /// They are not.
    #[inline]
    pub fn require(&self, call: &str, addr: u64, length: u32) -> Result<()> {
        let offset = addr.wrapping_sub(self.start);
        if offset <= self.size && u64::from(length) <= self.size - offset {
            Ok(())
        } else {
            Err(outside(call, addr, length))
        }
    }
}

#[cold]
#[inline(never)]
fn outside(call: &str, addr: u64, length: u32) -> Error {
    Error::argument(format!("{call} of {length} bytes at {addr:#x}: outside of the memory handle"))
}

/// Registrations that are in use, by page range: NCCL registers the same buffers again and again.
///
/// An entry lives as long as somebody holds its [`Registration`]. Nothing is kept after that: the same addresses may then
/// be other memory.
#[derive(Debug)]
pub struct RegionCache {
    domain: Arc<ProtectionDomain>,
    relaxed_ordering: bool,
    regions: Mutex<HashMap<(u64, usize, MemoryKind), Weak<MemoryRegion>>>,
}

const PAGE: u64 = 4096;

impl RegionCache {
    /// An empty cache.
    pub fn new(domain: &Arc<ProtectionDomain>, relaxed_ordering: bool) -> Self {
        Self { domain: Arc::clone(domain), relaxed_ordering, regions: Mutex::default() }
    }

    /// Registers `size` bytes at `addr`, by a dma-buf descriptor and offset if there is one. The descriptor may be closed
    /// afterwards.
    ///
    /// # Errors
    /// Nothing to register, or the device refuses.
    ///
    /// # Safety
    /// The memory stays mapped until the last registration of it is dropped.
    pub unsafe fn register(
        &self,
        addr: u64,
        size: usize,
        kind: MemoryKind,
        dmabuf: Option<(RawFd, u64)>,
    ) -> Result<Registration> {
        let end = addr.checked_add(size as u64).and_then(|end| end.checked_next_multiple_of(PAGE));
        let Some(end) = end.filter(|_| addr != 0 && size != 0) else {
            return Err(Error::argument(format!("{size} bytes at {addr:#x} cannot be registered")));
        };
        let start = addr & !(PAGE - 1);
        let source = match dmabuf {
            None => Source::Address,
            Some((fd, offset)) => {
                let offset = offset.checked_sub(addr - start).ok_or_else(|| {
                    Error::argument(format!(
                        "dma-buf offset {offset} does not suit address {addr:#x}: not page-aligned"
                    ))
                })?;
                Source::DmaBuf(fd, offset)
            }
        };
        let length = (end - start) as usize;
        let key = (start, length, kind);
        let known = self.lock().get(&key).and_then(Weak::upgrade);
        let region = match known {
            Some(region) => region,
            None => {
                // The lock is not held: registering can take milliseconds. Two threads may both register; both are right.
                // SAFETY: the caller keeps the memory mapped.
                let made =
                    unsafe { MemoryRegion::register(&self.domain, start, length, source, self.relaxed_ordering)? };
                let made = Arc::new(made);
                let mut regions = self.lock();
                regions.retain(|_, region| region.strong_count() > 0);
                regions.insert(key, Arc::downgrade(&made));
                made
            }
        };
        let (lkey, rkey) = (region.lkey(), region.rkey());
        Ok(Registration { _region: region, lkey, rkey, kind, start, size: end - start })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(u64, usize, MemoryKind), Weak<MemoryRegion>>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
