//! What the kernel reports in /sys and /proc about RDMA devices, GPUs and the host. Any file may be
//! missing, as in containers.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

const CLASS: &str = "/sys/class/infiniband";

/// Path in /sys of the hardware behind the RDMA device `device`, in the form of NCCL's topology
/// search. The function number of a PCI function is replaced by 0, so that the ports of a card
/// share the path, and with `merge_vfs` its virtual functions too. The path of other hardware, such
/// as a sub-function of a card, is unchanged.
pub fn pci_path(device: &str, merge_vfs: bool) -> Option<String> {
    let path = device_path(device)?;
    Some(trim_function(path.to_str()?, merge_vfs))
}

/// Path in /sys of the hardware behind the RDMA device `device`, with the function number, so that
/// it is unique.
pub fn device_path(device: &str) -> Option<PathBuf> {
    fs::canonicalize(Path::new(CLASS).join(device).join("device")).ok()
}

/// The PCI address of the RDMA device `device`, as a number to sort by: that of the nearest PCI
/// function in its path.
pub fn pci_address(device: &str) -> Option<u64> {
    pci_address_in(device_path(device)?.to_str()?)
}

fn pci_address_in(path: &str) -> Option<u64> {
    let name = path.rsplit('/').find(|name| is_pci_function(name))?;
    u64::from_str_radix(&name.replace([':', '.'], ""), 16).ok()
}

/// Whether `device` is a virtual PCI function.
pub fn is_virtual_function(device: &str) -> bool {
    Path::new(CLASS).join(device).join("device/physfn").exists()
}

fn trim_function(path: &str, merge_vfs: bool) -> String {
    match path.rsplit_once('/') {
        Some((_, name)) if is_pci_function(name) => {}
        _ => return path.to_owned(),
    }
    // The path ends in `dd.f`, in ASCII.
    let zeroed = if merge_vfs { ("dd.f".len(), "00.0") } else { ("f".len(), "0") };
    format!("{}{}", &path[..path.len() - zeroed.0], zeroed.1)
}

/// Whether `name` is the name of a PCI function: domain, bus, device and function as
/// `dddd:bb:dd.f`. A domain may have more digits.
fn is_pci_function(name: &str) -> bool {
    let is_hex = |text: &str| text.bytes().all(|b| b.is_ascii_hexdigit());
    let mut parts = name.split(':');
    let (Some(domain), Some(bus), Some(rest), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let Some((device, function)) = rest.split_once('.') else { return false };
    let fits = domain.len() >= 4 && bus.len() == 2 && device.len() == 2 && function.len() == 1;
    fits && [domain, bus, device, function].into_iter().all(is_hex)
}

/// RoCE version of an entry of a GID table, if the kernel reports it.
pub fn roce_version(device: &str, port: u8, index: i32) -> Option<u8> {
    let file: PathBuf = format!("{CLASS}/{device}/ports/{port}/gid_attrs/types/{index}").into();
    match fs::read_to_string(file).ok()?.trim() {
        "RoCE v2" => Some(2),
        "IB/RoCE v1" => Some(1),
        _ => None,
    }
}

/// Bandwidth of `port` of `device` in Mbit/s, if the kernel reports it.
pub fn rate_mbps(device: &str, port: u8) -> Option<u32> {
    rate_mbps_in(&fs::read_to_string(format!("{CLASS}/{device}/ports/{port}/rate")).ok()?)
}

/// From a text such as `800 Gb/sec (4X XDR)`.
fn rate_mbps_in(text: &str) -> Option<u32> {
    let gbps: f64 = text.split_once(" Gb/sec")?.0.parse().ok()?;
    Some((gbps * 1000.0) as u32)
}

/// The loaded kernel module through which RDMA devices register GPU memory by address, if any.
pub fn peer_memory_module() -> Option<&'static str> {
    const MODULES: [(&str, &str); 4] = [
        ("/sys/module/nvidia_peermem/version", "nvidia-peermem"),
        ("/sys/kernel/mm/memory_peers/nvidia-peermem/version", "nvidia-peermem"),
        ("/sys/kernel/mm/memory_peers/nv_mem/version", "nv_peer_mem"),
        ("/sys/kernel/mm/memory_peers/nv_mem_nc/version", "nv_peer_mem"),
    ];
    MODULES.iter().find(|(file, _)| Path::new(file).exists()).map(|(_, name)| *name)
}

/// Whether NVIDIA's driver has a GPU.
pub fn has_nvidia_gpu() -> bool {
    fs::read_dir("/proc/driver/nvidia/gpus").is_ok_and(|mut gpus| gpus.next().is_some())
}

/// The host's name when this was first called.
pub fn host_name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let name = fs::read_to_string("/proc/sys/kernel/hostname");
        name.map_or_else(|_| "unknown host".into(), |name| name.trim().to_owned())
    })
}

/// The files mapped into this process whose names begin with `prefix`, other than the one at
/// `path`; each once.
pub fn other_mapped_files(prefix: &str, path: &Path) -> BTreeSet<PathBuf> {
    let own = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let text = fs::read("/proc/self/maps").unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let files = text.lines().filter_map(|line| line.get(line.find('/')?..)).map(PathBuf::from);
    let is_named = |file: &PathBuf| {
        file.file_name().is_some_and(|name| name.to_string_lossy().starts_with(prefix))
    };
    files.filter(|file| is_named(file) && *file != own).collect()
}

/// When this process started, in clock ticks since boot.
pub fn start_ticks() -> Option<u64> {
    start_ticks_in(&fs::read_to_string("/proc/self/stat").ok()?)
}

/// The namespace of this process's id.
pub fn pid_namespace() -> Option<u64> {
    fs::metadata("/proc/self/ns/pid").ok().map(|about| about.ino())
}

/// The kernel's `boot_id`. `None`: it reports none.
pub fn boot_id() -> Option<u128> {
    boot_id_in(&fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?)
}

fn boot_id_in(text: &str) -> Option<u128> {
    let digits: String = text.trim().split('-').collect();
    u128::from_str_radix(&digits, 16).ok()
}

/// The program's name, in brackets, may itself have spaces and brackets. The start is the 20th
/// number after it.
fn start_ticks_in(stat: &str) -> Option<u64> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pci_functions_of_a_card_share_a_path() {
        let path = "/sys/devices/pci0000:00/0000:00:01.1/0000:17:00.1";
        assert!(trim_function(path, false).ends_with("0000:17:00.0"));
        assert!(
            trim_function("/sys/devices/pci0000:00/0000:17:02.3", true).ends_with("0000:17:00.0")
        );
        assert!(
            trim_function("/sys/devices/pci0000:00/0000:17:02.3", false).ends_with("0000:17:02.0")
        );
        let behind_vmd = trim_function("/sys/devices/pci0000:00/pci10000:e0/10000:e1:00.1", false);
        assert!(behind_vmd.ends_with("/10000:e1:00.0"));
    }

    #[test]
    fn rates_are_read_with_their_fractions() {
        let read = rate_mbps_in;
        assert_eq!(read("800 Gb/sec (4X XDR)\n"), Some(800_000));
        assert_eq!(read("2.5 Gb/sec (1X SDR)"), Some(2_500));
        assert_eq!((read(""), read("fast Gb/sec"), read("800")), (None, None, None));
    }

    #[test]
    fn a_file_that_is_mapped_is_found_by_the_beginning_of_its_name() {
        let found = other_mapped_files("libc.so", Path::new("/nonexistent"));
        let first = found.iter().next().expect("the C library is mapped");
        assert!(other_mapped_files("libc.so", first).iter().all(|other| other != first));
    }

    /// Devices that share a path are merged.
    #[test]
    fn devices_are_sorted_by_the_address_of_the_nearest_pci_function() {
        let at = |path: &str| pci_address_in(&format!("/sys/devices/pci0000:00/{path}"));
        let paths = [
            "0000:00:1f.0/0000:02:00.1",
            "0000:00:01.0/0000:17:00.0/mlx5_core.sf.4",
            "0000:00:01.0/10000:01:00.0",
        ];
        assert_eq!(paths.map(at), [Some(0x2001), Some(0x1_7000), Some(0x10_0000_1000)]);
        assert_eq!(pci_address_in("/sys/devices/virtual/net/eth0"), None);
    }

    #[test]
    fn a_path_that_is_no_pci_function_is_not_changed() {
        let sub_function =
            |number| format!("/sys/devices/pci0000:00/0000:17:00.0/mlx5_core.sf.{number}");
        for path in [
            sub_function(4),
            sub_function(5),
            "/sys/devices/virtual/net/eth0".into(),
            "17:00.1".into(),
        ] {
            assert_eq!(
                [false, true].map(|merge| trim_function(&path, merge)),
                [path.clone(), path.clone()]
            );
        }
        for name in [
            "0000:17:00", "000:17:00.1", "0000:17:00.1:2", "0000:17:0g.1", "0000:17:00.12",
            "x000:17:00.1",
        ] {
            assert!(!is_pci_function(name), "{name}");
        }
    }

    #[test]
    fn the_start_of_a_process_is_found_behind_any_name() {
        let rest: Vec<_> = (3..=52).map(|field| field.to_string()).collect();
        assert_eq!(start_ticks_in(&format!("42 (a) b) S {}", rest[1..].join(" "))), Some(22));
        assert_eq!(start_ticks_in("42 (cut) S 1"), None);
    }

    #[test]
    fn the_number_of_the_machines_start_is_read_as_the_kernel_writes_it() {
        let read = boot_id_in("0123abcd-4567-89ab-cdef-000000000001\n");
        assert_eq!(read, Some(0x0123_abcd_4567_89ab_cdef_0000_0000_0001));
        assert_eq!(boot_id_in("none"), None);
    }
}
