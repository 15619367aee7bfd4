//! The lanes of a connection: queue pairs that each carry a share of every large message, according
//! to what they complete.
//!
//! Lanes over the same link finish their stripes of a message at the same time. So all stripes that
//! complete in the last poll count as slowest, if others completed before.

use super::rail_weights::LaneWeights;
use super::requests::RequestId;
use super::stripe::Striping;
use super::{MAX_QPS, MAX_RAILS, MAX_REQUESTS, QpIndex};

/// The least bytes of a message that shows how fast rails are. The stripes of a shorter one
/// complete in the order in which the completion queues are polled.
pub(super) const LEARNING_BYTES: u32 = 64 << 10;

/// The weights of a connection's lanes, and the data to learn them from.
#[derive(Debug)]
pub(super) struct Lanes {
    weights: LaneWeights,
    /// By index of the request.
    latest: [Latest; MAX_REQUESTS],
    /// The number of lanes, and of rails.
    count: u8,
    rails: u8,
    random: u32,
    /// For messages too short to learn from, and for others.
    turns: [Turn; 2],
    /// By queue pair, the stripes that are posted and not complete.
    outstanding: [u16; MAX_QPS],
    slow_lanes: SlowLanes,
    /// The lane that was found to stay slow.
    pub(super) slow: Option<QpIndex>,
}

/// The lane on which the next message of several stripes begins, and how many of these begin one
/// lane further each.
#[derive(Debug, Clone, Copy, Default)]
struct Turn {
    first: u8,
    left: u8,
}

/// The stripes of a message that completed in its latest poll with completions.
#[derive(Debug, Clone, Copy)]
struct Latest {
    request: RequestId,
    poll: u32,
    /// Their queue pairs, as a bit mask.
    qps: u32,
    /// Whether others completed before.
    is_later: bool,
}

impl Lanes {
    /// `count` lanes on `rails` rails that begin with `weights`.
    pub(super) fn new(weights: LaneWeights, count: u8, rails: u8) -> Self {
        let none = Latest { request: RequestId::from_bits(0), poll: 0, qps: 0, is_later: false };
        Self {
            weights,
            latest: [none; MAX_REQUESTS],
            count,
            rails,
            random: 0,
            turns: Default::default(),
            outstanding: [0; MAX_QPS],
            slow_lanes: SlowLanes::default(),
            slow: None,
        }
    }

    /// The lanes of new queue pairs, which begin with `weights`.
    pub(super) fn of_new_queue_pairs(&self, weights: LaneWeights, count: u8, rails: u8) -> Self {
        Self {
            slow_lanes: self.slow_lanes.of_new_queue_pairs(),
            ..Self::new(weights, count, rails)
        }
    }

    /// The weight of lane `qp`.
    #[inline]
    pub(super) fn weight(&self, qp: QpIndex) -> u64 {
        self.weights.of(qp.0)
    }

    /// The lane of the first stripe of a message of `length` bytes with this many stripes; the
    /// others follow according to `striping`. It is the first lane with the greatest weight, or for
    /// several stripes the next one in turn.
    #[inline]
    pub(super) fn begin(&mut self, stripes: u32, striping: Striping, length: u32) -> QpIndex {
        let first = if stripes == 1 {
            self.weights.greatest(self.count)
        } else {
            self.next(length >= LEARNING_BYTES)
        };
        let first = QpIndex(first);
        let mut qp = first;
        for _ in 0..stripes {
            self.outstanding[usize::from(qp.0) % MAX_QPS] += 1;
            qp = striping.next_qp(qp);
        }
        first
    }

    /// Uses each lane once in as many messages as there are lanes. What is posted later completes
    /// later, so no lane may be posted last more often than others, over any thousand messages. Nor
    /// may that hold for every second or fourth message, for which the caller may wait. So each
    /// turn begins with a random lane, from the high bits of a linear congruential generator
    /// (Numerical Recipes). Messages too short to learn from take separate turns. In between, they
    /// would meet the same lanes repeatedly.
    #[inline]
    fn next(&mut self, teaches: bool) -> u8 {
        let turn = &mut self.turns[usize::from(teaches)];
        if turn.left == 0 {
            self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *turn = Turn {
                first: ((u64::from(self.random) * u64::from(self.count)) >> 32) as u8,
                left: self.count,
            };
        }
        turn.left -= 1;
        let first = turn.first;
        turn.first = if first + 1 == self.count { 0 } else { first + 1 };
        first
    }

    /// The lanes, as a bit mask, with an incomplete stripe while others have none; 0 if there are
    /// none or all are alike.
    pub(super) fn lagging(&self) -> u32 {
        let mask = (0..self.count).filter(|qp| self.outstanding[usize::from(*qp) % MAX_QPS] > 0);
        let mask = mask.fold(0_u32, |mask, qp| mask | 1 << qp);
        if mask.count_ones() == u32::from(self.count) { 0 } else { mask }
    }

    /// A stripe on `qp` is complete.
    #[inline]
    pub(super) fn handle_stripe(&mut self, qp: QpIndex) {
        let outstanding = &mut self.outstanding[usize::from(qp.0) % MAX_QPS];
        *outstanding = outstanding.saturating_sub(1);
    }

    /// Corrects the weights from the number of busy `polls` of each lane: see
    /// [`LaneWeights::correct`].
    pub(super) fn correct(&mut self, polls: impl Fn(u8) -> u32) {
        self.weights.correct(polls);
    }

    /// Handles that a stripe of `request`, which is long enough to learn from, has completed in
    /// poll number `poll`. `is_last`: it was the last one. `teaches`: the message was cut with the
    /// present weights.
    pub(super) fn handle_completion(
        &mut self,
        request: RequestId,
        qp: QpIndex,
        poll: u32,
        is_last: bool,
        teaches: bool,
    ) {
        let latest = &mut self.latest[request.index()];
        if latest.request != request {
            *latest = Latest { request, poll, qps: 0, is_later: false };
        } else if latest.poll != poll {
            *latest = Latest { request, poll, qps: 0, is_later: true };
        }
        latest.qps |= 1 << qp.0;
        let Latest { qps, is_later, .. } = *latest;
        if is_last && is_later && teaches {
            self.weights.handle_last(|lane| qps & 1 << lane != 0);
        }
        if is_last {
            let weights = &self.weights;
            let found = self
                .slow_lanes
                .handle_message(self.count, self.rails, |lane| weights.share_of(lane.0));
            self.slow = found.or(self.slow);
        }
    }
}

/// Messages between checks of the shares: enough for a share to fall to a third.
const LOOK_EVERY: u32 = 128;
/// A lane with less than 3/4 of the greatest share of its rail is slow.
const SLOW: (u64, u64) = (3, 4);
/// The number of checks in a row that must find a lane slow before it is reported. It grows by one
/// each time that queue pairs were replaced.
const FIRST_LOOKS: u8 = 3;
/// The most checks in a row: a path that becomes slow late is left too.
const MOST_LOOKS: u8 = 24;

/// Detects a lane that stays slow: its share of messages stays far below the greatest.
///
/// Shares follow completions and only compare lanes. If all slow down together, because the
/// receiver is slow or the job pauses, no share changes and no lane is slow. Lanes are compared
/// within their rail: all lanes of a slow port or card are alike, and another path would not help
/// them.
///
/// The greatest share counts, not the mean: if most paths are overloaded, the mean looks fine, and
/// one good path shows what the others could have.
///
/// A new connection searches for paths quickly, and later ever less often: each time that its queue
/// pairs were replaced, a lane must have been slow for longer.
#[derive(Debug, Clone, Copy)]
struct SlowLanes {
    slow: [u8; MAX_QPS],
    /// Messages since the latest check.
    messages: u32,
    /// The number of checks in a row that report a lane.
    looks: u8,
}

impl Default for SlowLanes {
    fn default() -> Self {
        Self { slow: [0; MAX_QPS], messages: 0, looks: FIRST_LOOKS }
    }
}

impl SlowLanes {
    /// Restarts for new queue pairs: forgets the observations, but counts the replacement.
    fn of_new_queue_pairs(self) -> Self {
        Self { looks: (self.looks + 1).min(MOST_LOOKS), ..Self::default() }
    }

    /// Handles a complete message that is long enough to learn from. The `count` lanes alternate
    /// between `rails` rails; `share` returns the share of one. Returns the slowest of the lanes
    /// that have been slow for long enough.
    fn handle_message(
        &mut self,
        count: u8,
        rails: u8,
        share: impl Fn(QpIndex) -> u64,
    ) -> Option<QpIndex> {
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
        let slowest = lanes()
            .filter(|lane| self.slow[usize::from(lane.0)] >= self.looks)
            .min_by_key(|lane| share(*lane))?;
        self.slow = [0; MAX_QPS];
        Some(slowest)
    }
}

/// The most lanes of a rail with labels.
const LABELS: usize = MAX_QPS / MAX_RAILS;

/// The flow labels of a sender's lanes.
///
/// A RoCE v2 device derives the UDP source port of a queue pair's packets from the flow label of
/// its address vector: it folds the low 14 bits and the high 6 bits into the range of dynamic ports
/// (rdma-core, `rdma_flow_label_to_udp_sport`). A fabric with ECMP chooses the path by that port,
/// among other fields. Without a flow label the device derives one from both queue pair numbers, so
/// a replaced queue pair changes its path. With one, lanes that should not move keep their paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowLabels(Option<Box<LabelTable>>);

#[derive(Debug, Clone, PartialEq, Eq)]
struct LabelTable {
    /// By rail number, and number of the lane on it.
    labels: [[u32; LABELS]; MAX_RAILS],
    /// State of the random number generator.
    random: u64,
    /// How often a lane got another label.
    replaced: u64,
}

impl FlowLabels {
    /// No lane has a label, and none gets one.
    pub const NONE: Self = Self(None);

    /// A random label for each lane, with distinct UDP source ports.
    pub fn random(seed: u64) -> Self {
        let mut table = LabelTable { labels: [[0; LABELS]; MAX_RAILS], random: seed, replaced: 0 };
        for (rail, lane) in
            (0..MAX_RAILS).flat_map(|rail| (0..LABELS).map(move |lane| (rail, lane)))
        {
            table.labels[rail][lane] = table.other();
        }
        Self(Some(Box::new(table)))
    }

    /// Whether lanes have labels.
    pub fn are_used(&self) -> bool {
        self.0.is_some()
    }

    /// The label of lane number `lane` of a rail; 0 if it has none.
    pub fn of(&self, rail: u8, lane: u8) -> u32 {
        let rail = self.0.as_ref().and_then(|table| table.labels.get(usize::from(rail)));
        rail.and_then(|lanes| lanes.get(usize::from(lane))).copied().unwrap_or(0)
    }

    /// Gives that lane another label, if it has one, with a UDP source port that no lane uses. The
    /// others keep theirs.
    pub fn replace(&mut self, rail: u8, lane: u8) {
        let Some(table) = &mut self.0 else { return };
        let other = table.other();
        if let Some(label) = table
            .labels
            .get_mut(usize::from(rail))
            .and_then(|lanes| lanes.get_mut(usize::from(lane)))
        {
            *label = other;
            table.replaced += 1;
        }
    }

    /// How often a lane has got another label.
    pub fn replaced(&self) -> u64 {
        self.0.as_ref().map_or(0, |table| table.replaced)
    }
}

impl LabelTable {
    /// A label with a UDP source port that no lane uses.
    fn other(&mut self) -> u32 {
        loop {
            self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let label = (mix(self.random) >> 44) as u32;
            let is_taken = self
                .labels
                .iter()
                .flatten()
                .any(|taken| *taken != 0 && port(*taken) == port(label));
            if label != 0 && !is_taken {
                return label;
            }
        }
    }
}

/// The UDP source port without the highest two bits, which are always set.
fn port(label: u32) -> u32 {
    (label ^ label >> 14) & 0x3fff
}

/// The output function of splitmix64.
fn mix(state: u64) -> u64 {
    let state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ state >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    mod slow {
        use super::*;

        /// Messages in which a lane is found slow so often.
        const fn of_looks(looks: u32) -> u32 {
            looks * LOOK_EVERY
        }

        /// The lanes that are said to be slow while so many messages complete with these shares.
        fn slow(shares: &[u64], messages: u32) -> Vec<u8> {
            let mut slow = SlowLanes::default();
            let share = |lane: QpIndex| shares[usize::from(lane.0)];
            (0..messages)
                .filter_map(|_| slow.handle_message(shares.len() as u8, 1, share))
                .map(|lane| lane.0)
                .collect()
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
                (0..messages)
                    .find_map(|message| slow.handle_message(2, 1, share).map(|_| message + 1))
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
                (0..of_looks(3))
                    .find_map(|_| slow.handle_message(4, 2, |lane| shares[usize::from(lane.0)]))
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

    mod labels {
        use super::*;
        use std::collections::BTreeSet;

        fn all(labels: &FlowLabels) -> Vec<u32> {
            (0..4).flat_map(|rail| (0..8).map(move |lane| labels.of(rail, lane))).collect()
        }

        #[test]
        fn labels_are_of_20_bits_and_lead_to_ports_that_all_differ() {
            for seed in 0..200 {
                let labels = all(&FlowLabels::random(seed));
                assert!(labels.iter().all(|label| (1..1 << 20).contains(label)), "{labels:?}");
                assert_eq!(
                    labels.iter().map(|label| port(*label)).collect::<BTreeSet<_>>().len(),
                    32,
                    "{labels:?}"
                );
            }
        }

        #[test]
        fn a_lane_gets_another_port_and_the_others_keep_theirs() {
            let mut labels = FlowLabels::random(7);
            for _ in 0..1000 {
                let before = labels.clone();
                labels.replace(2, 5);
                assert_eq!(labels.replaced(), before.replaced() + 1);
                assert_ne!(port(labels.of(2, 5)), port(before.of(2, 5)));
                let changed = all(&labels)
                    .iter()
                    .zip(all(&before))
                    .filter(|(now, then)| **now != *then)
                    .count();
                assert_eq!(changed, 1);
                assert_eq!(
                    all(&labels).iter().map(|label| port(*label)).collect::<BTreeSet<_>>().len(),
                    32
                );
            }
        }

        #[test]
        fn without_labels_none_is_given() {
            let mut labels = FlowLabels::NONE;
            labels.replace(0, 0);
            assert_eq!((labels.are_used(), labels.of(0, 0), labels.of(0, 31)), (false, 0, 0));
            assert_eq!(FlowLabels::random(1).of(0, 8), 0, "more queue pairs than lanes may be");
        }

        #[test]
        fn labels_come_from_splitmix64() {
            let step = 0x9e37_79b9_7f4a_7c15_u64;
            let first = [1, 2, 3].map(|n| mix(step.wrapping_mul(n)));
            assert_eq!(
                first,
                [0xe220_a839_7b1d_cdaf, 0x6e78_9e6a_a1b9_65f4, 0x06c4_5d18_8009_454f]
            );
            let labels = FlowLabels::random(0);
            assert!(labels.are_used());
            assert_eq!([labels.of(0, 0), labels.of(0, 1)], [0xe_220a, 0x6_e789]);
        }

        /// As `rdma_flow_label_to_udp_sport` has it.
        #[test]
        fn a_port_is_the_low_14_bits_and_the_high_6_one_upon_the_other() {
            assert_eq!(
                [0, 0x3fff, 0x4000, 0xf_ffff, 0x5_4001].map(port),
                [0, 0x3fff, 1, 0x3fc0, 0x14]
            );
        }
    }
}
