//! Working off a send queue.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::abi::consts::{Status, event, qp_state};
use crate::engine::complete::complete;
use crate::engine::delayed_packet::DelayedPacket;
use crate::engine::fault_hook::Fault;
use crate::engine::flush::{flush_recv, is_silent};
use crate::engine::state::Engine;
use crate::engine::wait::{BUSY_RETRY_NS, STAGED_CHECK_NS, modelled_ns, rnr_ns};
use crate::engine::{datagram, requester, wire};
use crate::host::clock::now_ns;
use crate::host::lock::lock;
use crate::objects::qp::Qp;
use crate::objects::send_queue::SendQueue;
use crate::process::timers::Task;
use crate::remote::outcome::TxOutcome;
use crate::remote::responder::ResponderFault;

/// Executes and completes what is posted until the queue is empty or has to wait.
#[inline]
pub(crate) fn pump(engine: &'static Engine, qp: &Qp, queue: &mut SendQueue) {
    work_off(engine, qp, queue);
    if queue.wants_drained && !queue.is_under_way() && qp.slot.state.load(SeqCst) == qp_state::SQD {
        queue.wants_drained = false;
        qp.tell_owner(event::SQ_DRAINED);
    }
}

/// The state has become SQD, or is SQD no more.
pub(crate) fn drain(engine: &'static Engine, qp: &Qp, wants_event: bool) {
    let queue = &mut lock(&qp.send);
    queue.wants_drained = wants_event;
    pump(engine, qp, queue);
}

#[inline]
fn work_off(engine: &'static Engine, qp: &Qp, queue: &mut SendQueue) {
    loop {
        if queue.acked != queue.executed {
            settle(engine, qp, queue);
        }
        if queue.executed == queue.posted || queue.is_broken {
            return;
        }
        match qp.slot.state.load(SeqCst) {
            qp_state::RTS => {}
            // What has been sent is finished, nothing is begun.
            qp_state::SQD if queue.is_head_sent() => {}
            qp_state::ERR | qp_state::SQE if !is_silent(qp) => return flush_send(qp, queue),
            _ => return,
        }
        if !send(engine, qp, queue) {
            return;
        }
    }
}

/// A send queue that waits for something is looked at again.
#[derive(Debug)]
struct Pump {
    engine: &'static Engine,
    qp: Arc<Qp>,
}

impl Task for Pump {
    fn run(self: Box<Self>) {
        let mut queue = lock(&self.qp.send);
        queue.alarm = u64::MAX;
        pump(self.engine, &self.qp, &mut queue);
    }
}

/// The head request passes through the stage: polls and a timer see to it.
#[cold]
fn follow(engine: &'static Engine, qp: &Qp, queue: &mut SendQueue) {
    let Some(this) = qp.this.upgrade() else { return };
    let mut staging = lock(&engine.staging);
    if !staging.iter().any(|known| Arc::ptr_eq(known, &this)) {
        staging.push(this);
    }
    drop(staging);
    defer(engine, qp, queue, now_ns() + STAGED_CHECK_NS);
}

/// Has the queue pumped at `at` (ns).
fn defer(engine: &'static Engine, qp: &Qp, queue: &mut SendQueue, at: u64) {
    if at < queue.alarm
        && let Some(this) = qp.this.upgrade()
    {
        queue.alarm = at;
        engine.fabric.arm(at, Box::new(Pump { engine, qp: this }));
    }
}

/// Completes what is executed and acknowledged; what is next may be sent while acknowledgements are on their way.
fn settle(engine: &'static Engine, qp: &Qp, queue: &mut SendQueue) {
    while let Some(outcome) = queue.outcome() {
        if outcome.ack_at > now_ns() {
            return defer(engine, qp, queue, outcome.ack_at);
        }
        finish(engine, qp, queue, outcome.status);
    }
}

/// The oldest request not acknowledged is over.
#[inline]
fn finish(engine: &'static Engine, qp: &Qp, queue: &mut SendQueue, status: Status) {
    if status != Status::Success {
        // Of UC and UD only the sending half fails.
        if qp.is_unreliable() { qp.slot.fail_send() } else { qp.slot.fail() }
    }
    if !complete(qp, queue, status) {
        // The CQ has overrun: nothing can be reported any more.
        qp.slot.fail();
        queue.discard();
    }
    if status != Status::Success {
        queue.is_broken = false;
        flush_soon(engine, qp);
    }
}

/// In the error states: all that is left is flushed, but what failed says how.
fn flush_send(qp: &Qp, queue: &mut SendQueue) {
    queue.staged = None;
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
fn send(engine: &'static Engine, qp: &Qp, queue: &mut SendQueue) -> bool {
    if queue.staged.is_some() {
        let outcome = if qp.is_ud() { datagram::proceed(qp, queue) } else { requester::proceed(queue) };
        return handle_result(engine, qp, queue, outcome);
    }
    let due = queue.head.until.max(queue.request(queue.executed).0.due);
    if due != 0 && due > now_ns() {
        defer(engine, qp, queue, due);
        return false;
    }
    let is_endless = queue.link.retry_cnt == 7 && qp.fabric.settings.endless_retries;
    if queue.head.losses > u32::from(queue.link.retry_cnt) && !is_endless {
        conclude(engine, qp, queue, Status::RetryExceeded);
        return true;
    }
    let outcome = match engine.faults.on_transmission(qp, queue) {
        None if qp.is_ud() => datagram::execute(qp, queue, None),
        None => requester::execute(qp, queue, None),
        Some(fault) => apply_fault(qp, queue, fault),
    };
    handle_result(engine, qp, queue, outcome)
}

/// Executes the head request once, with a fault at the peer if `fault` asks for it.
#[cold]
fn execute(qp: &Qp, queue: &mut SendQueue, fault: Option<ResponderFault>) -> TxOutcome {
    if qp.is_ud() { datagram::execute(qp, queue, fault) } else { requester::execute(qp, queue, fault) }
}

/// Sends the head request under a fault.
#[cold]
fn apply_fault(qp: &Qp, queue: &mut SendQueue, fault: Fault) -> TxOutcome {
    match fault {
        Fault::Drop => TxOutcome::Lost,
        Fault::DropAck => {
            queue.head.loses_ack = true;
            execute(qp, queue, None)
        }
        Fault::Delay(ns) if !queue.head.is_delayed => {
            queue.head.is_delayed = true;
            queue.head.until = now_ns() + ns;
            TxOutcome::Busy
        }
        Fault::Late(ns) => {
            DelayedPacket::launch(qp, queue, now_ns() + ns);
            TxOutcome::Lost
        }
        Fault::QpError => {
            qp.slot.fail();
            qp.slot.events.fetch_or(1 << event::QP_FATAL, SeqCst);
            qp.fabric.wake(qp.fabric.me);
            TxOutcome::Failed(Status::LocQpOp)
        }
        Fault::Delay(_) => execute(qp, queue, None),
        Fault::Responder(fault) => execute(qp, queue, Some(fault)),
    }
}

/// Does what follows from one transmission. False if the queue has to wait.
#[inline]
fn handle_result(engine: &'static Engine, qp: &Qp, queue: &mut SendQueue, outcome: TxOutcome) -> bool {
    let is_rc = !qp.is_unreliable();
    let is_ack_lost = outcome == TxOutcome::Done && queue.head.loses_ack && is_rc;
    queue.head.is_delivered |= is_ack_lost;
    queue.head.loses_ack &= outcome == TxOutcome::Staged;
    match if is_ack_lost { TxOutcome::Lost } else { outcome } {
        TxOutcome::Staged => {
            follow(engine, qp, queue);
            return false;
        }
        TxOutcome::Failed(status) => conclude(engine, qp, queue, told(qp, status)),
        TxOutcome::Busy => {
            queue.head.until = queue.head.until.max(now_ns() + BUSY_RETRY_NS);
            defer(engine, qp, queue, queue.head.until);
            return false;
        }
        TxOutcome::Lost if is_rc => {
            queue.head.losses += 1;
            qp.slot.sent.losses.store(qp.slot.sent.losses.load(Relaxed) + 1, Relaxed);
            let timeout = queue.link.timeout;
            // A timeout of 0 is "for ever": nothing would send it again.
            let wait = if timeout == 0 { u64::MAX >> 1 } else { modelled_ns(qp, 4096 << timeout) };
            queue.head.until = now_ns() + wait;
            defer(engine, qp, queue, queue.head.until);
            return false;
        }
        TxOutcome::NotReady(timer) if is_rc => {
            if queue.link.rnr_retry != 7 && queue.head.rnr_waits >= u32::from(queue.link.rnr_retry) {
                conclude(engine, qp, queue, Status::RnrRetryExceeded);
                return true;
            }
            queue.head.rnr_waits += 1;
            qp.slot.sent.rnr_waits.store(qp.slot.sent.rnr_waits.load(Relaxed) + 1, Relaxed);
            queue.head.until = now_ns() + modelled_ns(qp, rnr_ns(timer));
            defer(engine, qp, queue, queue.head.until);
            return false;
        }
        // UC does not learn of losses.
        TxOutcome::Done | TxOutcome::Lost | TxOutcome::NotReady(_) => conclude(engine, qp, queue, Status::Success),
    }
    true
}

/// The status that tells of a failure with `status`.
#[cold]
fn told(qp: &Qp, status: Status) -> Status {
    let is_found_here = matches!(status, Status::LocLen | Status::LocQpOp | Status::LocProt);
    if is_found_here && qp.fabric.settings.flush_only { Status::Flush } else { status }
}

/// The head request is executed, or failed: completes it, at once or when that is known here.
#[inline]
fn conclude(engine: &'static Engine, qp: &Qp, queue: &mut SendQueue, status: Status) {
    let ack_at = wire::ack_time(qp, queue);
    if ack_at == 0 && queue.acked == queue.executed {
        finish(engine, qp, queue, status);
    } else {
        queue.executed_until(status, ack_at);
    }
}

/// In the error state: completes both queues as flushed. False while a peer is still in the queue pair.
pub(crate) fn flush(engine: &'static Engine, qp: &Qp) -> bool {
    pump(engine, qp, &mut lock(&qp.send));
    let _guard = lock(&qp.recv);
    flush_recv(engine, qp)
}

/// Has the queues flushed by the next poll, or by the service thread if there is none: the application may be waiting
/// for just these completions on a channel.
pub(crate) fn flush_soon(engine: &'static Engine, qp: &Qp) {
    qp.ring_recv();
    flush_at(engine, qp, now_ns());
}

/// A queue pair that fails is flushed even if nobody polls.
#[derive(Debug)]
struct Flush {
    engine: &'static Engine,
    qp: Arc<Qp>,
}

impl Task for Flush {
    fn run(self: Box<Self>) {
        finish_failure(self.engine, &self.qp);
    }
}

pub(crate) fn flush_at(engine: &'static Engine, qp: &Qp, at: u64) {
    if let Some(qp) = qp.this.upgrade() {
        engine.fabric.arm(at, Box::new(Flush { engine, qp }));
    }
}

/// For the service thread: completes what is left in a queue pair that has failed, or that a peer meant to fail when it
/// died.
pub(crate) fn finish_failure(engine: &'static Engine, qp: &Qp) {
    const PAUSE: u64 = 1_000_000;
    let guard = lock(&qp.recv);
    if !qp.is_in_fabric() {
        return;
    }
    let holder = qp.slot.busy.load(SeqCst);
    let is_visited = holder != 0 && qp.fabric.live_process(holder as u32).is_some();
    // Of those that send datagrams none means the queue pair to fail.
    if holder != 0 && !is_visited && !qp.is_ud() {
        qp.slot.fail();
    }
    drop(guard);
    if is_visited || (qp.slot.state.load(SeqCst) == qp_state::ERR && !flush(engine, qp)) {
        flush_at(engine, qp, now_ns() + PAUSE);
    }
}
