//! A packet that lingers in the network: it was taken for lost, and arrives long after it was sent.
//!
//! The QP that sent it may have been reset or destroyed meanwhile, its buffer used for something else. If the responder
//! still expects exactly this packet, it takes it: a late write.

use super::copy::{CopyError, Pieces, Way, transfer, transfer_by_lines};
use super::moving::{Moving, Path};
use super::pump::GLANCE;
use super::requester::{PSN_MASK, gather};
use super::responder::Plan;
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
    /// If its bytes pass through the stage. In front of them: it refers to them.
    moving: Option<Moving>,
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
            moving: None,
            bytes,
        };
        qp.fabric.timers.arm(qp.fabric, at, Task::Arrive(Box::new(ghost)));
    }

    /// The packet arrives.
    pub(crate) fn arrive(mut self: Box<Self>, fabric: &'static Fabric) {
        if self.moving.is_some() {
            return self.pass_through(fabric);
        }
        let Some(visit) = Visit::enter(fabric, self.link.peer, self.from, self.serial) else { return };
        if !visit.expects(self.is_uc, self.link.psn) {
            return;
        }
        let total = self.bytes.len() as u64;
        let local = Pieces::host(self.bytes.as_ptr() as u64, total);
        let Ok(plan) = responder::admit(&visit, &self.request, total) else { return };
        if total != 0 && (plan.remote.has_gpu || !visit.is_reached()) {
            let path = Path {
                from: self.from,
                to: self.link.peer,
                is_uc: self.is_uc,
                psn: self.link.psn,
                serial: self.serial,
            };
            self.moving = Some(Moving::new(&visit, path, plan, local, &self.request, None));
            drop(visit);
            return self.pass_through(fabric);
        }
        let moved = if fabric.settings.lines {
            transfer_by_lines(visit.pid, &local, &plan.remote)
        } else {
            transfer(visit.pid, plan.way, &local, &plan.remote)
        };
        self.conclude(&visit, &plan, moved);
    }

    /// Through the stage, for as long as the peer's queue pair waits for it.
    fn pass_through(mut self: Box<Self>, fabric: &'static Fabric) {
        let Some(mut moving) = self.moving.take().filter(|_| fabric.open_stage().is_ok()) else { return };
        match moving.proceed() {
            Some((visit, moved)) => {
                if let Some(visit) = visit {
                    self.conclude(&visit, &moving.plan, moved);
                }
            }
            None => {
                moving.remind();
                self.moving = Some(moving);
                fabric.timers.arm(fabric, now_ns() + GLANCE, Task::Arrive(self));
            }
        }
    }

    fn conclude(&self, visit: &Visit, plan: &Plan, moved: Result<(), CopyError>) {
        let total = self.bytes.len() as u64;
        if responder::conclude(visit, &self.request, plan, total, moved) == Verdict::Done {
            visit.advance(self.link.psn.wrapping_add(self.link.packets(total)) & PSN_MASK);
        }
    }
}
