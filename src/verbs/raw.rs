//! Structs of libibverbs that the binding lacks, or has as they were in an older version.

use super::sys;
use libc::c_void;
use std::mem::offset_of;

/// `struct ibv_async_event`, with the event type as a plain number: a newer library may report a type that no enum has.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct RawAsyncEvent {
    /// The union of the object's pointer and the port number.
    pub(super) element: u64,
    pub(super) event_type: i32,
}

/// `struct ibv_port_attr` of rdma-core 56. Older libraries fill in only the beginning.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct RawPort {
    pub(super) state: u32,
    pub(super) max_mtu: u32,
    pub(super) active_mtu: u32,
    pub(super) gid_tbl_len: i32,
    capabilities_and_counters: [u32; 4],
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    lmc_to_init_type: [u8; 5],
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    port_cap_flags2: u16,
    pub(super) active_speed_ex: u32,
}

/// `struct ibv_gid_entry`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct RawGidEntry {
    pub(super) gid: [u8; 16],
    gid_index: u32,
    port_num: u32,
    pub(super) gid_type: u32,
    ndev_ifindex: u32,
}

/// `struct ibv_ece`: options of enhanced connection establishment, which two devices of one vendor agree on.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ece {
    /// The vendor of the device.
    pub vendor_id: u32,
    /// The vendor's options, a bit each.
    pub options: u32,
    /// Which further fields are set. None are known.
    pub comp_mask: u32,
}

/// `struct ibv_qp_init_attr_ex` of rdma-core 24 and later.
#[repr(C)]
pub struct QpInitAttrEx {
    qp_context: *mut c_void,
    pub(super) send_cq: *mut sys::ibv_cq,
    pub(super) recv_cq: *mut sys::ibv_cq,
    srq: *mut c_void,
    pub(super) cap: sys::ibv_qp_cap,
    pub(super) qp_type: sys::ibv_qp_type::Type,
    sq_sig_all: i32,
    pub(super) comp_mask: u32,
    pub(super) pd: *mut sys::ibv_pd,
    xrcd: *mut c_void,
    create_flags: u32,
    max_tso_header: u16,
    rwq_ind_tbl: *mut c_void,
    rx_hash_conf: [u64; 3],
    source_qpn: u32,
    /// Operations, if [`Self::comp_mask`] says so.
    pub(super) send_ops_flags: u64,
}

impl Default for QpInitAttrEx {
    fn default() -> Self {
        // SAFETY: a struct of numbers and pointers, for which zero is valid.
        unsafe { std::mem::zeroed() }
    }
}

const _: () = assert!(offset_of!(QpInitAttrEx, pd) == 64 && offset_of!(QpInitAttrEx, send_ops_flags) == 128);
const _: () = assert!(size_of::<QpInitAttrEx>() == 136);
const _: () = assert!(size_of::<RawAsyncEvent>() == size_of::<sys::ibv_async_event>());
const _: () = assert!(size_of::<RawGidEntry>() == size_of::<sys::ibv_gid_entry>());
const _: () = assert!(offset_of!(RawPort, flags) == offset_of!(sys::ibv_port_attr, flags));
const _: () = assert!(offset_of!(RawPort, sm_lid) == offset_of!(sys::ibv_port_attr, sm_lid));
const _: () = assert!(offset_of!(RawPort, lid) == offset_of!(sys::ibv_port_attr, lid));
const _: () = assert!(size_of::<RawPort>() == 56 && offset_of!(RawPort, active_speed_ex) == 52);
