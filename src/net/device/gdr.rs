//! GPUDirect RDMA: whether devices can register a GPU's memory, and what is missing where none can.
//!
//! By address it takes a kernel module, which shows in sysfs in places that depend on its version, and even then a
//! device may refuse. So it is tried, where the process uses CUDA already; where not, sysfs is believed.

use super::nic::Nic;
use crate::error::{Error, Result};
use crate::host::cuda::{Cuda, GpuMemory};
use crate::host::sysfs;
use crate::verbs::memory::{MemoryRegion, ProtectionDomain, Source};
use std::cell::RefCell;
use std::sync::Arc;

/// What this machine and process have of it.
#[derive(Debug)]
pub struct Gdr {
    /// The kernel module that lends GPU memory by address, as sysfs names it.
    module: Option<&'static str>,
    cuda: Option<Cuda>,
    memory: Option<GpuMemory>,
    /// What the last card that refused said.
    refusal: RefCell<Option<Error>>,
}

impl Gdr {
    /// Looks around.
    pub fn look() -> Self {
        let cuda = Cuda::in_use();
        let memory = cuda.as_ref().and_then(Cuda::a_little_memory);
        Self { module: sysfs::peer_memory_module(), cuda, memory, refusal: RefCell::default() }
    }

    /// Whether the card of `domain` can register a GPU's memory by its address.
    pub fn works_by_address(&self, domain: &Arc<ProtectionDomain>) -> bool {
        let Some(memory) = self.memory else { return self.module.is_some() };
        match register(domain, memory) {
            Ok(()) => true,
            Err(e) => {
                log::debug!("GPU memory by address: {e}");
                *self.refusal.borrow_mut() = Some(e);
                false
            }
        }
    }

    /// Says once what is missing, if there are GPUs and none of `devices` can reach their memory.
    pub fn complain(&self, devices: &[Arc<Nic>]) {
        let lends = self.cuda.as_ref().and_then(Cuda::lends_dmabuf);
        let by_dmabuf = lends != Some(false) && devices.iter().any(|d| d.supports_dmabuf());
        let has_gpu = self.memory.is_some() || sysfs::has_nvidia_gpu();
        if devices.is_empty() || !has_gpu || by_dmabuf || devices.iter().any(|d| d.supports_peer_memory()) {
            return;
        }
        let knows_dmabuf = devices.iter().flat_map(|d| &d.cards).any(|card| card.context.knows_dmabuf());
        let refusal = self.refusal.borrow();
        let by_address = lack_by_address(self.module, refusal.as_ref().map(|e| e.text.as_str()));
        log::warn!(
            "no GPUDirect RDMA: messages of GPUs take a detour through host memory. By address: {by_address}. By dma-buf: {}",
            lack_by_dmabuf(knows_dmabuf, lends)
        );
    }
}

/// Registers and deregisters.
fn register(domain: &Arc<ProtectionDomain>, memory: GpuMemory) -> Result<()> {
    let GpuMemory { addr, bytes } = memory;
    // SAFETY: such memory is never freed.
    unsafe { MemoryRegion::register(domain, addr, bytes, Source::Address, false) }.map(drop)
}

fn lack_by_address(module: Option<&str>, refusal: Option<&str>) -> String {
    match (module, refusal) {
        (None, _) => "no kernel module lends GPU memory (modprobe nvidia-peermem, on the host)".into(),
        (Some(module), Some(refusal)) => format!(
            "{module} is loaded, but {refusal} (was it loaded before the RDMA drivers, or built without them? reload it)"
        ),
        (Some(module), None) => format!("{module} is loaded"),
    }
}

fn lack_by_dmabuf(knows_dmabuf: bool, lends: Option<bool>) -> &'static str {
    match (knows_dmabuf, lends) {
        (false, _) => "this libibverbs knows nothing of it (rdma-core 34 or newer does)",
        (true, Some(false)) => "the GPU driver does not lend it (NVIDIA's open kernel modules, 515 or newer, do)",
        (true, _) => "kernel or driver of the RDMA device do not take it (Linux 5.12 or newer with mlx5 does)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_has_a_name_and_a_remedy() {
        assert!(lack_by_address(None, Some("x")).contains("modprobe nvidia-peermem"));
        assert!(lack_by_address(Some("nvidia-peermem"), Some("Bad address")).contains("is loaded, but Bad address"));
        let lacks = [(false, None), (true, Some(false)), (true, Some(true))].map(|(k, l)| lack_by_dmabuf(k, l));
        for (lack, words) in lacks.iter().zip(["rdma-core 34", "open kernel modules", "Linux 5.12"]) {
            assert!(lack.contains(words), "{lack}");
        }
    }
}
