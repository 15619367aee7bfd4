//! ncclNet version 11 (NCCL 2.28): `init` is called for each NCCL communicator and creates a
//! context, which `finalize` ends.

use super::calls::{self, Properties};
use super::common_slots::{MEMORY, Memory, TAIL, TailSlots};
use super::layout::{
    CommConfig, ConnectContext, Count, DeviceHandle, Finalize, GetProperties, InitContext,
    IrecvProfiled, IsendProfiled, ListenContext, MOST_V9, MakeVDevice, NetAttributes,
    ProfilerCallback, PropertiesV11, SetNetAttr,
};
use super::nccl::{self, ncclResult_t};
use super::table::{Exported, slots};
use super::{context_calls, process, v8, v9, v10};
use std::ffi::{c_char, c_int, c_void};
use std::mem::{offset_of, size_of};

/// The table.
#[repr(C)]
#[derive(Debug)]
pub struct Table<P, const MOST: usize> {
    pub(super) name: *const c_char,
    pub(super) init: InitContext,
    pub(super) devices: Count,
    pub(super) get_properties: GetProperties<P>,
    pub(super) listen: ListenContext,
    pub(super) connect: ConnectContext,
    pub(super) memory: Memory,
    pub(super) isend: IsendProfiled,
    pub(super) irecv: IrecvProfiled,
    pub(super) tail: TailSlots,
    pub(super) make_v_device: MakeVDevice<MOST>,
    pub(super) finalize: Finalize,
    pub(super) set_net_attr: SetNetAttr,
}

const _: () = {
    assert!(size_of::<Table<PropertiesV11, MOST_V9>>() == 176);
    assert!(offset_of!(Table<PropertiesV11, MOST_V9>, isend) == 80);
    assert!(offset_of!(Table<PropertiesV11, MOST_V9>, finalize) == 160);
};

/// The symbol that NCCL looks up.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclNetPlugin_v11: Exported<Table<PropertiesV11, MOST_V9>> = Exported(Table {
    name: process::NAME.as_ptr(),
    init: init::<11>,
    devices: v8::devices::<11>,
    get_properties,
    listen: listen::<11>,
    connect: connect::<11>,
    memory: MEMORY,
    isend: v10::isend,
    irecv: v10::irecv,
    tail: TAIL,
    make_v_device: v9::make_v_device::<11>,
    finalize: finalize::<11>,
    set_net_attr,
});

fn properties(of: Properties<'_>) -> PropertiesV11 {
    PropertiesV11 { v9: v9::properties(of), max_multi_request: 1, padding: 0 }
}

slots! {
    init<VERSION>(
        context: *mut *mut c_void, id: u64, config: *const CommConfig, log_function: nccl::ncclDebugLogger_t,
        _profiler: ProfilerCallback,
    ) => context_calls::init(VERSION, context, id, config, log_function);
    get_properties(dev: c_int, props: *mut PropertiesV11) => calls::get_properties(11, dev, props, properties);
    listen<VERSION>(context: *mut c_void, dev: c_int, handle: *mut c_void, listen_comm: *mut *mut c_void)
        => context_calls::listen(VERSION, context, dev, handle, listen_comm);
    connect<VERSION>(
        context: *mut c_void, dev: c_int, handle: *mut c_void, send_comm: *mut *mut c_void, _device: DeviceHandle,
    ) => context_calls::connect(VERSION, context, dev, handle, send_comm);
    finalize<VERSION>(context: *mut c_void) => context_calls::finalize(VERSION, context);
    set_net_attr(context: *mut c_void, attributes: *const NetAttributes)
        => context_calls::set_attributes(context, attributes);
}
