//! Who takes part, and who still lives.
//!
//! Two signs of life: a record lock (the authority, for the control path) and a robust futex word that the kernel
//! marks when the service thread dies with its process, however that happens. The latter costs a peer one load.

use std::sync::atomic::Ordering::{Acquire, SeqCst};

use super::Fabric;
use super::layout::PROCS;
use super::slots::{PROC_ALIVE, PROC_EXITING, ProcSlot, QpSlot};

const SLOT_BITS: u32 = 8;
const _: () = assert!(PROCS == 1 << SLOT_BITS);

/// Slot number of a process id.
pub(crate) fn slot_of(id: u32) -> usize {
    (id & ((1 << SLOT_BITS) - 1)) as usize
}

/// The id of generation `generation` of slot `index`; never 0.
pub(crate) fn id_of(index: usize, generation: u32) -> u32 {
    ((generation & 0x7f_ffff).max(1) << SLOT_BITS) | index as u32
}

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

    /// Wakes the service thread of process `id`.
    pub(crate) fn ring(&self, id: u32) {
        let slot = self.proc(slot_of(id));
        slot.bell.fetch_add(1, SeqCst);
        // SAFETY: the futex word lies in the mapping, which is never unmapped.
        unsafe { libc::syscall(libc::SYS_futex, slot.bell.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
    }

    /// The process is about to exit: whoever is the last removes the file. All still works until it is really gone.
    pub(crate) fn leave(&self) {
        let _control = self.file.control();
        self.proc(slot_of(self.me)).state.store(PROC_EXITING, SeqCst);
        let others = (0..PROCS)
            .any(|i| i != slot_of(self.me) && self.proc(i).state.load(Acquire) == PROC_ALIVE && self.file.is_held(i));
        if !others {
            self.file.unlink();
        }
    }
}
