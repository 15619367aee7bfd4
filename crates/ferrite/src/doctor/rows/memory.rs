//! Memory and queue pairs, by trial.

use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::machine::Machine;
use crate::doctor::row::Row;
use lab::system::host;

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "memlock",
        what: "256 MiB of host memory can be registered with each device; warn where the limit of locked memory is below the machine's memory, unless the process is exempt (CAP_IPC_LOCK)",
        why: "registered memory counts as locked memory, and queue pairs take some as well",
        cure: "ulimit -l unlimited; memlock in /etc/security/limits.conf; LimitMEMLOCK=infinity of the systemd unit \
               (slurmd, kubelet); docker run --ulimit memlock=-1",
        look: memlock,
    },
    Row {
        name: "queue-pairs",
        what: "a queue pair of the plugin's sizes can be made on each device; warn where it has no inline data",
        why: "without inline data each clear-to-send is one more read over PCIe",
        cure: "see `memlock` and `limits`; newer firmware and driver; a device that has no reliable-connected queue pairs cannot be used",
        look: queue_pairs,
    },
    Row {
        name: "limits",
        what: "each device has queue pairs and memory regions for the processes of this host (--ranks), 256 of each for one; warn \
               where it has not",
        why: "a job with many channels and peers makes some hundred of each in every process",
        cure: "a larger profile of the virtual function, newer firmware, or fewer channels (NCCL_MAX_NCHANNELS)",
        look: limits,
    },
];

fn memlock(machine: &Machine) -> Vec<Finding> {
    let limit = host::memlock_limit();
    let said = limit.map_or_else(|| "no limit".into(), |bytes| format!("limit {} KiB", bytes / 1024));
    let ram = memory_of_machine(machine);
    let is_low = limit.zip(ram).is_some_and(|(limit, ram)| limit < ram);
    let mut found = vec![match is_low {
        true if is_exempt(machine) => {
            Finding::ok("", format!("{said}, which does not bind this process (CAP_IPC_LOCK)"))
        }
        true => Finding::warn("", format!("{said}, and the machine has {} GiB", ram.unwrap_or(0) >> 30)),
        false => Finding::ok("", said),
    }];
    let Ok(facts) = machine.verbs() else { return found };
    found.extend(facts.devices.iter().filter_map(|device| {
        Some(match device.registration.as_ref()? {
            Ok(bytes) => Finding::ok(device.name.as_str(), format!("{} MiB were registered", bytes >> 20)),
            Err(why) => Finding::fail(device.name.as_str(), why.as_str()),
        })
    }));
    found
}

/// Whether this process may lock more than its limit: the kernel asks for CAP_IPC_LOCK alone.
fn is_exempt(machine: &Machine) -> bool {
    const CAP_IPC_LOCK: u32 = 14;
    let status = machine.root.text("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| u64::from_str_radix(line.strip_prefix("CapEff:")?.trim(), 16).ok());
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
                Ok(bytes) => Finding::judge(*bytes > 0, Verdict::Warn, name, format!("{bytes} bytes of inline data")),
                Err(why) => Finding::fail(name, why.as_str()),
            })
        })
        .collect();
    if found.is_empty() { vec![Finding::unknown("", "no device is open")] } else { found }
}
