//! Datagrams: their addresses, and what becomes of one at its receiver.

use std::sync::atomic::Ordering::SeqCst;

use crate::abi::types::{Status, WC_GRH, send_flag, wr_opcode};
use crate::copy::transfer::{Direction, Piece, Pieces, transfer};
use crate::engine::gather;
use crate::network::header::{Described, HEADER_BYTES};
use crate::network::topology::mtu_bytes;
use crate::objects::context::{Ah, Datagram};
use crate::objects::qp::Qp;
use crate::objects::send_queue::SendQueue;
use crate::remote::responder;
use crate::remote::responder::{
    Admission, Envelope, QpHold, RemoteQpGuard, ResponderFault, TxOutcome, is_held_by_another,
    name_of,
};
use crate::remote::staged_transfer::{Path, StagedTransfer};
use crate::rules::KnownRules;
use crate::shm::recv_ring::Sender;
use crate::shm::slots::{ANY_PEER, PortSlot};

/// A Q_Key with this bit stands for that of the sending queue pair.
const OWN_QKEY: u32 = 1 << 31;
/// How often a datagram finds others at its receiver, 20 us apart, before it is dropped: one
/// second.
const MOST_ENCOUNTERS: u32 = 50_000;

fn port(qp: &Qp) -> &'static PortSlot {
    let port = qp.port();
    qp.fabric.port(port.device, port.port)
}

/// Whether a datagram for `qpn` may go by this handle.
pub(crate) fn check(qp: &Qp, ah: &Ah, qpn: u32) -> Result<(), i32> {
    let is_ours = ah.pd.id == qp.pd.id && u32::from(ah.vector.port_num) == qp.port().port;
    if is_ours && qpn < 1 << 24 { Ok(()) } else { Err(libc::EINVAL) }
}

/// Addresses the request that is posted next, which has so many bytes.
#[inline(never)]
pub(crate) fn address(
    qp: &Qp,
    queue: &mut SendQueue,
    ah: &Ah,
    (qpn, qkey): (u32, u32),
    (bytes, has_immediate): (u64, bool),
) -> Result<(), i32> {
    check(qp, ah, qpn)?;
    let addresses = ah.route.addresses();
    let header = addresses.map(|(source, target)| {
        let (traffic_class, flow_label, hop_limit) =
            (ah.vector.traffic_class, ah.vector.flow_label, ah.vector.hop_limit);
        Described { source, target, traffic_class, flow_label, hop_limit }
    });
    let packet_type = header.filter(|_| !port(qp).is_infiniband()).map(Described::packet_type);
    queue.address(Datagram {
        peer: ah.route.peer(qpn),
        route: ah.route,
        path: ah.route.path(qp.fabric, qp.abi.qp_num, qpn),
        qkey: if qkey & OWN_QKEY == 0 { qkey } else { qp.slot.qkey.load(SeqCst) },
        has_header: header.is_some(),
        header: header
            .map_or([0; HEADER_BYTES], |header| header.to_bytes(bytes as u32, has_immediate)),
        service_level: packet_type.unwrap_or(ah.vector.sl),
    });
    Ok(())
}

fn envelope(qp: &Qp, sent: &Datagram) -> Envelope {
    let lid = port(qp).lid.load(SeqCst) as u16;
    Envelope {
        qkey: sent.qkey,
        sender: Sender { qpn: qp.abi.qp_num, lid, service_level: sent.service_level },
        flags: if sent.has_header { WC_GRH } else { 0 },
    }
}

/// Executes the head request of the queue, with a fault at the peer if `fault` asks for it.
#[inline(never)]
pub(crate) fn execute(qp: &Qp, queue: &mut SendQueue, fault: Option<ResponderFault>) -> TxOutcome {
    queue.entries = queue.entries.wrapping_add(1);
    queue.lead_to(queue.executed);
    // The next one may go elsewhere.
    queue.rules = KnownRules::default();
    queue.link.route.refresh(qp.fabric);
    let (request, sges, inline) = queue.request(queue.executed);
    if !matches!(request.opcode, wr_opcode::SEND | wr_opcode::SEND_WITH_IMM) {
        return TxOutcome::Failed(Status::LocQpOp);
    }
    let data = if request.flags & send_flag::INLINE != 0 {
        Ok(Pieces::host(inline.as_ptr() as u64, inline.len() as u64))
    } else {
        gather(qp, sges, 0)
    };
    let Ok(data) = data else { return TxOutcome::Failed(Status::LocProt) };
    if data.total > u64::from(mtu_bytes(port(qp).mtu.load(SeqCst))) {
        return TxOutcome::Failed(Status::LocLen);
    }
    if !queue.link.route.carries(data.total) || fault == Some(ResponderFault::Forget) {
        return TxOutcome::Lost;
    }
    let sent = queue.datagram(queue.executed);
    let Some(guard) = RemoteQpGuard::enter(qp.fabric, sent.peer, ANY_PEER, queue.entries) else {
        return if RemoteQpGuard::is_open(qp.fabric, sent.peer) {
            again(queue)
        } else {
            TxOutcome::Lost
        };
    };
    let name = name_of(qp.fabric, qp.device, qp.abi.qp_num);
    if is_held_by_another(qp.fabric, guard.slot, name) {
        return again(queue);
    }
    if fault.and_then(|fault| responder::faulty(&guard, fault)).is_some() {
        return TxOutcome::Lost;
    }
    let local = with_header(sent, &data);
    let envelope = envelope(qp, sent);
    let Some(admission) = responder::admit_datagram(&guard, request, &envelope, local.total) else {
        return TxOutcome::Lost;
    };
    let local =
        if let Some(ResponderFault::Cut(bytes)) = fault { local.part(0, bytes) } else { local };
    if local.has_gpu || admission.remote.has_gpu || !guard.is_reached() {
        let hold = QpHold::take(guard.slot, name);
        return begin_staged(qp, queue, (guard, admission, local, hold), fault);
    }
    let moved = transfer(guard.pid, Direction::Out, &local, &admission.remote);
    if let (Some(ResponderFault::Corrupt(at)), Ok(())) = (fault, moved) {
        responder::corrupt(&guard, &admission, at);
    }
    if matches!(fault, Some(ResponderFault::Cut(_))) {
        return TxOutcome::Lost;
    }
    responder::conclude_datagram(&guard, request, (&admission, &envelope), local.total, moved)
}

/// Others are at the receiver: it is tried again in a moment, for a while.
fn again(queue: &mut SendQueue) -> TxOutcome {
    queue.head.encounters += 1;
    if queue.head.encounters == MOST_ENCOUNTERS { TxOutcome::Lost } else { TxOutcome::Busy }
}

/// A datagram's bytes with its network header in front of them.
fn with_header(sent: &Datagram, data: &Pieces) -> Pieces {
    let mut pieces = Pieces::one(Piece::host(sent.header.as_ptr() as u64, HEADER_BYTES as u64));
    data.iter().for_each(|piece| pieces.push(*piece));
    pieces
}

/// Sends the bytes through the stage.
#[cold]
fn begin_staged(
    qp: &Qp,
    queue: &mut SendQueue,
    (guard, admission, local, hold): (RemoteQpGuard, Admission, Pieces, QpHold),
    fault: Option<ResponderFault>,
) -> TxOutcome {
    if qp.fabric.open_stage().is_err() {
        return TxOutcome::Failed(Status::General);
    }
    let (request, ..) = queue.request(queue.executed);
    let path = Path {
        from: ANY_PEER,
        to: guard.name(),
        is_unreliable: true,
        psn: queue.link.psn,
        serial: queue.entries,
    };
    let staged = StagedTransfer::new(&guard, path, admission, local, request, fault).holding(hold);
    drop(guard);
    queue.staged = Some(Box::new(staged));
    proceed(qp, queue)
}

/// Continues the head request, whose bytes pass through the stage.
#[cold]
pub(crate) fn proceed(qp: &Qp, queue: &mut SendQueue) -> TxOutcome {
    let Some(staged) = &mut queue.staged else { return TxOutcome::Busy };
    let Some((guard, moved)) = staged.proceed() else {
        staged.remind();
        return TxOutcome::Staged;
    };
    let Some(staged) = queue.staged.take() else { return TxOutcome::Busy };
    let Some(guard) = guard.filter(|_| staged.is_held() && !staged.is_cut) else {
        return TxOutcome::Lost;
    };
    let (request, ..) = queue.request(queue.executed);
    let envelope = envelope(qp, queue.datagram(queue.executed));
    responder::conclude_datagram(
        &guard,
        request,
        (&staged.admission, &envelope),
        staged.total(),
        moved,
    )
}
