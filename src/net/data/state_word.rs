//! The word that each call of the data path looks at: 0 while nothing stands in the way of the short path.

use crate::net::data::sync::{AtomicU32, Ordering};

/// How the two ends of a connection stand, and whether somebody holds the state of this end.
///
/// ```text
/// bit 31      10 9      8      7          0
///      zero      shared held   state of the peer
/// ```
#[derive(Debug)]
pub struct StateWord(AtomicU32);

/// Somebody is inside by [`StateWord::try_hold`].
const HELD: u32 = 1 << 8;
/// NCCL calls from more than one thread.
const SHARED: u32 = 1 << 9;

impl Default for StateWord {
    fn default() -> Self {
        Self(AtomicU32::new(0))
    }
}

impl StateWord {
    /// Whether all is well with the peer, nobody holds the word, and it is not shared.
    #[inline(always)]
    pub fn is_clear(&self) -> bool {
        // Acquire pairs with the Release of those who have cleared a bit.
        self.0.load(Ordering::Acquire) == 0
    }

    /// The state of the peer.
    #[inline]
    pub fn peer(&self) -> u8 {
        self.0.load(Ordering::Acquire) as u8
    }

    /// Changes the state of the peer. Two threads must not do so at once.
    pub fn set_peer(&self, state: u8) {
        self.0.fetch_xor(u32::from(self.peer() ^ state), Ordering::AcqRel);
    }

    /// Begins to hold the word; false: somebody else does.
    pub fn try_hold(&self) -> bool {
        self.0.fetch_or(HELD, Ordering::AcqRel) & HELD == 0
    }

    /// Ends what [`Self::try_hold`] has begun.
    pub fn release(&self) {
        self.0.fetch_and(!HELD, Ordering::AcqRel);
    }

    /// Whether somebody holds it.
    pub fn is_held(&self) -> bool {
        self.0.load(Ordering::Acquire) & HELD != 0
    }

    /// From now on the word is not clear any more.
    pub fn share(&self) {
        self.0.fetch_or(SHARED, Ordering::AcqRel);
    }
}
