//! How one message is cut over the lanes of a connection.

use super::{Lane, MAX_LANES};

/// Cuts are made at multiples of this many bytes: NCCL's LL128 readers look at whole 128-byte lines before the completion.
pub const LINE_BYTES: u32 = 128;
/// A stripe carries at least this much, unless it is the only one: below, a second work request costs more than it saves.
pub const STRIPE_MIN_BYTES: u32 = 8192;

/// How messages are laid over lanes; both sides hold the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Striping {
    /// Queue pairs of the connection, 1 to [`MAX_LANES`].
    pub lanes: u8,
    /// Whether one message is cut over all lanes; otherwise messages take turns.
    pub split: bool,
}

/// One piece of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stripe {
    /// The queue pair that carries it.
    pub lane: Lane,
    /// Where it starts in the message, in bytes.
    pub offset: u32,
    /// Its length in bytes.
    pub length: u32,
}

impl Striping {
    /// Number of stripes of a message of `length` bytes: at least one, at most one per lane.
    #[inline]
    pub fn count(self, length: u32) -> u32 {
        if !self.split || length <= STRIPE_MIN_BYTES { 1 } else { length.div_ceil(self.chunk(length)) }
    }

    fn chunk(self, length: u32) -> u32 {
        length.div_ceil(u32::from(self.lanes)).max(STRIPE_MIN_BYTES).next_multiple_of(LINE_BYTES)
    }

    /// The lane after `lane`, round and round.
    #[inline]
    pub fn after(self, lane: Lane) -> Lane {
        if lane.0 + 1 < self.lanes { Lane(lane.0 + 1) } else { Lane(0) }
    }

    /// The stripes of a message of `length` bytes, of which the first goes to `lane` and each next one to the lane after.
    pub fn stripes(self, length: u32, lane: Lane) -> impl Iterator<Item = Stripe> {
        let count = self.count(length);
        let chunk = if count == 1 { length } else { self.chunk(length) };
        let lanes = std::iter::successors(Some(lane), move |l| Some(self.after(*l)));
        let stripe = move |(i, lane)| Stripe { lane, offset: i * chunk, length: chunk.min(length - i * chunk) };
        (0..count).zip(lanes).map(stripe)
    }
}

const _: () = assert!(MAX_LANES <= u32::BITS as usize, "arrived stripes are a bit mask over lanes");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::MAX_MESSAGE;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stripes_tile_the_message(lanes in 1u8..=32, split: bool, length in 0..=MAX_MESSAGE, first in 0u8..32) {
            let striping = Striping { lanes, split };
            let stripes: Vec<_> = striping.stripes(length, Lane(first % lanes)).collect();
            prop_assert_eq!(stripes.len() as u32, striping.count(length));
            prop_assert!(split || stripes.len() == 1);
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
    }

    #[test]
    fn small_messages_stay_whole() {
        let striping = Striping { lanes: 4, split: true };
        assert_eq!(striping.count(STRIPE_MIN_BYTES), 1);
        assert_eq!(striping.count(STRIPE_MIN_BYTES + 1), 2);
        assert_eq!(striping.count(1 << 20), 4);
    }
}
