//! One slot of the table of operations: words that one thread writes and others read, without
//! waiting for each other.
//!
//! One atomic exchange takes or frees a slot. A reader that sees a slot change ignores it.
//! `tests/models` explores every order of the steps.

use super::sync::{AtomicU64, Ordering, fence};

/// States of a slot, in the lower two bits; the number of the operation is above them. 0: free.
pub(super) const FILLING: u64 = 1;
pub(super) const FILLED: u64 = 2;
/// The operation has ended. The slot is free, but still identifies the operation.
pub(super) const ENDED: u64 = 3;

#[repr(align(64))]
#[derive(Debug)]
pub(super) struct Place {
    pub(super) state: AtomicU64,
    /// The call, the communicator, and the operation's peer and direction.
    pub(super) words: [AtomicU64; 3],
}

impl Place {
    /// The state with the present or last words, unless they are changing.
    pub(super) fn read(&self) -> Option<(u64, [u64; 3])> {
        self.read_in(self.state.load(Ordering::Acquire))
    }

    /// [`Self::read`] when `state` has already been read.
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

    /// Stores operation `ordinal` with `words`. False: the slot is no longer in state `now`.
    pub(super) fn fill(&self, now: u64, ordinal: u64, words: [u64; 3]) -> bool {
        let filling = ordinal << 2 | FILLING;
        if self.state.compare_exchange(now, filling, Ordering::Relaxed, Ordering::Relaxed).is_err()
        {
            return false;
        }
        fence(Ordering::Release);
        self.words.iter().zip(words).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        self.state.store(ordinal << 2 | FILLED, Ordering::Release);
        true
    }

    /// Marks operation `ordinal` as ended, if it is in this slot.
    pub(super) fn end(&self, ordinal: u64) {
        let (filled, ended) = (ordinal << 2 | FILLED, ordinal << 2 | ENDED);
        // A reader of this state sees the words of the store before this exchange, whichever thread
        // makes it.
        let _ = self.state.compare_exchange(filled, ended, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Frees the slot, unless it is no longer in `state`.
    pub(super) fn free(&self, state: u64) {
        let _ = self.state.compare_exchange(state, 0, Ordering::Relaxed, Ordering::Relaxed);
    }
}
