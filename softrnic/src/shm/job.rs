//! Slots for staged copies, and who holds each of them.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::host::sync::{AtomicU32, AtomicU64};

/// Bytes that their owner's process has to copy itself, because nobody else can reach its memory.
///
/// The requester claims the slot, fills it in and posts it; the target takes it, copies between the slot's staging
/// bytes and its own memory, and says how that went.
#[repr(C, align(64))]
pub(crate) struct JobSlot {
    /// [`Hold`]; 0 is free.
    pub(crate) hold: AtomicU64,
    // What follows is written by the process that has claimed the slot, before it is posted.
    /// Process whose memory it is.
    pub(crate) target: AtomicU32,
    /// What to do with that memory, see [`task`].
    pub(crate) task: AtomicU32,
    pub(crate) device: AtomicU32,
    /// Key of the memory region; the target looks whether it is still valid.
    pub(crate) key: AtomicU32,
    pub(crate) addr: AtomicU64,
    pub(crate) len: AtomicU64,
    /// Jobs are done in this order.
    pub(crate) number: AtomicU64,
}

/// What a requester asks of a target; see [`JobSlot`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) target: u32,
    pub(crate) task: u32,
    pub(crate) device: u32,
    pub(crate) key: u32,
    pub(crate) addr: u64,
    pub(crate) len: u64,
    pub(crate) number: u64,
}

/// Which process holds a job's slot, in which state, and a serial number of the slot's jobs. One word, so that a change is
/// a change of exactly what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// Process that claimed it.
    pub(crate) owner: u32,
    pub(crate) serial: u16,
    /// See [`state`].
    pub(crate) state: u8,
}

impl Hold {
    pub(crate) fn of(word: u64) -> Self {
        Self { owner: (word >> 32) as u32, serial: (word >> 8) as u16, state: word as u8 }
    }

    pub(crate) fn word(self) -> u64 {
        u64::from(self.owner) << 32 | u64::from(self.serial) << 8 | u64::from(self.state)
    }

    /// The same in another state.
    pub(crate) fn to(self, state: u8) -> Self {
        Self { state, ..self }
    }
}

impl JobSlot {
    pub(crate) fn hold(&self) -> Hold {
        Hold::of(self.hold.load(SeqCst))
    }

    /// From `seen` to `next`; false if it is no longer as seen.
    pub(crate) fn change(&self, seen: Hold, next: Hold) -> bool {
        self.hold.compare_exchange(seen.word(), next.word(), SeqCst, SeqCst).is_ok()
    }

    /// From `seen` to free.
    pub(crate) fn release(&self, seen: Hold) -> bool {
        self.hold.compare_exchange(seen.word(), 0, SeqCst, SeqCst).is_ok()
    }

    /// Requester: fills in a claimed slot and hands it to its target.
    pub(crate) fn post(&self, asked: &Job) {
        self.target.store(asked.target, Relaxed);
        self.device.store(asked.device, Relaxed);
        self.task.store(asked.task, Relaxed);
        self.key.store(asked.key, Relaxed);
        self.addr.store(asked.addr, Relaxed);
        self.len.store(asked.len, Relaxed);
        self.number.store(asked.number, Relaxed);
        // Pairs with the target's load in `take`. Nobody else changes a slot that is idle and whose owner lives.
        self.hold.store(self.hold().to(state::POSTED).word(), SeqCst);
    }

    /// Target `me`: takes the slot if it is posted for it.
    pub(crate) fn take(&self, me: u32) -> Option<Hold> {
        let seen = self.hold();
        // If the slot is posted anew in between, its hold is another.
        let is_ours = self.target.load(SeqCst) == me && seen.state == state::POSTED;
        (is_ours && self.change(seen, seen.to(state::TAKEN))).then(|| seen.to(state::TAKEN))
    }

    /// Target: leaves the slot that it took as `taken` in `state`; frees it if the requester has given it up. True if the
    /// requester still wants it.
    pub(crate) fn leave(&self, taken: Hold, state: u8) -> bool {
        let is_wanted = self.change(taken, taken.to(state));
        if !is_wanted {
            self.release(taken.to(state::ORPHANED));
        }
        is_wanted
    }

    /// Requester: gives the slot up. `Some`: the target is copying, and will free it, unless it is dead.
    pub(crate) fn give_up(&self) -> Option<Hold> {
        loop {
            let seen = self.hold();
            if seen.state != state::TAKEN {
                // Withdrawn, or over.
                if self.release(seen) {
                    return None;
                }
            } else if self.change(seen, seen.to(state::ORPHANED)) {
                return Some(seen.to(state::ORPHANED));
            }
        }
    }
}

/// States of a job.
pub(crate) mod state {
    /// The requester prepares it.
    pub(crate) const IDLE: u8 = 1;
    /// The target may take it.
    pub(crate) const POSTED: u8 = 2;
    /// The target copies.
    pub(crate) const TAKEN: u8 = 3;
    pub(crate) const DONE: u8 = 4;
    /// The memory is no longer there.
    pub(crate) const FAILED: u8 = 5;
    /// The key does not allow it any more.
    pub(crate) const DENIED: u8 = 6;
    /// The target copies, but the requester has given the slot up: the target frees it.
    pub(crate) const ORPHANED: u8 = 7;
}

/// What a job is about.
pub(crate) mod task {
    /// The stage's bytes go into the memory.
    pub(crate) const FILL: u32 = 0;
    /// The memory's bytes go into the stage.
    pub(crate) const FETCH: u32 = 1;
    /// Atomics: the stage holds the operands, and then what was in the memory before.
    pub(crate) const CMP_SWAP: u32 = 2;
    pub(crate) const FETCH_ADD: u32 = 3;
}
