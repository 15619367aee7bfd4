//! Recording the outcome of a request.

use std::sync::atomic::Ordering::Relaxed;

use crate::abi::consts::{Status, send_flag, wc_opcode, wr_opcode};
use crate::objects::qp::Qp;
use crate::objects::send_queue::SendQueue;
use crate::remote::completion;

/// Records the outcome of the oldest request not acknowledged. False if its CQ takes no more.
#[inline]
pub(crate) fn complete(qp: &Qp, queue: &mut SendQueue, status: Status) -> bool {
    let (request, sges, inline) = queue.request(queue.acked);
    let is_completion = status != Status::Success || qp.signal_all || request.flags & send_flag::SIGNALED != 0;
    let cq = qp.send_cq.slot;
    if is_completion && !completion::admit(qp.fabric, cq) {
        return false;
    }
    let opcode = match request.opcode {
        wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => wc_opcode::RDMA_WRITE,
        wr_opcode::RDMA_READ => wc_opcode::RDMA_READ,
        wr_opcode::ATOMIC_CMP_SWAP => wc_opcode::COMP_SWAP,
        wr_opcode::ATOMIC_FETCH_ADD => wc_opcode::FETCH_ADD,
        _ => wc_opcode::SEND,
    };
    let bytes = inline.len() as u32 + sges.iter().map(|s| s.length).fold(0, u32::wrapping_add);
    qp.send_ring.record(queue.acked, request.wr_id, status as u32, opcode, bytes, is_completion);
    if status == Status::Success {
        let sent = &qp.slot.sent;
        sent.messages.store(sent.messages.load(Relaxed) + 1, Relaxed);
        sent.bytes.store(sent.bytes.load(Relaxed) + u64::from(bytes), Relaxed);
        let has_immediate = matches!(request.opcode, wr_opcode::RDMA_WRITE_WITH_IMM | wr_opcode::SEND_WITH_IMM);
        qp.slot.work.acknowledged(queue.link.packets(bytes.into()), has_immediate);
    }
    queue.advance();
    if is_completion {
        completion::announce(qp.fabric, cq, qp.slot.send_bit.load(Relaxed), status != Status::Success);
    }
    true
}
