//! The memory regions of a card, shared by all of its connections.

#![allow(unsafe_code)]

use super::dma_buf::{DmaBuf, GivenDmaBuf};
use super::table::MrTable;
use crate::error::{Error, Result};
use crate::verbs::memory::{MemoryRegion, ProtectionDomain, Source};
use std::sync::Arc;

pub use super::table::{MemoryKind, MemoryRange};

/// A registered range of memory on one card. Dropping it deregisters the range. Its region may serve
/// other ranges too.
#[derive(Debug)]
pub struct SharedRegion {
    table: Arc<MrTable<Registered>>,
    range: MemoryRange,
    registered: Arc<Registered>,
}

/// A memory region, and the dma-buf that it was registered through, if kept.
#[derive(Debug)]
struct Registered {
    region: MemoryRegion,
    dma_buf: Option<Arc<DmaBuf>>,
}

/// How to identify memory to the device for registration.
#[derive(Debug, Clone, Copy)]
pub enum Name<'a> {
    /// By its address.
    Address,
    /// By a dma-buf from NCCL.
    Given(&'a GivenDmaBuf),
    /// By a kept dma-buf.
    Kept(&'a Arc<DmaBuf>),
}

impl SharedRegion {
    /// Key for local work requests.
    pub fn lkey(&self) -> u32 {
        self.registered.region.lkey()
    }

    /// Key for the peer's work requests.
    pub fn rkey(&self) -> u32 {
        self.registered.region.rkey()
    }

    /// The dma-buf that it was registered through, if it was and that is kept.
    pub fn dma_buf(&self) -> Option<&Arc<DmaBuf>> {
        self.registered.dma_buf.as_ref()
    }

    /// Whether its device is lost.
    pub fn is_lost(&self) -> bool {
        self.registered.region.is_lost()
    }

    /// Whether it is one of `regions`.
    pub fn is_of(&self, regions: &SharedRegions) -> bool {
        Arc::ptr_eq(&self.table, &regions.table)
    }
}

impl Drop for SharedRegion {
    fn drop(&mut self) {
        self.table.release(self.range);
    }
}

/// The memory regions in use: NCCL registers the same buffers, and parts of them, repeatedly.
///
/// A region lives as long as a [`SharedRegion`] that it serves. It is not kept longer, since the same
/// addresses may then be other memory.
#[derive(Debug)]
pub struct SharedRegions {
    domain: Arc<ProtectionDomain>,
    relaxed_ordering: bool,
    table: Arc<MrTable<Registered>>,
}

const PAGE: u64 = 4096;

impl SharedRegions {
    /// None yet, in `domain`.
    pub fn new(domain: &Arc<ProtectionDomain>, relaxed_ordering: bool) -> Self {
        Self { domain: Arc::clone(domain), relaxed_ordering, table: Arc::default() }
    }

    /// Registers the pages of `size` bytes at `addr`, identified as the last argument says. A given
    /// descriptor may be closed afterwards.
    ///
    /// # Errors
    /// As for [`whole_pages`], or the device refuses.
    ///
    /// # Safety
    /// The memory stays mapped until the last [`SharedRegion`] of it is dropped.
    pub unsafe fn register(
        &self,
        addr: u64,
        size: usize,
        kind: MemoryKind,
        name: Name<'_>,
    ) -> Result<SharedRegion> {
        let range = whole_pages(addr, size, kind)?;
        let descriptor = match name {
            Name::Address => None,
            Name::Given(given) => Some(given.descriptor()),
            Name::Kept(kept) => Some(kept.at(addr)),
        };
        let source = match descriptor {
            None => Source::Address,
            Some((fd, offset)) => Source::DmaBuf(fd, whole_page_offset(addr, offset)?),
        };
        let MemoryRange { start, end, .. } = range;
        let make = || {
            // SAFETY: the caller of `register` keeps the memory mapped.
            let region = unsafe {
                MemoryRegion::register(
                    &self.domain,
                    start,
                    (end - start) as usize,
                    source,
                    self.relaxed_ordering,
                )
            }?;
            let dma_buf = match name {
                Name::Address => None,
                Name::Given(given) => given.kept(),
                Name::Kept(kept) => Some(Arc::clone(kept)),
            };
            Ok(Registered { region, dma_buf })
        };
        let registered = self.table.acquire(range, make)?;
        Ok(SharedRegion { table: Arc::clone(&self.table), range, registered })
    }
}

/// The pages of `size` bytes at `addr`.
///
/// # Errors
/// There are no bytes, or the address is NULL.
pub fn whole_pages(addr: u64, size: usize, kind: MemoryKind) -> Result<MemoryRange> {
    let end = addr.checked_add(size as u64).and_then(|end| end.checked_next_multiple_of(PAGE));
    match end.filter(|_| addr != 0 && size != 0) {
        Some(end) => Ok(MemoryRange { kind, start: addr & !(PAGE - 1), end }),
        None => Err(Error::argument(format!("cannot register {size} bytes at {addr:#x}"))),
    }
}

/// The offset in a dma-buf of the page that contains `addr`, where `addr` itself is at `offset`.
///
/// # Errors
/// The offset of the page is not a multiple of the page size.
fn whole_page_offset(addr: u64, offset: u64) -> Result<u64> {
    offset.checked_sub(addr & (PAGE - 1)).filter(|offset| offset.is_multiple_of(PAGE)).ok_or_else(
        || {
            Error::argument(format!(
                "dma-buf offset {offset} does not fit address {addr:#x}: it is not page-aligned"
            ))
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_ranges_are_whole_pages() {
        let pages =
            |addr, size| whole_pages(addr, size, MemoryKind::Host).ok().map(|r| (r.start, r.end));
        assert_eq!(pages(0x5001, 1), Some((0x5000, 0x6000)));
        assert_eq!(pages(0x5fff, 2), Some((0x5000, 0x7000)));
        assert_eq!(pages(0x5000, 0x1000), Some((0x5000, 0x6000)));
        assert_eq!((pages(0x5000, 0), pages(0, 8), pages(u64::MAX - 8, 8)), (None, None, None));
    }

    #[test]
    fn the_dma_buf_offset_is_that_of_the_page_of_the_address() {
        assert_eq!(whole_page_offset(0x5000, 0x2000), Ok(0x2000));
        assert_eq!(whole_page_offset(0x5010, 0x2010), Ok(0x2000));
        assert_eq!(whole_page_offset(0x5000, 0), Ok(0));
        for (addr, offset) in [(0x5010, 0), (0x5000, 0x10), (0x5010, 0x2000)] {
            assert!(
                whole_page_offset(addr, offset)
                    .expect_err("refused")
                    .text()
                    .contains("not page-aligned")
            );
        }
    }
}
