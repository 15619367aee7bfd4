//! Entering the queue pair of a peer, possibly in another process, without a lock: by the mark in its slot.

use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::abi::consts::{qp_state, qp_type};
use crate::network::port_id::PortId;
use crate::process::fabric::Fabric;
use crate::shm::mark;
use crate::shm::slots::{ANY_PEER, NO_PEER, QpSlot};

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
        let pid = if owner == fabric.me { None } else { Some(fabric.live_process(owner)?.pid.load(Relaxed)) };
        let mark = u64::from(serial) << 32 | u64::from(fabric.me);
        if !mark::set(&slot.busy, mark, |holder| fabric.live_process(holder as u32).is_some()) {
            return None;
        }
        let guard = Self { fabric, slot, device, pid, mark };
        // From here on the QP and the regions of its owner stay as they are.
        (accepts(slot, peer, me) && slot.owner.load(SeqCst) == owner).then_some(guard)
    }

    /// Whether QP `peer`, of those that many send to, can receive: who could not enter has found another sender there.
    pub(crate) fn is_open(fabric: &'static Fabric, peer: u64) -> bool {
        let slot = if peer == NO_PEER { None } else { fabric.find_qp(PortId::of_name(peer).device, peer as u32) };
        slot.is_some_and(|slot| {
            let owner = slot.owner.load(Acquire);
            accepts(slot, peer, ANY_PEER) && (owner == fabric.me || fabric.live_process(owner).is_some())
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
        is_unreliable == is_unreliable_here && (is_unreliable || self.slot.expected_psn.load(SeqCst) == psn)
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
        mark::clear(&self.slot.busy, self.mark);
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

    use crate::abi::consts::qp_state;
    use crate::limits::QPS;
    use crate::network::port_id::PortId;
    use crate::process::fabric::Fabric;
    use crate::remote::guard::RemoteQpGuard;
    use crate::shm::layout::Table;
    use crate::shm::process_id::slot_of;

    #[test]
    fn the_mark_of_a_dead_process_keeps_no_other_out() {
        // SAFETY: no other test of this program reads or writes the environment.
        unsafe { std::env::set_var("SOFTRNIC_FABRIC", format!("test-{}-latecomer", std::process::id())) };
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
