//! The sender's queue pairs as lanes: each carries a share of every large message that follows what it completes.
//!
//! Queue pairs of one rail have different UDP source ports, so a fabric with several paths may carry them over different ones, of
//! different speeds. With even shares each message would be as slow as its slowest queue pair. How many stripes a message has is the
//! same with lanes and without, so the receiver need not know.

use super::QpIndex;
use super::lanes::Lanes;
use super::rail_weights::LaneWeights;
use super::send::SendFlow;

impl SendFlow {
    /// Where messages are cut over several queue pairs of a rail, these are lanes from now on: each has a weight of its own, which begins
    /// with that of its rail. A message that is not cut goes over the lane with the greatest weight.
    pub fn use_lanes(&mut self) {
        self.may_have_lanes = true;
        self.begin_lanes();
    }

    /// There are new queue pairs, which are lanes if there may be lanes and there are several on a rail.
    pub(super) fn begin_lanes(&mut self) {
        if !self.may_have_lanes || !self.striping.is_split() || self.striping.qp_count() <= self.striping.rails() {
            self.lanes = None;
            return;
        }
        let (count, rails) = (self.striping.qp_count(), self.striping.rails());
        let qps = (0..count).map(QpIndex);
        let nominal = LaneWeights::from_speeds(qps.map(|qp| self.weights.of(self.striping.rail_of(qp)) as u32));
        self.lanes = Some(Box::new(match &self.lanes {
            None => Lanes::new(nominal, count, rails),
            Some(old) => old.of_new_queue_pairs(nominal, count, rails),
        }));
    }

    /// How much of a message queue pair `qp` gets at present, in proportion to the others.
    #[inline]
    pub fn weight_of(&self, qp: QpIndex) -> u64 {
        match &self.lanes {
            None => self.weights.of(self.striping.rail_of(qp)),
            Some(lanes) => lanes.weight(qp),
        }
    }

    /// Whether the queue pairs are lanes.
    pub fn has_lanes(&self) -> bool {
        self.lanes.is_some()
    }

    /// The lane that has stayed slow, if one has since this was asked last.
    pub fn poll_slow_lane(&mut self) -> Option<QpIndex> {
        self.lanes.as_mut()?.slow.take()
    }

    /// The lanes, as a bit mask, on which a stripe is not complete while all stripes of others are: where nothing moves, it is they that are
    /// to blame. 0: none, or all alike.
    pub fn lagging_lanes(&self) -> u32 {
        self.lanes.as_ref().map_or(0, |lanes| lanes.lagging())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::cts::Cts;
    use crate::proto::rail_weights::RailWeights;
    use crate::proto::recovery::account::Account;
    use crate::proto::stripe::{Stripe, Striping};

    const LARGE: u32 = 1 << 20;

    /// A flow over four lanes of one rail, and the number of its messages.
    fn lanes() -> (SendFlow, u32) {
        let mut flow = SendFlow::new(Striping::new(1, 4, true), RailWeights::from_speeds([400_000]));
        flow.use_lanes();
        (flow, 0)
    }

    /// Sends a message, whose stripes complete in the order of their lengths, but that of `last` after the others.
    fn send((flow, count): &mut (SendFlow, u32), length: u32, last: Option<u8>) -> Vec<Stripe> {
        *count += 1;
        let cts = Cts { addr: 0x1000, length: LARGE, rkeys: [1, 0], tag: 0, seq: *count };
        let transfer = flow.submit(0, 0, length, |_| Some(cts.emit())).expect("valid").expect("clear to send");
        let stripes: Vec<_> = transfer.stripes(|qp| flow.weight_of(qp)).map(|(stripe, _)| stripe).collect();
        for is_last in [false, true] {
            flow.handle_poll();
            for stripe in stripes.iter().filter(|stripe| (last == Some(stripe.qp.0)) == is_last) {
                flow.handle_completion_on(transfer.id, stripe.qp).expect("outstanding");
            }
        }
        assert_eq!(flow.poll_done(transfer.id), Ok(Some(length)));
        stripes
    }

    #[test]
    fn without_lanes_messages_begin_at_each_queue_pair_in_turn() {
        let mut flow = SendFlow::new(Striping::new(2, 2, false), RailWeights::from_speeds([1; 2]));
        let qps = [1, 2, 3, 4, 5, 6].map(|seq| {
            let cts = Cts { addr: 0x1000, length: 8, rkeys: [1, 0], tag: 0, seq };
            flow.submit(0, 0, 8, |_| Some(cts.emit())).expect("valid").expect("clear to send").qp.0
        });
        assert_eq!(qps, [0, 1, 2, 3, 0, 1]);
    }

    #[test]
    fn queue_pairs_are_lanes_only_if_messages_are_cut_over_several_of_a_rail_and_it_is_wished() {
        let has_lanes = |rails, per_rail, split, is_wished: bool| {
            let mut flow = SendFlow::new(Striping::new(rails, per_rail, split), RailWeights::from_speeds([400_000; 4]));
            if is_wished {
                flow.use_lanes();
            } else {
                flow.begin_lanes();
            }
            flow.has_lanes()
        };
        assert!(has_lanes(1, 4, true, true) && has_lanes(2, 4, true, true));
        assert!(!has_lanes(1, 4, true, false), "not wished");
        assert!(!has_lanes(1, 4, false, true), "not cut");
        assert!(!has_lanes(4, 1, true, true), "one on each rail");
    }

    #[test]
    fn a_lane_that_completes_last_gets_less_and_its_sisters_on_the_same_rail_do_not() {
        let mut flow = lanes();
        let even = send(&mut flow, LARGE, Some(2));
        assert!(even.iter().all(|stripe| stripe.length == LARGE / 4), "{even:?}");
        (0..100).for_each(|_| drop(send(&mut flow, LARGE, Some(2))));
        let stripes = send(&mut flow, LARGE, None);
        let length = |qp| stripes.iter().find(|stripe| stripe.qp == QpIndex(qp)).expect("four stripes").length;
        assert!(2 * length(2) < length(0) + 128, "{stripes:?}");
        assert!(length(0).abs_diff(length(1)) <= 128 && length(0).abs_diff(length(3)) <= 128, "{stripes:?}");
    }

    #[test]
    fn a_lane_of_new_queue_pairs_has_to_be_slow_for_longer() {
        let mut flow = lanes();
        let mut messages_until_named = || {
            let begun = flow.1;
            while flow.0.poll_slow_lane().is_none() {
                send(&mut flow, LARGE, Some(2));
            }
            flow.0.begin_lanes();
            flow.1 - begun
        };
        let first = messages_until_named();
        assert!(messages_until_named() > first);
    }

    #[test]
    fn lanes_that_complete_last_together_all_get_less() {
        let mut flow = lanes();
        for _ in 0..100 {
            flow.1 += 1;
            let cts = Cts { addr: 0x1000, length: LARGE, rkeys: [1, 0], tag: 0, seq: flow.1 };
            let id = flow.0.submit(0, 0, LARGE, |_| Some(cts.emit())).expect("valid").expect("clear to send").id;
            for qps in [&[3][..], &[0, 1, 2]] {
                flow.0.handle_poll();
                qps.iter().for_each(|qp| flow.0.handle_completion_on(id, QpIndex(*qp)).expect("outstanding"));
            }
            assert_eq!(flow.0.poll_done(id), Ok(Some(LARGE)));
        }
        let weights = [0, 1, 2, 3].map(|qp| flow.0.weight_of(QpIndex(qp)));
        assert!(weights[0] == weights[1] && weights[1] == weights[2] && 2 * weights[0] < weights[3], "{weights:?}");
    }

    #[test]
    fn a_message_that_is_not_cut_goes_over_the_lane_with_the_greatest_weight() {
        let mut flow = lanes();
        for last in [0, 1, 3] {
            (0..20).for_each(|_| drop(send(&mut flow, LARGE, Some(last))));
        }
        for _ in 0..3 {
            assert_eq!(send(&mut flow, 8, None), [Stripe { qp: QpIndex(2), offset: 0, length: 8 }]);
        }
    }

    #[test]
    fn a_lane_that_stays_slow_is_named_and_a_slow_receiver_makes_none_slow() {
        let mut flow = lanes();
        let mut named = (0..1000).find_map(|_| {
            send(&mut flow, LARGE, Some(2));
            flow.0.poll_slow_lane()
        });
        assert_eq!(named.take(), Some(QpIndex(2)));
        // Whatever the time between messages, it is of no account: what counts is the order of completions.
        let mut flow = lanes();
        for message in 0..4000_u32 {
            send(&mut flow, LARGE, Some((message % 4) as u8));
            assert_eq!(flow.0.poll_slow_lane(), None);
        }
    }

    /// Where order says nothing of speed, since all lanes share a path, shares differ by chance, and a lane is seldom slow.
    #[test]
    fn lanes_that_complete_last_at_random_are_seldom_slow() {
        let (mut flow, mut random, mut named) = (lanes(), 1_u64, 0);
        for _ in 0..100_000 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            send(&mut flow, LARGE, Some((random >> 62) as u8));
            named += u32::from(flow.0.poll_slow_lane().is_some());
        }
        assert!(named <= 10, "{named} times");
    }

    #[test]
    fn lanes_that_lag_behind_all_others_are_known() {
        let mut flow = lanes();
        let mut begin = |length| {
            flow.1 += 1;
            let cts = Cts { addr: 0x1000, length: LARGE, rkeys: [1, 0], tag: 0, seq: flow.1 };
            flow.0.submit(0, 0, length, |_| Some(cts.emit())).expect("valid").expect("clear to send").id
        };
        let ids = [begin(LARGE), begin(8)];
        assert_eq!(flow.0.lagging_lanes(), 0, "all of them");
        [0, 3].into_iter().for_each(|qp| flow.0.handle_completion_on(ids[0], QpIndex(qp)).expect("outstanding"));
        assert_eq!(flow.0.lagging_lanes(), 0b0111, "the short message is on the first lane");
        flow.0.handle_completion_on(ids[1], QpIndex(0)).expect("outstanding");
        assert_eq!(flow.0.lagging_lanes(), 0b0110);
        [1, 2].into_iter().for_each(|qp| flow.0.handle_completion_on(ids[0], QpIndex(qp)).expect("outstanding"));
        assert_eq!(flow.0.lagging_lanes(), 0);
    }

    #[test]
    fn messages_that_are_cut_begin_on_each_lane_in_turn_and_every_fourth_one_on_any() {
        let mut flow = lanes();
        let first: Vec<_> = (0..4000).map(|_| usize::from(send(&mut flow, LARGE, None)[0].qp.0)).collect();
        for (every, allowed) in [(1, 1000..1001), (2, 400..600), (4, 200..300)] {
            let mut counts = [0; 4];
            first.iter().step_by(every).for_each(|lane| counts[*lane] += 1);
            assert!(counts.iter().all(|count| allowed.contains(count)), "{counts:?}");
        }
    }

    /// As on one link, which takes what is posted in its order; also with messages in between that are cut, but too short to learn from.
    #[test]
    fn no_lane_is_slow_where_stripes_complete_in_the_order_in_which_they_are_posted() {
        const SHORT: u32 = 16 << 10;
        for lengths in [&[LARGE][..], &[LARGE, SHORT], &[LARGE, SHORT, SHORT]] {
            let mut flow = lanes();
            for (message, length) in (0..18_000).zip(lengths.iter().cycle()) {
                flow.1 += 1;
                let cts = Cts { addr: 0x1000, length: LARGE, rkeys: [1, 0], tag: 0, seq: flow.1 };
                let begun = flow.0.submit(0, 0, *length, |_| Some(cts.emit())).expect("valid");
                let transfer = begun.expect("clear to send");
                let qps: Vec<_> = transfer.stripes(|qp| flow.0.weight_of(qp)).map(|(stripe, _)| stripe.qp).collect();
                for qp in qps {
                    flow.0.handle_poll();
                    flow.0.handle_completion_on(transfer.id, qp).expect("outstanding");
                }
                assert_eq!(flow.0.poll_done(transfer.id), Ok(Some(*length)));
                let weights = [0, 1, 2, 3].map(|qp| flow.0.weight_of(QpIndex(qp)));
                let (least, most) = (weights.iter().min().expect("four"), weights.iter().max().expect("four"));
                assert!(least * 10 > most * 9, "after message {message} of {lengths:?}: {weights:?}");
            }
        }
    }

    /// Sends messages over lanes of these speeds, in bytes in the time of a poll, all at once. Returns the shares in percent.
    fn settled(flow: &mut (SendFlow, u32), speeds: &[u64], messages: u32) -> Vec<u64> {
        for _ in 0..messages {
            flow.1 += 1;
            let cts = Cts { addr: 0x1000, length: LARGE, rkeys: [1, 0], tag: 0, seq: flow.1 };
            let transfer = flow.0.submit(0, 0, LARGE, |_| Some(cts.emit())).expect("valid").expect("clear to send");
            let stripes = transfer.stripes(|qp| flow.0.weight_of(qp));
            let mut ends: Vec<_> = stripes
                .map(|(stripe, _)| (u64::from(stripe.length) / speeds[usize::from(stripe.qp.0)], stripe.qp))
                .collect();
            ends.sort_unstable();
            let mut poll = None;
            for (end, qp) in ends {
                if poll.replace(end) != Some(end) {
                    flow.0.handle_poll();
                }
                flow.0.handle_completion_on(transfer.id, qp).expect("outstanding");
            }
            flow.0.poll_done(transfer.id).expect("complete");
        }
        let weights: Vec<_> = (0..speeds.len()).map(|qp| flow.0.weight_of(QpIndex(qp as u8))).collect();
        weights.iter().map(|weight| (100 * weight + 50) / weights.iter().sum::<u64>()).collect()
    }

    #[test]
    fn the_lanes_of_a_rail_that_was_slow_regain_their_shares_beside_those_of_another_one() {
        let rails = RailWeights::from_speeds([400_000, 400_000]);
        let mut flow = (SendFlow::new(Striping::new(2, 4, true), rails), 0);
        flow.0.use_lanes();
        // Queue pairs are on the two rails in turn.
        let (even, slow) = ([12_000; 8], [12_000, 3000, 12_000, 3000, 12_000, 3000, 12_000, 3000]);
        let near = |found: &[u64], expected: &[u64]| found.iter().zip(expected).all(|(a, b)| a.abs_diff(*b) <= 1);
        let found = settled(&mut flow, &slow, 3000);
        assert!(near(&found, &[20, 5, 20, 5, 20, 5, 20, 5]), "{found:?}");
        let found = settled(&mut flow, &even, 1000);
        assert!(near(&found, &[13, 12, 13, 12, 13, 12, 13, 12]), "{found:?}");
        let mut one = even;
        one[3] = 1500;
        let found = settled(&mut flow, &one, 3000);
        assert!(near(&found, &[14, 14, 14, 2, 14, 14, 14, 14]), "{found:?}");
        let found = settled(&mut flow, &even, 1000);
        assert!(near(&found, &[13, 12, 13, 12, 13, 12, 13, 12]), "{found:?}");
    }

    #[test]
    fn new_queue_pairs_begin_with_even_shares() {
        let mut flow = lanes();
        (0..100).for_each(|_| drop(send(&mut flow, LARGE, Some(2))));
        let next = flow.1 + 1;
        let nothing_missing = Account { oldest: next, next, missing: Vec::new() };
        let (striping, weights) = (Striping::new(1, 3, true), RailWeights::from_speeds([400_000]));
        flow.0.apply_account(&nothing_missing, striping, weights).expect("it fits");
        assert!(flow.0.has_lanes());
        assert!((0..3).all(|qp| flow.0.weight_of(QpIndex(qp)) == flow.0.weight_of(QpIndex(0))));
    }
}
