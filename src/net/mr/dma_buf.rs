//! The dma-buf that memory was registered by: a descriptor of this process's own, since NCCL closes the one that it has given. With it
//! the memory is registered again on a card that was lost and is back, or on another card.

use crate::error::Result;
use crate::net::control::fork::Unshared;
use crate::verbs::dma_buf::duplicate;
use std::cell::OnceCell;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Once};

/// A dma-buf whose descriptor is this process's own. There is one for each memory region that was registered by a dma-buf, as long as
/// NCCL has that registered.
#[derive(Debug)]
pub struct DmaBuf {
    // Declared first: it goes before the descriptor is closed. A forked child does not keep the memory of the GPU.
    _unshared: Unshared,
    fd: OwnedFd,
    /// An address in the memory, and where that is in the dma-buf.
    addr: u64,
    offset: u64,
}

/// The dma-buf that NCCL gives for a registration.
#[derive(Debug)]
pub struct GivenDmaBuf {
    fd: RawFd,
    /// The address that is registered, and where that is in the dma-buf.
    addr: u64,
    offset: u64,
    /// Whether it is to be kept.
    is_wanted: bool,
    kept: OnceCell<Option<Arc<DmaBuf>>>,
}

impl DmaBuf {
    /// Its descriptor, and where `addr` is in it.
    pub fn at(&self, addr: u64) -> (RawFd, u64) {
        (self.fd.as_raw_fd(), self.offset.wrapping_add(addr.wrapping_sub(self.addr)))
    }
}

impl GivenDmaBuf {
    /// The dma-buf with descriptor `fd`, in which `addr` is at `offset`. It is kept if that `is_wanted`.
    pub fn new(fd: RawFd, addr: u64, offset: u64, is_wanted: bool) -> Self {
        Self { fd, addr, offset, is_wanted, kept: OnceCell::new() }
    }

    /// Its descriptor, and where the address is in it.
    pub fn descriptor(&self) -> (RawFd, u64) {
        (self.fd, self.offset)
    }

    /// The same by a descriptor of this process's own. `None`: that is not wanted, or the process has half of the descriptors that it may have.
    pub fn kept(&self) -> Option<Arc<DmaBuf>> {
        static WARNED: Once = Once::new();
        let keep = || {
            let warn = |e| {
                WARNED.call_once(|| {
                    log::warn!(
                        "the dma-buf of registered GPU memory cannot be kept: {e}; a connection with such memory ends if it loses its only \
                         card, and does not go back to one of several (ulimit -n is the limit of descriptors)"
                    );
                });
            };
            self.is_wanted.then(|| self.duplicate().map_err(warn).ok())?.map(Arc::new)
        };
        self.kept.get_or_init(keep).clone()
    }

    fn duplicate(&self) -> Result<DmaBuf> {
        let fd = duplicate(self.fd)?;
        Ok(DmaBuf { _unshared: Unshared::new(fd.as_raw_fd()), fd, addr: self.addr, offset: self.offset })
    }
}
