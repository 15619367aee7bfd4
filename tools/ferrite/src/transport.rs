//! A transport's calls with Rust's types: ownership for what must be closed, results that name
//! the call.
//!
//! ```text
//! Transport ── listen ──> Listener ── accept ──> RecvComm ── register ──> Region
//!     └─────── connect ──> SendComm ── register ──> Region      └ receive ──> Request
//!                              └ send ──> Request
//! ```
//! A [`Region`](crate::comm::Region) holds its communicator and its memory; a
//! [`Request`](crate::comm::Request) borrows its communicator. So deregistration comes before
//! close, and nothing is tested after it. Dropping a request forgets it (the operation goes on),
//! dropping anything else closes it and logs a failure.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::abi::{self, ncclNet_v8_t, ncclNetProperties_v8_t};
use crate::comm::{RecvComm, SendComm};
use crate::error::{Error, Result};
use crate::library::{Identity, Library, Source};
use crate::nccl_log;

/// Calls a slot of the vtable and turns its result into an [`Error::Call`].
macro_rules! call {
    ($transport:expr, $slot:ident ( $($argument:expr),* )) => {{
        let transport: &Transport = $transport;
        match transport.vtable.$slot {
            None => Err(Error::Misuse(concat!("the transport has no ", stringify!($slot)))),
            Some(function) => {
                // SAFETY: the vtable was checked when the library was loaded; pointers passed
                // here are live for the call, and handles come from the same transport.
                let code = unsafe { function($($argument),*) };
                transport.check(stringify!($slot), code)
            }
        }
    }};
}

pub(crate) use call;

/// A loaded and initialised transport. Cheap to clone.
#[derive(Clone)]
pub struct Transport {
    pub(crate) vtable: &'static ncclNet_v8_t,
    library: Arc<Library>,
}

// SAFETY: the vtable is only read, and NCCL's contract has its functions called from any thread.
unsafe impl Send for Transport {}
// SAFETY: as above.
unsafe impl Sync for Transport {}

/// What a transport says of a device; units and meaning as in `include/nccl/net_v8.h`.
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
}

/// The 128 bytes that `listen` fills and NCCL carries to the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C, align(8))]
pub struct Handle(pub [u8; abi::NCCL_NET_HANDLE_MAXSIZE as usize]);

impl Transport {
    /// Loads the source, calls `init` (once per process, as NCCL does) and returns the transport.
    ///
    /// # Errors
    /// Those of [`Library::open`]; [`Error::Call`] if `init` fails.
    pub fn open(source: &Source) -> Result<Self> {
        let transport = Self::without_init(Library::open(source)?);
        call!(&transport, init(nccl_log::callback()))?;
        Ok(transport)
    }

    /// The transport before `init`, for tests of `init` itself.
    pub fn without_init(library: Library) -> Self {
        Self { vtable: library.vtable(), library: Arc::new(library) }
    }

    /// Calls `init`.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn init(&self) -> Result<()> {
        call!(self, init(nccl_log::callback()))
    }

    /// The vtable itself, for tests that must break the rules kept here.
    pub fn vtable(&self) -> &'static ncclNet_v8_t {
        self.vtable
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
        // SAFETY: plain integers, floats and pointers: all zeros is a value of the type.
        let mut raw: ncclNetProperties_v8_t = unsafe { std::mem::zeroed() };
        call!(self, getProperties(device as c_int, &raw mut raw))?;
        let text = |pointer: *mut c_char| {
            // SAFETY: by NCCL's contract NULL or a C string that lives as long as the process.
            (!pointer.is_null()).then(|| unsafe { CStr::from_ptr(pointer) }.to_string_lossy())
        };
        let name =
            text(raw.name).ok_or_else(|| Error::Data(format!("{}: device {device} has no name", self.name())))?;
        Ok(Properties {
            name: name.into_owned(),
            pci_path: text(raw.pciPath).map(|path| PathBuf::from(path.into_owned())),
            guid: raw.guid,
            pointer_support: raw.ptrSupport,
            registration_is_global: raw.regIsGlobal,
            speed_mbps: raw.speed,
            port: raw.port,
            latency_us: raw.latency,
            max_comms: raw.maxComms,
            max_receives: raw.maxRecvs,
            device_type: raw.netDeviceType,
            device_version: raw.netDeviceVersion,
        })
    }

    /// Opens a listener on `device`; the handle goes to the peer.
    ///
    /// # Errors
    /// [`Error::Call`]; [`Error::Data`] if no listener comes back.
    pub fn listen(&self, device: usize) -> Result<(Handle, Listener)> {
        let mut handle = Handle([0; _]);
        let mut raw = std::ptr::null_mut();
        call!(self, listen(device as c_int, (&raw mut handle).cast(), &raw mut raw))?;
        if raw.is_null() {
            return Err(Error::Data(format!("{}: listen gave nothing", self.name())));
        }
        let transport = self.clone();
        Ok((handle, Listener { transport, raw }))
    }

    /// One step of connecting to the listener behind `handle`: `None` means call again, with the
    /// same copy of the handle, since a transport may keep its progress in it.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn connect(&self, device: usize, handle: &mut Handle) -> Result<Option<SendComm>> {
        let mut raw = std::ptr::null_mut();
        let mut device_handle = std::ptr::null_mut();
        call!(self, connect(device as c_int, std::ptr::from_mut(handle).cast(), &raw mut raw, &raw mut device_handle))?;
        Ok((!raw.is_null()).then(|| SendComm::new(self, raw)))
    }

    pub(crate) fn check(&self, call: &'static str, code: u32) -> Result<()> {
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

/// A listening communicator.
#[derive(Debug)]
pub struct Listener {
    transport: Transport,
    raw: *mut c_void,
}

// SAFETY: NCCL uses a communicator from different threads over its life, one at a time.
unsafe impl Send for Listener {}

impl Listener {
    /// One step of accepting the one connection: `None` means call again.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn accept(&mut self) -> Result<Option<RecvComm>> {
        let mut raw = std::ptr::null_mut();
        let mut device_handle = std::ptr::null_mut();
        call!(&self.transport, accept(self.raw, &raw mut raw, &raw mut device_handle))?;
        Ok((!raw.is_null()).then(|| RecvComm::new(&self.transport, raw)))
    }

    /// Closes it.
    ///
    /// # Errors
    /// [`Error::Call`].
    pub fn close(mut self) -> Result<()> {
        let raw = std::mem::replace(&mut self.raw, std::ptr::null_mut());
        call!(&self.transport, closeListen(raw))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if !self.raw.is_null()
            && let Err(problem) = call!(&self.transport, closeListen(self.raw))
        {
            log::warn!("{problem}");
        }
    }
}
