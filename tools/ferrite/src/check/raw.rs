//! Version 8's functions with arguments of any kind: what [`Transport`] keeps from happening has to be tried.
//!
//! Objects are the transport's own ([`SendComm`], [`Region`], …), so that a client can pass the wrong number, place or
//! time, and nothing that is not the transport's.

use std::ffi::{c_int, c_void};

use crate::error::{Error, Result};
use crate::nccl::abi::{self, ncclNet_v8_t, ncclNetDeviceHandle_v8_t, ncclNetProperties_v8_t};
use crate::nccl::debug_log;
use crate::transport::comm::{RecvComm, Region, SendComm};
use crate::transport::instance::Transport;
use crate::transport::listener::Handle;

/// The functions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw {
    net: &'static ncclNet_v8_t,
}

// SAFETY: the table is only read, and NCCL calls it from any thread.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

/// What a request may be before a call: nothing that a transport would write.
pub(super) const GARBAGE: usize = 0xa5a5_a5a5_a5a5_a5a5;

/// Two bytes to tell what was written from what was there.
pub(super) const FILLS: [u8; 2] = [0xa5, 0x5a];

/// The properties, as many bytes.
pub(super) type PropertyBytes = [u8; size_of::<ncclNetProperties_v8_t>()];

/// A request, a communicator or a memory handle of the transport's; 0 for NULL.
pub(super) type Opaque = usize;

/// One call of a slot with pointers that live as long as the call.
macro_rules! slot {
    ($raw:expr, $slot:ident ( $($argument:expr),* )) => {{
        match $raw.net.$slot {
            None => abi::ncclInternalError,
            // SAFETY: the vtable was checked when the library was loaded. Objects are the transport's own or NULL;
            // pointers to places are live for the call and as large as the contract wants.
            Some(function) => unsafe { function($($argument),*) },
        }
    }};
}

impl Raw {
    /// The functions of `transport`.
    ///
    /// # Errors
    /// [`Error::Misuse`] for another version.
    pub(super) fn of(transport: &Transport) -> Result<Self> {
        let net = transport.vtable();
        if net.init.is_none() { Err(Error::Misuse("this point needs interface v8")) } else { Ok(Self { net }) }
    }

    pub(super) fn init(self) -> u32 {
        slot!(self, init(debug_log::callback()))
    }

    /// The code, and the count (-7 if none was written).
    pub(super) fn devices(self) -> (u32, i32) {
        let mut count: c_int = -7;
        let code = slot!(self, devices(&raw mut count));
        (code, count)
    }

    /// The properties of device `index`, written over bytes that are all `fill`.
    pub(super) fn properties(self, index: usize, fill: u8) -> (u32, ncclNetProperties_v8_t, PropertyBytes) {
        let mut place = std::mem::MaybeUninit::<ncclNetProperties_v8_t>::uninit();
        // SAFETY: the place is as large as what is written; any bytes are a value of its integers and pointers.
        let before = unsafe {
            place.as_mut_ptr().cast::<u8>().write_bytes(fill, size_of::<ncclNetProperties_v8_t>());
            place.assume_init()
        };
        let mut properties = before;
        let code = slot!(self, getProperties(index as c_int, &raw mut properties));
        // SAFETY: initialised bytes: all were written before the call.
        let bytes = unsafe { std::ptr::from_ref(&properties).cast::<PropertyBytes>().read() };
        (code, properties, bytes)
    }

    /// A handle with as much again behind it, all `fill` before; and the listener.
    pub(super) fn listen(self, device: usize, fill: u8) -> (u32, [u8; 256], Opaque) {
        let mut bytes = [fill; 256];
        let mut comm: *mut c_void = std::ptr::null_mut();
        let code = slot!(self, listen(device as c_int, bytes.as_mut_ptr().cast(), &raw mut comm));
        (code, bytes, comm as Opaque)
    }

    /// `device_handle`: `None` passes NULL for the place.
    pub(super) fn connect(
        self,
        device: usize,
        handle: &mut Handle,
        device_handle: Option<&mut *mut ncclNetDeviceHandle_v8_t>,
    ) -> (u32, Opaque) {
        let mut comm: *mut c_void = std::ptr::null_mut();
        let place = device_handle.map_or(std::ptr::null_mut(), std::ptr::from_mut);
        let code = slot!(self, connect(device as c_int, std::ptr::from_mut(handle).cast(), &raw mut comm, place));
        (code, comm as Opaque)
    }

    /// As [`Self::connect`].
    pub(super) fn accept(
        self,
        listener: Opaque,
        device_handle: Option<&mut *mut ncclNetDeviceHandle_v8_t>,
    ) -> (u32, Opaque) {
        let mut comm: *mut c_void = std::ptr::null_mut();
        let place = device_handle.map_or(std::ptr::null_mut(), std::ptr::from_mut);
        let code = slot!(self, accept(listener as *mut c_void, &raw mut comm, place));
        (code, comm as Opaque)
    }

    pub(super) fn register(self, comm: &SendComm, start: usize, size: usize) -> (u32, Opaque) {
        let mut handle: *mut c_void = std::ptr::null_mut();
        let kind = abi::NCCL_PTR_HOST as c_int;
        let code = slot!(self, regMr(comm.raw(), start as *mut c_void, size, kind, &raw mut handle));
        (code, handle as Opaque)
    }

    pub(super) fn register_dmabuf(self, comm: &SendComm, start: usize, size: usize, fd: i32) -> (u32, Opaque) {
        let mut handle: *mut c_void = std::ptr::null_mut();
        let kind = abi::NCCL_PTR_CUDA as c_int;
        let code = slot!(self, regMrDmaBuf(comm.raw(), start as *mut c_void, size, kind, 0, fd, &raw mut handle));
        (code, handle as Opaque)
    }

    pub(super) fn deregister(self, comm: &SendComm, handle: Opaque) -> u32 {
        slot!(self, deregMr(comm.raw(), handle as *mut c_void))
    }

    /// The request is garbage before the call.
    pub(super) fn isend(self, comm: &SendComm, start: usize, size: i32, tag: i32, memory: Opaque) -> (u32, Opaque) {
        let mut request = GARBAGE as *mut c_void;
        let code =
            slot!(self, isend(comm.raw(), start as *mut c_void, size, tag, memory as *mut c_void, &raw mut request));
        (code, request as Opaque)
    }

    /// One message; the request is NULL before the call.
    pub(super) fn irecv(self, comm: &RecvComm, region: &Region, offset: usize, size: i32, tag: i32) -> (u32, Opaque) {
        let mut request: *mut c_void = std::ptr::null_mut();
        let Ok(start) = region.memory().address(offset, size as usize) else {
            return (abi::ncclInternalError, 0);
        };
        let (mut data, mut sizes, mut tags, mut memory) = ([start.cast::<c_void>()], [size], [tag], [region.raw()]);
        let (data, sizes) = (data.as_mut_ptr(), sizes.as_mut_ptr());
        let (tags, memory) = (tags.as_mut_ptr(), memory.as_mut_ptr());
        let code = slot!(self, irecv(comm.raw(), 1, data, sizes, tags, memory, &raw mut request));
        (code, request as Opaque)
    }

    /// The code, and whether it is done; `sizes`: `None` passes NULL.
    pub(super) fn test(self, request: Opaque, sizes: Option<&mut [i32]>) -> (u32, bool) {
        let mut done: c_int = 0;
        let sizes = sizes.map_or(std::ptr::null_mut(), <[i32]>::as_mut_ptr);
        let code = slot!(self, test(request as *mut c_void, &raw mut done, sizes));
        (code, done != 0)
    }

    pub(super) fn close_send(self, comm: Opaque) -> u32 {
        slot!(self, closeSend(comm as *mut c_void))
    }

    pub(super) fn close_recv(self, comm: Opaque) -> u32 {
        slot!(self, closeRecv(comm as *mut c_void))
    }

    pub(super) fn close_listen(self, comm: Opaque) -> u32 {
        slot!(self, closeListen(comm as *mut c_void))
    }

    /// Whether the slots that a plugin without device code leaves out are empty.
    pub(super) fn lacks_device_slots(self) -> [bool; 2] {
        [self.net.getDeviceMr.is_none(), self.net.irecvConsumed.is_none()]
    }
}
