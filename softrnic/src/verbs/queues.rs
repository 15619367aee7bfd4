//! Completion queues and queue pairs.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::export::export;
use crate::abi::types;
use crate::abi::types::{
    ALL_OPERATIONS, ATTR_LIMIT, Calls, HAS_ALLOCATORS, HAS_OPERATIONS, HAS_PD, HAS_PD_CONTEXT,
    ParentDomainInitAttr, QpAttr, QpInitAttr, QpInitAttrEx, RecvWr, SrqAttr, SrqInitAttr,
    Td as AbiTd, qp_state,
};
use crate::drivers::table::Verb;
use crate::engine::modify::modify;
use crate::host::lock;
use crate::limits::MAX_CQE;
use crate::objects::context::{Pd, Td};
use crate::objects::cq::{Channel, Cq, CqRequest};
use crate::objects::qp::{Qp, QpRequest};
use crate::objects::srq::Srq;
use crate::process::fabric::Command;
use crate::verbs::engine::engine_of;
use crate::verbs::post::elements;
use crate::verbs::{code, context, extended_qps, object, pointer, shared};

pub unsafe extern "C" fn create_cq(
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

/// A completion queue for so many completions, on this completion vector; with the application's
/// word for it and a channel.
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
    let cqe = (context.fabric.settings.library.cqe)(cqe)?;
    if comp_vector != 0 {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's handle, or NULL; it may not go before the CQ (EBUSY).
    let channel: Option<&'static Channel> =
        (!channel.is_null()).then(|| unsafe { object(channel) });
    let fabric = context.fabric;
    let CqKind { calls, is_single_threaded, parent_domain } = kind;
    let requested =
        CqRequest { cqe, cq_context, channel, calls, is_single_threaded, parent_domain };
    let cq = engine_of(fabric)?.create_cq(context, requested)?;
    cq.context.carry_out(Command::CreateCq);
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
        cq.resize(
            u32::try_from(cqe).ok().filter(|n| (1..=MAX_CQE).contains(n)).ok_or(libc::EINVAL)?,
        )
    })
}
export!("ibv_resize_cq", "IBVERBS_1.1", resize_cq);

pub unsafe extern "C" fn destroy_cq(handle: *mut types::Cq) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let cq: &Cq = unsafe { object(handle) };
        if cq.context.is_refusing() {
            return Ok(());
        }
        if let Ok(engine) = engine_of(cq.context.fabric) {
            engine.destroy_cq(cq)?;
            cq.context.carry_out(Command::DestroyCq);
            // SAFETY: takes back what `create_cq` leaked.
            drop(unsafe { Arc::from_raw(handle.cast::<Cq>()) });
        }
        Ok(())
    })
}
export!("ibv_destroy_cq", "IBVERBS_1.1", destroy_cq);

pub(super) unsafe extern "C" fn create_qp(
    pd: *mut types::Pd,
    init: *mut QpInitAttr,
) -> *mut types::Qp {
    // SAFETY: the caller's structure, of 64 bytes in every header.
    pointer(|| unsafe { make_qp(pd, &mut *init, None, None) })
}
export!("ibv_create_qp", "IBVERBS_1.1", create_qp);

/// Beneath a provider: `init` has what the program asks for, which is refused where there is less;
/// `real` the sizes that the provider has made of it.
///
/// # Safety
/// As for `ibv_create_qp`.
pub unsafe fn create_sized_qp(
    pd: *mut types::Pd,
    init: &mut QpInitAttr,
    real: types::QpCap,
) -> *mut types::Qp {
    // SAFETY: by the caller.
    pointer(|| unsafe { make_qp(pd, init, None, Some(real)) })
}

/// Through `verbs_context`. Of the fields behind the mask those of the protection domain and the
/// operations are known.
pub(crate) unsafe extern "C" fn create_qp_ex(
    handle: *mut types::Context,
    attr: *mut QpInitAttrEx,
) -> *mut types::Qp {
    pointer(|| {
        // SAFETY: the caller's handle.
        unsafe { context(handle) }?.fabric.settings.driver.require(Verb::CreateQpEx)?;
        // SAFETY: the caller's structure.
        let attr = unsafe { &mut *attr };
        if attr.comp_mask & !(HAS_PD | HAS_OPERATIONS) != 0
            || attr.comp_mask & HAS_PD == 0
            || attr.pd.is_null()
        {
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
        let made = unsafe { make_qp(attr.pd, &mut init, operations, None) }?;
        attr.cap = init.cap;
        Ok(made)
    })
}

/// A queue pair for these operations; `None`: for all. `real`: see [`create_sized_qp`].
///
/// # Safety
/// `pd` and the queues are the caller's handles.
unsafe fn make_qp(
    pd: *mut types::Pd,
    init: &mut QpInitAttr,
    operations: Option<u64>,
    real: Option<types::QpCap>,
) -> Result<*mut types::Qp, i32> {
    // SAFETY: the caller's handle.
    let pd: Arc<Pd> = unsafe { shared(pd) };
    let engine = engine_of(pd.context.fabric)?;
    if init.send_cq.is_null() || init.recv_cq.is_null() {
        return Err(libc::EINVAL);
    }
    // SAFETY: the caller's handles.
    let (send_cq, recv_cq): (Arc<Cq>, Arc<Cq>) =
        unsafe { (shared(init.send_cq), shared(init.recv_cq)) };
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
    let request = QpRequest {
        qp_context,
        send_cq,
        recv_cq,
        srq,
        cap,
        real,
        qp_type,
        signal_all,
        operations,
        calls,
    };
    let qp = engine.create_qp(&pd, request)?;
    pd.context.carry_out(Command::CreateQp);
    init.cap = qp.told;
    let handle = qp.as_abi();
    // Given back by `destroy_qp`.
    let _ = Arc::into_raw(qp);
    Ok(handle)
}

pub unsafe extern "C" fn destroy_qp(handle: *mut types::Qp) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let qp: &Qp = unsafe { object(handle) };
        if qp.pd.context.is_refusing() {
            return Ok(());
        }
        if let Ok(engine) = engine_of(qp.fabric) {
            engine.destroy_qp(qp);
            qp.pd.context.carry_out(Command::DestroyQp);
            // SAFETY: takes back what `create_qp` leaked.
            drop(unsafe { Arc::from_raw(handle.cast::<Qp>()) });
        }
        Ok(())
    })
}
export!("ibv_destroy_qp", "IBVERBS_1.1", destroy_qp);

pub unsafe extern "C" fn modify_qp(
    handle: *mut types::Qp,
    attr: *const QpAttr,
    mask: c_int,
) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let qp: &Qp = unsafe { object(handle) };
        let engine = engine_of(qp.fabric)?;
        // SAFETY: the caller's structure; the mirror is no longer than the shortest in use.
        modify(engine, qp, unsafe { &*attr }, mask)?;
        qp.pd.context.carry_out(Command::ModifyQp);
        Ok(())
    })
}
export!("ibv_modify_qp", "IBVERBS_1.1", modify_qp);

pub unsafe extern "C" fn query_qp(
    handle: *mut types::Qp,
    attr: *mut QpAttr,
    _mask: c_int,
    init: *mut QpInitAttr,
) -> c_int {
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
            cap: known.cap,
            qp_type: qp.abi.qp_type,
            sq_sig_all: c_int::from(qp.signal_all),
        };
        // SAFETY: the caller's structure, of 64 bytes in every header.
        unsafe { init.write(made) };
        Ok(())
    })
}
export!("ibv_query_qp", "IBVERBS_1.1", query_qp);

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
unsafe extern "C" fn modify_srq(
    handle: *mut types::Srq,
    attr: *const SrqAttr,
    mask: c_int,
) -> c_int {
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

/// Through `verbs_context`.
pub(crate) unsafe extern "C" fn alloc_td(
    handle: *mut types::Context,
    attr: *const u32,
) -> *mut AbiTd {
    pointer(|| {
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        context.fabric.settings.require_thread_domains()?;
        // SAFETY: the caller's structure, a mask of extensions.
        if unsafe { *attr } != 0 {
            return Err(libc::EINVAL);
        }
        let td = Td::new(context)?;
        td.context.take_doorbell();
        let handle = td.as_abi();
        // Given back by `dealloc_td`.
        let _ = Arc::into_raw(td);
        Ok(handle)
    })
}

/// Through `verbs_context`.
pub(crate) unsafe extern "C" fn dealloc_td(handle: *mut AbiTd) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let td: &Td = unsafe { object(handle) };
        if td.users.load(SeqCst) != 0 && !td.context.fabric.is_gone() {
            return Err(libc::EBUSY);
        }
        td.context.give_doorbell_back();
        // SAFETY: takes back what `alloc_td` leaked.
        drop(unsafe { Arc::from_raw(handle.cast::<Td>()) });
        Ok(())
    })
}

/// Through `verbs_context`. Given back by `dealloc_pd`.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    handle: *mut types::Context,
    attr: *const ParentDomainInitAttr,
) -> *mut types::Pd {
    pointer(|| {
        // SAFETY: the caller's handle.
        unsafe { context(handle) }?.fabric.settings.require_thread_domains()?;
        // SAFETY: the caller's structure; the mirror is what every form of it has.
        let attr = unsafe { &*attr };
        if attr.pd.is_null() || attr.comp_mask & !(HAS_ALLOCATORS | HAS_PD_CONTEXT) != 0 {
            return Err(libc::EINVAL);
        }
        if attr.comp_mask & HAS_ALLOCATORS != 0 {
            return Err(libc::EOPNOTSUPP);
        }
        // SAFETY: the caller's handles, or NULL.
        let (pd, td): (Arc<Pd>, Option<Arc<Td>>) =
            unsafe { (shared(attr.pd), (!attr.td.is_null()).then(|| shared(attr.td))) };
        let made = Pd::parent(&pd, td)?;
        let handle = made.as_abi();
        let _ = Arc::into_raw(made);
        Ok(handle)
    })
}
