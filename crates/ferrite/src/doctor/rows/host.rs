//! The host: CPUs, limits of a process, shared memory, the clock.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::machine::Machine;
use crate::doctor::pci;
use crate::doctor::row::Row;
use lab::system::host;

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "numa",
        what: "CPUs that this process may use are on the NUMA nodes of the RDMA devices",
        why: "NCCL's threads poll completions, and memory on another node costs latency and bandwidth",
        cure: "taskset, numactl, `--cpu-bind` of srun, or the cpuset of the container",
        look: numa,
    },
    Row {
        name: "cpus",
        what: "two CPUs for each process of this host (--ranks), by affinity and by the cgroup's quota",
        why: "each process has NCCL's progress thread, which polls, beside its own",
        cure: "--cpus-per-task of srun, docker run --cpus, the pod's CPU limit; a quota stops polling threads within each period",
        look: cpus,
    },
    Row {
        name: "descriptors",
        what: "4,096 open files for a process",
        why: "each control connection is a descriptor, and each region of GPU memory that is registered by dma-buf",
        cure: "ulimit -n 65536; nofile in /etc/security/limits.conf; docker run --ulimit nofile=65536",
        look: descriptors,
    },
    Row {
        name: "threads",
        what: "64 threads of this user for each process of this host (--ranks)",
        why: "NCCL starts threads for each communicator",
        cure: "ulimit -u unlimited; nproc in /etc/security/limits.conf; docker run --ulimit nproc=-1",
        look: threads,
    },
    Row {
        name: "shm",
        what: "/dev/shm can be written and has 64 MiB free",
        why: "NCCL's shared-memory transport keeps its buffers there; docker gives 64 MiB in all",
        cure: "docker run --shm-size=8g or --ipc=host; in Kubernetes an emptyDir with medium: Memory at /dev/shm",
        look: shm,
    },
    Row {
        name: "clock",
        what: "the kernel's clock source is one that a process reads without a system call",
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
    let Ok(allowed) = host::cpus() else { return vec![Finding::unknown("", "the system does not tell the CPUs")] };
    let root = &machine.root;
    let found: Vec<Finding> = pci::nics(root)
        .into_iter()
        .filter_map(|nic| {
            let node = nic.numa_node(root)?;
            let there = parse_list(&root.text(format!("/sys/devices/system/node/node{node}/cpulist"))?);
            let near = there.iter().filter(|cpu| allowed.contains(cpu)).count();
            let text = format!("NUMA node {node}; {near} of its {} CPUs may be used", there.len());
            Some(Finding::judge(near > 0, Verdict::Warn, nic.name, text))
        })
        .collect();
    if found.is_empty() { vec![Finding::ok("", "no RDMA device names a NUMA node")] } else { found }
}

fn cpus(machine: &Machine) -> Vec<Finding> {
    let Ok(allowed) = host::cpus() else { return vec![Finding::unknown("", "the system does not tell the CPUs")] };
    let wanted = 2.0 * f64::from(machine.ranks);
    let of = format!("for {} processes", machine.ranks);
    let mut found =
        vec![Finding::judge(allowed.len() as f64 >= wanted, Verdict::Warn, "", format!("{} CPUs {of}", allowed.len()))];
    // `max 100000`, or microseconds of each period.
    let quota = machine.root.text("/sys/fs/cgroup/cpu.max").and_then(|text| {
        let (quota, period) = text.split_once(' ')?;
        Some(quota.parse::<f64>().ok()? / period.trim().parse::<f64>().ok().filter(|period| *period > 0.0)?)
    });
    found.extend(quota.map(|quota| {
        Finding::judge(quota >= wanted, Verdict::Warn, "", format!("the cgroup's quota is {quota} CPUs {of}"))
    }));
    found
}

fn descriptors(_machine: &Machine) -> Vec<Finding> {
    vec![at_least(host::limit(libc::RLIMIT_NOFILE), 4096, "open files")]
}

fn threads(machine: &Machine) -> Vec<Finding> {
    vec![at_least(host::limit(libc::RLIMIT_NPROC), 64 * u64::from(machine.ranks), "threads of this user")]
}

fn at_least(limit: Option<u64>, least: u64, what: &str) -> Finding {
    let text = limit.map_or_else(|| format!("no limit of {what}"), |limit| format!("{limit} {what}"));
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
        Some(source) => vec![Finding::judge(FAST.contains(&source.as_str()), Verdict::Warn, "", source)],
        None => vec![Finding::unknown("", "/sys does not tell the clock source")],
    }
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
        assert_eq!([(64 << 20) - 1, 64 << 20].map(|free| of_free(free).verdict), [Verdict::Warn, Verdict::Ok]);
    }
}
