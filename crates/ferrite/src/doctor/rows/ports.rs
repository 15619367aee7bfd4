//! What ports report of themselves.

use nccl_net::inspect::hca::HcaFilter;

use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::machine::Machine;
use crate::doctor::row::Row;
use crate::doctor::rows::devices;
use crate::doctor::verbs_facts::{DeviceFacts, PortFacts, VerbsFacts};

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "ports",
        what: "a port is active and NCCL_IB_HCA admits it; warn if an admitted one is down, if an entry of NCCL_IB_HCA names no port, or if NCCL's built-in transport reads the list differently",
        why: "the plugin uses active ports alone, and hosts whose ports differ cannot be connected rail by rail",
        cure: "cable and transceiver; `ip link set DEV up` for RoCE; a subnet manager for InfiniBand; leave an unused port out with NCCL_IB_HCA",
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
        why: "without them no packet is addressed",
        cure: "start a subnet manager (opensm, or that of the switch), and look at its log",
        look: lid,
    },
    Row {
        name: "speed",
        what: "ports that are used together are equally fast",
        why: "a link that came up at a lower speed slows every collective",
        cure: "reseat the cable, look at the switch port (`mlxlink -d DEV`, `ethtool DEV`) and its forced speed",
        look: speed,
    },
    Row {
        name: "mtu",
        what: "the active MTU is the largest that the port can have",
        why: "more packets for the same data, and peers with different MTUs may lose all large packets",
        cure: "RoCE: `ip link set DEV mtu 9000`, and the same on the switch; InfiniBand: the subnet manager's partition file (mtu=5)",
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
            (active, false) if !filter.admits(&device.name, port.port) => {
                Finding::ok(name, format!("{}active, not used: {excluded}", if active { "" } else { "not " }))
            }
            _ => Finding::warn(name, "not active"),
        })
        .collect();
    for device in &facts.devices {
        let failed = device.ports.iter().filter_map(|port| Some((port.port, port.error.as_ref()?)));
        found.extend(failed.map(|(port, why)| Finding::fail(format!("{}:{port}", device.name), why.as_str())));
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
        let entries = filter.without_effect(&there).into_iter().map(|entry| of_list(entry.is_mistake, entry.why));
        let other = filter.differences().into_iter().map(|why| of_list(true, why));
        found.extend(entries.chain(other).map(|finding| match finding.verdict {
            Verdict::Ok => finding,
            _ => finding.cure(name_cure),
        }));
    }
    if facts.devices.is_empty() {
        let cause = devices::cause_of_no_device(machine);
        found.push(Finding::fail("", "the plugin would use no port: no device is open").follows(cause));
    } else if facts.rails.is_empty() {
        let is_excluded = there.iter().all(|(name, port)| !filter.admits(name, *port));
        let why = if is_excluded { format!("NCCL_IB_HCA={setting} excludes all of them") } else { "see above".into() };
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
    let no_infiniband =
        machine.verbs().is_ok_and(|facts| !facts.ports().any(|(_, _, port)| port.active && port.is_infiniband()));
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
            Finding::warn(rail.name(), format!("{text}, and another port has {} Gb/s", f64::from(best) / 1000.0))
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
        let interface = port.is_ethernet().then(|| interface_mtu(machine, &device.name, port.port)).flatten();
        let behind = interface.as_ref().map_or(String::new(), |(name, mtu)| format!("; {name} has {mtu}"));
        let finding = Finding::judge(mtu >= max_mtu, Verdict::Warn, name, format!("{mtu} of {max_mtu} bytes{behind}"));
        Some(match interface.filter(|_| finding.verdict > Verdict::Ok) {
            Some((interface, _)) => {
                finding.cure(format!("ip link set {interface} mtu 9000, and the same on the switch and on every host"))
            }
            None => finding,
        })
    })
}

/// The network interface of a RoCE port, and its MTU.
fn interface_mtu(machine: &Machine, device: &str, port: u8) -> Option<(String, i64)> {
    let folder = format!("/sys/class/infiniband/{device}/ports/{port}/gid_attrs/ndevs");
    let name = machine.root.names(&folder).iter().find_map(|index| machine.root.text(format!("{folder}/{index}")))?;
    let mtu = machine.root.number(format!("/sys/class/net/{name}/mtu"))?;
    Some((name, mtu))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::verbs_facts::RailFacts;

    fn machine(port: PortFacts) -> Machine {
        let device = DeviceFacts { name: "x0".into(), ports: vec![port], ..DeviceFacts::default() };
        let facts = VerbsFacts { devices: vec![device], ..VerbsFacts::default() };
        Machine::made_up(std::path::Path::new("/nonexistent"), &[], facts)
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
        assert_eq!([verdict(7, 1), verdict(0, 1), verdict(7, 0)], [Verdict::Ok, Verdict::Fail, Verdict::Fail]);
    }

    #[test]
    fn a_port_that_is_down_warns_and_is_a_failure_where_it_is_the_only_one() {
        let port = |number, active| PortFacts { port: number, active, ..PortFacts::default() };
        let device =
            DeviceFacts { name: "x0".into(), ports: vec![port(1, true), port(2, false)], ..DeviceFacts::default() };
        let rail = RailFacts { device: "x0".into(), port: 1, ..RailFacts::default() };
        let mut facts = VerbsFacts { devices: vec![device], rails: vec![rail], ..VerbsFacts::default() };
        let verdicts = |facts: &VerbsFacts| {
            let machine = Machine::made_up(std::path::Path::new("/nonexistent"), &[], facts.clone());
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
