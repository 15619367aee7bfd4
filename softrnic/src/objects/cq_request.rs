//! What `ibv_create_cq` and `ibv_create_cq_ex` ask for.

use std::ffi::c_void;
use std::sync::Arc;

use crate::abi::cq_ex::Calls;
use crate::objects::channel::Channel;
use crate::objects::pd::Pd;

/// What a completion queue is to be.
pub(crate) struct CqRequest {
    pub(crate) cqe: u32,
    /// The application's word for it.
    pub(crate) cq_context: *mut c_void,
    pub(crate) channel: Option<&'static Channel>,
    /// All 0 if it is not an extended one.
    pub(crate) calls: Calls,
    /// One thread at a time uses it.
    pub(crate) is_single_threaded: bool,
    pub(crate) parent_domain: Option<Arc<Pd>>,
}
