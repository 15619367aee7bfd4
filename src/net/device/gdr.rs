//! GPUDirect RDMA: whether cards can register GPU memory, and what is missing if none can.
//!
//! Registration by address needs a kernel module, and a card may refuse it even so. If the process
//! already uses CUDA, a test registration decides. If not, the presence of the module in sysfs must
//! suffice.

#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::host::cuda::{Cuda, GpuMemory};
use crate::host::sysfs;
use crate::verbs::memory::{MemoryRegion, ProtectionDomain, Source};
use std::cell::RefCell;
use std::sync::Arc;

/// What the machine and the process offer for GPUDirect RDMA.
#[derive(Debug)]
pub struct Gdr {
    /// The kernel module for registration by address, as sysfs names it.
    module: Option<&'static str>,
    cuda: Option<Cuda>,
    /// Memory for the test registration.
    memory: Option<GpuMemory>,
    /// The error of the last card that failed the test registration.
    error: RefCell<Option<Error>>,
}

impl Gdr {
    /// Looks up the kernel module and the CUDA driver.
    pub fn detect() -> Self {
        let cuda = Cuda::in_use();
        let memory = cuda.as_ref().and_then(Cuda::allocate_probe_memory);
        Self { module: sysfs::peer_memory_module(), cuda, memory, error: RefCell::default() }
    }

    /// Whether the card of `domain` can register GPU memory by address.
    pub fn works_by_address(&self, domain: &Arc<ProtectionDomain>) -> bool {
        let Some(memory) = self.memory else { return self.module.is_some() };
        match register(domain, memory) {
            Ok(()) => true,
            Err(e) => {
                log::debug!("GPU memory by address: {e}");
                *self.error.borrow_mut() = Some(e);
                false
            }
        }
    }

    /// Logs what is missing if there are GPUs and the devices cannot access their memory
    /// (`devices`).
    pub fn warn_if_missing(&self, devices: GdrSupport) {
        let exports = self.cuda.as_ref().and_then(Cuda::exports_dmabuf);
        let by_dmabuf = exports != Some(false) && devices.dmabuf;
        let has_gpu = self.memory.is_some() || sysfs::has_nvidia_gpu();
        if !has_gpu || by_dmabuf || devices.by_address {
            return;
        }
        let error = self.error.borrow();
        let by_address =
            missing_by_address(self.module, error.as_ref().map(Error::text).as_deref());
        log::warn!(
            "no GPUDirect RDMA: GPU messages are copied through host memory. By address: {by_address}. By dma-buf: {}",
            missing_by_dmabuf(devices.knows_dmabuf, exports)
        );
    }
}

/// What the devices of a process support.
#[derive(Debug, Clone, Copy)]
pub struct GdrSupport {
    /// One registers GPU memory by address.
    pub by_address: bool,
    /// One registers dma-bufs.
    pub dmabuf: bool,
    /// libibverbs has the function that registers dma-bufs.
    pub knows_dmabuf: bool,
}

/// Registers `memory` and deregisters it again.
fn register(domain: &Arc<ProtectionDomain>, memory: GpuMemory) -> Result<()> {
    let GpuMemory { addr, bytes } = memory;
    // SAFETY: probe memory is never freed.
    unsafe { MemoryRegion::register(domain, addr, bytes, Source::Address, false) }?;
    Ok(())
}

fn missing_by_address(module: Option<&str>, error: Option<&str>) -> String {
    match (module, error) {
        (None, _) => {
            "no kernel module lets RDMA devices register GPU memory by address (modprobe nvidia-peermem, on the host)"
                .into()
        }
        (Some(module), Some(error)) => format!(
            "{module} is loaded, but {error}. Reload it after the RDMA drivers; or it was built without them"
        ),
        (Some(module), None) => format!("{module} is loaded"),
    }
}

fn missing_by_dmabuf(knows_dmabuf: bool, exports: Option<bool>) -> &'static str {
    match (knows_dmabuf, exports) {
        (false, _) => "this libibverbs does not support it (rdma-core 34 or newer does)",
        (true, Some(false)) => {
            "the GPU driver does not export it (NVIDIA's open kernel modules, 515 or newer, do)"
        }
        (true, _) => {
            "the kernel or the RDMA driver does not import it (Linux 5.12 or newer with mlx5 does)"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_a_remedy() {
        assert!(missing_by_address(None, Some("x")).contains("modprobe nvidia-peermem"));
        assert!(
            missing_by_address(Some("nvidia-peermem"), Some("Bad address"))
                .contains("is loaded, but Bad address")
        );
        let missing = [(false, None), (true, Some(false)), (true, Some(true))]
            .map(|(k, l)| missing_by_dmabuf(k, l));
        for (text, words) in
            missing.iter().zip(["rdma-core 34", "open kernel modules", "Linux 5.12"])
        {
            assert!(text.contains(words), "{text}");
        }
    }
}
