//! Which processes take part in the fabric, and which of them are alive.
//!
//! Two signs of life: a record lock (the authority, for the control path) and a robust futex word that the kernel
//! marks when the service thread dies with its process, however that happens. The latter costs a peer one load.

use std::sync::atomic::Ordering::{Acquire, SeqCst};

use crate::process::fabric::Fabric;
use crate::shm::mark;
use crate::shm::process_id::slot_of;
use crate::shm::slots::{PROC_ALIVE, ProcSlot, QpSlot};

/// Whether `slot` still is process `id` and has not died.
pub(crate) fn is_alive(slot: &ProcSlot, id: u32) -> bool {
    slot.life.load(Acquire) & libc::FUTEX_OWNER_DIED == 0 && slot.id.load(Acquire) == id
}

impl Fabric {
    /// Whether the process in slot `index` takes part, and is neither in its exit handlers nor dying. The kernel drops the lock of a
    /// process that dies after it may have closed its sockets, from which a peer hears of the death; it marks the word before.
    pub(crate) fn takes_part(&self, index: usize) -> bool {
        let slot = self.proc(index);
        slot.state.load(Acquire) == PROC_ALIVE && is_alive(slot, slot.id.load(Acquire)) && self.file.is_held(index)
    }

    /// The process `id`, if it lives.
    pub(crate) fn live_process(&self, id: u32) -> Option<&'static ProcSlot> {
        let slot = self.proc(slot_of(id));
        is_alive(slot, id).then_some(slot)
    }

    /// Whether a live process is executing against `qp` right now.
    pub(crate) fn is_entered(&self, qp: &QpSlot) -> bool {
        let busy = qp.busy.load(SeqCst);
        busy != 0 && self.live_process(busy as u32).is_some()
    }

    /// Waits until the process that executes against `qp` at this moment has left, or died. The caller has first changed
    /// what a later one will find.
    pub(crate) fn await_remote(&self, qp: &QpSlot) {
        mark::await_clear(&qp.busy, |holder| self.live_process(holder as u32).is_some());
    }
}
