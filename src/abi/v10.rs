//! ncclNet version 10 (NCCL 2.26): `connect` gets the communicator's settings; sends and receives
//! carry handles for a profiler. `init` gets a function for a profiler, which Ferrite does not call.

use super::common_slots::{MEMORY, Memory, TAIL, TailSlots};
use super::datapath::{self, handle_operation};
use super::layout::{
    CommConfig, ConnectConfig, Count, DeviceHandle, GetProperties, IrecvProfiled, IsendProfiled,
    Listen, MOST_V9, MakeVDevice, ProfilerCallback, PropertiesV9,
};
use super::nccl::{self, ncclResult_t};
use super::table::{Exported, slots};
use super::{calls, process, v8, v9};
use crate::net::setup::nccl_comm::NcclComm;
use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};
use std::sync::atomic::Ordering;

/// The table.
#[repr(C)]
#[derive(Debug)]
pub struct Table {
    name: *const c_char,
    init: unsafe extern "C" fn(nccl::ncclDebugLogger_t, ProfilerCallback) -> ncclResult_t,
    devices: Count,
    get_properties: GetProperties<PropertiesV9>,
    listen: Listen,
    connect: ConnectConfig,
    memory: Memory,
    isend: IsendProfiled,
    irecv: IrecvProfiled,
    tail: TailSlots,
    make_v_device: MakeVDevice<MOST_V9>,
}

const _: () = {
    assert!(size_of::<Table>() == 160);
    assert!(offset_of!(Table, isend) == 80 && offset_of!(Table, make_v_device) == 152);
};

/// The symbol that NCCL looks up.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclNetPlugin_v10: Exported<Table> = Exported(Table {
    name: process::NAME.as_ptr(),
    init,
    devices: v8::devices::<10>,
    get_properties: v9::get_properties::<10>,
    listen: v8::listen::<10>,
    connect,
    memory: MEMORY,
    isend,
    irecv,
    tail: TAIL,
    make_v_device: v9::make_v_device::<10>,
});

slots! {
    init(log_function: nccl::ncclDebugLogger_t, _profiler: ProfilerCallback) => calls::init(10, log_function);
    connect(
        dev: c_int, config: *const CommConfig, handle: *mut c_void, send_comm: *mut *mut c_void, _device: DeviceHandle,
    ) => calls::connect(10, || Ok(NcclComm { id: None, class: CommConfig::class(config) }), dev, handle, send_comm);
    isend(
        send_comm: *mut c_void, data: *mut c_void, size: usize, tag: c_int, mhandle: *mut c_void,
        phandle: *mut c_void, request: *mut *mut c_void,
    ) => {
        if process::NCCL_CONNECTS_OVER_NET.load(Ordering::Relaxed) && !phandle.is_null() {
            handle_operation(send_comm);
        }
        datapath::isend(send_comm, data, size, tag, mhandle, request)
    };
    irecv(
        recv_comm: *mut c_void, n: c_int, data: *mut *mut c_void, sizes: *mut usize, tags: *mut c_int,
        mhandles: *mut *mut c_void, phandles: *mut *mut c_void, request: *mut *mut c_void,
    ) => {
        // There is a handle for each of the n messages.
        if process::NCCL_CONNECTS_OVER_NET.load(Ordering::Relaxed) && !phandles.is_null() && n > 0 && !(*phandles).is_null() {
            handle_operation(recv_comm);
        }
        datapath::irecv(recv_comm, n, data, sizes, tags, mhandles, request)
    };
}
