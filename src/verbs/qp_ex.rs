//! `ibv_create_qp_ex`, which tells a driver what is going to be posted to a queue pair.
//!
//! Without that, mlx5 makes each entry of a send queue as large as the largest operation needs, which is four times what a write
//! needs. The call is no symbol of libibverbs: it is reached through a table in front of the context, as its inline function does.
//! Work requests are posted as to other queue pairs.

use super::completion_queue::CompletionQueue;
use super::memory::ProtectionDomain;
use super::raw::QpInitAttrEx;
use super::{create, sys};

/// Distances in front of a context: of the size of the table, and of the call.
const SIZE_BEFORE: usize = 8;
const CALL_BEFORE: usize = 56;
/// In `abi_compat`: there is a table.
const IS_EXTENDED: usize = usize::MAX;

/// Which fields of the attributes are set: the protection domain and the operations.
const FIELDS: u32 = 1 | 1 << 6;

/// Operations of send work requests, as a bit mask of `enum ibv_qp_create_send_ops_flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operations(u64);

impl Operations {
    /// RDMA WRITE.
    pub const WRITE: Self = Self(1);
    /// RDMA WRITE with and without immediate data.
    pub const WRITE_AND_IMM: Self = Self(1 | 1 << 1);
    /// RDMA READ.
    pub const READ: Self = Self(1 << 4);
}

type CreateQpEx = unsafe extern "C" fn(*mut sys::ibv_context, *mut QpInitAttrEx) -> *mut sys::ibv_qp;

/// A queue pair for these operations, and the capacities that it is granted; `None` if the library or the driver lacks the call, or
/// refuses.
pub(super) fn create(
    domain: &ProtectionDomain,
    queue: &CompletionQueue,
    cap: sys::ibv_qp_cap,
    operations: Operations,
) -> Option<(*mut sys::ibv_qp, sys::ibv_qp_cap)> {
    let context = domain.context.raw();
    let call = call_of(context)?;
    let mut attr = QpInitAttrEx::default();
    (attr.send_cq, attr.recv_cq, attr.pd) = (queue.raw, queue.raw, domain.raw());
    (attr.cap, attr.qp_type) = (cap, sys::ibv_qp_type::IBV_QPT_RC);
    (attr.comp_mask, attr.send_ops_flags) = (FIELDS, operations.0);
    // SAFETY: the domain and the queue are live and of this context, and the attributes are a whole struct.
    let raw = create::try_create(|| unsafe { call(context, &raw mut attr) }).ok()?;
    Some((raw, attr.cap))
}

/// The call of the context's table, if it has a table that reaches so far.
fn call_of(context: *mut sys::ibv_context) -> Option<CreateQpEx> {
    // SAFETY: an open context.
    if unsafe { (*context).abi_compat } as usize != IS_EXTENDED {
        return None;
    }
    let before = |distance: usize| context.cast::<u8>().wrapping_sub(distance);
    // SAFETY: the value of `abi_compat` says that the size of the table stands here.
    let size = unsafe { before(SIZE_BEFORE).cast::<usize>().read() };
    if size < CALL_BEFORE + size_of::<sys::ibv_context>() {
        return None;
    }
    // SAFETY: the table reaches so far in front of the context; a function of this signature or NULL.
    unsafe { before(CALL_BEFORE).cast::<Option<CreateQpEx>>().read() }
}
