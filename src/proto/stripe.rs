//! How one message is cut over the lanes of a connection.
//!
//! QpSet are dealt out to rails in turn: of three rails, lanes 0, 3, 6… belong to rail 0. So as many lanes in a row as
//! there are rails reach every rail once. How many stripes a message has follows from its length, and both ends know it.
//! Where the cuts are is the sender's affair; see [`Shares`].

use super::shares::Shares;
use super::{Lane, MAX_LANES};

/// Cuts are made at multiples of this many bytes: NCCL's LL128 readers look at whole 128-byte lines before the completion.
pub const LINE_BYTES: u32 = 128;
/// A message has as many stripes as give each of them this much: below, a second work request costs more than it saves.
pub const STRIPE_MIN_BYTES: u32 = 8192;

/// How messages are laid over lanes; both sides hold the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Striping {
    /// Queue pairs of the connection, 1 to [`MAX_LANES`]; as many on each rail.
    lanes: u8,
    /// Rails of the connection, 1 to [`super::MAX_RAILS`].
    rails: u8,
    split: bool,
    /// Most stripes of one message.
    width: u8,
    /// Messages up to this many bytes are not cut.
    whole_up_to: u32,
}

/// One piece of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stripe {
    /// The queue pair that carries it.
    pub lane: Lane,
    /// Where it starts in the message, in bytes.
    pub offset: u32,
    /// Its length in bytes. A rail whose share is small may get nothing.
    pub length: u32,
}

impl Striping {
    /// Over `rails` with `lanes_per_rail` queue pairs each. With `split` one message is cut over all of them, otherwise over
    /// one of each rail.
    pub fn new(rails: u8, lanes_per_rail: u8, split: bool) -> Self {
        let lanes = rails * lanes_per_rail;
        let width = if split { lanes } else { rails };
        let whole_up_to = if width == 1 { u32::MAX } else { STRIPE_MIN_BYTES };
        Self { lanes, rails, split, width, whole_up_to }
    }

    /// Queue pairs of the connection.
    pub fn lanes(self) -> u8 {
        self.lanes
    }

    /// Rails of the connection.
    pub fn rails(self) -> u8 {
        self.rails
    }

    /// Whether one message is cut over several queue pairs of a rail.
    pub fn is_split(self) -> bool {
        self.split
    }

    /// The rail that `lane` belongs to.
    #[inline]
    pub fn rail_of(self, lane: Lane) -> u8 {
        lane.0 % self.rails
    }

    /// Number of stripes of a message of `length` bytes: at least one, at most one per lane.
    #[inline]
    pub fn count(self, length: u32) -> u32 {
        if length <= self.whole_up_to { 1 } else { self.count_cut(length) }
    }

    #[inline(never)]
    fn count_cut(self, length: u32) -> u32 {
        length.div_ceil(STRIPE_MIN_BYTES).min(u32::from(self.width))
    }

    /// The lane after `lane`, round and round.
    #[inline]
    pub fn after(self, lane: Lane) -> Lane {
        if lane.0 + 1 < self.lanes { Lane(lane.0 + 1) } else { Lane(0) }
    }

    /// The stripes of a message of `length` bytes, of which the first goes to `lane` and each next one to the lane after.
    /// Each has a part of the message's lines that is as large as its rail's share.
    pub fn stripes(self, length: u32, lane: Lane, shares: Shares) -> impl Iterator<Item = Stripe> {
        let count = self.count(length);
        let lanes = std::iter::successors(Some(lane), move |l| Some(self.after(*l))).take(count as usize);
        let share = move |lane: Lane| shares.of(self.rail_of(lane));
        let all: u64 = lanes.clone().map(share).sum();
        let lines = u64::from(length.div_ceil(LINE_BYTES));
        let (mut before, mut offset) = (0, 0);
        lanes.map(move |lane| {
            before += share(lane);
            let end = if before == all { length } else { (lines * before / all) as u32 * LINE_BYTES };
            let stripe = Stripe { lane, offset, length: end - offset };
            offset = end;
            stripe
        })
    }
}

const _: () = assert!(MAX_LANES <= u32::BITS as usize, "arrived stripes are a bit mask over lanes");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::MAX_MESSAGE;
    use proptest::prelude::*;

    /// Shares after some luck.
    fn shares(speeds: [u32; 4], late: &[u8]) -> Shares {
        let mut shares = Shares::by_speed(speeds);
        late.iter().for_each(|rail| shares.handle_late(*rail));
        shares
    }

    proptest! {
        #[test]
        fn stripes_tile_the_message(rails in 1u8..=4, per_rail in 1u8..=8, split: bool, length in 0..=MAX_MESSAGE, first in 0u8..32,
                                    speeds: [u32; 4], late in proptest::collection::vec(0u8..4, 0..300)) {
            let striping = Striping::new(rails, per_rail, split);
            let lanes = rails * per_rail;
            let stripes: Vec<_> = striping.stripes(length, Lane(first % lanes), shares(speeds, &late)).collect();
            prop_assert_eq!(stripes.len() as u32, striping.count(length));
            let most = if split { lanes } else { rails };
            prop_assert!(stripes.len() <= usize::from(most));
            let mut end = 0;
            let mut seen = 0u32;
            for s in &stripes {
                prop_assert_eq!(s.offset, end);
                prop_assert_eq!(s.offset % LINE_BYTES, 0);
                prop_assert!(s.lane.0 < lanes && seen & 1 << s.lane.0 == 0);
                seen |= 1 << s.lane.0;
                end += s.length;
            }
            prop_assert_eq!(end, length);
        }

        #[test]
        fn a_message_reaches_every_rail_once(rails in 1u8..=4, per_rail in 1u8..=8, first in 0u8..32) {
            let striping = Striping::new(rails, per_rail, false);
            let first = Lane(first % (rails * per_rail));
            let stripes = striping.stripes(MAX_MESSAGE, first, shares([1; 4], &[]));
            let mut seen: Vec<_> = stripes.map(|s| striping.rail_of(s.lane)).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..rails).collect::<Vec<_>>());
        }

        #[test]
        fn a_rail_carries_its_share(length in 1u32 << 20..=MAX_MESSAGE, speeds in proptest::array::uniform4(20u32..400)) {
            let shares = shares(speeds, &[]);
            let all: u64 = (0..4).map(|rail| shares.of(rail)).sum();
            for s in Striping::new(4, 1, false).stripes(length, Lane(1), shares) {
                let due = u64::from(length) * shares.of(s.lane.0) / all;
                prop_assert!(u64::from(s.length).abs_diff(due) <= 2 * u64::from(LINE_BYTES), "{s:?} {due}");
            }
        }
    }

    #[test]
    fn small_messages_stay_whole() {
        for striping in [Striping::new(1, 4, true), Striping::new(4, 1, false), Striping::new(2, 2, true)] {
            assert_eq!(striping.count(STRIPE_MIN_BYTES), 1);
            assert_eq!(striping.count(STRIPE_MIN_BYTES + 1), 2);
            assert_eq!(striping.count(1 << 20), 4);
        }
        assert_eq!(Striping::new(1, 4, false).count(1 << 20), 1);
        assert_eq!(Striping::new(2, 4, false).count(1 << 20), 2);
    }
}
