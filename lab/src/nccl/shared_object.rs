//! A shared object in this process: its symbols, its version, and NCCL's own loader inside it.

use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result, result_words};
use crate::nccl::elf;
use crate::nccl::release::{self, NcclRelease};
use crate::system::suitability;

/// NCCL's plugin loader, a local function without arguments in libnccl 2.20.5 and 2.21.5.
const LOADER_SYMBOL: &str = "_Z17ncclNetPluginInitv";
/// NCCL's functions that load the plugin (in 2.24 and 2.25; later the other one does it) and that give a communicator its network.
const COMM_LOADER_SYMBOLS: [&str; 2] = ["_Z17ncclNetPluginLoadP8ncclComm", "_Z11ncclNetInitP8ncclComm"];
/// NCCL's function that loads a profiler and gives it a communicator, from 2.28 on.
const PROFILER_LOADER_SYMBOL: &str = "_Z22ncclProfilerPluginInitP8ncclComm";
/// Where a profiler's `init` says which events it wants.
const PROFILER_MASK_SYMBOL: &str = "ncclProfilerEventMask";
/// NCCL's functions that read its configuration files.
const CONF_FILE_SYMBOLS: [&str; 2] = ["_ZL11initEnvFuncv", "_Z7initEnvv"];
/// Words of a block that is larger than NCCL's communicators.
const COMM_WORDS: usize = 1 << 19;
/// What the loader fills: `{plugin or NULL, IB, Socket}`.
const NETS_SYMBOL: &str = "ncclNets";

/// A `dlopen`ed shared object. Not closed on drop, see [`Library`](crate::nccl::library::Library).
pub(crate) struct SharedObject {
    handle: *mut c_void,
    path: PathBuf,
}

impl SharedObject {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name =
            CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::Usage("a path holds a NUL byte".into()))?;
        // SAFETY: the name is a C string; running the library's constructors is what the user
        // asked for by naming it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // The loader says of a file for another processor that there is none.
            let words = loader_words();
            let reason = suitability::obstacle(path).ok().flatten().unwrap_or(words);
            return Err(Error::Load { path: path.into(), reason });
        }
        Ok(Self { handle, path: path.into() })
    }

    /// Gives this reference back; the loader unmaps the object if it was the last one.
    pub(crate) fn close(self) {
        // SAFETY: the handle came from dlopen, and this object does not come back; the caller uses nothing of it.
        if unsafe { libc::dlclose(self.handle) } != 0 {
            log::warn!("dlclose: {}", loader_words());
        }
    }

    /// The address of a dynamic symbol.
    pub(crate) fn exported(&self, name: &str) -> Option<usize> {
        let name = CString::new(name).ok()?;
        // SAFETY: the handle came from dlopen and is never closed.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        (!address.is_null()).then_some(address as usize)
    }

    /// The run-time address of a symbol with this `st_value`.
    pub(crate) fn at(&self, value: u64) -> usize {
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

    /// Which of the known releases this is.
    pub(crate) fn release(&self) -> Result<NcclRelease> {
        release::release_of(&self.path, self.nccl_version()?)
    }

    /// Has NCCL load the plugin that `NCCL_NET_PLUGIN` names, and returns the address of the vtable it chose; 0: it has none. The
    /// caller knows that this is a release with interface 8: the layout of the local symbols is known for these alone.
    pub(crate) fn run_loader(&self) -> Result<usize> {
        let [init, nets] = elf::local_symbols(&self.path, [LOADER_SYMBOL, NETS_SYMBOL])?.map(|value| self.at(value));
        // SAFETY: in this version (the caller's word) the symbol is `ncclResult_t
        // ncclNetPluginInit()`; it reads the environment and fills ncclNets, an array of three
        // pointers.
        let (code, address) = unsafe {
            let init: unsafe extern "C" fn() -> u32 = std::mem::transmute(init);
            (init(), *(nets as *const usize))
        };
        no_error(code)?;
        Ok(address)
    }

    /// Has NCCL give a communicator its network, and returns the addresses that it has written into the communicator: the
    /// vtable is one of them. The caller knows that this is a `release` with interface 9 or later.
    pub(crate) fn run_later_loader(&self, release: NcclRelease) -> Result<Vec<usize>> {
        let mut comm = vec![0_usize; COMM_WORDS];
        self.load_into(&mut comm, release)?;
        comm.retain(|word| *word != 0);
        Ok(comm)
    }

    /// Has NCCL give a communicator its network and then its profiler, and returns the mask of events that the profiler wants; 0 if
    /// there is no profiler. The caller knows that this is a `release` with interface 11 or later.
    pub(crate) fn run_profiler_loader(&self, release: NcclRelease) -> Result<i32> {
        // Not given back: from 2.31 on a thread may look at it as long as the process lives.
        let comm = Box::leak(vec![0_usize; COMM_WORDS].into_boxed_slice());
        self.load_into(comm, release)?;
        let symbols = [PROFILER_LOADER_SYMBOL, PROFILER_MASK_SYMBOL];
        let [init, mask] = elf::local_symbols(&self.path, symbols)?.map(|value| self.at(value));
        // SAFETY: in these versions (the caller's word) the first symbol is `ncclResult_t function(ncclComm*)`, which reads number, name
        // (NULL: none) and rank from the communicator and writes what the profiler returns; the second one is an int.
        let (code, mask) = unsafe {
            let init: unsafe extern "C" fn(*mut usize) -> u32 = std::mem::transmute(init);
            (init(comm.as_mut_ptr()), *(mask as *const c_int))
        };
        match code {
            0 => Ok(mask),
            code => Err(Error::Refused(format!("NCCL's own loader of profilers returned {code}"))),
        }
    }

    /// Has NCCL put what its configuration files set into the environment.
    pub(crate) fn read_conf_files(&self) -> Result<()> {
        let [named, whole] = CONF_FILE_SYMBOLS;
        // Since 2.23 the second one calls the first one, once.
        let value = elf::local_symbol(&self.path, named).or_else(|_| elf::local_symbol(&self.path, whole))?;
        // SAFETY: in all known releases it is `void function()`, which reads files and calls `setenv`.
        unsafe {
            let read: unsafe extern "C" fn() = std::mem::transmute(self.at(value));
            read();
        }
        Ok(())
    }

    /// Has NCCL give the communicator at `comm` its network.
    fn load_into(&self, comm: &mut [usize], release: NcclRelease) -> Result<()> {
        let symbols = if release.interface == 9 { &COMM_LOADER_SYMBOLS[..] } else { &COMM_LOADER_SYMBOLS[1..] };
        let mut code = 0;
        for symbol in symbols {
            let function = self.at(elf::local_symbol(&self.path, symbol)?);
            // SAFETY: in these versions (the caller's word) both symbols are `ncclResult_t function(ncclComm*)`. They read the name
            // of the wanted network (NULL: any) and the traffic class from the communicator, and write what they have
            // chosen; the communicator of none of these versions is as large as this one.
            code = unsafe {
                let function: unsafe extern "C" fn(*mut usize) -> u32 = std::mem::transmute(function);
                function(comm.as_mut_ptr())
            };
            if code != 0 {
                break;
            }
        }
        no_error(code)
    }
}

/// An error if NCCL's loader has returned one.
fn no_error(code: u32) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(Error::Refused(format!("NCCL's own loader of plugins returned {code} ({})", result_words(code)))),
    }
}

/// An error unless NCCL reads `plugin` from the environment.
pub(crate) fn require_setting(plugin: &str) -> Result<()> {
    if std::env::var_os("NCCL_NET_PLUGIN").as_deref() == Some(OsStr::new(plugin)) {
        return Ok(());
    }
    Err(Error::Misuse("NCCL_NET_PLUGIN must be set before a process opens Source::Loader"))
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
