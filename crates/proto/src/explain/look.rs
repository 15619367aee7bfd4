//! An end of a connection at one moment.

use super::numbers::Numbers;
use super::operation::Operation;
use crate::identity::Identity;

/// No rank is greater. NCCL's own connections of the set-up have other tags.
const MAX_RANK: u32 = 1 << 24;

/// The rank that a tag of NCCL's is, if it is one: that of the sender.
pub(crate) fn rank(tag: u32) -> Option<u32> {
    Some(tag).filter(|tag| *tag < MAX_RANK)
}

/// What is known of a peer without asking it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Contact {
    /// The control connection stands.
    Up,
    /// It is lost.
    Lost,
    /// The peer's process has ended, or has closed the connection.
    Gone,
}

/// An end at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Look {
    /// Its numbers. Whether NCCL calls `isend` without success is seen from `refusals`.
    pub numbers: Numbers,
    /// How often `isend` has been called without success, modulo 2^32.
    pub refusals: u32,
    /// How often NCCL has called without success, in either way, modulo 2^32.
    pub calls: u32,
    /// Whether requests are outstanding.
    pub has_requests: bool,
    /// Whether the connection is being recovered.
    pub recovers: bool,
    /// What is known of the peer.
    pub contact: Contact,
    /// The rank that sends on this connection, if messages tell.
    pub sender_rank: Option<u32>,
}

/// What has been found when an end was looked at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// How it stands.
    Look(Look),
    /// NCCL's thread is inside, so it cannot be seen. NCCL calls.
    InCall,
    /// Another thread of Ferrite is inside, so it cannot be seen.
    Visited,
}

/// An end that has been looked at.
#[derive(Debug, Clone)]
pub struct Sight {
    /// Names the end within its process.
    pub id: u64,
    /// What has been found.
    pub found: Found,
    /// The peer, as far as it is known without asking.
    pub peer: Identity,
    /// The operation that the oldest outstanding messages are of, if NCCL has told.
    pub operation: Option<Operation>,
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
        for (tag, expected) in
            [(0, Some(0)), (7, Some(7)), ((1 << 24) - 1, Some((1 << 24) - 1)), (1 << 24, None), (u32::MAX, None)]
        {
            let mut receiver = RecvFlow::new(striping);
            assert_eq!(receiver.look(0, false).sender_rank, None, "nothing is posted");
            let buffer = Buffer { addr: 1, length: 100, rkeys: &[1, 0, 0, 0], tag };
            receiver.post(1, |_| Ok::<_, Violation>(buffer)).expect("valid").expect("space");
            assert_eq!(receiver.look(0, false).sender_rank, expected);
            let read = |seq| (seq == 1).then(|| Cts { addr: 1, length: 100, rkeys: [1, 0], tag, seq: 1 }.emit());
            let sender = SendFlow::new(striping, RailWeights::from_speeds([1]));
            assert_eq!(sender.look(0, read).sender_rank, expected);
        }
    }

    #[test]
    fn a_receiver_tells_what_is_posted_announced_and_arrived() {
        let mut flow = RecvFlow::new(Striping::new(1, 1, false));
        assert!(!flow.look(0, false).has_requests);
        for _ in 0..2 {
            let buffer = Buffer { addr: 1, length: 100, rkeys: &[1, 0, 0, 0], tag: 3 };
            flow.post(1, |_| Ok::<_, Violation>(buffer)).expect("valid").expect("space");
        }
        let slots = flow.poll_cts(1).expect("due");
        assert_eq!(slots.len(), 1);
        let look = flow.look(5, true);
        assert_eq!(look.numbers, Numbers::Receiver { posted: 2, announced: 1, arrived: 0, flushes: true });
        assert_eq!((look.has_requests, look.calls), (true, 5));
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
            let look = flow.look(0, read);
            assert_eq!(
                look.numbers,
                Numbers::Sender { seen: last, sent: last - 1, acknowledged: last - 2, wants: false },
                "round {round}"
            );
            assert!(look.has_requests);
            let early = flow.submit(2, 0, 8, read).expect("valid").expect("cleared").id;
            for id in [late, early] {
                flow.handle_completion(id).expect("one stripe");
                flow.poll_done(id).expect("complete");
            }
            assert!(!flow.look(0, read).has_requests);
        }
    }
}
