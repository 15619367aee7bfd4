//! Versions 11 (NCCL 2.28) and 12 (NCCL 2.30) of the interface. Both have the same slots; they differ in what
//! `getProperties` fills. Written from the binary interface's facts: the order of slots, the types of arguments, and
//! sizes and offsets on LP64, which are checked below.
//!
//! What changed since version 8: `init`, `listen` and `connect` know the communicator they belong to, a context that
//! `init` makes and `finalize` ends; sizes of sends and receives have 64 bits; both carry a handle for a profiler,
//! which may be null; several devices can be fused into one.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

use super::{ncclDebugLogger_t, ncclNetDeviceHandle_v8_t, ncclNetDeviceType, ncclResult_t};

/// Devices that `makeVDevice` is to fuse, by their indices.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Fused<const MOST: usize> {
    pub count: c_int,
    pub devices: [c_int; MOST],
}

/// Most devices in one, in version 11 and 12. A version reads no more than `count` of them.
pub const MOST_V11: usize = 4;
pub const MOST_V12: usize = 8;

/// What `init` is told about the communicator.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Config {
    /// -1: the transport chooses.
    pub traffic_class: c_int,
}

/// The part of a device's properties that both versions start with.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Common {
    pub name: *mut c_char,
    pub pci_path: *mut c_char,
    pub guid: u64,
    pub pointer_support: c_int,
    pub registration_is_global: c_int,
    pub force_flush: c_int,
    /// Mbit/s.
    pub speed: c_int,
    pub port: c_int,
    /// Microseconds.
    pub latency: f32,
    pub max_comms: c_int,
    pub max_receives: c_int,
    pub device_type: ncclNetDeviceType,
    pub device_version: c_int,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct PropertiesV11 {
    pub common: Common,
    pub fused: Fused<MOST_V11>,
    /// Bytes.
    pub max_point_to_point: usize,
    pub max_collective: usize,
    pub max_multi_request: c_int,
}

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct PropertiesV12 {
    pub common: Common,
    pub fused: Fused<MOST_V12>,
    /// Bytes.
    pub max_point_to_point: usize,
    pub max_collective: usize,
    pub max_multi_request: c_int,
    /// -1: not known.
    pub rail: i16,
    pub plane: i16,
}

/// A slot: NULL where the transport has no such function.
type Slot<F> = Option<F>;

/// The vtable of both versions. Slots that are as in version 8 have their names and types from there.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Net {
    pub name: *const c_char,
    pub init: Slot<
        unsafe extern "C" fn(*mut *mut c_void, u64, *mut Config, ncclDebugLogger_t, *const c_void) -> ncclResult_t,
    >,
    pub devices: Slot<unsafe extern "C" fn(*mut c_int) -> ncclResult_t>,
    /// Fills `PropertiesV11` or `PropertiesV12`.
    pub getProperties: Slot<unsafe extern "C" fn(c_int, *mut c_void) -> ncclResult_t>,
    pub listen: Slot<unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> ncclResult_t>,
    pub connect: Slot<
        unsafe extern "C" fn(
            *mut c_void,
            c_int,
            *mut c_void,
            *mut *mut c_void,
            *mut *mut ncclNetDeviceHandle_v8_t,
        ) -> ncclResult_t,
    >,
    pub accept:
        Slot<unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *mut *mut ncclNetDeviceHandle_v8_t) -> ncclResult_t>,
    pub regMr: Slot<unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut *mut c_void) -> ncclResult_t>,
    pub regMrDmaBuf: Slot<
        unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, u64, c_int, *mut *mut c_void) -> ncclResult_t,
    >,
    pub deregMr: Slot<unsafe extern "C" fn(*mut c_void, *mut c_void) -> ncclResult_t>,
    pub isend: Slot<
        unsafe extern "C" fn(
            *mut c_void,
            *mut c_void,
            usize,
            c_int,
            *mut c_void,
            *mut c_void,
            *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    pub irecv: Slot<
        unsafe extern "C" fn(
            *mut c_void,
            c_int,
            *mut *mut c_void,
            *mut usize,
            *mut c_int,
            *mut *mut c_void,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    pub iflush: Slot<
        unsafe extern "C" fn(
            *mut c_void,
            c_int,
            *mut *mut c_void,
            *mut c_int,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> ncclResult_t,
    >,
    pub test: Slot<unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> ncclResult_t>,
    pub closeSend: Slot<unsafe extern "C" fn(*mut c_void) -> ncclResult_t>,
    pub closeRecv: Slot<unsafe extern "C" fn(*mut c_void) -> ncclResult_t>,
    pub closeListen: Slot<unsafe extern "C" fn(*mut c_void) -> ncclResult_t>,
    pub getDeviceMr: Slot<unsafe extern "C" fn(*mut c_void, *mut c_void, *mut *mut c_void) -> ncclResult_t>,
    pub irecvConsumed: Slot<unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> ncclResult_t>,
    pub makeVDevice: Slot<unsafe extern "C" fn(*mut c_int, *mut c_void) -> ncclResult_t>,
    pub finalize: Slot<unsafe extern "C" fn(*mut c_void) -> ncclResult_t>,
    pub setNetAttr: Slot<unsafe extern "C" fn(*mut c_void, *mut c_void) -> ncclResult_t>,
}

const _: () = {
    assert!(size_of::<Common>() == 64);
    assert!(offset_of!(Common, force_flush) == 32);
    assert!(offset_of!(Common, max_receives) == 52);
    assert!(size_of::<PropertiesV11>() == 112);
    assert!(offset_of!(PropertiesV11, max_point_to_point) == 88);
    assert!(size_of::<PropertiesV12>() == 128);
    assert!(offset_of!(PropertiesV12, max_point_to_point) == 104);
    assert!(offset_of!(PropertiesV12, rail) == 124);
    assert!(size_of::<Net>() == 22 * 8);
    assert!(offset_of!(Net, isend) == 10 * 8);
    assert!(offset_of!(Net, closeListen) == 16 * 8);
    assert!(offset_of!(Net, makeVDevice) == 19 * 8);
};
