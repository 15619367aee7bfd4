//! Structs, functions and constants of libibverbs, under their names in `infiniband/verbs.h`. Parts
//! without a name in C have the names of the package rdma-sys.
//!
//! Ferrite declares them itself, so that the build needs neither those headers nor libclang. With
//! the feature `rdma-sys` they come from that package, which generates them from the installed
//! headers; its gaps are filled here. `tests/layouts` compares sizes, offsets and values with those
//! of a C compiler.

#![allow(missing_docs, missing_debug_implementations, non_camel_case_types)]

use libc::{c_int, c_uint, c_void};
use std::mem::{offset_of, size_of};

#[cfg(not(feature = "rdma-sys"))]
pub use super::sys_own::*;
#[cfg(feature = "rdma-sys")]
pub use super::sys_package::*;

pub type PollCq = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
pub type PostSend =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
pub type PostRecv =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

/// The functions of an extended queue pair for the operations that Ferrite uses.
#[repr(C)]
pub struct ibv_qp_ex {
    _qp_context_to_srq: [usize; 6],
    _qp_handle_to_qp_type: [u32; 4],
    _qp_mutex: libc::pthread_mutex_t,
    _qp_cond: libc::pthread_cond_t,
    _qp_events_completed: u32,
    pub comp_mask: u64,
    pub wr_id: u64,
    pub wr_flags: c_uint,
    _wr_atomic_cmp_swp_to_local_inv: [usize; 4],
    pub wr_rdma_read: unsafe extern "C" fn(*mut Self, u32, u64),
    pub wr_rdma_write: unsafe extern "C" fn(*mut Self, u32, u64),
    /// With the immediate data in network byte order.
    pub wr_rdma_write_imm: unsafe extern "C" fn(*mut Self, u32, u64, u32),
    _wr_send_to_set_xrc_srqn: [usize; 6],
    pub wr_set_inline_data: unsafe extern "C" fn(*mut Self, *mut c_void, usize),
    _wr_set_inline_data_list: usize,
    pub wr_set_sge: unsafe extern "C" fn(*mut Self, u32, u64, u32),
    pub wr_set_sge_list: unsafe extern "C" fn(*mut Self, usize, *const ibv_sge),
    pub wr_start: unsafe extern "C" fn(*mut Self),
    pub wr_complete: unsafe extern "C" fn(*mut Self) -> c_int,
}

#[repr(C)]
pub struct ibv_poll_cq_attr {
    pub comp_mask: u32,
}

/// An extended completion queue, up to the last function that Ferrite uses.
#[repr(C)]
pub struct ibv_cq_ex {
    _cq_context_to_cq_context: [usize; 3],
    _cq_handle_to_cqe: [u32; 2],
    _cq_mutex: libc::pthread_mutex_t,
    _cq_cond: libc::pthread_cond_t,
    _cq_events_completed: [u32; 2],
    pub comp_mask: u32,
    /// Of the completion that is read.
    pub status: c_uint,
    pub wr_id: u64,
    pub start_poll: unsafe extern "C" fn(*mut Self, *const ibv_poll_cq_attr) -> c_int,
    pub next_poll: unsafe extern "C" fn(*mut Self) -> c_int,
    pub end_poll: unsafe extern "C" fn(*mut Self),
    _read_opcode: usize,
    pub read_vendor_err: unsafe extern "C" fn(*mut Self) -> u32,
    _read_byte_len: usize,
    /// In network byte order.
    pub read_imm_data: unsafe extern "C" fn(*mut Self) -> u32,
}

#[repr(C)]
pub struct ibv_cq_init_attr_ex {
    pub cqe: u32,
    pub cq_context: *mut c_void,
    pub channel: *mut ibv_comp_channel,
    pub comp_vector: u32,
    pub wc_flags: u64,
    pub comp_mask: u32,
    pub flags: u32,
    pub parent_domain: *mut ibv_pd,
}

pub const IBV_WC_EX_WITH_IMM: u64 = 1 << 1;
pub const IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1;
pub const IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1;

/// As in rdma-core 49 and later. Older libraries only fill in the beginning.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct ibv_port_attr {
    pub state: c_uint,
    pub max_mtu: c_uint,
    pub active_mtu: c_uint,
    pub gid_tbl_len: c_int,
    _port_cap_flags_to_qkey_viol_cntr: [u32; 4],
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    _lmc_to_init_type_reply: [u8; 5],
    pub active_width: u8,
    pub active_speed: u8,
    _phys_state: u8,
    pub link_layer: u8,
    pub flags: u8,
    _port_cap_flags2: u16,
    pub active_speed_ex: u32,
}

pub const IBV_QPF_GRH_REQUIRED: u8 = 1;
pub const IBV_LINK_LAYER_INFINIBAND: u8 = 1;
pub const IBV_LINK_LAYER_ETHERNET: u8 = 2;

/// The event type is a plain number: a newer library may report an unknown one.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct ibv_async_event {
    /// The address of the object, or the number of the port.
    pub element: u64,
    pub event_type: c_int,
}

pub const IBV_EVENT_CQ_ERR: c_int = 0;
pub const IBV_EVENT_QP_FATAL: c_int = 1;
pub const IBV_EVENT_QP_REQ_ERR: c_int = 2;
pub const IBV_EVENT_QP_ACCESS_ERR: c_int = 3;
pub const IBV_EVENT_DEVICE_FATAL: c_int = 8;
pub const IBV_EVENT_PORT_ACTIVE: c_int = 9;
pub const IBV_EVENT_PORT_ERR: c_int = 10;
pub const IBV_EVENT_LID_CHANGE: c_int = 11;
pub const IBV_EVENT_GID_CHANGE: c_int = 18;

/// Options of enhanced connection establishment, agreed between two devices of one vendor.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ibv_ece {
    /// The vendor of the device.
    pub vendor_id: u32,
    /// The vendor's options, one bit each.
    pub options: u32,
    /// Which further fields are set. None are known.
    pub comp_mask: u32,
}

// Bytes, where a pointer has 64 bits.
const _: () = assert!(size_of::<ibv_context>() == 288 + size_of::<libc::pthread_mutex_t>());
const _: () = assert!(size_of::<ibv_send_wr>() == 128 && offset_of!(ibv_send_wr, wr) == 40);
const _: () = assert!(size_of::<ibv_qp_attr>() == 144 && size_of::<ibv_port_attr>() == 56);
const _: () = assert!(size_of::<ibv_qp_init_attr_ex>() == 136 && size_of::<ibv_wc>() == 48);
