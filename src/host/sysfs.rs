//! What the kernel tells about RDMA devices in /sys. Everything may be missing, as in containers.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const CLASS: &str = "/sys/class/infiniband";

/// Path of the PCI function behind `device`, as NCCL's topology search wants it: the function number is 0, so that the
/// ports of one card share it; with `merge_vfs` virtual functions share it too.
pub fn pci_path(device: &str, merge_vfs: bool) -> Option<String> {
    let path = fs::canonicalize(Path::new(CLASS).join(device).join("device")).ok()?;
    Some(trim_function(path.to_str()?, merge_vfs))
}

/// Whether `device` is a virtual function of a card's physical one.
pub fn is_virtual_function(device: &str) -> bool {
    Path::new(CLASS).join(device).join("device/physfn").exists()
}

fn trim_function(path: &str, merge_vfs: bool) -> String {
    let mut bytes = path.as_bytes().to_vec();
    let n = bytes.len();
    // A PCI function ends in `dd.f`.
    if n >= 4 && bytes[n - 2] == b'.' {
        bytes[n - 1] = b'0';
        if merge_vfs {
            bytes[n - 3] = b'0';
            bytes[n - 4] = b'0';
        }
    }
    String::from_utf8(bytes).unwrap_or_else(|_| path.to_owned())
}

/// RoCE version of an entry of a GID table, where the kernel tells.
pub fn roce_version(device: &str, port: u8, index: i32) -> Option<u8> {
    let file: PathBuf = format!("{CLASS}/{device}/ports/{port}/gid_attrs/types/{index}").into();
    match fs::read_to_string(file).ok()?.trim() {
        "RoCE v2" => Some(2),
        "IB/RoCE v1" => Some(1),
        _ => None,
    }
}

/// The kernel module that lets RDMA devices register GPU memory by address, if one is loaded.
pub fn peer_memory_module() -> Option<&'static str> {
    const MODULES: [(&str, &str); 4] = [
        ("/sys/module/nvidia_peermem/version", "nvidia-peermem"),
        ("/sys/kernel/mm/memory_peers/nvidia-peermem/version", "nvidia-peermem"),
        ("/sys/kernel/mm/memory_peers/nv_mem/version", "nv_peer_mem"),
        ("/sys/kernel/mm/memory_peers/nv_mem_nc/version", "nv_peer_mem"),
    ];
    MODULES.iter().find(|(file, _)| Path::new(file).exists()).map(|(_, name)| *name)
}

/// Whether NVIDIA's driver knows a GPU.
pub fn has_nvidia_gpu() -> bool {
    fs::read_dir("/proc/driver/nvidia/gpus").is_ok_and(|mut gpus| gpus.next().is_some())
}

/// This host's name, as it was when first asked for.
pub fn host_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let name = fs::read_to_string("/proc/sys/kernel/hostname");
        name.map_or_else(|_| "unknown host".into(), |name| name.trim().to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_of_one_card_share_a_path() {
        let path = "/sys/devices/pci0000:00/0000:00:01.1/0000:17:00.1";
        assert!(trim_function(path, false).ends_with("0000:17:00.0"));
        assert!(trim_function("/sys/devices/pci0000:00/0000:17:02.3", true).ends_with("0000:17:00.0"));
        assert!(trim_function("/sys/devices/pci0000:00/0000:17:02.3", false).ends_with("0000:17:02.0"));
        assert_eq!(trim_function("/sys/devices/virtual/net/eth0", true), "/sys/devices/virtual/net/eth0");
    }
}
