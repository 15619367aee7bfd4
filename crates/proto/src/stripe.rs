//! How a message is cut into stripes over the queue pairs of a connection.
//!
//! Queue pairs are numbered round-robin over the rails: with three rails, queue pairs 0, 3, 6… are
//! on rail 0. So as many consecutive queue pairs as there are rails are on different rails. The
//! number of stripes follows from a message's length, and both ends know it. Only the sender knows
//! where it is cut; see [`super::rail_weights`].

use super::recovery::rail_mask::RailMask;
use super::{MAX_QPS, QpIndex};

/// Messages are cut at multiples of this many bytes. A reader of NCCL's LL128 protocol reads
/// 128-byte lines before the completion, and must see each either whole or not at all.
pub const LL128_LINE_BYTES: u32 = 128;
/// Least average bytes per stripe: below, a second work request costs more than it saves.
pub const STRIPE_MIN_BYTES: u32 = 8192;

/// How messages are cut; both ends hold the same value. It is 8 bytes wide, so that it travels in a
/// register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Striping {
    /// Queue pairs of the connection, 1 to [`MAX_QPS`]; the same number on each rail.
    qps: u8,
    /// Rails that it uses, 1 to [`super::MAX_RAILS`].
    rails: u8,
    /// Their numbers.
    numbers: RailMask,
    split: bool,
    /// Messages up to this many bytes are not cut.
    whole_up_to: u32,
}

/// One piece of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stripe {
    /// The queue pair that carries it.
    pub qp: QpIndex,
    /// Where it starts in the message, in bytes.
    pub offset: u32,
    /// Its length in bytes. A rail with a small weight may get nothing.
    pub length: u32,
}

impl Striping {
    /// Over `rails` rails with `qps_per_rail` queue pairs each. With `split` a message is cut over
    /// all of them, otherwise over one of each rail.
    pub fn new(rails: u8, qps_per_rail: u8, split: bool) -> Self {
        let qps = rails * qps_per_rail;
        let numbers = RailMask::first(rails);
        let whole = Self { qps, rails, numbers, split, whole_up_to: u32::MAX };
        if whole.width() == 1 { whole } else { Self { whole_up_to: STRIPE_MIN_BYTES, ..whole } }
    }

    /// The same over the rails with these numbers, which are as many. A recovered connection may
    /// use a subset of its rails; they keep their numbers.
    pub fn over(self, numbers: RailMask) -> Self {
        debug_assert_eq!(numbers.count(), self.rails, "rails {numbers}");
        Self { numbers, ..self }
    }

    /// The numbers of the rails in use.
    pub fn rail_numbers(self) -> RailMask {
        self.numbers
    }

    /// Queue pairs of the connection.
    pub fn qp_count(self) -> u8 {
        self.qps
    }

    /// The number of rails in use.
    pub fn rails(self) -> u8 {
        self.rails
    }

    /// Queue pairs on each rail.
    pub fn qps_per_rail(self) -> u8 {
        self.qps / self.rails
    }

    /// Whether a message is cut over several queue pairs of a rail.
    pub fn is_split(self) -> bool {
        self.split
    }

    /// The number of the rail that `qp` belongs to.
    #[inline]
    pub fn rail_of(self, qp: QpIndex) -> u8 {
        self.numbers.at(self.place_of(qp))
    }

    /// The position of that rail among the rails in use, in ascending order of their numbers.
    #[inline]
    pub fn place_of(self, qp: QpIndex) -> u8 {
        qp.0 % self.rails
    }

    /// Messages up to this many bytes have one stripe.
    pub fn whole_up_to(self) -> u32 {
        self.whole_up_to
    }

    /// Most stripes of one message.
    fn width(self) -> u8 {
        if self.split { self.qps } else { self.rails }
    }

    /// Whether there is only one queue pair. By reference: from a copy the compiler makes a 64-bit
    /// number, and masks it.
    #[inline]
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub fn has_one_qp(&self) -> bool {
        self.qps == 1
    }

    /// Number of stripes of a message of `length` bytes: at least one, at most one per queue pair.
    #[inline]
    pub fn stripe_count(self, length: u32) -> u32 {
        if length <= self.whole_up_to { 1 } else { self.count_cut(length) }
    }

    #[inline(never)]
    fn count_cut(self, length: u32) -> u32 {
        length.div_ceil(STRIPE_MIN_BYTES).min(u32::from(self.width()))
    }

    /// The queue pair after `qp`, in a circle.
    #[inline]
    pub fn next_qp(self, qp: QpIndex) -> QpIndex {
        if qp.0 + 1 < self.qps { QpIndex(qp.0 + 1) } else { QpIndex(0) }
    }

    /// The stripes of a message of `length` bytes: the first on `qp`, each next one on the queue
    /// pair after. The 128-byte lines of the message are divided in proportion to the weights of
    /// the queue pairs, which `weight` returns.
    pub fn stripes(
        self,
        length: u32,
        qp: QpIndex,
        weight: impl Fn(QpIndex) -> u64,
    ) -> impl Iterator<Item = Stripe> {
        let count = self.stripe_count(length);
        let qps =
            std::iter::successors(Some(qp), move |l| Some(self.next_qp(*l))).take(count as usize);
        let all: u64 = qps.clone().map(&weight).sum();
        let lines = u64::from(length.div_ceil(LL128_LINE_BYTES));
        let (mut before, mut offset) = (0, 0);
        qps.map(move |qp| {
            before += weight(qp);
            let end = if before == all {
                length
            } else {
                (lines * before / all) as u32 * LL128_LINE_BYTES
            };
            let stripe = Stripe { qp, offset, length: end - offset };
            offset = end;
            stripe
        })
    }
}

const _: () = assert!(size_of::<Striping>() == 8);
const _: () =
    assert!(MAX_QPS <= u32::BITS as usize, "arrived stripes are a bit mask over queue pairs");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MAX_MESSAGE;
    use crate::rail_weights::RailWeights;
    use proptest::prelude::*;

    /// Weights after the rails of `slowest` have been the slowest ones.
    fn weights(speeds: [u32; 4], slowest: &[u8]) -> RailWeights {
        let mut weights = RailWeights::from_speeds(speeds);
        slowest.iter().for_each(|rail| weights.handle_slowest(*rail));
        weights
    }

    proptest! {
        #[test]
        fn stripes_tile_the_message(rails in 1u8..=4, per_rail in 1u8..=8, split: bool,
                                    length in prop_oneof![0..=1u32 << 18, 0..=MAX_MESSAGE], first in 0u8..32,
                                    speeds: [u32; 4], late in proptest::collection::vec(0u8..4, 0..300)) {
            let striping = Striping::new(rails, per_rail, split);
            let qps = rails * per_rail;
            prop_assert_eq!([striping.rails(), striping.qps_per_rail(), striping.qp_count()], [rails, per_rail, qps]);
            let weights = weights(speeds, &late);
            let weight = |qp| weights.of(striping.rail_of(qp));
            let stripes: Vec<_> = striping.stripes(length, QpIndex(first % qps), weight).collect();
            prop_assert_eq!(stripes.len() as u32, striping.stripe_count(length));
            let most = if split { qps } else { rails };
            prop_assert!(stripes.len() <= usize::from(most));
            let mut end = 0;
            let mut seen = 0u32;
            for s in &stripes {
                prop_assert_eq!(s.offset, end);
                prop_assert_eq!(s.offset % LL128_LINE_BYTES, 0);
                prop_assert!(s.qp.0 < qps && seen & 1 << s.qp.0 == 0);
                seen |= 1 << s.qp.0;
                end += s.length;
            }
            prop_assert_eq!(end, length);
        }

        #[test]
        fn a_message_reaches_every_rail_once(rails in 1u8..=4, per_rail in 1u8..=8, first in 0u8..32) {
            let striping = Striping::new(rails, per_rail, false);
            let first = QpIndex(first % (rails * per_rail));
            let stripes = striping.stripes(MAX_MESSAGE, first, |_| 1);
            let mut seen: Vec<_> = stripes.map(|s| striping.rail_of(s.qp)).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..rails).collect::<Vec<_>>());
        }

        #[test]
        fn a_rail_carries_its_weight(length in 1u32 << 20..=MAX_MESSAGE, speeds in proptest::array::uniform4(20u32..400)) {
            let weights = weights(speeds, &[]);
            let all: u64 = (0..4).map(|rail| weights.of(rail)).sum();
            for s in Striping::new(4, 1, false).stripes(length, QpIndex(1), |qp| weights.of(qp.0)) {
                let due = u64::from(length) * weights.of(s.qp.0) / all;
                prop_assert!(u64::from(s.length).abs_diff(due) <= 2 * u64::from(LL128_LINE_BYTES), "{s:?} {due}");
            }
        }
    }

    #[test]
    fn small_messages_are_not_cut() {
        for striping in
            [Striping::new(1, 4, true), Striping::new(4, 1, false), Striping::new(2, 2, true)]
        {
            assert_eq!(striping.stripe_count(STRIPE_MIN_BYTES), 1);
            assert_eq!(striping.stripe_count(STRIPE_MIN_BYTES + 1), 2);
            assert_eq!(striping.stripe_count(1 << 20), 4);
        }
        assert_eq!(Striping::new(1, 4, false).stripe_count(1 << 20), 1);
        assert_eq!(Striping::new(2, 4, false).stripe_count(1 << 20), 2);
    }
}
