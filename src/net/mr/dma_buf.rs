//! The dma-buf that memory was registered through. It is a duplicate of NCCL's descriptor, which
//! NCCL closes. With it the memory is registered again ([`crate::verbs::memory`]) on a returned or
//! another card.

use crate::error::Result;
use crate::net::control::fork::CloseOnFork;
use crate::verbs::dma_buf::duplicate;
use std::cell::OnceCell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Once};

/// A dma-buf with its own descriptor. There is one for each memory region that was registered
/// through a dma-buf, as long as NCCL keeps it registered.
#[derive(Debug)]
pub struct DmaBuf {
    // Declared first, to be dropped before the descriptor is closed. A forked child does not keep
    // the GPU memory.
    _unshared: CloseOnFork,
    fd: OwnedFd,
    /// An address in the memory, and its offset in the dma-buf.
    addr: u64,
    offset: u64,
}

/// The dma-buf that NCCL passes for a registration.
#[derive(Debug)]
pub struct GivenDmaBuf {
    fd: RawFd,
    /// The registered address, and its offset in the dma-buf.
    addr: u64,
    offset: u64,
    /// Whether to keep it.
    is_wanted: bool,
    kept: OnceCell<Option<Arc<DmaBuf>>>,
}

impl DmaBuf {
    /// Its descriptor, and the offset of `addr` in it.
    pub fn at(&self, addr: u64) -> (RawFd, u64) {
        (self.fd.as_raw_fd(), self.offset.wrapping_add(addr.wrapping_sub(self.addr)))
    }
}

impl GivenDmaBuf {
    /// The dma-buf with descriptor `fd`, where `addr` is at `offset`. It is kept if `is_wanted`.
    pub fn new(fd: RawFd, addr: u64, offset: u64, is_wanted: bool) -> Self {
        Self { fd, addr, offset, is_wanted, kept: OnceCell::new() }
    }

    /// Its descriptor, and the offset of the address in it.
    pub fn descriptor(&self) -> (RawFd, u64) {
        (self.fd, self.offset)
    }

    /// A duplicate with its own descriptor. `None`: it is not wanted, or the process already has
    /// half as many descriptors as it may have.
    pub fn kept(&self) -> Option<Arc<DmaBuf>> {
        static WARNED: Once = Once::new();
        let keep = || {
            let warn = |e| {
                WARNED.call_once(|| {
                    log::warn!(
                        "cannot keep the dma-buf of registered GPU memory: {e} (ulimit -n limits descriptors). A connection with this \
                         memory ends if it loses its only card, and does not return to one of several"
                    );
                });
            };
            self.is_wanted.then(|| self.duplicate().map_err(warn).ok())?.map(Arc::new)
        };
        self.kept.get_or_init(keep).clone()
    }

    fn duplicate(&self) -> Result<DmaBuf> {
        let fd = duplicate(self.fd)?;
        Ok(DmaBuf {
            _unshared: CloseOnFork::new(fd.as_raw_fd()),
            fd,
            addr: self.addr,
            offset: self.offset,
        })
    }
}
