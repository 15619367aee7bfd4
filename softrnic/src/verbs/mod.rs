//! The exported functions: pointers in, errno out, nothing decided here.
//!
//! Contract of every function: what the verbs interface demands of its caller – handles come from
//! the matching create call, are not destroyed yet, and structures are as long as their headers
//! say. That is what the `SAFETY` comments below mean by "the caller's handle" and "the caller's
//! structure".

#![allow(
    missing_docs,
    clippy::missing_safety_doc,
    reason = "the verbs interface says what each function does, and the contract is above"
)]

mod absent;
// Its tests run in either flavour.
#[cfg(any(feature = "tools", test))]
mod cm;
mod device;
mod engine;
mod extended_cqs;
mod extended_qps;
mod post;
#[cfg(feature = "tools")]
mod private;
mod queues;

pub use device::{
    ack_async_event, ack_cq_events, close_device, create_comp_channel, destroy_comp_channel,
    free_device_list, get_async_event, get_cq_event, get_device_index, get_device_list,
    open_device, query_device, query_gid_ex, query_gid_table, query_port_ex, req_notify_cq,
};
pub use post::{
    alloc_pd, dealloc_pd, dereg_mr, poll, post_recv, post_send, reg_dmabuf_mr, reg_mr_iova2,
};
pub use queues::{create_cq, create_sized_qp, destroy_cq, destroy_qp, modify_qp, query_qp};

use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::Arc;

use crate::abi::types;
use crate::host::set_errno;
use crate::objects::context::Context;

/// Runs a function that returns an errno value (0 is success). A panic must not reach the caller:
/// it becomes EIO.
fn code(work: impl FnOnce() -> Result<(), i32>) -> i32 {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code,
        Err(_) => libc::EIO,
    }
}

/// As [`code`], for functions that return -1 and set errno.
fn minus_one(work: impl FnOnce() -> Result<(), i32>) -> i32 {
    match code(work) {
        0 => 0,
        code => {
            set_errno(code);
            -1
        }
    }
}

/// As [`code`], for functions that return NULL and set errno. Code 0 is a failure that leaves errno
/// as it was.
fn pointer<T>(work: impl FnOnce() -> Result<*mut T, i32>) -> *mut T {
    let mut made = ptr::null_mut();
    match code(|| work().map(|p| made = p)) {
        0 => made,
        code => {
            set_errno(code);
            ptr::null_mut()
        }
    }
}

/// The context behind the application's pointer; ENODEV if this process may no longer use it.
///
/// # Safety
/// `context` is the caller's handle.
unsafe fn context(context: *const types::Context) -> Result<Arc<Context>, i32> {
    let container = Context::container(context);
    // SAFETY: the handle is backed by the `Arc` that `ibv_open_device` leaked; we borrow its count.
    let held = ManuallyDrop::new(unsafe { Arc::from_raw(container) });
    if held.fabric.is_gone() { Err(libc::ENODEV) } else { Ok(Arc::clone(&held)) }
}

/// Borrows the object whose first field the application's pointer refers to.
///
/// # Safety
/// `handle` is the caller's handle for an object of type `T`.
unsafe fn object<'a, T, A>(handle: *const A) -> &'a T {
    // SAFETY: by the caller; `T` is repr(C) with the public struct first.
    unsafe { &*handle.cast::<T>() }
}

/// Another reference to an object that the application holds by an `Arc` of ours.
///
/// # Safety
/// As for [`object`], and the object lives in an `Arc`.
unsafe fn shared<T, A>(handle: *const A) -> Arc<T> {
    // SAFETY: the handle is backed by a leaked `Arc`; we borrow its count.
    Arc::clone(&ManuallyDrop::new(unsafe { Arc::from_raw(handle.cast::<T>()) }))
}
