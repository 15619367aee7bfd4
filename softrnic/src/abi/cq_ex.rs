//! Extended completion queues in the verbs interface.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::abi::types::{CompChannel, Cq, Pd};

/// `struct ibv_cq_ex`: every completion queue is one, and the calls are set in those that were made so.
#[repr(C)]
pub(crate) struct CqEx {
    pub(crate) base: Cq,
    pub(crate) comp_mask: u32,
    /// Of the completion that is looked at.
    pub(crate) status: AtomicU32,
    pub(crate) wr_id: AtomicU64,
    pub(crate) calls: Calls,
}

/// The functions that inlined wrappers reach through an extended completion queue.
pub(crate) type Calls = [usize; CALLS];
const CALLS: usize = 18;

/// Places in [`CqEx::calls`].
pub(crate) mod call {
    pub(crate) const START_POLL: usize = 0;
    pub(crate) const NEXT_POLL: usize = 1;
    pub(crate) const END_POLL: usize = 2;
    pub(crate) const OPCODE: usize = 3;
    pub(crate) const VENDOR_ERR: usize = 4;
    pub(crate) const BYTE_LEN: usize = 5;
    pub(crate) const IMM_DATA: usize = 6;
    pub(crate) const QP_NUM: usize = 7;
    pub(crate) const SRC_QP: usize = 8;
    pub(crate) const WC_FLAGS: usize = 9;
    pub(crate) const SLID: usize = 10;
    pub(crate) const SL: usize = 11;
    pub(crate) const DLID_PATH_BITS: usize = 12;
}

/// What completions are to have: byte count, immediate data, queue pair, and who has sent it.
pub(crate) const STANDARD_FLAGS: u64 = 0x7f;
/// `flags` is set.
pub(crate) const HAS_FLAGS: u32 = 1;
/// `parent_domain`, behind the first 48 bytes, is set.
pub(crate) const HAS_PARENT_DOMAIN: u32 = 1 << 1;
/// One thread alone uses it.
pub(crate) const SINGLE_THREADED: u32 = 1;

/// The first 48 bytes of `struct ibv_cq_init_attr_ex`, the shortest form in use.
#[repr(C)]
pub(crate) struct CqInitAttrEx {
    pub(crate) cqe: u32,
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: *mut CompChannel,
    pub(crate) comp_vector: u32,
    pub(crate) wc_flags: u64,
    pub(crate) comp_mask: u32,
    pub(crate) flags: u32,
}

/// The whole structure: who sets [`HAS_PARENT_DOMAIN`] has it.
#[repr(C)]
pub(crate) struct CqInitAttrExLong {
    pub(crate) short: CqInitAttrEx,
    pub(crate) parent_domain: *mut Pd,
}

const _: () = {
    assert!(size_of::<CqEx>() == 288 && offset_of!(CqEx, wr_id) == 136 && offset_of!(CqEx, calls) == 144);
    assert!(size_of::<CqInitAttrExLong>() == 56 && size_of::<CqInitAttrEx>() == 48);
    assert!(offset_of!(CqInitAttrEx, comp_mask) == 40);
};
