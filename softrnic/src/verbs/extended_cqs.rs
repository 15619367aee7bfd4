//! Extended completion queues: completions are looked at one after the other, field by field.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::abi::types;
use crate::abi::types::{
    Calls, CqInitAttrEx, CqInitAttrExLong, HAS_FLAGS, HAS_PARENT_DOMAIN, SINGLE_THREADED,
    STANDARD_FLAGS, Wc, call,
};
use crate::drivers::table::Verb;
use crate::engine::receive::poll_one;
use crate::objects::context::Pd;
use crate::objects::cq::Cq;
use crate::verbs::engine::engine_of;
use crate::verbs::queues::{CqKind, make_cq};
use crate::verbs::{context, object, pointer, shared};

/// Through `verbs_context`. Time stamps, VLANs and tags are not known here.
pub(crate) unsafe extern "C" fn create_cq_ex(
    handle: *mut types::Context,
    attr: *const CqInitAttrEx,
) -> *mut types::Cq {
    pointer(|| {
        // SAFETY: the caller's handle.
        unsafe { context(handle) }?.fabric.settings.driver.require(Verb::CreateCqEx)?;
        // SAFETY: the caller's structure; the mirror is no longer than the shortest in use.
        let attr = unsafe { &*attr };
        let flags = if attr.comp_mask & HAS_FLAGS != 0 { attr.flags } else { 0 };
        let fields = HAS_FLAGS | HAS_PARENT_DOMAIN;
        if attr.wc_flags & !STANDARD_FLAGS != 0
            || attr.comp_mask & !fields != 0
            || flags & !SINGLE_THREADED != 0
        {
            return Err(libc::EOPNOTSUPP);
        }
        let is_single_threaded = flags & SINGLE_THREADED != 0;
        if is_single_threaded {
            // SAFETY: the caller's handle.
            unsafe { context(handle) }?.fabric.settings.require_thread_domains()?;
        }
        let has_domain = attr.comp_mask & HAS_PARENT_DOMAIN != 0;
        // SAFETY: the caller's structure, which has this field.
        let parent_domain = if has_domain { Some(unsafe { domain_of(attr) }?) } else { None };
        let sizes = (i64::from(attr.cqe), attr.comp_vector);
        let kind = CqKind { calls: calls(), is_single_threaded, parent_domain };
        // SAFETY: the caller's handles.
        unsafe { make_cq(handle, sizes, (attr.cq_context, attr.channel), kind) }
    })
}

/// The parent domain that the queue is to be in; EINVAL if it is none.
///
/// # Safety
/// `attr` is the beginning of the whole structure.
unsafe fn domain_of(attr: *const CqInitAttrEx) -> Result<Arc<Pd>, i32> {
    // SAFETY: by the caller.
    let handle = unsafe { (*attr.cast::<CqInitAttrExLong>()).parent_domain };
    if handle.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's handle.
    Some(unsafe { shared::<Pd, _>(handle) }).filter(|pd| pd.is_parent()).ok_or(libc::EINVAL)
}

fn calls() -> Calls {
    let mut calls = [0; _];
    calls[call::START_POLL] = start_poll as *const () as usize;
    calls[call::NEXT_POLL] = next_poll as *const () as usize;
    calls[call::END_POLL] = end_poll as *const () as usize;
    calls[call::OPCODE] = read_opcode as *const () as usize;
    calls[call::VENDOR_ERR] = read_vendor_err as *const () as usize;
    calls[call::BYTE_LEN] = read_byte_len as *const () as usize;
    calls[call::IMM_DATA] = read_imm_data as *const () as usize;
    calls[call::QP_NUM] = read_qp_num as *const () as usize;
    calls[call::SRC_QP] = read_src_qp as *const () as usize;
    calls[call::WC_FLAGS] = read_wc_flags as *const () as usize;
    calls[call::SLID] = read_slid as *const () as usize;
    calls[call::SL] = read_sl as *const () as usize;
    calls[call::DLID_PATH_BITS] = read_dlid_path_bits as *const () as usize;
    calls
}

/// Takes the next completion. ENOENT: there is none.
fn take(cq: &Cq) -> c_int {
    let Ok(engine) = engine_of(cq.context.fabric) else { return libc::ENODEV };
    let work = || {
        engine.faults.on_poll_cq(cq.context.device.index)?;
        poll_one(engine, cq).ok_or(libc::ENOENT)
    };
    match catch_unwind(AssertUnwindSafe(work)).unwrap_or(Err(libc::EIO)) {
        Ok(wc) => {
            cq.look_at(wc);
            0
        }
        Err(errno) => errno,
    }
}

/// Until the matching `end_poll` no other thread polls so, unless it finds nothing.
unsafe extern "C" fn start_poll(handle: *mut types::Cq, attr: *const u32) -> c_int {
    // SAFETY: the caller's structure, a mask of extensions.
    if unsafe { attr.as_ref() }.is_some_and(|mask| *mask != 0) {
        return libc::EINVAL;
    }
    // SAFETY: the caller's handle.
    let cq: &Cq = unsafe { object(handle) };
    cq.begin_look();
    let rc = take(cq);
    cq.count_poll(rc == 0, !cq.polling.is_promised());
    if rc != 0 {
        cq.end_look();
    }
    rc
}

unsafe extern "C" fn next_poll(handle: *mut types::Cq) -> c_int {
    // SAFETY: the caller's handle.
    take(unsafe { object(handle) })
}

unsafe extern "C" fn end_poll(handle: *mut types::Cq) {
    // SAFETY: the caller's handle.
    unsafe { object::<Cq, _>(handle) }.end_look();
}

/// `read!(read_field: type = field)`: what the completion that is looked at has there.
macro_rules! read {
    ($($name:ident: $ty:ty = $field:ident;)*) => {$(
        unsafe extern "C" fn $name(handle: *mut types::Cq) -> $ty {
            // SAFETY: the caller's handle.
            let wc: Wc = unsafe { object::<Cq, _>(handle) }.looked_at();
            <$ty>::from(wc.$field)
        }
    )*};
}

read! {
    read_opcode: u32 = opcode;
    read_vendor_err: u32 = vendor_err;
    read_byte_len: u32 = byte_len;
    read_imm_data: u32 = imm_data;
    read_qp_num: u32 = qp_num;
    read_src_qp: u32 = src_qp;
    read_wc_flags: u32 = wc_flags;
    read_slid: u32 = slid;
    read_sl: u8 = sl;
    read_dlid_path_bits: u8 = dlid_path_bits;
}
