//! Working off a send queue.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use super::{Ghost, Verdict, requester, wire};
use crate::abi::consts::{Status, event, qp_state, send_flag, wc_opcode, wr_opcode};
use crate::cq;
use crate::fabric::process::slot_of;
use crate::fabric::{Fabric, lock};
use crate::faults::{self, Effect};
use crate::qp::Qp;
use crate::send_queue::SendQueue;
use crate::timers::{Task, now_ns};

/// How soon to look again at what another process holds for a moment, in ns.
const MOMENT: u64 = 20_000;
/// How soon the service thread looks after bytes that pass through the stage, if no poll does, in ns.
pub(super) const GLANCE: u64 = 100_000;

/// Executes and completes what is posted until the queue is empty or has to wait.
#[inline]
pub(crate) fn pump(qp: &Qp, queue: &mut SendQueue) {
    work_off(qp, queue);
    if queue.wants_drained && !queue.is_under_way() && qp.slot.state.load(SeqCst) == qp_state::SQD {
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

#[inline]
fn work_off(qp: &Qp, queue: &mut SendQueue) {
    loop {
        if queue.acked != queue.executed {
            settle(qp, queue);
        }
        if queue.executed == queue.posted || queue.is_broken {
            return;
        }
        match qp.slot.state.load(SeqCst) {
            qp_state::RTS => {}
            // What has been sent is finished, nothing is begun.
            qp_state::SQD if queue.is_head_sent() => {}
            qp_state::ERR | qp_state::SQE => return flush(qp, queue),
            _ => return,
        }
        if !send(qp, queue) {
            return;
        }
    }
}

/// What every poll of a CQ does while copies are staged.
#[cold]
pub(crate) fn poll(fabric: &'static Fabric) {
    fabric.proc(slot_of(fabric.me)).last_poll.store(now_ns(), Relaxed);
    fabric.server.serve(fabric);
    let movers = lock(&fabric.movers).clone();
    for qp in movers {
        // Another thread may be at it.
        if let Ok(mut queue) = qp.send.try_lock() {
            pump(&qp, &mut queue);
            if queue.moving.is_none() {
                forget(&qp);
            }
        }
    }
}

/// Nothing of `qp` passes through the stage any more.
#[cold]
pub(crate) fn forget(qp: &Qp) {
    lock(&qp.fabric.movers).retain(|mover| !std::ptr::eq(&raw const **mover, qp));
}

/// What the timer of a send queue does.
pub(crate) fn wake(qp: &Qp) {
    let mut queue = lock(&qp.send);
    queue.alarm = u64::MAX;
    pump(qp, &mut queue);
}

/// The head request passes through the stage: polls and a timer see to it.
#[cold]
fn follow(qp: &Qp, queue: &mut SendQueue) {
    let Some(this) = qp.this.upgrade() else { return };
    let mut movers = lock(&qp.fabric.movers);
    if !movers.iter().any(|known| Arc::ptr_eq(known, &this)) {
        movers.push(this);
    }
    drop(movers);
    defer(qp, queue, now_ns() + GLANCE);
}

/// Has the queue pumped at `at` (ns).
fn defer(qp: &Qp, queue: &mut SendQueue, at: u64) {
    if at < queue.alarm
        && let Some(this) = qp.this.upgrade()
    {
        queue.alarm = at;
        qp.fabric.timers.arm(qp.fabric, at, Task::Pump(this));
    }
}

/// Completes what is executed and acknowledged; what is next may be sent while acknowledgements are on their way.
fn settle(qp: &Qp, queue: &mut SendQueue) {
    while let Some(outcome) = queue.outcome() {
        if outcome.ack_at > now_ns() {
            return defer(qp, queue, outcome.ack_at);
        }
        finish(qp, queue, outcome.status);
    }
}

/// The oldest request not acknowledged is over.
#[inline]
fn finish(qp: &Qp, queue: &mut SendQueue, status: Status) {
    if status != Status::Success {
        // Of UC only the sending half fails.
        if qp.is_uc() { qp.slot.fail_send() } else { qp.slot.fail() }
    }
    if !complete(qp, queue, status) {
        // The CQ has overrun: nothing can be reported any more.
        qp.slot.fail();
        queue.discard();
    }
    if status != Status::Success {
        queue.is_broken = false;
        qp.flush_soon();
    }
}

/// In the error states: all that is left is flushed, but what failed says how.
fn flush(qp: &Qp, queue: &mut SendQueue) {
    queue.moving = None;
    while queue.acked != queue.posted {
        let status = match queue.outcome() {
            Some(outcome) if outcome.status != Status::Success => outcome.status,
            _ => Status::Flush,
        };
        if !complete(qp, queue, status) {
            queue.discard();
        }
    }
    queue.is_broken = false;
}

/// Sends the head request if its time has come. False if it has to wait.
#[inline]
fn send(qp: &Qp, queue: &mut SendQueue) -> bool {
    if queue.moving.is_some() {
        let verdict = requester::proceed(queue);
        return judge(qp, queue, verdict);
    }
    let due = queue.head.until.max(queue.request(queue.executed).0.due);
    if due != 0 && due > now_ns() {
        defer(qp, queue, due);
        return false;
    }
    if queue.head.losses > u32::from(queue.link.retry_cnt) {
        conclude(qp, queue, Status::RetryExceeded);
        return true;
    }
    let verdict = match faults::decide(qp, queue) {
        None => requester::execute(qp, queue, None),
        Some(effect) => suffer(qp, queue, effect),
    };
    judge(qp, queue, verdict)
}

/// Sends the head request under a fault.
#[cold]
fn suffer(qp: &Qp, queue: &mut SendQueue, effect: Effect) -> Verdict {
    match effect {
        Effect::Drop => Verdict::Lost,
        Effect::DropAck => {
            queue.head.loses_ack = true;
            requester::execute(qp, queue, None)
        }
        Effect::Delay(ns) if !queue.head.is_delayed => {
            queue.head.is_delayed = true;
            queue.head.until = now_ns() + ns;
            Verdict::Busy
        }
        Effect::Late(ns) => {
            Ghost::launch(qp, queue, now_ns() + ns);
            Verdict::Lost
        }
        Effect::QpError => {
            qp.slot.fail();
            qp.slot.events.fetch_or(1 << event::QP_FATAL, SeqCst);
            qp.fabric.ring(qp.fabric.me);
            Verdict::Failed(Status::LocQpOp)
        }
        Effect::Delay(_) | Effect::None => requester::execute(qp, queue, None),
        Effect::Twist(twist) => requester::execute(qp, queue, Some(twist)),
    }
}

/// Draws the consequences of one transmission. False if the queue has to wait.
#[inline]
fn judge(qp: &Qp, queue: &mut SendQueue, verdict: Verdict) -> bool {
    let is_rc = qp.slot.is_uc.load(Relaxed) == 0;
    let is_unheard = verdict == Verdict::Done && queue.head.loses_ack && is_rc;
    queue.head.is_delivered |= is_unheard;
    queue.head.loses_ack &= verdict == Verdict::Moving;
    match if is_unheard { Verdict::Lost } else { verdict } {
        Verdict::Moving => {
            follow(qp, queue);
            return false;
        }
        Verdict::Failed(status) => conclude(qp, queue, status),
        Verdict::Busy => {
            queue.head.until = queue.head.until.max(now_ns() + MOMENT);
            defer(qp, queue, queue.head.until);
            return false;
        }
        Verdict::Lost if is_rc => {
            queue.head.losses += 1;
            qp.slot.sent.losses.store(qp.slot.sent.losses.load(Relaxed) + 1, Relaxed);
            let timeout = queue.link.timeout;
            // A timeout of 0 is "for ever": nothing would send it again.
            let wait = if timeout == 0 { u64::MAX >> 1 } else { modelled(qp, 4096 << timeout) };
            queue.head.until = now_ns() + wait;
            defer(qp, queue, queue.head.until);
            return false;
        }
        Verdict::NotReady(timer) if is_rc => {
            if queue.link.rnr_retry != 7 && queue.head.rnr_waits >= u32::from(queue.link.rnr_retry) {
                conclude(qp, queue, Status::RnrRetryExceeded);
                return true;
            }
            queue.head.rnr_waits += 1;
            qp.slot.sent.rnr_waits.store(qp.slot.sent.rnr_waits.load(Relaxed) + 1, Relaxed);
            queue.head.until = now_ns() + modelled(qp, rnr_ns(timer));
            defer(qp, queue, queue.head.until);
            return false;
        }
        // UC does not hear of losses.
        Verdict::Done | Verdict::Lost | Verdict::NotReady(_) => conclude(qp, queue, Status::Success),
    }
    true
}

/// The head request is executed, or failed: completes it, at once or when that is known here.
#[inline]
fn conclude(qp: &Qp, queue: &mut SendQueue, status: Status) {
    let ack_at = wire::ack_time(qp, queue);
    if ack_at == 0 && queue.acked == queue.executed {
        finish(qp, queue, status);
    } else {
        queue.executed_until(status, ack_at);
    }
}

/// `ns` of modelled time in real time.
fn modelled(qp: &Qp, ns: u64) -> u64 {
    (ns as f64 * qp.fabric.settings.time_scale) as u64
}

/// Records the outcome of the oldest request not acknowledged. False if its CQ takes no more.
#[inline]
fn complete(qp: &Qp, queue: &mut SendQueue, status: Status) -> bool {
    let (request, sges, inline) = queue.request(queue.acked);
    let is_completion = status != Status::Success || qp.signal_all || request.flags & send_flag::SIGNALED != 0;
    let cq = qp.send_cq.slot;
    if is_completion && !cq::admit(qp.fabric, cq) {
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
    }
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
