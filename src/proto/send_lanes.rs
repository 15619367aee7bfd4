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
    /// The queue pairs are lanes from now on: each has a weight of its own, which begins with that of its rail. A message that is not
    /// cut goes over the lane with the greatest weight. To be called where messages are cut over all queue pairs of a rail.
    pub fn use_lanes(&mut self) {
        let qps = (0..self.striping.qp_count()).map(QpIndex);
        let nominal = LaneWeights::from_speeds(qps.map(|qp| self.weights.of(self.striping.rail_of(qp)) as u32));
        self.lanes = Some(Box::new(Lanes::new(nominal)));
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
