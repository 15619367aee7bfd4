//! What the two flows have counted.

use super::look::{Contact, Look};
use super::numbers::Numbers;
use crate::proto::RING_SLOTS;
use crate::proto::cts::{Cts, CtsWords, SlotIndex};
use crate::proto::recv::RecvFlow;
use crate::proto::send::SendFlow;

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
