//! The responder: what the NIC of the peer does with a request, done by the visitor in its place.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use super::Verdict;
use super::copy::{CopyError, Pieces, Way, transfer};
use super::requester::has_imm;
use super::visit::Visit;
use crate::abi::consts::{Status, WC_WITH_IMM, access, event, send_flag, wc_opcode, wr_opcode};
use crate::cq;
use crate::mr::{Forbidden, resolve};
use crate::notice;
use crate::recv_queue::{Received, RecvRing};
use crate::send_queue::Request;

/// Executes `request` at the QP visited.
#[inline]
pub(super) fn handle(visit: &Visit<'_>, request: &Request, local: &Pieces) -> Verdict {
    match request.opcode {
        wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => write(visit, request, local),
        wr_opcode::SEND | wr_opcode::SEND_WITH_IMM => send(visit, request, local),
        wr_opcode::RDMA_READ => read(visit, request, local),
        _ => Verdict::Failed(Status::LocQpOp),
    }
}

fn write(visit: &Visit<'_>, request: &Request, local: &Pieces) -> Verdict {
    if visit.slot.access.load(Relaxed) & access::REMOTE_WRITE == 0 {
        return refuse(visit, event::QP_REQ_ERR, Status::RemInvReq);
    }
    let mut receive = None;
    if has_imm(request) {
        receive = Receive::next(visit);
        if receive.is_none() {
            return not_ready(visit);
        }
    }
    if let Err(verdict) = access_memory(visit, request, local, Way::Out, access::REMOTE_WRITE) {
        return verdict;
    }
    receive.map_or(Verdict::Done, |r| r.finish(visit, request, local.total, Status::Success))
}

fn read(visit: &Visit<'_>, request: &Request, local: &Pieces) -> Verdict {
    let slot = visit.slot;
    if slot.access.load(Relaxed) & access::REMOTE_READ == 0 || slot.read_depth.load(Relaxed) == 0 {
        return refuse(visit, event::QP_REQ_ERR, Status::RemInvReq);
    }
    access_memory(visit, request, local, Way::In, access::REMOTE_READ).err().unwrap_or(Verdict::Done)
}

/// The memory part of a write or read. No bytes, no checks: not even the key is looked at.
#[inline]
fn access_memory(visit: &Visit<'_>, request: &Request, local: &Pieces, way: Way, need: u32) -> Result<(), Verdict> {
    if local.total == 0 {
        return Ok(());
    }
    let domain = (visit.device, visit.slot.pd.load(Relaxed));
    let range = (request.remote_addr, local.total);
    let addr = resolve(visit.fabric, domain, request.rkey, range, need)
        .map_err(|Forbidden| refuse(visit, event::QP_ACCESS_ERR, Status::RemAccess))?;
    transfer(visit.pid, way, local, &Pieces::one(addr, local.total)).map_err(|error| explain(visit, error))
}

fn send(visit: &Visit<'_>, request: &Request, local: &Pieces) -> Verdict {
    let Some(receive) = Receive::next(visit) else { return not_ready(visit) };
    let Ok(room) = receive.scatter(visit) else {
        receive.finish(visit, request, 0, Status::LocProt);
        return refuse(visit, event::QP_ACCESS_ERR, Status::RemOp);
    };
    if room.total < local.total {
        receive.finish(visit, request, 0, Status::LocLen);
        return refuse(visit, event::QP_REQ_ERR, Status::RemInvReq);
    }
    match transfer(visit.pid, Way::Out, local, &room) {
        Ok(()) => receive.finish(visit, request, local.total, Status::Success),
        Err(error) => explain(visit, error),
    }
}

/// The oldest posted receive of the QP visited.
struct Receive {
    ring: RecvRing,
    at: u64,
}

impl Receive {
    #[inline]
    fn next(visit: &Visit<'_>) -> Option<Self> {
        let at = visit.slot.done.load(Relaxed);
        // Pairs with the owner's store in `post_recv`.
        if at == visit.slot.posted.load(Acquire) {
            return None;
        }
        Some(Self { ring: RecvRing::of(visit.fabric, visit.slot)?, at })
    }

    /// Its memory, each element allowed by its key.
    fn scatter(&self, visit: &Visit<'_>) -> Result<Pieces, Forbidden> {
        let domain = (visit.device, visit.slot.pd.load(Relaxed));
        let mut pieces = Pieces::default();
        for sge in self.ring.elements(self.at).filter(|s| s.length != 0) {
            let range = (sge.addr, u64::from(sge.length));
            let addr = resolve(visit.fabric, domain, sge.lkey, range, access::LOCAL_WRITE)?;
            pieces.push(addr, range.1);
        }
        Ok(pieces)
    }

    /// Completes it.
    #[inline]
    fn finish(&self, visit: &Visit<'_>, request: &Request, bytes: u64, status: Status) -> Verdict {
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

fn not_ready(visit: &Visit<'_>) -> Verdict {
    Verdict::NotReady(visit.slot.rnr_timer.load(Relaxed))
}

/// The responder does not take the request: its QP is in error, its owner gets an event. UC drops it silently.
#[cold]
fn refuse(visit: &Visit<'_>, kind: u32, status: Status) -> Verdict {
    let (fabric, slot) = (visit.fabric, visit.slot);
    if slot.is_uc.load(Relaxed) != 0 {
        return Verdict::Done;
    }
    slot.fail();
    slot.events.fetch_or(1 << kind, SeqCst);
    // Its queues are flushed when their CQs are polled.
    for (queue, number) in [(&slot.send_cq, &slot.send_bit), (&slot.recv_cq, &slot.recv_bit)] {
        let queue = fabric.cq(visit.device, queue.load(Relaxed));
        queue.bell.fetch_or(1 << (number.load(Relaxed) % 64), SeqCst);
    }
    fabric.ring(slot.owner.load(SeqCst));
    Verdict::Failed(status)
}

/// What a failed copy means on the wire.
#[cold]
fn explain(visit: &Visit<'_>, error: CopyError) -> Verdict {
    match error {
        CopyError::Gone => Verdict::Lost,
        _ if visit.is_owner_dead() => Verdict::Lost,
        CopyError::LocalFault => Verdict::Failed(Status::LocProt),
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
