//! Extended queue pairs in the verbs interface: work requests are made call by call.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::abi::types::Qp;

/// What `struct ibv_qp_ex` has behind its `struct ibv_qp`: every queue pair has it, and the calls
/// are set in those that were made so.
#[repr(C)]
pub(crate) struct QpExTail {
    pub(crate) comp_mask: u64,
    /// Written by the application, for the work request that it begins next.
    pub(crate) wr_id: AtomicU64,
    pub(crate) wr_flags: AtomicU32,
    pub(crate) calls: Calls,
}

/// The functions that inlined wrappers reach through an extended queue pair.
pub(crate) type Calls = [usize; CALLS];
const CALLS: usize = 22;

/// Places in [`QpExTail::calls`]. Those that have no name here are of operations that these devices
/// do not have.
pub(crate) mod call {
    pub(crate) const ATOMIC_CMP_SWP: usize = 0;
    pub(crate) const ATOMIC_FETCH_ADD: usize = 1;
    pub(crate) const RDMA_READ: usize = 4;
    pub(crate) const RDMA_WRITE: usize = 5;
    pub(crate) const RDMA_WRITE_IMM: usize = 6;
    pub(crate) const SEND: usize = 7;
    pub(crate) const SEND_IMM: usize = 8;
    pub(crate) const SET_UD_ADDR: usize = 11;
    pub(crate) const SET_INLINE_DATA: usize = 13;
    pub(crate) const SET_INLINE_DATA_LIST: usize = 14;
    pub(crate) const SET_SGE: usize = 15;
    pub(crate) const SET_SGE_LIST: usize = 16;
    pub(crate) const START: usize = 17;
    pub(crate) const COMPLETE: usize = 18;
    pub(crate) const ABORT: usize = 19;
}

/// `struct ibv_data_buf`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct DataBuf {
    pub(crate) addr: *const c_void,
    pub(crate) length: usize,
}

const _: () = {
    assert!(
        size_of::<Qp>() + offset_of!(QpExTail, wr_id) == 168 && offset_of!(QpExTail, calls) == 24
    );
    assert!(size_of::<DataBuf>() == 16);
};
