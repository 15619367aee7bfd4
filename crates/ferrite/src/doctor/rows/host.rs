//! The host: CPUs, limits of a process, shared memory, the clock.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use lab::system::dist::Root;
use lab::system::host;

use crate::doctor::machine;
use crate::doctor::machine::{Machine, PciFunction};
use crate::doctor::report::{Finding, Row, Verdict};

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "numa",
        what: "this process may use CPUs on the NUMA nodes of the RDMA devices",
        why: "NCCL's threads poll completions, and memory on another node costs latency and bandwidth",
        cure: "taskset, numactl, `--cpu-bind` of srun, or the container's cpuset",
        look: numa,
    },
    Row {
        name: "cpus",
        what: "each process of this host (--ranks) has two CPUs, by affinity and by the cgroup's quota",
        why: "each process has NCCL's progress thread, which polls, beside its own",
        cure: "--cpus-per-task of srun, docker run --cpus, the pod's CPU limit; a quota stops threads that poll",
        look: cpus,
    },
    Row {
        name: "descriptors",
        what: "a process may open 4,096 files",
        why: "each control connection is a descriptor, and each region of GPU memory that is registered by dma-buf",
        cure: "ulimit -n 65536; nofile in /etc/security/limits.conf; docker run --ulimit nofile=65536",
        look: descriptors,
    },
    Row {
        name: "threads",
        what: "this user may have 64 threads for each process of this host (--ranks)",
        why: "NCCL starts threads for each communicator",
        cure: "ulimit -u unlimited; nproc in /etc/security/limits.conf; docker run --ulimit nproc=-1",
        look: threads,
    },
    Row {
        name: "shm",
        what: "/dev/shm is writable and has 64 MiB free",
        why: "NCCL's shared-memory transport keeps its buffers there; docker gives 64 MiB in all",
        cure: "docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir with medium: Memory at /dev/shm",
        look: shm,
    },
    Row {
        name: "clock",
        what: "a process can read the kernel's clock source without a system call",
        why: "reading another takes microseconds, and NCCL and the plugin read the clock in their loops",
        cure: "clocksource=tsc on the kernel's command line, or the virtual machine's own (kvm-clock)",
        look: clock,
    },
];

/// The numbers in a list such as `0-3,8,10-11`.
fn parse_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse::<usize>().ok()?..=last.trim().parse::<usize>().ok()?)
    };
    text.split(',').filter_map(range).flat_map(|range| range.take(1 << 14)).collect()
}

fn numa(machine: &Machine) -> Vec<Finding> {
    let Ok(allowed) = host::cpus() else {
        return vec![Finding::unknown("", "the system does not tell the CPUs")];
    };
    let root = &machine.root;
    let found: Vec<Finding> = machine::nics(root)
        .into_iter()
        .filter_map(|nic| {
            let node = nic.numa_node(root)?;
            let there =
                parse_list(&root.text(format!("/sys/devices/system/node/node{node}/cpulist"))?);
            let near = there.iter().filter(|cpu| allowed.contains(cpu)).count();
            let text = format!("NUMA node {node}; {near} of its {} CPUs may be used", there.len());
            Some(Finding::judge(near > 0, Verdict::Warn, nic.name, text))
        })
        .collect();
    if found.is_empty() { vec![Finding::ok("", "no RDMA device names a NUMA node")] } else { found }
}

fn cpus(machine: &Machine) -> Vec<Finding> {
    let Ok(allowed) = host::cpus() else {
        return vec![Finding::unknown("", "the system does not tell the CPUs")];
    };
    let wanted = 2.0 * f64::from(machine.ranks);
    let of = format!("for {} processes", machine.ranks);
    let mut found = vec![Finding::judge(
        allowed.len() as f64 >= wanted,
        Verdict::Warn,
        "",
        format!("{} CPUs {of}", allowed.len()),
    )];
    // `max 100000`, or microseconds of each period.
    let quota = machine.root.text("/sys/fs/cgroup/cpu.max").and_then(|text| {
        let (quota, period) = text.split_once(' ')?;
        Some(
            quota.parse::<f64>().ok()?
                / period.trim().parse::<f64>().ok().filter(|period| *period > 0.0)?,
        )
    });
    found.extend(quota.map(|quota| {
        Finding::judge(
            quota >= wanted,
            Verdict::Warn,
            "",
            format!("the cgroup's quota is {quota} CPUs {of}"),
        )
    }));
    found
}

fn descriptors(_machine: &Machine) -> Vec<Finding> {
    vec![at_least(host::limit(libc::RLIMIT_NOFILE), 4096, "open files")]
}

fn threads(machine: &Machine) -> Vec<Finding> {
    vec![at_least(
        host::limit(libc::RLIMIT_NPROC),
        64 * u64::from(machine.ranks),
        "threads of this user",
    )]
}

fn at_least(limit: Option<u64>, least: u64, what: &str) -> Finding {
    let text =
        limit.map_or_else(|| format!("no limit of {what}"), |limit| format!("{limit} {what}"));
    Finding::judge(limit.is_none_or(|limit| limit >= least), Verdict::Warn, "", text)
}

fn shm(machine: &Machine) -> Vec<Finding> {
    let folder = machine.root.path("/dev/shm");
    // Without a name: it is gone when it is closed, and nobody sees it.
    if let Err(problem) = tempfile::tempfile_in(&folder) {
        return vec![Finding::fail("", format!("no file can be made in /dev/shm: {problem}"))];
    }
    match free_bytes(&folder) {
        Some(free) => vec![of_free(free)],
        None => vec![Finding::unknown("", "the system does not tell what is free in /dev/shm")],
    }
}

fn of_free(bytes: u64) -> Finding {
    Finding::judge(bytes >= 64 << 20, Verdict::Warn, "", format!("{} MiB free", bytes >> 20))
}

fn free_bytes(folder: &Path) -> Option<u64> {
    let path = CString::new(folder.as_os_str().as_bytes()).ok()?;
    // SAFETY: all zeros is a value of the struct.
    let mut stat: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: a C string, and a struct that can be written.
    let is_known = unsafe { libc::statvfs(path.as_ptr(), &raw mut stat) } == 0;
    is_known.then(|| stat.f_bavail.saturating_mul(stat.f_frsize))
}

fn clock(machine: &Machine) -> Vec<Finding> {
    const FAST: [&str; 4] = ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"];
    match machine.root.text("/sys/devices/system/clocksource/clocksource0/current_clocksource") {
        Some(source) => {
            vec![Finding::judge(FAST.contains(&source.as_str()), Verdict::Warn, "", source)]
        }
        None => vec![Finding::unknown("", "/sys does not tell the clock source")],
    }
}

pub(crate) const MEMORY_ROWS: &[Row] = &[
    Row {
        name: "memlock",
        what: "256 MiB can be registered with each device; warn if the limit of locked memory is below the machine's memory, without CAP_IPC_LOCK",
        why: "registered memory counts as locked memory, and queue pairs take some as well",
        cure: "ulimit -l unlimited; memlock in /etc/security/limits.conf; LimitMEMLOCK=infinity of the systemd unit (slurmd, kubelet); docker run --ulimit memlock=-1",
        look: memlock,
    },
    Row {
        name: "queue-pairs",
        what: "each device can create a queue pair of the plugin's sizes; warn if it has no inline data",
        why: "without inline data each clear-to-send is one more read over PCIe",
        cure: "check `memlock` and `limits`; update firmware and driver; devices without reliable-connected queue pairs cannot be used",
        look: queue_pairs,
    },
    Row {
        name: "limits",
        what: "each device has 256 queue pairs and 256 memory regions for each process of this host (--ranks); warn if not",
        why: "a job with many channels and peers creates some hundred of each in every process",
        cure: "a larger profile of the virtual function, newer firmware, or fewer channels (NCCL_MAX_NCHANNELS)",
        look: limits,
    },
];

fn memlock(machine: &Machine) -> Vec<Finding> {
    let limit = host::memlock_limit();
    let said =
        limit.map_or_else(|| "no limit".into(), |bytes| format!("limit {} KiB", bytes / 1024));
    let ram = memory_of_machine(machine);
    let is_low = limit.zip(ram).is_some_and(|(limit, ram)| limit < ram);
    let mut found = vec![match is_low {
        true if is_exempt(machine) => {
            Finding::ok("", format!("{said}; CAP_IPC_LOCK exempts this process"))
        }
        true => {
            Finding::warn("", format!("{said}, and the machine has {} GiB", ram.unwrap_or(0) >> 30))
        }
        false => Finding::ok("", said),
    }];
    let Ok(facts) = machine.verbs() else { return found };
    found.extend(facts.devices.iter().filter_map(|device| {
        Some(match device.registration.as_ref()? {
            Ok(bytes) => {
                Finding::ok(device.name.as_str(), format!("{} MiB were registered", bytes >> 20))
            }
            Err(why) => Finding::fail(device.name.as_str(), why.as_str()),
        })
    }));
    found
}

/// Whether this process may lock more than its limit: the kernel asks for CAP_IPC_LOCK alone.
fn is_exempt(machine: &Machine) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = machine.root.text("/proc/self/status").unwrap_or_default();
    let effective = status
        .lines()
        .find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
    effective.is_some_and(|capabilities| capabilities >> CAP_IPC_LOCK & 1 == 1)
}

/// Bytes.
fn memory_of_machine(machine: &Machine) -> Option<u64> {
    let text = machine.root.text("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.split_whitespace().next()?.parse::<u64>().ok().map(|kib| kib * 1024)
}

/// Queue pairs, and memory regions, that a process of a job is counted with.
const PER_PROCESS: i64 = 256;

fn limits(machine: &Machine) -> Vec<Finding> {
    let Ok(facts) = machine.verbs() else { return Finding::no_verbs() };
    let needed = i64::from(machine.ranks) * PER_PROCESS;
    let found: Vec<Finding> = facts
        .devices
        .iter()
        .map(|device| {
            let (pairs, regions) = (device.max_queue_pairs, device.max_memory_regions);
            let text = format!(
                "{pairs} queue pairs, {regions} memory regions; {} processes are counted with {needed}",
                machine.ranks
            );
            Finding::judge(pairs >= needed && regions >= needed, Verdict::Warn, device.name.as_str(), text)
        })
        .collect();
    if found.is_empty() { vec![Finding::unknown("", "no device is open")] } else { found }
}

fn queue_pairs(machine: &Machine) -> Vec<Finding> {
    let Ok(facts) = machine.verbs() else { return Finding::no_verbs() };
    let found: Vec<Finding> = facts
        .devices
        .iter()
        .filter_map(|device| {
            let name = device.name.as_str();
            Some(match device.queue_pair.as_ref()? {
                Ok(bytes) => Finding::judge(
                    *bytes > 0,
                    Verdict::Warn,
                    name,
                    format!("{bytes} bytes of inline data"),
                ),
                Err(why) => Finding::fail(name, why.as_str()),
            })
        })
        .collect();
    if found.is_empty() { vec![Finding::unknown("", "no device is open")] } else { found }
}

pub(crate) const ISOLATION_ROWS: &[Row] = &[
    Row {
        name: "acs",
        what: "bridges above GPUs and RDMA devices do not redirect requests between them (PCIe access control services); needs root",
        why: "redirected requests pass the root complex, which can halve the bandwidth of GPUDirect RDMA",
        cure: "as root `setpci -s BRIDGE ECAP_ACS+6.w=0000` after each boot, or ACS off in the BIOS; for a virtual machine, on its host",
        look: acs,
    },
    Row {
        name: "iommu",
        what: "with GPUs: RDMA devices access memory without translation",
        why: "translated access of a card to GPU memory passes the root complex, or fails",
        cure: "iommu=pt on the kernel's command line, or the IOMMU off in the BIOS; in a virtual machine, ATS of the card",
        look: iommu,
    },
];

/// Extended capabilities: access control services, address translation services.
const ACS: u16 = 0x000d;
const ATS: u16 = 0x000f;
/// Offset of both control registers from the start of their capability.
const CONTROL: usize = 6;
/// Redirection of requests, and of completions, between functions.
const REDIRECT: u16 = 1 << 2 | 1 << 3;
const ATS_ENABLED: u16 = 1 << 15;

fn acs(machine: &Machine) -> Vec<Finding> {
    let gpus = machine::gpus(&machine.root);
    if gpus.is_empty() {
        return vec![Finding::ok("", "no NVIDIA GPU, so no traffic between functions")];
    }
    let mut bridges: Vec<PathBuf> =
        gpus.iter().chain(&machine::nics(&machine.root)).flat_map(PciFunction::bridges).collect();
    bridges.sort();
    bridges.dedup();
    let (mut found, mut unread) = (Vec::new(), None);
    for bridge in &bridges {
        match machine::capability(&machine.root, bridge, ACS, CONTROL) {
            Ok(Some(control)) if control & REDIRECT != 0 => {
                found.push(Finding::warn(
                    name(bridge),
                    format!("redirects requests (ACS control {control:#06x})"),
                ));
            }
            Ok(_) => {}
            Err(why) => unread = Some(Finding::unknown(name(bridge), why)),
        }
    }
    found.extend(unread);
    if found.is_empty() {
        found
            .push(Finding::ok("", format!("none of {} bridges redirects requests", bridges.len())));
    }
    found
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn iommu(machine: &Machine) -> Vec<Finding> {
    let root = &machine.root;
    let has_gpus = !machine::gpus(root).is_empty();
    let of_nic = |nic: PciFunction| {
        let Some(kind) = root.text(nic.path.join("iommu_group/type")) else {
            return Finding::ok(nic.name, "no IOMMU");
        };
        let text = format!("IOMMU group of type {kind}");
        if !kind.starts_with("DMA") || !has_gpus {
            return Finding::ok(nic.name, text);
        }
        match machine::capability(root, &nic.path, ATS, CONTROL) {
            Ok(Some(control)) if control & ATS_ENABLED != 0 => {
                Finding::ok(nic.name, text + ", with ATS")
            }
            Ok(_) => Finding::warn(nic.name, text + " (translated), without ATS"),
            Err(why) => {
                Finding::warn(nic.name, format!("{text} (translated); ATS is not known: {why}"))
            }
        }
    };
    let found: Vec<Finding> = machine::nics(root).into_iter().map(of_nic).collect();
    if found.is_empty() {
        vec![Finding::unknown("", "/sys/class/infiniband shows no device")]
    } else {
        found
    }
}

pub(crate) const GPU_ROWS: &[Row] = &[
    Row {
        name: "gpu",
        what: "NVIDIA GPUs have their driver, their files /dev/nvidia*, and libcuda.so.1",
        why: "without one of them CUDA does not start in this container",
        cure: "install the driver on the host; docker run --gpus all (NVIDIA's container toolkit), or the device plugin of Kubernetes",
        look: gpu,
    },
    Row {
        name: "gpu-memory",
        what: "RDMA devices can register GPU memory, by address (nvidia-peermem) or by dma-buf (Linux 5.12, NVIDIA's open kernel modules); CUDA is not started",
        why: "otherwise messages of GPUs are copied through host memory",
        cure: "modprobe nvidia-peermem on the host, after the RDMA drivers; or NVIDIA's open kernel modules, 515 or newer",
        look: gpu_memory,
    },
];

fn gpu(machine: &Machine) -> Vec<Finding> {
    let root = &machine.root;
    let (on_bus, of_driver) =
        (machine::gpus(root).len(), root.names("/proc/driver/nvidia/gpus").len());
    if on_bus + of_driver == 0 {
        return vec![Finding::unknown("", "no NVIDIA GPU is seen")];
    }
    if of_driver == 0 {
        return vec![Finding::warn(
            "",
            format!(
                "{on_bus} GPUs on the bus, and no driver (/proc/driver/nvidia is empty or missing)"
            ),
        )];
    }
    let is_gpu =
        |name: &String| name.strip_prefix("nvidia").is_some_and(|rest| rest.parse::<u32>().is_ok());
    let nodes = root.names("/dev").iter().filter(|name| is_gpu(name)).count();
    if nodes == 0 {
        return vec![Finding::warn(
            "",
            format!("the driver has {of_driver} GPUs, and there is no /dev/nvidia0"),
        )];
    }
    if machine.loader().places("libcuda.so.1").is_empty() {
        return vec![Finding::warn(
            "",
            format!("{nodes} GPUs, and no libcuda.so.1 where the loader looks"),
        )];
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
    if machine::gpus(root).is_empty() && root.names("/proc/driver/nvidia/gpus").is_empty() {
        return vec![Finding::unknown("", "no NVIDIA GPU is seen")];
    }
    let by_address = BY_ADDRESS.iter().any(|path| root.exists(path));
    let kernel = root.text("/proc/sys/kernel/osrelease").unwrap_or_default();
    let driver = root.text("/proc/driver/nvidia/version").unwrap_or_default();
    let takes =
        machine.verbs().is_ok_and(|facts| facts.devices.iter().any(|device| device.takes_dmabuf));
    let missing: Vec<String> = [
        (!is_at_least(&kernel, (5, 12))).then(|| format!("Linux {kernel} is older than 5.12")),
        (!driver.contains("Open Kernel Module"))
            .then(|| "the GPU driver is not the open one".to_owned()),
        (!takes).then(|| "no RDMA device takes dma-bufs".to_owned()),
    ]
    .into_iter()
    .flatten()
    .collect();
    let by_dmabuf =
        if missing.is_empty() { "yes".to_owned() } else { format!("no, {}", missing.join(", ")) };
    let text = format!(
        "by address: {}; by dma-buf: {by_dmabuf}",
        if by_address { "yes" } else { "no, no module" }
    );
    vec![Finding::judge(by_address || missing.is_empty(), Verdict::Warn, "", text)]
}

/// Whether a release such as `6.1.0-13-amd64` is `least` or later.
fn is_at_least(release: &str, least: (u32, u32)) -> bool {
    let mut parts =
        release.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse::<u32>().ok());
    parts.next().zip(parts.next()).is_some_and(|version| version >= least)
}

pub(crate) const BUS_ROWS: &[Row] = &[
    Row {
        name: "pcie",
        what: "each RDMA device's PCIe link has its full width and speed, and carries what its ports do; FAIL below half",
        why: "a card in a narrow slot, or a link that came up narrow, limits the bandwidth",
        cure: "reseat the card; try another slot or riser; check the slot's speed in the BIOS (`lspci -vv` shows LnkSta)",
        look: pcie,
    },
    Row {
        name: "gpu-distance",
        what: "each GPU has an RDMA device below the same PCIe switch or root port",
        why: "GPUDirect RDMA over the CPU's root complex is slower, and NCCL may then not use it at all",
        cure: "move the card to another slot, or set NCCL_NET_GDR_LEVEL=PHB or SYS if the root complex is fast enough",
        look: gpu_distance,
    },
];

/// A link as /sys tells it: giga transfers per second of a lane, and lanes.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Link {
    speed: f64,
    width: i64,
}

impl Link {
    /// `kind` is `current` or `max`.
    fn read(root: &Root, function: &PciFunction, kind: &str) -> Option<Self> {
        let speed = root.text(function.path.join(format!("{kind}_link_speed")))?;
        let width = root.number(function.path.join(format!("{kind}_link_width")))?;
        let speed = speed.split_whitespace().next()?.parse().ok()?;
        Some(Self { speed, width }).filter(|link| link.width > 0)
    }

    /// Gb/s after the encoding: 8 of 10 bits up to 5 GT/s, 128 of 130 beyond.
    fn gbps(self) -> f64 {
        let share = if self.speed <= 5.0 { 0.8 } else { 128.0 / 130.0 };
        self.speed * share * self.width as f64
    }

    fn text(self) -> String {
        format!("{} GT/s x{}", self.speed, self.width)
    }
}

fn pcie(machine: &Machine) -> Vec<Finding> {
    let nics = machine::nics(&machine.root);
    let found: Vec<Finding> = nics.iter().map(|nic| of_nic(&machine.root, nic)).collect();
    if found.is_empty() {
        vec![Finding::unknown("", "/sys/class/infiniband shows no device")]
    } else {
        found
    }
}

fn of_nic(root: &Root, nic: &PciFunction) -> Finding {
    let name = nic.name.as_str();
    let (Some(now), Some(most)) = (Link::read(root, nic, "current"), Link::read(root, nic, "max"))
    else {
        return Finding::unknown(
            name,
            "/sys does not tell its PCIe link (a virtual function does not)",
        );
    };
    let rate = rate(root, name);
    let text = format!("{}, {:.0} Gb/s of PCIe for ports of {rate} Gb/s", now.text(), now.gbps());
    if now.gbps() < rate / 2.0 {
        return Finding::fail(name, text);
    }
    if now.speed < most.speed || now.width < most.width {
        return Finding::warn(name, format!("{text}; it can have {}", most.text()));
    }
    Finding::judge(now.gbps() >= rate, Verdict::Warn, name, text)
}

/// Gb/s of the device's ports together, as `rate` of each tells: `400 Gb/sec (4X NDR)`.
fn rate(root: &Root, device: &str) -> f64 {
    let ports = format!("/sys/class/infiniband/{device}/ports");
    let of_port = |port: String| {
        root.text(format!("{ports}/{port}/rate"))?.split_whitespace().next()?.parse::<f64>().ok()
    };
    root.names(&ports).into_iter().filter_map(of_port).sum()
}

fn gpu_distance(machine: &Machine) -> Vec<Finding> {
    let (gpus, nics) = (machine::gpus(&machine.root), machine::nics(&machine.root));
    if gpus.is_empty() || nics.is_empty() {
        return vec![Finding::unknown(
            "",
            format!("/sys shows {} GPUs and {} RDMA devices", gpus.len(), nics.len()),
        )];
    }
    let of_gpu = |gpu: &PciFunction| {
        let near: Vec<&str> =
            nics.iter().filter(|nic| share_bridge(gpu, nic)).map(|nic| nic.name.as_str()).collect();
        if !near.is_empty() {
            return Finding::ok(
                gpu.name.as_str(),
                format!("shares a bridge with {}", near.join(", ")),
            );
        }
        let node = gpu.numa_node(&machine.root);
        let same = nics.iter().filter(|nic| node.is_some() && nic.numa_node(&machine.root) == node);
        let same: Vec<&str> = same.map(|nic| nic.name.as_str()).collect();
        let text = match same.is_empty() {
            true => "no RDMA device shares a bridge or its NUMA node".to_owned(),
            false => {
                format!("no RDMA device shares a bridge; on its NUMA node: {}", same.join(", "))
            }
        };
        Finding::warn(gpu.name.as_str(), text)
    };
    gpus.iter().map(of_gpu).collect()
}

/// Whether packets between the two need not pass the root complex.
fn share_bridge(one: &PciFunction, other: &PciFunction) -> bool {
    let bridges = other.bridges();
    one.bridges().iter().any(|bridge| bridges.contains(bridge))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(parse_list("0-2,8,10-11"), [0, 1, 2, 8, 10, 11]);
        assert_eq!(parse_list("x,3-1,"), [0_usize; 0]);
    }

    #[test]
    fn less_than_64_mib_of_shared_memory_warns() {
        assert_eq!(
            [(64 << 20) - 1, 64 << 20].map(|free| of_free(free).verdict),
            [Verdict::Warn, Verdict::Ok]
        );
    }
}
