//! The oldest posted receive of a queue pair that was entered.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::abi::consts::{Status, WC_WITH_IMM, access, send_flag, wc_opcode, wr_opcode};
use crate::copy::piece::Pieces;
use crate::limits::QPS;
use crate::remote::completion;
use crate::remote::guard::RemoteQpGuard;
use crate::remote::keys::{Forbidden, resolve};
use crate::remote::request::{Request, has_imm};
use crate::shm::recv_ring::{Received, RecvRing, Sender};
use crate::shm::srq_ring::SrqRing;

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

    /// Completes it with what a datagram brings besides: who has sent it, and more completion flags.
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
        if !completion::admit(guard.fabric, queue) {
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
        completion::announce(guard.fabric, queue, slot.recv_bit.load(Relaxed), is_urgent);
        Ok(())
    }
}

/// The QP that was entered takes the next receive of its SRQ, if it has one, and one is left.
#[cold]
fn take_shared(guard: &RemoteQpGuard) -> bool {
    let (fabric, qp) = (guard.fabric, guard.slot);
    let Some(srq) = qp.srq.load(Relaxed).checked_sub(1).map(|index| fabric.srq(guard.device, index)) else {
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
