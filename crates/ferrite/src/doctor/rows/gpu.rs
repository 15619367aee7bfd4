//! GPUs, and how RDMA devices reach their memory.

use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::machine::Machine;
use crate::doctor::pci;
use crate::doctor::row::Row;

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "gpu",
        what: "GPUs of NVIDIA have their driver, their files /dev/nvidia*, and libcuda.so.1",
        why: "without one of them CUDA does not start in this container",
        cure: "the driver on the host; docker run --gpus all (NVIDIA's container toolkit), or the device plugin of Kubernetes",
        look: gpu,
    },
    Row {
        name: "gpu-memory",
        what: "RDMA devices can register GPU memory: by address (nvidia-peermem) or by dma-buf (Linux 5.12, NVIDIA's open kernel \
               modules, a device that takes them). By what the machine shows; CUDA is not started",
        why: "otherwise messages of GPUs take a detour through host memory",
        cure: "modprobe nvidia-peermem on the host, after the RDMA drivers; or NVIDIA's open kernel modules, 515 or newer",
        look: gpu_memory,
    },
];

fn gpu(machine: &Machine) -> Vec<Finding> {
    let root = &machine.root;
    let (on_bus, of_driver) = (pci::gpus(root).len(), root.names("/proc/driver/nvidia/gpus").len());
    if on_bus + of_driver == 0 {
        return vec![Finding::unknown("", "no NVIDIA GPU is seen")];
    }
    if of_driver == 0 {
        return vec![Finding::warn(
            "",
            format!("{on_bus} GPUs on the bus, and no driver (/proc/driver/nvidia is empty or missing)"),
        )];
    }
    let is_gpu = |name: &String| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let nodes = root.names("/dev").iter().filter(|name| is_gpu(name)).count();
    if nodes == 0 {
        return vec![Finding::warn("", format!("the driver has {of_driver} GPUs, and there is no /dev/nvidia0"))];
    }
    if machine.loader().places("libcuda.so.1").is_empty() {
        return vec![Finding::warn("", format!("{nodes} GPUs, and no libcuda.so.1 where the loader looks"))];
    }
    vec![Finding::ok("", format!("{nodes} of the {of_driver} GPUs that the driver has"))]
}

/// Where the kernel shows a module that lets RDMA devices register GPU memory by address.
const BY_ADDRESS: [&str; 4] = [
    "/sys/module/nvidia_peermem",
    "/sys/kernel/mm/memory_peers/nvidia-peermem",
    "/sys/kernel/mm/memory_peers/nv_mem",
    "/sys/kernel/mm/memory_peers/nv_mem_nc",
];

fn gpu_memory(machine: &Machine) -> Vec<Finding> {
    let root = &machine.root;
    if pci::gpus(root).is_empty() && root.names("/proc/driver/nvidia/gpus").is_empty() {
        return vec![Finding::unknown("", "no NVIDIA GPU is seen")];
    }
    let by_address = BY_ADDRESS.iter().any(|path| root.exists(path));
    let kernel = root.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let driver = root.text("/proc/driver/nvidia/version").unwrap_or_default();
    let takes = machine.verbs().is_ok_and(|facts| facts.devices.iter().any(|device| device.takes_dmabuf));
    let missing: Vec<String> = [
        (!is_at_least(&kernel, (5, 12))).then(|| format!("Linux {kernel} is older than 5.12")),
        (!driver.contains("Open Kernel Module")).then(|| "the GPU driver is not the open one".to_owned()),
        (!takes).then(|| "no RDMA device takes dma-bufs".to_owned()),
    ]
    .into_iter()
    .flatten()
    .collect();
    let by_dmabuf = if missing.is_empty() { "yes".to_owned() } else { format!("no, {}", missing.join(", ")) };
    let text = format!("by address: {}; by dma-buf: {by_dmabuf}", if by_address { "yes" } else { "no, no module" });
    vec![Finding::judge(by_address || missing.is_empty(), Verdict::Warn, "", text)]
}

/// Whether a release such as `6.1.0-13-amd64` is `least` or later.
fn is_at_least(release: &str, least: (u32, u32)) -> bool {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    parts.next().zip(parts.next()).is_some_and(|version| version >= least)
}
