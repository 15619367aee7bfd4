//! What becomes of the sender's requests and clear-to-sends when the receiver has listed what is missing.

use super::account::{Account, MissingMessage};
use super::replay::Replay;
use crate::cts::{CtsWords, SlotIndex};
use crate::rail_weights::RailWeights;
use crate::requests::RequestId;
use crate::send::{SendFlow, Transfer, UnclaimedCts};
use crate::stripe::Striping;
use crate::{QpIndex, RING_SLOTS, Violation, violation};
use std::collections::{BTreeMap, BTreeSet};
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
        let live: BTreeMap<u32, RequestId> =
            self.requests.live().map(|(id, request)| (request.seq.get(), id)).collect();
        self.check_unlisted(account)?;
        let replays = self.check_listed(account, &live)?;
        self.replays.begin(account);
        self.replays.queue.extend(replays);
        for (_, request) in self.requests.live() {
            request.pending_stripes.set(0);
        }
        for replay in &self.replays.queue {
            if let Some(request) = self.requests.get(replay.request) {
                request.pending_stripes.set(striping.stripe_count(replay.length) as i32);
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
        self.begin_lanes();
        Ok(())
    }

    /// Checks each listed message. Returns those that are to be sent again.
    fn check_listed(&self, account: &Account, live: &BTreeMap<u32, RequestId>) -> Result<Vec<Replay>, Unapplied> {
        let mut replays = Vec::new();
        for missing in &account.missing {
            let MissingMessage { cts, .. } = missing;
            let request = live.get(&cts.seq).and_then(|id| self.requests.get(*id).map(|request| (*id, request)));
            if let Some((id, request)) = request {
                let (seq, length) = (cts.seq, request.length.get());
                if length > cts.length {
                    return Err(violation!(
                        "message {seq} of {length} bytes is missing from a buffer that is said to have {}",
                        cts.length
                    )
                    .into());
                }
                replays.push(Replay { request: id, addr: request.addr.get(), length, missing: *missing });
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
        let listed: BTreeSet<u32> = account.missing.iter().map(|missing| missing.cts.seq).collect();
        match { unsent }.find(|seq| !listed.contains(seq)) {
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
        if let Some(lanes) = &mut self.lanes {
            self.qp = lanes.begin(stripes, self.striping, length);
        }
        let transfer = self.transfer(request, SlotIndex::of(cts.seq), UnclaimedCts::from(&cts), length, stripes);
        Some((transfer, addr))
    }

    /// The length in bytes of the message that [`Self::poll_replay`] returns next.
    pub fn peek_replay(&self) -> Option<u32> {
        self.replays.queue.front().map(|replay| replay.length)
    }

    /// Whether messages are to be sent again.
    #[cfg(any(test, fuzzing))]
    pub fn has_replays(&self) -> bool {
        !self.replays.queue.is_empty()
    }

    /// The receiver has closed the connection in good order: every message has arrived.
    pub fn complete_all(&mut self) {
        self.replays.queue.clear();
        self.requests.live().for_each(|(_, request)| request.pending_stripes.set(0));
    }

    /// Requests of which not every stripe has been acknowledged.
    pub fn outstanding(&self) -> usize {
        self.requests.live().filter(|(_, request)| request.is_pending()).count()
    }

    /// The sequence number of the oldest message that is not acknowledged, and the bytes of all that are not.
    pub fn unacknowledged(&self) -> Option<(u32, u64)> {
        let pending = || self.requests.live().filter(|(_, request)| request.is_pending());
        let oldest = pending().map(|(_, request)| request.seq.get()).min_by_key(|seq| seq.wrapping_sub(self.next))?;
        Some((oldest, pending().map(|(_, request)| u64::from(request.length.get())).sum()))
    }

    /// Remote key of the buffer of `transfer` on rail number `rail`. `read_extra_keys` reads the first half of the clear-to-send
    /// in a slot of the ring, where clear-to-sends have two halves. What an account has listed is not looked for in the ring.
    pub fn rkey(&self, transfer: &Transfer, rail: u8, read_extra_keys: impl FnOnce(SlotIndex) -> CtsWords) -> u32 {
        if let Some(key) = transfer.rkeys.get(usize::from(rail)) {
            return *key;
        }
        let listed = self.requests.get(transfer.id).and_then(|request| self.replays.extra_keys(request.seq.get()));
        transfer.extra_key(rail, listed, read_extra_keys)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cts::{Cts, emit_extra_keys};
    use crate::recovery::rail_mask::RailMask;

    const WEIGHTS: [u32; 4] = [1; 4];

    fn cts(seq: u32, length: u32) -> Cts {
        Cts { addr: 0x1000 * u64::from(seq), length, rkeys: [seq, seq + 100], tag: seq % 2, seq }
    }

    fn missing(seqs: &[u32]) -> Vec<MissingMessage> {
        let missing = |seq: &u32| MissingMessage { cts: cts(*seq, 100), extra: [*seq + 200, *seq + 300] };
        seqs.iter().map(missing).collect()
    }

    fn account(next: u32, seqs: &[u32]) -> Account {
        Account { oldest: seqs.first().copied().unwrap_or(next), next, missing: missing(seqs) }
    }

    /// A flow over two rails that has read clear-to-sends 1 to 4, of tags 1 and 0 in turn. Messages 1, 2 and 3 are sent;
    /// the first is complete and not tested. Their requests.
    fn flow() -> (SendFlow, Vec<RequestId>) {
        let mut flow = SendFlow::new(Striping::new(2, 1, false), RailWeights::from_speeds(WEIGHTS));
        let read = |seq| (seq <= 4).then(|| cts(seq, 100).emit());
        let mut send =
            |tag, at, length| flow.submit(tag, at, length, read).expect("valid").expect("a clear-to-send").id;
        let ids = vec![send(1, 0x10, 100), send(0, 0x20, 50), send(1, 0x30, 60)];
        assert!(flow.submit(7, 0, 1, read).expect("valid").is_none(), "reads on up to the fourth");
        flow.handle_completion(ids[0]).expect("outstanding");
        (flow, ids)
    }

    fn apply(flow: &mut SendFlow, account: &Account) -> Result<(), Unapplied> {
        flow.apply_account(
            account,
            Striping::new(1, 1, false).over(RailMask::only(1)),
            RailWeights::from_speeds(WEIGHTS),
        )
    }

    fn replayed(flow: &mut SendFlow) -> Vec<(RequestId, u64, u64, u32)> {
        let length = flow.peek_replay();
        let all: Vec<_> = std::iter::from_fn(|| flow.poll_replay()).collect();
        assert_eq!(length, all.first().map(|(transfer, _)| transfer.length));
        assert!(!flow.has_replays());
        all.iter().map(|(transfer, addr)| (transfer.id, transfer.remote_addr, *addr, transfer.length)).collect()
    }

    #[test]
    fn listed_requests_are_sent_again_in_order_and_the_others_are_complete() {
        let (mut flow, ids) = flow();
        assert_eq!(flow.outstanding(), 2);
        apply(&mut flow, &account(5, &[1, 3, 4])).expect("valid");
        assert_eq!(flow.poll_done(ids[1]), Ok(Some(50)), "it has arrived");
        assert_eq!(flow.poll_done(ids[0]), Ok(None), "it was acknowledged, and has not arrived");
        assert_eq!(flow.outstanding(), 2);
        assert_eq!(replayed(&mut flow), [(ids[0], 0x1000, 0x10, 100), (ids[2], 0x3000, 0x30, 60)]);
        for id in [ids[0], ids[2]] {
            flow.handle_completion(id).expect("one stripe");
            assert!(flow.poll_done(id).expect("live").is_some());
        }
    }

    /// As many buffers as the ring has slots are posted, and the sender has read no clear-to-send.
    #[test]
    fn an_account_of_as_many_messages_as_the_ring_has_slots_is_applied() {
        let mut flow = SendFlow::new(Striping::new(2, 1, false), RailWeights::from_speeds(WEIGHTS));
        let end = RING_SLOTS as u32 + 1;
        let all: Vec<u32> = (1..end).collect();
        apply(&mut flow, &account(end, &all)).expect("valid");
        let next = flow.submit(1, 0, 10, |_| None).expect("valid").map(|transfer| transfer.remote_addr);
        assert_eq!(next, Some(0x1000));
    }

    #[test]
    fn clear_to_sends_of_the_account_are_used_as_if_they_had_been_read() {
        let (mut flow, _) = flow();
        apply(&mut flow, &account(7, &[4, 5, 6])).expect("valid");
        let mut send = |tag, read: Option<Cts>| {
            let words = |seq| read.filter(|cts| cts.seq == seq).map(|cts| cts.emit());
            flow.submit(tag, 0, 10, words).expect("valid").map(|transfer| transfer.remote_addr)
        };
        assert_eq!((send(0, None), send(0, None), send(0, None)), (Some(0x4000), Some(0x6000), None));
        assert_eq!((send(1, None), send(1, None)), (Some(0x5000), None));
        assert_eq!(send(1, Some(cts(7, 10))), Some(0x7000), "the next one comes by the ring");
    }

    #[test]
    fn keys_come_from_the_account_for_what_it_lists_and_from_the_ring_for_the_rest() {
        let (mut flow, _) = flow();
        let ring = |slot: SlotIndex| emit_extra_keys([slot.index() as u32, 9]);
        apply(&mut flow, &account(5, &[1, 4])).expect("valid");
        let (replay, _) = flow.poll_replay().expect("message 1");
        assert_eq!([0, 1, 2, 3].map(|rail| flow.rkey(&replay, rail, ring)), [1, 101, 201, 301]);
        let mut send = |read: Option<Cts>| {
            flow.submit(0, 0, 1, |seq| read.filter(|cts| cts.seq == seq).map(|cts| cts.emit())).expect("valid")
        };
        let (listed, later) = (send(None).expect("message 4"), send(Some(cts(5, 1))));
        assert!(later.is_none(), "another tag");
        let newer = flow.submit(1, 0, 1, |_| None).expect("valid").expect("message 5");
        assert_eq!([flow.rkey(&listed, 3, ring), flow.rkey(&newer, 2, ring)], [304, 5]);
        // The slot of message 1 again: what the account says is of an earlier message.
        for seq in 6..RING_SLOTS as u32 + 2 {
            let words = cts(seq, 1).emit();
            let sent = flow.submit(seq % 2, 0, 1, |_| Some(words)).expect("valid").expect("cleared");
            assert_eq!(flow.rkey(&sent, 2, ring), seq % RING_SLOTS as u32);
            flow.handle_completion(sent.id).expect("one stripe");
            flow.poll_done(sent.id).expect("done");
        }
    }

    #[test]
    fn a_missing_message_that_nccl_was_told_is_sent_is_lost() {
        let (mut flow, ids) = flow();
        flow.poll_done(ids[0]).expect("complete");
        let lost = apply(&mut flow, &account(5, &[1, 4]));
        assert_eq!(lost, Err(Unapplied::Lost { seq: 1 }));
        assert!(lost.expect_err("lost").to_string().contains("acknowledged by a device that died"));
        assert_eq!((flow.outstanding(), flow.has_replays()), (2, false), "nothing has changed");
    }

    #[test]
    fn an_account_that_contradicts_what_was_sent_is_a_violation() {
        let refused = |account: &Account| matches!(apply(&mut flow().0, account), Err(Unapplied::Violation(_)));
        assert!(!refused(&account(5, &[4])));
        assert!(refused(&account(4, &[])), "clear-to-send 4 has been read");
        assert!(refused(&account(5, &[])), "message 4 was not sent");
        assert!(refused(&account(6, &[4])), "message 5 was not sent");
        assert!(refused(&account(5 + RING_SLOTS as u32 + 1, &[])), "more than a ring");
        assert!(refused(&Account { missing: missing(&[4, 3]), ..account(5, &[3, 4]) }), "not in order");
        assert!(refused(&Account { missing: missing(&[3, 3, 4]), ..account(5, &[3, 4]) }), "twice");
        assert!(refused(&Account { oldest: 4, ..account(5, &[3, 4]) }), "outside");
        let mut short = account(5, &[2, 4]);
        short.missing[0].cts.length = 49;
        assert!(refused(&short), "50 bytes were sent");
        short.missing[0].cts.length = crate::MAX_MESSAGE + 1;
        assert!(refused(&short));
    }

    #[test]
    fn a_second_account_replaces_the_first() {
        let (mut flow, ids) = flow();
        apply(&mut flow, &account(5, &[1, 2, 3, 4])).expect("valid");
        flow.poll_replay().expect("message 1");
        apply(&mut flow, &account(6, &[2, 4, 5])).expect("valid");
        assert_eq!(flow.poll_done(ids[0]), Ok(Some(100)));
        assert_eq!(flow.poll_done(ids[2]), Ok(Some(60)));
        assert_eq!(replayed(&mut flow), [(ids[1], 0x2000, 0x20, 50)]);
    }

    #[test]
    fn all_requests_are_complete_once_the_receiver_has_closed_in_good_order() {
        let (mut flow, ids) = flow();
        apply(&mut flow, &account(5, &[2, 3, 4])).expect("valid");
        flow.complete_all();
        assert_eq!((flow.outstanding(), flow.poll_replay()), (0, None));
        assert!(ids.into_iter().all(|id| flow.poll_done(id).is_ok_and(|done| done.is_some())));
    }
}
