//! PCI functions of the machine, as /sys shows them.

use std::path::{Path, PathBuf};

use lab::system::root::Root;

/// A PCI function that the rows look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PciFunction {
    /// What the lines call it: the RDMA device's name, or `GPU 0000:17:00.0`.
    pub(crate) name: String,
    /// Its folder in /sys/devices, which shows the bridges above it.
    pub(crate) path: PathBuf,
}

const NVIDIA: &str = "0x10de";

/// The functions of RDMA devices.
pub(crate) fn nics(root: &Root) -> Vec<PciFunction> {
    let class = Path::new("/sys/class/infiniband");
    let path = |name: &String| root.resolved(class.join(name).join("device"));
    root.names(class).into_iter().filter_map(|name| Some(PciFunction { path: path(&name)?, name })).collect()
}

/// NVIDIA's GPUs.
pub(crate) fn gpus(root: &Root) -> Vec<PciFunction> {
    let bus = Path::new("/sys/bus/pci/devices");
    let is_gpu = |name: &String| {
        // Display controllers: VGA, or 3D.
        let class = root.text(bus.join(name).join("class")).unwrap_or_default();
        class.starts_with("0x03") && root.text(bus.join(name).join("vendor")).as_deref() == Some(NVIDIA)
    };
    let gpus = root.names(bus).into_iter().filter(is_gpu);
    gpus.filter_map(|name| Some(PciFunction { path: root.resolved(bus.join(&name))?, name: format!("GPU {name}") }))
        .collect()
}

impl PciFunction {
    /// The bridges above it, from the root port down, as paths.
    pub(crate) fn bridges(&self) -> Vec<PathBuf> {
        let above = self.path.ancestors().skip(1);
        let mut bridges: Vec<PathBuf> = above.take_while(|path| is_function(path)).map(Path::to_path_buf).collect();
        bridges.reverse();
        bridges
    }

    /// The NUMA node, if the firmware tells it.
    pub(crate) fn numa_node(&self, root: &Root) -> Option<i64> {
        root.number(self.path.join("numa_node")).filter(|node| *node >= 0)
    }
}

/// Whether the last part of a path is `dddd:bb:dd.f`.
fn is_function(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.matches(':').count() == 2 && name.contains('.')
}

/// The control register of an extended capability in a function's configuration space, `offset` bytes behind the capability's
/// start.
///
/// # Errors
/// The configuration space is not shown in whole; only root sees more than its beginning.
pub(crate) fn capability(
    root: &Root,
    function: &Path,
    wanted: u16,
    offset: usize,
) -> Result<Option<u16>, &'static str> {
    const EXTENDED: usize = 0x100;
    let bytes =
        std::fs::read(root.path(function.join("config"))).map_err(|_| "its configuration space cannot be read")?;
    if bytes.len() <= EXTENDED {
        return Err("only root sees its configuration space in whole");
    }
    let word = |at: usize| bytes.get(at..at + 2).map(|two| u16::from_le_bytes([two[0], two[1]]));
    let mut at = EXTENDED;
    // A list in 4 KiB of entries of 4 bytes or more: it ends, also where it is damaged.
    for _ in 0..1024 {
        let (Some(id), Some(next)) = (word(at), word(at + 2)) else { return Ok(None) };
        if id == wanted {
            return Ok(word(at + offset));
        }
        at = usize::from(next >> 4);
        if at < EXTENDED {
            return Ok(None);
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bridges_are_the_functions_above() {
        let path = "/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0".into();
        let nic = PciFunction { name: "x".into(), path };
        let root_port = PathBuf::from("/sys/devices/pci0000:16/0000:16:01.0");
        assert_eq!(nic.bridges(), [root_port.clone(), root_port.join("0000:17:00.0")]);
    }
}
