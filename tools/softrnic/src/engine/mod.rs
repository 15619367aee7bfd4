//! The data path: whoever posts a request also executes it, on both sides.
//!
//! `pump` works off a send queue; `requester` gathers and checks the local side; `visit` enters the peer's QP;
//! `responder` does there what the peer's NIC would; `copy` moves the bytes. What has to wait is left in the queue with a
//! time, for the next poll or the service thread.

mod copy;
mod requester;
mod responder;
mod visit;

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::abi::consts::{Status, event, qp_state, send_flag, wc_opcode, wr_opcode};
use crate::cq;
use crate::fabric::lock;
use crate::qp::Qp;
use crate::send_queue::SendQueue;
use crate::service::now_ns;

/// What one transmission of a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Acknowledged.
    Done,
    /// No answer: nobody there, or nobody who feels addressed.
    Lost,
    /// "Receiver not ready", with the responder's timer code.
    NotReady(u32),
    /// Failed for good.
    Failed(Status),
}

/// Executes what is posted until the queue is empty or has to wait.
pub(crate) fn pump(qp: &Qp, queue: &mut SendQueue) {
    work_off(qp, queue);
    if queue.wants_drained && !queue.is_under_way() && qp.slot.state.load(Relaxed) == qp_state::SQD {
        queue.wants_drained = false;
        qp.tell_owner(event::SQ_DRAINED);
    }
}

/// The state has become SQD, or is SQD no more.
pub(crate) fn drain(qp: &Qp, wants_notice: bool) {
    let queue = &mut lock(&qp.send);
    queue.wants_drained = wants_notice;
    pump(qp, queue);
}

fn work_off(qp: &Qp, queue: &mut SendQueue) {
    while queue.executed != queue.posted {
        match qp.slot.state.load(SeqCst) {
            qp_state::RTS => {}
            // What has been sent is finished, nothing is begun.
            qp_state::SQD if queue.is_under_way() => {}
            qp_state::ERR | qp_state::SQE => {
                if !complete(qp, queue, Status::Flush) {
                    // The CQ has overrun: nothing can be reported any more.
                    queue.executed = queue.posted;
                }
                continue;
            }
            _ => return,
        }
        if queue.until != 0 && queue.until > now_ns() {
            return;
        }
        if queue.losses > u32::from(queue.link.retry_cnt) {
            fail(qp, queue, Status::RetryExceeded);
            continue;
        }
        let verdict = requester::execute(qp, queue);
        let is_rc = qp.slot.is_uc.load(Relaxed) == 0;
        match verdict {
            Verdict::Failed(status) => fail(qp, queue, status),
            Verdict::Lost if is_rc => {
                queue.losses += 1;
                let timeout = queue.link.timeout;
                // A timeout of 0 is "for ever": nothing would send it again.
                queue.until = if timeout == 0 { u64::MAX } else { wait(qp, 4096 << timeout) };
                return;
            }
            Verdict::NotReady(timer) if is_rc => {
                if queue.link.rnr_retry != 7 && queue.rnr_waits >= u32::from(queue.link.rnr_retry) {
                    fail(qp, queue, Status::RnrRetryExceeded);
                    continue;
                }
                queue.rnr_waits += 1;
                queue.until = wait(qp, rnr_ns(timer));
                return;
            }
            // UC does not hear of losses.
            Verdict::Done | Verdict::Lost | Verdict::NotReady(_) => {
                if !complete(qp, queue, Status::Success) {
                    qp.slot.fail();
                }
            }
        }
    }
}

/// Has the queue looked at again after `ns` of modelled time; returns when that is.
fn wait(qp: &Qp, ns: u64) -> u64 {
    let until = now_ns() + (ns as f64 * qp.fabric.settings.time_scale) as u64;
    defer(qp, until);
    until
}

/// Has `qp` pumped at `until`, by a poll or by the service thread.
pub(crate) fn defer(qp: &Qp, until: u64) {
    if let Some(this) = qp.this.upgrade() {
        qp.fabric.timers.arm(qp.fabric, until, this);
    }
}

/// The head request failed: it says so, and the QP is in error; of UC only its send queue.
fn fail(qp: &Qp, queue: &mut SendQueue, status: Status) {
    if qp.slot.is_uc.load(Relaxed) == 0 {
        qp.slot.fail();
    } else {
        qp.slot.fail_send();
    }
    if !complete(qp, queue, status) {
        queue.executed = queue.posted;
    }
    // The receive side is flushed when its CQ is polled.
    qp.ring_recv();
}

/// Records the outcome of the head request. False if its CQ takes no more.
fn complete(qp: &Qp, queue: &mut SendQueue, status: Status) -> bool {
    let (request, sges, inline) = queue.head();
    let is_completion = status != Status::Success || qp.signal_all || request.flags & send_flag::SIGNALED != 0;
    let cq = qp.send_cq.slot;
    if is_completion && !cq::admit(qp.fabric, cq) {
        return false;
    }
    let opcode = match request.opcode {
        wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => wc_opcode::RDMA_WRITE,
        wr_opcode::RDMA_READ => wc_opcode::RDMA_READ,
        _ => wc_opcode::SEND,
    };
    let bytes = inline.len() as u32 + sges.iter().map(|s| s.length).fold(0, u32::wrapping_add);
    qp.send_ring.record(queue.executed, request.wr_id, status as u32, opcode, bytes, is_completion);
    queue.advance();
    if is_completion {
        cq::announce(qp.fabric, cq, qp.slot.send_bit.load(Relaxed), status != Status::Success);
    }
    true
}

/// The wait that a timer code of the responder asks for.
fn rnr_ns(code: u32) -> u64 {
    const HUNDREDTHS_OF_MS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072,
        4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    HUNDREDTHS_OF_MS[code as usize & 31] * 10_000
}
