//! Slots for staged copies, and who holds each of them.

use std::hint::spin_loop;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::thread::yield_now;

/// Bytes that their owner's process has to copy itself, because nobody else can reach its memory.
///
/// The requester claims the slot, fills it in and posts it; the target takes it, copies between the
/// slot's staging bytes and its own memory, and says how that went.
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

/// Which process holds a job's slot, in which state, and a serial number of the slot's jobs. One
/// word, so that a change is a change of exactly what was seen.
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
        // Pairs with the target's load in `take`. Nobody else changes a slot that is idle and whose
        // owner lives.
        self.hold.store(self.hold().to(state::POSTED).word(), SeqCst);
    }

    /// Target `me`: takes the slot if it is posted for it.
    pub(crate) fn take(&self, me: u32) -> Option<Hold> {
        let seen = self.hold();
        // If the slot is posted anew in between, its hold is another.
        let is_ours = self.target.load(SeqCst) == me && seen.state == state::POSTED;
        (is_ours && self.change(seen, seen.to(state::TAKEN))).then(|| seen.to(state::TAKEN))
    }

    /// Target: leaves the slot that it took as `taken` in `state`; frees it if the requester has
    /// given it up. True if the requester still wants it.
    pub(crate) fn leave(&self, taken: Hold, state: u8) -> bool {
        let is_wanted = self.change(taken, taken.to(state));
        if !is_wanted {
            self.release(taken.to(state::ORPHANED));
        }
        is_wanted
    }

    /// Requester: gives the slot up. `Some`: the target is copying, and will free it, unless it is
    /// dead.
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

// The mark that a process leaves in a peer's queue pair while it executes there.
//
// The process that enters first sets the mark, then looks whether it may. The owner first changes
// what those who enter will find (state, keys), then waits for the mark to go, or for the marking
// process to die. Both steps are sequentially consistent, so one of the two always sees the other.

/// How often to look again at a queue pair that another process has marked.
const MAX_TRIES: u32 = 1000;
/// How often to look again before giving up the processor.
const SPINS: u32 = 200;

/// Sets `mark`. False: another process, which is alive, holds the queue pair.
#[inline]
pub(crate) fn set(busy: &AtomicU64, mark: u64, is_alive: impl Fn(u64) -> bool) -> bool {
    let mut tries = 0;
    while let Err(holder) = busy.compare_exchange_weak(0, mark, SeqCst, Relaxed) {
        // A process that comes late and will find that it may not enter; or another sender, where
        // many may enter.
        tries += 1;
        if tries % MAX_TRIES == 0 && !evict(busy, holder, &is_alive) {
            return false;
        }
        spin_loop();
    }
    true
}

/// Takes `mark` away if it is still there; the owner may have taken us for dead.
#[inline]
pub(crate) fn clear(busy: &AtomicU64, mark: u64) {
    let _ = busy.compare_exchange(mark, 0, SeqCst, Relaxed);
}

/// Takes the mark of a process away that has died with it. False: it lives.
#[cold]
fn evict(busy: &AtomicU64, holder: u64, is_alive: impl Fn(u64) -> bool) -> bool {
    if is_alive(holder) {
        return false;
    }
    let _ = busy.compare_exchange(holder, 0, SeqCst, Relaxed);
    true
}

/// For the owner: waits until the process that is in the queue pair at this moment has left, or
/// died. The owner has first changed what a later one will find.
pub(crate) fn await_clear(busy: &AtomicU64, is_alive: impl Fn(u64) -> bool) {
    let seen = busy.load(SeqCst);
    let mut spins = 0u32;
    while seen != 0 && busy.load(SeqCst) == seen && is_alive(seen) {
        spins += 1;
        if spins < SPINS {
            spin_loop();
        } else {
            yield_now();
        }
    }
    // The mark of a dead process would keep the next one out.
    if seen != 0 && !is_alive(seen) {
        let _ = busy.compare_exchange(seen, 0, SeqCst, SeqCst);
    }
}
