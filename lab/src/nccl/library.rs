//! Where a vtable comes from, and the proof that it came from there.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::nccl::elf;
use crate::nccl::plugin_search::PluginSearch;
use crate::nccl::release::{NcclRelease, STOCK_SYMBOL};
use crate::nccl::shared_object::{SharedObject, require_setting};
use crate::nccl::stock_library;
use crate::nccl::vtable::Vtable;
use crate::system::maps::Maps;

/// The data symbols that plugins export begin so; the version follows.
const PLUGIN_SYMBOL: &str = "ncclNetPlugin_v";
/// The versions that this program can call.
pub const INTERFACES: RangeInclusive<u32> = 8..=12;

/// A place to take a vtable from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Source {
    /// `ncclNetPlugin_vN` of a plugin.
    Plugin {
        /// The shared object.
        path: PathBuf,
        /// N. `None`: 8, or the highest where there is no 8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        abi: Option<u32>,
    },
    /// NCCL's built-in IB transport.
    Stock {
        /// libnccl.so.2 of one of [`RELEASES`](super::release::RELEASES).
        nccl: PathBuf,
    },
    /// What NCCL's own loader makes of `NCCL_NET_PLUGIN`.
    Loader {
        /// libnccl.so.2.
        nccl: PathBuf,
        /// The value of `NCCL_NET_PLUGIN`.
        plugin: String,
    },
}

impl Source {
    /// A plugin's shared object.
    pub fn plugin(path: impl Into<PathBuf>) -> Self {
        Self::Plugin { path: path.into(), abi: None }
    }

    /// A plugin's table of interface version `abi`.
    pub fn plugin_of(path: impl Into<PathBuf>, abi: u32) -> Self {
        Self::Plugin { path: path.into(), abi: Some(abi) }
    }

    /// The IB transport inside a libnccl.so.2.
    pub fn stock(nccl: impl Into<PathBuf>) -> Self {
        Self::Stock { nccl: nccl.into() }
    }

    /// The file that this process opens itself.
    pub fn file(&self) -> &Path {
        match self {
            Self::Plugin { path, .. } => path,
            Self::Stock { nccl } | Self::Loader { nccl, .. } => nccl,
        }
    }

    /// The value `NCCL_NET_PLUGIN` has to have in the process that opens this source.
    pub fn net_plugin(&self) -> &str {
        match self {
            Self::Plugin { .. } | Self::Stock { .. } => "none",
            Self::Loader { plugin, .. } => plugin,
        }
    }
}

/// What was loaded, as evidence: every field is observed in the process that ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Identity {
    /// The vtable's `name`.
    pub name: String,
    /// The file whose mapping holds the vtable and all its functions.
    pub file: PathBuf,
    /// The symbol that led to the vtable.
    pub symbol: String,
    /// What `ncclGetVersion` of that library said, for the sources inside libnccl.
    pub nccl_version: Option<i32>,
    /// The version of the vtable: 8 to 12.
    #[serde(default = "eight")]
    pub interface: u32,
    /// How many function slots were checked to lie inside `file`.
    pub functions: usize,
}

/// The only interface there was when records did not name it.
fn eight() -> u32 {
    8
}

/// A loaded library with its vtable. Never unloaded: NCCL does not do so either, and a transport
/// may have left threads behind.
#[derive(Debug, Clone)]
pub struct Library {
    vtable: Vtable,
    identity: Identity,
}

impl Library {
    /// Loads the library and finds the vtable, then checks that the vtable and every function in
    /// it lie in the file that was named.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Load`], [`Error::Symbol`] when there is nothing to use;
    /// [`Error::Refused`] when it is something else than what was named.
    pub fn open(source: &Source) -> Result<Self> {
        let file = std::fs::canonicalize(source.file())
            .map_err(|e| Error::io(format!("cannot open {}", source.file().display()), e))?;
        let (found, release) = match source {
            Source::Plugin { abi, .. } => (plugin_vtable(&file, *abi)?, None),
            Source::Stock { .. } => {
                let value = elf::local_symbol(&file, STOCK_SYMBOL)?;
                let object = SharedObject::open(&file)?;
                let release = object.release()?;
                let (symbol, address) = (STOCK_SYMBOL.into(), object.at(value));
                (Found { symbol, address, interface: release.interface }, Some(release))
            }
            Source::Loader { plugin, .. } => {
                let object = SharedObject::open(&file)?;
                let release = object.release()?;
                require_setting(plugin)?;
                let refused =
                    || Error::Refused(format!("the loader of NCCL {release} did not take NCCL_NET_PLUGIN={plugin}"));
                (taken_by_loader(&object, release)?.ok_or_else(refused)?, Some(release))
            }
        };
        let maps = Maps::read()?;
        let home = home_of(&maps, source, &file, &found, release)?;
        // SAFETY: the address is that of the data symbol which by NCCL's contract, or in this release, is a vtable of
        // that version; it is mapped (home_of checked it) and libraries are never unloaded here.
        let vtable = unsafe { Vtable::at(found.address, found.interface)? };
        let name = vtable.name(&maps)?;
        if matches!(source, Source::Stock { .. }) && name != "IB" {
            return Err(Error::Refused(format!(
                "the vtable {STOCK_SYMBOL} of {} is named {name:?}, not \"IB\"",
                home.display()
            )));
        }
        let identity = Identity {
            name,
            functions: vtable.check_functions(&maps, &home)?,
            file: home,
            symbol: found.symbol,
            nccl_version: release.map(|release| release.version),
            interface: found.interface,
        };
        Ok(Self { vtable, identity })
    }

    /// The vtable itself.
    pub fn vtable(&self) -> Vtable {
        self.vtable
    }

    /// The evidence of what was loaded.
    pub fn identity(&self) -> &Identity {
        &self.identity
    }
}

/// A vtable candidate.
struct Found {
    symbol: String,
    address: usize,
    interface: u32,
}

/// Has the loader of the libnccl.so.2 at `nccl` take the plugin that `NCCL_NET_PLUGIN=plugin` names, and then look for a profiler.
/// Returns the types of events that the profiler wants, as a mask; 0: there is none.
///
/// # Errors
/// As [`Library::open`]; [`Error::Misuse`] for a release before 2.28.
pub fn profiler_events(nccl: &Path, plugin: &str) -> Result<i32> {
    let file = std::fs::canonicalize(nccl).map_err(|e| Error::io(format!("cannot open {}", nccl.display()), e))?;
    let object = SharedObject::open(&file)?;
    let release = object.release()?;
    if release.interface < 11 {
        return Err(Error::Misuse("this release looks for no profiler in a network plugin"));
    }
    require_setting(plugin)?;
    object.run_profiler_loader(release)
}

/// The file that the loader of the libnccl.so.2 at `nccl` takes its network from in this process, by this process's own
/// environment. `None`: it takes none but NCCL's own.
///
/// # Errors
/// As [`Library::open`].
pub fn loader_takes(nccl: &Path) -> Result<Option<PathBuf>> {
    let object = SharedObject::open(nccl)?;
    let release = object.release()?;
    let Some(found) = taken_by_loader(&object, release)? else { return Ok(None) };
    Ok(Maps::read()?.at(found.address).map(|mapping| mapping.path.clone()))
}

/// Has the libnccl.so.2 at `nccl` put what its configuration files set into the environment of this process, which has one thread.
///
/// # Errors
/// As [`Library::open`].
pub fn read_conf_files(nccl: &Path) -> Result<()> {
    let object = SharedObject::open(nccl)?;
    object.release()?;
    object.read_conf_files()
}

/// Finds out, without loading it, whether the loader of the libnccl.so.2 at `nccl` can take a plugin by this value of
/// `NCCL_NET_PLUGIN`, where that names files by their paths.
///
/// # Errors
/// As [`require_plugin`], and [`Error::Usage`] for a list that the release does not take.
pub fn require_takeable(nccl: &Path, setting: &str) -> Result<()> {
    if !setting.contains('/') {
        return Ok(());
    }
    let whole = require_plugin(setting.as_ref(), None).map(drop);
    if whole.is_ok() || !setting.contains(',') {
        return whole;
    }
    let release = stock_library::verify(nccl)?;
    let search = PluginSearch::of_release(release);
    if !search.takes_lists() {
        return Err(Error::Usage(format!(
            "{setting}: NCCL {release} takes one plugin, and 2.27 and later take a list; FERRITE_NCCL=PATH names another libnccl.so.2"
        )));
    }
    let files = search.entries(Some(setting)).into_iter().filter(|entry| entry.ignored.is_none());
    let checked: Vec<Result<()>> = files
        .map(
            |entry| if entry.text.contains('/') { require_plugin(entry.text.as_ref(), None).map(drop) } else { Ok(()) },
        )
        .collect();
    if checked.iter().any(Result::is_ok) { Ok(()) } else { checked.into_iter().collect() }
}

/// Finds out, without loading it, whether the file is a plugin, of version `abi` if that is given; the version that is used.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, [`Error::Load`] if it is no ELF file, [`Error::Symbol`] if it is none.
pub fn require_plugin(file: &Path, abi: Option<u32>) -> Result<u32> {
    let exports = elf::exports(file, PLUGIN_SYMBOL)?;
    let has = |version: &u32| exports.contains(&symbol_of(*version));
    let chosen = match abi {
        Some(version) => Some(version).filter(has),
        None => Some(8).filter(has).or_else(|| INTERFACES.rev().find(has)),
    };
    chosen.ok_or_else(|| Error::Symbol {
        path: file.into(),
        symbol: symbol_of(abi.unwrap_or(8)),
        hint: if exports.is_empty() {
            "it is not an NCCL network plugin".into()
        } else {
            format!("it exports {} only", exports.join(", "))
        },
    })
}

fn symbol_of(version: u32) -> String {
    format!("{PLUGIN_SYMBOL}{version}")
}

fn plugin_vtable(file: &Path, abi: Option<u32>) -> Result<Found> {
    let interface = require_plugin(file, abi)?;
    let symbol = symbol_of(interface);
    let address = SharedObject::open(file)?.exported(&symbol).ok_or_else(|| Error::Symbol {
        path: file.into(),
        symbol: symbol.clone(),
        hint: "the dynamic loader does not find it, although the file exports it".into(),
    })?;
    Ok(Found { symbol, address, interface })
}

/// What NCCL's own loader takes, by the environment: before 2.24 its only table, later the one that it tells a communicator to
/// use. `None`: no table of a plugin.
fn taken_by_loader(nccl: &SharedObject, release: NcclRelease) -> Result<Option<Found>> {
    if release.interface == 8 {
        let address = nccl.run_loader()?;
        return Ok((address != 0).then(|| Found { symbol: "ncclNets[0]".into(), address, interface: 8 }));
    }
    let chosen = nccl.run_later_loader(release)?;
    let maps = Maps::read()?;
    for address in chosen {
        let Some(home) = maps.at(address).map(|mapping| mapping.path.clone()) else { continue };
        // NCCL has it open, so this changes nothing.
        let Ok(object) = SharedObject::open(&home) else { continue };
        let of = |version: &u32| object.exported(&symbol_of(*version)) == Some(address);
        if let Some(interface) = INTERFACES.into_iter().find(of) {
            return Ok(Some(Found { symbol: symbol_of(interface), address, interface }));
        }
    }
    Ok(None)
}

/// The file that the vtable belongs to; an error if it is not one that was named.
fn home_of(
    maps: &Maps,
    source: &Source,
    opened: &Path,
    found: &Found,
    release: Option<NcclRelease>,
) -> Result<PathBuf> {
    let expected = match (source, release) {
        (Source::Loader { plugin, .. }, Some(release)) => {
            let entries = PluginSearch::of_release(release).entries(Some(plugin));
            entries.into_iter().map(|entry| PathBuf::from(entry.text)).collect()
        }
        _ => vec![opened.to_path_buf()],
    };
    let home = maps.at(found.address).map(|mapping| mapping.path.clone());
    // A name without a slash is one of a file that the dynamic loader finds.
    let is_it = |file: &PathBuf| !file.to_string_lossy().contains('/') || maps.is_in(found.address, file);
    match home {
        Some(home) if expected.iter().any(is_it) => Ok(home),
        home => Err(Error::Refused(format!(
            "the vtable lies in {}, not in {}",
            home.map_or_else(|| "no file".into(), |path| path.display().to_string()),
            expected.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" or ")
        ))),
    }
}
