//! A packet that is delayed in the network: it was taken for lost, and arrives long after it was sent.
//!
//! The QP that sent it may have been reset or destroyed meanwhile, its buffer used for something else. If the responder
//! still expects exactly this packet, it takes it: a late write.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::abi::consts::{qp_state, send_flag, wr_opcode};
use crate::copy::piece::{CopyError, Direction, Pieces};
use crate::copy::transfer::{transfer, transfer_by_lines};
use crate::engine::requester::{PSN_MASK, gather};
use crate::engine::wait::{BUSY_RETRY_NS, STAGED_CHECK_NS};
use crate::host::clock::now_ns;
use crate::network::port_id::PortId;
use crate::objects::qp::Qp;
use crate::objects::send_queue::{Link, SendQueue};
use crate::process::fabric::Fabric;
use crate::process::timers::Task;
use crate::remote::guard::RemoteQpGuard;
use crate::remote::outcome::TxOutcome;
use crate::remote::request::Request;
use crate::remote::responder::{self, Admission};
use crate::remote::staged_transfer::{Path, StagedTransfer};
use crate::shm::slots::DelayedCounters;

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
    /// Sends the head request of `queue`, to arrive at `at` (ns). READs, atomics and datagrams are not delayed: they are lost.
    pub(crate) fn launch(qp: &Qp, queue: &SendQueue, at: u64) {
        let (request, sges, inline) = queue.request(queue.executed);
        if qp.is_ud() || matches!(request.opcode, wr_opcode::RDMA_READ..=wr_opcode::ATOMIC_FETCH_ADD) {
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
        let Some(guard) = RemoteQpGuard::enter(fabric, self.link.peer, self.from, self.serial) else {
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
            self.staged = Some(StagedTransfer::new(&guard, path, admission, local, &self.request, None));
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

    /// The queue pair does not let it in: it is not what it was, or another process is in it for a moment.
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
        let Some(mut staged) = self.staged.take().filter(|_| fabric.open_stage().is_ok()) else { return };
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
