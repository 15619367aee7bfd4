//! What becomes of the sender's requests and clear-to-sends when the receiver has listed what is missing.

use super::account::{Account, MissingMessage};
use super::replay::Replay;
use crate::proto::cts::{CtsWords, SlotIndex};
use crate::proto::rail_weights::RailWeights;
use crate::proto::requests::RequestId;
use crate::proto::send::{SendFlow, UnclaimedCts};
use crate::proto::stripe::Striping;
use crate::proto::transfer::Transfer;
use crate::proto::{QpIndex, RING_SLOTS, Violation, violation};
use std::collections::BTreeMap;
use std::fmt;

/// Why an account cannot be applied. The connection cannot go on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unapplied {
    /// The receiver has said something no Ferrite says.
    Violation(Violation),
    /// This message is missing, and NCCL has been told that it is sent: its buffer may have other contents by now.
    Lost {
        /// Its sequence number.
        seq: u32,
    },
}

impl fmt::Display for Unapplied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Violation(violation) => write!(f, "the peer broke the protocol: {violation}"),
            Self::Lost { seq } => write!(
                f,
                "message {seq} was acknowledged by a device that died before it had handed the message over, and cannot be \
                 sent again"
            ),
        }
    }
}

impl From<Violation> for Unapplied {
    fn from(violation: Violation) -> Self {
        Self::Violation(violation)
    }
}

impl SendFlow {
    /// The receiver has listed what is missing, after both ends have destroyed all queue pairs that were in use. Requests whose
    /// messages are not listed are complete; those whose messages are listed are to be sent again, over queue pairs as
    /// `striping` says, on rails that begin with `weights`: see [`Self::poll_replay`]. The other clear-to-sends in the list are
    /// taken as if they had been read from the ring.
    ///
    /// # Errors
    /// The account is not valid, or contradicts what this end knows; or a message is missing that NCCL has been told is sent.
    /// Nothing has changed then.
    pub fn apply_account(
        &mut self,
        account: &Account,
        striping: Striping,
        weights: RailWeights,
    ) -> Result<(), Unapplied> {
        account.check()?;
        let live: BTreeMap<u32, RequestId> = self.requests.live().map(|(id, request)| (request.seq, id)).collect();
        let replays = self.check_listed(account, &live)?;
        self.check_unlisted(account)?;
        self.replays.begin(account);
        self.replays.queue.extend(replays);
        for (_, request) in self.requests.live_mut() {
            request.pending_stripes = 0;
        }
        for replay in &self.replays.queue {
            if let Some(request) = self.requests.get_mut(replay.request) {
                request.pending_stripes = striping.stripe_count(replay.length);
            }
        }
        self.unclaimed.fill(None);
        let mut head = account.next;
        for MissingMessage { cts, .. } in account.missing.iter().rev().filter(|m| !live.contains_key(&m.cts.seq)) {
            self.unclaimed[cts.seq as usize % RING_SLOTS] = Some(UnclaimedCts::from(cts));
            head = cts.seq;
        }
        (self.head, self.next, self.qp) = (head, account.next, QpIndex(0));
        (self.striping, self.weights) = (striping, weights);
        Ok(())
    }

    /// Checks each listed message. Returns those that are to be sent again.
    fn check_listed(&self, account: &Account, live: &BTreeMap<u32, RequestId>) -> Result<Vec<Replay>, Unapplied> {
        let mut replays = Vec::new();
        for missing in &account.missing {
            let MissingMessage { cts, .. } = missing;
            let request = live.get(&cts.seq).and_then(|id| self.requests.get(*id).map(|request| (*id, request)));
            if let Some((id, request)) = request {
                let (seq, length) = (cts.seq, request.length);
                if length > cts.length {
                    return Err(violation!(
                        "message {seq} of {length} bytes is missing from a buffer that is said to have {}",
                        cts.length
                    )
                    .into());
                }
                replays.push(Replay { request: id, addr: request.addr, length, missing: *missing });
            } else if !self.is_unclaimed(cts.seq, account.next) {
                return Err(Unapplied::Lost { seq: cts.seq });
            }
        }
        Ok(replays)
    }

    /// Whether no message has claimed the clear-to-send `seq`: it was read and kept, or it was not read, and is before `end`.
    fn is_unclaimed(&self, seq: u32, end: u32) -> bool {
        let is_kept = seq.wrapping_sub(self.head) < self.next.wrapping_sub(self.head)
            && self.unclaimed[seq as usize % RING_SLOTS].is_some();
        is_kept || seq.wrapping_sub(self.next) < end.wrapping_sub(self.next)
    }

    /// Checks that the account lists every message that this end has not sent.
    fn check_unlisted(&self, account: &Account) -> Result<(), Violation> {
        let (next, own) = (account.next, self.next);
        // A peer that goes back is more than half of all numbers ahead.
        if next.wrapping_sub(own) as usize > RING_SLOTS {
            return Err(violation!("an account up to message {next}, where {own} is due"));
        }
        let known = next.wrapping_sub(self.head);
        let unsent = (0..known).map(|i| self.head.wrapping_add(i)).filter(|seq| self.is_unclaimed(*seq, next));
        let listed = account.missing.iter().map(|missing| missing.cts.seq);
        let listed: std::collections::BTreeSet<_> = listed.collect();
        match unsent.into_iter().find(|seq| !listed.contains(seq)) {
            None => Ok(()),
            Some(seq) => Err(violation!("message {seq} is said to have arrived, and was not sent")),
        }
    }

    /// The next message that is to be sent again, and the address of its bytes in this process. To be posted as one that
    /// [`Self::submit`] returns.
    pub fn poll_replay(&mut self) -> Option<(Transfer, u64)> {
        let Replay { request, addr, length, missing } = self.replays.queue.pop_front()?;
        let cts = missing.cts;
        let stripes = self.striping.stripe_count(length);
        let transfer = self.transfer(request, SlotIndex::of(cts.seq), UnclaimedCts::from(&cts), length, stripes);
        Some((transfer, addr))
    }

    /// The length in bytes of the message that [`Self::poll_replay`] returns next.
    pub fn peek_replay(&self) -> Option<u32> {
        self.replays.queue.front().map(|replay| replay.length)
    }

    /// Whether messages are to be sent again.
    pub fn has_replays(&self) -> bool {
        !self.replays.queue.is_empty()
    }

    /// The receiver has closed the connection in good order: every message has arrived.
    pub fn complete_all(&mut self) {
        self.replays.queue.clear();
        self.requests.live_mut().for_each(|(_, request)| request.pending_stripes = 0);
    }

    /// Requests of which not every stripe has been acknowledged.
    pub fn outstanding(&self) -> usize {
        self.requests.live().filter(|(_, request)| request.pending_stripes > 0).count()
    }

    /// The sequence number of the oldest message that is not acknowledged, and the bytes of all that are not.
    pub fn unacknowledged(&self) -> Option<(u32, u64)> {
        let pending = || self.requests.live().filter(|(_, request)| request.pending_stripes > 0);
        let oldest = pending().map(|(_, request)| request.seq).min_by_key(|seq| seq.wrapping_sub(self.next))?;
        Some((oldest, pending().map(|(_, request)| u64::from(request.length)).sum()))
    }

    /// Remote key of the buffer of `transfer` on rail number `rail`. `read_extra_keys` reads the first half of the clear-to-send
    /// in a slot of the ring, where clear-to-sends have two halves. What an account has listed is not looked for in the ring.
    pub fn rkey(&self, transfer: &Transfer, rail: u8, read_extra_keys: impl FnOnce(SlotIndex) -> CtsWords) -> u32 {
        if let Some(key) = transfer.rkeys.get(usize::from(rail)) {
            return *key;
        }
        let listed = self.requests.get(transfer.id).and_then(|request| self.replays.extra_keys(request.seq));
        transfer.extra_key(rail, listed, read_extra_keys)
    }
}
