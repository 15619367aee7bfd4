//! Where a vtable comes from, and the proof that it came from there.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::nccl::elf;
use crate::nccl::release::{self, STOCK_SYMBOL};
use crate::nccl::shared_object::SharedObject;
use crate::nccl::vtable::Vtable;
use crate::system::maps::Maps;

/// The data symbol that a v8 plugin exports.
pub const PLUGIN_SYMBOL: &str = "ncclNetPlugin_v8";

/// A place to take a vtable from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Source {
    /// `ncclNetPlugin_v8` of a plugin.
    Plugin {
        /// The shared object.
        path: PathBuf,
    },
    /// NCCL's built-in IB transport.
    Stock {
        /// libnccl.so.2 of one of [`RELEASES`](super::release::RELEASES).
        nccl: PathBuf,
    },
    /// What NCCL's own loader makes of `NCCL_NET_PLUGIN`.
    Loader {
        /// libnccl.so.2 of a release whose built-in transports are of version 8.
        nccl: PathBuf,
        /// The value of `NCCL_NET_PLUGIN`.
        plugin: String,
    },
}

impl Source {
    /// A plugin's shared object.
    pub fn plugin(path: impl Into<PathBuf>) -> Self {
        Self::Plugin { path: path.into() }
    }

    /// The IB transport inside a libnccl.so.2.
    pub fn stock(nccl: impl Into<PathBuf>) -> Self {
        Self::Stock { nccl: nccl.into() }
    }

    /// The file that this process opens itself.
    pub fn file(&self) -> &Path {
        match self {
            Self::Plugin { path } => path,
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
    /// The version of the vtable: 8, 11 or 12.
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
            Source::Plugin { .. } => (plugin_vtable(&file)?, None),
            Source::Stock { .. } => {
                let value = elf::local_symbol(&file, STOCK_SYMBOL)?;
                let object = SharedObject::open(&file)?;
                let release = object.release()?;
                (Found { symbol: STOCK_SYMBOL, address: object.at(value), interface: release.interface }, Some(release))
            }
            Source::Loader { plugin, .. } => {
                let object = SharedObject::open(&file)?;
                let release = object.release()?;
                release::require_loader(&file, release)?;
                let address = object.run_loader(plugin)?;
                (Found { symbol: "ncclNets[0]", address, interface: 8 }, Some(release))
            }
        };
        let maps = Maps::read()?;
        let home = home_of(&maps, source, &file, found.address)?;
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
            symbol: found.symbol.into(),
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
    symbol: &'static str,
    address: usize,
    interface: u32,
}

/// Finds out, without loading it, whether the file is a plugin of version 8.
///
/// # Errors
/// [`Error::Io`] if it cannot be read, [`Error::Load`] if it is no ELF file, [`Error::Symbol`] if it is none.
pub fn require_plugin(file: &Path) -> Result<()> {
    let exports = elf::exports(file, "ncclNetPlugin_v")?;
    if exports.iter().any(|name| name == PLUGIN_SYMBOL) {
        return Ok(());
    }
    Err(Error::Symbol {
        path: file.into(),
        symbol: PLUGIN_SYMBOL.into(),
        hint: if exports.is_empty() {
            "it is not an NCCL network plugin".into()
        } else {
            format!("it exports {} only", exports.join(", "))
        },
    })
}

fn plugin_vtable(file: &Path) -> Result<Found> {
    require_plugin(file)?;
    let address = SharedObject::open(file)?.exported(PLUGIN_SYMBOL).ok_or_else(|| Error::Symbol {
        path: file.into(),
        symbol: PLUGIN_SYMBOL.into(),
        hint: "the dynamic loader does not find it, although the file exports it".into(),
    })?;
    Ok(Found { symbol: PLUGIN_SYMBOL, address, interface: 8 })
}

/// The file that the vtable at `address` belongs to; an error if it is not the file that was named.
fn home_of(maps: &Maps, source: &Source, opened: &Path, address: usize) -> Result<PathBuf> {
    let home = maps.at(address).map(|mapping| mapping.path.clone());
    let expected = match source {
        Source::Plugin { .. } | Source::Stock { .. } => Some(opened.to_path_buf()),
        Source::Loader { plugin, .. } => plugin.contains('/').then(|| PathBuf::from(plugin)),
    };
    match (home, expected) {
        (Some(home), None) => Ok(home),
        (Some(home), Some(expected)) if maps.is_in(address, &expected) => Ok(home),
        (home, expected) => Err(Error::Refused(format!(
            "the vtable lies in {}, not in {}",
            home.map_or_else(|| "no file".into(), |path| path.display().to_string()),
            expected.unwrap_or_else(|| opened.into()).display()
        ))),
    }
}
