//! The usual case of [`SendFlow::submit`], at fewer instructions: a message in one stripe takes the clear-to-send that comes next.

use super::MAX_MESSAGE;
use super::cts::{Cts, CtsWords, SlotIndex};
use super::requests::Entry;
use super::send::{SendFlow, UnclaimedCts};
use super::send_requests::SendRequest;
use super::transfer::Transfer;

/// What [`SendFlow::submit_single`] has found. `repr(u8)`: otherwise the compiler encodes the variant in an unused value of a field of
/// the transfer and reads that field again, which costs instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Usual {
    /// A message that is to be posted as [`Transfer::single`] says.
    Begun(Transfer),
    /// It is not the usual case, and nothing has changed: [`SendFlow::submit`] decides.
    Other,
}

/// What [`SendFlow::refuse`] has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// Nothing: the clear-to-send that comes next is there, and no earlier one is kept: [`SendFlow::submit_single`] may be called.
    Next,
    /// Nothing: there is a clear-to-send, which may be for the message.
    No,
    /// It has refused it, for the first time since the last message or clear-to-send.
    First,
    /// It has refused it again.
    Again,
}

impl SendFlow {
    /// Refuses a message, whatever its tag, if there is no clear-to-send. `is_there` tells whether there is the clear-to-send of a
    /// sequence number in the ring.
    #[inline(always)]
    pub fn refuse(&mut self, is_there: impl FnOnce(u32) -> bool) -> Refusal {
        let seq = self.next;
        if self.head != seq {
            return Refusal::No;
        }
        if is_there(seq) {
            return Refusal::Next;
        }
        // If so, no message has begun since: the ring has had nothing new, and nothing was kept.
        let is_first = self.refused_at != seq;
        self.count_refusal();
        if is_first { Refusal::First } else { Refusal::Again }
    }

    /// A message has found no clear-to-send of its tag.
    #[inline(always)]
    pub(super) fn count_refusal(&mut self) {
        self.refusals = self.refusals.wrapping_add(1);
        if self.head == self.next {
            self.refused_at = self.next;
        }
    }

    /// As [`Self::submit`], for a message that has one stripe and is shorter than [`super::imm::Imm::EXPLICIT_LIMIT`], when
    /// [`Self::refuse`] has said that there is the clear-to-send that comes next. One that is longer than its receive is not the usual case. If it is for the message, `prepare` is called with it
    /// before anything changes, and `begun` with the request's entry; `prepare` may be called in another case, too.
    #[inline(always)]
    pub fn submit_single(
        &mut self,
        tag: u32,
        addr: u64,
        length: u32,
        read: impl FnOnce(u32) -> CtsWords,
        prepare: impl FnOnce(&Cts),
        begun: impl FnOnce(&Entry<SendRequest>),
    ) -> Usual {
        let seq = self.next;
        let cts = Cts::from_words(&read(seq));
        if cts.tag != tag {
            return Usual::Other;
        }
        // Before the next condition, as the compiler makes one of both otherwise, which costs more.
        prepare(&cts);
        if cts.length.wrapping_sub(1) >= MAX_MESSAGE || length > cts.length {
            return Usual::Other;
        }
        let Some(entry) = self.requests.allocate() else { return Usual::Other };
        let id = entry.id();
        entry.value.begin(seq, addr, length, 1);
        begun(entry);
        self.next = seq.wrapping_add(1);
        self.head = self.next;
        Usual::Begun(self.transfer(id, SlotIndex::of(seq), UnclaimedCts::from(&cts), length, 1))
    }
}

#[cfg(any(test, fuzzing))]
use super::{stripe::Stripe, transfer::Immediates};

#[cfg(any(test, fuzzing))]
impl SendFlow {
    /// Tries [`Self::refuse`] and [`Self::submit_single`] first, if `is_usual` and the message may have one stripe only, and else [`Self::submit`].
    pub(super) fn submit_either(
        &mut self,
        is_usual: bool,
        tag: u32,
        addr: u64,
        length: u32,
        read: impl Fn(u32) -> Option<CtsWords> + Copy,
    ) -> Result<Option<Transfer>, super::Violation> {
        let is_single = self.striping.stripe_count(length) == 1 && length < super::imm::Imm::EXPLICIT_LIMIT;
        match if is_usual { self.refuse(|seq| read(seq).is_some()) } else { Refusal::No } {
            Refusal::First | Refusal::Again => return Ok(None),
            Refusal::Next if is_single => {
                let read = |seq| read(seq).unwrap_or_default();
                if let Usual::Begun(transfer) = self.submit_single(tag, addr, length, read, |_| (), |_| ()) {
                    let stripes: Vec<_> = transfer.stripes(|qp| self.weight_of(qp)).collect();
                    let (qp, first) = transfer.single();
                    let whole = Stripe { qp, offset: 0, length: transfer.length };
                    assert_eq!(stripes, [(whole, Immediates { first, second: None })]);
                    return Ok(Some(transfer));
                }
            }
            Refusal::Next | Refusal::No => {}
        }
        self.submit(tag, addr, length, read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::rail_weights::RailWeights;
    use crate::proto::stripe::Striping;
    use proptest::prelude::*;

    /// What the requests in flight are too many for has not waited for its peer.
    #[test]
    fn a_message_is_counted_as_refused_only_if_it_was_not_asked_for() {
        let mut flow = SendFlow::new(Striping::new(1, 1, false), RailWeights::from_speeds([1]));
        let words = |seq| Cts { addr: 0x1000, length: 8, rkeys: [9, 0], tag: 0, seq }.emit();
        let first = flow.submit(0, 0, 8, |seq| Some(words(seq))).expect("valid").expect("asked for").id;
        assert_eq!(flow.entry(first).map(Entry::id), Some(first));
        while flow.submit(0, 0, 8, |seq| Some(words(seq))).expect("valid").is_some() {}
        assert_eq!(flow.refusals, 0, "too many are outstanding");
        assert_eq!(flow.submit(0, 0, 8, |_| None), Ok(None));
        assert_eq!(flow.refusals, 1);
    }

    /// What NCCL and the peer do.
    #[derive(Debug, Clone)]
    enum Step {
        /// The peer writes a clear-to-send.
        Write { tag: u32, length: u32 },
        /// `isend`.
        Send { tag: u32, length: u32 },
        /// The stripe of some message that is outstanding completes, and NCCL is told of the message.
        Complete(prop::sample::Index),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // One tag is more frequent, as with NCCL; some lengths are too long for one stripe or for a clear-to-send.
        let tag = || prop_oneof![8 => Just(0u32), 1 => 1..3u32];
        let posted = || prop_oneof![20 => 0..20_000u32, 1 => Just(MAX_MESSAGE + 1)];
        let step = prop_oneof![
            (tag(), posted()).prop_map(|(tag, length)| Step::Write { tag, length }),
            (tag(), 0..20_000u32).prop_map(|(tag, length)| Step::Send { tag, length }),
            any::<prop::sample::Index>().prop_map(Step::Complete),
        ];
        prop::collection::vec(step, 1..600)
    }

    proptest! {
        // Each has hundreds of steps.
        #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.div_ceil(4), ..Default::default() })]

        #[test]
        fn the_usual_case_gives_the_same_transfers_and_the_same_state_as_the_general_one(
            steps in steps(),
            (qps, split) in (1..4u8, any::<bool>()),
        ) {
            let striping = Striping::new(1, qps, split);
            let flow = || SendFlow::new(striping, RailWeights::from_speeds([1]));
            let mut callers = [(flow(), Vec::new(), false), (flow(), Vec::new(), true)];
            let mut ring: Vec<Cts> = Vec::new();
            for (number, step) in steps.into_iter().enumerate() {
                let mut answers = Vec::new();
                for (flow, outstanding, is_usual) in &mut callers {
                    match &step {
                        Step::Write { .. } => {}
                        Step::Send { tag, length } => {
                            let read = |seq: u32| ring.get(seq as usize - 1).map(Cts::emit);
                            let answer = flow.submit_either(*is_usual, *tag, 7, *length, read).ok();
                            outstanding.extend(answer.flatten());
                            answers.push(answer);
                        }
                        Step::Complete(_) if outstanding.is_empty() => {}
                        Step::Complete(index) => {
                            let transfer = outstanding.remove(index.index(outstanding.len()));
                            for _ in 0..striping.stripe_count(transfer.length) {
                                flow.handle_completion(transfer.id).expect("outstanding");
                            }
                            prop_assert_eq!(flow.poll_done(transfer.id), Ok(Some(transfer.length)));
                        }
                    }
                }
                if let Step::Write { tag, length } = step {
                    let seq = ring.len() as u32 + 1;
                    ring.push(Cts { addr: 0x1000 * u64::from(seq), length, rkeys: [seq, 0], tag, seq });
                }
                prop_assert!(answers.windows(2).all(|pair| pair[0] == pair[1]), "{:?}", answers);
                // Whole states take long to compare, and a difference stays.
                if number % 32 == 0 {
                    prop_assert_eq!(format!("{:?}", callers[0].0), format!("{:?}", callers[1].0));
                }
                // After a clear-to-send that is not valid nothing goes on.
                if answers.contains(&None) {
                    break;
                }
            }
            prop_assert_eq!(format!("{:?}", callers[0].0), format!("{:?}", callers[1].0));
        }
    }

    #[test]
    fn a_refusal_is_the_first_after_each_message_and_after_each_clear_to_send() {
        let mut flow = SendFlow::new(Striping::new(1, 1, false), RailWeights::from_speeds([1]));
        let cts = |seq, tag| Cts { addr: 1, length: 8, rkeys: [1, 0], tag, seq };
        let refuse =
            |flow: &mut SendFlow, written| [flow.refuse(|seq| seq <= written), flow.refuse(|seq| seq <= written)];
        let send = |flow: &mut SendFlow, ring: &[Cts], tag| {
            let read = |seq: u32| ring.get(seq as usize - 1).map(Cts::emit);
            flow.submit(tag, 0, 8, read).expect("valid clear-to-sends").is_some()
        };
        assert_eq!(refuse(&mut flow, 0), [Refusal::First, Refusal::Again]);
        assert!(!send(&mut flow, &[], 0));
        assert_eq!(refuse(&mut flow, 0), [Refusal::Again; 2], "by the general case, too");
        let ring = [cts(1, 0), cts(2, 7)];
        assert_eq!(refuse(&mut flow, 1), [Refusal::Next; 2]);
        assert!(send(&mut flow, &ring[..1], 0));
        assert_eq!(refuse(&mut flow, 1), [Refusal::First, Refusal::Again]);
        assert!(!send(&mut flow, &ring, 0), "the second one is kept");
        assert_eq!(refuse(&mut flow, 2), [Refusal::No; 2]);
        assert!(send(&mut flow, &ring, 7));
        assert_eq!(refuse(&mut flow, 2), [Refusal::First, Refusal::Again]);
    }
}
