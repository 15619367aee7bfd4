//! The responder: what the NIC of the peer does with a request, done by the visitor in its place.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use super::Verdict;
use super::copy::{CopyError, Pieces, Way, transfer};
use super::requester::has_imm;
use super::visit::Visit;
use crate::abi::consts::{Status, WC_WITH_IMM, access, event, qp_state, send_flag, wc_opcode, wr_opcode};
use crate::cq;
use crate::faults::Twist;
use crate::mr::{Forbidden, resolve};
use crate::notice;
use crate::recv_queue::{Received, RecvRing};
use crate::send_queue::Request;

/// What the responder has agreed to: where the bytes go, or come from.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) way: Way,
    pub(super) remote: Pieces,
    /// The bytes are changed, not copied.
    pub(super) is_atomic: bool,
    /// The order of the bytes does not matter to the owner of the memory.
    pub(super) is_relaxed: bool,
    /// What completes there when the bytes are in place.
    receive: Option<Receive>,
}

/// Checks a request with `total` local bytes at the QP visited.
#[inline]
pub(super) fn admit(visit: &Visit, request: &Request, total: u64) -> Result<Plan, Verdict> {
    match request.opcode {
        wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => write(visit, request, total),
        wr_opcode::SEND | wr_opcode::SEND_WITH_IMM => send(visit, request, total),
        wr_opcode::RDMA_READ => read(visit, request, total),
        wr_opcode::ATOMIC_CMP_SWAP | wr_opcode::ATOMIC_FETCH_ADD => atomic(visit, request, total),
        _ => Err(Verdict::Failed(Status::LocQpOp)),
    }
}

/// Completes what `admit` began, when the bytes have been moved or that failed.
#[inline]
pub(super) fn conclude(
    visit: &Visit,
    request: &Request,
    plan: &Plan,
    total: u64,
    moved: Result<(), CopyError>,
) -> Verdict {
    if visit.slot.state.load(Relaxed) == qp_state::RTR {
        communication_established(visit);
    }
    match (moved, &plan.receive) {
        (Err(error), _) => explain(visit, error),
        (Ok(()), None) => Verdict::Done,
        (Ok(()), Some(receive)) => receive.finish(visit, request, total, Status::Success),
    }
}

fn write(visit: &Visit, request: &Request, total: u64) -> Result<Plan, Verdict> {
    require(visit, access::REMOTE_WRITE)?;
    let receive = if has_imm(request) { Some(Receive::next(visit).ok_or_else(|| not_ready(visit))?) } else { None };
    let (remote, is_relaxed) = memory(visit, request, total, access::REMOTE_WRITE)?;
    Ok(Plan { way: Way::Out, remote, is_atomic: false, is_relaxed, receive })
}

fn read(visit: &Visit, request: &Request, total: u64) -> Result<Plan, Verdict> {
    require_read(visit, access::REMOTE_READ)?;
    let (remote, is_relaxed) = memory(visit, request, total, access::REMOTE_READ)?;
    Ok(Plan { way: Way::In, remote, is_atomic: false, is_relaxed, receive: None })
}

fn atomic(visit: &Visit, request: &Request, total: u64) -> Result<Plan, Verdict> {
    require_read(visit, access::REMOTE_ATOMIC)?;
    if total != 8 || !request.remote_addr.is_multiple_of(8) {
        return Err(refuse(visit, event::QP_REQ_ERR, Status::RemInvReq));
    }
    let (remote, is_relaxed) = memory(visit, request, total, access::REMOTE_ATOMIC)?;
    Ok(Plan { way: Way::In, remote, is_atomic: true, is_relaxed, receive: None })
}

fn send(visit: &Visit, request: &Request, total: u64) -> Result<Plan, Verdict> {
    let receive = Receive::next(visit).ok_or_else(|| not_ready(visit))?;
    let Ok(remote) = receive.scatter(visit) else {
        receive.finish(visit, request, 0, Status::LocProt);
        return Err(refuse(visit, event::QP_ACCESS_ERR, Status::RemOp));
    };
    if remote.total < total {
        receive.finish(visit, request, 0, Status::LocLen);
        return Err(refuse(visit, event::QP_REQ_ERR, Status::RemInvReq));
    }
    Ok(Plan { way: Way::Out, remote, is_atomic: false, is_relaxed: false, receive: Some(receive) })
}

/// The QP visited must grant `need`.
#[inline]
fn require(visit: &Visit, need: u32) -> Result<(), Verdict> {
    let granted = visit.slot.access.load(Relaxed) & need != 0;
    if granted { Ok(()) } else { Err(refuse(visit, event::QP_REQ_ERR, Status::RemInvReq)) }
}

/// As [`require`], and it must have room for what is read.
fn require_read(visit: &Visit, need: u32) -> Result<(), Verdict> {
    require(visit, need)?;
    let has_room = visit.slot.read_depth.load(Relaxed) != 0;
    if has_room { Ok(()) } else { Err(refuse(visit, event::QP_REQ_ERR, Status::RemInvReq)) }
}

/// The memory that a request names, and whether its order is relaxed. No bytes, no checks: not even the key is looked at.
#[inline]
fn memory(visit: &Visit, request: &Request, total: u64, need: u32) -> Result<(Pieces, bool), Verdict> {
    if total == 0 {
        return Ok((Pieces::default(), false));
    }
    let domain = (visit.device, visit.slot.pd.load(Relaxed));
    let place = resolve(visit.fabric, domain, request.rkey, (request.remote_addr, total), need)
        .map_err(|Forbidden| refuse(visit, event::QP_ACCESS_ERR, Status::RemAccess))?;
    Ok((Pieces::one(place.piece(request.rkey, total)), place.is_relaxed))
}

/// Atomics need memory that a processor can change.
#[cold]
pub(super) fn refuse_atomic(visit: &Visit) -> Verdict {
    refuse(visit, event::QP_REQ_ERR, Status::RemInvReq)
}

/// What a fault makes of a request that has arrived; `None`: it only shows later.
#[cold]
pub(super) fn twisted(visit: &Visit, twist: Twist) -> Option<Verdict> {
    match twist {
        Twist::NotReady => Some(not_ready(visit)),
        Twist::AccessError => Some(refuse(visit, event::QP_ACCESS_ERR, Status::RemAccess)),
        Twist::OperationError => Some(refuse(visit, event::QP_FATAL, Status::RemOp)),
        Twist::Corrupt(_) => None,
    }
}

/// Turns one bit of what has just been written.
#[cold]
pub(super) fn corrupt(visit: &Visit, plan: &Plan, at: u64) {
    let Some(victim) = plan.remote.byte(at) else { return };
    let mut byte = 0u8;
    let ours = Pieces::host((&raw mut byte) as u64, 1);
    let theirs = Pieces::host(victim, 1);
    if plan.way == Way::Out && transfer(visit.pid, Way::In, &ours, &theirs).is_ok() {
        let turned = byte ^ 1 << (at % 8);
        let _ = transfer(visit.pid, Way::Out, &Pieces::host((&raw const turned) as u64, 1), &theirs);
    }
}

/// The first message at a QP that its owner has not made ready to send yet.
#[cold]
fn communication_established(visit: &Visit) {
    let bit = 1 << event::COMM_EST;
    if visit.slot.established.swap(1, SeqCst) == 0 {
        visit.slot.events.fetch_or(bit, SeqCst);
        visit.fabric.ring(visit.slot.owner.load(SeqCst));
    }
}

/// The oldest posted receive of the QP visited.
#[derive(Debug)]
struct Receive {
    ring: RecvRing,
    at: u64,
}

impl Receive {
    #[inline]
    fn next(visit: &Visit) -> Option<Self> {
        let at = visit.slot.done.load(Relaxed);
        // Pairs with the owner's store in `post_recv`.
        if at == visit.slot.posted.load(Acquire) {
            return None;
        }
        Some(Self { ring: RecvRing::of(visit.fabric, visit.slot)?, at })
    }

    /// Its memory, each element allowed by its key.
    fn scatter(&self, visit: &Visit) -> Result<Pieces, Forbidden> {
        let domain = (visit.device, visit.slot.pd.load(Relaxed));
        let mut pieces = Pieces::default();
        for sge in self.ring.elements(self.at).filter(|s| s.length != 0) {
            let range = (sge.addr, u64::from(sge.length));
            let place = resolve(visit.fabric, domain, sge.lkey, range, access::LOCAL_WRITE)?;
            pieces.push(place.piece(sge.lkey, range.1));
        }
        Ok(pieces)
    }

    /// Completes it.
    #[inline]
    fn finish(&self, visit: &Visit, request: &Request, bytes: u64, status: Status) -> Verdict {
        let slot = visit.slot;
        let queue = visit.fabric.cq(visit.device, slot.recv_cq.load(Relaxed));
        if !cq::admit(visit.fabric, queue) {
            return refuse(visit, event::QP_FATAL, Status::RemOp);
        }
        let is_write = request.opcode == wr_opcode::RDMA_WRITE_WITH_IMM;
        let outcome = Received {
            status: status as u32,
            opcode: if is_write { wc_opcode::RECV_RDMA_WITH_IMM } else { wc_opcode::RECV },
            byte_len: bytes as u32,
            imm: request.imm,
            wc_flags: if has_imm(request) { WC_WITH_IMM } else { 0 },
        };
        self.ring.finish(slot, self.at, &outcome);
        let is_urgent = request.flags & send_flag::SOLICITED != 0 || status != Status::Success;
        cq::announce(visit.fabric, queue, slot.recv_bit.load(Relaxed), is_urgent);
        Verdict::Done
    }
}

fn not_ready(visit: &Visit) -> Verdict {
    Verdict::NotReady(visit.slot.rnr_timer.load(Relaxed))
}

/// The responder does not take the request: its QP is in error, its owner gets an event. UC drops it silently.
#[cold]
fn refuse(visit: &Visit, kind: u32, status: Status) -> Verdict {
    let (fabric, slot) = (visit.fabric, visit.slot);
    if slot.is_uc.load(Relaxed) != 0 {
        return Verdict::Done;
    }
    // First of all the owner is told: should we die from here on, it sees this through itself.
    slot.events.fetch_or(1 << kind, SeqCst);
    fabric.ring(slot.owner.load(SeqCst));
    slot.fail();
    // Its queues are flushed when their CQs are polled, or else by its service thread.
    for (queue, number) in [(&slot.send_cq, &slot.send_bit), (&slot.recv_cq, &slot.recv_bit)] {
        let queue = fabric.cq(visit.device, queue.load(Relaxed));
        queue.bell.fetch_or(1 << (number.load(Relaxed) % 64), SeqCst);
    }
    Verdict::Failed(status)
}

/// What a failed copy means on the wire.
#[cold]
fn explain(visit: &Visit, error: CopyError) -> Verdict {
    match error {
        CopyError::Gone => Verdict::Lost,
        _ if visit.is_owner_dead() => Verdict::Lost,
        CopyError::LocalFault => Verdict::Failed(Status::LocProt),
        CopyError::Forbidden => refuse(visit, event::QP_ACCESS_ERR, Status::RemAccess),
        CopyError::RemoteFault => refuse(visit, event::QP_FATAL, Status::RemOp),
        CopyError::Denied(code) => {
            static TOLD: AtomicBool = AtomicBool::new(false);
            if !TOLD.swap(true, Relaxed) {
                notice::say(format_args!(
                    "cannot reach the memory of process {}: {}; processes of a fabric need the same user and process \
                     id namespace, and a sandbox that allows process_vm_writev",
                    visit.pid.unwrap_or(0),
                    notice::errno_text(code)
                ));
            }
            Verdict::Failed(Status::General)
        }
    }
}
