//! What the two flows have counted.

use super::look::{Contact, Look};
use super::numbers::Numbers;
use crate::RING_SLOTS;
use crate::cts::{Cts, CtsWords, SlotIndex};
use crate::recv::RecvFlow;
use crate::send::SendFlow;

/// No rank is greater. NCCL's own connections of the set-up have other tags.
const MAX_RANK: u32 = 1 << 24;

fn rank(tag: u32) -> Option<u32> {
    Some(tag).filter(|tag| *tag < MAX_RANK)
}

impl SendFlow {
    /// How it stands. `read` looks for the clear-to-send of a sequence number in the ring. NCCL has called in vain `tests` times
    /// for its requests.
    pub fn look(&self, tests: u32, read: impl Fn(u32) -> Option<CtsWords>) -> Look {
        let (head, next) = (self.head, self.next);
        // Those that have arrived and that no message has looked for.
        let unread = (0..RING_SLOTS as u32).take_while(|i| read(next.wrapping_add(*i)).is_some()).count() as u32;
        let known = next.wrapping_sub(head);
        let is_unclaimed = |i: &u32| self.unclaimed[head.wrapping_add(*i) as usize % RING_SLOTS].is_some();
        let unclaimed = (0..known).filter(is_unclaimed).count() as u32;
        let sent = next.wrapping_sub(1).wrapping_sub(unclaimed);
        let last = next.wrapping_add(unread).wrapping_sub(1);
        Look {
            numbers: Numbers::Sender {
                seen: last,
                sent,
                acknowledged: sent.wrapping_sub(self.outstanding() as u32),
                wants: false,
            },
            refusals: self.refusals,
            calls: self.refusals.wrapping_add(tests),
            has_requests: !self.is_idle(),
            recovers: false,
            contact: Contact::Up,
            // NCCL's tag is the rank of the sender.
            sender_rank: read(last).and_then(|words| rank(Cts::from_words(&words).tag)),
        }
    }
}

impl RecvFlow {
    /// How it stands. NCCL has called in vain `tests` times for its requests.
    pub fn look(&self, tests: u32, flushes: bool) -> Look {
        let next = self.window.next();
        let posted = next.wrapping_sub(1);
        Look {
            numbers: Numbers::Receiver {
                posted,
                announced: self.window.unsent().wrapping_sub(1),
                arrived: posted.wrapping_sub(self.window.missing()),
                flushes,
            },
            refusals: 0,
            calls: tests,
            has_requests: !self.is_idle(),
            recovers: false,
            contact: Contact::Up,
            sender_rank: (posted != 0).then(|| self.shadow.get(SlotIndex::of(posted)).0.tag).and_then(rank),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Violation;
    use crate::rail_weights::RailWeights;
    use crate::recv::Buffer;
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
