//! The checks of the keys that name memory regions.

use std::sync::atomic::Ordering::Relaxed;

use crate::abi::consts::access;
use crate::copy::piece::Piece;
use crate::process::fabric::Fabric;

/// Memory that a key has been found to allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemRef {
    /// Address in the process that owns it.
    pub(crate) addr: u64,
    pub(crate) is_relaxed: bool,
    /// See `MrSlot::gpu`.
    pub(crate) gpu: u32,
}

impl MemRef {
    /// `len` bytes there, which `key` allows.
    #[inline]
    pub(crate) fn piece(&self, key: u32, len: u64) -> Piece {
        Piece { addr: self.addr, len, key, gpu: self.gpu }
    }
}

/// A key does not allow the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forbidden;

/// Checks that `key` of `device` and `pd` allows `need` on `[at, at + length)`; returns where that is.
#[inline]
pub(crate) fn resolve(
    fabric: &Fabric,
    (device, pd): (usize, u32),
    key: u32,
    (at, length): (u64, u64),
    need: u32,
) -> Result<MemRef, Forbidden> {
    let mr = fabric.find_mr(device, key).ok_or(Forbidden)?;
    let offset = at.wrapping_sub(mr.iova.load(Relaxed));
    let size = mr.length.load(Relaxed);
    let fits = offset <= size && length <= size - offset;
    let flags = mr.access.load(Relaxed);
    if !fits || mr.pd.load(Relaxed) != pd || flags & need != need {
        return Err(Forbidden);
    }
    let is_relaxed = flags & access::RELAXED_ORDERING != 0;
    Ok(MemRef { addr: mr.addr.load(Relaxed) + offset, is_relaxed, gpu: mr.gpu.load(Relaxed) })
}
