//! How the receiver lists what is missing.

use super::account::{Account, MissingMessage};
use crate::proto::cts::SlotIndex;
use crate::proto::recv::RecvFlow;
use crate::proto::stripe::Striping;

impl RecvFlow {
    /// The sequence number of the oldest message that has not arrived.
    pub fn oldest_missing(&self) -> u32 {
        self.window.oldest()
    }

    /// Lists the messages that have not arrived whole. To be called after the queue pairs that were in use are destroyed and
    /// all of their completions have been handled. What has arrived of a listed message is forgotten: the whole of it comes
    /// again, over queue pairs as `striping` says. The account stands for all clear-to-sends up to now: none of them is
    /// returned by [`Self::poll_cts`] any more.
    pub fn account(&mut self, striping: Striping) -> Account {
        self.keep_rails();
        let (oldest, next) = (self.window.oldest(), self.window.next());
        let mut missing = Vec::new();
        for seq in (0..next.wrapping_sub(oldest)).map(|i| oldest.wrapping_add(i)) {
            let slot = SlotIndex::of(seq);
            let arrival = &mut self.arrivals[slot.index()];
            if arrival.pending {
                arrival.reset();
                let (cts, extra) = self.shadow.get(slot);
                missing.push(MissingMessage { cts, extra });
            }
        }
        self.window.handle_account(missing.len() as u32);
        self.striping = striping;
        Account { oldest, next, missing }
    }
}
