//! One place of the table of operations: words that one thread writes and others read, without waiting for each other.
//!
//! A place is taken and given back by one atomic exchange. A reader that sees a place change drops it. `tests/models` explores
//! every order of the steps.

use super::sync::{AtomicU64, Ordering, fence};

/// States of a place, in the lower two bits; above them the number of the operation. 0: it is free.
pub(super) const FILLING: u64 = 1;
pub(super) const FILLED: u64 = 2;
/// The operation has ended: the place is free too, and still tells which one that was.
pub(super) const ENDED: u64 = 3;

#[repr(align(64))]
#[derive(Debug)]
pub(super) struct Place {
    pub(super) state: AtomicU64,
    /// The call, the communicator and where the operation goes.
    pub(super) words: [AtomicU64; 3],
}

impl Place {
    /// The state and the words that are there, or were there last, unless they change just now.
    pub(super) fn read(&self) -> Option<(u64, [u64; 3])> {
        self.read_in(self.state.load(Ordering::Acquire))
    }

    /// The same, of which `state` has been read.
    pub(super) fn read_in(&self, state: u64) -> Option<(u64, [u64; 3])> {
        if !matches!(state & 3, FILLED | ENDED) {
            return None;
        }
        let words = self.words.each_ref().map(|word| word.load(Ordering::Relaxed));
        fence(Ordering::Acquire);
        (self.state.load(Ordering::Relaxed) == state).then_some((state, words))
    }

    /// The state, for [`Self::fill`].
    pub(super) fn state(&self) -> u64 {
        self.state.load(Ordering::Relaxed)
    }

    /// Operation `ordinal` is there from now on, with `words`. False: the place is not in state `now` any more.
    pub(super) fn fill(&self, now: u64, ordinal: u64, words: [u64; 3]) -> bool {
        let filling = ordinal << 2 | FILLING;
        if self.state.compare_exchange(now, filling, Ordering::Relaxed, Ordering::Relaxed).is_err() {
            return false;
        }
        fence(Ordering::Release);
        self.words.iter().zip(words).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        self.state.store(ordinal << 2 | FILLED, Ordering::Release);
        true
    }

    /// Operation `ordinal` has ended, if it is there.
    pub(super) fn end(&self, ordinal: u64) {
        let (filled, ended) = (ordinal << 2 | FILLED, ordinal << 2 | ENDED);
        // Who reads this state gets the words of the store that this exchange has followed, whoever makes it.
        let _ = self.state.compare_exchange(filled, ended, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// The place is free, unless it is not in `state` any more.
    pub(super) fn free(&self, state: u64) {
        let _ = self.state.compare_exchange(state, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}
