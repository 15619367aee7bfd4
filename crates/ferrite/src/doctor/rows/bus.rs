//! The PCIe bus: links of the devices, and the way between a GPU and a network card.

use crate::doctor::finding::{Finding, Verdict};
use crate::doctor::machine::Machine;
use crate::doctor::pci::{self, PciFunction};
use crate::doctor::row::Row;
use lab::system::root::Root;

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "pcie",
        what: "the PCIe link of each RDMA device has the width and speed that the device can have, and carries what its ports do; \
               FAIL below half of that",
        why: "a card in a narrow slot, or a link that came up narrow, bounds the bandwidth",
        cure: "reseat the card, another slot or riser, the BIOS's setting of the slot's speed (`lspci -vv` shows LnkSta)",
        look: pcie,
    },
    Row {
        name: "gpu-distance",
        what: "each GPU has an RDMA device below the same PCIe switch or root port",
        why: "GPUDirect RDMA over the CPU's root complex is slower, and NCCL may then not use it at all",
        cure: "another slot; NCCL_NET_GDR_LEVEL=PHB or SYS where the way over the root complex is fast enough",
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
    let nics = pci::nics(&machine.root);
    let found: Vec<Finding> = nics.iter().map(|nic| of_nic(&machine.root, nic)).collect();
    if found.is_empty() { vec![Finding::unknown("", "/sys/class/infiniband shows no device")] } else { found }
}

fn of_nic(root: &Root, nic: &PciFunction) -> Finding {
    let name = nic.name.as_str();
    let (Some(now), Some(most)) = (Link::read(root, nic, "current"), Link::read(root, nic, "max")) else {
        return Finding::unknown(name, "/sys does not tell its PCIe link (a virtual function does not)");
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
    let of_port =
        |port: String| root.text(format!("{ports}/{port}/rate"))?.split_whitespace().next()?.parse::<f64>().ok();
    root.names(&ports).into_iter().filter_map(of_port).sum()
}

fn gpu_distance(machine: &Machine) -> Vec<Finding> {
    let (gpus, nics) = (pci::gpus(&machine.root), pci::nics(&machine.root));
    if gpus.is_empty() || nics.is_empty() {
        return vec![Finding::unknown("", format!("/sys shows {} GPUs and {} RDMA devices", gpus.len(), nics.len()))];
    }
    let of_gpu = |gpu: &PciFunction| {
        let near: Vec<&str> = nics.iter().filter(|nic| share_bridge(gpu, nic)).map(|nic| nic.name.as_str()).collect();
        if !near.is_empty() {
            return Finding::ok(gpu.name.as_str(), format!("shares a bridge with {}", near.join(", ")));
        }
        let node = gpu.numa_node(&machine.root);
        let same = nics.iter().filter(|nic| node.is_some() && nic.numa_node(&machine.root) == node);
        let same: Vec<&str> = same.map(|nic| nic.name.as_str()).collect();
        let text = match same.is_empty() {
            true => "no RDMA device shares a bridge or its NUMA node".to_owned(),
            false => format!("no RDMA device shares a bridge; on its NUMA node: {}", same.join(", ")),
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
