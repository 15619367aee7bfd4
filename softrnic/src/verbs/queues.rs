//! Completion queues and queue pairs.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::consts::qp_state;
use crate::abi::cq_ex::Calls;
use crate::abi::export::export;
use crate::abi::init_attr_ex::{ALL_OPERATIONS, HAS_OPERATIONS, HAS_PD, QpInitAttrEx};
use crate::abi::types::{self, QpAttr, QpInitAttr};
use crate::drivers::driver::Verb;
use crate::engine::modify::modify;
use crate::host::lock::lock;
use crate::limits::MAX_CQE;
use crate::objects::channel::Channel;
use crate::objects::cq::Cq;
use crate::objects::cq_request::CqRequest;
use crate::objects::pd::Pd;
use crate::objects::qp::Qp;
use crate::objects::qp_request::QpRequest;
use crate::objects::srq::Srq;
use crate::process::commands::Command;
use crate::verbs::attach::engine_of;
use crate::verbs::extended_qps;
use crate::verbs::{code, context, object, pointer, shared};

pub(super) unsafe extern "C" fn create_cq(
    handle: *mut types::Context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut types::CompChannel,
    comp_vector: c_int,
) -> *mut types::Cq {
    let sizes = (i64::from(cqe), comp_vector as u32);
    // SAFETY: the caller's handles.
    pointer(|| unsafe { make_cq(handle, sizes, (cq_context, channel), CqKind::default()) })
}
export!("ibv_create_cq", "IBVERBS_1.1", create_cq);

/// What `ibv_create_cq_ex` may ask for beyond `ibv_create_cq`.
#[derive(Default)]
pub(super) struct CqKind {
    /// All 0 if it is not an extended one.
    pub(super) calls: Calls,
    pub(super) is_single_threaded: bool,
    pub(super) parent_domain: Option<Arc<Pd>>,
}

/// A completion queue for so many completions, on this completion vector; with the application's word for it and a channel.
///
/// # Safety
/// `handle` and the channel are the caller's handles, or the channel is NULL.
pub(super) unsafe fn make_cq(
    handle: *mut types::Context,
    (cqe, comp_vector): (i64, u32),
    (cq_context, channel): (*mut c_void, *mut types::CompChannel),
    kind: CqKind,
) -> Result<*mut types::Cq, i32> {
    // SAFETY: the caller's handle.
    let context = unsafe { context(handle) }?;
    let cqe = u32::try_from(cqe).ok().filter(|n| (1..=MAX_CQE).contains(n)).ok_or(libc::EINVAL)?;
    if comp_vector != 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's handle, or NULL; it may not go before the CQ (EBUSY).
    let channel: Option<&'static Channel> = (!channel.is_null()).then(|| unsafe { object(channel) });
    let fabric = context.fabric;
    let CqKind { calls, is_single_threaded, parent_domain } = kind;
    let requested = CqRequest { cqe, cq_context, channel, calls, is_single_threaded, parent_domain };
    let cq = engine_of(fabric)?.create_cq(context, requested)?;
    fabric.count_command(Command::CreateCq);
    let handle = cq.as_abi();
    // Given back by `destroy_cq`.
    let _ = Arc::into_raw(cq);
    Ok(handle)
}

unsafe extern "C" fn resize_cq(handle: *mut types::Cq, cqe: c_int) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let cq: &Cq = unsafe { object(handle) };
        engine_of(cq.context.fabric)?;
        cq.context.require_alive()?;
        cq.context.fabric.settings.driver.require(Verb::ResizeCq)?;
        cq.resize(u32::try_from(cqe).ok().filter(|n| (1..=MAX_CQE).contains(n)).ok_or(libc::EINVAL)?)
    })
}
export!("ibv_resize_cq", "IBVERBS_1.1", resize_cq);

pub(super) unsafe extern "C" fn destroy_cq(handle: *mut types::Cq) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let cq: &Cq = unsafe { object(handle) };
        if cq.context.is_refusing() {
            return Ok(());
        }
        if let Ok(engine) = engine_of(cq.context.fabric) {
            engine.destroy_cq(cq)?;
            engine.fabric.count_command(Command::DestroyCq);
            // SAFETY: takes back what `create_cq` leaked.
            drop(unsafe { Arc::from_raw(handle.cast::<Cq>()) });
        }
        Ok(())
    })
}
export!("ibv_destroy_cq", "IBVERBS_1.1", destroy_cq);

pub(super) unsafe extern "C" fn create_qp(pd: *mut types::Pd, init: *mut QpInitAttr) -> *mut types::Qp {
    // SAFETY: the caller's structure, of 64 bytes in every header.
    pointer(|| unsafe { make_qp(pd, &mut *init, None) })
}
export!("ibv_create_qp", "IBVERBS_1.1", create_qp);

/// Through `verbs_context`. Of the fields behind the mask those of the protection domain and the operations are known.
pub(crate) unsafe extern "C" fn create_qp_ex(handle: *mut types::Context, attr: *mut QpInitAttrEx) -> *mut types::Qp {
    pointer(|| {
        // SAFETY: the caller's handle.
        unsafe { context(handle) }?.fabric.settings.driver.require(Verb::CreateQpEx)?;
        // SAFETY: the caller's structure.
        let attr = unsafe { &mut *attr };
        if attr.comp_mask & !(HAS_PD | HAS_OPERATIONS) != 0 || attr.comp_mask & HAS_PD == 0 || attr.pd.is_null() {
            return Err(if attr.comp_mask & HAS_PD == 0 { libc::EINVAL } else { libc::EOPNOTSUPP });
        }
        let operations = (attr.comp_mask & HAS_OPERATIONS != 0).then_some(attr.send_ops_flags);
        if operations.is_some_and(|wanted| wanted & !ALL_OPERATIONS != 0) {
            return Err(libc::EOPNOTSUPP);
        }
        let mut init = QpInitAttr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
        };
        // SAFETY: the caller's handle.
        let made = unsafe { make_qp(attr.pd, &mut init, operations) }?;
        attr.cap = init.cap;
        Ok(made)
    })
}

/// A queue pair for these operations; `None`: for all.
///
/// # Safety
/// `pd` and the queues are the caller's handles.
unsafe fn make_qp(pd: *mut types::Pd, init: &mut QpInitAttr, operations: Option<u64>) -> Result<*mut types::Qp, i32> {
    // SAFETY: the caller's handle.
    let pd: Arc<Pd> = unsafe { shared(pd) };
    let engine = engine_of(pd.context.fabric)?;
    if init.send_cq.is_null() || init.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's handles.
    let (send_cq, recv_cq): (Arc<Cq>, Arc<Cq>) = unsafe { (shared(init.send_cq), shared(init.recv_cq)) };
    // SAFETY: as above, or NULL.
    let srq: Option<Arc<Srq>> = (!init.srq.is_null()).then(|| unsafe { shared(init.srq) });
    let device = pd.context.device.index;
    let is_here = |queue: &Srq| queue.pd.context.device.index == device;
    let are_here = send_cq.context.device.index == device && recv_cq.context.device.index == device;
    if !are_here || !srq.as_deref().is_none_or(is_here) {
        return Err(libc::EINVAL);
    }
    let signal_all = init.sq_sig_all != 0;
    let (qp_context, cap, qp_type) = (init.qp_context, init.cap, init.qp_type);
    let calls = operations.map_or([0; _], |_| extended_qps::calls());
    let request = QpRequest { qp_context, send_cq, recv_cq, srq, cap, qp_type, signal_all, operations, calls };
    let qp = engine.create_qp(&pd, request)?;
    engine.fabric.count_command(Command::CreateQp);
    init.cap = qp.cap;
    let handle = qp.as_abi();
    // Given back by `destroy_qp`.
    let _ = Arc::into_raw(qp);
    Ok(handle)
}

pub(super) unsafe extern "C" fn destroy_qp(handle: *mut types::Qp) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let qp: &Qp = unsafe { object(handle) };
        if qp.pd.context.is_refusing() {
            return Ok(());
        }
        if let Ok(engine) = engine_of(qp.fabric) {
            engine.destroy_qp(qp);
            engine.fabric.count_command(Command::DestroyQp);
            // SAFETY: takes back what `create_qp` leaked.
            drop(unsafe { Arc::from_raw(handle.cast::<Qp>()) });
        }
        Ok(())
    })
}
export!("ibv_destroy_qp", "IBVERBS_1.1", destroy_qp);

pub(super) unsafe extern "C" fn modify_qp(handle: *mut types::Qp, attr: *const QpAttr, mask: c_int) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let qp: &Qp = unsafe { object(handle) };
        let engine = engine_of(qp.fabric)?;
        // SAFETY: the caller's structure; the mirror is no longer than the shortest in use.
        modify(engine, qp, unsafe { &*attr }, mask)?;
        engine.fabric.count_command(Command::ModifyQp);
        Ok(())
    })
}
export!("ibv_modify_qp", "IBVERBS_1.1", modify_qp);

unsafe extern "C" fn query_qp(handle: *mut types::Qp, attr: *mut QpAttr, _mask: c_int, init: *mut QpInitAttr) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let qp: &Qp = unsafe { object(handle) };
        if qp.fabric.is_gone() {
            return Err(libc::ENODEV);
        }
        qp.fabric.settings.driver.require(Verb::QueryQp)?;
        let mut known = *lock(&qp.attributes);
        known.qp_state = qp.slot.state.load(SeqCst);
        known.cur_qp_state = known.qp_state;
        {
            // As far as they have come.
            let queue = lock(&qp.send);
            known.sq_psn = queue.link.psn;
            known.sq_draining = u8::from(known.qp_state == qp_state::SQD && queue.is_under_way());
        }
        known.rq_psn = qp.slot.expected_psn.load(SeqCst);
        qp.abi.state.store(known.qp_state, SeqCst);
        // SAFETY: the caller's structure; the mirror is no longer than the shortest in use.
        unsafe { attr.write(known) };
        let made = QpInitAttr {
            qp_context: qp.abi.qp_context,
            send_cq: qp.abi.send_cq,
            recv_cq: qp.abi.recv_cq,
            srq: qp.abi.srq,
            cap: qp.cap,
            qp_type: qp.abi.qp_type,
            sq_sig_all: c_int::from(qp.signal_all),
        };
        // SAFETY: the caller's structure, of 64 bytes in every header.
        unsafe { init.write(made) };
        Ok(())
    })
}
export!("ibv_query_qp", "IBVERBS_1.1", query_qp);
