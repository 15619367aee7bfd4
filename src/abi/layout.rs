//! NCCL's structs of versions 9 to 12, written from facts: the order of members, sizes and offsets
//! on LP64, which are checked below. Version 8's are in [`super::nccl`].

use super::nccl::{ncclDebugLogger_t, ncclNetDeviceHandle_v8_t, ncclNetDeviceType, ncclResult_t};
use crate::error::{Error, Result};
use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// The numbers of the devices that a device consists of; its own number if it is not merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(super) struct Members<const MOST: usize> {
    /// The number of valid entries.
    pub(super) count: c_int,
    /// The first `count` are valid.
    pub(super) devices: [c_int; MOST],
}

impl<const MOST: usize> Members<MOST> {
    /// At most `MOST` devices.
    pub(super) fn of(devices: &[c_int]) -> Self {
        let count = devices.len().min(MOST);
        let mut members = Self { count: count as c_int, devices: [0; MOST] };
        members.devices[..count].copy_from_slice(&devices[..count]);
        members
    }

    /// The valid entries.
    ///
    /// # Errors
    /// There are none, or too many.
    pub(super) fn named(&self) -> Result<&[c_int]> {
        let valid = usize::try_from(self.count)
            .ok()
            .filter(|count| *count > 0)
            .and_then(|n| self.devices.get(..n));
        valid.ok_or_else(|| {
            Error::usage(format!("a device of {} others; 1 to {MOST} are allowed", self.count))
        })
    }
}

/// The most members of a device, up to version 11 and in version 12.
pub(super) const MOST_V9: usize = 4;
/// As [`MOST_V9`].
pub(super) const MOST_V12: usize = 8;

/// Settings of a communicator, passed at its beginning.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct CommConfig {
    /// -1: not set.
    pub(super) traffic_class: c_int,
}

impl CommConfig {
    /// The traffic class, if it is set and within 0 to 255.
    ///
    /// # Safety
    /// `config` is NULL or valid.
    pub(super) unsafe fn class(config: *const Self) -> Option<u8> {
        // SAFETY: as the caller says.
        unsafe { config.as_ref() }.and_then(|config| u8::try_from(config.traffic_class).ok())
    }
}

/// The concurrent peers of a communicator, and the connections to each.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct Load {
    pub(super) max_peers: c_int,
    pub(super) min_peers: c_int,
    pub(super) max_flows_per_peer: c_int,
    pub(super) min_flows_per_peer: c_int,
}

/// Attributes of a communicator, passed before it connects and when its operations change.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(super) struct NetAttributes {
    pub(super) send: Load,
    pub(super) receive: Load,
    /// Bit masks of collective operations, algorithms and protocols; all bits set if unknown.
    pub(super) operations: u32,
    pub(super) algorithms: u32,
    pub(super) protocols: u32,
}

/// The first members of a device's properties.
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
    /// Written, so that every byte of NCCL's struct is initialised.
    pub(super) padding: c_int,
    /// The most bytes of a message, of a point-to-point and of a collective operation.
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
    /// -1 if unknown.
    pub(super) rail: i16,
    /// As `rail`.
    pub(super) plane: i16,
}

/// NCCL's function by which a network sends events to a profiler; NULL if none.
pub(super) type ProfilerCallback = *const c_void;
/// An output pointer for the device handle of a network that runs on GPUs. It is not written.
pub(super) type DeviceHandle = *mut *mut ncclNetDeviceHandle_v8_t;

/// `init` from version 11 on: context, id and settings of the communicator, logger, profiler.
pub(super) type InitContext = unsafe extern "C" fn(
    *mut *mut c_void,
    u64,
    *const CommConfig,
    ncclDebugLogger_t,
    ProfilerCallback,
) -> ncclResult_t;
pub(super) type GetProperties<P> = unsafe extern "C" fn(c_int, *mut P) -> ncclResult_t;
pub(super) type Count = unsafe extern "C" fn(*mut c_int) -> ncclResult_t;
pub(super) type Listen = unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void) -> ncclResult_t;
/// `listen` from version 11 on, with the context.
pub(super) type ListenContext =
    unsafe extern "C" fn(*mut c_void, c_int, *mut c_void, *mut *mut c_void) -> ncclResult_t;
pub(super) type Connect =
    unsafe extern "C" fn(c_int, *mut c_void, *mut *mut c_void, DeviceHandle) -> ncclResult_t;
/// `connect` of version 10, with the settings of the communicator.
pub(super) type ConnectConfig = unsafe extern "C" fn(
    c_int,
    *const CommConfig,
    *mut c_void,
    *mut *mut c_void,
    DeviceHandle,
) -> ncclResult_t;
/// `connect` from version 11 on, with the context.
pub(super) type ConnectContext = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut c_void,
    *mut *mut c_void,
    DeviceHandle,
) -> ncclResult_t;
pub(super) type Isend = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut *mut c_void,
) -> ncclResult_t;
pub(super) type Irecv = unsafe extern "C" fn(
    *mut c_void,
    c_int,
    *mut *mut c_void,
    *mut usize,
    *mut c_int,
    *mut *mut c_void,
    *mut *mut c_void,
) -> ncclResult_t;
/// `isend` from version 10 on, with a profiler's handle.
pub(super) type IsendProfiled = unsafe extern "C" fn(
    *mut c_void,
    *mut c_void,
    usize,
    c_int,
    *mut c_void,
    *mut c_void,
    *mut *mut c_void,
) -> ncclResult_t;
/// `irecv` from version 10 on, with a profiler's handle for each message.
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
pub(super) type MakeVDevice<const MOST: usize> =
    unsafe extern "C" fn(*mut c_int, *const Members<MOST>) -> ncclResult_t;
pub(super) type Finalize = unsafe extern "C" fn(*mut c_void) -> ncclResult_t;
pub(super) type SetNetAttr =
    unsafe extern "C" fn(*mut c_void, *const NetAttributes) -> ncclResult_t;

const _: () = {
    assert!(size_of::<Members<MOST_V9>>() == 20 && size_of::<Members<MOST_V12>>() == 36);
    assert!(size_of::<CommConfig>() == 4);
    assert!(size_of::<NetAttributes>() == 44 && offset_of!(NetAttributes, operations) == 32);
    assert!(size_of::<CommonProperties>() == 64);
    assert!(
        offset_of!(CommonProperties, reg_is_global) == 28
            && offset_of!(CommonProperties, force_flush) == 32
    );
    assert!(
        offset_of!(CommonProperties, latency) == 44
            && offset_of!(CommonProperties, device_type) == 56
    );
    assert!(size_of::<PropertiesV9>() == 104 && offset_of!(PropertiesV9, members) == 64);
    assert!(
        offset_of!(PropertiesV9, max_p2p_bytes) == 88
            && offset_of!(PropertiesV9, max_collective_bytes) == 96
    );
    assert!(
        size_of::<PropertiesV11>() == 112 && offset_of!(PropertiesV11, max_multi_request) == 104
    );
    assert!(size_of::<PropertiesV12>() == 128 && offset_of!(PropertiesV12, max_p2p_bytes) == 104);
    assert!(offset_of!(PropertiesV12, max_collective_bytes) == 112);
    assert!(offset_of!(PropertiesV12, max_multi_request) == 120);
    assert!(offset_of!(PropertiesV12, rail) == 124 && offset_of!(PropertiesV12, plane) == 126);
};
