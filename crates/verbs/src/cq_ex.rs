//! `ibv_create_cq_ex`, which makes completion queues for one thread at a time. Their completions
//! are read one after the other, without a lock.

#![deny(clippy::disallowed_methods)]

use super::context::Context;
use super::queue_failure::QueueFailure;
use super::status::Status;
use super::{create, extended_call, sys};
use libc::c_int;
use std::sync::Arc;

type CreateCqEx = unsafe extern "C" fn(
    *mut sys::ibv_context,
    *mut sys::ibv_cq_init_attr_ex,
) -> *mut sys::ibv_cq_ex;

/// A completion queue for one thread at a time.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExtendedQueue {
    raw: *mut sys::ibv_cq_ex,
}

const NO_OPTIONS: &sys::ibv_poll_cq_attr = &sys::ibv_poll_cq_attr { comp_mask: 0 };

/// Creates a queue for one thread at a time with space for at least `entries` completions. Returns
/// `None` if the library or the driver lacks such queues, or refuses.
pub(super) fn create(
    context: &Context,
    entries: u32,
    failure: &Arc<QueueFailure>,
) -> Option<ExtendedQueue> {
    let raw = context.raw();
    // SAFETY: the context is open, and libibverbs' header declares a function of this type there.
    let call = unsafe { extended_call::find::<CreateCqEx>(raw, extended_call::CREATE_CQ_EX) }?;
    // SAFETY: a struct of numbers and pointers, for which zero is valid.
    let mut attr: sys::ibv_cq_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.cqe, attr.cq_context) = (entries, failure.as_context());
    attr.wc_flags = sys::IBV_WC_EX_WITH_IMM;
    (attr.comp_mask, attr.flags) =
        (sys::IBV_CQ_INIT_ATTR_MASK_FLAGS, sys::IBV_CREATE_CQ_ATTR_SINGLE_THREADED);
    // SAFETY: the context is open; there is no completion channel. `failure` lives as long as the
    // queue. The attributes are a whole struct.
    let raw = create::try_create(|| unsafe { call(raw, &raw mut attr) }).ok()?;
    Some(ExtendedQueue { raw })
}

impl ExtendedQueue {
    /// As an ordinary queue.
    pub(super) fn raw(self) -> *mut sys::ibv_cq {
        self.raw.cast()
    }

    /// Begins to poll. 0: there is a completion, which is read next; `ENOENT`: there is
    /// none; otherwise the queue has failed.
    ///
    /// # Safety
    /// The queue is live and exclusively borrowed.
    #[inline(always)]
    pub(super) unsafe fn start(self) -> c_int {
        // SAFETY: by the caller. The device has set the functions.
        unsafe { ((*self.raw).start_poll)(self.raw, NO_OPTIONS) }
    }

    /// The status of the completion that is read.
    ///
    /// # Safety
    /// After [`Self::start`] or [`Self::next`] has returned 0.
    #[inline(always)]
    pub(super) unsafe fn status(self) -> Status {
        // SAFETY: by the caller.
        Status(unsafe { (*self.raw).status })
    }

    /// The id of its work request.
    ///
    /// # Safety
    /// As for [`Self::status`].
    #[inline(always)]
    pub(super) unsafe fn id(self) -> u64 {
        // SAFETY: by the caller.
        unsafe { (*self.raw).wr_id }
    }

    /// Its immediate data, in network byte order.
    ///
    /// # Safety
    /// As for [`Self::status`].
    #[inline(always)]
    pub(super) unsafe fn imm(self) -> u32 {
        // SAFETY: by the caller; the device has set the function that was asked for.
        unsafe { ((*self.raw).read_imm_data)(self.raw) }
    }

    /// The completion that is read: its id and status; its immediate data if it succeeded; the
    /// vendor's error code if it failed.
    ///
    /// # Safety
    /// As for [`Self::status`].
    pub(super) unsafe fn completion(self) -> sys::ibv_wc {
        // SAFETY: a struct of numbers. The rest by the caller.
        unsafe {
            let mut wc: sys::ibv_wc = std::mem::zeroed();
            (wc.wr_id, wc.status) = (self.id(), self.status().0);
            if wc.status != 0 {
                wc.vendor_err = ((*self.raw).read_vendor_err)(self.raw);
            } else {
                wc.imm_data_invalidated_rkey_union.imm_data = self.imm();
            }
            wc
        }
    }

    /// Goes to the next completion. Returns as [`Self::start`].
    ///
    /// # Safety
    /// As for [`Self::completion`].
    #[inline(always)]
    pub(super) unsafe fn next(self) -> c_int {
        // SAFETY: by the caller.
        unsafe { ((*self.raw).next_poll)(self.raw) }
    }

    /// Ends what [`Self::start`] began.
    ///
    /// # Safety
    /// As for [`Self::completion`], or `next` has found nothing.
    #[inline(always)]
    pub(super) unsafe fn end(self) {
        // SAFETY: by the caller.
        unsafe { ((*self.raw).end_poll)(self.raw) };
    }
}
