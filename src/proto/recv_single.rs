//! The usual case of [`RecvFlow::begin`], at fewer instructions: a receive of one message whose length fits one immediate.

use super::arrival::Arrival;
use super::cts::{Cts, KeysByRail, SlotIndex};
use super::imm::Imm;
use super::recv::{Buffer, COALESCE_MAX_BYTES, RecvFlow};
use super::recv_requests::RecvRequest;
use super::requests::Entry;

impl RecvFlow {
    /// As [`Self::begin`], for one buffer, on a connection of one or two rails. False: it is another case, or too much is outstanding, and
    /// nothing has changed.
    #[inline(always)]
    pub fn begin_single<K: KeysByRail>(
        &mut self,
        buffer: Buffer<'_, K>,
        begun: impl FnOnce(&Entry<RecvRequest>),
    ) -> bool {
        let Buffer { addr, length, rkeys, tag } = buffer;
        let Self { requests, window, shadow, arrivals, .. } = self;
        if length > Imm::EXPLICIT_LIMIT || shadow.is_wide() || !window.has_space(1) {
            return false;
        }
        let Some(entry) = requests.allocate() else { return false };
        entry.value.begin(1);
        let seq = window.next();
        let slot = SlotIndex::of(seq).index();
        shadow.put_narrow(slot, &Cts { addr, length, rkeys: [rkeys.of_rail(0), rkeys.of_rail(1)], tag, seq });
        arrivals[slot] = Arrival::new(entry.id(), 0, length);
        window.push(1, length > COALESCE_MAX_BYTES);
        begun(entry);
        true
    }
}

#[cfg(any(test, fuzzing))]
impl RecvFlow {
    /// Tries [`Self::begin_single`] first, if `is_usual` and the receive is of one message, and else [`Self::post`].
    pub(super) fn post_either<'a, K: KeysByRail + 'a>(
        &mut self,
        is_usual: bool,
        count: usize,
        buffer: impl Fn(usize) -> Result<Buffer<'a, K>, super::Violation>,
    ) -> Result<Option<super::requests::RequestId>, super::Violation> {
        let mut id = None;
        if is_usual && count == 1 && self.begin_single(buffer(0)?, |entry| id = Some(entry.id())) {
            return Ok(id);
        }
        self.post(count, buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::imm::LengthCode;
    use crate::proto::stripe::Striping;
    use crate::proto::{QpIndex, Violation};
    use proptest::prelude::*;

    /// What NCCL and the peer do.
    #[derive(Debug, Clone)]
    enum Step {
        /// `irecv` of a buffer of so many bytes.
        Post(u32),
        /// Clear-to-sends that are due are sent.
        Send,
        /// The oldest message arrives, and NCCL is told of it.
        Arrive,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let bound = |bytes: u32| bytes - 1..bytes + 2;
        let length = prop_oneof![8 => 0..40_000u32, 1 => bound(Imm::EXPLICIT_LIMIT), 1 => bound(COALESCE_MAX_BYTES)];
        let step = prop_oneof![3 => length.prop_map(Step::Post), 1 => Just(Step::Send), 1 => Just(Step::Arrive)];
        prop::collection::vec(step, 1..400)
    }

    proptest! {
        #[test]
        fn the_usual_case_leads_to_the_same_state_as_the_general_one(steps in steps(), rails in 1..5u8) {
            let mut flows = [(); 2].map(|()| RecvFlow::new(Striping::new(rails, 1, false)));
            let (mut outstanding, mut seq) = (Vec::new(), 1);
            for (tag, step) in steps.into_iter().enumerate() {
                let [usual, general] = &mut flows;
                match step {
                    Step::Post(length) => {
                        let buffer = Buffer { addr: 7, length, rkeys: &[1, 2, 3, 4], tag: tag as u32 };
                        let mut id = None;
                        if !usual.begin_single(buffer, |entry| id = Some(entry.id())) {
                            prop_assert_eq!(id, None);
                            id = usual.post(1, |_| Ok::<_, Violation>(buffer)).expect("valid");
                        }
                        prop_assert_eq!(id, general.post(1, |_| Ok::<_, Violation>(buffer)).expect("valid"));
                        outstanding.extend(id);
                    }
                    Step::Send => {
                        prop_assert_eq!(usual.poll_cts(6), general.poll_cts(6));
                    }
                    Step::Arrive => {
                        let imm = Imm::new(SlotIndex::of(seq), LengthCode::Bytes(0));
                        let [a, b] = [usual, general].map(|flow| flow.handle_immediate(QpIndex(0), imm).is_ok());
                        prop_assert_eq!(a, b);
                        if a {
                            seq += 1;
                            let id = outstanding.remove(0);
                            flows.iter_mut().for_each(|flow| assert_eq!(flow.poll_done(id), Ok(Some(&[0][..]))));
                        }
                    }
                }
            }
            let [usual, general] = &flows;
            prop_assert_eq!(format!("{usual:?}"), format!("{general:?}"));
        }
    }
}
