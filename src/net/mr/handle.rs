//! What NCCL holds for registered memory: a registration on every card of the device.

use super::cache::{CachedMr, MemoryKind};
use crate::error::Result;
use crate::net::device::nic::Nic;
use crate::proto::MAX_RAILS;
use std::os::fd::RawFd;

/// Memory that all rails of a device may reach. Dropping it gives it back on every card.
#[derive(Debug)]
pub struct MrHandle {
    /// Keys for the peer, by rail.
    pub rkeys: [u32; MAX_RAILS],
    /// Keys for local use, by rail.
    lkeys: [u32; MAX_RAILS],
    first: CachedMr,
    // Kept for as long as NCCL holds this.
    _others: Box<[CachedMr]>,
}

impl MrHandle {
    /// Registers `size` bytes at `addr` on every card of `nic`, by a dma-buf descriptor and offset if there is one. The
    /// descriptor may be closed afterwards.
    ///
    /// # Errors
    /// Nothing to register, or a card refuses; then nothing is registered on the others either.
    ///
    /// # Safety
    /// The memory stays mapped until this is dropped.
    pub unsafe fn register(
        nic: &Nic,
        addr: u64,
        size: usize,
        kind: MemoryKind,
        dmabuf: Option<(RawFd, u64)>,
    ) -> Result<Self> {
        // SAFETY: as the caller says.
        let mut on = nic.cards.iter().map(|card| unsafe { card.regions.register(addr, size, kind, dmabuf) });
        let first = on.next().unwrap_or_else(|| Err(no_card()))?;
        let others = on.collect::<Result<Box<[_]>>>()?;
        let keys = |rail| {
            let card = nic.card_of(rail);
            let registration = card.checked_sub(1).and_then(|other| others.get(other)).unwrap_or(&first);
            (registration.lkey, registration.rkey)
        };
        let (mut lkeys, mut rkeys) = ([0; MAX_RAILS], [0; MAX_RAILS]);
        for (rail, (lkey, rkey)) in lkeys.iter_mut().zip(&mut rkeys).enumerate().take(nic.rails.len()) {
            (*lkey, *rkey) = keys(rail);
        }
        Ok(Self { rkeys, lkeys, first, _others: others })
    }

    /// Checks that `length` bytes at `addr` are inside; no bytes are.
    ///
    /// # Errors
    /// They are not.
    #[inline]
    pub fn require(&self, call: &str, addr: u64, length: u32) -> Result<()> {
        self.first.require(call, addr, length)
    }

    /// Where the memory lives.
    pub fn kind(&self) -> MemoryKind {
        self.first.kind
    }

    /// Key for local use on rail number `rail`.
    #[inline]
    pub fn lkey(&self, rail: u8) -> u32 {
        self.lkeys[usize::from(rail) % MAX_RAILS]
    }
}

fn no_card() -> crate::error::Error {
    crate::error::Error::internal("a device without a card")
}
