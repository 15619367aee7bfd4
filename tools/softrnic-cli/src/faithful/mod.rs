//! Shows the devices where programs look for those of a kernel: in `/sys/class/infiniband`.
//!
//! Only the program that is run sees it: it gets a mount namespace of its own, with an overlay on `/sys/class`. No root
//! is needed where user namespaces are allowed. The files say what is true at the start.

mod namespace;
mod pci;
mod tree;

use std::path::{Path, PathBuf};

use clap::Args;
use ibverbs::control::{Device, DeviceName};

/// Where on the PCI bus the devices seem to be.
#[derive(Debug, Args)]
pub(crate) struct Places {
    /// PCI device of a device, with --faithful: softrnic0=/sys/devices/pci0000:00/0000:00:03.0
    #[arg(long, value_name = "DEVICE=PATH", value_parser = parse_pci)]
    pci: Vec<(DeviceName, PathBuf)>,
    /// Devices 0 and 1 are functions of one card, 2 and 3 of the next, …
    #[arg(long)]
    pub(crate) same_card: bool,
}

fn parse_pci(text: &str) -> Result<(DeviceName, PathBuf), String> {
    let (name, path) = text.split_once('=').ok_or("must be such as softrnic0=/sys/devices/…")?;
    let name = name.parse().map_err(|error: ibverbs::control::Error| error.to_string())?;
    let whole = Path::new(path).canonicalize().map_err(|error| format!("{path}: {error}"))?;
    if whole.join("class").exists() { Ok((name, whole)) } else { Err(format!("{path}: no PCI device")) }
}

const CLASS: &str = "/sys/class";
/// Where kernel modules that lend memory to NICs show themselves.
const MEMORY: &str = "/sys/kernel/mm";

/// Puts this process into a namespace where sysfs shows `devices`.
/// With `has_peermem` also the sign by which NCCL knows that GPU memory can be registered by its address.
pub(crate) fn enter(devices: &[Device], places: &Places, has_peermem: bool, is_verbose: bool) -> Result<(), String> {
    let found = pci::choose(devices.len(), places);
    namespace::enter().map_err(|(what, error)| {
        format!(
            "--faithful needs a mount namespace of its own, but {what}: {error}; allow user namespaces \
             (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone; in a container: --privileged), or run \
             without --faithful"
        )
    })?;
    let told = |dir: &str, (what, error): namespace::Failure| format!("--faithful: {dir}: {what}: {error}");
    namespace::overlay(Path::new(CLASS)).map_err(|failure| told(CLASS, failure))?;
    if has_peermem {
        namespace::overlay(Path::new(MEMORY)).map_err(|failure| told(MEMORY, failure))?;
        let built = tree::memory_peer(Path::new(MEMORY));
        built.map_err(|error| format!("--faithful: cannot fill {MEMORY}/memory_peers: {error}"))?;
    }
    let built = tree::build(Path::new(CLASS), devices, found.as_deref());
    let paths = built.map_err(|error| format!("--faithful: cannot fill {CLASS}/infiniband: {error}"))?;
    for (device, path) in devices.iter().zip(&paths).filter(|_| is_verbose) {
        eprintln!("softrnic: {CLASS}/infiniband/{} is at {}", device.name, path.display());
    }
    Ok(())
}
