//! Shared objects: symbols and flags of an ELF file, read without loading it; one that is loaded
//! into this process, and NCCL's plugin loader in it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use object::elf::{DF_1_NODELETE, DT_FLAGS_1};
use object::read::ReadCache;
use object::read::elf::{Dyn, ElfFile64};
use object::{Object, ObjectSegment, ObjectSymbol};

use crate::error::{Error, Result, result_words};
use crate::system::host;

/// NCCL's plugin loader, a local function without arguments in libnccl 2.20.5 and 2.21.5.
const LOADER_SYMBOL: &str = "_Z17ncclNetPluginInitv";
/// NCCL's functions that load the plugin (in 2.24 and 2.25; later the other one does it) and that
/// give a communicator its network.
const COMM_LOADER_SYMBOLS: [&str; 2] =
    ["_Z17ncclNetPluginLoadP8ncclComm", "_Z11ncclNetInitP8ncclComm"];
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

/// A `dlopen`ed shared object. Not closed on drop: NCCL does not do so either, and a transport may
/// have left threads behind.
pub(crate) struct SharedObject {
    handle: *mut c_void,
    pub(super) path: PathBuf,
}

impl SharedObject {
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Error::Usage("a path holds a NUL byte".into()))?;
        // SAFETY: the name is a C string; running the library's constructors is what the user
        // asked for by naming it.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            // For a file of another processor, the loader says that there is no such file.
            let words = missing_runtime(path, &loader_words());
            let reason = host::obstacle(path).ok().flatten().unwrap_or(words);
            return Err(Error::Load { path: path.into(), reason });
        }
        Ok(Self { handle, path: path.into() })
    }

    /// Gives this reference back; the loader unmaps the object if it was the last one.
    pub(crate) fn close(self) {
        // SAFETY: the handle came from dlopen, and this object does not come back; the caller uses
        // nothing of it.
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
            if libc::dlinfo(self.handle, libc::RTLD_DI_LINKMAP, (&raw mut map).cast()) == 0 {
                (*map).bias
            } else {
                0
            }
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

    /// Has NCCL load the plugin that `NCCL_NET_PLUGIN` names, and returns the address of the vtable
    /// it chose; 0: it has none. The caller knows that this is a release with interface 8: the
    /// layout of the local symbols is known for these alone.
    pub(crate) fn run_loader(&self) -> Result<usize> {
        let [init, nets] =
            local_symbols(&self.path, [LOADER_SYMBOL, NETS_SYMBOL])?.map(|value| self.at(value));
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

    /// Has NCCL give a communicator its network, and returns the addresses that it has written into
    /// the communicator: the vtable is one of them. The caller knows that this is a release with this
    /// `interface`, 9 or later.
    pub(crate) fn run_later_loader(&self, interface: u32) -> Result<Vec<usize>> {
        let mut comm = vec![0_usize; COMM_WORDS];
        self.load_into(&mut comm, interface)?;
        comm.retain(|word| *word != 0);
        Ok(comm)
    }

    /// Has NCCL give a communicator its network and then its profiler, and returns the mask of
    /// events that the profiler wants; 0 if there is no profiler. The caller knows that this is a
    /// release with this `interface`, 11 or later.
    pub(crate) fn run_profiler_loader(&self, interface: u32) -> Result<i32> {
        // Not given back: from 2.31 on a thread may look at it as long as the process lives.
        let comm = Box::leak(vec![0_usize; COMM_WORDS].into_boxed_slice());
        self.load_into(comm, interface)?;
        let symbols = [PROFILER_LOADER_SYMBOL, PROFILER_MASK_SYMBOL];
        let [init, mask] = local_symbols(&self.path, symbols)?.map(|value| self.at(value));
        // SAFETY: in these versions (the caller's word) the first symbol is
        // `ncclResult_t function(ncclComm*)`, which reads number, name (NULL: none) and rank from
        // the communicator and writes what the profiler returns; the second one is an int.
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
        let value = local_symbol(&self.path, named).or_else(|_| local_symbol(&self.path, whole))?;
        // SAFETY: in all known releases it is `void function()`, which reads files and calls
        // `setenv`.
        unsafe {
            let read: unsafe extern "C" fn() = std::mem::transmute(self.at(value));
            read();
        }
        Ok(())
    }

    /// Has NCCL give the communicator at `comm` its network.
    fn load_into(&self, comm: &mut [usize], interface: u32) -> Result<()> {
        let symbols =
            if interface == 9 { &COMM_LOADER_SYMBOLS[..] } else { &COMM_LOADER_SYMBOLS[1..] };
        let mut code = 0;
        for symbol in symbols {
            let function = self.at(local_symbol(&self.path, symbol)?);
            // SAFETY: in these versions (the caller's word) both symbols are
            // `ncclResult_t function(ncclComm*)`. They read the name of the wanted network (NULL:
            // any) and the traffic class from the communicator, and write what they have chosen;
            // no communicator of these versions is as large as this one.
            code = unsafe {
                let function: unsafe extern "C" fn(*mut usize) -> u32 =
                    std::mem::transmute(function);
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
        code => Err(Error::Refused(format!(
            "NCCL's own loader of plugins returned {code} ({})",
            result_words(code)
        ))),
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
        if words.is_null() {
            "unknown reason".into()
        } else {
            CStr::from_ptr(words).to_string_lossy().into_owned()
        }
    }
}

/// A parsed 64-bit ELF file; its parts are read as they are needed.
type Elf<'file> = ElfFile64<'file, object::Endianness, &'file ReadCache<File>>;

/// The loader's words without the path, which the error names, and what helps if the CUDA runtime is
/// missing: some plugins expect that the application has loaded it.
fn missing_runtime(path: &Path, words: &str) -> String {
    let words = words.strip_prefix(&format!("{}: ", path.display())).unwrap_or(words);
    let symbol = words.split("undefined symbol: cuda").nth(1);
    let is_runtime = symbol.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()));
    let help = "; it expects the CUDA runtime in its process: set LD_PRELOAD=/PATH/libcudart.so.12 \
                (package nvidia-cuda-runtime-cu12)";
    format!("{words}{}", if is_runtime { help } else { "" })
}

/// Opens and parses the file at `path`, and passes it to `look`.
fn with_file<T>(path: &Path, look: impl FnOnce(&Elf<'_>) -> Result<T>) -> Result<T> {
    let file = File::open(path)
        .map_err(|source| Error::io(format!("cannot open {}", path.display()), source))?;
    let cache = ReadCache::new(file);
    let elf = Elf::parse(&cache).map_err(|problem| not_whole(path, problem))?;
    look(&elf)
}

fn not_whole(path: &Path, problem: object::Error) -> Error {
    Error::Load { path: path.into(), reason: format!("not a whole ELF file ({problem})") }
}

/// The `st_value` of each of the defined symbols `names` in the `.symtab` of the file at `path`:
/// their addresses before the load bias is added.
///
/// # Errors
/// [`Error::Io`] if the file cannot be read, [`Error::Load`] if it is no ELF file or incomplete,
/// [`Error::Symbol`] if it has no such symbol (or was stripped).
pub fn local_symbols<const N: usize>(path: &Path, names: [&str; N]) -> Result<[u64; N]> {
    with_file(path, |elf| {
        let mut values = [None; N];
        let mut seen = 0_usize;
        for symbol in elf.symbols() {
            seen += 1;
            let place = names.iter().position(|name| symbol.name_bytes() == Ok(name.as_bytes()));
            if let Some(place) = place.filter(|_| symbol.is_definition()) {
                values[place].get_or_insert_with(|| symbol.address());
            }
        }
        if let Some(missing) = values.iter().position(Option::is_none) {
            return Err(Error::Symbol {
                path: path.into(),
                symbol: names[missing].into(),
                hint: if seen == 0 {
                    "its .symtab is missing or empty: the file was stripped, use the one from the wheel".into()
                } else {
                    format!("none of the {seen} entries of its .symtab has that name")
                },
            });
        }
        Ok(values.map(Option::unwrap_or_default))
    })
}

/// As [`local_symbols`], of one name.
///
/// # Errors
/// As [`local_symbols`].
pub fn local_symbol(path: &Path, name: &str) -> Result<u64> {
    local_symbols(path, [name]).map(|[value]| value)
}

/// The names of the defined dynamic symbols that start with `prefix`.
///
/// # Errors
/// As [`local_symbols`], except that finding none is no error.
pub fn exports(path: &Path, prefix: &str) -> Result<Vec<String>> {
    with_file(path, |elf| {
        let mut names: Vec<String> = elf
            .dynamic_symbols()
            .filter(|symbol| symbol.is_definition())
            .filter_map(|symbol| symbol.name().ok().map(str::to_owned))
            .filter(|name| name.starts_with(prefix))
            .collect();
        names.sort();
        names.dedup();
        Ok(names)
    })
}

/// The size of the defined data symbol `name`, dynamic or local.
///
/// # Errors
/// As [`local_symbols`]; [`Error::Refused`] if the symbol is no data.
pub fn data_size(path: &Path, name: &str) -> Result<u64> {
    with_file(path, |elf| {
        let mut symbols = elf.dynamic_symbols().chain(elf.symbols());
        let found = symbols
            .find(|symbol| symbol.is_definition() && symbol.name_bytes() == Ok(name.as_bytes()));
        match found {
            Some(symbol) if symbol.kind() == object::SymbolKind::Data => Ok(symbol.size()),
            Some(symbol) => {
                Err(Error::Refused(format!("{name} is no data object but {:?}", symbol.kind())))
            }
            None => Err(Error::Symbol {
                path: path.into(),
                symbol: name.into(),
                hint: "it is neither exported nor in .symtab".into(),
            }),
        }
    })
}

/// Whether the file asks the loader never to unmap it.
///
/// # Errors
/// As [`local_symbols`], without the symbol.
pub fn is_nodelete(path: &Path) -> Result<bool> {
    with_file(path, |elf| {
        let failed = |problem| not_whole(path, problem);
        let dynamic = elf.elf_section_table().dynamic(elf.endian(), elf.data()).map_err(failed)?;
        let entries = dynamic.map_or(&[][..], |(entries, _)| entries);
        let flags = entries.iter().find(|entry| entry.d_tag(elf.endian()) == DT_FLAGS_1);
        Ok(flags.is_some_and(|entry| entry.d_val(elf.endian()) & u64::from(DF_1_NODELETE) != 0))
    })
}

/// The bytes at each of `addresses`, before the load bias is added: `length` of them, or as many as
/// there are.
///
/// # Errors
/// As [`local_symbols`], without the symbol; [`Error::Refused`] if the code is not for x86-64.
pub fn x86_64_code_at(path: &Path, addresses: &[u64], length: u64) -> Result<Vec<Vec<u8>>> {
    with_file(path, |elf| {
        if elf.architecture() != object::Architecture::X86_64 {
            return Err(Error::Refused(format!("{} is not for x86-64", path.display())));
        }
        let segments: Vec<_> =
            elf.segments().map(|segment| (segment.address(), segment.size(), segment)).collect();
        let code_at = |address: &u64| {
            let found =
                segments.iter().find(|(start, size, _)| (*start..start + size).contains(address));
            let Some((start, size, segment)) = found else { return Ok(Vec::new()) };
            let length = length.min(start + size - address);
            let bytes =
                segment.data_range(*address, length).map_err(|problem| not_whole(path, problem))?;
            Ok(bytes.unwrap_or_default().to_vec())
        };
        addresses.iter().map(code_at).collect()
    })
}
