//! The requester: checks the local side of the head request and sends it.

use std::fmt::Debug;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::{Arc, Weak, mpsc};
use std::{mem, ptr, thread};

use crate::abi::types::{Status, access, event, qp_state, send_flag, wc_opcode, wr_opcode};
use crate::copy::transfer::{
    CopyError, Direction, Pieces, transfer, transfer_by_lines, transfer_shuffled,
};
use crate::engine::datagrams;
use crate::engine::{Engine, FAILS, Fault, gather, is_silent};
use crate::host::{lock, now_ns};
use crate::limits::MAX_MESSAGE;
use crate::network::topology::PortId;
use crate::objects::context::Context;
use crate::objects::qp::Qp;
use crate::objects::send_queue::{Link, SendQueue};
use crate::process::fabric::{Fabric, Task};
use crate::remote::responder;
use crate::remote::responder::{
    Admission, RemoteQpGuard, Request, ResponderFault, TxOutcome, brings_data,
};
use crate::remote::staged_transfer::{Path, StagedTransfer};
use crate::shm::file::slot_of;
use crate::shm::slots::{DelayedCounters, NO_PEER, PathSlot, PortSlot, ProcSlot};

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
    if request.opcode > LAST_OPCODE || (is_answered_with_data && has_no_answer(qp, request)) {
        return TxOutcome::Failed(Status::LocQpOp);
    }
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
        Err(outcome @ TxOutcome::NotReady(_))
            if qp.fabric.settings.rnr_places && !queue.head.is_placed =>
        {
            let outcome = place_first_packets(qp, &guard, (request, link), &local, outcome);
            queue.head.is_placed = true;
            return outcome;
        }
        Err(outcome) => return outcome,
    };
    let total = local.total;
    let local = match fault {
        // Of an atomic nothing is done: it is one packet.
        Some(ResponderFault::Cut(_)) if total == 0 || admission.is_atomic => {
            return TxOutcome::Lost;
        }
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

const LAST_OPCODE: u32 = wr_opcode::ATOMIC_FETCH_ADD;
/// Whether a request for data is of a type without any, or has no memory for it.
fn has_no_answer(qp: &Qp, request: &Request) -> bool {
    qp.is_unreliable() || request.flags & send_flag::INLINE != 0
}

/// The head request meets no receive, which a write notices with its last packet: places the
/// packets before. What comes of it is `not_ready`, unless these fail. Where copies are staged,
/// nothing is placed.
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
        let outcome = responder::execute(guard, request, local, admission);
        return outcome.unwrap_or_else(|error| {
            responder::conclude(guard, request, admission, local.total, Err(error))
        });
    }
    let moved = if admission.is_relaxed
        && qp.fabric.settings.chaos
        && admission.direction == Direction::Out
    {
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

/// Continues the head request, whose bytes pass through the stage.
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

/// Completes what is executed and acknowledged; what is next may be sent while acknowledgements are
/// on their way.
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

/// Records the outcome of the oldest request not acknowledged. False if its CQ takes no more.
#[inline]
pub(crate) fn complete(qp: &Qp, queue: &mut SendQueue, status: Status) -> bool {
    let (request, sges, inline) = queue.request(queue.acked);
    let is_completion =
        status != Status::Success || qp.signal_all || request.flags & send_flag::SIGNALED != 0;
    let cq = qp.send_cq.slot;
    if is_completion && !responder::admit_completion(qp.fabric, cq) {
        return false;
    }
    let opcode = match request.opcode & !FAILS {
        wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => wc_opcode::RDMA_WRITE,
        wr_opcode::RDMA_READ => wc_opcode::RDMA_READ,
        wr_opcode::ATOMIC_CMP_SWAP => wc_opcode::COMP_SWAP,
        wr_opcode::ATOMIC_FETCH_ADD => wc_opcode::FETCH_ADD,
        _ => wc_opcode::SEND,
    };
    let bytes = inline.len() as u32 + sges.iter().map(|s| s.length).fold(0, u32::wrapping_add);
    let has_immediate =
        matches!(request.opcode, wr_opcode::RDMA_WRITE_WITH_IMM | wr_opcode::SEND_WITH_IMM);
    let kind = (opcode, has_immediate && qp.library.flags_sent_immediates);
    let request_of = (request.wr_id, request.blocks);
    qp.send_ring.record(queue.acked, request_of, status as u32, kind, bytes, is_completion);
    if status == Status::Success {
        let sent = &qp.slot.sent;
        sent.messages.store(sent.messages.load(Relaxed) + 1, Relaxed);
        sent.bytes.store(sent.bytes.load(Relaxed) + u64::from(bytes), Relaxed);
        qp.slot.work.acknowledged(queue.link.packets(bytes.into()), has_immediate);
    }
    queue.advance();
    if is_completion {
        responder::announce(
            qp.fabric,
            cq,
            qp.slot.send_bit.load(Relaxed),
            status != Status::Success,
        );
    }
    true
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
        let outcome = if qp.is_ud() { datagrams::proceed(qp, queue) } else { proceed(queue) };
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
        None if qp.is_ud() => datagrams::execute(qp, queue, None),
        None => execute(qp, queue, None),
        Some(fault) => apply_fault(qp, queue, fault),
    };
    handle_result(engine, qp, queue, outcome)
}

/// Executes the head request once, with a fault at the peer if `fault` asks for it.
#[cold]
fn execute_next(qp: &Qp, queue: &mut SendQueue, fault: Option<ResponderFault>) -> TxOutcome {
    if qp.is_ud() { datagrams::execute(qp, queue, fault) } else { execute(qp, queue, fault) }
}

/// Sends the head request under a fault.
#[cold]
fn apply_fault(qp: &Qp, queue: &mut SendQueue, fault: Fault) -> TxOutcome {
    match fault {
        Fault::Drop => TxOutcome::Lost,
        Fault::DropAck => {
            queue.head.loses_ack = true;
            execute_next(qp, queue, None)
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
        Fault::Delay(_) => execute_next(qp, queue, None),
        Fault::Responder(fault) => execute_next(qp, queue, Some(fault)),
    }
}

/// Does what follows from one transmission. False if the queue has to wait.
#[inline]
fn handle_result(
    engine: &'static Engine,
    qp: &Qp,
    queue: &mut SendQueue,
    outcome: TxOutcome,
) -> bool {
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
            if queue.link.rnr_retry != 7 && queue.head.rnr_waits >= u32::from(queue.link.rnr_retry)
            {
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
        TxOutcome::Done | TxOutcome::Lost | TxOutcome::NotReady(_) => {
            conclude(engine, qp, queue, Status::Success)
        }
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
    let ack_at = ack_time(qp, queue);
    if ack_at == 0 && queue.acked == queue.executed {
        finish(engine, qp, queue, status);
    } else {
        queue.executed_until(status, ack_at);
    }
}

/// In the error state: completes the posted receives as flushed. False while a peer is still in the
/// queue pair. Call with `recv` locked.
pub(crate) fn flush_recv(engine: &Engine, qp: &Qp) -> bool {
    // It may have been reset or destroyed since the caller looked.
    if qp.slot.state.load(SeqCst) != qp_state::ERR || !qp.is_in_fabric() || is_silent(qp) {
        return true;
    }
    if engine.fabric.is_entered(qp.slot)
        || (engine.fabric.has_stage() && engine.copy_server.is_busy())
    {
        return false;
    }
    qp.flush_recv();
    true
}

/// In the error state: completes both queues as flushed. False while a peer is still in the queue
/// pair.
pub(crate) fn flush(engine: &'static Engine, qp: &Qp) -> bool {
    pump(engine, qp, &mut lock(&qp.send));
    let _guard = lock(&qp.recv);
    flush_recv(engine, qp)
}

/// Has the queues flushed by the next poll, or by the service thread if there is none: the
/// application may be waiting for just these completions on a channel.
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

/// For the service thread: completes what is left in a queue pair that has failed, or that a peer
/// meant to fail when it died.
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

// The service thread: one per process, asleep unless something is pending.
//
// It runs requests whose time has come when the application does not poll, and passes on what peers
// left for the application's event descriptors. Its robust futex word is this process's sign of
// life (see `process::liveness`).

/// `struct robust_list_head` of the kernel.
#[repr(C)]
struct RobustHead {
    first: usize,
    futex_offset: isize,
    pending: usize,
}

/// Starts the thread; returns when its sign of life is in place.
pub(crate) fn start(engine: &'static Engine) -> Result<(), i32> {
    let (ready, is_ready) = mpsc::channel();
    let mask = block_signals();
    let spawned = thread::Builder::new().name("softrnic".to_owned()).spawn(move || {
        show_life(engine.fabric.proc(slot_of(engine.fabric.me)));
        let _ = ready.send(());
        serve(engine);
    });
    // SAFETY: restores the mask that `block_signals` found.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const mask, ptr::null_mut()) };
    spawned.map_err(|e| e.raw_os_error().unwrap_or(libc::EAGAIN))?;
    is_ready.recv().map_err(|_| libc::EAGAIN)
}

/// Blocks all signals, so that the new thread never runs an application's handler; returns the
/// former mask.
fn block_signals() -> libc::sigset_t {
    // SAFETY: a sigset_t may be all zeros; both calls only write to the sets passed.
    unsafe {
        let (mut all, mut former) = (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut former);
        former
    }
}

/// Has the kernel mark `slot.life` when this thread ends.
fn show_life(slot: &'static ProcSlot) {
    let link = slot.robust_next.as_ptr() as usize;
    let word = slot.life.as_ptr() as usize;
    let head = Box::leak(Box::new(RobustHead {
        first: link,
        futex_offset: (word - link) as isize,
        pending: 0,
    }));
    // SAFETY: gettid has no preconditions.
    let tid = unsafe { libc::syscall(libc::SYS_gettid) } as u32;
    // The list is a ring: head -> link -> head.
    slot.robust_next.store(ptr::from_ref(head) as usize, SeqCst);
    slot.life.store(tid, SeqCst);
    // SAFETY: the head is leaked and the link lies in a mapping that is never unmapped; this thread
    // takes no robust mutex of the C library, whose list this replaces.
    unsafe {
        libc::syscall(libc::SYS_set_robust_list, ptr::from_ref(head), size_of::<RobustHead>())
    };
}

fn serve(engine: &'static Engine) {
    let fabric = engine.fabric;
    let bell = &fabric.proc(slot_of(fabric.me)).bell;
    let mut delivered = 0;
    loop {
        let seen = bell.load(Acquire);
        if fabric.is_gone() {
            return;
        }
        for qp in lock(&engine.qps).iter() {
            if qp.deliver() {
                flush_at(engine, qp, now_ns());
            }
        }
        lock(&engine.cqs).iter().for_each(|cq| cq.deliver());
        lock(&engine.srqs).iter().for_each(|srq| srq.deliver());
        let logged = fabric.header().event_count.load(SeqCst);
        if logged != delivered {
            delivered = logged;
            deliver_logged(engine);
        }
        fabric.run_due();
        if fabric.has_stage() {
            engine.copy_server.serve(fabric);
        }
        let next = fabric.next_task();
        let timeout = (next != u64::MAX).then(|| {
            let ns = next.saturating_sub(now_ns());
            libc::timespec {
                tv_sec: (ns / 1_000_000_000) as i64,
                tv_nsec: (ns % 1_000_000_000) as i64,
            }
        });
        let timeout = timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
        // SAFETY: the futex word lies in the mapping; the timeout outlives the call.
        unsafe {
            libc::syscall(libc::SYS_futex, bell.as_ptr(), libc::FUTEX_WAIT, seen, timeout, 0, 0)
        };
    }
}

/// Passes logged events on to the open contexts, and empties the queues of failed devices.
fn deliver_logged(engine: &'static Engine) {
    let contexts: Vec<Arc<Context>> = {
        let mut known = lock(&engine.contexts);
        known.retain(|context| context.strong_count() != 0);
        known.iter().filter_map(Weak::upgrade).collect()
    };
    contexts.iter().for_each(|context| context.deliver());
    let failed: Vec<_> =
        lock(&engine.qps).iter().filter(|qp| qp.pd.context.is_dead()).cloned().collect();
    for qp in failed {
        finish_failure(engine, &qp);
    }
}

// A packet that is delayed in the network: it was taken for lost, and arrives long after it was
// sent.
//
// The QP that sent it may have been reset or destroyed meanwhile, its buffer used for something
// else. If the responder still expects exactly this packet, it takes it: a late write.

/// A message with its bytes, as they were when it was sent.
#[derive(Debug)]
pub(crate) struct DelayedPacket {
    fabric: &'static Fabric,
    from: u64,
    link: Link,
    serial: u32,
    is_unreliable: bool,
    request: Request,
    /// If its bytes are copied through the shared file. In front of them: it refers to them.
    staged: Option<StagedTransfer>,
    bytes: Vec<u8>,
}

impl DelayedPacket {
    /// Sends the head request of `queue`, to arrive at `at` (ns). READs, atomics and datagrams are
    /// not delayed: they are lost.
    pub(crate) fn launch(qp: &Qp, queue: &SendQueue, at: u64) {
        let (request, sges, inline) = queue.request(queue.executed);
        if qp.is_ud()
            || matches!(request.opcode, wr_opcode::RDMA_READ..=wr_opcode::ATOMIC_FETCH_ADD)
        {
            return;
        }
        let bytes = if request.flags & send_flag::INLINE != 0 {
            inline.to_vec()
        } else {
            let Ok(local) = gather(qp, sges, 0) else { return };
            if local.has_gpu {
                return;
            }
            let mut bytes = vec![0; local.total as usize];
            let copy = Pieces::host(bytes.as_mut_ptr() as u64, local.total);
            if transfer(None, Direction::Out, &local, &copy).is_err() {
                return;
            }
            bytes
        };
        let packet = Self {
            fabric: qp.fabric,
            from: qp.name(),
            link: queue.link,
            serial: queue.entries,
            is_unreliable: qp.is_unreliable(),
            request: *request,
            staged: None,
            bytes,
        };
        packet.count(|counters| &counters.launched);
        qp.fabric.arm(at, Box::new(packet));
    }

    /// The packet arrives.
    fn arrive(mut self: Box<Self>) {
        let (fabric, to) = (self.fabric, PortId::of_name(self.link.peer));
        if !fabric.port(to.device, to.port).is_active() {
            return self.count(|counters| &counters.port_down);
        }
        if self.staged.is_some() {
            return self.pass_through();
        }
        let Some(guard) = RemoteQpGuard::enter(fabric, self.link.peer, self.from, self.serial)
        else {
            return self.miss();
        };
        if !guard.expects(self.is_unreliable, self.link.psn) {
            return self.count(|counters| &counters.wrong_psn);
        }
        let total = self.bytes.len() as u64;
        let local = Pieces::host(self.bytes.as_ptr() as u64, total);
        let Ok(admission) = responder::admit(&guard, &self.request, total) else {
            return self.count(|counters| &counters.refused);
        };
        if total != 0 && (admission.remote.has_gpu || !guard.is_reached()) {
            let path = Path {
                from: self.from,
                to: self.link.peer,
                is_unreliable: self.is_unreliable,
                psn: self.link.psn,
                serial: self.serial,
            };
            self.staged =
                Some(StagedTransfer::new(&guard, path, admission, local, &self.request, None));
            drop(guard);
            return self.pass_through();
        }
        let moved = if fabric.settings.lines {
            transfer_by_lines(guard.pid, &local, &admission.remote)
        } else {
            transfer(guard.pid, admission.direction, &local, &admission.remote)
        };
        self.conclude(&guard, &admission, moved);
    }

    /// The queue pair does not let it in: it is not what it was, or another process is in it for a
    /// moment.
    fn miss(self: Box<Self>) {
        let fabric = self.fabric;
        let peer = PortId::of_name(self.link.peer);
        let slot = fabric.find_qp(peer.device, self.link.peer as u32).filter(|slot| {
            slot.qpn.load(SeqCst) == self.link.peer as u32
                && slot.peer.load(SeqCst) == self.from
                && slot.port.load(SeqCst) == peer.port
                && fabric.live_process(slot.owner.load(SeqCst)).is_some()
        });
        match slot.map(|slot| slot.state.load(SeqCst)) {
            Some(qp_state::ERR) => self.count(|counters| &counters.in_error),
            Some(qp_state::RTR..=qp_state::SQE) => fabric.arm(now_ns() + BUSY_RETRY_NS, self),
            _ => self.count(|counters| &counters.gone),
        }
    }

    /// Counts it where it was sent.
    fn count(&self, which: impl FnOnce(&DelayedCounters) -> &AtomicU64) {
        let from = PortId::of_name(self.from);
        which(&self.fabric.port(from.device, from.port).delayed).fetch_add(1, Relaxed);
    }

    /// Through the stage, for as long as the peer's queue pair waits for it.
    fn pass_through(mut self: Box<Self>) {
        let fabric = self.fabric;
        let Some(mut staged) = self.staged.take().filter(|_| fabric.open_stage().is_ok()) else {
            return;
        };
        match staged.proceed() {
            Some((Some(guard), moved)) => self.conclude(&guard, &staged.admission, moved),
            // It may be sent again as a whole: what has been copied is the same.
            Some((None, _)) => self.arrive(),
            None => {
                staged.remind();
                self.staged = Some(staged);
                fabric.arm(now_ns() + STAGED_CHECK_NS, self);
            }
        }
    }

    fn conclude(&self, guard: &RemoteQpGuard, admission: &Admission, moved: Result<(), CopyError>) {
        let total = self.bytes.len() as u64;
        if responder::conclude(guard, &self.request, admission, total, moved) == TxOutcome::Done {
            guard.advance(self.link.psn.wrapping_add(self.link.packets(total)) & PSN_MASK);
            self.count(|counters| &counters.landed);
        } else {
            self.count(|counters| &counters.refused);
        }
    }
}

impl Task for DelayedPacket {
    fn run(self: Box<Self>) {
        self.arrive();
    }
}

/// How soon the service thread looks after bytes that are copied through the shared file, if no
/// poll does.
pub(crate) const STAGED_CHECK_NS: u64 = 100_000;

/// How soon to look again at what another process holds for a moment, in ns.
pub(crate) const BUSY_RETRY_NS: u64 = 20_000;

/// `ns` of modelled time in real time.
pub(crate) fn modelled_ns(qp: &Qp, ns: u64) -> u64 {
    (ns as f64 * qp.fabric.settings.time_scale) as u64
}

/// The wait that a timer code of the responder asks for.
pub(crate) fn rnr_ns(code: u32) -> u64 {
    const HUNDREDTHS_OF_MS: [u64; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    HUNDREDTHS_OF_MS[code as usize & 31] * 10_000
}

// The model of the wire: when a message reaches the peer, and its acknowledgement us.
//
// Off unless a port has a latency or a bandwidth, or there are paths: then everything goes as fast
// as the processor copies. A message occupies the sending port and the receiving one for its length
// over the lower of their bandwidths, so that two senders into one port share it; it arrives after
// the sum of both ports' latencies. The data of a READ occupies them in the other direction.
//
// Where paths are modelled (`SOFTRNIC_PATHS`), a message also occupies the path that its queue
// pair's packets take, for its length over the path's bandwidth: messages that take the same path
// from the same port share it, those on other paths do not wait. In a fabric that spreads packets
// (`SOFTRNIC_SPRAY`), it occupies every path for its part of the length. The data of a READ takes
// no path.

/// In strict mode requests are executed this much after their post, so that a buffer that is reused
/// too early shows.
const LATE_NS: u64 = 50_000;

/// What a message passes: both ports, and the path between them where paths are modelled.
#[derive(Clone, Copy)]
struct Way {
    from: &'static PortSlot,
    to: &'static PortSlot,
    /// None where paths are not modelled; one; or all of them, in a fabric that spreads packets.
    paths: &'static [PathSlot],
}

impl Way {
    #[inline]
    fn of(qp: &Qp, queue: &SendQueue) -> Option<Self> {
        let peer = queue.link.peer;
        let port_at = |port: PortId| qp.fabric.port(port.device, port.port);
        let from = port_at(qp.port());
        let paths = match queue.link.path {
            None => &[],
            Some(_) if qp.fabric.settings.spray => {
                &from.paths[..qp.fabric.topology.paths() as usize]
            }
            Some(path) => from.paths.get(path as usize).map_or(&[][..], std::slice::from_ref),
        };
        (peer != NO_PEER).then(|| Self { from, to: port_at(PortId::of_name(peer)), paths })
    }

    /// What it adds to every packet, in ns.
    #[inline]
    fn latency(self) -> u64 {
        let ports = self.from.latency_ns.load(Relaxed) + self.to.latency_ns.load(Relaxed);
        ports + self.paths.iter().map(|path| path.latency_ns.load(Relaxed)).max().unwrap_or(0)
    }

    /// Whether messages wait for those before them.
    #[inline]
    fn is_paced(self) -> bool {
        self.from.bytes_per_ms.load(Relaxed) | self.to.bytes_per_ms.load(Relaxed) != 0
            || !self.paths.is_empty()
    }
}

/// Plans when a request of `bytes` that is posted now reaches the peer; 0: at once.
#[inline]
pub(crate) fn plan(qp: &Qp, queue: &SendQueue, opcode: u32, bytes: u64) -> u64 {
    let Some(way) = Way::of(qp, queue) else { return 0 };
    if !way.is_paced() && !qp.fabric.settings.strict && way.latency() == 0 && queue.planned == 0 {
        return 0;
    }
    slowly(qp, queue, way, opcode, bytes)
}

#[cold]
fn slowly(qp: &Qp, queue: &SendQueue, way: Way, opcode: u32, bytes: u64) -> u64 {
    let now = now_ns();
    let mut due = now + way.latency();
    if qp.fabric.settings.strict {
        due += LATE_NS;
    }
    let is_read = opcode == wr_opcode::RDMA_READ;
    let (from, to) = if is_read { (way.to, way.from) } else { (way.from, way.to) };
    let pace =
        [from, to].map(|end| end.bytes_per_ms.load(Relaxed)).into_iter().filter(|&p| p != 0).min();
    let mut passed = now;
    if let Some(pace) = pace {
        let begin = now.max(from.tx_until.load(Relaxed)).max(to.rx_until.load(Relaxed));
        let ns = time_for(bytes, pace);
        passed = occupy(&from.tx_until, begin, ns).max(occupy(&to.rx_until, begin, ns));
    }
    let count = way.paths.len() as u64;
    for (path, number) in way.paths.iter().zip(0..).filter(|_| !is_read) {
        let part = (bytes + number) / count;
        path.bytes.fetch_add(part, Relaxed);
        let pace = path.bytes_per_ms.load(Relaxed);
        if pace != 0 {
            // Not before it is free. Meanwhile the ports carry what takes other paths.
            passed = passed.max(occupy(&path.until, now, time_for(part, pace)));
        }
    }
    due += passed - now;
    // Nothing overtakes on a connection. A plan that lies in the past binds nobody, and one for now
    // is none.
    let due = if queue.planned > now { due.max(queue.planned) } else { due };
    if due > now { due } else { 0 }
}

/// Nanoseconds for `bytes` at `pace`, in bytes per millisecond, which is not 0.
fn time_for(bytes: u64, pace: u64) -> u64 {
    (u128::from(bytes) * 1_000_000 / u128::from(pace)) as u64
}

/// Takes `ns` of the time of a port or a path, not before `begin`; returns when that is over.
fn occupy(until: &AtomicU64, begin: u64, ns: u64) -> u64 {
    let mut seen = until.load(Relaxed);
    loop {
        let end = begin.max(seen) + ns;
        match until.compare_exchange_weak(seen, end, Relaxed, Relaxed) {
            Ok(_) => return end,
            Err(now) => seen = now,
        }
    }
}

/// When the acknowledgement of what is executed now is here; 0: at once.
#[inline]
pub(crate) fn ack_time(qp: &Qp, queue: &SendQueue) -> u64 {
    match Way::of(qp, queue).map_or(0, Way::latency) {
        0 => 0,
        latency => now_ns() + latency,
    }
}
