//! Objects that exist once per process: the logger, the network, and the devices of each table.
//! NCCL's `init` creates them.

use super::devices::Devices;
use super::env_plugin::Settings;
use super::nccl::ncclResult_t;
use super::{logger, nccl};
use crate::error::{Error, Result};
use crate::net::background::notices::INIT;
use crate::net::network::Network;
use once_cell::sync::OnceCell;
use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// The plugin's name, for `NCCL_NET=Ferrite`.
pub const NAME: &CStr = c"Ferrite";

/// Whether NCCL also sets up communicators over the network (`NCCL_OOB_NET_ENABLE`). Then only
/// messages of operations have a profiler's handle, which shows that their tags are ranks.
pub static NCCL_CONNECTS_OVER_NET: AtomicBool = AtomicBool::new(false);

/// The interface versions with tables.
const VERSIONS: RangeInclusive<u32> = 8..=12;
/// The first version in which NCCL announces each communicator.
const FIRST_WITH_CONTEXTS: u32 = 11;
/// The version of NCCL 2.24 and 2.25. Their progress thread repeats a failed operation until it
/// succeeds, even after `ncclCommAbort`, which waits for that thread (`ncclProxyProgress` in
/// proxy.cc). NCCL 2.23.4 does so too; others check the abort flag.
const ABORT_NEVER_RETURNS: u32 = 9;
/// The version of NCCL 2.26 and 2.27. Their progress thread forgets a failed operation
/// (`progressOps` in proxy.cc), so `ncclCommGetAsyncError` never reports it. Releases before 2.26.2
/// and from 2.28.3 on do.
const DROPS_ERRORS: u32 = 10;

/// The first release that sorts its own devices by PCI address.
const FIRST_THAT_SORTS: c_int = 22907;

/// The tables of NCCL up to 2.25, whose progress thread repeats failed calls.
const REPEAT_FAILED_CALLS: RangeInclusive<u32> = 8..=9;

/// The network, and the devices of each table.
#[derive(Debug)]
pub(super) struct Process {
    /// The network.
    pub(super) network: Network,
    /// By version, as in [`VERSIONS`].
    tables: Vec<Table>,
}

#[derive(Debug)]
struct Table {
    devices: Devices,
    /// The present number of NCCL's communicators.
    communicators: AtomicUsize,
}

static PROCESS: OnceCell<Process> = OnceCell::new();
/// The tables that NCCL uses, as a bit mask.
static TAKEN: AtomicU32 = AtomicU32::new(0);
/// Whether NCCL has taken Ferrite's profiler.
static HAS_PROFILER: AtomicBool = AtomicBool::new(false);
/// The profiler interface versions through which NCCL is asked to report operations, as a bit mask.
static PROFILERS: AtomicU32 = AtomicU32::new(0);

/// Warns once when NCCL's progress thread gets an error that this NCCL handles unexpectedly. (With
/// `NCCL_OOB_NET_ENABLE=1`, NCCL's bootstrap may be the caller instead, which is not
/// distinguished.)
pub(super) fn warn_of_what_nccl_makes_of_errors() {
    static SAID: AtomicBool = AtomicBool::new(false);
    let taken = TAKEN.load(Ordering::Relaxed);
    let words = if taken == 1 << ABORT_NEVER_RETURNS {
        format!(
            "NCCL 2.24 and 2.25 (ncclNetPlugin_v{ABORT_NEVER_RETURNS}) repeat the failed call without end. \
             ncclCommGetAsyncError reports the error, but ncclCommAbort does not return: kill the process. NCCL 2.28.3 and \
             later abort"
        )
    } else if taken == 1 << DROPS_ERRORS {
        format!(
            "NCCL 2.26 and 2.27 (ncclNetPlugin_v{DROPS_ERRORS}) do not report this error by ncclCommGetAsyncError: the \
             application waits until its own timeout. NCCL 2.28.3 and later report it"
        )
    } else {
        return;
    };
    if !SAID.swap(true, Ordering::Relaxed) {
        log::warn!(target: INIT, "Ferrite: {words}");
    }
}

/// Whether all NCCLs in use repeat failed calls.
pub(super) fn repeats_failed_calls() -> bool {
    let taken = TAKEN.load(Ordering::Relaxed);
    VERSIONS
        .filter(|version| taken & 1 << version != 0)
        .all(|version| REPEAT_FAILED_CALLS.contains(&version))
}

/// The release of the NCCL that `log_function` belongs to, from `ncclGetVersion`. `None` if
/// unknown, as in a program that contains NCCL but does not export it.
fn release_of(log_function: nccl::ncclDebugLogger_t) -> Option<c_int> {
    let mut place = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address is allowed. The resulting name belongs to the loader and is valid while
    // that library is mapped, which NCCL is while it calls.
    let name = unsafe {
        (libc::dladdr(log_function? as *const c_void, place.as_mut_ptr()) != 0)
            .then(|| place.assume_init().dli_fname)?
    };
    // SAFETY: a string of the loader's; nothing is loaded.
    let library = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the library that has just been opened.
    let function = unsafe { libc::dlsym(library, c"ncclGetVersion".as_ptr()) };
    let mut release = 0;
    // SAFETY: NCCL's public function of that name, which writes one int.
    let is_known = !function.is_null()
        && unsafe {
            let get: unsafe extern "C" fn(*mut c_int) -> ncclResult_t =
                std::mem::transmute(function);
            get(&raw mut release) == nccl::ncclSuccess
        };
    // SAFETY: the reference taken above.
    unsafe { libc::dlclose(library) };
    is_known.then_some(release)
}

impl Process {
    /// Sends log messages to `log_function` from now on. Creates the network unless it exists.
    ///
    /// # Errors
    /// A setting is wrong, or no network interface fits.
    pub(super) fn init(version: u32, log_function: nccl::ncclDebugLogger_t) -> Result<()> {
        logger::install(log_function);
        let process = PROCESS.get_or_try_init(|| Self::new(release_of(log_function)))?;
        if process.network.connects_early() {
            NCCL_CONNECTS_OVER_NET.store(true, Ordering::Relaxed);
        }
        // Without a device NCCL uses another network.
        let is_taken = !process.network.devices().is_empty();
        if is_taken && TAKEN.fetch_or(1 << version, Ordering::Relaxed) & 1 << version == 0 {
            log::info!(target: INIT, "Ferrite: NCCL took ncclNetPlugin_v{version}");
        }
        Ok(())
    }

    /// NCCL uses version `version` of the profiler interface. Returns whether it should report its
    /// operations.
    pub(super) fn handle_profiler(version: u32) -> bool {
        HAS_PROFILER.store(true, Ordering::Relaxed);
        // Without devices, or with another network, there is nothing to name.
        let used = PROCESS.get().filter(|process| process.is_used());
        let is_wanted = used.is_some_and(|process| process.network.names_operations());
        if is_wanted && PROFILERS.fetch_or(1 << version, Ordering::Relaxed) & 1 << version == 0 {
            log::info!(target: INIT, "Ferrite: NCCL took ncclProfiler_v{version}: reports name operations");
        }
        is_wanted
    }

    /// Whether NCCL uses the network, as far as known.
    fn is_used(&self) -> bool {
        let has_no_contexts = TAKEN.load(Ordering::Relaxed) & ((1 << FIRST_WITH_CONTEXTS) - 1) != 0;
        has_no_contexts
            || self.tables.iter().any(|table| table.communicators.load(Ordering::Relaxed) > 0)
    }

    /// NCCL connects, so it has loaded its profiler, if any, unless it also sets up communicators
    /// over the network. Logs once if that is not Ferrite's.
    pub(super) fn handle_connect(&self) {
        static SAID: AtomicBool = AtomicBool::new(false);
        let is_reported = self.network.names_operations() && !self.network.connects_early();
        if is_reported
            && !HAS_PROFILER.load(Ordering::Relaxed)
            && !SAID.swap(true, Ordering::Relaxed)
        {
            let why = match self.network.other_profiler() {
                Some(name) => format!("NCCL_PROFILER_PLUGIN={name}"),
                None => {
                    "another profiler is in use, perhaps libnccl-profiler.so in the library path"
                        .into()
                }
            };
            log::info!(target: INIT, "Ferrite: NCCL has not taken Ferrite's profiler ({why}): reports name no operations");
        }
    }

    /// The process's network and devices.
    ///
    /// # Errors
    /// [`Self::init`] has not succeeded yet.
    pub(super) fn get() -> Result<&'static Self> {
        PROCESS.get().ok_or_else(|| Error::internal("called before init succeeded"))
    }

    fn new(release: Option<c_int>) -> Result<Self> {
        let settings = Settings::new();
        let sorts = release.is_some_and(|release| release >= FIRST_THAT_SORTS);
        let network = Network::new(|name| settings.get(name), sorts);
        if let Some(line) = settings.line() {
            log::info!(target: INIT, "Ferrite: {line}");
        }
        let network = network?;
        let ports = network.ports();
        let table = |version| {
            let nics = if version == 8 { network.devices() } else { ports.as_slice() };
            let devices = Devices::new(version, nics, network.merges_any_ports())?;
            Ok(Table { devices, communicators: AtomicUsize::new(0) })
        };
        let tables = VERSIONS.map(table).collect::<Result<_>>()?;
        Ok(Self { network, tables })
    }

    fn table(&self, version: u32) -> Result<&Table> {
        let table = version
            .checked_sub(*VERSIONS.start())
            .and_then(|place| self.tables.get(place as usize));
        table.ok_or_else(|| Error::internal("a version without a table"))
    }

    /// The devices that the table of `version` shows.
    ///
    /// # Errors
    /// There is no such table.
    pub(super) fn devices(&self, version: u32) -> Result<&Devices> {
        self.table(version).map(|table| &table.devices)
    }

    /// Counts a new communicator of NCCL.
    ///
    /// # Errors
    /// As [`Self::devices`].
    pub(super) fn handle_begin(&self, version: u32) -> Result<()> {
        let table = self.table(version)?;
        let is_first = table.communicators.fetch_add(1, Ordering::Relaxed) == 0;
        table.devices.handle_communicator(is_first);
        Ok(())
    }

    /// Counts the end of a communicator of NCCL.
    ///
    /// # Errors
    /// As [`Self::devices`].
    pub(super) fn handle_end(&self, version: u32) -> Result<()> {
        self.table(version)?.communicators.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}
