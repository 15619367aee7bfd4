//! NCCL's handle of registered memory: a memory region on every card of a device. It survives the
//! loss of a card, which gets another region when it is opened again.

#![allow(unsafe_code)]

use super::dma_buf::{DmaBuf, GivenDmaBuf};
use super::regions::{MemoryKind, MemoryRange, Name, SharedRegion, SharedRegions, whole_pages};
use crate::error::{Error, Result};
use crate::proto::MAX_RAILS;
use crate::proto::cts::KeysByRail;
use crate::verbs::prepared_write::DataSource;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Memory that is registered on every card of a device. Dropping it deregisters it on all of them.
#[derive(Debug)]
pub struct MrHandle {
    /// Keys for the peer's work requests.
    pub rkeys: RailKeys,
    /// Keys for local work requests.
    lkeys: RailKeys,
    /// The bounds of its whole pages.
    start: u64,
    end: u64,
    kind: MemoryKind,
    /// How a device reads a short message from it: inline, if the processor can read the memory.
    short: DataSource,
    /// `None` after deregistration.
    regions: Mutex<Option<Regions>>,
}

/// Keys of registered memory. The keys of a rail change when it uses a port of another card or its
/// own is opened again; no thread uses them at that time.
#[derive(Debug, Default)]
pub struct RailKeys([AtomicU32; MAX_RAILS]);

#[derive(Debug)]
struct Regions {
    addr: u64,
    size: usize,
    again: Reregistration,
    /// One region for each card.
    by_card: Vec<SharedRegion>,
}

/// How to register the memory again.
#[derive(Debug)]
enum Reregistration {
    /// By its address.
    Address,
    /// By this dma-buf.
    DmaBuf(Arc<DmaBuf>),
    /// Impossible: the descriptor of the dma-buf was not kept, and NCCL has closed its own.
    Never,
}

impl KeysByRail for RailKeys {
    #[inline(always)]
    fn of_rail(&self, rail: usize) -> u32 {
        self.0[rail % MAX_RAILS].load(Ordering::Relaxed)
    }
}

impl RailKeys {
    fn set(&self, rail: u8, key: u32) {
        self.0[usize::from(rail) % MAX_RAILS].store(key, Ordering::Relaxed);
    }

    /// All keys.
    pub fn all(&self) -> [u32; MAX_RAILS] {
        std::array::from_fn(|rail| self.of_rail(rail))
    }
}

impl MrHandle {
    /// Registers `size` bytes at `addr` in each of `cards`, through a dma-buf descriptor and
    /// offset if they are given. The descriptor may be closed afterwards. The dma-buf is kept if it
    /// `is_to_be_kept` and the process has a descriptor left. No rail has keys before
    /// [`Self::use_card`].
    ///
    /// # Errors
    /// `size` or `addr` is 0, or a card refuses; the memory is then registered on none. A dma-buf
    /// that is not kept needs at least one card.
    ///
    /// # Safety
    /// The memory stays mapped until the handle is closed or dropped.
    pub unsafe fn register<'a>(
        cards: impl IntoIterator<Item = &'a SharedRegions>,
        addr: u64,
        size: usize,
        kind: MemoryKind,
        dmabuf: Option<(RawFd, u64)>,
        is_to_be_kept: bool,
    ) -> Result<Self> {
        let MemoryRange { start, end, .. } = whole_pages(addr, size, kind)?;
        let given = dmabuf.map(|(fd, offset)| GivenDmaBuf::new(fd, addr, offset, is_to_be_kept));
        let name = given.as_ref().map_or(Name::Address, Name::Given);
        // SAFETY: the caller keeps the memory mapped.
        let register = |card: &SharedRegions| unsafe { card.register(addr, size, kind, name) };
        let by_card = cards.into_iter().map(register).collect::<Result<Vec<_>>>()?;
        let again = match &given {
            None => Reregistration::Address,
            Some(given) => {
                let kept = by_card
                    .iter()
                    .find_map(|region| region.dma_buf().cloned())
                    .or_else(|| given.kept());
                kept.map_or(Reregistration::Never, Reregistration::DmaBuf)
            }
        };
        if matches!(again, Reregistration::Never) && by_card.is_empty() {
            let text = "cannot be registered through a dma-buf while the device is lost: its descriptor cannot be kept";
            return Err(Error::system(format!("{size} bytes at {addr:#x} {text}")));
        }
        let regions = Mutex::new(Some(Regions { addr, size, again, by_card }));
        let (rkeys, lkeys) = (RailKeys::default(), RailKeys::default());
        let short = if kind == MemoryKind::Host { DataSource::INLINE } else { DataSource::MEMORY };
        Ok(Self { rkeys, lkeys, start, end, kind, short, regions })
    }

    /// Also registers the memory with `card`, unless it is registered there or NCCL has
    /// deregistered it. Drops registrations on lost devices.
    ///
    /// # Errors
    /// The card refuses, maybe temporarily; or as for [`Self::require_renewable`].
    pub fn extend(&self, card: &SharedRegions) -> Result<()> {
        // Locked meanwhile, since NCCL may free the memory once it has deregistered it.
        let mut regions = self.lock();
        let Some(Regions { addr, size, again, by_card }) = regions.as_mut() else { return Ok(()) };
        if by_card.iter().any(|region| region.is_of(card)) {
            return Ok(());
        }
        let name = match again {
            Reregistration::Address => Name::Address,
            Reregistration::DmaBuf(kept) => Name::Kept(kept),
            Reregistration::Never => return Err(closed(*addr, *size)),
        };
        by_card.retain(|region| !region.is_lost());
        // SAFETY: the memory is mapped until this is closed, which waits for the lock.
        let registered = unsafe { card.register(*addr, *size, self.kind, name) };
        by_card.push(registered.map_err(Error::recoverable)?);
        Ok(())
    }

    /// Checks that the memory can be registered again.
    ///
    /// # Errors
    /// It was registered through a dma-buf that could not be kept. The error is not
    /// [recoverable](crate::error::Detail::is_recoverable).
    pub fn require_renewable(&self) -> Result<()> {
        match self.lock().as_ref() {
            Some(Regions { addr, size, again: Reregistration::Never, .. }) => {
                Err(closed(*addr, *size))
            }
            _ => Ok(()),
        }
    }

    /// Gives rail number `rail` the keys that the memory has with `card`, or none if it is not
    /// registered there.
    pub fn use_card(&self, rail: u8, card: &SharedRegions) {
        let regions = self.lock();
        let by_card = regions.iter().flat_map(|regions| &regions.by_card);
        let (lkey, rkey) = { by_card }
            .find(|region| region.is_of(card))
            .map_or((0, 0), |region| (region.lkey(), region.rkey()));
        self.lkeys.set(rail, lkey);
        self.rkeys.set(rail, rkey);
    }

    /// Deregisters the memory on all cards.
    pub fn close(&self) {
        let regions = self.lock().take();
        drop(regions);
    }

    /// Whether `length` bytes at `addr` are inside, and the memory is registered.
    pub fn has(&self, addr: u64, length: u32) -> bool {
        self.covers(addr, length) && self.lock().is_some()
    }

    /// Checks that `length` bytes at `addr` are inside. Zero bytes are always inside: NCCL passes
    /// addresses past the end with them, which are not used.
    ///
    /// # Errors
    /// The bytes are outside.
    #[inline]
    pub fn require(&self, call: &str, addr: u64, length: u32) -> Result<()> {
        if self.covers(addr, length) { Ok(()) } else { outside(call, addr, length) }
    }

    /// [`Self::require`], but returns the address for the peer. For zero bytes elsewhere it is one
    /// that is inside, since a device may check it.
    ///
    /// # Errors
    /// The bytes are outside.
    #[inline]
    pub fn require_target(&self, call: &str, addr: u64, length: u32) -> Result<u64> {
        if self.covers(addr, length) {
            return Ok(addr);
        }
        self.require(call, addr, length).map(|()| self.start)
    }

    /// Whether `length` bytes at `addr` are inside. [`Self::require`] also accepts zero bytes
    /// elsewhere.
    #[inline]
    pub fn covers(&self, addr: u64, length: u32) -> bool {
        addr.checked_add(length.into()).is_some_and(|end| addr >= self.start && end <= self.end)
    }

    /// How a device reads a message of `length` bytes, where up to `inline_up_to` bytes can be
    /// inline.
    #[inline(always)]
    pub fn source(&self, length: u32, inline_up_to: u32) -> DataSource {
        if length <= inline_up_to { self.short } else { DataSource::MEMORY }
    }

    /// Kind of memory.
    pub fn kind(&self) -> MemoryKind {
        self.kind
    }

    /// Key for local work requests on rail number `rail`.
    #[inline]
    pub fn lkey(&self, rail: u8) -> u32 {
        self.lkeys.of_rail(usize::from(rail))
    }

    /// Keys for local work requests, by rail.
    pub fn lkeys(&self) -> [u32; MAX_RAILS] {
        self.lkeys.all()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Regions>> {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn closed(addr: u64, size: usize) -> Error {
    Error::system(format!(
        "the {size} bytes at {addr:#x} belong to a dma-buf that could not be kept, and NCCL has closed it"
    ))
}

#[cold]
#[inline(never)]
fn outside(call: &str, addr: u64, length: u32) -> Result<()> {
    let text = || format!("{call} of {length} bytes at {addr:#x}: outside the memory handle");
    if length == 0 { Ok(()) } else { Err(Error::argument(text())) }
}
