//! Which network plugin NCCL would load.

use std::path::{Path, PathBuf};

use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;
use crate::doctor::row::Row;
use crate::nccl::elf;
use crate::system::suitability;

pub(crate) const ROWS: &[Row] = &[Row {
    name: "plugins",
    what: "which libnccl-net*.so NCCL would load, by NCCL_NET_PLUGIN and the loader's folders; warn where it is none, another one, or Ferrite lies there more than once",
    why: "images bring plugins of their own, and NCCL takes the first that it finds without a word",
    cure: "export NCCL_NET_PLUGIN=/PATH/TO/libnccl-net.so (NCCL 2.21 and later take a path), NCCL_NET=Ferrite to be sure",
    look: plugins,
}];

/// Folders that the dynamic loader searches without being told.
const DEFAULT: [&str; 6] =
    ["/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib"];

/// Where the dynamic loader finds the library `file`: `LD_LIBRARY_PATH`, the folders of `/etc/ld.so.conf`, the default ones.
/// All places, in the loader's order.
pub(crate) fn places(machine: &Machine, file: &str) -> Vec<PathBuf> {
    let listed = machine.var("LD_LIBRARY_PATH").unwrap_or_default();
    let mut folders: Vec<String> = listed.split([':', ';']).filter(|f| !f.is_empty()).map(str::to_owned).collect();
    let mut configured = vec![PathBuf::from("/etc/ld.so.conf")];
    configured
        .extend(machine.root.names("/etc/ld.so.conf.d").iter().map(|name| Path::new("/etc/ld.so.conf.d").join(name)));
    for line in configured
        .iter()
        .filter_map(|path| machine.root.text(path))
        .flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>())
    {
        folders.extend(Some(line.trim().to_owned()).filter(|line| line.starts_with('/')));
    }
    folders.extend(DEFAULT.map(str::to_owned));
    let mut found: Vec<PathBuf> = Vec::new();
    for folder in folders {
        let path = Path::new(&folder).join(file);
        let resolved = machine.root.resolved(&path);
        let is_new = |known: &PathBuf| machine.root.resolved(known) != resolved;
        if resolved.is_some() && found.iter().all(is_new) {
            found.push(path);
        }
    }
    found
}

/// The names that NCCL tries, in its order.
fn candidates(setting: Option<&str>) -> Vec<String> {
    match setting {
        None => vec!["libnccl-net.so".into()],
        Some(value) => vec![value.to_owned(), format!("libnccl-net-{value}.so"), "libnccl-net.so".into()],
    }
}

fn plugins(machine: &Machine) -> Vec<Finding> {
    let setting = machine.var("NCCL_NET_PLUGIN");
    if setting.is_some_and(|value| value.eq_ignore_ascii_case("none")) {
        return vec![Finding::warn("", "NCCL_NET_PLUGIN=none: NCCL loads no plugin")];
    }
    if let Some(path) = setting.filter(|value| value.contains('/'))
        && !machine.root.exists(path)
    {
        return vec![Finding::fail("", format!("NCCL_NET_PLUGIN={path}: there is no such file"))];
    }
    let mut there: Vec<PathBuf> = Vec::new();
    for name in candidates(setting) {
        there.extend(if name.contains('/') {
            vec![PathBuf::from(&name)].into_iter().filter(|p| machine.root.exists(p)).collect()
        } else {
            places(machine, &name)
        });
    }
    let Some((first, others)) = there.split_first() else {
        return vec![Finding::warn(
            "",
            format!(
                "NCCL finds no plugin ({})",
                setting.map_or_else(|| "NCCL_NET_PLUGIN is not set".into(), |value| format!("NCCL_NET_PLUGIN={value}"))
            ),
        )];
    };
    let mut found = vec![winner(machine, first)];
    let others = others.iter().filter(|other| machine.root.resolved(other) != machine.root.resolved(first));
    found.extend(others.map(|path| other(machine, path, setting.is_some_and(|value| value.contains('/')))));
    found
}

/// The verdict on a file that NCCL would take if it were not for the first; `is_named` if that one's path is in NCCL_NET_PLUGIN.
/// Another copy of Ferrite is one that somebody may take for the first.
fn other(machine: &Machine, path: &Path, is_named: bool) -> Finding {
    let (file, shown) = (machine.root.path(path), path.display());
    if is_named || !is_ours(&file) {
        return Finding::ok("", format!("{shown} is there as well, and comes after it"));
    }
    let version = build_of(&file).unwrap_or_default();
    Finding::warn("", format!("{shown} is there as well, and comes after it: another copy of Ferrite ({version})"))
        .cure("remove the copy that is not meant, or export NCCL_NET_PLUGIN=/PATH/TO/libnccl-net.so (NCCL 2.21 and later)")
}

/// The verdict on the file that NCCL takes.
fn winner(machine: &Machine, path: &Path) -> Finding {
    let file = machine.root.path(path);
    let shown = path.display();
    if let Ok(Some(obstacle)) = suitability::obstacle(&file) {
        return Finding::fail("", format!("NCCL takes {shown}, which cannot be loaded: {obstacle}"));
    }
    match elf::exports(&file, "ncclNetPlugin_v") {
        Err(problem) => Finding::fail("", format!("NCCL takes {shown}, which cannot be loaded: {problem}")),
        Ok(tables) if tables.is_empty() => Finding::fail("", format!("NCCL takes {shown}, which is no network plugin")),
        Ok(tables) if is_ours(&file) => {
            let version = build_of(&file).unwrap_or_default();
            Finding::ok("", format!("NCCL takes {shown}: Ferrite {version}, {}", tables.join(", ")))
        }
        Ok(tables) => Finding::warn("", format!("NCCL takes {shown}, which is not Ferrite ({})", tables.join(", "))),
    }
}

/// Whether the file has the name of our network in it, as a C string.
fn is_ours(file: &Path) -> bool {
    let name = b"Ferrite\0";
    std::fs::read(file).is_ok_and(|bytes| bytes.windows(name.len()).any(|window| window == name))
}

/// The version with the commit that the file tells, as `scripts/build.sh` has written it.
fn build_of(file: &Path) -> Option<String> {
    let (bytes, key) = (std::fs::read(file).ok()?, b"ferrite-version=");
    // The words alone are there too, where the program looks for them.
    let is_it = |at: &usize| bytes[*at..].starts_with(key) && bytes.get(at + key.len()).is_some_and(u8::is_ascii_digit);
    let rest = &bytes[(0..bytes.len()).find(is_it)? + key.len()..];
    let end = rest.iter().position(|byte| !byte.is_ascii_alphanumeric() && !b"+-.".contains(byte))?;
    Some(String::from_utf8_lossy(&rest[..end]).into_owned())
}
