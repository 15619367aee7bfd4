//! What keeps PCIe functions apart: access control of bridges, and the IOMMU.

use std::path::{Path, PathBuf};

use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;
use crate::doctor::pci;
use crate::doctor::row::Row;

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "acs",
        what: "bridges above GPUs and RDMA devices do not redirect requests between them (PCIe access control services); needs root",
        why: "redirected requests pass the root complex, which can halve the bandwidth of GPUDirect RDMA",
        cure: "as root `setpci -s BRIDGE ECAP_ACS+6.w=0000` after each start, or ACS off in the BIOS; a virtual machine's host decides for it",
        look: acs,
    },
    Row {
        name: "iommu",
        what: "RDMA devices reach memory without translation, where there are GPUs",
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
    let gpus = pci::gpus(&machine.root);
    if gpus.is_empty() {
        return vec![Finding::ok("", "no NVIDIA GPU, so no traffic between functions")];
    }
    let mut bridges: Vec<PathBuf> =
        gpus.iter().chain(&pci::nics(&machine.root)).flat_map(pci::PciFunction::bridges).collect();
    bridges.sort();
    bridges.dedup();
    let (mut found, mut unread) = (Vec::new(), None);
    for bridge in &bridges {
        match pci::capability(&machine.root, bridge, ACS, CONTROL) {
            Ok(Some(control)) if control & REDIRECT != 0 => {
                found.push(Finding::warn(name(bridge), format!("redirects requests (ACS control {control:#06x})")));
            }
            Ok(_) => {}
            Err(why) => unread = Some(Finding::unknown(name(bridge), why)),
        }
    }
    found.extend(unread);
    if found.is_empty() {
        found.push(Finding::ok("", format!("none of {} bridges redirects requests", bridges.len())));
    }
    found
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn iommu(machine: &Machine) -> Vec<Finding> {
    let root = &machine.root;
    let has_gpus = !pci::gpus(root).is_empty();
    let of_nic = |nic: pci::PciFunction| {
        let Some(kind) = root.text(nic.path.join("iommu_group/type")) else {
            return Finding::ok(nic.name, "no IOMMU");
        };
        let text = format!("IOMMU group of type {kind}");
        if !kind.starts_with("DMA") || !has_gpus {
            return Finding::ok(nic.name, text);
        }
        match pci::capability(root, &nic.path, ATS, CONTROL) {
            Ok(Some(control)) if control & ATS_ENABLED != 0 => Finding::ok(nic.name, text + ", with ATS"),
            Ok(_) => Finding::warn(nic.name, text + " (translated), without ATS"),
            Err(why) => Finding::warn(nic.name, format!("{text} (translated); ATS is not known: {why}")),
        }
    };
    let found: Vec<Finding> = pci::nics(root).into_iter().map(of_nic).collect();
    if found.is_empty() { vec![Finding::unknown("", "/sys/class/infiniband shows no device")] } else { found }
}
