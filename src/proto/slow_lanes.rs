//! Which lane of a connection is slow, and stays so: its share of messages has stayed far below the greatest.
//!
//! A lane's share follows what it completes, and shares say only how lanes compare. If all of them slow down together, since the
//! receiver is slow or the job pauses, no share changes, and no lane is slow. Lanes are compared with those of the same rail: all lanes of a
//! port or card that is slow are alike, and another path would not help them.
//!
//! The greatest share counts, and not the mean: where most paths of a connection carry too much, its mean says that all is well, and one
//! good path shows what the others could have.
//!
//! A connection looks for paths quickly while it is new, and less and less later: with each time that its queue pairs were replaced, a lane has
//! to have been slow for longer.

use super::{MAX_QPS, QpIndex};

/// Messages between two looks at the shares: enough for one to fall to a third.
const LOOK_EVERY: u32 = 128;
/// A lane whose share is less than 3/4 of the greatest of its rail is slow.
const SLOW: (u64, u64) = (3, 4);
/// So many looks in a row have to find a lane slow before it is named, and one more each time that queue pairs were replaced.
const FIRST_LOOKS: u8 = 3;
/// They are no more than this: a path that becomes slow late is left, too.
const MOST_LOOKS: u8 = 24;

/// How often in a row each lane has been found slow.
#[derive(Debug, Clone, Copy)]
pub(super) struct SlowLanes {
    slow: [u8; MAX_QPS],
    /// Messages since the latest look.
    messages: u32,
    /// So many looks in a row name a lane.
    looks: u8,
}

impl Default for SlowLanes {
    fn default() -> Self {
        Self { slow: [0; MAX_QPS], messages: 0, looks: FIRST_LOOKS }
    }
}

impl SlowLanes {
    /// The same for new queue pairs: what was seen of the old ones does not count, and how often there were new ones does.
    pub(super) fn of_new_queue_pairs(self) -> Self {
        Self { looks: (self.looks + 1).min(MOST_LOOKS), ..Self::default() }
    }

    /// A message is complete that shows how fast the `count` lanes of `rails` rails are, which take turns; `share` returns the share of one.
    /// Returns the slowest of those that have been slow for long enough.
    pub(super) fn handle_message(&mut self, count: u8, rails: u8, share: impl Fn(QpIndex) -> u64) -> Option<QpIndex> {
        self.messages += 1;
        if self.messages < LOOK_EVERY || count <= rails {
            return None;
        }
        self.messages = 0;
        let lanes = || (0..count).map(QpIndex);
        for (lane, slow) in lanes().zip(&mut self.slow) {
            let of_rail = lanes().filter(|other| other.0 % rails == lane.0 % rails);
            let greatest = of_rail.map(&share).max().unwrap_or(0);
            let is_slow = share(lane) * SLOW.1 < greatest * SLOW.0;
            *slow = if is_slow { slow.saturating_add(1) } else { 0 };
        }
        let slowest =
            lanes().filter(|lane| self.slow[usize::from(lane.0)] >= self.looks).min_by_key(|lane| share(*lane))?;
        self.slow = [0; MAX_QPS];
        Some(slowest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Messages in which a lane is found slow so often.
    const fn of_looks(looks: u32) -> u32 {
        looks * LOOK_EVERY
    }

    /// The lanes that are said to be slow while so many messages complete with these shares.
    fn slow(shares: &[u64], messages: u32) -> Vec<u8> {
        let mut slow = SlowLanes::default();
        let share = |lane: QpIndex| shares[usize::from(lane.0)];
        (0..messages).filter_map(|_| slow.handle_message(shares.len() as u8, 1, share)).map(|lane| lane.0).collect()
    }

    #[test]
    fn the_slowest_of_those_that_stay_slow_is_named_and_again_while_it_has_not_moved() {
        let shares = [100, 30, 20, 100];
        assert_eq!(slow(&shares, of_looks(3) - 1), [0; 0], "not for long enough");
        assert_eq!(slow(&shares, of_looks(3)), [2]);
        assert_eq!(slow(&shares, of_looks(3 + 3) - 1), [2]);
        assert_eq!(slow(&shares, of_looks(3 + 3)), [2, 2]);
    }

    #[test]
    fn new_queue_pairs_are_looked_at_anew_and_for_longer() {
        let mut slow = SlowLanes::default();
        let share = |lane: QpIndex| [100, 20][usize::from(lane.0)];
        let named = |slow: &mut SlowLanes, messages: u32| {
            (0..messages).find_map(|message| slow.handle_message(2, 1, share).map(|_| message + 1))
        };
        assert_eq!(named(&mut slow, of_looks(3)), Some(of_looks(3)));
        let mut slow = slow.of_new_queue_pairs();
        assert_eq!(named(&mut slow, of_looks(4)), Some(of_looks(4)));
        for _ in 0..30 {
            slow = slow.of_new_queue_pairs();
        }
        assert_eq!(named(&mut slow, of_looks(24)), Some(of_looks(24)), "no more than that");
    }

    #[test]
    fn none_is_slow_if_all_are_alike_or_there_is_one() {
        assert_eq!(slow(&[10, 10, 9, 10], 10_000), [0; 0]);
        assert_eq!(slow(&[2; 8], 10_000), [0; 0], "all have become slow");
        assert_eq!(slow(&[10], 10_000), [0; 0]);
    }

    #[test]
    fn three_quarters_of_the_greatest_are_not_slow() {
        assert_eq!(slow(&[75, 100, 100, 100], of_looks(3)), [0; 0]);
        assert_eq!(slow(&[74, 100, 100, 100], of_looks(3)), [0]);
        // Three of four paths carry too much, so the mean says little.
        assert_eq!(slow(&[22, 33, 22, 23], of_looks(3)), [0]);
    }

    /// Lanes 0 and 2 are of one rail, 1 and 3 of the other.
    #[test]
    fn lanes_are_compared_with_those_of_their_rail() {
        let slow_of = |shares: [u64; 4]| {
            let mut slow = SlowLanes::default();
            (0..of_looks(3)).find_map(|_| slow.handle_message(4, 2, |lane| shares[usize::from(lane.0)]))
        };
        assert_eq!(slow_of([20, 5, 20, 5]), None, "a slow rail");
        assert_eq!(slow_of([20, 5, 20, 2]), Some(QpIndex(3)));
        assert_eq!(slow_of([10, 5, 20, 5]), Some(QpIndex(0)));
    }

    #[test]
    fn a_lane_that_is_slow_now_and_then_is_not_named() {
        let mut slow = SlowLanes::default();
        for message in 0..10_000 {
            let is_slow = !(message / LOOK_EVERY).is_multiple_of(FIRST_LOOKS.into());
            let share = |lane: QpIndex| if lane.0 == 1 && is_slow { 20 } else { 100 };
            assert_eq!(slow.handle_message(2, 1, share), None);
        }
    }
}
