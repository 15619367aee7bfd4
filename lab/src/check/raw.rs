//! The functions of a table with arguments of any kind: what [`Transport`] keeps from happening has
//! to be tried.
//!
//! Objects are the transport's own ([`SendComm`], [`Region`], …). So a client can pass the wrong
//! number, place or time, but no foreign object.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use crate::nccl::abi::{self, later, ncclNetDeviceHandle_v8_t, ncclNetProperties_v8_t};
use crate::nccl::debug_log;
use crate::nccl::library;
use crate::nccl::library::Vtable;
use crate::transport::comm::{RecvComm, Region, SendComm};
use crate::transport::instance::{self, Transport};
use crate::transport::listener::Handle;

/// The functions.
#[derive(Debug, Clone, Copy)]
pub(super) struct Raw {
    vtable: Vtable,
    /// The transport's context; NULL before version 11, and before `init`.
    context: *mut c_void,
}

// SAFETY: the table is only read, and NCCL calls it from any thread.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

/// What a request may be before a call: nothing that a transport would write.
pub(super) const GARBAGE: usize = 0xa5a5_a5a5_a5a5_a5a5;

/// The handle of a profiler that there is not.
const NO_PROFILE: *mut c_void = std::ptr::null_mut();

/// Two bytes to tell what was written from what was there.
pub(super) const FILLS: [u8; 2] = [0xa5, 0x5a];

/// The most bytes that properties have, and as much again.
const PROPERTY_ROOM: usize = 256;

/// What getProperties has written.
#[derive(Debug)]
pub(super) struct Written {
    pub(super) code: u32,
    pub(super) common: later::Common,
    /// All bytes, and as many again that are not to be written.
    pub(super) bytes: Vec<u8>,
    /// Those of them that have no meaning.
    pub(super) padding: [Range<usize>; 2],
}

impl Written {
    /// How many bytes the properties have.
    pub(super) fn size(&self) -> usize {
        self.bytes.len() / 2
    }

    /// The longest message that is promised, from version 9 on; bytes.
    pub(super) fn most_bytes(&self) -> i64 {
        let at = if self.size() == 128 { 104 } else { 88 };
        let mut eight = [0; 8];
        eight.copy_from_slice(&self.bytes[at..at + 8]);
        i64::from_le_bytes(eight)
    }
}

/// A request, a communicator or a memory handle of the transport's; 0 for NULL.
pub(super) type Opaque = usize;

/// One call of a slot with pointers that live as long as the call: of the slot where it is alike in
/// all versions, of `function` where it is not.
macro_rules! slot {
    ($raw:expr, $slot:ident ( $($argument:expr),* )) => {
        slot!(@ library::slot!($raw.vtable, $slot), ( $($argument),* ))
    };
    (@ $function:expr, ( $($argument:expr),* )) => {{
        match $function {
            None => abi::ncclInternalError,
            // SAFETY: the vtable was checked when the library was loaded. Objects are the
            // transport's own or NULL; pointers to places are live for the call and as large as the
            // contract wants.
            Some(function) => unsafe { function($($argument),*) },
        }
    }};
}

impl Raw {
    /// The functions of `transport`.
    pub(super) fn of(transport: &Transport) -> Self {
        Self { vtable: transport.vtable, context: transport.context() }
    }

    /// Also makes a context, from version 11 on, which lives as long as the process.
    pub(super) fn init(self) -> u32 {
        let mut context = std::ptr::null_mut();
        match self.vtable {
            Vtable::V8(net) => slot!(@ net.init, (debug_log::callback())),
            Vtable::V9(net) => slot!(@ net.init, (debug_log::callback())),
            Vtable::V10(net) => slot!(@ net.init, (debug_log::callback(), std::ptr::null())),
            Vtable::V11(_) | Vtable::V12(_) => self.begin(&mut context, -1),
        }
    }

    /// `init` of version 11 and later: makes a context for a communicator with this traffic class.
    pub(super) fn begin(self, context: &mut *mut c_void, traffic_class: i32) -> u32 {
        let mut config = later::Config { traffic_class };
        let (Vtable::V11(net) | Vtable::V12(net)) = self.vtable else {
            return abi::ncclInternalError;
        };
        slot!(@ net.init, (context, 7, &raw mut config, debug_log::callback(), std::ptr::null()))
    }

    /// Ends a context.
    pub(super) fn finalize(self, context: *mut c_void) -> u32 {
        let (Vtable::V11(net) | Vtable::V12(net)) = self.vtable else {
            return abi::ncclInternalError;
        };
        slot!(@ net.finalize, (context))
    }

    /// Tells what a communicator does.
    pub(super) fn set_attributes(self, context: *mut c_void, masks: [u32; 3]) -> u32 {
        let load = later::Load { most_peers: 2, least_peers: 1, most_flows: 2, least_flows: 1 };
        let mut attributes = later::Attributes { send: load, receive: load, masks };
        let (Vtable::V11(net) | Vtable::V12(net)) = self.vtable else {
            return abi::ncclInternalError;
        };
        slot!(@ net.setNetAttr, (context, &raw mut attributes))
    }

    /// The same functions with another context.
    pub(super) fn with_context(self, context: *mut c_void) -> Self {
        Self { context, ..self }
    }

    /// The version of the table.
    pub(super) fn version(self) -> u32 {
        self.vtable.version()
    }

    /// The code, and the count (-7 if none was written).
    pub(super) fn devices(self) -> (u32, i32) {
        let mut count: c_int = -7;
        let code = slot!(self, devices(&raw mut count));
        (code, count)
    }

    /// The properties of device `index`, written over bytes that are all `fill`.
    pub(super) fn properties(self, index: usize, fill: u8) -> Written {
        #[repr(C, align(8))]
        struct Room([u8; PROPERTY_ROOM]);
        let mut room = Room([fill; PROPERTY_ROOM]);
        let (index, place): (_, *mut c_void) = (index as c_int, (&raw mut room).cast());
        let code = match self.vtable {
            Vtable::V8(net) => slot!(@ net.getProperties, (index, place.cast())),
            Vtable::V9(net) => slot!(@ net.getProperties, (index, place)),
            Vtable::V10(net) => slot!(@ net.getProperties, (index, place)),
            Vtable::V11(net) | Vtable::V12(net) => slot!(@ net.getProperties, (index, place)),
        };
        let (size, padding) = match self.vtable.version() {
            8 => (64, [60..64, 0..0]),
            9 | 10 => (104, [84..88, 0..0]),
            11 => (112, [84..88, 108..112]),
            _ => (128, [100..104, 0..0]),
        };
        // SAFETY: the place is larger than either, and any bytes are a value of its integers and
        // pointers.
        let common = unsafe {
            match self.vtable {
                Vtable::V8(_) => instance::in_common(&*place.cast::<ncclNetProperties_v8_t>()),
                _ => *place.cast::<later::Common>(),
            }
        };
        Written { code, common, bytes: room.0[..2 * size].to_vec(), padding }
    }

    /// A handle with as much again behind it, all `fill` before; and the listener.
    pub(super) fn listen(self, device: usize, fill: u8) -> (u32, [u8; 256], Opaque) {
        let mut bytes = [fill; 256];
        let mut comm: *mut c_void = std::ptr::null_mut();
        let (device, place) = (device as c_int, bytes.as_mut_ptr().cast());
        let code = match self.vtable {
            Vtable::V8(net) => slot!(@ net.listen, (device, place, &raw mut comm)),
            Vtable::V9(net) => slot!(@ net.listen, (device, place, &raw mut comm)),
            Vtable::V10(net) => slot!(@ net.listen, (device, place, &raw mut comm)),
            Vtable::V11(net) | Vtable::V12(net) => {
                slot!(@ net.listen, (self.context, device, place, &raw mut comm))
            }
        };
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
        let (device, handle) = (device as c_int, std::ptr::from_mut(handle).cast());
        let code = match self.vtable {
            Vtable::V8(net) => slot!(@ net.connect, (device, handle, &raw mut comm, place)),
            Vtable::V9(net) => slot!(@ net.connect, (device, handle, &raw mut comm, place)),
            Vtable::V10(net) => {
                let mut config = later::Config { traffic_class: -1 };
                slot!(@ net.connect, (device, &raw mut config, handle, &raw mut comm, place))
            }
            Vtable::V11(net) | Vtable::V12(net) => {
                slot!(@ net.connect, (self.context, device, handle, &raw mut comm, place))
            }
        };
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
        let code =
            slot!(self, regMr(comm.raw(), start as *mut c_void, size, kind, &raw mut handle));
        (code, handle as Opaque)
    }

    pub(super) fn register_dmabuf(
        self,
        comm: &SendComm,
        start: usize,
        size: usize,
        fd: i32,
    ) -> (u32, Opaque) {
        let mut handle: *mut c_void = std::ptr::null_mut();
        let kind = abi::NCCL_PTR_CUDA as c_int;
        let code = slot!(
            self,
            regMrDmaBuf(comm.raw(), start as *mut c_void, size, kind, 0, fd, &raw mut handle)
        );
        (code, handle as Opaque)
    }

    pub(super) fn deregister(self, comm: &SendComm, handle: Opaque) -> u32 {
        slot!(self, deregMr(comm.raw(), handle as *mut c_void))
    }

    /// The request is garbage before the call. A size that the version's type cannot hold becomes
    /// the greatest that it can.
    pub(super) fn isend(
        self,
        comm: &SendComm,
        start: usize,
        size: i64,
        tag: i32,
        memory: Opaque,
    ) -> (u32, Opaque) {
        self.isend_over(GARBAGE, comm, start, size, tag, memory)
    }

    /// As [`Self::isend`], with this request before the call.
    pub(super) fn isend_over(
        self,
        before: usize,
        comm: &SendComm,
        start: usize,
        size: i64,
        tag: i32,
        memory: Opaque,
    ) -> (u32, Opaque) {
        let mut request = before as *mut c_void;
        let (comm, start, memory, none) =
            (comm.raw(), start as *mut c_void, memory as *mut c_void, NO_PROFILE);
        let place = &raw mut request;
        let bytes = size as usize;
        let code = match self.vtable {
            Vtable::V8(net) => {
                let bytes = c_int::try_from(size).unwrap_or(c_int::MAX);
                slot!(@ net.isend, (comm, start, bytes, tag, memory, place))
            }
            Vtable::V9(net) => slot!(@ net.isend, (comm, start, bytes, tag, memory, place)),
            Vtable::V10(net) => slot!(@ net.isend, (comm, start, bytes, tag, memory, none, place)),
            Vtable::V11(net) | Vtable::V12(net) => {
                slot!(@ net.isend, (comm, start, bytes, tag, memory, none, place))
            }
        };
        (code, request as Opaque)
    }

    /// One message; the request is NULL before the call.
    pub(super) fn irecv(
        self,
        comm: &RecvComm,
        region: &Region,
        offset: usize,
        size: i32,
        tag: i32,
    ) -> (u32, Opaque) {
        self.irecv_over(0, comm, region, offset, size.into(), tag)
    }

    /// As [`Self::irecv`], with this request before the call.
    pub(super) fn irecv_over(
        self,
        before: usize,
        comm: &RecvComm,
        region: &Region,
        offset: usize,
        size: i64,
        tag: i32,
    ) -> (u32, Opaque) {
        let mut request = before as *mut c_void;
        let Ok(start) = region.memory().address(offset, 0) else {
            return (abi::ncclInternalError, 0);
        };
        let (mut data, mut tags, mut memory) = ([start.cast::<c_void>()], [tag], [region.raw()]);
        let (mut narrow, mut wide) =
            ([c_int::try_from(size).unwrap_or(c_int::MAX)], [size as usize]);
        let (comm, data, place) = (comm.raw(), data.as_mut_ptr(), &raw mut request);
        let (tags, memory, sizes) = (tags.as_mut_ptr(), memory.as_mut_ptr(), wide.as_mut_ptr());
        let none = std::ptr::null_mut();
        let code = match self.vtable {
            Vtable::V8(net) => {
                slot!(@ net.irecv, (comm, 1, data, narrow.as_mut_ptr(), tags, memory, place))
            }
            Vtable::V9(net) => slot!(@ net.irecv, (comm, 1, data, sizes, tags, memory, place)),
            Vtable::V10(net) => {
                slot!(@ net.irecv, (comm, 1, data, sizes, tags, memory, none, place))
            }
            Vtable::V11(net) | Vtable::V12(net) => {
                slot!(@ net.irecv, (comm, 1, data, sizes, tags, memory, none, place))
            }
        };
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
        [
            library::slot!(self.vtable, getDeviceMr).is_none(),
            library::slot!(self.vtable, irecvConsumed).is_none(),
        ]
    }
}
