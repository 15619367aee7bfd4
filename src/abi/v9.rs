//! ncclNet version 9 (NCCL 2.24): 64-bit lengths; NCCL itself merges ports into devices.

use super::calls::{self, Properties};
use super::common_slots::{MEMORY, Memory, TAIL, TailSlots};
use super::layout::{
    CommonProperties, Connect, Count, GetProperties, Irecv, Isend, Listen, MOST_V9, MakeVDevice,
    Members, PropertiesV9,
};
use super::nccl::{self, ncclResult_t};
use super::table::{Exported, slots};
use super::{datapath, process, v8};
use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// The table.
#[repr(C)]
#[derive(Debug)]
pub struct Table {
    name: *const c_char,
    init: unsafe extern "C" fn(nccl::ncclDebugLogger_t) -> ncclResult_t,
    devices: Count,
    get_properties: GetProperties<PropertiesV9>,
    listen: Listen,
    connect: Connect,
    memory: Memory,
    isend: Isend,
    irecv: Irecv,
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
pub static ncclNetPlugin_v9: Exported<Table> = Exported(Table {
    name: process::NAME.as_ptr(),
    init: v8::init::<9>,
    devices: v8::devices::<9>,
    get_properties: get_properties::<9>,
    listen: v8::listen::<9>,
    connect: v8::connect::<9>,
    memory: MEMORY,
    isend,
    irecv,
    tail: TAIL,
    make_v_device: make_v_device::<9>,
});

/// The common first members of the properties of all versions from 9 on.
pub(super) fn common(of: &Properties<'_>) -> CommonProperties {
    CommonProperties {
        name: of.name,
        pci_path: of.pci_path,
        guid: of.guid,
        ptr_support: of.ptr_support,
        reg_is_global: 1,
        force_flush: 0,
        speed: of.speed_mbps,
        port: of.port,
        latency: 0.0,
        max_comms: of.max_comms,
        max_recvs: of.max_recvs,
        device_type: nccl::NCCL_NET_DEVICE_HOST,
        device_version: nccl::NCCL_NET_DEVICE_INVALID_VERSION as c_int,
    }
}

pub(super) fn properties(of: Properties<'_>) -> PropertiesV9 {
    PropertiesV9 {
        common: common(&of),
        members: Members::of(of.members),
        padding: 0,
        max_p2p_bytes: calls::MAX_P2P_BYTES,
        max_collective_bytes: calls::MAX_COLLECTIVE_BYTES,
    }
}

slots! {
    get_properties<VERSION>(dev: c_int, props: *mut PropertiesV9)
        => calls::get_properties(VERSION, dev, props, properties);
    isend(
        send_comm: *mut c_void, data: *mut c_void, size: usize, tag: c_int, mhandle: *mut c_void,
        request: *mut *mut c_void,
    ) => datapath::isend(send_comm, data, size, tag, mhandle, request);
    irecv(
        recv_comm: *mut c_void, n: c_int, data: *mut *mut c_void, sizes: *mut usize, tags: *mut c_int,
        mhandles: *mut *mut c_void, request: *mut *mut c_void,
    ) => datapath::irecv(recv_comm, n, data, sizes, tags, mhandles, request);
    make_v_device<VERSION>(dev: *mut c_int, members: *const Members<MOST_V9>)
        => calls::make_v_device(VERSION, dev, members);
}
