//! The files of `/sys/class/infiniband`.

use std::fs;
use std::io::Result;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use ibverbs::control::{Device, GidKind, LinkLayer, Port};

use super::pci;

/// Fills `class`/infiniband; `places` are existing PCI devices, or else some are made up. Returns where each device is.
pub(super) fn build(class: &Path, devices: &[Device], places: Option<&[PathBuf]>) -> Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let place = match places {
            Some(places) => places[index].clone(),
            None => make_up(class, index, is_paired(devices))?,
        };
        let dir = class.join("infiniband").join(device.name.to_string());
        fs::create_dir_all(&dir)?;
        symlink(&place, dir.join("device"))?;
        let files = [
            ("node_type", "1: CA".to_owned()),
            ("node_desc", device.name.to_string()),
            ("hca_type", "softrnic".to_owned()),
            ("hw_rev", "0".to_owned()),
            ("fw_ver", env!("CARGO_PKG_VERSION").to_owned()),
            ("node_guid", groups(device.guid)),
            ("sys_image_guid", groups(device.card_guid)),
        ];
        put(&dir, &files)?;
        for port in &device.ports {
            build_port(&dir.join("ports").join(port.name.port.to_string()), port)?;
        }
        paths.push(place);
    }
    Ok(paths)
}

/// What the module nvidia-peermem leaves in `memory`.
pub(super) fn memory_peer(memory: &Path) -> Result<()> {
    let dir = memory.join("memory_peers/nv_mem");
    fs::create_dir_all(&dir)?;
    put(&dir, &[("version", format!("softrnic {}", env!("CARGO_PKG_VERSION")))])
}

fn is_paired(devices: &[Device]) -> bool {
    devices.iter().any(|device| device.card_guid != device.guid)
}

/// As the kernel writes it.
fn link_layer_name(link_layer: LinkLayer) -> &'static str {
    match link_layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
        LinkLayer::Unspecified => "Unknown",
    }
}

fn build_port(dir: &Path, port: &Port) -> Result<()> {
    for name in ["gids", "gid_attrs/types", "gid_attrs/ndevs", "pkeys"] {
        fs::create_dir_all(dir.join(name))?;
    }
    let is_ib = port.link_layer == LinkLayer::InfiniBand;
    let files = [
        ("state", if port.is_active { "4: ACTIVE" } else { "1: DOWN" }.to_owned()),
        ("phys_state", if port.is_active { "5: LinkUp" } else { "3: Disabled" }.to_owned()),
        ("rate", format!("{} Gb/sec ({})", port.gbps, signalling(port.gbps))),
        ("lid", format!("0x{:x}", port.lid)),
        ("sm_lid", format!("0x{:x}", u16::from(is_ib))),
        ("lid_mask_count", "0".to_owned()),
        ("sm_sl", "0".to_owned()),
        ("cap_mask", "0x00000000".to_owned()),
        ("link_layer", link_layer_name(port.link_layer).to_owned()),
        ("pkeys/0", "0xffff".to_owned()),
    ];
    put(dir, &files)?;
    for index in 0..16 {
        let entry = port.gids.iter().find(|gid| gid.index == index);
        let gid = entry.map_or([0; 8], |entry| entry.gid.segments());
        let text: Vec<String> = gid.iter().map(|group| format!("{group:04x}")).collect();
        put(dir, &[(&format!("gids/{index}"), text.join(":"))])?;
        // Attributes of empty entries cannot be read.
        let Some(entry) = entry else { continue };
        let kind = if entry.kind == GidKind::RoceV2 { "RoCE v2" } else { "IB/RoCE v1" };
        put(dir, &[(&format!("gid_attrs/types/{index}"), kind.to_owned())])?;
        if !is_ib {
            put(dir, &[(&format!("gid_attrs/ndevs/{index}"), "lo".to_owned())])?;
        }
    }
    Ok(())
}

/// Lanes and the name of their speed.
fn signalling(gbps: u32) -> &'static str {
    match gbps {
        5 => "1X DDR",
        10 => "4X SDR",
        20 => "4X DDR",
        25 => "1X EDR",
        40 => "4X QDR",
        50 => "1X HDR",
        56 => "4X FDR",
        100 => "4X EDR",
        200 => "4X HDR",
        400 => "4X NDR",
        _ => "4X XDR",
    }
}

/// A PCI device that does not exist, with what programs read of one.
fn make_up(class: &Path, index: usize, is_same_card: bool) -> Result<PathBuf> {
    let bus = class.join("softrnic/pcife00:00");
    let dir = bus.join(pci::made_up(index, is_same_card));
    fs::create_dir_all(&dir)?;
    let files = [
        ("class", "0x020700"),
        ("vendor", "0xf000"),
        ("device", "0x0001"),
        ("subsystem_vendor", "0xf000"),
        ("subsystem_device", "0x0001"),
        ("max_link_speed", "32.0 GT/s PCIe"),
        ("max_link_width", "16"),
        ("numa_node", "-1"),
        ("local_cpus", "ffffffff"),
    ];
    put(&dir, &files.map(|(name, text)| (name, text.to_owned())))?;
    let kind = class.join("softrnic/pci");
    fs::create_dir_all(&kind)?;
    symlink(kind, dir.join("subsystem"))?;
    dir.canonicalize()
}

/// A GUID as sysfs writes it.
fn groups(guid: u64) -> String {
    let text = format!("{guid:016x}");
    [&text[..4], &text[4..8], &text[8..12], &text[12..]].join(":")
}

fn put(dir: &Path, files: &[(&str, String)]) -> Result<()> {
    files.iter().try_for_each(|(name, text)| fs::write(dir.join(name), format!("{text}\n")))
}
