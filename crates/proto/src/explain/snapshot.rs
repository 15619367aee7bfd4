//! An end of a connection at one moment.

use super::numbers::Numbers;
use super::operation::Operation;
use crate::identity::Identity;

/// The greatest rank. NCCL's own connections during set-up use other tags.
const MAX_RANK: u32 = 1 << 24;

/// The sender's rank in a tag of NCCL's, if it is one.
pub(crate) fn rank(tag: u32) -> Option<u32> {
    Some(tag).filter(|tag| *tag < MAX_RANK)
}

/// The state of a peer that is known without asking it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contact {
    /// The control connection exists.
    Up,
    /// The control connection is lost.
    Lost,
    /// The peer's process has ended, or has closed the connection.
    Gone,
}

/// An end at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EndSnapshot {
    /// Its counters. `refusals` shows whether NCCL calls `isend` without success.
    pub numbers: Numbers,
    /// How often `isend` was refused, modulo 2^32.
    pub refusals: u32,
    /// How many calls of NCCL of either kind had no result, modulo 2^32.
    pub calls: u32,
    /// Whether requests are outstanding.
    pub has_requests: bool,
    /// Whether the connection is recovering.
    pub recovers: bool,
    /// The known state of the peer.
    pub contact: Contact,
    /// The rank that sends on this connection, if messages show it.
    pub sender_rank: Option<u32>,
}

/// The result of a check of an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EndCheck {
    /// Its state.
    Snapshot(EndSnapshot),
    /// NCCL's thread is inside, so the state is inaccessible; NCCL makes calls.
    InCall,
    /// Another thread of Ferrite is inside, so the state is inaccessible.
    Visited,
    /// It is known to be as before: idle, and nothing has begun since.
    Unchanged,
}

/// An end that was checked.
#[derive(Debug, Clone)]
pub struct CheckedEnd {
    /// Identifies the end within its process.
    pub id: u64,
    /// The result.
    pub found: EndCheck,
    /// The peer, as far as known without asking.
    pub peer: Identity,
    /// The operation of the oldest outstanding messages, if NCCL has reported it.
    pub operation: Option<Operation>,
    /// How far a recovery of the connection is, for people; empty: there is none.
    pub recovery: String,
}

impl EndSnapshot {
    /// Whether it waits for nothing, and nothing is wrong.
    pub fn is_idle(&self) -> bool {
        !(self.numbers.is_waiting() || self.has_requests || self.recovers)
            && self.contact == Contact::Up
    }
}

impl CheckedEnd {
    /// An end that is as before.
    pub fn unchanged(id: u64) -> Self {
        let peer = Identity { host: String::new(), pid: 0, rank: None, label: None };
        let recovery = String::new();
        Self { id, found: EndCheck::Unchanged, peer, operation: None, recovery }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Violation;
    use crate::cts::Cts;
    use crate::rail_weights::RailWeights;
    use crate::recv::Buffer;
    use crate::recv::RecvFlow;
    use crate::send::SendFlow;
    use crate::stripe::Striping;

    #[test]
    fn a_tag_below_two_to_the_24_is_the_rank_of_the_sender() {
        let striping = Striping::new(1, 1, false);
        for (tag, expected) in [
            (0, Some(0)),
            (7, Some(7)),
            ((1 << 24) - 1, Some((1 << 24) - 1)),
            (1 << 24, None),
            (u32::MAX, None),
        ] {
            let mut receiver = RecvFlow::new(striping);
            assert_eq!(receiver.snapshot(0, false).sender_rank, None, "nothing is posted");
            let buffer = Buffer { addr: 1, length: 100, rkeys: &[1, 0, 0, 0], tag };
            receiver.post(1, |_| Ok::<_, Violation>(buffer)).expect("valid").expect("space");
            assert_eq!(receiver.snapshot(0, false).sender_rank, expected);
            let read = |seq| {
                (seq == 1).then(|| Cts { addr: 1, length: 100, rkeys: [1, 0], tag, seq: 1 }.emit())
            };
            let sender = SendFlow::new(striping, RailWeights::from_speeds([1]));
            assert_eq!(sender.snapshot(0, read).sender_rank, expected);
        }
    }

    #[test]
    fn a_receiver_tells_what_is_posted_announced_and_arrived() {
        let mut flow = RecvFlow::new(Striping::new(1, 1, false));
        assert!(!flow.snapshot(0, false).has_requests);
        for _ in 0..2 {
            let buffer = Buffer { addr: 1, length: 100, rkeys: &[1, 0, 0, 0], tag: 3 };
            flow.post(1, |_| Ok::<_, Violation>(buffer)).expect("valid").expect("space");
        }
        let slots = flow.poll_cts(1).expect("due");
        assert_eq!(slots.len(), 1);
        let snapshot = flow.snapshot(5, true);
        assert_eq!(
            snapshot.numbers,
            Numbers::Receiver { posted: 2, announced: 1, arrived: 0, flushes: true }
        );
        assert_eq!((snapshot.has_requests, snapshot.calls), (true, 5));
    }

    /// More messages than the ring has slots.
    #[test]
    fn a_sender_tells_what_is_seen_sent_and_acknowledged_after_any_number_of_messages() {
        let mut flow = SendFlow::new(Striping::new(1, 1, false), RailWeights::from_speeds([1]));
        let cts = |seq| Cts { addr: 1, length: 100, rkeys: [1, 0], tag: 1 + seq % 2, seq }.emit();
        for round in 1..=600_u32 {
            // Those of two messages are there; the later one is sent first.
            let last = 2 * round;
            let read = |seq: u32| (seq <= last).then(|| cts(seq));
            let late = flow.submit(1, 0, 8, read).expect("valid").expect("cleared").id;
            let snapshot = flow.snapshot(0, read);
            assert_eq!(
                snapshot.numbers,
                Numbers::Sender {
                    seen: last,
                    sent: last - 1,
                    acknowledged: last - 2,
                    wants: false
                },
                "round {round}"
            );
            assert!(snapshot.has_requests);
            let early = flow.submit(2, 0, 8, read).expect("valid").expect("cleared").id;
            for id in [late, early] {
                flow.handle_completion(id).expect("one stripe");
                flow.poll_done(id).expect("complete");
            }
            assert!(!flow.snapshot(0, read).has_requests);
        }
    }
}
