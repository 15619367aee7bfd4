//! The requester: checks the local side of the head request and sends it.

use std::sync::atomic::Ordering::SeqCst;

use super::Verdict;
use super::copy::Pieces;
use super::responder;
use super::visit::Visit;
use crate::abi::consts::{Status, access, send_flag, wr_opcode};
use crate::abi::types::Sge;
use crate::device::MAX_MESSAGE;
use crate::mr::{Forbidden, resolve};
use crate::qp::Qp;
use crate::send_queue::{Request, SendQueue};

const PSN_MASK: u32 = 0xff_ffff;

/// Executes the head request of the queue once.
#[inline]
pub(super) fn execute(qp: &Qp, queue: &mut SendQueue) -> Verdict {
    queue.visits = queue.visits.wrapping_add(1);
    queue.link.route.refresh(qp.fabric);
    let (request, sges, inline) = queue.head();
    let is_read = request.opcode == wr_opcode::RDMA_READ;
    let local = if request.flags & send_flag::INLINE != 0 {
        Ok(Pieces::one(inline.as_ptr() as u64, inline.len() as u64))
    } else {
        gather(qp, sges, if is_read { access::LOCAL_WRITE } else { 0 })
    };
    let Ok(local) = local else { return Verdict::Failed(Status::LocProt) };
    if local.total > u64::from(MAX_MESSAGE) {
        return Verdict::Failed(Status::LocLen);
    }
    if is_read && queue.link.reads == 0 {
        return Verdict::Failed(Status::LocQpOp);
    }
    let link = &queue.link;
    if !link.route.carries(local.total) {
        return Verdict::Lost;
    }
    let Some(visit) = Visit::enter(qp.fabric, link.peer, qp.name(), queue.visits) else { return Verdict::Lost };
    let is_uc = visit.slot.is_uc.load(SeqCst) != 0;
    if is_uc != (qp.slot.is_uc.load(SeqCst) != 0) || (!is_uc && visit.slot.expected_psn.load(SeqCst) != link.psn) {
        return Verdict::Lost;
    }
    visit.greet();
    let verdict = responder::handle(&visit, request, &local);
    if verdict == Verdict::Done {
        let packets = (local.total as u32).div_ceil(link.mtu_bytes).max(1);
        let next = link.psn.wrapping_add(packets) & PSN_MASK;
        visit.slot.expected_psn.store(next, SeqCst);
        drop(visit);
        queue.link.psn = next;
    }
    verdict
}

/// The local ranges of a request, each allowed by its key.
#[inline]
fn gather(qp: &Qp, sges: &[Sge], need: u32) -> Result<Pieces, Forbidden> {
    let mut pieces = Pieces::default();
    for sge in sges.iter().filter(|s| s.length != 0) {
        let range = (sge.addr, u64::from(sge.length));
        let addr = resolve(qp.fabric, (qp.device, qp.pd.id), sge.lkey, range, need)?;
        pieces.push(addr, range.1);
    }
    Ok(pieces)
}

/// Whether the opcode carries immediate data.
pub(super) fn has_imm(request: &Request) -> bool {
    matches!(request.opcode, wr_opcode::RDMA_WRITE_WITH_IMM | wr_opcode::SEND_WITH_IMM)
}
