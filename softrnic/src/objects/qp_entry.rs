//! The entry of a queue pair in the table of its device: what it is granted, and what peers find there.

use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::abi::consts::{qp_state, qp_type};
use crate::abi::types::{self, QpCap};
use crate::limits::{MAX_SGE, QPS};
use crate::objects::pd::Pd;
use crate::objects::qp_request::QpRequest;
use crate::process::fabric::Fabric;
use crate::process::settings::{InlineExcess, Settings};
use crate::shm::layout::Table;
use crate::shm::recv_ring::RecvRing;
use crate::shm::slots::{ANY_PEER, NO_PEER, QpSlot};

/// The peer of a queue pair that is not connected: UD takes datagrams from all.
pub(super) fn unconnected(kind: i32) -> u64 {
    if kind == qp_type::UD { ANY_PEER } else { NO_PEER }
}

/// What a queue pair gets that is to have `requested`; the errno value of a refusal, 0 for one that leaves errno as it was.
pub(super) fn grant(settings: &Settings, requested: QpCap, has_receives: bool) -> Result<QpCap, i32> {
    let (driver, most) = (settings.driver, settings.max_qp_wr);
    let is_too_much = requested.max_send_wr > most
        || requested.max_recv_wr > most
        || requested.max_send_sge > driver.max_sge.0
        || requested.max_recv_sge > driver.max_sge.1;
    if is_too_much {
        return Err(driver.too_much);
    }
    let least = driver.min_queue;
    if requested.max_send_wr < least.send || has_receives && requested.max_recv_wr < least.recv {
        return Err(libc::EINVAL);
    }
    if requested.max_inline_data <= settings.max_inline {
        let rounded = (driver.round)(requested);
        let granted = if settings.grant_more { more_than(rounded) } else { rounded };
        return Ok(QpCap { max_inline_data: granted.max_inline_data.min(settings.max_inline), ..granted });
    }
    match settings.inline_excess {
        InlineExcess::Refuse => Err(libc::EINVAL),
        InlineExcess::RefuseSilently => Err(0),
        InlineExcess::Grant => {
            let possible = QpCap { max_inline_data: settings.max_inline, ..requested };
            Ok(QpCap { max_inline_data: settings.max_inline, ..(driver.round)(possible) })
        }
    }
}

/// More of everything than `cap`, but of queues that have nothing. A queue may become longer than the device says that queues are.
fn more_than(cap: QpCap) -> QpCap {
    let queue = |wr: u32| if wr == 0 { 0 } else { 2 * wr + 1 };
    let elements = |sge: u32, wr: u32| if wr == 0 { sge } else { (sge + 3).min(MAX_SGE) };
    QpCap {
        max_send_wr: queue(cap.max_send_wr),
        max_recv_wr: queue(cap.max_recv_wr),
        max_send_sge: elements(cap.max_send_sge, cap.max_send_wr),
        max_recv_sge: elements(cap.max_recv_sge, cap.max_recv_wr),
        max_inline_data: (cap.max_inline_data + 1).next_multiple_of(64),
    }
}

/// Takes a table entry and fills in what does not depend on the connection. `requested` has what is granted, `asked` what the application
/// has asked for.
pub(super) fn claim_slot(
    fabric: &Fabric,
    device: usize,
    pd: &Pd,
    requested: &QpRequest,
    asked: &QpCap,
) -> Result<(u32, &'static QpSlot), i32> {
    let (mask, stride, bytes) = RecvRing::layout(requested.ring(), requested.qp_type == qp_type::UD);
    let control = fabric.file.control();
    let index = fabric.claim(&control, Table::Qp, device, fabric.settings.max_qp)?;
    let slot = fabric.qp(device, index);
    // What a former owner left must not pass for ours.
    slot.ring_bytes.store(0, SeqCst);
    slot.state.store(qp_state::RESET, SeqCst);
    slot.peer.store(unconnected(requested.qp_type), SeqCst);
    slot.holder.store(0, SeqCst);
    slot.qkey.store(0, SeqCst);
    if !fabric.is_entered(slot) {
        slot.busy.store(0, SeqCst);
    }
    let ring_at =
        fabric.claim_ring(&control, bytes).inspect_err(|_| fabric.free(&control, Table::Qp, device, index))?;
    slot.ring_at.store(ring_at, SeqCst);
    slot.ring_bytes.store(bytes as u32, SeqCst);
    slot.ring_mask.store(mask, SeqCst);
    slot.ring_stride.store(stride, SeqCst);
    slot.pd.store(pd.id, SeqCst);
    slot.recv_pd.store(requested.srq.as_ref().map_or(pd.id, |srq| srq.pd.id), SeqCst);
    slot.srq.store(requested.srq.as_ref().map_or(0, |srq| srq.index + 1), SeqCst);
    slot.wanted.store(0, SeqCst);
    slot.transport.store(requested.qp_type as u32, SeqCst);
    slot.send_cq.store(requested.send_cq.index, SeqCst);
    slot.recv_cq.store(requested.recv_cq.index, SeqCst);
    slot.access.store(0, SeqCst);
    slot.port.store(1, SeqCst);
    slot.flow.store(0, SeqCst);
    slot.expected_psn.store(0, SeqCst);
    slot.events.store(0, SeqCst);
    slot.established.store(0, SeqCst);
    for count in slot.sent.all().into_iter().chain(slot.work.all()) {
        count.store(0, Relaxed);
    }
    slot.capacities.set(asked, requested.operations, pd.has_thread());
    slot.done.store(0, SeqCst);
    slot.posted.store(0, SeqCst);
    let generation = slot.generation.fetch_add(1, SeqCst).wrapping_add(1);
    let part = if fabric.settings.qpn_reuse { 1 } else { generation % 4095 + 1 };
    slot.qpn.store(part * QPS + index, SeqCst);
    Ok((index, slot))
}

/// What the application holds of the queue pair with this table entry.
pub(super) fn abi_of(pd: &Pd, requested: &QpRequest, index: u32, slot: &QpSlot) -> types::Qp {
    types::Qp {
        context: pd.context.as_abi(),
        qp_context: requested.qp_context,
        pd: pd.as_abi(),
        send_cq: requested.send_cq.as_abi(),
        recv_cq: requested.recv_cq.as_abi(),
        srq: requested.srq.as_ref().map_or(std::ptr::null_mut(), |srq| srq.as_abi()),
        handle: index,
        qp_num: slot.qpn.load(SeqCst),
        state: AtomicU32::new(qp_state::RESET),
        qp_type: requested.qp_type,
        mutex: [0; 5],
        cond: [0; 6],
        events_completed: AtomicU32::new(0),
    }
}
