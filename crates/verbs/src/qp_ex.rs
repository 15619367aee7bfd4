//! `ibv_create_qp_ex`, which informs a driver of the operations of a queue pair.
//!
//! Otherwise mlx5 makes each entry of a send queue large enough for the largest operation, four
//! times the size of a write.
//!
//! Such a queue pair also has a function for each operation (`ibv_wr_start` and others). A driver
//! need not find out what a `struct ibv_send_wr` asks for.

#![deny(clippy::disallowed_methods)]

use super::completion_queue::CompletionQueue;
use super::memory::ProtectionDomain;
use super::{create, extended_call, sys};
use libc::{c_int, c_uint};
use std::ptr::{self, NonNull};

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

/// A queue pair whose work requests are posted by a function for each operation.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExtendedQueuePair(NonNull<sys::ibv_qp_ex>);

impl ExtendedQueuePair {
    /// The queue pair `raw`, if it can.
    ///
    /// # Safety
    /// It is live and in `domain`.
    pub(super) unsafe fn of(domain: &ProtectionDomain, raw: *mut sys::ibv_qp) -> Option<Self> {
        // SAFETY: a live queue pair.
        let found = unsafe { domain.context.library.ibv_qp_to_qp_ex?(raw) };
        NonNull::new(found).map(Self)
    }

    /// Begins a post, which has one doorbell. Operations that the queue pair was created for
    /// follow: each begins, is named, and gets its data. Their memory lives until the end.
    ///
    /// # Safety
    /// The queue pair is live and exclusively borrowed, up to [`Self::complete`].
    #[inline(always)]
    pub(super) unsafe fn start(self) {
        // SAFETY: by the caller. The functions exist for the operations of the queue pair.
        unsafe { ((*self.0.as_ptr()).wr_start)(self.0.as_ptr()) };
    }

    /// Ends a post. Returns 0 or the driver's error.
    ///
    /// # Safety
    /// After [`Self::start`].
    #[inline(always)]
    pub(super) unsafe fn complete(self) -> c_int {
        // SAFETY: by the caller.
        unsafe { ((*self.0.as_ptr()).wr_complete)(self.0.as_ptr()) }
    }

    /// Posts the work requests of a chain, as `ibv_post_send` does.
    ///
    /// # Safety
    /// As for `ibv_post_send`; the operations are RDMA WRITE and READ.
    pub(super) unsafe fn post(self, mut next: *const sys::ibv_send_wr) -> c_int {
        // SAFETY: by the caller.
        unsafe {
            self.start();
            while let Some(request) = next.as_ref() {
                self.add(request);
                next = request.next;
            }
            self.complete()
        }
    }

    /// Adds a work request of a chain.
    ///
    /// # Safety
    /// As for [`Self::post`].
    unsafe fn add(self, request: &sys::ibv_send_wr) {
        // SAFETY: by the caller. An operation has set the fields that it needs, and its elements
        // live.
        unsafe {
            self.begin(request.wr_id, request.send_flags & !sys::IBV_SEND_INLINE);
            let sys::rdma_t { rkey, remote_addr } = request.wr.rdma;
            match request.opcode {
                sys::IBV_WR_RDMA_WRITE_WITH_IMM => {
                    let imm = request.imm_data_invalidated_rkey_union.imm_data;
                    self.write_imm(rkey, remote_addr, imm);
                }
                sys::IBV_WR_RDMA_WRITE => self.write(rkey, remote_addr),
                _ => ((*self.0.as_ptr()).wr_rdma_read)(self.0.as_ptr(), rkey, remote_addr),
            }
            match request.num_sge {
                0 => ((*self.0.as_ptr()).wr_set_sge_list)(self.0.as_ptr(), 0, ptr::null()),
                _ => self.data(&*request.sg_list, request.send_flags & sys::IBV_SEND_INLINE != 0),
            }
        }
    }

    /// Begins a work request with this id and these flags. An error is the result of the post.
    ///
    /// # Safety
    /// After [`Self::start`].
    #[inline(always)]
    pub(super) unsafe fn begin(self, id: u64, flags: c_uint) {
        // SAFETY: by the caller.
        unsafe { ((*self.0.as_ptr()).wr_id, (*self.0.as_ptr()).wr_flags) = (id, flags) };
    }

    /// The id of the latest work request.
    ///
    /// # Safety
    /// The queue pair is live and exclusively borrowed.
    pub(super) unsafe fn id(self) -> u64 {
        // SAFETY: by the caller.
        unsafe { (*self.0.as_ptr()).wr_id }
    }

    /// Makes it an RDMA WRITE.
    ///
    /// # Safety
    /// As for [`Self::begin`], which comes before.
    #[inline(always)]
    pub(super) unsafe fn write(self, rkey: u32, addr: u64) {
        // SAFETY: by the caller.
        unsafe { ((*self.0.as_ptr()).wr_rdma_write)(self.0.as_ptr(), rkey, addr) };
    }

    /// Makes it an RDMA WRITE with immediate data, which is in network byte order.
    ///
    /// # Safety
    /// As for [`Self::write`].
    #[inline(always)]
    pub(super) unsafe fn write_imm(self, rkey: u32, addr: u64, imm: u32) {
        // SAFETY: by the caller.
        unsafe { ((*self.0.as_ptr()).wr_rdma_write_imm)(self.0.as_ptr(), rkey, addr, imm) };
    }

    /// Sets its data, which is not empty.
    ///
    /// # Safety
    /// As for [`Self::begin`], after an operation; inline data can be read now.
    #[inline(always)]
    pub(super) unsafe fn data(
        self,
        &sys::ibv_sge { addr, length, lkey }: &sys::ibv_sge,
        is_inline: bool,
    ) {
        // SAFETY: by the caller.
        unsafe {
            if is_inline {
                let data = ptr::with_exposed_provenance_mut(addr as usize);
                ((*self.0.as_ptr()).wr_set_inline_data)(self.0.as_ptr(), data, length as usize);
            } else {
                ((*self.0.as_ptr()).wr_set_sge)(self.0.as_ptr(), lkey, addr, length);
            }
        }
    }
}
