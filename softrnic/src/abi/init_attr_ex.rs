//! `struct ibv_qp_init_attr_ex`, for `ibv_create_qp_ex`.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};

use crate::abi::types::{Cq, Pd, QpCap, Srq};

/// The protection domain is named. It has to be.
pub(crate) const HAS_PD: u32 = 1;
/// The operations are named.
pub(crate) const HAS_OPERATIONS: u32 = 1 << 6;

/// RDMA WRITE, SEND, RDMA READ and the atomics.
pub(crate) const ALL_OPERATIONS: u64 = 0x7f;

/// The structure, as it is since rdma-core 24.
#[repr(C)]
pub(crate) struct QpInitAttrEx {
    pub(crate) qp_context: *mut c_void,
    pub(crate) send_cq: *mut Cq,
    pub(crate) recv_cq: *mut Cq,
    pub(crate) srq: *mut Srq,
    pub(crate) cap: QpCap,
    pub(crate) qp_type: c_int,
    pub(crate) sq_sig_all: c_int,
    /// Which of the fields behind it are set.
    pub(crate) comp_mask: u32,
    pub(crate) pd: *mut Pd,
    pub(crate) xrcd: *mut c_void,
    pub(crate) create_flags: u32,
    pub(crate) max_tso_header: u16,
    pub(crate) rwq_ind_tbl: *mut c_void,
    pub(crate) rx_hash_conf: [u64; 3],
    pub(crate) source_qpn: u32,
    /// Bit n: `ibv_wr_opcode` n, for those opcodes that these devices have.
    pub(crate) send_ops_flags: u64,
}

const _: () = {
    assert!(size_of::<QpInitAttrEx>() == 136 && offset_of!(QpInitAttrEx, comp_mask) == 60);
    assert!(offset_of!(QpInitAttrEx, pd) == 64 && offset_of!(QpInitAttrEx, send_ops_flags) == 128);
};
