//! A packet that lingers in the network: it was taken for lost, and arrives long after it was sent.
//!
//! The QP that sent it may have been reset or destroyed meanwhile, its buffer used for something else. If the responder
//! still expects exactly this packet, it takes it: a late write.

use super::copy::{Pieces, Way, transfer};
use super::moving::Moving;
use super::requester::{PSN_MASK, gather};
use super::visit::Visit;
use super::{Verdict, responder};
use crate::abi::consts::{send_flag, wr_opcode};
use crate::fabric::Fabric;
use crate::qp::Qp;
use crate::send_queue::{Link, Request, SendQueue};
use crate::timers::{Task, now_ns};

/// A message with its bytes, as they were when it was sent.
#[derive(Debug)]
pub(crate) struct Ghost {
    from: u64,
    link: Link,
    serial: u32,
    is_uc: bool,
    request: Request,
    bytes: Vec<u8>,
}

impl Ghost {
    /// Sends the head request of `queue` on a journey that ends at `at` (ns). READs and atomics do not linger.
    pub(super) fn launch(qp: &Qp, queue: &SendQueue, at: u64) {
        let (request, sges, inline) = queue.request(queue.executed);
        if matches!(request.opcode, wr_opcode::RDMA_READ..=wr_opcode::ATOMIC_FETCH_ADD) {
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
            if transfer(None, Way::Out, &local, &copy).is_err() {
                return;
            }
            bytes
        };
        let ghost = Self {
            from: qp.name(),
            link: queue.link,
            serial: queue.visits,
            is_uc: qp.is_uc(),
            request: *request,
            bytes,
        };
        qp.fabric.timers.arm(qp.fabric, at, Task::Arrive(Box::new(ghost)));
    }

    /// The packet arrives.
    pub(crate) fn arrive(&self, fabric: &'static Fabric) {
        let Some(visit) = Visit::enter(fabric, self.link.peer, self.from, self.serial) else { return };
        if !visit.expects(self.is_uc, self.link.psn) {
            return;
        }
        let total = self.bytes.len() as u64;
        let local = Pieces::host(self.bytes.as_ptr() as u64, total);
        let Ok(plan) = responder::admit(&visit, &self.request, total) else { return };
        let next = self.link.psn.wrapping_add(self.link.packets(total)) & PSN_MASK;
        if total != 0 && (plan.remote.has_gpu || !visit.is_reached()) {
            return self.pass_through(fabric, Moving::new(visit, plan, local, &self.request, None), next);
        }
        let moved = transfer(visit.pid, plan.way, &local, &plan.remote);
        if responder::conclude(&visit, &self.request, &plan, total, moved) == Verdict::Done {
            visit.advance(next);
        }
    }

    /// Through the stage. Waits for the peer's process, but not for ever: packets may also be lost.
    fn pass_through(&self, fabric: &'static Fabric, mut moving: Moving, next: u32) {
        const PATIENCE: u64 = 1_000_000_000;
        let end = now_ns() + PATIENCE;
        while fabric.open_stage().is_ok() && now_ns() < end {
            if let Some(moved) = moving.proceed() {
                let (visit, plan) = (&moving.visit, &moving.plan);
                if responder::conclude(visit, &self.request, plan, moving.total(), moved) == Verdict::Done {
                    visit.advance(next);
                }
                return;
            }
            fabric.server.serve(fabric);
            moving.remind();
            std::thread::yield_now();
        }
    }
}
