//! Where a vtable comes from, and the proof that it came from there.

use std::ffi::{CStr, OsStr};
use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::nccl::abi::{later, ncclNet_v8_t};
use crate::nccl::plugin_search::PluginSearch;
use crate::nccl::release;
use crate::nccl::release::{NcclRelease, STOCK_SYMBOL};
use crate::nccl::shared_object::{SharedObject, exports, local_symbol};
use crate::system::host::Maps;

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
                let value = local_symbol(&file, STOCK_SYMBOL)?;
                let object = SharedObject::open(&file)?;
                let release = NcclRelease::of(&object)?;
                let (symbol, address) = (STOCK_SYMBOL.into(), object.at(value));
                (Found { symbol, address, interface: release.interface }, Some(release))
            }
            Source::Loader { plugin, .. } => {
                let object = SharedObject::open(&file)?;
                let release = NcclRelease::of(&object)?;
                require_setting(plugin)?;
                let refused = || {
                    Error::Refused(format!(
                        "the loader of NCCL {release} did not take NCCL_NET_PLUGIN={plugin}"
                    ))
                };
                (taken_by_loader(&object, release)?.ok_or_else(refused)?, Some(release))
            }
        };
        let maps = Maps::read()?;
        let home = home_of(&maps, source, &file, &found, release)?;
        // SAFETY: the address is that of the data symbol which by NCCL's contract, or in this
        // release, is a vtable of that version; it is mapped (home_of checked it) and libraries are
        // never unloaded here.
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

    /// As [`Self::open`], of a private copy of the plugin: so a process can have one library twice.
    /// The loader knows a file by its inode. What the copy is linked with is looked for where the
    /// original looks, but for what lies beside it.
    ///
    /// # Errors
    /// As [`Self::open`]; [`Error::Io`] if it cannot be copied.
    pub fn open_copy(path: &Path, abi: Option<u32>) -> Result<Self> {
        let failed = |source| Error::io(format!("cannot copy {}", path.display()), source);
        let original = std::fs::canonicalize(path).map_err(failed)?;
        let folder = tempfile::tempdir().map_err(failed)?;
        let copy = folder.path().join(original.file_name().unwrap_or_default());
        std::fs::copy(&original, &copy).map_err(failed)?;
        let mut library = Self::open(&Source::Plugin { path: copy, abi })?;
        library.identity.file = original;
        Ok(library)
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

/// Has the loader of the libnccl.so.2 at `nccl` take the plugin that `NCCL_NET_PLUGIN=plugin`
/// names, and then look for a profiler. Returns the types of events that the profiler wants, as a
/// mask; 0: there is none.
///
/// # Errors
/// As [`Library::open`]; [`Error::Misuse`] for a release before 2.28.
pub fn profiler_events(nccl: &Path, plugin: &str) -> Result<i32> {
    let file = std::fs::canonicalize(nccl)
        .map_err(|e| Error::io(format!("cannot open {}", nccl.display()), e))?;
    let object = SharedObject::open(&file)?;
    let release = NcclRelease::of(&object)?;
    if release.interface < 11 {
        return Err(Error::Misuse("this release looks for no profiler in a network plugin"));
    }
    require_setting(plugin)?;
    object.run_profiler_loader(release.interface)
}

/// The file that the loader of the libnccl.so.2 at `nccl` takes its network from in this process,
/// by this process's own environment. `None`: it takes none but NCCL's own.
///
/// # Errors
/// As [`Library::open`].
pub fn loader_takes(nccl: &Path) -> Result<Option<PathBuf>> {
    let object = SharedObject::open(nccl)?;
    let release = NcclRelease::of(&object)?;
    let Some(found) = taken_by_loader(&object, release)? else { return Ok(None) };
    Ok(Maps::read()?.at(found.address).map(|mapping| mapping.path.clone()))
}

/// Has the libnccl.so.2 at `nccl` put what its configuration files set into the environment of this
/// process, which has one thread.
///
/// # Errors
/// As [`Library::open`].
pub fn read_conf_files(nccl: &Path) -> Result<()> {
    let object = SharedObject::open(nccl)?;
    NcclRelease::of(&object)?;
    object.read_conf_files()
}

/// Whether the loader of the libnccl.so.2 at `nccl` can take a plugin by this value of
/// `NCCL_NET_PLUGIN`, if that names files by their paths. Nothing is loaded.
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
    let release = release::verify(nccl)?;
    let search = PluginSearch::of_release(release);
    if !search.takes_lists() {
        return Err(Error::Usage(format!(
            "{setting}: NCCL {release} takes one plugin, and 2.27 and later take a list; FERRITE_NCCL=PATH names another libnccl.so.2"
        )));
    }
    let files = search.entries(Some(setting)).into_iter().filter(|entry| entry.ignored.is_none());
    let checked: Vec<Result<()>> = files
        .map(|entry| {
            if entry.text.contains('/') {
                require_plugin(entry.text.as_ref(), None).map(drop)
            } else {
                Ok(())
            }
        })
        .collect();
    if checked.iter().any(Result::is_ok) { Ok(()) } else { checked.into_iter().collect() }
}

/// Finds out, without loading it, whether the file is a plugin, of version `abi` if that is given;
/// the version that is used.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, [`Error::Load`] if it is no ELF file, [`Error::Symbol`] if
/// it is none.
pub fn require_plugin(file: &Path, abi: Option<u32>) -> Result<u32> {
    let exports = exports(file, PLUGIN_SYMBOL)?;
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

/// What NCCL's own loader takes, by the environment: before 2.24 its only table, later the one that
/// it tells a communicator to use. `None`: no table of a plugin.
fn taken_by_loader(nccl: &SharedObject, release: NcclRelease) -> Result<Option<Found>> {
    if release.interface == 8 {
        let address = nccl.run_loader()?;
        return Ok((address != 0).then(|| Found {
            symbol: "ncclNets[0]".into(),
            address,
            interface: 8,
        }));
    }
    let chosen = nccl.run_later_loader(release.interface)?;
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
    let is_it =
        |file: &PathBuf| !file.to_string_lossy().contains('/') || maps.is_in(found.address, file);
    match home {
        Some(home) if expected.iter().any(is_it) => Ok(home),
        home => Err(Error::Refused(format!(
            "the vtable lies in {}, not in {}",
            home.map_or_else(|| "no file".into(), |path| path.display().to_string()),
            expected.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(" or ")
        ))),
    }
}

/// The table. Only read, and as long-lived as the process.
#[derive(Clone, Copy)]
pub enum Vtable {
    /// `ncclNet_v8`: plugins, and NCCL 2.21.5.
    V8(&'static ncclNet_v8_t),
    /// `ncclNet_v9`: NCCL 2.25.1.
    V9(&'static later::NetV9),
    /// `ncclNet_v10`: NCCL 2.27.5.
    V10(&'static later::NetV10),
    /// `ncclNet_v11`: NCCL 2.28.9.
    V11(&'static later::Net),
    /// `ncclNet_v12`: NCCL 2.30.7 and 2.32.3. The slots are those of version 11.
    V12(&'static later::Net),
}

// SAFETY: the table is only read; it and the strings behind it live as long as the process.
unsafe impl Send for Vtable {}
// SAFETY: as above.
unsafe impl Sync for Vtable {}

/// A slot that has the same type in all versions.
macro_rules! slot {
    ($vtable:expr, $slot:ident) => {
        match $vtable {
            $crate::nccl::library::Vtable::V8(net) => net.$slot,
            $crate::nccl::library::Vtable::V9(net) => net.$slot,
            $crate::nccl::library::Vtable::V10(net) => net.$slot,
            $crate::nccl::library::Vtable::V11(net) | $crate::nccl::library::Vtable::V12(net) => {
                net.$slot
            }
        }
    };
}

pub(crate) use slot;

/// What a table must have; the rest may be missing.
const REQUIRED: usize = 15;

impl Vtable {
    /// The table of interface `version` (8 to 12) at `address`.
    ///
    /// # Safety
    /// A table of that version has to be there, and to stay.
    pub(crate) unsafe fn at(address: usize, version: u32) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe {
            match version {
                8 => Ok(Self::V8(&*(address as *const ncclNet_v8_t))),
                9 => Ok(Self::V9(&*(address as *const later::NetV9))),
                10 => Ok(Self::V10(&*(address as *const later::NetV10))),
                11 => Ok(Self::V11(&*(address as *const later::Net))),
                12 => Ok(Self::V12(&*(address as *const later::Net))),
                _ => Err(Error::Misuse("a vtable of an unknown version")),
            }
        }
    }

    /// 8 to 12.
    pub fn version(&self) -> u32 {
        match self {
            Self::V8(_) => 8,
            Self::V9(_) => 9,
            Self::V10(_) => 10,
            Self::V11(_) => 11,
            Self::V12(_) => 12,
        }
    }

    /// The transport's name.
    ///
    /// # Errors
    /// [`Error::Refused`] if it has none.
    pub(crate) fn name(&self, maps: &Maps) -> Result<String> {
        let name = slot!(self, name);
        if name.is_null() || maps.at(name as usize).is_none() {
            return Err(Error::Refused("the vtable has no name".into()));
        }
        // SAFETY: the pointer is mapped from a file (checked above) and by NCCL's contract it is a
        // NUL-terminated string that lives as long as the library.
        Ok(unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned())
    }

    /// Checks that every slot that has to be set is, and that every set slot lies in `home`; how
    /// many are set.
    ///
    /// # Errors
    /// [`Error::Refused`], with the name of the slot.
    pub(crate) fn check_functions(&self, maps: &Maps, home: &Path) -> Result<usize> {
        let slots = self.slots();
        if let Some((slot, _)) = slots.iter().take(REQUIRED).find(|(_, address)| address.is_none())
        {
            return Err(Error::Refused(format!("the vtable in {} has no {slot}", home.display())));
        }
        let mut count = 0;
        for (slot, address) in
            slots.iter().filter_map(|(slot, address)| address.map(|address| (*slot, address)))
        {
            if !maps.is_in(address, home) {
                let place = maps.at(address).map(|mapping| mapping.path.clone());
                return Err(Error::Refused(format!(
                    "{slot} of the vtable in {} lies in {}",
                    home.display(),
                    place.unwrap_or_else(|| "no file".into()).display()
                )));
            }
            count += 1;
        }
        Ok(count)
    }

    /// Names and addresses, the [`REQUIRED`] ones first.
    fn slots(&self) -> Vec<(&'static str, Option<usize>)> {
        macro_rules! addresses {
            ($net:expr; $($slot:ident),*) => { vec![$((stringify!($slot), $net.$slot.map(|f| f as usize))),*] };
        }
        macro_rules! known {
            ($net:expr; $($more:ident),*) => {
                addresses!($net; init, devices, getProperties, listen, connect, accept, regMr, deregMr, isend, irecv,
                    iflush, test, closeSend, closeRecv, closeListen, regMrDmaBuf, getDeviceMr, irecvConsumed $(, $more)*)
            };
        }
        match self {
            Self::V8(net) => known!(net;),
            Self::V9(net) => known!(net; makeVDevice),
            Self::V10(net) => known!(net; makeVDevice),
            Self::V11(net) | Self::V12(net) => known!(net; makeVDevice, finalize, setNetAttr),
        }
    }
}

impl fmt::Debug for Vtable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Vtable::V{}", self.version())
    }
}

/// An error unless NCCL reads `plugin` from the environment.
pub(crate) fn require_setting(plugin: &str) -> Result<()> {
    if std::env::var_os("NCCL_NET_PLUGIN").as_deref() == Some(OsStr::new(plugin)) {
        return Ok(());
    }
    Err(Error::Misuse("NCCL_NET_PLUGIN must be set before a process opens Source::Loader"))
}
