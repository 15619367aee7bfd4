//! The share of a message that each rail gets: its weight. If the queue pairs of a connection are
//! lanes, each lane has a weight, by the same rule.
//!
//! A rail begins with its nominal weight, which is its speed. From then on the completion order of
//! a message's stripes adjusts the weights, without a clock. The rail whose stripe completes last,
//! in a later poll than the others, loses a 128th of its weight. Each of the others regains a
//! 2048th of what it lacks of its nominal weight. So equal rails stay equal, and the weight of a
//! slow one settles where its stripes take as long as the others'. Only the sender knows the
//! weights: the receiver counts stripes and need not know the cuts.
//!
//! The order does not show how much slower a rail is, so a rail of a tenth of the speed would slow
//! down hundreds of messages. So the sender also counts the polls in which each rail is busy
//! ([`BusyPolls`]). If one is far busier than another for some messages in a row, the weights
//! become what these numbers suggest.

use super::recovery::rail_mask::RailMask;
use super::{MAX_QPS, MAX_RAILS, MAX_REQUESTS};

/// Nominal weight of the fastest rail.
const NOMINAL: u32 = 1 << 14;
/// Least weight of a rail: without any, it would carry nothing that could show its recovery.
const MIN_WEIGHT: u16 = (NOMINAL >> 6) as u16;
/// The slowest rail loses its weight divided by 2 to this power.
const LOSS_SHIFT: u32 = 7;
/// The others regain what they lack of their nominal weight, divided by 2 to this power. It is
/// little, since of several slow rails only one at a time is last.
const GAIN_SHIFT: u32 = 11;

/// A rail that is this many times as busy as another is far too slow for its weight. Where rails
/// are nearly balanced, the order decides.
const FAR: u32 = 3;
/// The least polls of the busiest rail that show which rail a message waited for.
const MIN_POLLS: u32 = 8;
/// This many such messages in a row must agree: after a pause of its thread, the sender finds many
/// completions at once, in any order.
const IN_A_ROW: u8 = 10;

/// The weights of a connection's rails, by their numbers.
pub type RailWeights = Weights<MAX_RAILS>;
/// The weights of a connection's lanes, by the indices of the queue pairs.
pub type LaneWeights = Weights<MAX_QPS>;

/// The weights of up to N rails or lanes; only their proportions matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weights<const N: usize> {
    now: [u16; N],
    nominal: [u16; N],
}

impl<const N: usize> Weights<N> {
    /// In proportion to the rails' speeds, in any unit.
    pub fn from_speeds(speeds: impl IntoIterator<Item = u32>) -> Self {
        let mut rails = [0; N];
        for (rail, speed) in rails.iter_mut().zip(speeds) {
            *rail = speed;
        }
        let fastest = u64::from(rails.iter().copied().max().unwrap_or(0).max(1));
        let weight = |speed: u32| {
            (u64::from(NOMINAL) * u64::from(speed) / fastest).max(u64::from(MIN_WEIGHT)) as u16
        };
        let nominal = rails.map(weight);
        Self { now: nominal, nominal }
    }

    /// These weights, in their order, for the rails with these numbers.
    pub fn over(self, numbers: RailMask) -> Self {
        let mut moved = self;
        for (place, rail) in numbers.iter().enumerate().take(N) {
            let to = usize::from(rail) % N;
            (moved.now[to], moved.nominal[to]) = (self.now[place], self.nominal[place]);
        }
        moved
    }

    /// The weight of rail number `rail`.
    #[inline]
    pub fn of(&self, rail: u8) -> u64 {
        u64::from(self.now[usize::from(rail) % N])
    }

    /// The weight of lane number `lane` in proportion to its nominal one, which is 2^14.
    pub(super) fn share_of(&self, lane: u8) -> u64 {
        let at = usize::from(lane) % N;
        (u64::from(self.now[at]) << NOMINAL.trailing_zeros()) / u64::from(self.nominal[at].max(1))
    }

    /// The first with the greatest weight among the first `count`.
    pub fn greatest(&self, count: u8) -> u8 {
        let mut greatest = 0;
        for (number, weight) in (0..count).zip(&self.now) {
            if *weight > self.now[usize::from(greatest) % N] {
                greatest = number;
            }
        }
        greatest
    }

    /// Handles that the stripe on rail `slowest` completed last, in a later poll than those on
    /// other rails.
    pub fn handle_slowest(&mut self, slowest: u8) {
        self.handle_last(|rail| rail == slowest);
    }

    /// [`Self::handle_slowest`] for several, which completed in the same poll.
    pub(super) fn handle_last(&mut self, is_last: impl Fn(u8) -> bool) {
        for (number, (now, nominal)) in (0..).zip(self.now.iter_mut().zip(&self.nominal)) {
            if is_last(number) {
                *now = (*now - (*now >> LOSS_SHIFT)).max(MIN_WEIGHT);
            } else {
                let lack = nominal.saturating_sub(*now);
                *now += (lack >> GAIN_SHIFT).max(u16::from(lack > 0));
            }
        }
    }

    /// Corrects the weights from the number of busy `polls` of each; 0 if it is not in use. With
    /// the new weights all would be equally busy, and none exceeds its nominal weight.
    pub(super) fn correct(&mut self, polls: impl Fn(u8) -> u32) {
        let speed = |number, now: u16| (u64::from(now) << 40).checked_div(polls(number).into());
        let all = (0..).zip(self.now.iter().zip(&self.nominal));
        let of_nominal = all.filter_map(|(number, (now, nominal))| {
            Some(speed(number, *now)? / u64::from(*nominal))
        });
        let Some(fastest) = of_nominal.max() else { return };
        for (number, (now, nominal)) in (0..).zip(self.now.iter_mut().zip(&self.nominal)) {
            if let Some(speed) = speed(number, *now) {
                *now = (speed / fastest.max(1)).clamp(MIN_WEIGHT.into(), (*nominal).into()) as u16;
            }
        }
    }
}

/// The number of polls in which each rail or lane had outstanding stripes. Only proportions matter.
#[derive(Debug, Default)]
pub(super) struct BusyPolls {
    /// Outstanding stripes.
    outstanding: [u16; MAX_QPS],
    /// The poll up to which it is counted, while stripes are outstanding.
    counted: [u32; MAX_QPS],
    /// Busy polls since the latest conclusive message.
    polls: [u32; MAX_QPS],
    /// The sums over the messages that agreed in a row.
    sums: [u32; MAX_QPS],
    in_a_row: u8,
    /// Those that were far busier than another in all of these, as a bit mask.
    slow: u32,
    /// Those in use, as a bit mask.
    used: u32,
    /// Outstanding messages that were cut before the weights were corrected.
    old: u16,
}

impl BusyPolls {
    /// Counts a stripe for `number`, posted after poll `poll`.
    pub(super) fn begin(&mut self, number: u8, poll: u32) {
        let at = usize::from(number) % MAX_QPS;
        if self.outstanding[at] == 0 {
            self.counted[at] = poll;
        }
        self.outstanding[at] = self.outstanding[at].saturating_add(1);
        self.used |= 1 << at;
    }

    /// Counts a completed stripe, in poll `poll`.
    pub(super) fn end(&mut self, number: u8, poll: u32) {
        let at = usize::from(number) % MAX_QPS;
        self.polls[at] = self.polls[at].saturating_add(poll.wrapping_sub(self.counted[at]));
        self.counted[at] = poll;
        self.outstanding[at] = self.outstanding[at].saturating_sub(1);
    }

    /// A message is complete. Returns whether it was cut with the present weights. One that is not
    /// on all rails or lanes shows nothing here.
    pub(super) fn handle_message(&mut self, is_on_all: bool) -> bool {
        if self.old > 0 {
            self.old -= 1;
            self.polls = [0; MAX_QPS];
            return false;
        }
        if !is_on_all {
            return true;
        }
        let used = self.used;
        let in_use = || (0..MAX_QPS).filter(|at| used & 1 << at != 0);
        let (least, most) =
            in_use().map(|at| self.polls[at]).fold((u32::MAX, 0), |(l, m), p| (l.min(p), m.max(p)));
        if most < MIN_POLLS {
            return true;
        }
        let slow = in_use()
            .filter(|at| self.polls[*at] / FAR >= least.max(1))
            .fold(0, |slow, at| slow | 1 << at);
        if self.slow & slow == 0 {
            (self.slow, self.in_a_row, self.sums) = (slow, 0, [0; MAX_QPS]);
        }
        if slow != 0 {
            self.slow &= slow;
            self.in_a_row += 1;
            in_use().for_each(|at| self.sums[at] = self.sums[at].saturating_add(self.polls[at]));
        }
        self.polls = [0; MAX_QPS];
        true
    }

    /// The number of busy polls of each, 0 where not in use, if some were far busier than another.
    /// `outstanding` messages are in flight.
    pub(super) fn poll_slow(&mut self, outstanding: u32) -> Option<impl Fn(u8) -> u32 + use<>> {
        if self.in_a_row < IN_A_ROW {
            return None;
        }
        let (sums, used) = (self.sums, self.used);
        (self.slow, self.in_a_row, self.old) = (0, 0, outstanding.min(MAX_REQUESTS as u32) as u16);
        Some(move |number: u8| {
            let at = usize::from(number) % MAX_QPS;
            if used & 1 << at == 0 { 0 } else { sums[at].max(1) }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::exhaustive;

    /// Sends messages one by one over rails of `real` speeds. Returns the weights in percent of the
    /// first rail's.
    fn settled(nominal: &[u32], real: &[u32], messages: usize) -> Vec<u64> {
        let mut weights = RailWeights::from_speeds(nominal.iter().copied());
        for _ in 0..messages {
            let time = |rail: &usize| weights.of(*rail as u8) * 1_000_000 / u64::from(real[*rail]);
            let slowest = (0..real.len()).max_by_key(time).expect("a rail");
            weights.handle_slowest(slowest as u8);
        }
        (0..real.len() as u8).map(|rail| weights.of(rail) * 100 / weights.of(0)).collect()
    }

    #[test]
    fn weights_begin_with_the_speeds() {
        assert_eq!(settled(&[400, 100, 200], &[1, 1, 1], 0), [100, 25, 50]);
        assert_eq!(settled(&[0, 0], &[1, 1], 0), [100, 100], "speeds unknown");
    }

    #[test]
    fn a_slow_rail_gets_the_weight_of_its_real_speed() {
        let slow = settled(&[400, 400], &[400, 100], 1000);
        assert!((22..=30).contains(&slow[1]), "{slow:?}");
        let middle = settled(&[400; 4], &[400, 400, 50, 200], 4000);
        assert!(
            (85..=115).contains(&middle[1])
                && (10..=17).contains(&middle[2])
                && (42..=60).contains(&middle[3]),
            "{middle:?}"
        );
    }

    #[test]
    fn a_rail_that_has_recovered_regains_its_weight() {
        let mut weights = RailWeights::from_speeds([1, 1]);
        (0..10_000).for_each(|_| weights.handle_slowest(1));
        assert_eq!(
            weights.of(1),
            u64::from(MIN_WEIGHT),
            "even a rail that hardly moves gets a little"
        );
        (0..8000).for_each(|_| weights.handle_slowest(0));
        assert!(weights.of(1) > u64::from(NOMINAL) * 9 / 10, "{weights:?}");
    }

    #[test]
    fn equal_rails_keep_like_weights_if_each_is_the_slowest_at_random() {
        let mut weights = RailWeights::from_speeds([7; 4]);
        let mut random = 1u64;
        for message in 0..20_000 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            weights.handle_slowest((random >> 62) as u8);
            let all = [0, 1, 2, 3].map(|rail| weights.of(rail));
            let (least, most) = (all.iter().min().expect("four"), all.iter().max().expect("four"));
            assert!(2 * least > *most, "after message {message}: {all:?}");
        }
    }

    #[test]
    fn weights_move_to_the_numbers_of_rails_that_are_left() {
        let weights = RailWeights::from_speeds([400, 100, 200]).over(RailMask(0b1101));
        assert_eq!([0, 2, 3].map(|rail| weights.of(rail)), [1 << 14, 1 << 12, 1 << 13]);
    }

    #[test]
    fn a_share_is_in_proportion_to_the_nominal_weight_which_is_never_exceeded() {
        let mut weights = RailWeights::from_speeds([200, 100]);
        assert_eq!([0, 1].map(|rail| weights.share_of(rail)), [1 << 14, 1 << 14]);
        (0..200).for_each(|_| weights.handle_slowest(1));
        assert_eq!(weights.of(0), 1 << 14);
        assert_eq!(weights.share_of(1), weights.of(1) << 1);
        assert_eq!((weights.greatest(2), weights.greatest(1)), (0, 0));
        let rising = RailWeights::from_speeds([100, 200, 400, 400]);
        assert_eq!([1, 2, 3, 4].map(|count| rising.greatest(count)), [0, 1, 2, 2]);
    }

    /// Every weight, with nominal weights between the least and the greatest: what a rail loses and
    /// regains stays within bounds.
    #[test]
    fn every_weight_falls_to_the_least_and_rises_to_the_nominal_one() {
        let (least, most) = (usize::from(MIN_WEIGHT), NOMINAL as usize);
        for nominal in (least..=most).step_by(exhaustive::step(331)) {
            for now in (least..=nominal).step_by(exhaustive::step(37)) {
                let before = Weights::<2> { now: [now as u16; 2], nominal: [nominal as u16; 2] };
                let mut after = before;
                after.handle_slowest(0);
                let [lost, gained] = after.now.map(usize::from);
                assert!(
                    (least..=now).contains(&lost) && (lost < now || now < 128 || now == least),
                    "{now} of {nominal}: {lost}"
                );
                assert!(
                    (now..=nominal).contains(&gained) && (gained > now || now == nominal),
                    "{now} of {nominal}: {gained}"
                );
                assert_eq!(after.nominal, before.nominal);
            }
        }
    }
}
