//! NCCL's structs of versions 9 to 12, written from their facts: the order of members, sizes and offsets on LP64, which are
//! checked below. Version 8's are in [`super::nccl`].

use super::nccl::{ncclDebugLogger_t, ncclNetDeviceHandle_v8_t, ncclNetDeviceType, ncclResult_t};
use crate::error::{Error, Result};
use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// The numbers of the devices that one device consists of; of a device that is not merged its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Members<const MOST: usize> {
    /// How many.
    pub(super) count: c_int,
    /// The first `count` are valid.
    pub(super) devices: [c_int; MOST],
}

impl<const MOST: usize> Members<MOST> {
    /// These, of which there are not more than `MOST`.
    pub(super) fn of(devices: &[c_int]) -> Self {
        let count = devices.len().min(MOST);
        let mut members = Self { count: count as c_int, devices: [0; MOST] };
        members.devices[..count].copy_from_slice(&devices[..count]);
        members
    }

    /// The valid ones.
    ///
    /// # Errors
    /// There are none, or more than there is room for.
    pub(super) fn named(&self) -> Result<&[c_int]> {
        let valid = usize::try_from(self.count).ok().filter(|count| *count > 0).and_then(|n| self.devices.get(..n));
        valid.ok_or_else(|| Error::usage(format!("a device of {} others; 1 to {MOST} are possible", self.count)))
    }
}

/// Members of a device at most, up to version 11 and in version 12.
pub(super) const MOST_V9: usize = 4;
/// As [`MOST_V9`].
pub(super) const MOST_V12: usize = 8;

/// What NCCL says of a communicator when it begins.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct CommConfig {
    /// -1: not set.
    pub(super) traffic_class: c_int,
}

impl CommConfig {
    /// The traffic class, if one is set that there is: 0 to 255.
    ///
    /// # Safety
    /// `config` is NULL or valid.
    pub(super) unsafe fn class(config: *const Self) -> Option<u8> {
        // SAFETY: as the caller says.
        unsafe { config.as_ref() }.and_then(|config| u8::try_from(config.traffic_class).ok())
    }
}

/// How many peers at a time a communicator has, and how many connections to each.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Load {
    pub(super) max_peers: c_int,
    pub(super) min_peers: c_int,
    pub(super) max_flows_per_peer: c_int,
    pub(super) min_flows_per_peer: c_int,
}

/// What NCCL says of a communicator before it connects, and when its operations change.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct NetAttributes {
    pub(super) send: Load,
    pub(super) receive: Load,
    /// Bit masks of collective operations, algorithms and protocols; all bits: not known.
    pub(super) operations: u32,
    pub(super) algorithms: u32,
    pub(super) protocols: u32,
}

/// What the properties of a device begin with.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct CommonProperties {
    pub(super) name: *const c_char,
    pub(super) pci_path: *const c_char,
    pub(super) guid: u64,
    pub(super) ptr_support: c_int,
    pub(super) reg_is_global: c_int,
    pub(super) force_flush: c_int,
    /// Mbit/s.
    pub(super) speed: c_int,
    pub(super) port: c_int,
    /// Microseconds.
    pub(super) latency: f32,
    pub(super) max_comms: c_int,
    pub(super) max_recvs: c_int,
    pub(super) device_type: ncclNetDeviceType,
    pub(super) device_version: c_int,
}

/// Properties of versions 9 and 10.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct PropertiesV9 {
    pub(super) common: CommonProperties,
    pub(super) members: Members<MOST_V9>,
    /// Is written, so that a struct of NCCL's has no byte that is not set.
    pub(super) padding: c_int,
    /// Bytes of a message at most, of a point-to-point operation and of a collective one.
    pub(super) max_p2p_bytes: usize,
    pub(super) max_collective_bytes: usize,
}

/// Properties of version 11.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct PropertiesV11 {
    pub(super) v9: PropertiesV9,
    pub(super) max_multi_request: c_int,
    /// As [`PropertiesV9::padding`].
    pub(super) padding: c_int,
}

/// Properties of version 12.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct PropertiesV12 {
    pub(super) common: CommonProperties,
    pub(super) members: Members<MOST_V12>,
    /// As [`PropertiesV9::padding`].
    pub(super) padding: c_int,
    pub(super) max_p2p_bytes: usize,
    pub(super) max_collective_bytes: usize,
    pub(super) max_multi_request: c_int,
    /// -1: not known.
    pub(super) rail: i16,
    /// As `rail`.
    pub(super) plane: i16,
}

/// NCCL's function by which a network tells events to a profiler; NULL: none.
pub(super) type ProfilerCallback = *const c_void;
/// An output place for the device handle of a network that runs on GPUs. It is not written.
pub(super) type DeviceHandle = *mut *mut ncclNetDeviceHandle_v8_t;

/// `init` from version 11 on: context, id of the communicator, what it is like, logger, profiler.
pub(super) type InitContext =
    unsafe extern "C" fn(*mut *mut c_void, u64, *const CommConfig, ncclDebugLogger_t, ProfilerCallback) -> ncclResult_t;
pub(super) type GetProperties<P> = unsafe extern "C" fn(c_int, *mut P) -> ncclResult_t;
pub(super) type Count = unsafe extern "C" fn(*mut c_int) -> ncclResult_t;
pub(super) type Listen = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> ncclResult_t;
/// `listen` from version 11 on: with the context.
pub(super) type ListenContext = unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> ncclResult_t;
pub(super) type Connect = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void, DeviceHandle) -> ncclResult_t;
/// `connect` of version 10: with what the communicator is like.
pub(super) type ConnectConfig =
    unsafe extern "C" fn(c_int, *const CommConfig, *mut c_void, *mut *mut c_void, DeviceHandle) -> ncclResult_t;
/// `connect` from version 11 on: with the context.
pub(super) type ConnectContext =
    unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void, DeviceHandle) -> ncclResult_t;
pub(super) type Isend =
    unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int, *mut c_void, *mut *mut c_void) -> ncclResult_t;
pub(super) type Irecv = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> ncclResult_t;
/// `isend` from version 10 on: with a profiler's handle.
pub(super) type IsendProfiled = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> ncclResult_t;
/// `irecv` from version 10 on: with a profiler's handle for each message.
pub(super) type IrecvProfiled = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> ncclResult_t;
pub(super) type MakeVDevice<const MOST: usize> = unsafe extern "C" fn(*mut c_int, *const Members<MOST>) -> ncclResult_t;
pub(super) type Finalize = unsafe extern "C" fn(*mut c_void) -> ncclResult_t;
pub(super) type SetNetAttr = unsafe extern "C" fn(*mut c_void, *const NetAttributes) -> ncclResult_t;

const _: () = {
    assert!(size_of::<Members<MOST_V9>>() == 20 && size_of::<Members<MOST_V12>>() == 36);
    assert!(size_of::<CommConfig>() == 4);
    assert!(size_of::<NetAttributes>() == 44 && offset_of!(NetAttributes, operations) == 32);
    assert!(size_of::<CommonProperties>() == 64);
    assert!(offset_of!(CommonProperties, reg_is_global) == 28 && offset_of!(CommonProperties, force_flush) == 32);
    assert!(offset_of!(CommonProperties, latency) == 44 && offset_of!(CommonProperties, device_type) == 56);
    assert!(size_of::<PropertiesV9>() == 104 && offset_of!(PropertiesV9, members) == 64);
    assert!(offset_of!(PropertiesV9, max_p2p_bytes) == 88 && offset_of!(PropertiesV9, max_collective_bytes) == 96);
    assert!(size_of::<PropertiesV11>() == 112 && offset_of!(PropertiesV11, max_multi_request) == 104);
    assert!(size_of::<PropertiesV12>() == 128 && offset_of!(PropertiesV12, max_p2p_bytes) == 104);
    assert!(offset_of!(PropertiesV12, max_collective_bytes) == 112);
    assert!(offset_of!(PropertiesV12, max_multi_request) == 120);
    assert!(offset_of!(PropertiesV12, rail) == 124 && offset_of!(PropertiesV12, plane) == 126);
};
