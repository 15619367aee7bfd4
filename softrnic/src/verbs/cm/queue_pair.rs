//! Queue pairs of identifiers, and the states that a connection brings them to.

use std::ffi::c_int;
use std::ptr;

use crate::abi::export::export;
use crate::abi::rdma_cm::CmId;
use crate::abi::types::{
    AhAttr, CompChannel, Cq, HAS_PD, Pd, Qp, QpAttr, QpCap, QpInitAttr, QpInitAttrEx, access,
    qp_attr as mask, qp_state,
};
use crate::host::{last_errno, lock};
use crate::process::fabric::Fabric;
use crate::verbs::cm::id::{Id, State};
use crate::verbs::cm::place::gid;
use crate::verbs::device::{create_comp_channel, destroy_comp_channel};
use crate::verbs::engine::engine;
use crate::verbs::queues::{create_cq, create_qp, create_qp_ex, destroy_cq, destroy_qp, modify_qp};
use crate::verbs::{minus_one, object};

const INIT: i32 = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
const RTR: i32 = mask::STATE
    | mask::AV
    | mask::PATH_MTU
    | mask::DEST_QPN
    | mask::RQ_PSN
    | mask::MAX_DEST_RD_ATOMIC
    | mask::MIN_RNR_TIMER;
const RTS: i32 = mask::STATE
    | mask::SQ_PSN
    | mask::TIMEOUT
    | mask::RETRY_CNT
    | mask::RNR_RETRY
    | mask::MAX_QP_RD_ATOMIC;

/// The attributes of a step of the identifier's queue pair, and their mask; EINVAL if the
/// identifier is not so far.
fn attributes(fabric: &Fabric, state: &State, to: u32) -> Result<(QpAttr, i32), i32> {
    let place = state.place.ok_or(libc::EINVAL)?;
    let terms = state.terms;
    let peer = state.peer.as_deref();
    match to {
        qp_state::INIT => {
            let reads = access::REMOTE_READ | access::REMOTE_ATOMIC;
            let wanted =
                access::REMOTE_WRITE | if terms.responder_resources == 0 { 0 } else { reads };
            // Nothing before there is a connection.
            let qp_access_flags = if peer.is_some() { wanted } else { 0 };
            Ok((
                QpAttr {
                    qp_state: to,
                    port_num: place.port as u8,
                    qp_access_flags,
                    ..QpAttr::default()
                },
                INIT,
            ))
        }
        qp_state::RTR => {
            let peer = peer.ok_or(libc::EINVAL)?;
            let word = |at: usize| u64::from_ne_bytes(std::array::from_fn(|i| peer.gid[at + i]));
            let (sgid_index, _) = gid(fabric, place).ok_or(libc::ENODATA)?;
            let ah_attr = AhAttr {
                dgid: [word(0), word(8)],
                sgid_index,
                hop_limit: 64,
                dlid: peer.lid,
                is_global: 1,
                port_num: place.port as u8,
                ..AhAttr::default()
            };
            let own_mtu =
                fabric.port(place.device, place.port).mtu.load(std::sync::atomic::Ordering::SeqCst);
            let attr = QpAttr {
                qp_state: to,
                path_mtu: own_mtu.min(u32::from(peer.mtu)),
                dest_qp_num: peer.qp_num,
                rq_psn: peer.psn,
                max_dest_rd_atomic: terms.responder_resources,
                ah_attr,
                ..QpAttr::default()
            };
            Ok((attr, RTR))
        }
        qp_state::RTS => {
            let attr = QpAttr {
                qp_state: to,
                sq_psn: terms.psn,
                timeout: state.timeout,
                retry_cnt: terms.retry_count,
                rnr_retry: terms.rnr_retry_count,
                max_rd_atomic: terms.initiator_depth,
                ..QpAttr::default()
            };
            Ok((attr, RTS))
        }
        _ => Err(libc::EINVAL),
    }
}

/// The queue pair of the identifier, if there is one, is brought to this state.
///
/// # Safety
/// `abi` is a live identifier.
unsafe fn step(abi: *mut CmId, state: &State, to: u32) -> Result<(), i32> {
    // SAFETY: by the caller.
    let qp = unsafe { (*abi).qp };
    if qp.is_null() {
        return Ok(());
    }
    let (attr, given) = attributes(engine()?.fabric, state, to)?;
    // SAFETY: a live queue pair.
    match unsafe { modify_qp(qp, &raw const attr, given) } {
        0 => Ok(()),
        code => Err(code),
    }
}

/// Brings the queue pair to RTS, when the peer is known.
///
/// # Safety
/// As for [`step`].
pub(super) unsafe fn connect(abi: *mut CmId, state: &State) -> Result<(), i32> {
    [qp_state::INIT, qp_state::RTR, qp_state::RTS].into_iter().try_for_each(|to| {
        // SAFETY: by the caller.
        unsafe { step(abi, state, to) }
    })
}

/// Brings the queue pair to ERR.
///
/// # Safety
/// As for [`step`].
pub(super) unsafe fn fail(abi: *mut CmId) {
    // SAFETY: by the caller; a live queue pair.
    unsafe {
        if !(*abi).qp.is_null() {
            let attr = QpAttr { qp_state: qp_state::ERR, ..QpAttr::default() };
            modify_qp((*abi).qp, &raw const attr, mask::STATE);
        }
    }
}

/// A completion queue for so many completions, with a channel.
///
/// # Safety
/// As for [`step`].
unsafe fn own_cq(abi: *mut CmId, count: u32) -> Result<(*mut CompChannel, *mut Cq), i32> {
    // SAFETY: by the caller.
    unsafe {
        let channel = create_comp_channel((*abi).verbs);
        if channel.is_null() {
            return Err(refused());
        }
        let cq = create_cq((*abi).verbs, count.max(1) as c_int, abi.cast(), channel, 0);
        if cq.is_null() {
            let code = refused();
            destroy_comp_channel(channel);
            return Err(code);
        }
        Ok((channel, cq))
    }
}

/// Completion queues for those that the application has not named. Where it fails, `forget_cqs`
/// gives back what there is.
///
/// # Safety
/// As for [`step`].
unsafe fn fill_in(
    abi: *mut CmId,
    send: (&mut *mut Cq, u32),
    recv: (&mut *mut Cq, u32),
) -> Result<(), i32> {
    // SAFETY: by the caller.
    unsafe {
        if send.0.is_null() {
            ((*abi).send_cq_channel, (*abi).send_cq) = own_cq(abi, send.1)?;
            *send.0 = (*abi).send_cq;
        }
        if recv.0.is_null() {
            ((*abi).recv_cq_channel, (*abi).recv_cq) = own_cq(abi, recv.1)?;
            *recv.0 = (*abi).recv_cq;
        }
    }
    Ok(())
}

/// What the device refused with. Some drivers leave errno as it was, which may be 0, and 0 is no
/// failure here.
fn refused() -> i32 {
    match last_errno() {
        0 => libc::EINVAL,
        code => code,
    }
}

/// The new queue pair becomes the identifier's.
///
/// # Safety
/// As for [`step`].
unsafe fn adopt(abi: *mut CmId, qp: *mut Qp) -> Result<(), i32> {
    if qp.is_null() {
        return Err(refused());
    }
    // SAFETY: by the caller.
    unsafe {
        (*abi).qp = qp;
        let id: &Id = object(abi);
        let made = step(abi, &lock(&id.state), qp_state::INIT);
        made.inspect_err(|_| destroy(abi))
    }
}

/// `make` makes a queue pair of this capacity in `pd` for the identifier. `cqs` is where its
/// attributes name the completion queues of sends and of receives: those that are NULL there are
/// made, and are NULL again where it fails.
///
/// # Safety
/// As for [`step`]; a protection domain or NULL.
unsafe fn create(
    abi: *mut CmId,
    pd: *mut Pd,
    cap: QpCap,
    cqs: [*mut *mut Cq; 2],
    make: impl FnOnce() -> *mut Qp,
) -> Result<(), i32> {
    // SAFETY: by the caller.
    unsafe {
        if (*abi).verbs.is_null()
            || pd.is_null()
            || (*pd).context != (*abi).verbs
            || !(*abi).qp.is_null()
        {
            return Err(libc::EINVAL);
        }
        let named = cqs.map(|cq| *cq);
        let filled = fill_in(abi, (&mut *cqs[0], cap.max_send_wr), (&mut *cqs[1], cap.max_recv_wr));
        filled.and_then(|()| adopt(abi, make())).inspect_err(|_| {
            forget_cqs(abi);
            cqs.into_iter().zip(named).for_each(|(cq, named)| *cq = named);
        })?;
        (*abi).pd = pd;
    }
    Ok(())
}

pub(super) unsafe extern "C" fn rdma_create_qp(
    abi: *mut CmId,
    pd: *mut Pd,
    init: *mut QpInitAttr,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handles and structure.
        unsafe {
            let pd = if pd.is_null() { (*abi).pd } else { pd };
            let cqs = [&raw mut (*init).send_cq, &raw mut (*init).recv_cq];
            create(abi, pd, (*init).cap, cqs, || create_qp(pd, init))
        }
    })
}
export!("rdma_create_qp", "RDMACM_1.0", rdma_create_qp);

unsafe extern "C" fn rdma_create_qp_ex(abi: *mut CmId, init: *mut QpInitAttrEx) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handles and structure.
        unsafe {
            if (*init).comp_mask & HAS_PD == 0 {
                ((*init).comp_mask, (*init).pd) = ((*init).comp_mask | HAS_PD, (*abi).pd);
            }
            let cqs = [&raw mut (*init).send_cq, &raw mut (*init).recv_cq];
            create(abi, (*init).pd, (*init).cap, cqs, || {
                // As libibverbs does, which calls a driver for extended queue pairs only if one is
                // asked for.
                if (*init).comp_mask == HAS_PD {
                    create_qp((*init).pd, init.cast())
                } else {
                    create_qp_ex((*abi).verbs, init)
                }
            })
        }
    })
}
export!("rdma_create_qp_ex", "RDMACM_1.0", rdma_create_qp_ex);

/// # Safety
/// As for [`step`].
unsafe fn forget_cqs(abi: *mut CmId) {
    // SAFETY: by the caller; what was made for this identifier.
    unsafe {
        for cq in [(*abi).send_cq, (*abi).recv_cq].into_iter().filter(|cq| !cq.is_null()) {
            destroy_cq(cq);
        }
        for channel in
            [(*abi).send_cq_channel, (*abi).recv_cq_channel].into_iter().filter(|it| !it.is_null())
        {
            destroy_comp_channel(channel);
        }
        ((*abi).send_cq, (*abi).recv_cq) = (ptr::null_mut(), ptr::null_mut());
        ((*abi).send_cq_channel, (*abi).recv_cq_channel) = (ptr::null_mut(), ptr::null_mut());
    }
}

/// # Safety
/// As for [`step`].
pub(super) unsafe fn destroy(abi: *mut CmId) {
    // SAFETY: by the caller.
    unsafe {
        if !(*abi).qp.is_null() {
            destroy_qp((*abi).qp);
            (*abi).qp = ptr::null_mut();
        }
        forget_cqs(abi);
    }
}

unsafe extern "C" fn rdma_destroy_qp(abi: *mut CmId) {
    // SAFETY: the caller's handle.
    minus_one(|| unsafe {
        destroy(abi);
        Ok(())
    });
}
export!("rdma_destroy_qp", "RDMACM_1.0", rdma_destroy_qp);

/// For applications that bring their queue pair to its states themselves.
unsafe extern "C" fn rdma_init_qp_attr(
    abi: *mut CmId,
    attr: *mut QpAttr,
    given: *mut c_int,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle and structures.
        unsafe {
            let id: &Id = object(abi);
            let (found, bits) = attributes(engine()?.fabric, &lock(&id.state), (*attr).qp_state)?;
            attr.write(found);
            given.write(bits);
        }
        Ok(())
    })
}
export!("rdma_init_qp_attr", "RDMACM_1.2", rdma_init_qp_attr);
