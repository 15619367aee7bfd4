//! The responder: what the NIC of the peer does with a request, done by the requester's process in
//! its place.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicU32};

use crate::abi::types::{
    Status, WC_WITH_IMM, access, event, qp_state, qp_type, send_flag, wc_opcode, wr_opcode,
};
use crate::copy::transfer::{CopyError, Direction, Piece, Pieces, transfer};
use crate::host;
use crate::host::errno_text;
use crate::limits::QPS;
use crate::network::header::HEADER_BYTES;
use crate::network::topology::PortId;
use crate::process::fabric::Fabric;
use crate::shm::job;
use crate::shm::recv_ring::{Received, RecvRing, Sender, SrqRing};
use crate::shm::slots::{ANY_PEER, CqSlot, NO_PEER, QpSlot, armed};

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
pub(crate) fn admit(
    guard: &RemoteQpGuard,
    request: &Request,
    total: u64,
) -> Result<Admission, TxOutcome> {
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
    let receive = if has_imm(request) {
        Some(Receive::next(guard).ok_or_else(|| not_ready(guard))?)
    } else {
        None
    };
    let (remote, is_relaxed) = memory(guard, request, total, access::REMOTE_WRITE)?;
    Ok(Admission { direction: Direction::Out, remote, is_atomic: false, is_relaxed, receive })
}

/// Checks a write with immediate data as the packets before its last one are checked, which need no
/// receive.
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
    Ok(Admission {
        direction: Direction::Out,
        remote,
        is_atomic: false,
        is_relaxed: false,
        receive: Some(receive),
    })
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

/// The memory that a request names, and whether its order is relaxed. No bytes, no checks, unless
/// `SOFTRNIC_ZERO_KEYS` says otherwise: not even the key is looked at.
#[inline]
fn memory(
    guard: &RemoteQpGuard,
    request: &Request,
    total: u64,
    need: u32,
) -> Result<(Pieces, bool), TxOutcome> {
    if total == 0 && !guard.fabric.settings.zero_keys {
        return Ok((Pieces::default(), false));
    }
    let domain = (guard.device, guard.slot.pd.load(Relaxed));
    let memory = resolve(guard.fabric, domain, request.rkey, (request.remote_addr, total), need)
        .map_err(|Forbidden| refuse(guard, event::QP_ACCESS_ERR, Status::RemAccess))?;
    Ok((Pieces::one(memory.piece(request.rkey, total)), memory.is_relaxed))
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
    if admission.direction == Direction::Out
        && transfer(guard.pid, Direction::In, &ours, &theirs).is_ok()
    {
        let turned = byte ^ 1 << (at % 8);
        let _ = transfer(
            guard.pid,
            Direction::Out,
            &Pieces::host((&raw const turned) as u64, 1),
            &theirs,
        );
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
fn finish(
    guard: &RemoteQpGuard,
    (request, receive): (&Request, &Receive),
    bytes: u64,
    status: Status,
) -> TxOutcome {
    match receive.finish(guard, request, bytes, status) {
        Ok(()) => TxOutcome::Done,
        Err(Overrun) => refuse(guard, event::QP_FATAL, Status::RemOp),
    }
}

fn not_ready(guard: &RemoteQpGuard) -> TxOutcome {
    TxOutcome::NotReady(guard.slot.rnr_timer.load(Relaxed))
}

/// The responder does not take the request: its QP is in error, its owner gets an event. UC drops
/// it silently.
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

/// The queues of a QP that fails are flushed when their CQs are polled, or else by its service
/// thread.
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
                host::say(format_args!(
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

/// One posted request.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Request {
    pub(crate) wr_id: u64,
    /// Blocks of its queue that have been taken up to and with it.
    pub(crate) blocks: u64,
    pub(crate) opcode: u32,
    pub(crate) flags: u32,
    pub(crate) imm: u32,
    pub(crate) num_sge: u32,
    pub(crate) inline_len: u32,
    pub(crate) rkey: u32,
    pub(crate) remote_addr: u64,
    /// Atomics: value to add, or to compare with and to swap in.
    pub(crate) operands: [u64; 2],
    /// When (monotonic ns) it reaches the peer; 0 is at once.
    pub(crate) due: u64,
}

/// Whether the peer's answer to `opcode` carries data.
pub(crate) fn brings_data(opcode: u32) -> bool {
    matches!(opcode, wr_opcode::RDMA_READ..=wr_opcode::ATOMIC_FETCH_ADD)
}

/// Whether the request carries immediate data.
pub(crate) fn has_imm(request: &Request) -> bool {
    matches!(request.opcode, wr_opcode::RDMA_WRITE_WITH_IMM | wr_opcode::SEND_WITH_IMM)
}

/// A receive that a message is about to take.
#[derive(Debug)]
pub(crate) struct Receive {
    ring: RecvRing,
    at: u64,
}

/// The completion queue takes no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overrun;

impl Receive {
    #[inline]
    pub(crate) fn next(guard: &RemoteQpGuard) -> Option<Self> {
        let (at, is_posted) = RecvRing::oldest(guard.slot);
        if !is_posted && !take_shared(guard) {
            return None;
        }
        Some(Self { ring: RecvRing::of(guard.fabric, guard.slot)?, at })
    }

    /// Its memory, each element allowed by its key.
    #[inline(always)]
    pub(crate) fn scatter(&self, guard: &RemoteQpGuard) -> Result<Pieces, Forbidden> {
        let domain = (guard.device, guard.slot.recv_pd.load(Relaxed));
        let mut pieces = Pieces::default();
        for sge in self.ring.elements(self.at).filter(|s| s.length != 0) {
            let range = (sge.addr, u64::from(sge.length));
            let memory = resolve(guard.fabric, domain, sge.lkey, range, access::LOCAL_WRITE)?;
            pieces.push(memory.piece(sge.lkey, range.1));
        }
        Ok(pieces)
    }

    /// Completes it.
    #[inline]
    pub(crate) fn finish(
        &self,
        guard: &RemoteQpGuard,
        request: &Request,
        bytes: u64,
        status: Status,
    ) -> Result<(), Overrun> {
        self.finish_with(guard, request, bytes, status, 0)
    }

    /// Completes it with what a datagram brings besides: who has sent it, and more completion
    /// flags.
    pub(crate) fn finish_datagram(
        &self,
        guard: &RemoteQpGuard,
        request: &Request,
        (bytes, status): (u64, Status),
        (sender, flags): (Sender, u32),
    ) -> Result<(), Overrun> {
        self.ring.name_sender(self.at, sender);
        self.finish_with(guard, request, bytes, status, flags)
    }

    #[inline(never)]
    fn finish_with(
        &self,
        guard: &RemoteQpGuard,
        request: &Request,
        bytes: u64,
        status: Status,
        flags: u32,
    ) -> Result<(), Overrun> {
        let slot = guard.slot;
        let queue = guard.fabric.cq(guard.device, slot.recv_cq.load(Relaxed));
        if !admit_completion(guard.fabric, queue) {
            return Err(Overrun);
        }
        let is_write = request.opcode == wr_opcode::RDMA_WRITE_WITH_IMM;
        let outcome = Received {
            status: status as u32,
            opcode: if is_write { wc_opcode::RECV_RDMA_WITH_IMM } else { wc_opcode::RECV },
            byte_len: bytes as u32,
            imm: request.imm,
            wc_flags: if has_imm(request) { WC_WITH_IMM } else { 0 } | flags,
        };
        self.ring.finish(slot, self.at, &outcome);
        let is_urgent = request.flags & send_flag::SOLICITED != 0 || status != Status::Success;
        announce(guard.fabric, queue, slot.recv_bit.load(Relaxed), is_urgent);
        Ok(())
    }
}

/// The QP that was entered takes the next receive of its SRQ, if it has one, and one is left.
#[cold]
fn take_shared(guard: &RemoteQpGuard) -> bool {
    let (fabric, qp) = (guard.fabric, guard.slot);
    let Some(srq) =
        qp.srq.load(Relaxed).checked_sub(1).map(|index| fabric.srq(guard.device, index))
    else {
        return false;
    };
    let rings = SrqRing::of(fabric, srq).zip(RecvRing::of(fabric, qp));
    if !rings.is_some_and(|(ring, queue)| ring.take(srq, qp, qp.qpn.load(SeqCst) % QPS, &queue)) {
        return false;
    }
    if srq.reaches_limit() {
        fabric.wake(srq.owner.load(SeqCst));
    }
    true
}

// Atomics: eight bytes of the peer are read, changed and written as one, as far as other atomics to
// the same device see.
//
// The memory may lie in another process, where no processor instruction reaches. So a word in the
// fabric says who is at it; the word of a process that died is free.

/// Who executes an atomic at a device right now.
struct Turn<'a>(&'a AtomicU32);

impl<'a> Turn<'a> {
    fn take(fabric: &'a Fabric, device: usize) -> Option<Self> {
        let word = &fabric.header().atomic_turn[device];
        let seen = word.load(Relaxed);
        if seen != 0 && seen != fabric.me && fabric.live_process(seen).is_some() {
            return None;
        }
        // Another thread of ours may hold it: then the exchange would succeed wrongly.
        let expected = if seen == fabric.me { 0 } else { seen };
        word.compare_exchange(expected, fabric.me, Acquire, Relaxed).ok().map(|_| Self(word))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.0.store(0, Release);
    }
}

/// What an atomic makes of `old`.
fn changed(is_addition: bool, old: u64, operands: [u64; 2]) -> u64 {
    if is_addition {
        old.wrapping_add(operands[0])
    } else if old == operands[0] {
        operands[1]
    } else {
        old
    }
}

/// An atomic on a word of this process, which `load` and `store` reach. Its operands are at
/// `stage`, where it puts the old value. False: another one is under way at the device.
///
/// # Safety
/// There are 16 aligned bytes at `stage`.
pub(crate) unsafe fn execute_here(
    fabric: &Fabric,
    device: usize,
    is_addition: bool,
    stage: *mut u8,
    load: impl FnOnce() -> Result<u64, CopyError>,
    store: impl FnOnce(u64) -> Result<(), CopyError>,
) -> Result<bool, CopyError> {
    let Some(_turn) = Turn::take(fabric, device) else { return Ok(false) };
    let stage = stage.cast::<[u64; 2]>();
    let old = load()?;
    // SAFETY: by the caller.
    unsafe {
        store(changed(is_addition, old, stage.read_volatile()))?;
        stage.write_volatile([old, 0]);
    }
    Ok(true)
}

/// Executes an atomic that the responder has admitted; the old value goes to `local`.
pub(crate) fn execute(
    guard: &RemoteQpGuard,
    request: &Request,
    local: &Pieces,
    admission: &Admission,
) -> Result<TxOutcome, CopyError> {
    let Some(_turn) = Turn::take(guard.fabric, guard.device) else { return Ok(TxOutcome::Busy) };
    let mut old = 0u64;
    let ours = Pieces::host((&raw mut old) as u64, 8);
    transfer(guard.pid, Direction::In, &ours, &admission.remote)?;
    let new = changed(request.opcode == wr_opcode::ATOMIC_FETCH_ADD, old, request.operands);
    transfer(
        guard.pid,
        Direction::Out,
        &Pieces::host((&raw const new) as u64, 8),
        &admission.remote,
    )?;
    // Our own memory: both ends are in this process.
    transfer(None, Direction::Out, &Pieces::host((&raw const old) as u64, 8), local)
        .map_err(|_| CopyError::LocalFault)?;
    Ok(TxOutcome::Done)
}

/// What comes with a datagram besides its bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Envelope {
    pub(crate) qkey: u32,
    pub(crate) sender: Sender,
    /// Flags of its completion.
    pub(crate) flags: u32,
}

/// Where a datagram of `total` bytes, its network header among them, goes at the QP that was
/// entered. `None`: it is dropped.
pub(crate) fn admit_datagram(
    guard: &RemoteQpGuard,
    request: &Request,
    envelope: &Envelope,
    total: u64,
) -> Option<Admission> {
    let slot = guard.slot;
    if slot.qkey.load(SeqCst) != envelope.qkey {
        guard
            .fabric
            .port(guard.device, slot.port.load(Relaxed))
            .qkey_violations
            .fetch_add(1, Relaxed);
        return None;
    }
    let receive = Receive::next(guard)?;
    let Ok(remote) = receive.scatter(guard) else {
        fail(guard, request, &receive, Status::LocProt);
        return None;
    };
    if remote.total < total {
        fail(guard, request, &receive, Status::LocLen);
        return None;
    }
    Some(Admission {
        direction: Direction::Out,
        remote,
        is_atomic: false,
        is_relaxed: false,
        receive: Some(receive),
    })
}

/// Completes what `admit_datagram` began, when the bytes have been moved or that failed.
pub(crate) fn conclude_datagram(
    guard: &RemoteQpGuard,
    request: &Request,
    (admission, envelope): (&Admission, &Envelope),
    total: u64,
    moved: Result<(), CopyError>,
) -> TxOutcome {
    let Some(receive) = &admission.receive else { return TxOutcome::Lost };
    match moved {
        Ok(()) => {
            let outcome = (total, Status::Success);
            // Where its completion queue has overrun it fails with that.
            let _ =
                receive.finish_datagram(guard, request, outcome, (envelope.sender, envelope.flags));
            TxOutcome::Done
        }
        Err(CopyError::LocalFault) if !guard.is_owner_dead() => TxOutcome::Failed(Status::LocProt),
        Err(CopyError::RemoteFault | CopyError::Forbidden) if !guard.is_owner_dead() => {
            fail(guard, request, receive, Status::LocProt);
            TxOutcome::Lost
        }
        Err(_) => TxOutcome::Lost,
    }
}

/// The receive completes in error, and its queue pair with it.
#[cold]
fn fail(guard: &RemoteQpGuard, request: &Request, receive: &Receive, status: Status) {
    let _ = receive.finish(guard, request, HEADER_BYTES as u64, status);
    guard.slot.fail();
    alarm_queues(guard);
}

/// What one transmission of a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxOutcome {
    /// Acknowledged.
    Done,
    /// No answer: there is no such queue pair, or it does not take packets from us.
    Lost,
    /// "Receiver not ready", with the responder's timer code.
    NotReady(u32),
    /// Its bytes are being copied through the shared file.
    Staged,
    /// Another process holds the queue pair or the device: to be tried again in a moment, without a
    /// trace.
    Busy,
    /// Failed for good.
    Failed(Status),
}

/// Whether a producer may add a completion. If not, the CQ has overrun and is dead.
#[inline]
pub(crate) fn admit_completion(fabric: &Fabric, cq: &CqSlot) -> bool {
    let waiting = cq.pushed.load(Relaxed).wrapping_sub(cq.polled.load(Relaxed)) as i64;
    if cq.dead.load(Relaxed) == 0 && waiting < i64::from(cq.capacity.load(Relaxed)) {
        return true;
    }
    overrun(fabric, cq);
    false
}

/// The CQ takes nothing more, and its QPs fail.
#[cold]
pub(crate) fn overrun(fabric: &Fabric, cq: &CqSlot) {
    if cq.dead.swap(1, SeqCst) == 0 {
        cq.events.store(1, SeqCst);
        fabric.wake(cq.owner.load(SeqCst));
    }
}

/// Tells the owner that QP number `number` has one completion more. `is_urgent`: solicited or
/// failed.
#[inline]
pub(crate) fn announce(fabric: &Fabric, cq: &CqSlot, number: u32, is_urgent: bool) {
    cq.pushed.fetch_add(1, SeqCst);
    cq.bell.fetch_or(1 << (number % 64), SeqCst);
    if cq.armed.load(SeqCst) & arms_fired_by(is_urgent) != 0 {
        notify(fabric, cq, is_urgent);
    }
}

/// The arms that a completion fires.
fn arms_fired_by(is_urgent: bool) -> u32 {
    if is_urgent { armed::FOR_ANY | armed::FOR_SOLICITED } else { armed::FOR_ANY }
}

#[cold]
fn notify(fabric: &Fabric, cq: &CqSlot, is_urgent: bool) {
    let fire = |word: u32| (word & arms_fired_by(is_urgent) != 0).then_some(armed::NOTIFY);
    if cq.armed.fetch_update(SeqCst, SeqCst, fire).is_ok() {
        fabric.wake(cq.owner.load(SeqCst));
    }
}

/// Memory that a key has been found to allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemRef {
    /// Address in the process that owns it.
    pub(crate) addr: u64,
    pub(crate) is_relaxed: bool,
    /// See `MrSlot::gpu`.
    pub(crate) gpu: u32,
}

impl MemRef {
    /// `len` bytes there, which `key` allows.
    #[inline]
    pub(crate) fn piece(&self, key: u32, len: u64) -> Piece {
        Piece { addr: self.addr, len, key, gpu: self.gpu }
    }
}

/// A key does not allow the access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forbidden;

/// Checks that `key` of `device` and `pd` allows `need` on `[at, at + length)`; returns where that
/// is.
#[inline]
pub(crate) fn resolve(
    fabric: &Fabric,
    (device, pd): (usize, u32),
    key: u32,
    (at, length): (u64, u64),
    need: u32,
) -> Result<MemRef, Forbidden> {
    let mr = fabric.find_mr(device, key).ok_or(Forbidden)?;
    let offset = at.wrapping_sub(mr.iova.load(Relaxed));
    let size = mr.length.load(Relaxed);
    let fits = offset <= size && length <= size - offset;
    let flags = mr.access.load(Relaxed);
    if !fits || mr.pd.load(Relaxed) != pd || flags & need != need {
        return Err(Forbidden);
    }
    let is_relaxed = flags & access::RELAXED_ORDERING != 0;
    Ok(MemRef { addr: mr.addr.load(Relaxed) + offset, is_relaxed, gpu: mr.gpu.load(Relaxed) })
}

// The hold on a UD queue pair while the bytes of a datagram are copied through the shared file.
//
// Many send to it, and each enters and leaves it several times until its bytes are in place.
// Meanwhile the receive is that datagram's: other senders find the hold and come again. It ends
// with its holder, and its owner takes it away when it resets the queue pair.

/// A hold on a queue pair. Given back when it is dropped.
#[derive(Debug)]
pub(crate) struct QpHold {
    slot: &'static QpSlot,
    name: u64,
}

/// The name that the queue pair `qpn` of `device` holds others by.
pub(crate) fn name_of(fabric: &Fabric, device: usize, qpn: u32) -> u64 {
    u64::from(fabric.me) | u64::from(qpn) << 32 | (device as u64) << 56
}

/// Whether another live process than the sender `name` has its hold on `slot`.
pub(crate) fn is_held_by_another(fabric: &Fabric, slot: &QpSlot, name: u64) -> bool {
    let holder = slot.holder.load(SeqCst);
    holder != 0 && holder != name && fabric.live_process(holder as u32).is_some()
}

impl QpHold {
    /// Takes the hold on the queue pair that was entered, which nobody else has.
    pub(crate) fn take(slot: &'static QpSlot, name: u64) -> Self {
        slot.holder.store(name, SeqCst);
        Self { slot, name }
    }

    /// Whether it is still ours.
    pub(crate) fn is_kept(&self) -> bool {
        self.slot.holder.load(SeqCst) == self.name
    }
}

impl Drop for QpHold {
    fn drop(&mut self) {
        let _ = self.slot.holder.compare_exchange(self.name, 0, SeqCst, SeqCst);
    }
}

/// A peer's QP while we execute against it.
#[derive(Debug)]
pub(crate) struct RemoteQpGuard {
    pub(crate) fabric: &'static Fabric,
    pub(crate) slot: &'static QpSlot,
    pub(crate) device: usize,
    /// Process that owns the QP; `None` is ourselves.
    pub(crate) pid: Option<i32>,
    mark: u64,
}

impl RemoteQpGuard {
    /// Enters QP `peer` as `me` (names, see `QpSlot::peer`). `None`: packets to it vanish.
    #[inline]
    pub(crate) fn enter(fabric: &'static Fabric, peer: u64, me: u64, serial: u32) -> Option<Self> {
        if peer == NO_PEER {
            return None;
        }
        let device = PortId::of_name(peer).device;
        let slot = fabric.find_qp(device, peer as u32)?;
        if !accepts(slot, peer, me) {
            return None;
        }
        let owner = slot.owner.load(Acquire);
        let pid = if owner == fabric.me {
            None
        } else {
            Some(fabric.live_process(owner)?.pid.load(Relaxed))
        };
        let mark = u64::from(serial) << 32 | u64::from(fabric.me);
        if !job::set(&slot.busy, mark, |holder| fabric.live_process(holder as u32).is_some()) {
            return None;
        }
        let guard = Self { fabric, slot, device, pid, mark };
        // From here on the QP and the regions of its owner stay as they are.
        (accepts(slot, peer, me) && slot.owner.load(SeqCst) == owner).then_some(guard)
    }

    /// Whether QP `peer`, of those that many send to, can receive: who could not enter has found
    /// another sender there.
    pub(crate) fn is_open(fabric: &'static Fabric, peer: u64) -> bool {
        let slot = if peer == NO_PEER {
            None
        } else {
            fabric.find_qp(PortId::of_name(peer).device, peer as u32)
        };
        slot.is_some_and(|slot| {
            let owner = slot.owner.load(Acquire);
            accepts(slot, peer, ANY_PEER)
                && (owner == fabric.me || fabric.live_process(owner).is_some())
        })
    }

    /// The name of the QP.
    pub(crate) fn name(&self) -> u64 {
        let port = PortId { device: self.device, port: self.slot.port.load(SeqCst) };
        port.qp_name(self.slot.qpn.load(SeqCst))
    }

    /// Whether a packet of that type and number is the next one here. UC and UD take what comes.
    #[inline]
    pub(crate) fn expects(&self, is_unreliable: bool, psn: u32) -> bool {
        let is_unreliable_here = self.slot.transport.load(SeqCst) != qp_type::RC as u32;
        is_unreliable == is_unreliable_here
            && (is_unreliable || self.slot.expected_psn.load(SeqCst) == psn)
    }

    /// The next packet has this number.
    #[inline]
    pub(crate) fn advance(&self, psn: u32) {
        self.slot.expected_psn.store(psn, SeqCst);
    }

    /// How often the entering queue has entered before.
    pub(crate) fn serial(&self) -> u32 {
        (self.mark >> 32) as u32
    }

    /// Whether copies to and from its owner's memory go directly.
    #[inline]
    pub(crate) fn is_reached(&self) -> bool {
        match self.pid {
            None => !self.fabric.settings.staged,
            Some(pid) => self.fabric.reaches(self.slot.owner.load(Relaxed), pid),
        }
    }

    /// Whether the owner has died meanwhile.
    pub(crate) fn is_owner_dead(&self) -> bool {
        self.pid.is_some() && self.fabric.live_process(self.slot.owner.load(SeqCst)).is_none()
    }
}

impl Drop for RemoteQpGuard {
    fn drop(&mut self) {
        job::clear(&self.slot.busy, self.mark);
    }
}

/// Whether `slot` is QP `peer`, able to receive, and connected to `me`.
#[inline]
fn accepts(slot: &QpSlot, peer: u64, me: u64) -> bool {
    let state = slot.state.load(SeqCst);
    slot.qpn.load(SeqCst) == peer as u32
        && (qp_state::RTR..=qp_state::SQE).contains(&state)
        && slot.port.load(SeqCst) == PortId::of_name(peer).port
        && slot.peer.load(SeqCst) == me
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use crate::abi::types::qp_state;
    use crate::limits::QPS;
    use crate::network::topology::PortId;
    use crate::process::fabric::Fabric;
    use crate::remote::responder::RemoteQpGuard;
    use crate::shm::file::{Table, slot_of};

    #[test]
    fn the_mark_of_a_dead_process_keeps_no_other_out() {
        // SAFETY: no other test of this program reads or writes the environment.
        unsafe {
            std::env::set_var("SOFTRNIC_FABRIC", format!("test-{}-latecomer", std::process::id()))
        };
        let fabric = Fabric::attach().expect("a fabric");
        let index = fabric.claim(&fabric.file.control(), Table::Qp, 0, QPS).expect("an entry");
        let slot = fabric.qp(0, index);
        let name = PortId { device: 0, port: 1 }.qp_name(QPS + index);
        slot.qpn.store(QPS + index, SeqCst);
        slot.port.store(1, SeqCst);
        slot.peer.store(name, SeqCst);
        slot.state.store(qp_state::RTS, SeqCst);
        let enters = || RemoteQpGuard::enter(fabric, name, name, 7).is_some();

        slot.busy.store(u64::from(fabric.me), SeqCst);
        assert!(!enters(), "a process that lives is in it");
        let dead = (1 << 30) | (slot_of(fabric.me) as u32 + 1);
        slot.busy.store(1 << 32 | u64::from(dead), SeqCst);
        assert!(enters(), "a process that is dead has left its mark");
        assert_eq!(slot.busy.load(SeqCst), 0);
        fabric.leave();
    }
}
