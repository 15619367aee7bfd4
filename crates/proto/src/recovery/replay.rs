//! The messages that the sender has to send again.

use super::account::{Account, MissingMessage};
use crate::RING_SLOTS;
use crate::cts::ExtraKeys;
use crate::requests::RequestId;
use std::collections::VecDeque;

/// A message that is to be sent again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Replay {
    pub(crate) request: RequestId,
    /// Where its bytes are in this process.
    pub(crate) addr: u64,
    /// Its length in bytes.
    pub(crate) length: u32,
    pub(crate) missing: MissingMessage,
}

/// What the sender keeps of the account that it has applied last.
#[derive(Debug, Clone, Default)]
pub(crate) struct Replays {
    /// In ascending order of their sequence numbers.
    pub(crate) queue: VecDeque<Replay>,
    /// Sequence number and keys of rails 2 and 3 of each clear-to-send that the account lists, by slot: the ring may lack them.
    extra: Vec<(u32, ExtraKeys)>,
}

impl Replays {
    /// Nothing of an earlier account counts any more.
    pub(crate) fn begin(&mut self, account: &Account) {
        self.queue.clear();
        self.extra.clear();
        self.extra.resize(RING_SLOTS, (account.oldest.wrapping_sub(1), ExtraKeys::default()));
        for MissingMessage { cts, extra } in &account.missing {
            self.extra[cts.seq as usize % RING_SLOTS] = (cts.seq, *extra);
        }
    }

    /// The keys of rails 2 and 3 for message `seq`, if the account lists it.
    pub(crate) fn extra_keys(&self, seq: u32) -> Option<ExtraKeys> {
        let found = self.extra.get(seq as usize % RING_SLOTS);
        found.filter(|(listed, _)| *listed == seq).map(|(_, keys)| *keys)
    }
}
