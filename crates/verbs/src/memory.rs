//! Protection domains and memory regions.

use super::context::Context;
use super::{create, sys};
use crate::error::{Error, Result};
use std::os::fd::RawFd;
use std::sync::Arc;

/// A protection domain: queue pairs can only access the memory regions of their own domain.
#[derive(Debug)]
pub struct ProtectionDomain {
    raw: *mut sys::ibv_pd,
    pub(super) context: Arc<Context>,
}

// SAFETY: libibverbs locks inside; a protection domain may be used by any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// Allocates a domain on `context`.
    ///
    /// # Errors
    /// The device has no more domains.
    pub fn new(context: &Arc<Context>) -> Result<Arc<Self>> {
        let operation = format_args!("ibv_alloc_pd({})", context.name());
        // SAFETY: the context is open.
        let raw = create::create(operation, 0, || unsafe {
            (context.library.ibv_alloc_pd)(context.raw())
        })?;
        Ok(Arc::new(Self { raw, context: Arc::clone(context) }))
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_pd {
        self.raw
    }

    /// Whether the device can register dma-bufs. Tests it with an invalid descriptor: only a device
    /// that cannot fails with `EOPNOTSUPP`.
    pub fn supports_dmabuf(&self) -> bool {
        let Some(register) = self.context.library.ibv_reg_dmabuf_mr else { return false };
        // SAFETY: the domain is live; no descriptor is -1, so nothing is registered.
        match create::try_create(|| unsafe { register(self.raw, 0, 0, 0, -1, 0) }) {
            Ok(mr) => {
                // SAFETY: just registered, and unused.
                unsafe { (self.context.library.ibv_dereg_mr)(mr) };
                true
            }
            Err(error) => ![libc::EOPNOTSUPP, libc::EPROTONOSUPPORT].contains(&error.errno()),
        }
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: allocated by us, released once; everything made from it holds an Arc and is gone.
        let rc = unsafe { (self.context.library.ibv_dealloc_pd)(self.raw) };
        self.context.handle_released("ibv_dealloc_pd", rc);
    }
}

/// How to identify memory to the device for registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// By address: host memory, or GPU memory through a peer-memory driver.
    Address,
    /// By a dma-buf descriptor and an offset in it, in bytes.
    DmaBuf(RawFd, u64),
}

/// A memory region: memory that the device may access, and that peers may write and read.
#[derive(Debug)]
pub struct MemoryRegion {
    raw: *mut sys::ibv_mr,
    lkey: u32,
    rkey: u32,
    domain: Arc<ProtectionDomain>,
}

// SAFETY: a region is only read (its keys) until it is dropped.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above.
unsafe impl Sync for MemoryRegion {}

const ACCESS: u32 =
    sys::IBV_ACCESS_LOCAL_WRITE | sys::IBV_ACCESS_REMOTE_WRITE | sys::IBV_ACCESS_REMOTE_READ;
const ACCESS_RELAXED_ORDERING: u32 = sys::IBV_ACCESS_RELAXED_ORDERING;

impl MemoryRegion {
    /// Registers `length` bytes at `addr`. Peers use `addr` also for a dma-buf. With `relaxed` the
    /// device may reorder its writes on the bus; a libibverbs older than 1.8 does not support that,
    /// and registers without.
    ///
    /// # Errors
    /// The memory cannot be registered. The text mentions the limit of locked memory if that is the
    /// likely cause.
    ///
    /// # Safety
    /// The memory belongs to the caller and stays mapped until the region is dropped.
    pub unsafe fn register(
        domain: &Arc<ProtectionDomain>,
        addr: u64,
        length: usize,
        source: Source,
        relaxed: bool,
    ) -> Result<Self> {
        let library = &domain.context.library;
        let mut access = ACCESS;
        let place = addr as *mut libc::c_void;
        let (what, raw) = match (source, library.ibv_reg_mr_iova2, library.ibv_reg_dmabuf_mr) {
            (Source::DmaBuf(fd, offset), _, Some(register)) => {
                access |= if relaxed { ACCESS_RELAXED_ORDERING } else { 0 };
                // SAFETY: the domain is live; the descriptor is checked by the kernel.
                let call =
                    || unsafe { register(domain.raw, offset, length, addr, fd, access as i32) };
                ("ibv_reg_dmabuf_mr", create::try_create(call))
            }
            (Source::DmaBuf(..), _, None) => {
                return Err(Error::os(
                    "ibv_reg_dmabuf_mr (libibverbs is older than 1.12)",
                    libc::EOPNOTSUPP,
                ));
            }
            (Source::Address, Some(register), _) if relaxed => {
                access |= ACCESS_RELAXED_ORDERING;
                // SAFETY: the domain is live; the memory belongs to the caller, by contract.
                let call = || unsafe { register(domain.raw, place, length, addr, access) };
                ("ibv_reg_mr_iova2", create::try_create(call))
            }
            (Source::Address, ..) => {
                // SAFETY: as above.
                let call =
                    || unsafe { (library.ibv_reg_mr)(domain.raw, place, length, access as i32) };
                ("ibv_reg_mr", create::try_create(call))
            }
        };
        let name = domain.context.name();
        let operation = format_args!("{what} of {length} bytes at {addr:#x} on {name}");
        let raw = raw.map_err(|error| explain(error.explain(operation, length as u64)))?;
        // SAFETY: not NULL, so a live region whose keys may be read.
        let (lkey, rkey) = unsafe { ((*raw).lkey, (*raw).rkey) };
        Ok(Self { raw, lkey, rkey, domain: Arc::clone(domain) })
    }

    /// Whether it is registered in `domain`.
    pub fn is_in(&self, domain: &Arc<ProtectionDomain>) -> bool {
        Arc::ptr_eq(&self.domain, domain)
    }

    /// Whether its device is lost.
    pub fn is_lost(&self) -> bool {
        self.domain.context.has_failed()
    }

    /// Key for local work requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Key for the peer's work requests.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }
}

/// `error` of a registration, with likely causes besides the limit of locked memory.
#[cold]
fn explain(error: Error) -> Error {
    match error.errno {
        _ if !error.context.is_empty() => error,
        Some(libc::ENOMEM) => error.context(
            "likely: the device has no room for more memory regions (max_mr), or the IOMMU or \
             contiguous memory is full (CmaFree in /proc/meminfo, `dmesg`)",
        ),
        Some(libc::EPERM | libc::EACCES) => error.context(
            "likely: the kernel forbids it to this process: seccomp or the capabilities of the container, or RLIMIT_MEMLOCK=0 \
             (`ulimit -l`)",
        ),
        _ => error,
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: registered by us, released once.
        let rc = unsafe { (self.domain.context.library.ibv_dereg_mr)(self.raw) };
        self.domain.context.handle_released("ibv_dereg_mr", rc);
    }
}
