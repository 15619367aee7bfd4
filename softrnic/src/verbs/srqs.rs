//! Shared receive queues.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::export::export;
use crate::abi::srq::{ATTR_LIMIT, SrqAttr, SrqInitAttr};
use crate::abi::types::{self, RecvWr};
use crate::objects::pd::Pd;
use crate::objects::srq::Srq;
use crate::verbs::attach::engine_of;
use crate::verbs::post::elements;
use crate::verbs::{code, object, pointer, shared};

unsafe extern "C" fn create_srq(pd: *mut types::Pd, init: *mut SrqInitAttr) -> *mut types::Srq {
    pointer(|| {
        // SAFETY: the caller's handle.
        let pd: Arc<Pd> = unsafe { shared(pd) };
        // SAFETY: the caller's structure.
        let init = unsafe { &mut *init };
        let made = engine_of(pd.context.fabric)?.create_srq(&pd, init.srq_context, init.attr)?;
        (init.attr.max_wr, init.attr.max_sge) = (made.max_wr, made.max_sge);
        let handle = made.as_abi();
        // Given back by `destroy_srq`.
        let _ = Arc::into_raw(made);
        Ok(handle)
    })
}
export!("ibv_create_srq", "IBVERBS_1.1", create_srq);

/// The size stays as it was made, as with mlx5.
unsafe extern "C" fn modify_srq(handle: *mut types::Srq, attr: *const SrqAttr, mask: c_int) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let srq: &Srq = unsafe { object(handle) };
        engine_of(srq.pd.context.fabric)?;
        srq.pd.context.require_alive()?;
        match mask {
            0 => Ok(()),
            // SAFETY: the caller's structure.
            ATTR_LIMIT => srq.arm(unsafe { (*attr).srq_limit }),
            _ => Err(libc::EINVAL),
        }
    })
}
export!("ibv_modify_srq", "IBVERBS_1.1", modify_srq);

unsafe extern "C" fn query_srq(handle: *mut types::Srq, out: *mut SrqAttr) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let srq: &Srq = unsafe { object(handle) };
        engine_of(srq.pd.context.fabric)?;
        // SAFETY: the caller's structure.
        unsafe { out.write(srq.attributes()) };
        Ok(())
    })
}
export!("ibv_query_srq", "IBVERBS_1.1", query_srq);

unsafe extern "C" fn destroy_srq(handle: *mut types::Srq) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let srq: &Srq = unsafe { object(handle) };
        if srq.pd.context.is_refusing() {
            return Ok(());
        }
        if let Ok(engine) = engine_of(srq.pd.context.fabric) {
            if srq.users.load(SeqCst) != 0 {
                return Err(libc::EBUSY);
            }
            engine.destroy_srq(srq);
            // SAFETY: takes back what `create_srq` leaked.
            drop(unsafe { Arc::from_raw(handle.cast::<Srq>()) });
        }
        Ok(())
    })
}
export!("ibv_destroy_srq", "IBVERBS_1.1", destroy_srq);

/// Reached through the context's table.
pub(crate) unsafe extern "C" fn post_srq_recv(
    handle: *mut types::Srq,
    list: *mut RecvWr,
    bad: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: the caller's handle.
    let srq: &Srq = unsafe { object(handle) };
    let mut at = list;
    let rc = code(|| {
        engine_of(srq.pd.context.fabric)?;
        let _posting = srq.posting.while_in("the shared receive queue of a thread domain");
        while !at.is_null() {
            // SAFETY: the caller's structure.
            let wr = unsafe { *at };
            // SAFETY: the caller's array.
            srq.post(wr.wr_id, unsafe { elements(wr.sg_list, wr.num_sge) }?)?;
            at = wr.next;
        }
        Ok(())
    });
    if rc != 0 {
        // SAFETY: the caller's structure.
        unsafe { bad.write(at) };
    }
    rc
}
