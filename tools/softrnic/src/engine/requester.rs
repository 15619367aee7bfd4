//! The requester: checks the local side of the head request and sends it.

use super::copy::{Pieces, Way, transfer, transfer_by_lines, transfer_shuffled};
use super::moving::{Moving, Path};
use super::responder::{self, Plan};
use super::visit::Visit;
use super::{Verdict, atomic};
use crate::abi::consts::{Status, access, send_flag, wr_opcode};
use crate::abi::types::Sge;
use crate::device::MAX_MESSAGE;
use crate::faults::Twist;
use crate::mr::{Forbidden, resolve};
use crate::qp::Qp;
use crate::send_queue::{Link, Request, SendQueue};

pub(super) const PSN_MASK: u32 = 0xff_ffff;

/// Executes the head request of the queue once, with a fault at the peer if `twist` asks for it.
#[inline]
pub(super) fn execute(qp: &Qp, queue: &mut SendQueue, twist: Option<Twist>) -> Verdict {
    queue.visits = queue.visits.wrapping_add(1);
    queue.link.route.refresh(qp.fabric);
    let (request, sges, inline) = queue.request(queue.executed);
    let brings = brings_data(request.opcode);
    let local = if request.flags & send_flag::INLINE != 0 {
        Ok(Pieces::host(inline.as_ptr() as u64, inline.len() as u64))
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
    if let Some(verdict) = twist.and_then(|twist| responder::twisted(&visit, twist)) {
        return verdict;
    }
    let plan = match responder::admit(&visit, request, local.total) {
        Ok(plan) => plan,
        Err(verdict) => return verdict,
    };
    let total = local.total;
    if total != 0 && (local.has_gpu || plan.remote.has_gpu || !visit.is_reached()) {
        return stage(qp, queue, (visit, plan, local), twist);
    }
    let verdict = deliver(qp, &visit, request, &local, &plan, twist);
    if verdict == Verdict::Done {
        take_number(&visit, &mut queue.link, total);
    }
    verdict
}

/// The message has taken its numbers at both ends.
#[inline]
fn take_number(visit: &Visit, link: &mut Link, bytes: u64) {
    link.psn = link.psn.wrapping_add(link.packets(bytes)) & PSN_MASK;
    visit.advance(link.psn);
}

/// Moves the bytes at once, and has the responder conclude.
#[inline]
fn deliver(qp: &Qp, visit: &Visit, request: &Request, local: &Pieces, plan: &Plan, twist: Option<Twist>) -> Verdict {
    if plan.is_atomic {
        let verdict = atomic::execute(visit, request, local, plan);
        return verdict.unwrap_or_else(|error| responder::conclude(visit, request, plan, local.total, Err(error)));
    }
    let moved = if plan.is_relaxed && qp.fabric.settings.chaos && plan.way == Way::Out {
        transfer_shuffled(visit.pid, local, &plan.remote, u64::from(visit.serial()))
    } else if qp.fabric.settings.lines && plan.way == Way::Out {
        transfer_by_lines(visit.pid, local, &plan.remote)
    } else {
        transfer(visit.pid, plan.way, local, &plan.remote)
    };
    if let (Some(Twist::Corrupt(at)), Ok(())) = (twist, moved) {
        responder::corrupt(visit, plan, at);
    }
    responder::conclude(visit, request, plan, local.total, moved)
}

/// Sends the bytes through the stage.
#[cold]
fn stage(qp: &Qp, queue: &mut SendQueue, (visit, plan, local): (Visit, Plan, Pieces), twist: Option<Twist>) -> Verdict {
    if plan.is_atomic && plan.remote.has_gpu {
        return responder::refuse_atomic(&visit);
    }
    if qp.fabric.open_stage().is_err() {
        return Verdict::Failed(Status::General);
    }
    let spoil = twist.and_then(|twist| if let Twist::Corrupt(bit) = twist { Some(bit) } else { None });
    let (request, ..) = queue.request(queue.executed);
    let path =
        Path { from: qp.name(), to: queue.link.peer, is_uc: qp.is_uc(), psn: queue.link.psn, serial: queue.visits };
    let moving = Moving::new(&visit, path, plan, local, request, spoil);
    drop(visit);
    queue.moving = Some(Box::new(moving));
    proceed(queue)
}

/// Goes on with the head request, whose bytes pass through the stage.
#[cold]
pub(super) fn proceed(queue: &mut SendQueue) -> Verdict {
    let Some(moving) = &mut queue.moving else { return Verdict::Busy };
    let Some((visit, moved)) = moving.proceed() else {
        moving.remind();
        return Verdict::Moving;
    };
    let Some(moving) = queue.moving.take() else { return Verdict::Busy };
    let Some(visit) = visit else { return Verdict::Lost };
    let (request, ..) = queue.request(queue.executed);
    let verdict = responder::conclude(&visit, request, &moving.plan, moving.total(), moved);
    if verdict == Verdict::Done {
        take_number(&visit, &mut queue.link, moving.total());
    }
    verdict
}

/// The local ranges of a request, each allowed by its key.
#[inline]
pub(super) fn gather(qp: &Qp, sges: &[Sge], need: u32) -> Result<Pieces, Forbidden> {
    let mut pieces = Pieces::default();
    for sge in sges.iter().filter(|s| s.length != 0) {
        let range = (sge.addr, u64::from(sge.length));
        let place = resolve(qp.fabric, (qp.device, qp.pd.id), sge.lkey, range, need)?;
        pieces.push(place.piece(sge.lkey, range.1));
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
