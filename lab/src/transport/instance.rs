//! A transport's calls with Rust's types: ownership for what must be closed, results that name
//! the call.
//!
//! ```text
//! Transport ── listen ──> Listener ── accept ──> RecvComm ── register ──> Region
//!     └─────── connect ──> SendComm ── register ──> Region      └ receive ──> Request
//!                              └ send ──> Request
//! ```
//! A [`Region`](crate::transport::comm::Region) holds its communicator and its memory; a
//! [`Request`](crate::transport::comm::Request) borrows its communicator. So deregistration comes
//! before close, and nothing is tested after it. Dropping a request forgets it (the operation goes
//! on), dropping anything else closes it and logs a failure.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::nccl::abi::{later, ncclNet_v8_t, ncclNetProperties_v8_t};
use crate::nccl::library::{Identity, Library, Source, Vtable, slot};
use crate::nccl::{abi, debug_log, profiler};

/// Calls a slot of the vtable and turns its result into an [`Error::Call`]: `slot(…)` where it is
/// the same in all versions, `net.slot(…)` of a known version's table `net` where it is not,
/// `function => slot(…)` of a function that is at hand.
macro_rules! call {
    ($transport:expr, $slot:ident ( $($argument:expr),* )) => {
        $crate::transport::instance::call!(@ $transport, slot!($transport.vtable, $slot), $slot ( $($argument),* ))
    };
    ($transport:expr, $net:ident . $slot:ident ( $($argument:expr),* )) => {
        $crate::transport::instance::call!(@ $transport, $net.$slot, $slot ( $($argument),* ))
    };
    ($transport:expr, $function:expr => $slot:ident ( $($argument:expr),* )) => {
        $crate::transport::instance::call!(@ $transport, $function, $slot ( $($argument),* ))
    };
    (@ $transport:expr, $function:expr, $slot:ident ( $($argument:expr),* )) => {{
        match $function {
            None => Err(Error::Misuse(concat!("the transport has no ", stringify!($slot)))),
            Some(function) => {
                // SAFETY: the vtable was checked when the library was loaded; pointers passed
                // here are live for the call, and handles come from the same transport.
                let code = unsafe { function($($argument),*) };
                $transport.check(stringify!($slot), code)
            }
        }
    }};
}

pub(crate) use call;

/// A loaded and initialised transport. Cheap to clone.
#[derive(Clone)]
pub struct Transport {
    pub vtable: Vtable,
    /// Of the communicator; -1: none.
    pub traffic_class: i32,
    /// Whether messages have a profiler's handles.
    has_handles: bool,
    // After the last clone, the context is ended.
    context: Arc<Context>,
    library: Arc<Library>,
}

/// The communicator that a transport of version 11 or later works for: made by `init`, ended by
/// `finalize`.
struct Context {
    vtable: Vtable,
    raw: OnceLock<Opaque>,
}

/// A pointer of the transport's own.
struct Opaque(*mut c_void);

// SAFETY: this driver never looks behind it, and NCCL's contract has it passed from any thread.
unsafe impl Send for Opaque {}
// SAFETY: as above.
unsafe impl Sync for Opaque {}

impl Drop for Context {
    fn drop(&mut self) {
        let (Some(raw), Vtable::V11(net) | Vtable::V12(net)) = (self.raw.get(), self.vtable) else {
            return;
        };
        if let Some(finalize) = net.finalize {
            // SAFETY: the slot was checked when the library was loaded; the context came from this
            // transport's init and everything made with it is closed, since each of them holds this
            // object.
            let code = unsafe { finalize(raw.0) };
            if code != abi::ncclSuccess {
                log::warn!("finalize returned {code}");
            }
        }
    }
}

/// What a transport says of a device; units and meaning as in `include/nccl/net_v8.h`. The index of
/// each device that is fused in it is in `fused`: one, its own, where it is not fused; none where
/// the interface does not tell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Properties {
    pub name: String,
    pub pci_path: Option<PathBuf>,
    pub guid: u64,
    pub pointer_support: i32,
    pub registration_is_global: i32,
    pub speed_mbps: i32,
    pub port: i32,
    pub latency_us: f32,
    pub max_comms: i32,
    pub max_receives: i32,
    pub device_type: u32,
    pub device_version: i32,
    #[serde(default)]
    pub fused: Vec<i32>,
}

impl Transport {
    /// Loads the source, calls `init` (once per process, as NCCL does) and returns the transport.
    ///
    /// # Errors
    /// Those of [`Library::open`]; [`Error::Call`] if `init` fails.
    pub fn open(source: &Source) -> Result<Self> {
        let transport = Self::without_init(Library::open(source)?);
        transport.init()?;
        Ok(transport)
    }

    /// As [`Self::open`], for a communicator with this traffic class, where the interface knows
    /// one: from version 10 on.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with_class(source: &Source, traffic_class: i32) -> Result<Self> {
        let transport = Self { traffic_class, ..Self::without_init(Library::open(source)?) };
        transport.init()?;
        Ok(transport)
    }

    /// As [`Self::open`], with a profiler's handles for messages, where the interface knows of them:
    /// from version 10 on.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_with_handles(source: &Source) -> Result<Self> {
        let transport = Self { has_handles: true, ..Self::without_init(Library::open(source)?) };
        transport.init()?;
        Ok(transport)
    }

    /// The transport before `init`, for tests of `init` itself.
    pub fn without_init(library: Library) -> Self {
        let vtable = library.vtable();
        Self {
            vtable,
            traffic_class: -1,
            has_handles: false,
            context: Arc::new(Context { vtable, raw: OnceLock::new() }),
            library: Arc::new(library),
        }
    }

    /// Calls `init`. From version 11 on once only: each call makes a context.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Misuse`].
    pub fn init(&self) -> Result<()> {
        let net = match self.vtable {
            Vtable::V8(net) => return call!(self, net.init(debug_log::callback())),
            Vtable::V9(net) => return call!(self, net.init(debug_log::callback())),
            Vtable::V10(net) => {
                return call!(self, net.init(debug_log::callback(), std::ptr::null()));
            }
            Vtable::V11(net) | Vtable::V12(net) => net,
        };
        // One communicator, whose id no transport looks at.
        let mut config = later::Config { traffic_class: self.traffic_class };
        let mut raw = std::ptr::null_mut();
        let (config, profiler) = (&raw mut config, std::ptr::null());
        if self.context.raw.get().is_some() {
            return Err(Error::Misuse("init is called once per transport"));
        }
        call!(self, net.init(&raw mut raw, 1, config, debug_log::callback(), profiler))?;
        self.context.raw.set(Opaque(raw)).map_err(|_| Error::Misuse("init is called by one thread"))
    }

    /// The profiler's handle of a message.
    pub fn profiled(&self) -> *mut c_void {
        if self.has_handles { profiler::HANDLE } else { std::ptr::null_mut() }
    }

    /// The context for `listen` and `connect`.
    pub fn context(&self) -> *mut c_void {
        self.context.raw.get().map_or(std::ptr::null_mut(), |raw| raw.0)
    }

    /// The v8 vtable itself, for tests that must break the rules kept here. Of another version it
    /// has no slots.
    pub fn vtable(&self) -> &'static ncclNet_v8_t {
        // SAFETY: a struct of pointers and optional functions: all zeros is a value of the type.
        const NO_SLOTS: &ncclNet_v8_t = &unsafe { std::mem::zeroed() };
        match self.vtable {
            Vtable::V8(net) => net,
            _ => NO_SLOTS,
        }
    }

    /// What was loaded.
    pub fn identity(&self) -> &Identity {
        self.library.identity()
    }

    /// The vtable's name.
    pub fn name(&self) -> &str {
        &self.identity().name
    }

    /// How many devices there are.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn devices(&self) -> Result<usize> {
        let mut count: c_int = 0;
        call!(self, devices(&raw mut count))?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// The device that `rank` uses: `wanted`, else the second one for rank 1 where there are two,
    /// else the first.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::NoDevice`].
    pub fn device_of(&self, rank: usize, wanted: Option<usize>) -> Result<usize> {
        let count = self.devices()?;
        let device = wanted.unwrap_or_else(|| usize::from(rank == 1 && count >= 2));
        if device >= count {
            return Err(Error::NoDevice { transport: self.name().into(), wanted: device, count });
        }
        Ok(device)
    }

    /// What device `device` is.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Data`] if the device has no name.
    pub fn properties(&self, device: usize) -> Result<Properties> {
        match self.vtable {
            Vtable::V8(net) => {
                // SAFETY: plain integers, floats and pointers: all zeros is a value of the type.
                let mut raw: ncclNetProperties_v8_t = unsafe { std::mem::zeroed() };
                call!(self, net.getProperties(device as c_int, &raw mut raw))?;
                self.describe(device, &in_common(&raw), &[])
            }
            Vtable::V9(later::NetV9 { getProperties, .. })
            | Vtable::V10(later::NetV10 { getProperties, .. }) => {
                // SAFETY: as above.
                let mut raw: later::PropertiesV9 = unsafe { std::mem::zeroed() };
                call!(self, *getProperties => getProperties(device as c_int, (&raw mut raw).cast()))?;
                self.describe(device, &raw.common, members(&raw.fused))
            }
            Vtable::V11(net) => {
                // SAFETY: as above.
                let mut raw: later::PropertiesV11 = unsafe { std::mem::zeroed() };
                call!(self, net.getProperties(device as c_int, (&raw mut raw).cast()))?;
                self.describe(device, &raw.common, members(&raw.fused))
            }
            Vtable::V12(net) => {
                // SAFETY: as above.
                let mut raw: later::PropertiesV12 = unsafe { std::mem::zeroed() };
                call!(self, net.getProperties(device as c_int, (&raw mut raw).cast()))?;
                self.describe(device, &raw.common, members(&raw.fused))
            }
        }
    }

    fn describe(&self, device: usize, raw: &later::Common, fused: &[c_int]) -> Result<Properties> {
        let text = |pointer: *mut c_char| {
            // SAFETY: by NCCL's contract NULL or a C string that lives as long as the process.
            (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy())
        };
        let name = text(raw.name)
            .ok_or_else(|| Error::Data(format!("{}: device {device} has no name", self.name())))?;
        Ok(Properties {
            name: name.into_owned(),
            pci_path: text(raw.pci_path).map(|path| PathBuf::from(path.into_owned())),
            guid: raw.guid,
            pointer_support: raw.pointer_support,
            registration_is_global: raw.registration_is_global,
            speed_mbps: raw.speed,
            port: raw.port,
            latency_us: raw.latency,
            max_comms: raw.max_comms,
            max_receives: raw.max_receives,
            device_type: raw.device_type,
            device_version: raw.device_version,
            fused: fused.to_vec(),
        })
    }

    /// Makes one device of several; its index.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Misuse`] if the transport cannot, or for more devices than it can
    /// name.
    pub fn fuse(&self, devices: &[usize]) -> Result<usize> {
        let (fuse, most) = match self.vtable {
            Vtable::V8(_) => return Err(Error::Misuse("a v8 transport fuses no devices")),
            Vtable::V9(net) => (net.makeVDevice, later::MOST_V11),
            Vtable::V10(net) => (net.makeVDevice, later::MOST_V11),
            Vtable::V11(net) => (net.makeVDevice, later::MOST_V11),
            Vtable::V12(net) => (net.makeVDevice, later::MOST_V12),
        };
        if devices.len() > most {
            return Err(Error::Misuse("more devices than one can be made of"));
        }
        // A transport reads as many as there are, so the larger structure serves both versions.
        let mut wanted =
            later::Fused { count: devices.len() as c_int, devices: [-1; later::MOST_V12] };
        for (place, device) in wanted.devices.iter_mut().zip(devices) {
            *place = *device as c_int;
        }
        let mut index: c_int = -1;
        call!(self, fuse => makeVDevice(&raw mut index, (&raw mut wanted).cast()))?;
        usize::try_from(index)
            .map_err(|_| Error::Data(format!("{}: makeVDevice gave no index", self.name())))
    }

    pub fn check(&self, call: &'static str, code: u32) -> Result<()> {
        // NCCL's own check lets both pass.
        if code == abi::ncclSuccess || code == abi::ncclInProgress {
            return Ok(());
        }
        Err(Error::Call { transport: self.name().into(), call, code })
    }
}

impl fmt::Debug for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Transport").field(self.identity()).finish()
    }
}

/// What version 8 says, in the shape of the later ones.
pub fn in_common(raw: &ncclNetProperties_v8_t) -> later::Common {
    later::Common {
        name: raw.name,
        pci_path: raw.pciPath,
        guid: raw.guid,
        pointer_support: raw.ptrSupport,
        registration_is_global: raw.regIsGlobal,
        force_flush: 0,
        speed: raw.speed,
        port: raw.port,
        latency: raw.latency,
        max_comms: raw.maxComms,
        max_receives: raw.maxRecvs,
        device_type: raw.netDeviceType,
        device_version: raw.netDeviceVersion,
    }
}

fn members<const MOST: usize>(fused: &later::Fused<MOST>) -> &[c_int] {
    let count = usize::try_from(fused.count).unwrap_or(0);
    &fused.devices[..count.min(MOST)]
}

/// The device that is made of two others: by the transport itself, if it has one (a v8 transport
/// fuses the ports of a card on its own), else made here. Rank 1 takes the second fused device, or
/// the third and fourth plain one, where there are so many.
///
/// # Errors
/// Those of the transport; [`Error::NotFused`] if there is none and none can be made.
pub(crate) fn device_of(transport: &Transport, rank: usize) -> Result<usize> {
    let count = transport.devices()?;
    let mut fused = Vec::new();
    for device in 0..count {
        // Version 8 has no field for it: the built-in transport joins the names.
        if transport.properties(device)?.name.contains('+') {
            fused.push(device);
        }
    }
    if let Some(device) = fused.get(rank).or_else(|| fused.first()) {
        return Ok(*device);
    }
    if count < 2 || transport.identity().interface == 8 {
        return Err(Error::NotFused(format!(
            "{} shows {count} device(s), and none of two ports of one card (on softrnic: \
             softrnic run --same-card)",
            transport.name()
        )));
    }
    let first = if count >= 4 { 2 * rank } else { 0 };
    transport.fuse(&[first, first + 1])
}
