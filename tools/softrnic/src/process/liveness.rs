//! Which processes take part in the fabric, and which of them are alive.
//!
//! Two signs of life: a record lock (the authority, for the control path) and a robust futex word that the kernel
//! marks when the service thread dies with its process, however that happens. The latter costs a peer one load.

use std::sync::atomic::Ordering::{Acquire, SeqCst};

use crate::process::fabric::Fabric;
use crate::shm::process_id::slot_of;
use crate::shm::slots::{ProcSlot, QpSlot};

/// Whether `slot` still is process `id` and has not died.
pub(crate) fn is_alive(slot: &ProcSlot, id: u32) -> bool {
    slot.life.load(Acquire) & libc::FUTEX_OWNER_DIED == 0 && slot.id.load(Acquire) == id
}

impl Fabric {
    /// The process `id`, if it lives.
    pub(crate) fn live_process(&self, id: u32) -> Option<&'static ProcSlot> {
        let slot = self.proc(slot_of(id));
        is_alive(slot, id).then_some(slot)
    }

    /// Whether a live process is executing against `qp` right now.
    pub(crate) fn is_visited(&self, qp: &QpSlot) -> bool {
        let busy = qp.busy.load(SeqCst);
        busy != 0 && self.live_process(busy as u32).is_some()
    }

    /// Waits until whoever executes against `qp` at this moment has left, or died. The caller has first changed
    /// what a later visitor will find.
    pub(crate) fn await_visitor(&self, qp: &QpSlot) {
        let seen = qp.busy.load(SeqCst);
        let mut spins = 0u32;
        while seen != 0 && qp.busy.load(SeqCst) == seen && self.live_process(seen as u32).is_some() {
            spins += 1;
            if spins < 200 {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        // The mark of a dead visitor would keep the next one out.
        if seen != 0 && self.live_process(seen as u32).is_none() {
            let _ = qp.busy.compare_exchange(seen, 0, SeqCst, SeqCst);
        }
    }
}
