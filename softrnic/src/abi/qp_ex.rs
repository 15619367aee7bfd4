//! Extended queue pairs in the verbs interface: work requests are made call by call.

#![allow(missing_docs, missing_debug_implementations, reason = "infiniband/verbs.h names them")]

use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::abi::types::Qp;

/// What `struct ibv_qp_ex` has behind its `struct ibv_qp`: every queue pair has it, and the calls
/// are set in those that were made so.
#[repr(C)]
pub struct QpExTail {
    pub comp_mask: u64,
    /// Written by the application, for the work request that it begins next.
    pub wr_id: AtomicU64,
    pub wr_flags: AtomicU32,
    pub calls: Calls,
}

/// The functions that inlined wrappers reach through an extended queue pair.
pub type Calls = [usize; CALLS];
const CALLS: usize = 22;

/// Places in [`QpExTail::calls`]. Those that have no name here are of operations that these devices
/// do not have; so are those of memory windows.
pub mod call {
    pub const ATOMIC_CMP_SWP: usize = 0;
    pub const ATOMIC_FETCH_ADD: usize = 1;
    pub const BIND_MW: usize = 2;
    pub const LOCAL_INV: usize = 3;
    pub const RDMA_READ: usize = 4;
    pub const RDMA_WRITE: usize = 5;
    pub const RDMA_WRITE_IMM: usize = 6;
    pub const SEND: usize = 7;
    pub const SEND_IMM: usize = 8;
    pub const SET_UD_ADDR: usize = 11;
    pub const SET_INLINE_DATA: usize = 13;
    pub const SET_INLINE_DATA_LIST: usize = 14;
    pub const SET_SGE: usize = 15;
    pub const SET_SGE_LIST: usize = 16;
    pub const START: usize = 17;
    pub const COMPLETE: usize = 18;
    pub const ABORT: usize = 19;
}

/// `struct ibv_data_buf`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DataBuf {
    pub addr: *const c_void,
    pub length: usize,
}

const _: () = {
    assert!(
        size_of::<Qp>() + offset_of!(QpExTail, wr_id) == 168 && offset_of!(QpExTail, calls) == 24
    );
    assert!(size_of::<DataBuf>() == 16);
};
