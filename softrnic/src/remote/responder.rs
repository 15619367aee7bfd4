//! The responder: what the NIC of the peer does with a request, done by the requester's process in its place.

use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::abi::consts::{Status, access, event, qp_state, qp_type, wr_opcode};
use crate::copy::piece::{CopyError, Direction, Pieces};
use crate::copy::transfer::transfer;
use crate::host::errno::errno_text;
use crate::host::stderr;
use crate::remote::guard::RemoteQpGuard;
use crate::remote::keys::{Forbidden, resolve};
use crate::remote::outcome::TxOutcome;
use crate::remote::receive::{Overrun, Receive};
use crate::remote::request::{Request, has_imm};

/// A fault at the responder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ResponderFault {
    NotReady,
    AccessError,
    OperationError,
    /// In byte n, modulo the length; bit n of it modulo 8.
    Corrupt(u64),
    /// So many bytes are placed, then the rest of the transmission is lost.
    Cut(u64),
    /// It is acknowledged, and nothing of it appears. READs and atomics are answered as ever.
    Forget,
}

/// What the responder has agreed to: where the bytes go, or come from.
#[derive(Debug)]
pub(crate) struct Admission {
    pub(crate) direction: Direction,
    pub(crate) remote: Pieces,
    /// The bytes are changed, not copied.
    pub(crate) is_atomic: bool,
    /// The order of the bytes does not matter to the owner of the memory.
    pub(crate) is_relaxed: bool,
    /// What completes there when the bytes are in place.
    pub(super) receive: Option<Receive>,
}

/// Checks a request with `total` local bytes at the QP that was entered.
#[inline]
pub(crate) fn admit(guard: &RemoteQpGuard, request: &Request, total: u64) -> Result<Admission, TxOutcome> {
    match request.opcode {
        wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM => write(guard, request, total),
        wr_opcode::SEND | wr_opcode::SEND_WITH_IMM => send(guard, request, total),
        wr_opcode::RDMA_READ => read(guard, request, total),
        wr_opcode::ATOMIC_CMP_SWAP | wr_opcode::ATOMIC_FETCH_ADD => atomic(guard, request, total),
        _ => Err(TxOutcome::Failed(Status::LocQpOp)),
    }
}

/// Completes what `admit` began, when the bytes have been moved or that failed.
#[inline]
pub(crate) fn conclude(
    guard: &RemoteQpGuard,
    request: &Request,
    admission: &Admission,
    total: u64,
    moved: Result<(), CopyError>,
) -> TxOutcome {
    if guard.slot.state.load(Relaxed) == qp_state::RTR {
        communication_established(guard);
    }
    match (moved, &admission.receive) {
        (Err(error), _) => explain(guard, error),
        (Ok(()), None) => TxOutcome::Done,
        (Ok(()), Some(receive)) => finish(guard, (request, receive), total, Status::Success),
    }
}

fn write(guard: &RemoteQpGuard, request: &Request, total: u64) -> Result<Admission, TxOutcome> {
    require(guard, access::REMOTE_WRITE)?;
    let receive = if has_imm(request) { Some(Receive::next(guard).ok_or_else(|| not_ready(guard))?) } else { None };
    let (remote, is_relaxed) = memory(guard, request, total, access::REMOTE_WRITE)?;
    Ok(Admission { direction: Direction::Out, remote, is_atomic: false, is_relaxed, receive })
}

/// Checks a write with immediate data as the packets before its last one are checked, which need no receive.
pub(crate) fn admit_first_packets(
    guard: &RemoteQpGuard,
    request: &Request,
    total: u64,
) -> Result<Admission, TxOutcome> {
    require(guard, access::REMOTE_WRITE)?;
    let (remote, is_relaxed) = memory(guard, request, total, access::REMOTE_WRITE)?;
    Ok(Admission { direction: Direction::Out, remote, is_atomic: false, is_relaxed, receive: None })
}

fn read(guard: &RemoteQpGuard, request: &Request, total: u64) -> Result<Admission, TxOutcome> {
    require_read(guard, access::REMOTE_READ)?;
    let (remote, is_relaxed) = memory(guard, request, total, access::REMOTE_READ)?;
    Ok(Admission { direction: Direction::In, remote, is_atomic: false, is_relaxed, receive: None })
}

fn atomic(guard: &RemoteQpGuard, request: &Request, total: u64) -> Result<Admission, TxOutcome> {
    require_read(guard, access::REMOTE_ATOMIC)?;
    if total != 8 || !request.remote_addr.is_multiple_of(8) {
        return Err(refuse(guard, event::QP_REQ_ERR, Status::RemInvReq));
    }
    let (remote, is_relaxed) = memory(guard, request, total, access::REMOTE_ATOMIC)?;
    Ok(Admission { direction: Direction::In, remote, is_atomic: true, is_relaxed, receive: None })
}

fn send(guard: &RemoteQpGuard, request: &Request, total: u64) -> Result<Admission, TxOutcome> {
    let receive = Receive::next(guard).ok_or_else(|| not_ready(guard))?;
    let Ok(remote) = receive.scatter(guard) else {
        finish(guard, (request, &receive), 0, Status::LocProt);
        return Err(refuse(guard, event::QP_ACCESS_ERR, Status::RemOp));
    };
    if remote.total < total {
        finish(guard, (request, &receive), 0, Status::LocLen);
        return Err(refuse(guard, event::QP_REQ_ERR, Status::RemInvReq));
    }
    Ok(Admission { direction: Direction::Out, remote, is_atomic: false, is_relaxed: false, receive: Some(receive) })
}

/// The QP that was entered must grant `need`.
#[inline]
fn require(guard: &RemoteQpGuard, need: u32) -> Result<(), TxOutcome> {
    let granted = guard.slot.access.load(Relaxed) & need != 0;
    if granted { Ok(()) } else { Err(refuse(guard, event::QP_REQ_ERR, Status::RemInvReq)) }
}

/// As [`require`], and it must have room for what is read.
fn require_read(guard: &RemoteQpGuard, need: u32) -> Result<(), TxOutcome> {
    require(guard, need)?;
    let has_room = guard.slot.read_depth.load(Relaxed) != 0;
    if has_room { Ok(()) } else { Err(refuse(guard, event::QP_REQ_ERR, Status::RemInvReq)) }
}

/// The memory that a request names, and whether its order is relaxed. No bytes, no checks, unless `SOFTRNIC_ZERO_KEYS` says otherwise: not
/// even the key is looked at.
#[inline]
fn memory(guard: &RemoteQpGuard, request: &Request, total: u64, need: u32) -> Result<(Pieces, bool), TxOutcome> {
    if total == 0 && !guard.fabric.settings.zero_keys {
        return Ok((Pieces::default(), false));
    }
    let domain = (guard.device, guard.slot.pd.load(Relaxed));
    let memory = resolve(guard.fabric, domain, request.rkey, (request.remote_addr, total), need)
        .map_err(|Forbidden| refuse(guard, event::QP_ACCESS_ERR, Status::RemAccess))?;
    Ok((Pieces::one(memory.piece(request.rkey, total)), memory.is_relaxed))
}

/// Atomics need memory that a processor can change.
#[cold]
pub(crate) fn refuse_atomic(guard: &RemoteQpGuard) -> TxOutcome {
    refuse(guard, event::QP_REQ_ERR, Status::RemInvReq)
}

/// What a fault makes of a request that has arrived; `None`: it only shows later.
#[cold]
pub(crate) fn faulty(guard: &RemoteQpGuard, fault: ResponderFault) -> Option<TxOutcome> {
    match fault {
        ResponderFault::NotReady => Some(not_ready(guard)),
        ResponderFault::AccessError => Some(refuse(guard, event::QP_ACCESS_ERR, Status::RemAccess)),
        ResponderFault::OperationError => Some(refuse(guard, event::QP_FATAL, Status::RemOp)),
        ResponderFault::Corrupt(_) | ResponderFault::Cut(_) | ResponderFault::Forget => None,
    }
}

/// Turns one bit of what has just been written.
#[cold]
pub(crate) fn corrupt(guard: &RemoteQpGuard, admission: &Admission, at: u64) {
    let Some(victim) = admission.remote.byte(at) else { return };
    let mut byte = 0u8;
    let ours = Pieces::host((&raw mut byte) as u64, 1);
    let theirs = Pieces::host(victim, 1);
    if admission.direction == Direction::Out && transfer(guard.pid, Direction::In, &ours, &theirs).is_ok() {
        let turned = byte ^ 1 << (at % 8);
        let _ = transfer(guard.pid, Direction::Out, &Pieces::host((&raw const turned) as u64, 1), &theirs);
    }
}

/// The first message at a QP that its owner has not made ready to send yet.
#[cold]
fn communication_established(guard: &RemoteQpGuard) {
    let bit = 1 << event::COMM_EST;
    if guard.slot.established.swap(1, SeqCst) == 0 {
        guard.slot.events.fetch_or(bit, SeqCst);
        guard.fabric.wake(guard.slot.owner.load(SeqCst));
    }
}

/// Completes a receive; the QP fails where its completion queue takes no more.
#[inline]
fn finish(guard: &RemoteQpGuard, (request, receive): (&Request, &Receive), bytes: u64, status: Status) -> TxOutcome {
    match receive.finish(guard, request, bytes, status) {
        Ok(()) => TxOutcome::Done,
        Err(Overrun) => refuse(guard, event::QP_FATAL, Status::RemOp),
    }
}

fn not_ready(guard: &RemoteQpGuard) -> TxOutcome {
    TxOutcome::NotReady(guard.slot.rnr_timer.load(Relaxed))
}

/// The responder does not take the request: its QP is in error, its owner gets an event. UC drops it silently.
#[cold]
fn refuse(guard: &RemoteQpGuard, kind: u32, status: Status) -> TxOutcome {
    let (fabric, slot) = (guard.fabric, guard.slot);
    if slot.transport.load(Relaxed) != qp_type::RC as u32 {
        return TxOutcome::Done;
    }
    // First of all the owner gets the event: should we die from here on, it completes this itself.
    slot.events.fetch_or(1 << kind, SeqCst);
    fabric.wake(slot.owner.load(SeqCst));
    slot.fail();
    alarm_queues(guard);
    TxOutcome::Failed(status)
}

/// The queues of a QP that fails are flushed when their CQs are polled, or else by its service thread.
pub(super) fn alarm_queues(guard: &RemoteQpGuard) {
    let (fabric, slot) = (guard.fabric, guard.slot);
    for (queue, number) in [(&slot.send_cq, &slot.send_bit), (&slot.recv_cq, &slot.recv_bit)] {
        let queue = fabric.cq(guard.device, queue.load(Relaxed));
        queue.bell.fetch_or(1 << (number.load(Relaxed) % 64), SeqCst);
    }
}

/// What a failed copy means on the wire.
#[cold]
fn explain(guard: &RemoteQpGuard, error: CopyError) -> TxOutcome {
    match error {
        CopyError::Gone => TxOutcome::Lost,
        _ if guard.is_owner_dead() => TxOutcome::Lost,
        CopyError::LocalFault => TxOutcome::Failed(Status::LocProt),
        CopyError::Forbidden => refuse(guard, event::QP_ACCESS_ERR, Status::RemAccess),
        CopyError::RemoteFault => refuse(guard, event::QP_FATAL, Status::RemOp),
        CopyError::Denied(code) => {
            static WARNED: AtomicBool = AtomicBool::new(false);
            if !WARNED.swap(true, Relaxed) {
                stderr::say(format_args!(
                    "cannot reach the memory of process {}: {}; processes of a fabric need the same user and process \
                     id namespace, and a sandbox that allows process_vm_writev",
                    guard.pid.unwrap_or(0),
                    errno_text(code)
                ));
            }
            TxOutcome::Failed(Status::General)
        }
    }
}
