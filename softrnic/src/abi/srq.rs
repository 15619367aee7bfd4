//! Shared receive queues in the verbs interface.

use std::ffi::c_void;
use std::mem::size_of;

/// Attribute mask bits of `ibv_modify_srq`.
pub(crate) const ATTR_LIMIT: i32 = 1 << 1;

/// `struct ibv_srq_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SrqAttr {
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    pub(crate) srq_limit: u32,
}

/// `struct ibv_srq_init_attr`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct SrqInitAttr {
    pub(crate) srq_context: *mut c_void,
    pub(crate) attr: SrqAttr,
}

const _: () = assert!(size_of::<SrqInitAttr>() == 24);
