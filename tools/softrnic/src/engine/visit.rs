//! Entering the QP of a peer, possibly in another process, without a lock.
//!
//! The visitor first marks the QP (`busy`), then looks whether it is welcome. The owner first changes what visitors
//! will find (state, keys), then waits for the mark to go, or for the marking process to die. Both steps are
//! sequentially consistent, so one of the two always sees the other.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::abi::consts::{event, qp_state};
use crate::fabric::Fabric;
use crate::fabric::slots::{NO_PEER, QpSlot};
use crate::route::Place;

/// A peer's QP while we execute against it.
pub(super) struct Visit<'a> {
    pub(super) fabric: &'a Fabric,
    pub(super) slot: &'static QpSlot,
    pub(super) device: usize,
    /// Process that owns the QP; `None` is ourselves.
    pub(super) pid: Option<i32>,
    mark: u64,
}

/// How often to look again at a QP that somebody else has marked.
const PATIENCE: u32 = 1000;

impl<'a> Visit<'a> {
    /// Enters QP `peer` as `me` (both port << 40 | device << 32 | QPN). `None`: packets to it vanish.
    #[inline]
    pub(super) fn enter(fabric: &'a Fabric, peer: u64, me: u64, serial: u32) -> Option<Self> {
        if peer == NO_PEER {
            return None;
        }
        let device = Place::of_name(peer).device;
        let slot = fabric.find_qp(device, peer as u32)?;
        if !is_welcome(slot, peer, me) {
            return None;
        }
        let owner = slot.owner.load(Acquire);
        let pid = if owner == fabric.me { None } else { Some(fabric.live_process(owner)?.pid.load(Relaxed)) };
        let mark = u64::from(serial) << 32 | u64::from(fabric.me);
        let mut tries = 0;
        while slot.busy.compare_exchange_weak(0, mark, SeqCst, Relaxed).is_err() {
            // Only a latecomer that will find itself unwelcome can be in there.
            tries += 1;
            if tries == PATIENCE {
                return None;
            }
            std::hint::spin_loop();
        }
        let visit = Self { fabric, slot, device, pid, mark };
        // From here on the QP and the regions of its owner stay as they are.
        (is_welcome(slot, peer, me) && slot.owner.load(SeqCst) == owner).then_some(visit)
    }

    /// A valid message has arrived: the owner of a QP that waits for that to go to RTS is told.
    #[inline]
    pub(super) fn greet(&self) {
        if self.slot.state.load(Relaxed) == qp_state::RTR && self.slot.is_established.swap(1, SeqCst) == 0 {
            self.slot.events.fetch_or(1 << event::COMM_EST, SeqCst);
            self.fabric.ring(self.slot.owner.load(SeqCst));
        }
    }

    /// Whether the owner has died meanwhile.
    pub(super) fn is_owner_dead(&self) -> bool {
        self.pid.is_some() && self.fabric.live_process(self.slot.owner.load(SeqCst)).is_none()
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // Only if the mark is still ours; the owner may have taken us for dead.
        let _ = self.slot.busy.compare_exchange(self.mark, 0, SeqCst, Relaxed);
    }
}

/// Whether `slot` is QP `peer`, able to receive, and connected to `me`.
#[inline]
fn is_welcome(slot: &QpSlot, peer: u64, me: u64) -> bool {
    let state = slot.state.load(SeqCst);
    slot.qpn.load(SeqCst) == peer as u32
        && (qp_state::RTR..=qp_state::SQE).contains(&state)
        && slot.port.load(SeqCst) == Place::of_name(peer).port
        && slot.peer.load(SeqCst) == me
}
