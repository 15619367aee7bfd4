//! Extended completion queues: calls that inlined wrappers make through the context, and through
//! the queue.

use std::io::Error;
use std::mem::transmute_copy;
use std::ptr;

use super::verbs::*;

/// `struct ibv_cq_init_attr_ex`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct CqInit {
    pub cqe: u32,
    pub user: Ptr,
    pub channel: Ptr,
    pub vector: u32,
    pub wc_flags: u64,
    pub fields: u32,
    pub flags: u32,
    pub parent_domain: Ptr,
}

pub const STANDARD: u64 = 0x7f;
pub const INIT: CqInit = CqInit {
    cqe: 64,
    user: ptr::null_mut(),
    channel: ptr::null_mut(),
    vector: 0,
    wc_flags: STANDARD,
    fields: 0,
    flags: 0,
    parent_domain: ptr::null_mut(),
};

/// Makes a completion queue by the call that stands 120 bytes in front of the context.
pub fn create(context: Ptr, init: &CqInit) -> Result<*mut Cq, i32> {
    // SAFETY: an open context has a table in front of it, with a function of this type in this
    // place.
    let cq = unsafe {
        let call: extern "C" fn(Ptr, *const CqInit) -> *mut Cq =
            transmute_copy(&*context.cast::<u8>().sub(120).cast::<Ptr>());
        call(context, init)
    };
    if cq.is_null() { Err(Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(cq) }
}

/// The function that an extended queue has at byte `at`, called with the queue.
pub fn call<R>(cq: *mut Cq, at: usize) -> R {
    // SAFETY: the functions from byte 152 on take the queue alone; their results are the callers'
    // word.
    unsafe {
        let call: extern "C" fn(*mut Cq) -> R =
            transmute_copy(&*cq.cast::<u8>().add(at).cast::<Ptr>());
        call(cq)
    }
}

pub fn start_poll(cq: *mut Cq) -> i32 {
    let attr = 0u32;
    // SAFETY: as above, with the structure of this call.
    unsafe {
        let call: extern "C" fn(*mut Cq, *const u32) -> i32 =
            transmute_copy(&*cq.cast::<u8>().add(144).cast::<Ptr>());
        call(cq, &attr)
    }
}

pub fn next_poll(cq: *mut Cq) -> i32 {
    call(cq, 152)
}

pub fn end_poll(cq: *mut Cq) {
    call(cq, 160)
}

/// Status and `wr_id` of the completion that is looked at.
pub fn head(cq: *mut Cq) -> (u32, u64) {
    // SAFETY: an extended queue has them there.
    unsafe { (*cq.cast::<u8>().add(132).cast(), *cq.cast::<u8>().add(136).cast()) }
}
