//! Where a v8 vtable comes from, and the proof that it came from there.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::abi::ncclNet_v8_t;
use crate::error::{Error, Result, result_words};
use crate::maps::Maps;
use crate::{elf, wheel};

/// The data symbol that a v8 plugin exports.
pub const PLUGIN_SYMBOL: &str = "ncclNetPlugin_v8";
/// The built-in IB transport's vtable, a local data symbol of libnccl 2.21.5.
pub const STOCK_SYMBOL: &str = "ncclNetIb";
/// libnccl 2.21.5's own plugin loader, a local function without arguments.
const LOADER_SYMBOL: &str = "_Z17ncclNetPluginInitv";
/// What the loader fills: `{plugin or NULL, IB, Socket}`.
const NETS_SYMBOL: &str = "ncclNets";

/// A place to take a v8 vtable from.
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
        /// libnccl.so.2 of [`wheel::VERSION_TEXT`].
        nccl: PathBuf,
    },
    /// What NCCL's own loader makes of `NCCL_NET_PLUGIN`.
    Loader {
        /// libnccl.so.2 of [`wheel::VERSION_TEXT`].
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
    /// How many function slots were checked to lie inside `file`.
    pub functions: usize,
}

/// A loaded library with its vtable. Never unloaded: NCCL does not do so either, and a transport
/// may have left threads behind.
#[derive(Clone)]
pub struct Library {
    vtable: &'static ncclNet_v8_t,
    identity: Identity,
}

// SAFETY: the vtable is only read; it and the strings behind it live as long as the process.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Library").field("identity", &self.identity).finish_non_exhaustive()
    }
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
        let (found, nccl_version) = match source {
            Source::Plugin { .. } => (plugin_vtable(&file)?, None),
            Source::Stock { .. } => {
                let value = elf::local_symbol(&file, STOCK_SYMBOL)?;
                let object = Object::open(&file)?;
                let version = object.require_version()?;
                (Found::new(STOCK_SYMBOL, object.at(value)), Some(version))
            }
            Source::Loader { plugin, .. } => {
                let object = Object::open(&file)?;
                let version = object.require_version()?;
                let address = object.run_loader(plugin)?;
                (Found::new("ncclNets[0]", address), Some(version))
            }
        };
        let maps = Maps::read()?;
        let home = home_of(&maps, source, &file, found.address)?;
        // SAFETY: the address is that of the data symbol which by NCCL's contract is a
        // ncclNet_v8_t, it is mapped (home_of checked it) and libraries are never unloaded here.
        let vtable = unsafe { &*(found.address as *const ncclNet_v8_t) };
        let name = vtable_name(&maps, vtable)?;
        if matches!(source, Source::Stock { .. }) && name != "IB" {
            return Err(Error::Refused(format!(
                "the vtable {STOCK_SYMBOL} of {} is named {name:?}, not \"IB\"",
                home.display()
            )));
        }
        let functions = check_functions(&maps, vtable, &home)?;
        let identity = Identity { name, file: home, symbol: found.symbol.into(), nccl_version, functions };
        Ok(Self { vtable, identity })
    }

    /// The vtable itself, for tests that must break the rules the wrappers keep.
    pub fn vtable(&self) -> &'static ncclNet_v8_t {
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
}

impl Found {
    fn new(symbol: &'static str, address: usize) -> Self {
        Self { symbol, address }
    }
}

fn plugin_vtable(file: &Path) -> Result<Found> {
    let exports = elf::exports(file, "ncclNetPlugin_v")?;
    let object = Object::open(file)?;
    match object.exported(PLUGIN_SYMBOL) {
        Some(address) => Ok(Found::new(PLUGIN_SYMBOL, address)),
        None => Err(Error::Symbol {
            path: file.into(),
            symbol: PLUGIN_SYMBOL.into(),
            hint: if exports.is_empty() {
                "it is not an NCCL network plugin".into()
            } else {
                format!("it exports {} only", exports.join(", "))
            },
        }),
    }
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

fn vtable_name(maps: &Maps, vtable: &ncclNet_v8_t) -> Result<String> {
    if vtable.name.is_null() || maps.at(vtable.name as usize).is_none() {
        return Err(Error::Refused("the vtable has no name".into()));
    }
    // SAFETY: the pointer is mapped from a file (checked above) and by NCCL's contract it is a
    // NUL-terminated string that lives as long as the library.
    let name = unsafe { CStr::from_ptr(vtable.name) };
    Ok(name.to_string_lossy().into_owned())
}

/// Checks that every slot that has to be set is, and that every set slot lies in `home`.
fn check_functions(maps: &Maps, vtable: &ncclNet_v8_t, home: &Path) -> Result<usize> {
    macro_rules! slots {
        ($($slot:ident),*) => { [$((stringify!($slot), vtable.$slot.map(|f| f as usize))),*] };
    }
    let required = slots!(
        init,
        devices,
        getProperties,
        listen,
        connect,
        accept,
        regMr,
        deregMr,
        isend,
        irecv,
        iflush,
        test,
        closeSend,
        closeRecv,
        closeListen
    );
    let optional = slots!(regMrDmaBuf, getDeviceMr, irecvConsumed);
    if let Some((slot, _)) = required.iter().find(|(_, address)| address.is_none()) {
        return Err(Error::Refused(format!("the vtable in {} has no {slot}", home.display())));
    }
    let set = required.iter().chain(&optional);
    let set = set.filter_map(|(slot, address)| address.map(|address| (*slot, address)));
    let mut count = 0;
    for (slot, address) in set {
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

/// A `dlopen`ed shared object. Not closed on drop, see [`Library`].
pub(crate) struct Object {
    handle: *mut c_void,
    path: PathBuf,
}

impl Object {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name =
            CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::Usage("a path holds a NUL byte".into()))?;
        // SAFETY: the name is a C string; running the library's constructors is what the user
        // asked for by naming it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(Error::Load { path: path.into(), reason: loader_words() });
        }
        Ok(Self { handle, path: path.into() })
    }

    /// The address of a dynamic symbol.
    fn exported(&self, name: &str) -> Option<usize> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle came from dlopen and is never closed.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!address.is_null()).then_some(address as usize)
    }

    /// The run-time address of a symbol with this `st_value`.
    fn at(&self, value: u64) -> usize {
        let mut map: *mut LinkMap = std::ptr::null_mut();
        // SAFETY: RTLD_DI_LINKMAP writes one pointer to the loader's own record of this handle,
        // and the record starts with l_addr on every glibc.
        let bias = unsafe {
            if libc::dlinfo(self.handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) == 0 { (*map).bias } else { 0 }
        };
        bias.wrapping_add(value as usize)
    }

    /// What `ncclGetVersion` says.
    pub(crate) fn nccl_version(&self) -> Result<i32> {
        let Some(address) = self.exported("ncclGetVersion") else {
            return Err(Error::Symbol {
                path: self.path.clone(),
                symbol: "ncclGetVersion".into(),
                hint: "it is not an NCCL library".into(),
            });
        };
        let mut version: c_int = 0;
        // SAFETY: NCCL's public API: ncclResult_t ncclGetVersion(int*).
        let code = unsafe {
            let get: unsafe extern "C" fn(*mut c_int) -> u32 = std::mem::transmute(address);
            get(&raw mut version)
        };
        if code == 0 {
            Ok(version)
        } else {
            Err(Error::Refused(format!(
                "ncclGetVersion of {} returned {code} ({})",
                self.path.display(),
                result_words(code)
            )))
        }
    }

    /// As [`Object::nccl_version`], but only [`wheel::VERSION`] will do: the layout of the local
    /// symbols is known for that version alone.
    fn require_version(&self) -> Result<i32> {
        wheel::require_version(&self.path, self.nccl_version()?)
    }

    /// Has NCCL load the plugin, and returns the address of the vtable it chose.
    fn run_loader(&self, plugin: &str) -> Result<usize> {
        let set = std::env::var_os("NCCL_NET_PLUGIN");
        if set.as_deref() != Some(OsStr::new(plugin)) {
            return Err(Error::Misuse("NCCL_NET_PLUGIN must be set before a process opens Source::Loader"));
        }
        let init = self.at(elf::local_symbol(&self.path, LOADER_SYMBOL)?);
        let nets = self.at(elf::local_symbol(&self.path, NETS_SYMBOL)?);
        // SAFETY: in this version (require_version) the symbol is `ncclResult_t
        // ncclNetPluginInit()`; it reads the environment and fills ncclNets, an array of three
        // pointers.
        let (code, address) = unsafe {
            let init: unsafe extern "C" fn() -> u32 = std::mem::transmute(init);
            (init(), *(nets as *const usize))
        };
        if code != 0 || address == 0 {
            return Err(Error::Refused(format!(
                "NCCL's own loader did not take NCCL_NET_PLUGIN={plugin} (result {code})"
            )));
        }
        Ok(address)
    }
}

/// The start of glibc's `struct link_map`.
#[repr(C)]
struct LinkMap {
    bias: usize,
    name: *const c_char,
}

fn loader_words() -> String {
    // SAFETY: dlerror returns NULL or a string that lives until this thread's next dl call.
    unsafe {
        let words = libc::dlerror();
        if words.is_null() { "unknown reason".into() } else { CStr::from_ptr(words).to_string_lossy().into_owned() }
    }
}
