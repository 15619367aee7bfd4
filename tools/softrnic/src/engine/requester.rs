//! The requester: checks the local side of the head request and sends it.

use super::copy::{CopyError, Pieces, Way, transfer, transfer_shuffled};
use super::responder::{self, Plan};
use super::visit::Visit;
use super::{Verdict, atomic};
use crate::abi::consts::{Status, access, send_flag, wr_opcode};
use crate::abi::types::Sge;
use crate::device::MAX_MESSAGE;
use crate::faults::Twist;
use crate::mr::{Forbidden, resolve};
use crate::qp::Qp;
use crate::send_queue::{Request, SendQueue};

pub(super) const PSN_MASK: u32 = 0xff_ffff;

/// Executes the head request of the queue once, with a fault at the peer if `twist` asks for it.
#[inline]
pub(super) fn execute(qp: &Qp, queue: &mut SendQueue, twist: Option<Twist>) -> Verdict {
    queue.visits = queue.visits.wrapping_add(1);
    queue.link.route.refresh(qp.fabric);
    let (request, sges, inline) = queue.request(queue.executed);
    let brings = brings_data(request.opcode);
    let local = if request.flags & send_flag::INLINE != 0 {
        Ok(Pieces::one(inline.as_ptr() as u64, inline.len() as u64))
    } else {
        gather(qp, sges, if brings { access::LOCAL_WRITE } else { 0 })
    };
    let Ok(local) = local else { return Verdict::Failed(Status::LocProt) };
    if local.total > u64::from(MAX_MESSAGE) {
        return Verdict::Failed(Status::LocLen);
    }
    if brings && queue.link.reads == 0 {
        return Verdict::Failed(Status::LocQpOp);
    }
    let link = &queue.link;
    if !link.route.carries(local.total) {
        return Verdict::Lost;
    }
    let Some(visit) = Visit::enter(qp.fabric, link.peer, qp.name(), queue.visits) else { return Verdict::Lost };
    if !visit.expects(qp.is_uc(), link.psn) {
        return Verdict::Lost;
    }
    if queue.head.is_delivered {
        // A duplicate: the responder only acknowledges it.
        return Verdict::Done;
    }
    let next = link.psn.wrapping_add(link.packets(local.total)) & PSN_MASK;
    let verdict = deliver(qp, &visit, request, &local, twist);
    if verdict == Verdict::Done {
        visit.advance(next);
        drop(visit);
        queue.link.psn = next;
    }
    verdict
}

/// The responder's part.
#[inline]
fn deliver(qp: &Qp, visit: &Visit, request: &Request, local: &Pieces, twist: Option<Twist>) -> Verdict {
    if let Some(verdict) = twist.and_then(|twist| responder::twisted(visit, twist)) {
        return verdict;
    }
    let plan = match responder::admit(visit, request, local.total) {
        Ok(plan) => plan,
        Err(verdict) => return verdict,
    };
    if plan.is_atomic {
        let verdict = atomic::execute(visit, request, local, &plan);
        return verdict.unwrap_or_else(|error| responder::conclude(visit, request, &plan, local.total, Err(error)));
    }
    let moved = move_bytes(qp, visit, local, &plan);
    if let (Some(Twist::Corrupt(at)), Ok(())) = (twist, moved) {
        responder::corrupt(visit, &plan, at);
    }
    responder::conclude(visit, request, &plan, local.total, moved)
}

#[inline]
fn move_bytes(qp: &Qp, visit: &Visit, local: &Pieces, plan: &Plan) -> Result<(), CopyError> {
    if plan.is_relaxed && qp.fabric.settings.chaos && plan.way == Way::Out {
        return transfer_shuffled(visit.pid, local, &plan.remote, u64::from(visit.serial()));
    }
    transfer(visit.pid, plan.way, local, &plan.remote)
}

/// The local ranges of a request, each allowed by its key.
#[inline]
pub(super) fn gather(qp: &Qp, sges: &[Sge], need: u32) -> Result<Pieces, Forbidden> {
    let mut pieces = Pieces::default();
    for sge in sges.iter().filter(|s| s.length != 0) {
        let range = (sge.addr, u64::from(sge.length));
        let place = resolve(qp.fabric, (qp.device, qp.pd.id), sge.lkey, range, need)?;
        pieces.push(place.addr, range.1);
    }
    Ok(pieces)
}

/// Whether the answer brings data.
fn brings_data(opcode: u32) -> bool {
    matches!(opcode, wr_opcode::RDMA_READ..=wr_opcode::ATOMIC_FETCH_ADD)
}

/// Whether the opcode carries immediate data.
pub(super) fn has_imm(request: &Request) -> bool {
    matches!(request.opcode, wr_opcode::RDMA_WRITE_WITH_IMM | wr_opcode::SEND_WITH_IMM)
}
