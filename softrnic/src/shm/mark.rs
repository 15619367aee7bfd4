//! The mark that a process leaves in a peer's queue pair while it executes there.
//!
//! The process that enters first sets the mark, then looks whether it may. The owner first changes what those who enter
//! will find (state, keys), then waits for the mark to go, or for the marking process to die. Both steps are sequentially
//! consistent, so one of the two always sees the other: `tests/models` explores it.

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::host::sync::{AtomicU64, spin_loop, yield_now};

/// How often to look again at a queue pair that another process has marked.
const MAX_TRIES: u32 = 1000;
/// How often to look again before giving up the processor.
const SPINS: u32 = 200;

/// Sets `mark`. False: another process, which is alive, holds the queue pair.
#[inline]
pub(crate) fn set(busy: &AtomicU64, mark: u64, is_alive: impl Fn(u64) -> bool) -> bool {
    let mut tries = 0;
    while let Err(holder) = busy.compare_exchange_weak(0, mark, SeqCst, Relaxed) {
        // A process that comes late and will find that it may not enter; or another sender, where many may enter.
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

/// For the owner: waits until the process that is in the queue pair at this moment has left, or died. The owner has first
/// changed what a later one will find.
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
