//! The word that each data path call reads first: 0 means that the fast path is open.

use crate::net::data::sync::{AtomicU32, Ordering};

/// The state of the peer, also whether this connection recovers, and whether a thread holds the
/// state of this end.
///
/// ```text
/// bit 31      10 9      8      7          0
///      zero      shared held   state of the peer
/// ```
#[derive(Debug)]
pub struct StateWord(AtomicU32);

/// A thread has entered by [`StateWord::try_hold`].
const HELD: u32 = 1 << 8;
/// NCCL calls from more than one thread.
const SHARED: u32 = 1 << 9;

impl Default for StateWord {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl StateWord {
    /// Whether the peer is well, and the word is neither held nor shared.
    #[inline(always)]
    pub fn is_clear(&self) -> bool {
        // Acquire pairs with the Release of the thread that cleared a bit.
        self.0.load(Ordering::Acquire) == 0
    }

    /// The state of the peer.
    #[inline]
    pub fn peer(&self) -> u8 {
        self.0.load(Ordering::Acquire) as u8
    }

    /// Changes the state of the peer. Two threads must not call it at once.
    pub fn set_peer(&self, state: u8) {
        self.0.fetch_xor(u32::from(self.peer() ^ state), Ordering::AcqRel);
    }

    /// Tries to hold the word; false if it is held already.
    pub fn try_hold(&self) -> bool {
        self.0.fetch_or(HELD, Ordering::AcqRel) & HELD == 0
    }

    /// Ends a hold of [`Self::try_hold`].
    pub fn release(&self) {
        self.0.fetch_and(!HELD, Ordering::AcqRel);
    }

    /// Whether a thread holds the word.
    pub fn is_held(&self) -> bool {
        self.0.load(Ordering::Acquire) & HELD != 0
    }

    /// Marks the word as shared: it is never clear again.
    pub fn share(&self) {
        self.0.fetch_or(SHARED, Ordering::AcqRel);
    }
}
