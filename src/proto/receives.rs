//! How many receive work requests each queue pair of a connection has posted, and how many messages may be expected for it.
//!
//! A message consumes one receive of a queue pair, whichever carries it; two, if its length needs two immediates. A receive that
//! is missing would make the sender's device wait and try again. So none is ever missing: receives are posted before the
//! clear-to-sends of messages that could consume them. A connection begins with few, and posts more, in steps, when more messages
//! are to be expected at once than ever before.
//!
//! Receives are posted again in batches. So a queue pair may lack all but one of a batch; the others are what messages may count on.

use super::MAX_GROUP;

/// Receives that are posted in one call.
pub const RECEIVE_BATCH: u32 = 32;
/// Receives that each queue pair has at first.
const FIRST: u32 = 64;
/// Receives that each queue pair has at most. The messages of 32 groups of 8 can be expected at once, which is the most that NCCL does.
pub const MAX_RECEIVES: u32 = 416;

const _: () = assert!(FIRST.is_multiple_of(RECEIVE_BATCH) && MAX_RECEIVES.is_multiple_of(RECEIVE_BATCH));
const _: () = assert!(Receives::most(MAX_RECEIVES, 1) >= 32 * MAX_GROUP as u32);

/// The receives of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Receives {
    /// That each queue pair has, and gets again when they are consumed.
    posted: u32,
    /// That a message may consume: 2 from the first buffer on that has room for a length of two immediates.
    each: u32,
}

impl Default for Receives {
    fn default() -> Self {
        Self { posted: FIRST, each: 1 }
    }
}

impl Receives {
    /// Receives that each queue pair has to have.
    pub fn posted(self) -> u32 {
        self.posted
    }

    /// Messages that may be expected at once.
    pub(super) fn most_messages(self) -> u32 {
        Self::most(self.posted, self.each)
    }

    /// Of a group that is the first one with messages of two receives, each member consumes one more than was reckoned with.
    const fn most(posted: u32, each: u32) -> u32 {
        let reliable = posted - (RECEIVE_BATCH - 1);
        if each == 1 { reliable - MAX_GROUP as u32 } else { reliable / each }
    }

    /// A step further; `None`: these are the most.
    pub(super) fn more(self) -> Option<Self> {
        (self.posted < MAX_RECEIVES).then(|| Self { posted: (2 * self.posted).min(MAX_RECEIVES), ..self })
    }

    /// Messages may consume two receives from now on.
    pub(super) fn expect_two_each(&mut self) {
        self.each = 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn receives_grow_in_steps_and_messages_with_them() {
        let steps: Vec<_> = std::iter::successors(Some(Receives::default()), |receives| receives.more()).collect();
        assert_eq!(steps.iter().map(|step| step.posted()).collect::<Vec<_>>(), [64, 128, 256, 416]);
        assert_eq!(steps.iter().map(|step| step.most_messages()).collect::<Vec<_>>(), [25, 89, 217, 377]);
    }

    /// All but one of a batch are missing, and the last group that was accepted is the first with messages of two receives.
    #[test]
    fn messages_never_consume_more_than_a_queue_pair_has() {
        for step in std::iter::successors(Some(Receives::default()), |receives| receives.more()) {
            let has = step.posted() - (RECEIVE_BATCH - 1);
            assert!(step.most_messages() + MAX_GROUP as u32 <= has);
            let mut two = step;
            two.expect_two_each();
            assert!(2 * two.most_messages() <= has);
        }
    }
}
