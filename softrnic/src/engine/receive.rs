//! Posting receives.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::abi::types::{Sge, Status, WC_GRH, Wc, qp_state, send_flag, wc_opcode, wr_opcode};
use crate::copy::transfer::{Direction, Piece, Pieces, transfer};
use crate::engine::modify::{Engine, flush_recv};
use crate::engine::requester::{FAILS, flush, flush_soon, gather, pump};
use crate::host::{lock, now_ns};
use crate::network::header::{Described, HEADER_BYTES};
use crate::network::topology::mtu_bytes;
use crate::objects::context::{Ah, Datagram};
use crate::objects::cq::{CompletionSource, Cq};
use crate::objects::qp::Qp;
use crate::objects::send_queue::SendQueue;
use crate::remote::responder;
use crate::remote::responder::{
    Admission, Envelope, QpHold, RemoteQpGuard, ResponderFault, TxOutcome, is_held_by_another,
    name_of,
};
use crate::remote::staged_transfer::{Path, StagedTransfer};
use crate::rules::KnownRules;
use crate::shm::file::slot_of;
use crate::shm::recv_ring::Sender;
use crate::shm::slots::{ANY_PEER, PortSlot};

/// Posts one receive, which is the first of its call or not.
pub(crate) fn post_recv(
    engine: &'static Engine,
    qp: &Qp,
    wr_id: u64,
    sges: &[Sge],
    is_first: bool,
) -> Result<(), i32> {
    let _guard = lock(&qp.recv);
    qp.fill_recv(wr_id, sges)?;
    qp.slot.work.posted_receive(is_first);
    if qp.slot.state.load(SeqCst) == qp_state::ERR && !flush_recv(engine, qp) {
        // A peer is still in it.
        flush_soon(engine, qp);
    }
    Ok(())
}

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

/// Goes on with the head request, whose bytes pass through the stage.
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

/// A queue pair in its completion queues.
pub(crate) struct Source {
    engine: &'static Engine,
    qp: Arc<Qp>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.qp.fmt(f)
    }
}

impl Source {
    pub(crate) fn new(engine: &'static Engine, qp: &Arc<Qp>) -> Self {
        Self { engine, qp: Arc::clone(qp) }
    }
}

impl CompletionSource for Source {
    fn drain(&self, cq: &Cq, out: &mut [MaybeUninit<Wc>], taken: &mut usize) -> bool {
        let is_in_error = self.qp.slot.state.load(Acquire) == qp_state::ERR;
        let is_flushed = !is_in_error || flush(self.engine, &self.qp);
        self.qp.take_completions(cq, out, taken) || !is_flushed
    }

    fn fail(&self) {
        self.qp.slot.fail();
    }
}

/// Takes completions; returns how many.
#[inline]
pub(crate) fn poll_cq(engine: &'static Engine, cq: &Cq, out: &mut [MaybeUninit<Wc>]) -> usize {
    engine.fabric.run_due();
    if engine.fabric.has_stage() {
        advance_staged(engine);
    }
    cq.poll(out)
}

/// Takes the next completion.
#[inline(never)]
pub(crate) fn poll_one(engine: &'static Engine, cq: &Cq) -> Option<Wc> {
    let mut one = [MaybeUninit::new(Wc::default())];
    // SAFETY: it was initialised.
    (poll_cq(engine, cq, &mut one) == 1).then(|| unsafe { one[0].assume_init() })
}

/// What every poll of a CQ does while copies are staged.
#[cold]
fn advance_staged(engine: &'static Engine) {
    let fabric = engine.fabric;
    fabric.proc(slot_of(fabric.me)).last_poll.store(now_ns(), Relaxed);
    engine.copy_server.serve(fabric);
    let staging = lock(&engine.staging).clone();
    for qp in staging {
        // Another thread may be at it.
        if let Ok(mut queue) = qp.send.try_lock() {
            pump(engine, &qp, &mut queue);
            if queue.staged.is_none() {
                forget(engine, &qp);
            }
        }
    }
}

/// Nothing of `qp` is copied through the shared file any more.
#[cold]
pub(crate) fn forget(engine: &Engine, qp: &Qp) {
    lock(&engine.staging).retain(|known| !std::ptr::eq(&raw const **known, qp));
}

/// Records the outcome of the oldest request not acknowledged. False if its CQ takes no more.
#[inline]
pub(crate) fn complete(qp: &Qp, queue: &mut SendQueue, status: Status) -> bool {
    let (request, sges, inline) = queue.request(queue.acked);
    let is_completion =
        status != Status::Success || qp.signal_all || request.flags & send_flag::SIGNALED != 0;
    let cq = qp.send_cq.slot;
    if is_completion && !responder::admit_completion(qp.fabric, cq) {
        return false;
    }
    let opcode = match request.opcode & !FAILS {
        wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => wc_opcode::RDMA_WRITE,
        wr_opcode::RDMA_READ => wc_opcode::RDMA_READ,
        wr_opcode::ATOMIC_CMP_SWAP => wc_opcode::COMP_SWAP,
        wr_opcode::ATOMIC_FETCH_ADD => wc_opcode::FETCH_ADD,
        _ => wc_opcode::SEND,
    };
    let bytes = inline.len() as u32 + sges.iter().map(|s| s.length).fold(0, u32::wrapping_add);
    let has_immediate =
        matches!(request.opcode, wr_opcode::RDMA_WRITE_WITH_IMM | wr_opcode::SEND_WITH_IMM);
    let kind = (opcode, has_immediate && qp.library.flags_sent_immediates);
    let request_of = (request.wr_id, request.blocks);
    qp.send_ring.record(queue.acked, request_of, status as u32, kind, bytes, is_completion);
    if status == Status::Success {
        let sent = &qp.slot.sent;
        sent.messages.store(sent.messages.load(Relaxed) + 1, Relaxed);
        sent.bytes.store(sent.bytes.load(Relaxed) + u64::from(bytes), Relaxed);
        qp.slot.work.acknowledged(queue.link.packets(bytes.into()), has_immediate);
    }
    queue.advance();
    if is_completion {
        responder::announce(
            qp.fabric,
            cq,
            qp.slot.send_bit.load(Relaxed),
            status != Status::Success,
        );
    }
    true
}
