//! The handle that NCCL holds for registered memory: a memory region on every card of a device.

use super::cache::{CachedMr, MemoryKind, MrCache};
use crate::error::{Error, Result};
use crate::proto::MAX_RAILS;
use std::os::fd::RawFd;

/// Memory that is registered on every card of a device. Dropping it deregisters it on all of them.
#[derive(Debug)]
pub struct MrHandle {
    /// Keys for the peer's work requests, by rail.
    pub rkeys: [u32; MAX_RAILS],
    /// Keys for local work requests, by rail.
    lkeys: [u32; MAX_RAILS],
    first: CachedMr,
    // Held as long as NCCL holds the handle.
    _others: Box<[CachedMr]>,
}

impl MrHandle {
    /// Registers `size` bytes at `addr` in each of `caches`, by a dma-buf descriptor and offset if they are given. The
    /// descriptor may be closed afterwards. `cache_of_rail` has, for each rail, the index of its card's cache.
    ///
    /// # Errors
    /// `size` or `addr` is 0, or a card refuses. Then the memory is registered on none.
    ///
    /// # Safety
    /// The memory stays mapped until the handle is dropped.
    pub unsafe fn register<'a>(
        caches: impl IntoIterator<Item = &'a MrCache>,
        cache_of_rail: impl Iterator<Item = usize>,
        addr: u64,
        size: usize,
        kind: MemoryKind,
        dmabuf: Option<(RawFd, u64)>,
    ) -> Result<Self> {
        // SAFETY: as the caller says.
        let register = |cache: &MrCache| unsafe { cache.register(addr, size, kind, dmabuf) };
        let mut regions = caches.into_iter().map(register);
        let first = regions.next().unwrap_or_else(|| Err(Error::internal("a device without a card")))?;
        let others = regions.collect::<Result<Box<[_]>>>()?;
        let (mut lkeys, mut rkeys) = ([0; MAX_RAILS], [0; MAX_RAILS]);
        for ((lkey, rkey), cache) in lkeys.iter_mut().zip(&mut rkeys).zip(cache_of_rail) {
            let region = cache.checked_sub(1).and_then(|other| others.get(other)).unwrap_or(&first);
            (*lkey, *rkey) = (region.lkey, region.rkey);
        }
        Ok(Self { rkeys, lkeys, first, _others: others })
    }

    /// Checks that `length` bytes at `addr` are inside, as [`CachedMr::require`].
    ///
    /// # Errors
    /// The bytes are outside.
    #[inline]
    pub fn require(&self, call: &str, addr: u64, length: u32) -> Result<()> {
        self.first.require(call, addr, length)
    }

    /// Kind of memory.
    pub fn kind(&self) -> MemoryKind {
        self.first.kind
    }

    /// Key for local work requests on rail number `rail`.
    #[inline]
    pub fn lkey(&self, rail: u8) -> u32 {
        self.lkeys[usize::from(rail) % MAX_RAILS]
    }
}
