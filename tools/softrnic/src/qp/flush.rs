//! What is left in a QP that fails: completed as flushed by whoever polls, and by the service thread if nobody does.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use super::Qp;
use crate::abi::consts::{Status, qp_state};
use crate::cq;
use crate::engine;
use crate::fabric::lock;
use crate::recv_queue::Received;
use crate::timers::{Task, now_ns};

impl Qp {
    /// In the error state: completes both queues as flushed. False while a peer is still in the QP.
    pub(crate) fn flush(&self) -> bool {
        engine::pump(self, &mut lock(&self.send));
        let _guard = lock(&self.recv);
        self.flush_recv()
    }

    /// Has the queues flushed by the next poll, or by the service thread if there is none: the application may be
    /// waiting for just these completions on a channel.
    pub(crate) fn flush_soon(&self) {
        self.ring_recv();
        self.flush_at(now_ns());
    }

    pub(super) fn flush_at(&self, at: u64) {
        if let Some(this) = self.this.upgrade() {
            self.fabric.timers.arm(self.fabric, at, Task::Flush(this));
        }
    }

    /// For the service thread: completes what is left in a QP that has failed, or that a visitor meant to fail when it
    /// died.
    pub(crate) fn see_failure_through(&self) {
        const PAUSE: u64 = 1_000_000;
        let guard = lock(&self.recv);
        if !self.is_in_fabric() {
            return;
        }
        let holder = self.slot.busy.load(SeqCst);
        let is_visited = holder != 0 && self.fabric.live_process(holder as u32).is_some();
        if holder != 0 && !is_visited {
            self.slot.fail();
        }
        drop(guard);
        if is_visited || (self.slot.state.load(SeqCst) == qp_state::ERR && !self.flush()) {
            self.flush_at(now_ns() + PAUSE);
        }
    }

    /// Whether the entry is still ours. Call with `recv` locked, for it to stay so.
    fn is_in_fabric(&self) -> bool {
        self.slot.qpn.load(SeqCst) == self.abi.qp_num
    }

    /// Call with `recv` locked.
    pub(super) fn flush_recv(&self) -> bool {
        // It may have been reset or destroyed since the caller looked.
        if self.slot.state.load(SeqCst) != qp_state::ERR || !self.is_in_fabric() {
            return true;
        }
        if self.fabric.is_visited(self.slot) || (self.fabric.has_stage() && self.fabric.server.is_busy()) {
            return false;
        }
        let posted = self.slot.posted.load(Relaxed);
        let flushed = Received { status: Status::Flush as u32, ..Received::default() };
        for at in self.slot.done.load(Acquire)..posted {
            if !cq::admit(self.fabric, self.recv_cq.slot) {
                break;
            }
            self.recv_ring.finish(self.slot, at, &flushed);
            cq::announce(self.fabric, self.recv_cq.slot, self.slot.recv_bit.load(Relaxed), true);
        }
        true
    }
}
