//! Versions 9 (NCCL 2.24), 10 (2.26), 11 (2.28) and 12 (2.30) of the interface. Written from the
//! binary interface's facts: the order of slots, the types of arguments, and sizes and offsets on
//! LP64, which are checked below.
//!
//! What changed since version 8. 9: sizes of sends and receives have 64 bits; several devices can
//! be fused into one. 10: both carry a handle for a profiler, which may be null; `connect` is told
//! the traffic class. 11: `init`, `listen` and `connect` know the communicator they belong to, a
//! context that `init` makes and `finalize` ends. 12: other properties; the slots are those of 11.

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

/// Most devices in one, in versions 9 to 11, and in 12. A version reads no more than `count` of
/// them.
pub const MOST_V11: usize = 4;
pub const MOST_V12: usize = 8;

/// What `init` gets about the communicator.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Config {
    /// -1: the transport chooses.
    pub traffic_class: c_int,
}

/// The part of a device's properties that all versions start with.
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

#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct PropertiesV9 {
    pub common: Common,
    pub fused: Fused<MOST_V11>,
    /// Bytes.
    pub max_point_to_point: usize,
    pub max_collective: usize,
}

/// A peer's or a connection's number at most and at least.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Load {
    pub most_peers: c_int,
    pub least_peers: c_int,
    pub most_flows: c_int,
    pub least_flows: c_int,
}

/// What `setNetAttr` tells; the masks are of operations, algorithms and protocols.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct Attributes {
    pub send: Load,
    pub receive: Load,
    pub masks: [u32; 3],
}

/// A slot: NULL where the transport has no such function.
type Slot<F> = Option<F>;
type Context = *mut c_void;
type Places = *mut *mut c_void;

/// Defines the table of a version. The slots that are not named are the same in all versions.
macro_rules! table {
    ($(#[$doc:meta])* $name:ident: init($($init:ty),*), listen($($listen:ty),*), connect($($connect:ty),*),
        isend($($isend:ty),*), irecv($($irecv:ty),*) $(, $last:ident($($last_arg:ty),*))*) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy)]
        #[repr(C)]
        pub struct $name {
            pub name: *const c_char,
            pub init: Slot<unsafe extern "C" fn($($init),*) -> ncclResult_t>,
            pub devices: Slot<unsafe extern "C" fn(*mut c_int) -> ncclResult_t>,
            /// Fills the properties of the version.
            pub getProperties: Slot<unsafe extern "C" fn(c_int, *mut c_void) -> ncclResult_t>,
            pub listen: Slot<unsafe extern "C" fn($($listen),*) -> ncclResult_t>,
            pub connect: Slot<unsafe extern "C" fn($($connect),*) -> ncclResult_t>,
            pub accept: Slot<
                unsafe extern "C" fn(*mut c_void, Places, *mut *mut ncclNetDeviceHandle_v8_t) -> ncclResult_t,
            >,
            pub regMr: Slot<unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, Places) -> ncclResult_t>,
            pub regMrDmaBuf: Slot<
                unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, u64, c_int, Places) -> ncclResult_t,
            >,
            pub deregMr: Slot<unsafe extern "C" fn(*mut c_void, *mut c_void) -> ncclResult_t>,
            pub isend: Slot<unsafe extern "C" fn($($isend),*) -> ncclResult_t>,
            pub irecv: Slot<unsafe extern "C" fn($($irecv),*) -> ncclResult_t>,
            pub iflush: Slot<
                unsafe extern "C" fn(*mut c_void, c_int, Places, *mut c_int, Places, Places) -> ncclResult_t,
            >,
            pub test: Slot<unsafe extern "C" fn(*mut c_void, *mut c_int, *mut c_int) -> ncclResult_t>,
            pub closeSend: Slot<unsafe extern "C" fn(*mut c_void) -> ncclResult_t>,
            pub closeRecv: Slot<unsafe extern "C" fn(*mut c_void) -> ncclResult_t>,
            pub closeListen: Slot<unsafe extern "C" fn(*mut c_void) -> ncclResult_t>,
            pub getDeviceMr: Slot<unsafe extern "C" fn(*mut c_void, *mut c_void, Places) -> ncclResult_t>,
            pub irecvConsumed: Slot<unsafe extern "C" fn(*mut c_void, c_int, *mut c_void) -> ncclResult_t>,
            pub makeVDevice: Slot<unsafe extern "C" fn(*mut c_int, *mut c_void) -> ncclResult_t>,
            $(pub $last: Slot<unsafe extern "C" fn($($last_arg),*) -> ncclResult_t>,)*
        }
    };
}

table! {
    /// Version 9.
    NetV9:
    init(ncclDebugLogger_t),
    listen(c_int, *mut c_void, Places),
    connect(c_int, *mut c_void, Places, *mut *mut ncclNetDeviceHandle_v8_t),
    isend(*mut c_void, *mut c_void, usize, c_int, *mut c_void, Places),
    irecv(*mut c_void, c_int, Places, *mut usize, *mut c_int, Places, Places)
}

table! {
    /// Version 10.
    NetV10:
    init(ncclDebugLogger_t, *const c_void),
    listen(c_int, *mut c_void, Places),
    connect(c_int, *mut Config, *mut c_void, Places, *mut *mut ncclNetDeviceHandle_v8_t),
    isend(*mut c_void, *mut c_void, usize, c_int, *mut c_void, *mut c_void, Places),
    irecv(*mut c_void, c_int, Places, *mut usize, *mut c_int, Places, Places, Places)
}

table! {
    /// Versions 11 and 12.
    Net:
    init(*mut Context, u64, *mut Config, ncclDebugLogger_t, *const c_void),
    listen(Context, c_int, *mut c_void, Places),
    connect(Context, c_int, *mut c_void, Places, *mut *mut ncclNetDeviceHandle_v8_t),
    isend(*mut c_void, *mut c_void, usize, c_int, *mut c_void, *mut c_void, Places),
    irecv(*mut c_void, c_int, Places, *mut usize, *mut c_int, Places, Places, Places),
    finalize(Context),
    setNetAttr(Context, *mut Attributes)
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
    assert!(size_of::<PropertiesV9>() == 104);
    assert!(offset_of!(PropertiesV9, max_point_to_point) == 88);
    assert!(size_of::<Attributes>() == 44);
    assert!(size_of::<NetV9>() == 20 * 8 && size_of::<NetV10>() == 20 * 8);
    assert!(offset_of!(NetV9, isend) == 10 * 8 && offset_of!(NetV10, isend) == 10 * 8);
    assert!(size_of::<Net>() == 22 * 8);
    assert!(offset_of!(Net, isend) == 10 * 8);
    assert!(offset_of!(Net, closeListen) == 16 * 8);
    assert!(offset_of!(Net, makeVDevice) == 19 * 8);
};
