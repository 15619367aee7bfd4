//! `ibv_create_qp_ex`, which informs a driver of the operations of a queue pair.
//!
//! Otherwise mlx5 makes each entry of a send queue large enough for the largest operation, four
//! times the size of a write. Work requests are posted like on other queue pairs.

use super::completion_queue::CompletionQueue;
use super::memory::ProtectionDomain;
use super::{create, extended_call, sys};

/// Which fields of the attributes are set: the protection domain and the operations.
const FIELDS: u32 = sys::IBV_QP_INIT_ATTR_PD | sys::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;

/// Operations of send work requests, as a bit mask of `enum ibv_qp_create_send_ops_flags`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operations(u64);

impl Operations {
    /// RDMA WRITE.
    pub const WRITE: Self = Self(sys::IBV_QP_EX_WITH_RDMA_WRITE);
    /// RDMA WRITE with and without immediate data.
    pub const WRITE_AND_IMM: Self =
        Self(sys::IBV_QP_EX_WITH_RDMA_WRITE | sys::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM);
    /// RDMA READ.
    pub const READ: Self = Self(sys::IBV_QP_EX_WITH_RDMA_READ);
}

type CreateQpEx =
    unsafe extern "C" fn(*mut sys::ibv_context, *mut sys::ibv_qp_init_attr_ex) -> *mut sys::ibv_qp;

/// Creates a queue pair in `pd`, which is `domain` or a parent domain of it, for these operations.
/// Returns it with its granted capacities, or `None` if the library or the driver lacks the
/// function, or refuses.
pub(super) fn create(
    domain: &ProtectionDomain,
    pd: *mut sys::ibv_pd,
    queue: &CompletionQueue,
    cap: sys::ibv_qp_cap,
    operations: Operations,
) -> Option<(*mut sys::ibv_qp, sys::ibv_qp_cap)> {
    let context = domain.context.raw();
    // SAFETY: the context is open, and libibverbs' header declares a function of this type there.
    let call = unsafe { extended_call::find::<CreateQpEx>(context, extended_call::CREATE_QP_EX) }?;
    // SAFETY: a struct of numbers and pointers, for which zero is valid.
    let mut attr: sys::ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.send_cq, attr.recv_cq, attr.pd) = (queue.raw, queue.raw, pd);
    (attr.cap, attr.qp_type) = (cap, sys::IBV_QPT_RC);
    (attr.comp_mask, attr.send_ops_flags) = (FIELDS, operations.0);
    // SAFETY: the domain and the queue are live and of this context, and the attributes are a whole
    // struct.
    let raw = create::try_create(|| unsafe { call(context, &raw mut attr) }).ok()?;
    Some((raw, attr.cap))
}
