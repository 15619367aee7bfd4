//! `ibv_modify_qp`: what a transition of a queue pair does.

use std::sync::atomic::Ordering::SeqCst;

use crate::abi::consts::{qp_attr as mask, qp_state as state};
use crate::abi::types::QpAttr;
use crate::engine::pump::{drain, flush, flush_soon};
use crate::engine::state::Engine;
use crate::host::lock::lock;
use crate::network::link::mtu_bytes;
use crate::objects::qp::Qp;
use crate::objects::transition::{attributes, check_values, remember};
use crate::process::route::Route;
use crate::rules::known::KnownRules;

/// `ibv_modify_qp`.
pub(crate) fn modify(engine: &'static Engine, qp: &Qp, attr: &QpAttr, given: i32) -> Result<(), i32> {
    let mut known = lock(&qp.attributes);
    let from = qp.slot.state.load(SeqCst);
    let to = if given & mask::STATE != 0 { attr.qp_state } else { from };
    if qp.pd.context.is_dead() && !matches!(to, state::RESET | state::ERR) {
        return Err(libc::EIO);
    }
    if qp.pd.context.is_refusing() {
        return Err(libc::EIO);
    }
    if given & mask::CUR_STATE != 0 && attr.cur_qp_state != from {
        return Err(libc::EINVAL);
    }
    let bits = attributes(from, to, qp.abi.qp_type).ok_or(libc::EINVAL)?;
    if given & bits.needs != bits.needs || given & !(bits.needs | bits.allows | mask::STATE) != 0 {
        return Err(libc::EINVAL);
    }
    check_values(attr, given, qp.fabric.topology.ports(), qp.fabric.settings.driver.max_reads)?;
    let mut port = qp.port();
    if given & mask::PORT != 0 {
        port.port = u32::from(attr.port_num);
    }
    let route = if given & mask::AV != 0 { Some(Route::find(qp.fabric, port, &attr.ah_attr)?) } else { None };
    if let Some(to) = route.and_then(|route| route.to()) {
        engine.faults.on_modify_qp(port, to).inspect_err(|errno| {
            if *errno == libc::ETIMEDOUT {
                qp.fabric.await_address();
            }
        })?;
    }
    remember(&mut known, attr, given);
    publish(qp, &known, given, route);
    let wants_event = given & mask::EN_SQD_ASYNC_NOTIFY != 0 && attr.en_sqd_async_notify != 0;
    enter(engine, qp, from, to, wants_event)?;
    if to == state::RESET {
        let cap = known.cap;
        *known = QpAttr { cap, port_num: 1, ..QpAttr::default() };
    }
    known.qp_state = to;
    qp.abi.state.store(to, SeqCst);
    Ok(())
}

/// Hands the attributes to those who use them: the visiting peer (slot) and the requester (link).
fn publish(qp: &Qp, known: &QpAttr, given: i32, route: Option<Route>) {
    qp.slot.access.store(known.qp_access_flags, SeqCst);
    qp.slot.qkey.store(known.qkey, SeqCst);
    qp.slot.rnr_timer.store(u32::from(known.min_rnr_timer), SeqCst);
    qp.slot.read_depth.store(u32::from(known.max_dest_rd_atomic), SeqCst);
    if given & mask::PORT != 0 {
        qp.slot.port.store(u32::from(known.port_num), SeqCst);
    }
    let queue = &mut *lock(&qp.send);
    if given & mask::SQ_PSN != 0 {
        queue.connected();
    }
    if route.is_some() {
        // Another connection.
        queue.rules = KnownRules::default();
    }
    let link = &mut queue.link;
    if let Some(route) = route {
        link.mtu_bytes = mtu_bytes(known.path_mtu);
        link.peer = route.peer(known.dest_qp_num);
        link.route = route.with_mtu(link.mtu_bytes).looped(link.peer == qp.name());
        link.path = route.path(qp.fabric, qp.abi.qp_num, known.dest_qp_num);
        qp.slot.path.store(link.path.map_or(0, |path| path + 1), SeqCst);
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

fn enter(engine: &'static Engine, qp: &Qp, from: u32, to: u32, wants_event: bool) -> Result<(), i32> {
    match to {
        state::RESET => {
            qp.slot.state.store(state::RESET, SeqCst);
            qp.drop_received(false);
            qp.slot.peer.store(qp.unconnected(), SeqCst);
            qp.slot.holder.store(0, SeqCst);
            qp.slot.expected_psn.store(0, SeqCst);
            lock(&qp.send).link.psn = 0;
            engine.discard(qp);
            // One that was in here may have taken it since.
            qp.slot.holder.store(0, SeqCst);
        }
        state::ERR => {
            qp.slot.state.store(state::ERR, SeqCst);
            qp.drop_received(qp.fabric.settings.error_drops);
            if !flush(engine, qp) {
                // A peer is still in.
                flush_soon(engine, qp);
            }
        }
        // A peer may have put the QP into the error state meanwhile.
        _ => {
            qp.slot.state.compare_exchange(from, to, SeqCst, SeqCst).map_err(|_| libc::EINVAL)?;
            if (to == state::SQD) != (from == state::SQD) {
                drain(engine, qp, wants_event);
            }
        }
    }
    Ok(())
}
