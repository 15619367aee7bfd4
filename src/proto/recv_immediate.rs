//! Immediates that arrive at the receiving end: which message they belong to, and when it is complete.

use super::arrival::Stage;
#[cfg(test)]
use super::cts::SlotIndex;
use super::imm::{Imm, LengthCode};
use super::recv::RecvFlow;
use super::requests::RequestId;
use super::{QpIndex, Violation, violation};

impl RecvFlow {
    /// An immediate has arrived on `qp`. All data before it on that queue pair has arrived, too.
    ///
    /// # Errors
    /// It fits no message that may arrive now. The connection cannot go on.
    #[inline(always)]
    pub fn handle_immediate(&mut self, qp: QpIndex, imm: Imm) -> Result<(), Violation> {
        let slot = imm.slot().index();
        if !self.window.is_sent(slot) {
            return Err(violation!("data for slot {}, whose clear-to-send has not been sent", slot));
        }
        if self.complete_whole(qp, imm) { Ok(()) } else { self.handle_part(qp, imm) }
    }

    /// As [`Self::handle_immediate`], if a whole message has come with its length, as nearly all do. False: it is another case, and nothing
    /// has changed.
    #[inline(always)]
    pub fn complete_whole(&mut self, qp: QpIndex, imm: Imm) -> bool {
        let Self { window, arrivals, requests, striping, .. } = self;
        let (slot, arrivals) = (imm.slot().index(), arrivals.as_mut());
        if !window.is_sent(slot) {
            return false;
        }
        let arrival = &mut arrivals[slot];
        if arrival.stage == Stage::Untouched
            && let LengthCode::Bytes(length) = imm.length_code()
            && length <= arrival.posted
            && length <= striping.whole_up_to()
            && let Some(request) = requests.get(arrival.request)
        {
            arrival.handle_whole(qp, length);
            request.complete(arrival.index, length);
            window.handle_arrival(|slot| arrivals[slot].is_pending());
            return true;
        }
        false
    }

    /// As [`Self::handle_immediate`], in all cases, for a slot whose clear-to-send has been sent.
    ///
    /// # Errors
    /// As there.
    #[inline(never)]
    fn handle_part(&mut self, qp: QpIndex, imm: Imm) -> Result<(), Violation> {
        let slot = imm.slot().index();
        let arrival = &mut self.arrivals[slot];
        if !arrival.is_pending() {
            return Err(violation!("data for slot {}, where nothing is posted", slot));
        }
        arrival.stage = Stage::Begun;
        if arrival.qps & 1 << qp.0 != 0 {
            return Err(violation!("a stripe arrived twice on queue pair {}", qp.0));
        }
        if !arrival.handle_length(imm.length_code())? {
            return Ok(());
        }
        let arrived = u32::from(arrival.count_stripe(qp));
        if !arrival.is_length_known() {
            return Ok(());
        }
        let length = arrival.length;
        let expected = self.striping.stripe_count(length);
        if arrived < expected {
            return Ok(());
        }
        if arrived > expected {
            return Err(violation!("more than {expected} stripes for a message of {length} bytes"));
        }
        arrival.stage = Stage::Whole;
        let (id, index) = (arrival.request, arrival.index);
        self.complete(id, index, length)
    }

    /// The whole message has arrived that is number `index` of request `id`.
    fn complete(&mut self, id: RequestId, index: u8, length: u32) -> Result<(), Violation> {
        let request = self.requests.get(id).ok_or_else(|| violation!("a slot belongs to {:?}, which has ended", id))?;
        request.complete(index, length);
        self.count_arrival();
        Ok(())
    }

    /// For a page: what has come of the message of that slot.
    #[cfg(test)]
    pub(super) fn state_of(&self, slot: SlotIndex) -> &'static str {
        self.arrivals[slot.index()].state_name()
    }

    /// A whole message has arrived.
    #[inline(always)]
    fn count_arrival(&mut self) {
        let Self { window, arrivals, .. } = self;
        window.handle_arrival(|slot| arrivals[slot].is_pending());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::recv::Buffer;
    use crate::proto::stripe::Striping;
    use proptest::prelude::*;

    fn code() -> impl Strategy<Value = LengthCode> {
        prop_oneof![
            6 => (0..20_000u32).prop_map(LengthCode::Bytes),
            2 => Just(LengthCode::Full),
            2 => Just(LengthCode::Stripe),
            1 => any::<u16>().prop_map(LengthCode::Low),
            1 => (0..2u16).prop_map(LengthCode::High),
        ]
    }

    proptest! {
        /// Half of the buffers are announced before each immediate; some immediates fit no message.
        #[test]
        fn a_message_that_comes_whole_is_taken_in_as_by_the_general_case(
            lengths in prop::collection::vec(0..20_000u32, 1..40),
            immediates in prop::collection::vec((0..44u32, 0..3u8, code()), 1..80),
            (qps, split) in (1..4u8, any::<bool>()),
        ) {
            let flow = || RecvFlow::new(Striping::new(1, qps, split));
            let mut flows = [flow(), flow()];
            let mut ids = Vec::new();
            for flow in &mut flows {
                let buffer = |length| Buffer { addr: 1, length, rkeys: &[1, 0, 0, 0], tag: 0 };
                let post = |length: &u32| flow.post(1, |_| Ok::<_, Violation>(buffer(*length))).expect("valid");
                ids = lengths.iter().map(post).collect();
                for _ in 0..3 {
                    flow.poll_cts(8);
                }
            }
            for (seq, qp, code) in immediates {
                let (qp, imm) = (QpIndex(qp), Imm::new(SlotIndex::of(seq), code));
                let [usual, general] = &mut flows;
                let taken = usual.handle_immediate(qp, imm).is_ok();
                let is_sent = general.window.is_sent(imm.slot().index());
                prop_assert_eq!(taken, is_sent && general.handle_part(qp, imm).is_ok());
                // The connection cannot go on.
                if !taken {
                    return Ok(());
                }
                prop_assert_eq!(usual.outstanding(), general.outstanding());
                prop_assert_eq!(usual.is_cts_due(), general.is_cts_due());
                ids.retain(|id| {
                    let Some(id) = *id else { return false };
                    let [usual, general] = &mut flows;
                    let [a, b] = [usual, general].map(|flow| flow.poll_done(id).expect("live").map(<[u32]>::to_vec));
                    assert_eq!(a, b);
                    a.is_none()
                });
            }
        }
    }
}
