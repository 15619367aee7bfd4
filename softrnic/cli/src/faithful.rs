//! Shows the devices where programs look for those of a kernel: in `/sys/class/infiniband` and
//! `/dev/infiniband`.
//!
//! Only the program that is run sees it: it gets a mount namespace of its own, with an overlay on
//! `/sys/class` and a folder of its own at `/dev`. No root is needed where user namespaces are
//! allowed. The files say what is true at the start.

use std::collections::BTreeMap;
use std::ffi::{CString, c_char};
use std::fs::File;
use std::io::Error;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::{fs, io, ptr};

use clap::Args;
use ibverbs::control::{Device, DeviceName, GidKind, LinkLayer, Port};

use crate::provider::Front;

const CLASS: &str = "/sys/class";
/// Where kernel modules that lend memory to NICs show themselves.
const MEMORY: &str = "/sys/kernel/mm";

/// Puts this process into a namespace where sysfs shows `devices`. With `has_peermem` also the sign
/// by which NCCL knows that GPU memory can be registered by its address. With a `front` the devices
/// are those of its driver.
pub(crate) fn enter(
    devices: &[Device],
    places: &PciPlaces,
    has_peermem: bool,
    front: Option<&Front>,
    is_verbose: bool,
) -> Result<(), String> {
    // Existing PCI functions have drivers of their own, as their files tell.
    let found = if front.is_some() { None } else { choose(devices.len(), places) };
    let option = if front.is_some() { "--provider" } else { "--faithful" };
    enter_namespace().map_err(|(what, error)| {
        format!(
            "{option} needs a mount namespace of its own, but {what}: {error}; allow user namespaces \
             (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone; in a container: --privileged), or run \
             without {option}"
        )
    })?;
    let describe = |dir: &str, (what, error): Failure| format!("{option}: {dir}: {what}: {error}");
    overlay(Path::new(CLASS)).map_err(|failure| describe(CLASS, failure))?;
    if has_peermem {
        overlay(Path::new(MEMORY)).map_err(|failure| describe(MEMORY, failure))?;
        let built = memory_peer(Path::new(MEMORY));
        built.map_err(|error| format!("{option}: cannot fill {MEMORY}/memory_peers: {error}"))?;
    }
    let built = build(Path::new(CLASS), devices, found.as_deref(), front);
    let paths =
        built.map_err(|error| format!("{option}: cannot fill {CLASS}/infiniband: {error}"))?;
    show(devices, front).map_err(|failure| describe(FOLDER, failure))?;
    for (device, path) in devices.iter().zip(&paths).filter(|_| is_verbose) {
        eprintln!("softrnic: {CLASS}/infiniband/{} is at {}", device.name, path.display());
    }
    Ok(())
}

/// What was tried, and what came of it.
type Failure = (&'static str, Error);

fn check(rc: i32, what: &'static str) -> Result<(), Failure> {
    if rc == 0 { Ok(()) } else { Err((what, Error::last_os_error())) }
}

/// Moves this process, which has one thread, into a mount namespace of its own; with a user
/// namespace where it may not mount otherwise. User and groups stay the same.
fn enter_namespace() -> Result<(), Failure> {
    // SAFETY: no preconditions.
    let (uid, gid) = unsafe { (libc::geteuid(), libc::getegid()) };
    // SAFETY: no preconditions; changes this process only.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0 {
        // SAFETY: as above.
        check(unsafe { libc::unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNS) }, "unshare failed")?;
        let put = |path: &str, text: String| {
            fs::write(path, text).map_err(|error| ("the user cannot be mapped", error))
        };
        put("/proc/self/setgroups", "deny".to_owned())?;
        put("/proc/self/uid_map", format!("{uid} {uid} 1"))?;
        put("/proc/self/gid_map", format!("{gid} {gid} 1"))?;
    }
    // What is mounted from now on stays in here.
    mount("none", Path::new("/"), None, libc::MS_REC | libc::MS_PRIVATE, "")
        .map_err(|e| ("/ cannot be made private", e))
}

/// Makes `dir` writable: an overlay on what it shows, which lives in memory.
fn overlay(dir: &Path) -> Result<(), Failure> {
    let lower = File::open(dir).map_err(|error| ("it cannot be opened", error))?;
    tmpfs(dir)?;
    for name in ["upper", "work"] {
        fs::create_dir(dir.join(name)).map_err(|error| ("the tmpfs cannot be used", error))?;
    }
    // The tmpfs hides the lower folder from its own path.
    let lower = format!("/proc/self/fd/{}", AsRawFd::as_raw_fd(&lower));
    let options = format!("lowerdir={lower},upperdir={0}/upper,workdir={0}/work", dir.display());
    mount("overlay", dir, Some("overlay"), 0, &format!("{options},userxattr"))
        .or_else(|_| mount("overlay", dir, Some("overlay"), 0, &options))
        .map_err(|error| ("no overlay can be mounted on it", error))
}

/// A folder in memory, mounted on `dir`.
fn tmpfs(dir: &Path) -> Result<(), Failure> {
    mount("tmpfs", dir, Some("tmpfs"), 0, "mode=755")
        .map_err(|error| ("no tmpfs can be mounted", error))
}

/// Shows `source`, and all that is mounted in it, at `target` as well.
fn bind(source: &Path, target: &Path) -> Result<(), Failure> {
    let source = source.to_string_lossy();
    mount(&source, target, None, libc::MS_BIND | libc::MS_REC, "")
        .map_err(|error| ("an entry cannot be bound", error))
}

fn mount(
    source: &str,
    target: &Path,
    kind: Option<&str>,
    flags: u64,
    options: &str,
) -> io::Result<()> {
    let text = |bytes: &[u8]| CString::new(bytes).map_err(Error::other);
    let (source, target, options) =
        (text(source.as_bytes())?, text(target.as_os_str().as_bytes())?, text(options.as_bytes())?);
    let kind = kind.map(|kind| text(kind.as_bytes())).transpose()?;
    let kind = kind.as_ref().map_or(ptr::null::<c_char>(), |kind| kind.as_ptr());
    // SAFETY: valid C strings, or NULL where that is allowed.
    let rc = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), kind, flags, options.as_ptr().cast())
    };
    if rc == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

// The files of `/dev/infiniband`: character devices, for programs that look for one before they
// open a device (UCX). Nothing is behind them: each is another name of `/dev/null`.

const DEV: &str = "/dev";
/// Where a kernel has the devices of its RDMA drivers.
const FOLDER: &str = "/dev/infiniband";

/// Fills the folder for `devices`, in this process's mount namespace.
fn show(devices: &[Device], front: Option<&Front>) -> Result<(), Failure> {
    let kind = if front.is_some() { "uverbs" } else { "softverbs" };
    if !Path::new(FOLDER).is_dir() {
        replace_dev()?;
    }
    tmpfs(Path::new(FOLDER))?;
    for (index, _) in devices.iter().enumerate() {
        let node = Path::new(FOLDER).join(format!("{kind}{index}"));
        File::create(&node).map_err(cannot("a file cannot be made"))?;
        bind(Path::new("/dev/null"), &node)?;
    }
    Ok(())
}

fn cannot(what: &'static str) -> impl Fn(Error) -> Failure {
    move |error| (what, error)
}

/// A folder in memory in place of `/dev`, with all that it has, so that more can be put into it.
fn replace_dev() -> Result<(), Failure> {
    let before = File::open(DEV).map_err(cannot("it cannot be opened"))?;
    tmpfs(Path::new(DEV))?;
    // What is mounted on it hides the former folder from its own path.
    let before = format!("/proc/self/fd/{}", before.as_raw_fd());
    for entry in fs::read_dir(&before).map_err(cannot("it cannot be read"))? {
        let entry = entry.map_err(cannot("it cannot be read"))?;
        let here = Path::new(DEV).join(entry.file_name());
        if make_place(&entry, &here).map_err(cannot("an entry cannot be made"))? {
            bind(&entry.path(), &here)?;
        }
    }
    fs::create_dir(FOLDER).map_err(cannot("a folder cannot be made"))
}

/// A place of the same kind as `entry`. False: it is a symbolic link, and that is all.
fn make_place(entry: &fs::DirEntry, here: &Path) -> io::Result<bool> {
    let kind = entry.file_type()?;
    if kind.is_symlink() {
        symlink(fs::read_link(entry.path())?, here)?;
        return Ok(false);
    }
    if kind.is_dir() {
        fs::create_dir(here)?
    } else {
        drop(File::create(here)?)
    }
    Ok(true)
}

/// Devices in pairs, as functions of one card.
const PER_CARD: usize = 2;

/// Existing PCI functions for `count` devices, or `None`: there are not enough, and all have to be
/// made up. Mixed, some programs take them for nonsense.
fn choose(count: usize, places: &PciPlaces) -> Option<Vec<PathBuf>> {
    let cards = endpoints();
    let free: Vec<&PathBuf> = if places.same_card {
        cards
            .values()
            .filter(|functions| functions.len() >= PER_CARD)
            .flat_map(|f| &f[..PER_CARD])
            .collect()
    } else {
        cards.values().map(|functions| &functions[0]).collect()
    };
    let mut free =
        free.into_iter().filter(|path| !places.pci.iter().any(|(_, named)| named == *path));
    let named = |index: usize| {
        places.pci.iter().find(|(name, _)| name.0 == index).map(|(_, path)| path.clone())
    };
    (0..count).map(|index| named(index).or_else(|| free.next().cloned())).collect()
}

/// All functions that may pass for a NIC, by card; network cards first.
fn endpoints() -> BTreeMap<(bool, String), Vec<PathBuf>> {
    let mut cards: BTreeMap<(bool, String), Vec<PathBuf>> = BTreeMap::new();
    let listed = fs::read_dir("/sys/bus/pci/devices").into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> =
        listed.filter_map(|entry| entry.path().canonicalize().ok()).collect();
    paths.sort_unstable();
    for path in paths {
        let (Some(class), Some(card)) = (class_of(&path), card_of(&path)) else { continue };
        // Bridges, displays, accelerators: a GPU's place is the GPU's.
        if !matches!(class, 0x03 | 0x06 | 0x12) {
            cards.entry((class != 0x02, card)).or_default().push(path);
        }
    }
    cards
}

/// The base class of a PCI function.
fn class_of(path: &Path) -> Option<u32> {
    let text = fs::read_to_string(path.join("class")).ok()?;
    u32::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok().map(|class| class >> 16)
}

/// The path without the function number.
fn card_of(path: &Path) -> Option<String> {
    path.to_str()?.rsplit_once('.').map(|(card, _)| card.to_owned())
}

/// Address of device `index` among made-up ones.
fn made_up(index: usize, is_same_card: bool) -> String {
    let (card, function) =
        if is_same_card { (index / PER_CARD, index % PER_CARD) } else { (index, 0) };
    format!("{:04x}:{:02x}:00.{function}", 0xfe00, card + 1)
}

/// Where on the PCI bus the devices seem to be.
#[derive(Debug, Args)]
pub(crate) struct PciPlaces {
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
    if whole.join("class").exists() {
        Ok((name, whole))
    } else {
        Err(format!("{path}: no PCI device"))
    }
}

/// Fills `class`/infiniband; `places` are existing PCI devices, or else some are made up. Returns
/// where each device is.
fn build(
    class: &Path,
    devices: &[Device],
    places: Option<&[PathBuf]>,
    front: Option<&Front>,
) -> io::Result<Vec<PathBuf>> {
    if front.is_some() {
        let verbs = class.join("infiniband_verbs");
        fs::create_dir_all(&verbs)?;
        put(&verbs, &[("abi_version", "6".to_owned())])?;
    }
    let mut paths = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let place = match places {
            Some(places) => places[index].clone(),
            None => make_up(class, index, is_paired(devices), front)?,
        };
        let name = front.map_or_else(|| device.name.to_string(), |front| front.device(index));
        let dir = class.join("infiniband").join(&name);
        fs::create_dir_all(&dir)?;
        symlink(&place, dir.join("device"))?;
        let files = [
            ("node_type", "1: CA".to_owned()),
            ("node_desc", name.clone()),
            ("hca_type", front.map_or_else(|| "softrnic".to_owned(), Front::card)),
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
    // libibverbs lists them as they come, the last one first.
    for (index, place) in paths.iter().enumerate().rev() {
        let Some(front) = front else { break };
        let verbs = class.join("infiniband_verbs").join(format!("uverbs{index}"));
        fs::create_dir_all(&verbs)?;
        symlink(place, verbs.join("device"))?;
        // The numbers of what is bound to the node.
        let name = front.device(index);
        // Of each driver's part of the kernel's interface.
        let abi = "1".to_owned();
        let files = [("ibdev", name), ("dev", "1:3".to_owned()), ("abi_version", abi)];
        put(&verbs, &files)?;
    }
    Ok(paths)
}

/// What the module nvidia-peermem leaves in `memory`.
fn memory_peer(memory: &Path) -> io::Result<()> {
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

fn build_port(dir: &Path, port: &Port) -> io::Result<()> {
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
fn make_up(
    class: &Path,
    index: usize,
    is_same_card: bool,
    front: Option<&Front>,
) -> io::Result<PathBuf> {
    let (vendor, part) = front.map_or((0xf000, 1), |front| (front.vendor(), front.part));
    let (vendor, part) = (format!("0x{vendor:04x}"), format!("0x{part:04x}"));
    let bus = class.join("softrnic/pcife00:00");
    let dir = bus.join(made_up(index, is_same_card));
    fs::create_dir_all(&dir)?;
    let files = [
        ("class", "0x020700"),
        ("vendor", &vendor),
        ("device", &part),
        ("subsystem_vendor", &vendor),
        ("subsystem_device", &part),
        ("max_link_speed", "32.0 GT/s PCIe"),
        ("max_link_width", "16"),
        ("numa_node", "-1"),
        ("local_cpus", "ffffffff"),
    ];
    put(&dir, &files.map(|(name, text)| (name, text.to_owned())))?;
    if let Some(front) = front {
        put(&dir, &[("modalias", front.alias())])?;
    }
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

fn put(dir: &Path, files: &[(&str, String)]) -> io::Result<()> {
    files.iter().try_for_each(|(name, text)| fs::write(dir.join(name), format!("{text}\n")))
}
