//! From libibverbs to open devices.

use std::fs::OpenOptions;
use std::path::Path;

use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::machine::Machine;
use crate::doctor::row::Row;

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "libibverbs",
        what: "libibverbs can be loaded; warn where it is so old that something is lost",
        why: "the plugin finds RDMA devices through it alone",
        cure: "install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or libibverbs (RHEL), rdma-core 34 or newer",
        look: libibverbs,
    },
    Row {
        name: "device-nodes",
        what: "the kernel knows RDMA devices, and the files /dev/infiniband/uverbs* can be opened",
        why: "libibverbs reaches a device through its file",
        cure: "docker run --device=/dev/infiniband, or in Kubernetes the device plugin; on a host without RDMA: modprobe ib_uverbs",
        look: device_nodes,
    },
    Row {
        name: "providers",
        what: "libibverbs has a provider (a driver's library) for each RDMA device of the kernel",
        why: "without it libibverbs does not list the device",
        cure: "install ibverbs-providers, or the vendor's libraries, of a version that knows the device, in this container too",
        look: providers,
    },
    Row {
        name: "open",
        what: "each device that libibverbs lists can be opened; warn where some cannot",
        why: "a device that cannot be opened is not used, and ranks then differ in their devices",
        cure: "pass the device's file into the container, or leave the device out on every host with NCCL_IB_HCA",
        look: open,
    },
];

/// What is lost without an optional function of libibverbs. Those of no consequence for older devices are not named.
const LOST: [(&str, &str); 4] = [
    ("_ibv_query_gid_ex", "RoCE versions of GIDs where /sys does not show them"),
    ("ibv_query_ece", "options that devices agree on (ECE)"),
    ("ibv_reg_mr_iova2", "relaxed ordering on PCIe"),
    ("ibv_reg_dmabuf_mr", "GPU memory by dma-buf"),
];

/// The row that says why libibverbs lists no device that can be used.
pub(crate) fn cause_of_no_device(machine: &Machine) -> &'static str {
    let is_unopened = machine.verbs().is_ok_and(|facts| !facts.unopened.is_empty());
    match kernel_devices(machine).is_empty() {
        true => "device-nodes",
        false if is_unopened => "open",
        false => "providers",
    }
}

fn libibverbs(machine: &Machine) -> Vec<Finding> {
    let facts = match machine.verbs() {
        Ok(facts) => facts,
        Err(why) => return vec![Finding::fail("", why)],
    };
    let library = &facts.library;
    let lost = |(function, version): &(String, String)| {
        let (_, feature) = LOST.iter().find(|(name, _)| name == function)?;
        Some(format!("{feature} (from {version} on)"))
    };
    let lost: Vec<String> = library.missing.iter().filter_map(lost).collect();
    let mut found = match lost.is_empty() {
        true => vec![Finding::ok("", library.path.clone())],
        false => vec![Finding::warn("", format!("{} is old: it lacks {}", library.path, lost.join(", ")))],
    };
    found.extend(library.others.iter().map(|other| {
        let cure = "unset LD_PRELOAD and LD_LIBRARY_PATH, or have them lead to one libibverbs";
        Finding::warn("", format!("{other} is loaded as well, and each of the two has devices of its own")).cure(cure)
    }));
    found
}

/// The kernel's RDMA devices, each with its driver.
fn kernel_devices(machine: &Machine) -> Vec<(String, String)> {
    let class = Path::new("/sys/class/infiniband");
    let driver = |name: &str| machine.root.link_name(class.join(name).join("device/driver"));
    machine.root.names(class).into_iter().map(|name| (name.clone(), driver(&name).unwrap_or_default())).collect()
}

fn providers(machine: &Machine) -> Vec<Finding> {
    let Ok(facts) = machine.verbs() else { return Finding::no_verbs() };
    let is_listed = |name: &str| {
        facts.devices.iter().any(|device| device.name == name) || facts.unopened.iter().any(|text| text.contains(name))
    };
    let kernel = kernel_devices(machine);
    let missing = kernel.iter().filter(|(name, _)| !is_listed(name)).map(|(name, driver)| {
        let driver = if driver.is_empty() { String::new() } else { format!(" (kernel driver {driver})") };
        Finding::fail(name.as_str(), format!("the kernel has it, libibverbs does not list it{driver}"))
    });
    let missing: Vec<Finding> = missing.collect();
    if !missing.is_empty() {
        return missing;
    }
    if facts.no_list.is_some() {
        return vec![Finding::unknown("", "libibverbs gives no list of devices: see `open`")];
    }
    let listed = facts.devices.len() + facts.unopened.len();
    let drivers = machine.root.names("/etc/libibverbs.d").len();
    let text = format!(
        "libibverbs lists {listed} devices, the kernel {}; /etc/libibverbs.d names {drivers} providers",
        kernel.len()
    );
    vec![Finding::judge(listed > 0, Verdict::Fail, "", text).follows("device-nodes")]
}

fn device_nodes(machine: &Machine) -> Vec<Finding> {
    let nodes: Vec<String> = machine
        .root
        .names("/sys/class/infiniband_verbs")
        .into_iter()
        .filter(|name| name.starts_with("uverbs"))
        .collect();
    if nodes.is_empty() {
        let listed = machine.verbs().is_ok_and(|facts| !facts.devices.is_empty());
        let text = if listed {
            "the kernel knows no RDMA device; those of libibverbs need none of its files"
        } else {
            "the kernel knows no RDMA device (/sys/class/infiniband_verbs is empty or missing)"
        };
        return vec![Finding::judge(listed, Verdict::Fail, "", text)];
    }
    nodes
        .iter()
        .map(|node| {
            let path = format!("/dev/infiniband/{node}");
            match OpenOptions::new().read(true).write(true).open(machine.root.path(&path)) {
                Ok(_) => Finding::ok(path, "can be opened"),
                Err(problem) => Finding::fail(path, format!("cannot be opened: {problem}")),
            }
        })
        .collect()
}

fn open(machine: &Machine) -> Vec<Finding> {
    let Ok(facts) = machine.verbs() else { return Finding::no_verbs() };
    let cause = if kernel_devices(machine).is_empty() { "device-nodes" } else { "providers" };
    if let Some(why) = &facts.no_list {
        return vec![Finding::fail("", why.as_str()).follows(cause)];
    }
    if facts.devices.is_empty() && facts.unopened.is_empty() {
        return vec![Finding::fail("", "libibverbs lists no device").follows(cause)];
    }
    let firmware = |text: &str| if text.is_empty() { String::new() } else { format!(", firmware {text}") };
    let opened = facts.devices.iter();
    let opened = opened
        .map(|d| Finding::ok(d.name.as_str(), format!("opened, {} ports{}", d.ports.len(), firmware(&d.firmware))));
    let verdict = if facts.devices.is_empty() { Finding::fail } else { Finding::warn };
    opened.chain(facts.unopened.iter().map(|why| verdict(String::new(), why.clone()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::verbs_facts::{DeviceFacts, VerbsFacts};

    #[test]
    fn a_device_that_cannot_be_opened_beside_one_that_can_warns() {
        let device = DeviceFacts { name: "x0".into(), ..DeviceFacts::default() };
        let facts = VerbsFacts { devices: vec![device], unopened: vec!["x1: refused".into()], ..VerbsFacts::default() };
        let machine = Machine::made_up(Path::new("/nonexistent"), &[], facts);
        let verdicts: Vec<Verdict> = open(&machine).iter().map(|finding| finding.verdict).collect();
        assert_eq!(verdicts, [Verdict::Ok, Verdict::Warn]);
    }
}
