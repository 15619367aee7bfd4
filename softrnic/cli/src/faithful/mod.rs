//! Shows the devices where programs look for those of a kernel: in `/sys/class/infiniband` and `/dev/infiniband`.
//!
//! Only the program that is run sees it: it gets a mount namespace of its own, with an overlay on `/sys/class` and a folder of its own at
//! `/dev`. No root
//! is needed where user namespaces are allowed. The files say what is true at the start.

mod namespace;
mod nodes;
mod pci;
mod places;
mod tree;

use std::path::Path;

use ibverbs::control::Device;
pub(crate) use places::PciPlaces;

const CLASS: &str = "/sys/class";
/// Where kernel modules that lend memory to NICs show themselves.
const MEMORY: &str = "/sys/kernel/mm";

/// Puts this process into a namespace where sysfs shows `devices`.
/// With `has_peermem` also the sign by which NCCL knows that GPU memory can be registered by its address.
pub(crate) fn enter(devices: &[Device], places: &PciPlaces, has_peermem: bool, is_verbose: bool) -> Result<(), String> {
    let found = pci::choose(devices.len(), places);
    namespace::enter().map_err(|(what, error)| {
        format!(
            "--faithful needs a mount namespace of its own, but {what}: {error}; allow user namespaces \
             (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone; in a container: --privileged), or run \
             without --faithful"
        )
    })?;
    let describe = |dir: &str, (what, error): namespace::Failure| format!("--faithful: {dir}: {what}: {error}");
    namespace::overlay(Path::new(CLASS)).map_err(|failure| describe(CLASS, failure))?;
    if has_peermem {
        namespace::overlay(Path::new(MEMORY)).map_err(|failure| describe(MEMORY, failure))?;
        let built = tree::memory_peer(Path::new(MEMORY));
        built.map_err(|error| format!("--faithful: cannot fill {MEMORY}/memory_peers: {error}"))?;
    }
    let built = tree::build(Path::new(CLASS), devices, found.as_deref());
    let paths = built.map_err(|error| format!("--faithful: cannot fill {CLASS}/infiniband: {error}"))?;
    nodes::show(devices).map_err(|failure| describe(nodes::FOLDER, failure))?;
    for (device, path) in devices.iter().zip(&paths).filter(|_| is_verbose) {
        eprintln!("softrnic: {CLASS}/infiniband/{} is at {}", device.name, path.display());
    }
    Ok(())
}
