//! From libibverbs to open devices.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::Path;
use std::time::Duration;

use lab::system::dist::Root;
use nccl_net::inspect::hca::HcaFilter;

use crate::doctor::machine::{
    DeviceFacts, GidFacts, LoopbackFacts, Machine, PortFacts, VerbsFacts,
};
use crate::doctor::report::{Finding, Row, Verdict};

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "libibverbs",
        what: "libibverbs can be loaded; warn if it is too old for a feature of the plugin",
        why: "the plugin finds RDMA devices through it alone",
        cure: "install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or libibverbs (RHEL), rdma-core 34 or newer",
        look: libibverbs,
    },
    Row {
        name: "device-nodes",
        what: "the kernel has RDMA devices, and the files /dev/infiniband/uverbs* can be opened",
        why: "libibverbs reaches a device through its file",
        cure: "docker run --device=/dev/infiniband, or in Kubernetes the device plugin; on a host without RDMA driver: modprobe ib_uverbs",
        look: device_nodes,
    },
    Row {
        name: "providers",
        what: "libibverbs has a provider (a driver's library) for each RDMA device of the kernel",
        why: "without it libibverbs does not list the device",
        cure: "in this container too, install ibverbs-providers, or the vendor's libraries in a version that supports the device",
        look: providers,
    },
    Row {
        name: "open",
        what: "each device that libibverbs lists can be opened; warn if only some can",
        why: "a device that cannot be opened is not used, and ranks then differ in their devices",
        cure: "pass the device's file into the container, or exclude the device on every host with NCCL_IB_HCA",
        look: open,
    },
];

/// What is lost without an optional function of libibverbs. Those of no consequence for older
/// devices are not named.
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
        false => vec![Finding::warn(
            "",
            format!("{} is old: it lacks {}", library.path, lost.join(", ")),
        )],
    };
    found.extend(library.others.iter().map(|other| {
        let cure = "unset LD_PRELOAD and LD_LIBRARY_PATH, or have them lead to one libibverbs";
        Finding::warn(
            "",
            format!("{other} is loaded as well, and each of the two has devices of its own"),
        )
        .cure(cure)
    }));
    found
}

/// The kernel's RDMA devices, each with its driver.
fn kernel_devices(machine: &Machine) -> Vec<(String, String)> {
    let class = Path::new("/sys/class/infiniband");
    let driver = |name: &str| machine.root.link_name(class.join(name).join("device/driver"));
    machine
        .root
        .names(class)
        .into_iter()
        .map(|name| (name.clone(), driver(&name).unwrap_or_default()))
        .collect()
}

fn providers(machine: &Machine) -> Vec<Finding> {
    let Ok(facts) = machine.verbs() else { return Finding::no_verbs() };
    let is_listed = |name: &str| {
        facts.devices.iter().any(|device| device.name == name)
            || facts.unopened.iter().any(|text| text.contains(name))
    };
    let kernel = kernel_devices(machine);
    let missing = kernel.iter().filter(|(name, _)| !is_listed(name)).map(|(name, driver)| {
        let driver =
            if driver.is_empty() { String::new() } else { format!(" (kernel driver {driver})") };
        Finding::fail(
            name.as_str(),
            format!("the kernel has it, libibverbs does not list it{driver}"),
        )
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
    let firmware =
        |text: &str| if text.is_empty() { String::new() } else { format!(", firmware {text}") };
    let opened = facts.devices.iter();
    let opened = opened.map(|d| {
        Finding::ok(
            d.name.as_str(),
            format!("opened, {} ports{}", d.ports.len(), firmware(&d.firmware)),
        )
    });
    let verdict = if facts.devices.is_empty() { Finding::fail } else { Finding::warn };
    opened.chain(facts.unopened.iter().map(|why| verdict(String::new(), why.clone()))).collect()
}

pub(crate) const PORT_ROWS: &[Row] = &[
    Row {
        name: "ports",
        what: "an active port is admitted by NCCL_IB_HCA; warn if an admitted one is down, an entry matches none, or NCCL reads the list differently",
        why: "the plugin uses active ports alone, and hosts whose ports differ cannot be connected rail by rail",
        cure: "check cable and transceiver; RoCE: `ip link set DEV up`; InfiniBand: the subnet manager; exclude an unused port with NCCL_IB_HCA",
        look: ports,
    },
    Row {
        name: "link-layer",
        what: "each active port is InfiniBand or Ethernet (RoCE)",
        why: "others, such as AWS EFA, have no reliable-connected queue pairs, and the plugin does not use them",
        cure: "use the vendor's own NCCL plugin for these devices",
        look: link_layer,
    },
    Row {
        name: "lid",
        what: "InfiniBand: an active port has a LID and knows a subnet manager",
        why: "without them no packet can be addressed",
        cure: "start a subnet manager (opensm, or that of the switch), and read its log",
        look: lid,
    },
    Row {
        name: "speed",
        what: "ports that are used together are equally fast",
        why: "a link that came up at a lower speed slows every collective",
        cure: "reseat the cable; check the switch port and a forced speed (`mlxlink -d DEV`, `ethtool DEV`)",
        look: speed,
    },
    Row {
        name: "mtu",
        what: "the active MTU is the largest that the port supports",
        why: "more packets for the same data, and peers with different MTUs may lose all large packets",
        cure: "RoCE: `ip link set DEV mtu 9000`, and the same on the switch; InfiniBand: mtu=5 in the subnet manager's partition file",
        look: mtu,
    },
];

/// A finding for each port of the machine; `none` where there are none.
fn of_ports(
    machine: &Machine,
    none: &str,
    look: impl Fn(&VerbsFacts, &str, &DeviceFacts, &PortFacts) -> Option<Finding>,
) -> Vec<Finding> {
    let Ok(facts) = machine.verbs() else { return Finding::no_verbs() };
    let found: Vec<Finding> =
        facts.ports().filter_map(|(name, device, port)| look(facts, &name, device, port)).collect();
    if found.is_empty() { vec![Finding::unknown("", none)] } else { found }
}

fn ports(machine: &Machine) -> Vec<Finding> {
    let Ok(facts) = machine.verbs() else { return Finding::no_verbs() };
    let setting = machine.var("NCCL_IB_HCA").unwrap_or_default();
    // One that cannot be read has a row of its own.
    let filter = HcaFilter::parse(setting).unwrap_or_default();
    let excluded = format!("NCCL_IB_HCA={setting} excludes it");
    let mut found: Vec<Finding> = facts
        .ports()
        .map(|(name, device, port)| match (port.active, facts.is_used(device, port)) {
            (true, true) => Finding::ok(name, "active"),
            (true, false) if filter.admits(&device.name, port.port) => {
                Finding::ok(name, "active, not used: see the other rows")
            }
            (active, false) if !filter.admits(&device.name, port.port) => Finding::ok(
                name,
                format!("{}active, not used: {excluded}", if active { "" } else { "not " }),
            ),
            _ => Finding::warn(name, "not active"),
        })
        .collect();
    for device in &facts.devices {
        let failed = device.ports.iter().filter_map(|port| Some((port.port, port.error.as_ref()?)));
        found.extend(
            failed
                .map(|(port, why)| Finding::fail(format!("{}:{port}", device.name), why.as_str())),
        );
    }
    let there: Vec<(&str, u8)> = facts
        .devices
        .iter()
        .flat_map(|device| device.ports.iter().map(|port| (device.name.as_str(), port.port)))
        .collect();
    let name_cure = "correct NCCL_IB_HCA, or unset it";
    if !there.is_empty() {
        let of_list = |is_mistake: bool, why: String| {
            Finding::judge(!is_mistake, Verdict::Warn, "", format!("NCCL_IB_HCA={setting}: {why}"))
        };
        let entries = filter
            .without_effect(&there)
            .into_iter()
            .map(|entry| of_list(entry.is_mistake, entry.why));
        let other = filter.differences().into_iter().map(|why| of_list(true, why));
        found.extend(entries.chain(other).map(|finding| match finding.verdict {
            Verdict::Ok => finding,
            _ => finding.cure(name_cure),
        }));
    }
    if facts.devices.is_empty() {
        let cause = cause_of_no_device(machine);
        found.push(
            Finding::fail("", "the plugin would use no port: no device is open").follows(cause),
        );
    } else if facts.rails.is_empty() {
        let is_excluded = there.iter().all(|(name, port)| !filter.admits(name, *port));
        let why = if is_excluded {
            format!("NCCL_IB_HCA={setting} excludes all of them")
        } else {
            "see above".into()
        };
        let finding = Finding::fail("", format!("the plugin would use no port: {why}"));
        found.push(if is_excluded { finding.cure(name_cure) } else { finding });
    }
    found
}

fn link_layer(machine: &Machine) -> Vec<Finding> {
    of_ports(machine, "there is no active port", |_, name, _, port| {
        let is_known = port.is_ethernet() || port.is_infiniband();
        let text = if is_known {
            port.link_layer.clone()
        } else {
            format!("link layer {}, which is neither InfiniBand nor Ethernet", port.link_layer)
        };
        port.active.then(|| Finding::judge(is_known, Verdict::Fail, name, text))
    })
}

fn lid(machine: &Machine) -> Vec<Finding> {
    let found = of_ports(machine, "", |_, name, _, port| {
        let PortFacts { lid, sm_lid, .. } = port;
        let text = format!("LID {lid}, subnet manager at LID {sm_lid}");
        (port.active && port.is_infiniband())
            .then(|| Finding::judge(*lid != 0 && *sm_lid != 0, Verdict::Fail, name, text))
    });
    let no_infiniband = machine
        .verbs()
        .is_ok_and(|facts| !facts.ports().any(|(_, _, port)| port.active && port.is_infiniband()));
    if no_infiniband { vec![Finding::ok("", "no active InfiniBand port")] } else { found }
}

fn speed(machine: &Machine) -> Vec<Finding> {
    let Ok(facts) = machine.verbs() else { return Finding::no_verbs() };
    let best = facts.rails.iter().map(|rail| rail.speed_mbps).max().unwrap_or(0);
    let found: Vec<Finding> = facts
        .rails
        .iter()
        .map(|rail| {
            let gbps = f64::from(rail.speed_mbps) / 1000.0;
            let text = format!("{gbps} Gb/s");
            if rail.speed_mbps == best {
                return Finding::ok(rail.name(), text);
            }
            Finding::warn(
                rail.name(),
                format!("{text}, and another port has {} Gb/s", f64::from(best) / 1000.0),
            )
        })
        .collect();
    if found.is_empty() { vec![Finding::unknown("", "no port is used")] } else { found }
}

fn mtu(machine: &Machine) -> Vec<Finding> {
    of_ports(machine, "no port is used", |facts, name, device, port| {
        let PortFacts { mtu, max_mtu, .. } = port;
        if !facts.is_used(device, port) {
            return None;
        }
        let interface =
            port.is_ethernet().then(|| interface_mtu(machine, &device.name, port.port)).flatten();
        let behind =
            interface.as_ref().map_or(String::new(), |(name, mtu)| format!("; {name} has {mtu}"));
        let finding = Finding::judge(
            mtu >= max_mtu,
            Verdict::Warn,
            name,
            format!("{mtu} of {max_mtu} bytes{behind}"),
        );
        Some(match interface.filter(|_| finding.verdict > Verdict::Ok) {
            Some((interface, _)) => finding.cure(format!(
                "ip link set {interface} mtu 9000, and the same on the switch and on every host"
            )),
            None => finding,
        })
    })
}

/// The network interface of a RoCE port, and its MTU.
fn interface_mtu(machine: &Machine, device: &str, port: u8) -> Option<(String, i64)> {
    let folder = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs");
    let name = machine
        .root
        .names(&folder)
        .iter()
        .find_map(|index| machine.root.text(format!("{folder}/{index}")))?;
    let mtu = machine.root.number(format!("/sys/class/net/{name}/mtu"))?;
    Some((name, mtu))
}

pub(crate) const GID_ROWS: &[Row] = &[
    Row {
        name: "gid",
        what: "each used port has a GID: which one the plugin chooses, and why; warn if RoCE v1, link-local or outside NCCL_IB_ADDR_RANGE",
        why: "RoCE v1 and link-local addresses are not routed, and an index may mean another GID on another host",
        cure: "give the interface an IP address; unset NCCL_IB_GID_INDEX, or choose an entry that the line shows; or choose by NCCL_IB_ADDR_FAMILY, NCCL_IB_ADDR_RANGE",
        look: gid,
    },
    Row {
        name: "pkey",
        what: "queue pairs can use the partition key that NCCL_IB_PKEY or NCCL_IB_PKEY_VALUE selects",
        why: "a queue pair belongs to one partition, and peers in another one do not receive its packets",
        cure: "unset NCCL_IB_PKEY and NCCL_IB_PKEY_VALUE, or have the subnet manager add this port to the partition (`cat /sys/class/infiniband/DEV/ports/1/pkeys/*`)",
        look: pkey,
    },
];

fn gid(machine: &Machine) -> Vec<Finding> {
    let Ok(facts) = machine.verbs() else { return Finding::no_verbs() };
    let found: Vec<Finding> = facts
        .rails
        .iter()
        .map(|rail| match &rail.gid {
            Some(Err(why)) => Finding::fail(rail.name(), why.as_str()),
            _ if rail.infiniband => Finding::ok(rail.name(), rail.description.as_str()),
            Some(Ok(gid)) => {
                Finding::judge(is_good(gid), Verdict::Warn, rail.name(), rail.description.as_str())
            }
            None => Finding::unknown(rail.name(), "it was not looked at"),
        })
        .collect();
    if found.is_empty() { vec![Finding::unknown("", "no port is used")] } else { found }
}

/// The plugin's description says what is not.
fn is_good(gid: &GidFacts) -> bool {
    !gid.link_local && gid.roce_version != Some(1) && !gid.is_outside_range
}

fn pkey(machine: &Machine) -> Vec<Finding> {
    let Ok(facts) = machine.verbs() else { return Finding::no_verbs() };
    let used = facts.ports().filter(|(_, device, port)| facts.is_used(device, port));
    let found: Vec<Finding> = used
        .filter_map(|(name, device, port)| {
            Some(match port.pkey.as_ref()? {
                Ok(index) => Finding::ok(
                    name,
                    format!(
                        "entry {index} of {}{}",
                        port.pkey_count,
                        value(machine, &device.name, port.port, *index)
                    ),
                ),
                Err(why) => Finding::fail(name, why.as_str()),
            })
        })
        .collect();
    if found.is_empty() { vec![Finding::unknown("", "no port is used")] } else { found }
}

/// The partition key, where /sys shows it.
fn value(machine: &Machine, device: &str, port: u8, index: u16) -> String {
    let text =
        machine.root.text(format!("/sys/class/infiniband/{device}/ports/{port}/pkeys/{index}"));
    text.map_or(String::new(), |key| format!(", {key}"))
}

pub(crate) const COUNTER_ROWS: &[Row] = &[
    Row {
        name: "errors",
        what: "the error counters of each port are 0, and its interface lost the link at most 10 times",
        why: "a bad cable or transceiver shows here first; each error costs a retry",
        cure: "clean or replace cable and transceiver; check the switch port; `perfquery -x` and `mlxlink -c` show more",
        look: errors,
    },
    Row {
        name: "retries",
        what: "counters of retries, time-outs and lost packets stay the same for a second with only the doctor's message on the wire",
        why: "they grow when the fabric loses packets, also those of other jobs on this host",
        cure: "find the loss: PFC and ECN of the class (`traffic-class`), the switch's drop counters, duplicate addresses",
        look: retries,
    },
];

/// In `counters`.
const ERRORS: [&str; 6] = [
    "symbol_error", "link_error_recovery", "link_downed", "port_rcv_errors",
    "local_link_integrity_errors", "excessive_buffer_overrun_errors",
];
/// In `hw_counters`.
const RETRIES: [&str; 8] = [
    "out_of_sequence", "packet_seq_err", "local_ack_timeout_err", "implied_nak_seq_err",
    "rnr_nak_retry_err", "roce_adp_retrans_to", "rx_icrc_encapsulated", "req_remote_access_errors",
];
/// Changes of an interface's link that are allowed: its start makes some.
const CARRIER_CHANGES: i64 = 10;

const CLASS: &str = "/sys/class/infiniband";

/// The folders of all ports, each with the name of the port.
fn counted_ports(root: &Root) -> Vec<(String, String)> {
    let devices = root.names(CLASS).into_iter();
    let of_device = |device: String| {
        let ports = format!("{CLASS}/{device}/ports");
        root.names(&ports)
            .into_iter()
            .map(move |port| (format!("{device}:{port}"), format!("{ports}/{port}")))
    };
    devices.flat_map(of_device).collect()
}

fn errors(machine: &Machine) -> Vec<Finding> {
    let root = &machine.root;
    let found: Vec<Finding> = counted_ports(root)
        .into_iter()
        .filter_map(|(name, folder)| {
            let counters = ERRORS
                .iter()
                .filter_map(|c| Some((*c, root.number(format!("{folder}/counters/{c}"))?)));
            let mut counters: Vec<(&str, i64)> = counters.collect();
            let interface = root.text(format!("{folder}/gid_attrs/ndevs/0"));
            let changes = interface
                .and_then(|name| root.number(format!("/sys/class/net/{name}/carrier_changes")));
            counters.extend(changes.map(|changes| ("carrier_changes", changes)));
            if counters.is_empty() {
                return None;
            }
            let most =
                |counter: &str| if counter == "carrier_changes" { CARRIER_CHANGES } else { 0 };
            let bad: Vec<String> = counters
                .iter()
                .filter(|(c, n)| *n > most(c))
                .map(|(c, n)| format!("{c} {n}"))
                .collect();
            Some(match bad.is_empty() {
                true => Finding::ok(name, format!("{} counters, no errors", counters.len())),
                false => Finding::warn(name, bad.join(", ")),
            })
        })
        .collect();
    if found.is_empty() { vec![Finding::unknown("", "/sys shows no counters")] } else { found }
}

/// All of [`RETRIES`] that there are, by port.
fn read_retries(root: &Root) -> BTreeMap<(String, &'static str), i64> {
    let of_port = |(name, folder): (String, String)| {
        RETRIES.iter().filter_map(move |counter| {
            Some((
                (name.clone(), *counter),
                root.number(format!("{folder}/hw_counters/{counter}"))?,
            ))
        })
    };
    counted_ports(root).into_iter().flat_map(of_port).collect()
}

fn retries(machine: &Machine) -> Vec<Finding> {
    let before = read_retries(&machine.root);
    if before.is_empty() {
        return vec![Finding::unknown("", "/sys shows no such counters")];
    }
    machine.loopback();
    std::thread::sleep(Duration::from_secs(1));
    let moved: Vec<Finding> = read_retries(&machine.root)
        .into_iter()
        .filter_map(|(key, now)| {
            let grown = now - before.get(&key).copied()?;
            (grown > 0).then(|| Finding::warn(key.0, format!("{} grew by {grown}", key.1)))
        })
        .collect();
    if moved.is_empty() {
        vec![Finding::ok("", format!("{} counters, none moved", before.len()))]
    } else {
        moved
    }
}

pub(crate) const TRAFFIC_ROWS: &[Row] = &[Row {
    name: "traffic-class",
    what: "RoCE: the traffic class (NCCL_IB_TC), and ECN for its priority if the driver shows it. PFC cannot be seen from here",
    why: "RoCE loses packets in a congested class that is not lossless, and each loss costs a time-out",
    cure: "set NCCL_IB_TC=106 if the fabric's RoCE class is DSCP 26; check `mlnx_qos -i DEV`; enable roce_np and roce_rp in /sys/class/net/DEV/ecn",
    look: traffic_class,
}];

fn traffic_class(machine: &Machine) -> Vec<Finding> {
    let Ok(facts) = machine.verbs() else { return Finding::no_verbs() };
    let ethernet: Vec<_> = facts.rails.iter().filter(|rail| !rail.infiniband).collect();
    if ethernet.is_empty() {
        return vec![Finding::ok("", "no RoCE port is used")];
    }
    let class = facts.traffic_class;
    let (dscp, priority) = (class >> 2, class >> 5);
    let said =
        format!("traffic class {class}, DSCP {dscp}, priority {priority} if DSCP is trusted");
    let of_rail = |device: &str, port: u8, name: String| {
        let off = ecn_off(&machine.root, device, port, priority)?;
        let text = match off.is_empty() {
            true => return Some(Finding::ok(name, format!("{said}; ECN is on"))),
            false => format!("{said}; ECN is off ({})", off.join(", ")),
        };
        Some(Finding::warn(name, text))
    };
    let found = ethernet.iter().map(|rail| {
        let unknown =
            || Finding::unknown(rail.name(), format!("{said}; the driver does not show ECN"));
        of_rail(&rail.device, rail.port, rail.name()).unwrap_or_else(unknown)
    });
    found.collect()
}

/// The switches of ECN that are off for a priority. `None`: the driver shows none.
fn ecn_off(root: &Root, device: &str, port: u8, priority: u8) -> Option<Vec<String>> {
    let folder = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs");
    let interface =
        root.names(&folder).iter().find_map(|index| root.text(format!("{folder}/{index}")))?;
    let switch = |side: &str| {
        Some((
            side.to_owned(),
            root.number(format!("/sys/class/net/{interface}/ecn/{side}/enable/{priority}"))?,
        ))
    };
    let switches: Vec<(String, i64)> =
        ["roce_np", "roce_rp"].into_iter().filter_map(switch).collect();
    let off =
        switches.iter().filter(|(_, value)| *value == 0).map(|(side, _)| side.clone()).collect();
    (!switches.is_empty()).then_some(off)
}

pub(crate) const MESSAGE_ROWS: &[Row] = &[Row {
    name: "loopback",
    what: "each device connects to itself through the plugin (listen, connect, accept), and a message of 1 MiB arrives unchanged",
    why: "this is all that NCCL does, except for the path to the peer",
    cure: "follow the plugin's message; if the step to RTR times out, the neighbour is not resolved: check link, VLAN, route and GID",
    look: loopback,
}];

fn loopback(machine: &Machine) -> Vec<Finding> {
    if let Err(why) = &machine.plugin {
        return vec![Finding::unknown("", why.as_str())];
    }
    let found: Vec<Finding> = machine
        .loopback()
        .iter()
        .map(|LoopbackFacts { device, result }| match result {
            Ok(ms) => Finding::ok(
                device.as_str(),
                format!("1 MiB arrived right; connecting took {ms:.1} ms"),
            ),
            Err(why) => Finding::fail(device.as_str(), why.as_str()),
        })
        .collect();
    if found.is_empty() {
        vec![Finding::fail("", "the plugin has no device").follows(cause(machine))]
    } else {
        found
    }
}

/// The row that says why the plugin has no device.
fn cause(machine: &Machine) -> &'static str {
    match machine.verbs() {
        Err(_) => "libibverbs",
        Ok(facts) if !facts.devices.is_empty() => "ports",
        Ok(_) => cause_of_no_device(machine),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::machine::{DeviceFacts, RailFacts, VerbsFacts};

    #[test]
    fn a_device_that_cannot_be_opened_beside_one_that_can_warns() {
        let device = DeviceFacts { name: "x0".into(), ..DeviceFacts::default() };
        let facts = VerbsFacts {
            devices: vec![device],
            unopened: vec!["x1: refused".into()],
            ..VerbsFacts::default()
        };
        let machine = Machine::made_up(Path::new("/nonexistent"), &[], facts);
        let verdicts: Vec<Verdict> = open(&machine).iter().map(|finding| finding.verdict).collect();
        assert_eq!(verdicts, [Verdict::Ok, Verdict::Warn]);
    }

    fn machine(port: PortFacts) -> Machine {
        let device = DeviceFacts { name: "x0".into(), ports: vec![port], ..DeviceFacts::default() };
        let facts = VerbsFacts { devices: vec![device], ..VerbsFacts::default() };
        Machine::made_up(Path::new("/nonexistent"), &[], facts)
    }

    #[test]
    fn an_infiniband_port_needs_a_lid_and_a_subnet_manager() {
        let port = |lid, sm_lid| PortFacts {
            port: 1,
            active: true,
            link_layer: "InfiniBand".into(),
            lid,
            sm_lid,
            ..PortFacts::default()
        };
        let verdict = |lid, sm_lid| lid_verdict(&machine(port(lid, sm_lid)));
        assert_eq!(
            [verdict(7, 1), verdict(0, 1), verdict(7, 0)],
            [Verdict::Ok, Verdict::Fail, Verdict::Fail]
        );
    }

    #[test]
    fn a_port_that_is_down_warns_and_is_a_failure_where_it_is_the_only_one() {
        let port = |number, active| PortFacts { port: number, active, ..PortFacts::default() };
        let device = DeviceFacts {
            name: "x0".into(),
            ports: vec![port(1, true), port(2, false)],
            ..DeviceFacts::default()
        };
        let rail = RailFacts { device: "x0".into(), port: 1, ..RailFacts::default() };
        let mut facts =
            VerbsFacts { devices: vec![device], rails: vec![rail], ..VerbsFacts::default() };
        let verdicts = |facts: &VerbsFacts| {
            let machine = Machine::made_up(Path::new("/nonexistent"), &[], facts.clone());
            ports(&machine).iter().map(|finding| finding.verdict).collect::<Vec<_>>()
        };
        assert_eq!(verdicts(&facts), [Verdict::Ok, Verdict::Warn]);
        facts.devices[0].ports.remove(0);
        facts.rails.clear();
        assert_eq!(verdicts(&facts), [Verdict::Warn, Verdict::Fail]);
    }

    fn lid_verdict(machine: &Machine) -> Verdict {
        lid(machine)[0].verdict
    }
}
