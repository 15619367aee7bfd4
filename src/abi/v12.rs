//! ncclNet version 12 (NCCL 2.30): devices of up to eight ports; each reports its rail and plane.
//! [`process`] has the list of versions.

use super::calls::{self, Properties};
use super::common_slots::{MEMORY, TAIL};
use super::layout::{MOST_V12, Members, PropertiesV12};
use super::nccl::ncclResult_t;
use super::table::{Exported, slots};
use super::v11::Table;
use super::{process, v8, v9, v10, v11};
use std::ffi::c_int;
use std::mem::size_of;

const _: () = assert!(size_of::<Table<PropertiesV12, MOST_V12>>() == 176);

/// The symbol that NCCL looks up.
#[unsafe(no_mangle)]
#[allow(non_upper_case_globals)]
pub static ncclNetPlugin_v12: Exported<Table<PropertiesV12, MOST_V12>> = Exported(Table {
    name: process::NAME.as_ptr(),
    init: v11::init::<12>,
    devices: v8::devices::<12>,
    get_properties,
    listen: v11::listen::<12>,
    connect: v11::connect::<12>,
    memory: MEMORY,
    isend: v10::isend,
    irecv: v10::irecv,
    tail: TAIL,
    make_v_device,
    finalize: v11::finalize::<12>,
    set_net_attr: v11::set_net_attr,
});

fn properties(of: Properties<'_>) -> PropertiesV12 {
    PropertiesV12 {
        common: v9::common(&of),
        members: Members::of(of.members),
        padding: 0,
        max_p2p_bytes: calls::MAX_P2P_BYTES,
        max_collective_bytes: calls::MAX_COLLECTIVE_BYTES,
        max_multi_request: 1,
        rail: of.rail,
        plane: of.plane,
    }
}

slots! {
    get_properties(dev: c_int, props: *mut PropertiesV12) => calls::get_properties(12, dev, props, properties);
    make_v_device(dev: *mut c_int, members: *const Members<MOST_V12>) => calls::make_v_device(12, dev, members);
}
