//! Releases of what is installed, and what the kernel has to say.

use std::collections::BTreeSet;
use std::path::Path;

use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;
use crate::doctor::row::Row;
use lab::nccl::nccl_files::{NcclFile, Version};

pub(crate) const ROWS: &[Row] = &[
    Row {
        name: "nccl",
        what: "the files libnccl.so.2 where the loader and Python look, with their versions, and the one that PyTorch loads (its own package's, if there is one). Warn below 2.20, for 2.23 to 2.27, and if versions differ and it is unclear which one a job loads. Also what the release sends over its built-in transport instead of the plugin",
        why: "the plugin serves NCCL 2.20 and later; in 2.23 to 2.25 ncclCommAbort never returns after an error of a send or receive; 2.26 and 2.27 do not pass errors of a network on to the application, which waits; and a process takes the first that it finds, which may not be PyTorch's",
        cure: "one version in the image, 2.28.3 or later (or 2.20 to 2.22) if jobs are to be told of errors and to abort: remove the system's, or set LD_LIBRARY_PATH to the folder of the one that is meant",
        look: nccl,
    },
    Row {
        name: "firmware",
        what: "RDMA devices of one kind have one firmware",
        why: "fused ports and equal ranks behave alike only with equal firmware",
        cure: "update the older one (`mlxfwmanager`, `flint`), then reset the card",
        look: firmware,
    },
    Row {
        name: "kernel-log",
        what: "the kernel's log, where it may be read, has no fault of a GPU (Xid), of an RDMA driver or of the PCIe bus (AER)",
        why: "hardware that is about to fail often says so there first",
        cure: "as the line says: Xid numbers are in NVIDIA's documentation; AER names the PCIe function; health errors of mlx5 need a reset",
        look: kernel_log,
    },
];

fn nccl(machine: &Machine) -> Vec<Finding> {
    let files = machine.nccl_files();
    if files.is_empty() {
        return vec![Finding::unknown("", "no libnccl.so.2 where the loader and Python look")];
    }
    let mut found: Vec<Finding> = files.iter().map(of_file).collect();
    let versions: BTreeSet<Version> = files.iter().filter_map(|file| file.version).collect();
    let of_pytorch = files.iter().find(|file| file.is_of_pytorch);
    if versions.len() > 1 {
        found.push(match of_pytorch.filter(|file| file.version.is_some()) {
            Some(own) => Finding::ok(
                "",
                format!(
                    "{} different versions: PyTorch takes {}, other programs the loader's",
                    versions.len(),
                    own.path.display()
                ),
            ),
            None => Finding::warn(
                "",
                format!("{} different versions: a process takes the first that it finds", versions.len()),
            ),
        });
    }
    found.extend(machine.nccl().into_iter().flat_map(beside_the_plugin));
    found
}

fn of_file(NcclFile { path, version, is_of_pytorch }: &NcclFile) -> Finding {
    let shown = path.display();
    let Some(version) = version else {
        return Finding::unknown("", format!("{shown}: its version is not known"));
    };
    let who = if *is_of_pytorch { ", which PyTorch takes" } else { "" };
    let text = format!("{shown}: {}.{}.{}{who}", version.0, version.1, version.2);
    match version {
        _ if *version < (2, 20, 0) => Finding::warn("", text),
        (2, 23..=25, _) => {
            Finding::warn("", format!("{text}: ncclCommAbort does not return after an error of a send or receive"))
        }
        (2, 26 | 27, _) => Finding::warn("", format!("{text}: the application is not told of errors of the network")),
        _ => Finding::ok("", text),
    }
}

/// What a release sends over its built-in transport although it has the plugin.
fn beside_the_plugin(version: Version) -> Vec<Finding> {
    let (major, minor, patch) = version;
    let mut found = Vec::new();
    if (major, minor) >= (2, 29) {
        let text = format!(
            "NCCL {major}.{minor}.{patch} sends one-sided operations (ncclPutSignal) over its built-in transport, never over a plugin"
        );
        found.push(Finding::ok("", text));
    }
    if (major, minor) >= (2, 30) {
        let text = format!(
            "NCCL {major}.{minor}.{patch} also opens every RDMA device itself (`NET/IB : Using`), whatever carries the data"
        );
        found.push(Finding::ok("", text));
    }
    found
}

fn firmware(machine: &Machine) -> Vec<Finding> {
    let class = Path::new("/sys/class/infiniband");
    let text = |device: &str, file: &str| machine.root.text(class.join(device).join(file));
    let devices: Vec<(String, String, String)> = machine
        .root
        .names(class)
        .into_iter()
        .filter_map(|name| Some((text(&name, "hca_type")?, text(&name, "fw_ver")?, name)))
        .collect();
    let of_device = |(kind, version, name): &(String, String, String)| {
        let other = devices.iter().find(|(other, theirs, _)| other == kind && theirs != version);
        let said = format!("{kind}, firmware {version}");
        match other {
            None => Finding::ok(name.as_str(), said),
            Some((_, theirs, other)) => Finding::warn(name.as_str(), format!("{said}, and {other} has {theirs}")),
        }
    };
    if devices.is_empty() {
        return vec![Finding::unknown("", "/sys shows no firmware")];
    }
    devices.iter().map(of_device).collect()
}

/// Lines that are shown at most.
const SHOWN: usize = 3;

fn kernel_log(machine: &Machine) -> Vec<Finding> {
    let Some(text) = machine.kernel_log() else {
        return vec![Finding::unknown("", "it may not be read here (as root, or with kernel.dmesg_restrict=0)")];
    };
    let bad: Vec<&str> = text.lines().filter(|line| is_fault(line)).collect();
    if bad.is_empty() {
        return vec![Finding::ok("", format!("{} lines, no fault", text.lines().count()))];
    }
    let shown = bad.iter().rev().take(SHOWN).map(|line| Finding::warn("", (*line).to_owned()));
    let more = bad.len().saturating_sub(SHOWN);
    shown.chain((more > 0).then(|| Finding::warn("", format!("and {more} more")))).collect()
}

fn is_fault(line: &str) -> bool {
    let has = |words: &[&str]| words.iter().all(|word| line.contains(word));
    has(&["NVRM", "Xid"])
        || has(&["AER:", "rror"])
        || has(&["PCIe Bus Error"])
        || ["mlx5_core", "bnxt_en", "irdma", "mlx4_core"].iter().any(|driver| line.contains(driver))
            && ["health", "error", "FATAL", "timeout"].iter().any(|word| line.contains(word))
}
