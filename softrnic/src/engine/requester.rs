//! The requester: checks the local side of the head request and sends it.

use crate::abi::consts::{Status, access, send_flag, wr_opcode};
use crate::abi::types::Sge;
use crate::copy::piece::{Direction, Pieces};
use crate::copy::transfer::{transfer, transfer_by_lines, transfer_shuffled};
use crate::limits::MAX_MESSAGE;
use crate::objects::qp::Qp;
use crate::objects::send_queue::{Link, SendQueue};
use crate::remote::atomic;
use crate::remote::guard::RemoteQpGuard;
use crate::remote::keys::{Forbidden, resolve};
use crate::remote::outcome::TxOutcome;
use crate::remote::request::{Request, brings_data};
use crate::remote::responder::{self, Admission, ResponderFault};
use crate::remote::staged_transfer::{Path, StagedTransfer};

pub(crate) const PSN_MASK: u32 = 0xff_ffff;

/// Executes the head request of the queue once, with a fault at the peer if `fault` asks for it.
#[inline]
pub(crate) fn execute(qp: &Qp, queue: &mut SendQueue, fault: Option<ResponderFault>) -> TxOutcome {
    queue.entries = queue.entries.wrapping_add(1);
    queue.link.route.refresh(qp.fabric);
    let (request, sges, inline) = queue.request(queue.executed);
    let is_answered_with_data = brings_data(request.opcode);
    let local = if request.flags & send_flag::INLINE != 0 {
        Ok(Pieces::host(inline.as_ptr() as u64, inline.len() as u64))
    } else {
        gather(qp, sges, if is_answered_with_data { access::LOCAL_WRITE } else { 0 })
    };
    let Ok(local) = local else { return TxOutcome::Failed(Status::LocProt) };
    if local.total > u64::from(MAX_MESSAGE) {
        return TxOutcome::Failed(Status::LocLen);
    }
    if is_answered_with_data && queue.link.reads == 0 {
        return TxOutcome::Failed(Status::LocQpOp);
    }
    let link = &queue.link;
    if !link.route.carries(local.total) {
        let is_refused = link.route.is_refused() && !qp.is_unreliable();
        return if is_refused { TxOutcome::Failed(Status::LocQpOp) } else { TxOutcome::Lost };
    }
    let Some(guard) = RemoteQpGuard::enter(qp.fabric, link.peer, qp.name(), queue.entries) else {
        return TxOutcome::Lost;
    };
    if !guard.expects(qp.is_unreliable(), link.psn) {
        return TxOutcome::Lost;
    }
    if queue.head.is_delivered {
        // A duplicate: the responder only acknowledges it.
        return TxOutcome::Done;
    }
    let admitted = match fault.and_then(|fault| responder::faulty(&guard, fault)) {
        Some(outcome) => Err(outcome),
        None => responder::admit(&guard, request, local.total),
    };
    let admission = match admitted {
        Ok(admission) => admission,
        Err(outcome @ TxOutcome::NotReady(_)) if qp.fabric.settings.rnr_places && !queue.head.is_placed => {
            let outcome = place_first_packets(qp, &guard, (request, link), &local, outcome);
            queue.head.is_placed = true;
            return outcome;
        }
        Err(outcome) => return outcome,
    };
    let total = local.total;
    let local = match fault {
        // Of an atomic nothing is done: it is one packet.
        Some(ResponderFault::Cut(_)) if total == 0 || admission.is_atomic => return TxOutcome::Lost,
        Some(ResponderFault::Cut(bytes)) => local.part(0, bytes),
        _ => local,
    };
    if fault == Some(ResponderFault::Forget) && admission.direction == Direction::Out {
        take_number(&guard, &mut queue.link, total);
        return TxOutcome::Done;
    }
    if total != 0 && (local.has_gpu || admission.remote.has_gpu || !guard.is_reached()) {
        return begin_staged(qp, queue, (guard, admission, local), fault);
    }
    let outcome = deliver(qp, &guard, request, &local, &admission, fault);
    if outcome == TxOutcome::Done {
        take_number(&guard, &mut queue.link, total);
    }
    outcome
}

/// The head request meets no receive, which a write notices with its last packet: places the packets before. What comes of it is
/// `not_ready`, unless these fail. Where copies are staged, nothing is placed.
#[cold]
fn place_first_packets(
    qp: &Qp,
    guard: &RemoteQpGuard,
    (request, link): (&Request, &Link),
    local: &Pieces,
    not_ready: TxOutcome,
) -> TxOutcome {
    let bytes = u64::from(link.packets(local.total) - 1) * u64::from(link.mtu_bytes);
    if request.opcode != wr_opcode::RDMA_WRITE_WITH_IMM || bytes == 0 {
        return not_ready;
    }
    let admission = match responder::admit_first_packets(guard, request, local.total) {
        Ok(admission) => admission,
        Err(outcome) => return outcome,
    };
    if local.has_gpu || admission.remote.has_gpu || !guard.is_reached() {
        return not_ready;
    }
    match deliver(qp, guard, request, &local.part(0, bytes), &admission, None) {
        TxOutcome::Done => not_ready,
        outcome => outcome,
    }
}

/// The message has taken its numbers at both ends.
#[inline]
fn take_number(guard: &RemoteQpGuard, link: &mut Link, bytes: u64) {
    link.psn = link.psn.wrapping_add(link.packets(bytes)) & PSN_MASK;
    guard.advance(link.psn);
}

/// Moves the bytes at once, and has the responder conclude.
#[inline]
fn deliver(
    qp: &Qp,
    guard: &RemoteQpGuard,
    request: &Request,
    local: &Pieces,
    admission: &Admission,
    fault: Option<ResponderFault>,
) -> TxOutcome {
    if admission.is_atomic {
        let outcome = atomic::execute(guard, request, local, admission);
        return outcome.unwrap_or_else(|error| responder::conclude(guard, request, admission, local.total, Err(error)));
    }
    let moved = if admission.is_relaxed && qp.fabric.settings.chaos && admission.direction == Direction::Out {
        transfer_shuffled(guard.pid, local, &admission.remote, u64::from(guard.serial()))
    } else if qp.fabric.settings.lines && admission.direction == Direction::Out {
        transfer_by_lines(guard.pid, local, &admission.remote)
    } else {
        transfer(guard.pid, admission.direction, local, &admission.remote)
    };
    if let (Some(ResponderFault::Corrupt(at)), Ok(())) = (fault, moved) {
        responder::corrupt(guard, admission, at);
    }
    if let (Some(ResponderFault::Cut(_)), Ok(())) = (fault, moved) {
        return TxOutcome::Lost;
    }
    responder::conclude(guard, request, admission, local.total, moved)
}

/// Sends the bytes through the stage.
#[cold]
fn begin_staged(
    qp: &Qp,
    queue: &mut SendQueue,
    (guard, admission, local): (RemoteQpGuard, Admission, Pieces),
    fault: Option<ResponderFault>,
) -> TxOutcome {
    if admission.is_atomic && admission.remote.has_gpu {
        return responder::refuse_atomic(&guard);
    }
    if qp.fabric.open_stage().is_err() {
        return TxOutcome::Failed(Status::General);
    }
    let (request, ..) = queue.request(queue.executed);
    let path = Path {
        from: qp.name(),
        to: queue.link.peer,
        is_unreliable: qp.is_unreliable(),
        psn: queue.link.psn,
        serial: queue.entries,
    };
    let staged = StagedTransfer::new(&guard, path, admission, local, request, fault);
    drop(guard);
    queue.staged = Some(Box::new(staged));
    proceed(queue)
}

/// Goes on with the head request, whose bytes pass through the stage.
#[cold]
pub(crate) fn proceed(queue: &mut SendQueue) -> TxOutcome {
    let Some(staged) = &mut queue.staged else { return TxOutcome::Busy };
    let Some((guard, moved)) = staged.proceed() else {
        staged.remind();
        return TxOutcome::Staged;
    };
    let Some(staged) = queue.staged.take() else { return TxOutcome::Busy };
    let Some(guard) = guard else { return TxOutcome::Lost };
    let (request, ..) = queue.request(queue.executed);
    if staged.is_cut && moved.is_ok() {
        return TxOutcome::Lost;
    }
    let outcome = responder::conclude(&guard, request, &staged.admission, staged.total(), moved);
    if outcome == TxOutcome::Done {
        take_number(&guard, &mut queue.link, staged.total());
    }
    outcome
}

/// The local ranges of a request, each allowed by its key.
#[inline]
pub(crate) fn gather(qp: &Qp, sges: &[Sge], need: u32) -> Result<Pieces, Forbidden> {
    let mut pieces = Pieces::default();
    for sge in sges.iter().filter(|s| s.length != 0) {
        let range = (sge.addr, u64::from(sge.length));
        let memory = resolve(qp.fabric, (qp.device, qp.pd.id), sge.lkey, range, need)?;
        pieces.push(memory.piece(sge.lkey, range.1));
    }
    Ok(pieces)
}
