//! The QP state machine: which transition needs and allows which attributes, and what it does.

use std::sync::atomic::Ordering::SeqCst;

use crate::abi::consts::{access, qp_attr as mask, qp_state as state, qp_type};
use crate::abi::types::QpAttr;
use crate::device::MAX_READS;
use crate::engine;
use crate::fabric::lock;
use crate::fabric::slots::NO_PEER;
use crate::faults;
use crate::port::{MTU_4096, mtu_bytes};
use crate::qp::Qp;
use crate::route::Route;

/// Attribute bits that a transition needs, and those it allows besides.
struct Rule {
    needs: i32,
    allows: i32,
}

/// The rule for `from` -> `to`, if there is such a transition. UC has neither READs nor retries. There is no path
/// migration.
fn rule(from: u32, to: u32, is_rc: bool) -> Option<Rule> {
    let only_rc = |bits: i32| if is_rc { bits } else { 0 };
    let basics = mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
    let timing = mask::TIMEOUT | mask::RETRY_CNT | mask::RNR_RETRY | mask::MAX_QP_RD_ATOMIC;
    // To and from the states in which something may be sent.
    let sending = mask::CUR_STATE | mask::ACCESS_FLAGS | only_rc(mask::MIN_RNR_TIMER);
    let (needs, allows) = match (from, to) {
        (_, state::RESET | state::ERR) => (0, 0),
        (state::RESET, state::INIT) => (basics, 0),
        (state::INIT, state::INIT) => (0, basics),
        (state::INIT, state::RTR) => (
            mask::AV
                | mask::PATH_MTU
                | mask::DEST_QPN
                | mask::RQ_PSN
                | only_rc(mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER),
            mask::PKEY_INDEX | mask::ACCESS_FLAGS,
        ),
        (state::RTR, state::RTS) => (mask::SQ_PSN | only_rc(timing), sending),
        (state::RTS | state::SQD, state::RTS) => (0, sending),
        (state::SQE, state::RTS) if !is_rc => (0, mask::CUR_STATE | mask::ACCESS_FLAGS),
        (state::RTS, state::SQD) => (0, mask::EN_SQD_ASYNC_NOTIFY),
        (state::SQD, state::SQD) => (
            0,
            mask::AV
                | mask::PKEY_INDEX
                | mask::ACCESS_FLAGS
                | only_rc(timing | mask::PORT | mask::MAX_DEST_RD_ATOMIC | mask::MIN_RNR_TIMER),
        ),
        _ => return None,
    };
    Some(Rule { needs, allows })
}

/// `ibv_modify_qp`.
pub(crate) fn modify(qp: &Qp, attr: &QpAttr, given: i32) -> Result<(), i32> {
    let mut known = lock(&qp.attributes);
    let from = qp.slot.state.load(SeqCst);
    let to = if given & mask::STATE != 0 { attr.qp_state } else { from };
    if qp.fabric.is_failed(qp.device) && !matches!(to, state::RESET | state::ERR) {
        return Err(libc::EIO);
    }
    if given & mask::CUR_STATE != 0 && attr.cur_qp_state != from {
        return Err(libc::EINVAL);
    }
    let rule = rule(from, to, qp.abi.qp_type == qp_type::RC).ok_or(libc::EINVAL)?;
    if given & rule.needs != rule.needs || given & !(rule.needs | rule.allows | mask::STATE) != 0 {
        return Err(libc::EINVAL);
    }
    check_values(attr, given, qp.fabric.shape.ports())?;
    let mut place = qp.place();
    if given & mask::PORT != 0 {
        place.port = u32::from(attr.port_num);
    }
    let route = if given & mask::AV != 0 { Some(Route::find(qp.fabric, place, &attr.ah_attr)?) } else { None };
    if let Some(to) = route.and_then(|route| route.to()) {
        faults::modify_qp(qp.fabric, place, to)?;
    }
    remember(&mut known, attr, given);
    publish(qp, &known, given, route);
    let wants_notice = given & mask::EN_SQD_ASYNC_NOTIFY != 0 && attr.en_sqd_async_notify != 0;
    enter(qp, from, to, wants_notice)?;
    if to == state::RESET {
        let cap = known.cap;
        *known = QpAttr { cap, port_num: 1, ..QpAttr::default() };
    }
    known.qp_state = to;
    qp.abi.state.store(to, SeqCst);
    Ok(())
}

fn check_values(attr: &QpAttr, given: i32, ports: u32) -> Result<(), i32> {
    let has = |bit: i32| given & bit != 0;
    let flags = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;
    let is_bad = has(mask::PKEY_INDEX) && attr.pkey_index != 0
        || has(mask::PORT) && !(1..=ports).contains(&u32::from(attr.port_num))
        || has(mask::ACCESS_FLAGS) && attr.qp_access_flags & !(flags | access::OPTIONAL) != 0
        || has(mask::PATH_MTU) && !(1..=MTU_4096).contains(&attr.path_mtu)
        || has(mask::MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > MAX_READS
        || has(mask::MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > MAX_READS
        || has(mask::MIN_RNR_TIMER) && attr.min_rnr_timer > 31
        || has(mask::TIMEOUT) && attr.timeout > 31
        || has(mask::RETRY_CNT) && attr.retry_cnt > 7
        || has(mask::RNR_RETRY) && attr.rnr_retry > 7
        || has(mask::DEST_QPN) && attr.dest_qp_num >= 1 << 24;
    if is_bad { Err(libc::EINVAL) } else { Ok(()) }
}

fn remember(known: &mut QpAttr, attr: &QpAttr, given: i32) {
    macro_rules! take {
        ($($bit:ident: $($field:ident),+;)+) => { $(if given & mask::$bit != 0 { $(known.$field = attr.$field;)+ })+ };
    }
    take! {
        ACCESS_FLAGS: qp_access_flags;
        PKEY_INDEX: pkey_index;
        PORT: port_num;
        AV: ah_attr;
        PATH_MTU: path_mtu;
        TIMEOUT: timeout;
        RETRY_CNT: retry_cnt;
        RNR_RETRY: rnr_retry;
        RQ_PSN: rq_psn;
        SQ_PSN: sq_psn;
        MAX_QP_RD_ATOMIC: max_rd_atomic;
        MAX_DEST_RD_ATOMIC: max_dest_rd_atomic;
        MIN_RNR_TIMER: min_rnr_timer;
        DEST_QPN: dest_qp_num;
    }
    known.rq_psn &= 0xff_ffff;
    known.sq_psn &= 0xff_ffff;
}

/// Hands the attributes to those who use them: the visiting peer (slot) and the requester (link).
fn publish(qp: &Qp, known: &QpAttr, given: i32, route: Option<Route>) {
    qp.slot.access.store(known.qp_access_flags, SeqCst);
    qp.slot.rnr_timer.store(u32::from(known.min_rnr_timer), SeqCst);
    qp.slot.read_depth.store(u32::from(known.max_dest_rd_atomic), SeqCst);
    if given & mask::PORT != 0 {
        qp.slot.port.store(u32::from(known.port_num), SeqCst);
    }
    let queue = &mut *lock(&qp.send);
    if given & mask::SQ_PSN != 0 {
        queue.connected();
    }
    let link = &mut queue.link;
    if let Some(route) = route {
        link.mtu_bytes = mtu_bytes(known.path_mtu);
        link.route = route.with_mtu(link.mtu_bytes);
        link.peer = route.peer(known.dest_qp_num);
        qp.slot.flow.store(route.take_flow(qp.fabric), SeqCst);
        qp.slot.peer.store(link.peer, SeqCst);
    }
    if given & mask::RQ_PSN != 0 {
        qp.slot.expected_psn.store(known.rq_psn, SeqCst);
        qp.slot.established.store(0, SeqCst);
    }
    if given & mask::SQ_PSN != 0 {
        link.psn = known.sq_psn;
    }
    link.timeout = known.timeout;
    link.retry_cnt = known.retry_cnt;
    link.rnr_retry = known.rnr_retry;
    link.reads = known.max_rd_atomic;
}

fn enter(qp: &Qp, from: u32, to: u32, wants_notice: bool) -> Result<(), i32> {
    match to {
        state::RESET => {
            qp.slot.state.store(state::RESET, SeqCst);
            qp.slot.peer.store(NO_PEER, SeqCst);
            qp.slot.expected_psn.store(0, SeqCst);
            lock(&qp.send).link.psn = 0;
            qp.discard();
        }
        state::ERR => {
            qp.slot.state.store(state::ERR, SeqCst);
            if !qp.flush() {
                // A peer is still in.
                qp.flush_soon();
            }
        }
        // A peer may have put the QP into the error state meanwhile.
        _ => {
            qp.slot.state.compare_exchange(from, to, SeqCst, SeqCst).map_err(|_| libc::EINVAL)?;
            if (to == state::SQD) != (from == state::SQD) {
                engine::drain(qp, wants_notice);
            }
        }
    }
    Ok(())
}
