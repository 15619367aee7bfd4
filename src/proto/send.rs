//! The sending end of a connection: takes clear-to-sends in, says what is to be posted, counts completions.

use super::cts::{Cts, CtsWords, SlotIndex};
use super::lanes::{LEARNING_BYTES, Lanes};
use super::rail_weights::RailWeights;
use super::recovery::replay::Replays;
use super::requests::{RequestId, Requests};
use super::send_requests::SendRequest;
use super::stripe::Striping;
use super::transfer::Transfer;
use super::{QpIndex, RING_SLOTS, Violation, violation};

/// Clear-to-sends among which a message looks for its tag: as many as the receiver can have written.
const WINDOW: usize = RING_SLOTS;

/// A clear-to-send that has been read from the ring. Its sequence number is its place in the window.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnclaimedCts {
    addr: u64,
    length: u32,
    rkeys: [u32; Cts::KEYS],
    tag: u32,
}

/// State of the sending side. All memory is allocated by [`SendFlow::new`].
#[derive(Debug)]
pub struct SendFlow {
    pub(super) striping: Striping,
    /// The clear-to-sends `head..next`, by sequence number modulo the window. One that a message has claimed is `None`.
    pub(super) unclaimed: Box<[Option<UnclaimedCts>; WINDOW]>,
    /// Sequence number of the oldest clear-to-send that no message has claimed.
    pub(super) head: u32,
    /// Sequence number of the clear-to-send that the peer writes next.
    pub(super) next: u32,
    /// Queue pair of the next message's first stripe.
    pub(super) qp: QpIndex,
    pub(super) weights: RailWeights,
    /// The queue pairs, where they are lanes.
    pub(super) lanes: Option<Box<Lanes>>,
    /// Whether several queue pairs of a rail are lanes.
    pub(super) may_have_lanes: bool,
    /// Number of the present poll of the completion queues, where there are several rails or lanes.
    poll: u32,
    pub(super) requests: Requests<SendRequest>,
    pub(super) replays: Replays,
    /// How often a message has found no clear-to-send of its tag.
    pub(super) refusals: u32,
    /// Sequence number of the clear-to-send that was due at the last refusal while none was kept.
    pub(super) refused_at: u32,
}

impl SendFlow {
    /// A flow that has read no clear-to-send, over rails that begin with `weights`.
    pub fn new(striping: Striping, weights: RailWeights) -> Self {
        Self {
            striping,
            unclaimed: Box::new([None; WINDOW]),
            head: 1,
            next: 1,
            qp: QpIndex(0),
            weights,
            lanes: None,
            may_have_lanes: false,
            poll: 0,
            requests: Requests::default(),
            replays: Replays::default(),
            refusals: 0,
            refused_at: 0,
        }
    }

    /// Matches a message of `length` bytes at `addr` in this process with the oldest unclaimed clear-to-send of its tag. `read` looks for the
    /// clear-to-send of a sequence number in the ring. Each is read once, so that what a peer overwrites later changes nothing.
    /// `None`: there is no such clear-to-send yet, or too many requests are outstanding.
    ///
    /// # Errors
    /// A clear-to-send is not valid.
    #[inline(always)]
    pub fn submit(
        &mut self,
        tag: u32,
        addr: u64,
        length: u32,
        mut read: impl FnMut(u32) -> Option<CtsWords>,
    ) -> Result<Option<Transfer>, Violation> {
        if self.requests.is_exhausted() {
            if self.head == self.next && read(self.next).is_none() {
                self.count_refusal();
            }
            return Ok(None);
        }
        if self.head != self.next
            && let Some((seq, cts)) = self.claim(tag)
        {
            return Ok(self.begin(seq, cts, addr, length));
        }
        while self.next.wrapping_sub(self.head) < WINDOW as u32 {
            let Some(words) = read(self.next) else { break };
            if let Some((seq, cts)) = self.handle_cts(Cts::parse(&words)?, tag)? {
                return Ok(self.begin(seq, cts, addr, length));
            }
        }
        self.count_refusal();
        Ok(None)
    }

    /// Takes in the next clear-to-send: returns it if it has the tag `wanted`, of which there is none before it, or else keeps it.
    #[inline(always)]
    fn handle_cts(&mut self, cts: Cts, wanted: u32) -> Result<Option<(u32, UnclaimedCts)>, Violation> {
        let (seq, tag) = (cts.seq, cts.tag);
        if seq != self.next {
            return Err(violation!("clear-to-send {} came where {} was due", seq, self.next));
        }
        let cts = UnclaimedCts::from(&cts);
        let is_oldest = self.head == seq;
        self.next = seq.wrapping_add(1);
        if tag != wanted {
            self.unclaimed[index(seq)] = Some(cts);
            return Ok(None);
        }
        if is_oldest {
            self.head = self.next;
        } else {
            self.unclaimed[index(seq)] = None;
        }
        Ok(Some((seq, cts)))
    }

    /// Takes the oldest clear-to-send of `tag` out of those that are kept.
    #[inline(never)]
    fn claim(&mut self, tag: u32) -> Option<(u32, UnclaimedCts)> {
        let known = self.next.wrapping_sub(self.head);
        let mut kept = (0..known).map(|i| self.head.wrapping_add(i));
        let seq = kept.find(|seq| self.unclaimed[index(*seq)].is_some_and(|cts| cts.tag == tag))?;
        let cts = self.unclaimed[index(seq)].take()?;
        while self.head != self.next && self.unclaimed[index(self.head)].is_none() {
            self.head = self.head.wrapping_add(1);
        }
        Some((seq, cts))
    }

    #[inline(always)]
    fn begin(&mut self, seq: u32, cts: UnclaimedCts, addr: u64, length: u32) -> Option<Transfer> {
        let length = length.min(cts.length);
        let stripes = self.striping.stripe_count(length);
        let entry = self.requests.allocate()?;
        entry.value.begin(seq, addr, length, stripes);
        let id = entry.id();
        if let Some(lanes) = &mut self.lanes {
            self.qp = lanes.begin(stripes, self.striping, length);
        }
        Some(self.transfer(id, SlotIndex::of(seq), cts, length, stripes))
    }

    /// The message of request `id`, which goes to the next queue pair and those after it.
    #[inline(always)]
    pub(super) fn transfer(
        &mut self,
        id: RequestId,
        slot: SlotIndex,
        cts: UnclaimedCts,
        length: u32,
        stripes: u32,
    ) -> Transfer {
        let qp = self.qp;
        if !self.striping.has_one_qp() {
            self.qp = self.striping.next_qp(qp);
        }
        Transfer {
            id,
            remote_addr: cts.addr,
            rkeys: cts.rkeys,
            length,
            slot,
            posted: cts.length,
            stripes,
            striping: self.striping,
            qp,
        }
    }

    /// Whether no request is in use.
    pub fn is_idle(&self) -> bool {
        self.requests.are_all_free()
    }

    /// The completions after this call belong to another poll than those before.
    pub fn handle_poll(&mut self) {
        self.poll = self.poll.wrapping_add(1);
    }

    /// As [`Self::handle_completion`], where there are several rails or lanes. The weights are learnt from which of them completes its
    /// stripe of a message last.
    ///
    /// # Errors
    /// As [`Self::handle_completion`].
    pub fn handle_completion_on(&mut self, id: RequestId, qp: QpIndex) -> Result<(), Violation> {
        self.handle_completion(id)?;
        let Some(request) = self.requests.get(id) else { return Ok(()) };
        let (is_last, length) = (!request.is_pending(), request.length.get());
        if let Some(lanes) = &mut self.lanes {
            lanes.handle_stripe(qp);
            if length >= LEARNING_BYTES {
                lanes.handle_completion(id, qp, self.poll, is_last);
            }
        } else if !is_last {
            request.poll.set(self.poll);
        } else if length >= LEARNING_BYTES && request.poll.get() != self.poll {
            self.weights.handle_slowest(self.striping.rail_of(qp));
        }
        Ok(())
    }

    /// Whether request `id` is complete.
    ///
    /// # Errors
    /// The id is stale.
    #[inline]
    pub fn is_done(&self, id: RequestId) -> Result<bool, Violation> {
        Ok(!self.requests.tested(id)?.value.is_pending())
    }

    /// How many messages the receiver had asked for before that of request `id`: the lower 32 bits.
    pub fn place(&self, id: RequestId) -> Option<u32> {
        self.requests.get(id).map(|request| request.seq.get().wrapping_sub(1))
    }

    /// The bytes of request `id`.
    pub fn bytes(&self, id: RequestId) -> u64 {
        self.requests.get(id).map_or(0, |request| request.length.get().into())
    }
}

impl From<&Cts> for UnclaimedCts {
    #[inline(always)]
    fn from(cts: &Cts) -> Self {
        let Cts { addr, length, rkeys, tag, .. } = *cts;
        Self { addr, length, rkeys, tag }
    }
}

/// Index in [`SendFlow::unclaimed`] of sequence number `seq`.
#[inline]
fn index(seq: u32) -> usize {
    seq as usize % WINDOW
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::imm::{Imm, LengthCode};
    use std::sync::Arc;

    fn flow() -> SendFlow {
        SendFlow::new(Striping::new(1, 1, false), RailWeights::from_speeds([1]))
    }

    fn cts(seq: u32, tag: u32, length: u32) -> Cts {
        Cts { addr: 0x1000 * u64::from(seq), length, rkeys: [9, 0], tag, seq }
    }

    /// Submits a message when the ring holds `ring`.
    fn submit(flow: &mut SendFlow, ring: &[Cts], tag: u32, length: u32) -> Option<Transfer> {
        let read = |seq| ring.iter().find(|cts| cts.seq == seq).map(Cts::emit);
        flow.submit(tag, 0, length, read).expect("valid clear-to-sends")
    }

    #[test]
    fn a_message_waits_for_its_cts() {
        let mut flow = flow();
        assert_eq!(submit(&mut flow, &[], 7, 100), None);
        let ring = [cts(1, 7, 64)];
        let transfer = submit(&mut flow, &ring, 7, 100).expect("there is a clear-to-send");
        assert_eq!((transfer.length, transfer.remote_addr), (64, 0x1000), "truncated to what the peer has room for");
        assert_eq!(submit(&mut flow, &ring, 7, 100), None, "a clear-to-send is used once");
    }

    #[test]
    fn tags_are_matched_in_order_and_do_not_block_each_other() {
        let mut flow = flow();
        let ring = [cts(1, 10, 8), cts(2, 20, 8), cts(3, 10, 8), cts(4, 10, 8)];
        let mut addr = |tag| submit(&mut flow, &ring, tag, 8).map(|t| t.remote_addr);
        assert_eq!(addr(20), Some(0x2000));
        assert_eq!(addr(20), None);
        assert_eq!(addr(10), Some(0x1000));
        assert_eq!(addr(10), Some(0x3000));
        assert_eq!(addr(10), Some(0x4000));
        assert_eq!(addr(10), None);
    }

    #[test]
    fn a_message_has_the_place_in_which_the_receiver_has_asked_for_it() {
        let mut flow = flow();
        let ring = [cts(1, 10, 8), cts(2, 20, 8), cts(3, 10, 8)];
        let ids = [20, 10, 10].map(|tag| submit(&mut flow, &ring, tag, 8).expect("cleared").id);
        assert_eq!(ids.map(|id| flow.place(id)), [Some(1), Some(0), Some(2)]);
        flow.handle_completion(ids[0]).expect("one stripe");
        flow.poll_done(ids[0]).expect("complete");
        assert_eq!(flow.place(ids[0]), None, "it is no more");
    }

    #[test]
    fn a_tag_behind_the_window_waits() {
        let mut flow = flow();
        let window = WINDOW as u32;
        let mut ring: Vec<_> = (1..=window).map(|seq| cts(seq, 10, 8)).collect();
        ring.push(cts(window + 1, 20, 8));
        assert_eq!(submit(&mut flow, &ring, 20, 8), None);
        assert!(submit(&mut flow, &ring, 10, 8).is_some());
        assert!(submit(&mut flow, &ring, 20, 8).is_some());
    }

    #[test]
    fn a_cts_out_of_order_is_a_violation() {
        let mut flow = flow();
        assert!(flow.submit(0, 0, 8, |_| Some(cts(2, 0, 0).emit())).is_err());
    }

    #[test]
    fn a_completion_of_no_outstanding_request_is_a_violation() {
        let mut flow = flow();
        let id = submit(&mut flow, &[cts(1, 0, 8)], 0, 8).expect("there is a clear-to-send").id;
        assert_eq!(flow.poll_done(id), Ok(None));
        assert_eq!(flow.handle_completion(id), Ok(()));
        assert!(flow.handle_completion(id).is_err(), "twice");
        assert_eq!(flow.poll_done(id), Ok(Some(8)));
        assert!(flow.handle_completion(id).is_err(), "after the end");
        assert!(flow.poll_done(id).is_err(), "tested after the end");
    }

    #[test]
    fn a_length_that_fits_no_immediate_travels_in_two() {
        let mut flow = flow();
        let long = Imm::EXPLICIT_LIMIT + 0x2_0003;
        let ring = [cts(1, 0, long + 1), cts(2, 0, long)];
        let partial = submit(&mut flow, &ring, 0, long).expect("clear-to-send 1");
        let (_, imms) = partial.stripes(|qp| flow.weight_of(qp)).next().expect("one stripe");
        assert_eq!(imms.first.length_code(), LengthCode::Low(3));
        assert_eq!(imms.second.map(|i| i.length_code()), Some(LengthCode::High((long >> 16) as u16)));
        let full = submit(&mut flow, &ring, 0, long).expect("clear-to-send 2");
        let (_, imms) = full.stripes(|qp| flow.weight_of(qp)).next().expect("one stripe");
        assert_eq!((imms.first.length_code(), imms.second), (LengthCode::Full, None));
    }

    #[test]
    fn a_rail_that_completes_last_gets_less() {
        let mut flow = SendFlow::new(Striping::new(2, 1, false), RailWeights::from_speeds([1, 1]));
        let mut seq = 0;
        // The lengths of a message's stripes on qps 0 and 1, which complete in this order, in one poll or in two.
        let mut message = |polls: u32, length: u32| {
            seq += 1;
            let transfer = submit(&mut flow, &[cts(seq, 0, length)], 0, length).expect("there is a clear-to-send");
            let stripes: Vec<_> = transfer.stripes(|qp| flow.weight_of(qp)).map(|(stripe, _)| stripe).collect();
            let lengths = [0, 1].map(|qp| stripes.iter().find(|s| s.qp == QpIndex(qp)).expect("a stripe").length);
            for qp in [0, 1] {
                flow.handle_completion_on(transfer.id, QpIndex(qp)).expect("outstanding");
                (1..polls).for_each(|_| flow.handle_poll());
            }
            flow.handle_poll();
            assert_eq!(flow.poll_done(transfer.id), Ok(Some(length)));
            lengths
        };
        (0..50).for_each(|_| assert_eq!(message(1, 1 << 20), [1 << 19; 2], "no order can be seen"));
        (0..50).for_each(|_| assert_eq!(message(2, 48 << 10), [24 << 10; 2], "a short one tells nothing"));
        assert_eq!(message(2, 1 << 20), [1 << 19; 2], "nothing is known yet");
        let later: Vec<_> = (0..50).map(|_| message(2, 1 << 20)[1]).collect();
        assert!(later.is_sorted_by(|a, b| a > b) && later[49] < 450_000, "{later:?}");
    }

    #[test]
    fn an_entry_whose_request_has_ended_is_refused() {
        let mut flow = flow();
        let id = submit(&mut flow, &[cts(1, 7, 100)], 7, 64).expect("cleared").id;
        assert_eq!((flow.bytes(id), flow.unacknowledged()), (64, Some((1, 64))));
        let entries = Arc::clone(flow.requests.entries());
        let entry = &entries[id.index()];
        assert!(matches!(flow.finish(entry), Ok(None)), "it is not acknowledged");
        flow.handle_completion(id).expect("one stripe");
        assert!(matches!(flow.finish(entry), Ok(Some(64))));
        assert!(flow.finish(entry).is_err() && flow.finish(&entries[200]).is_err());
        assert_eq!(flow.unacknowledged(), None);
    }

    /// One immediate tells all lengths below 2^22 less the codes, and that of the clear-to-send.
    #[test]
    fn the_least_length_that_no_immediate_can_tell_is_told_as_the_whole_buffer_or_in_two_halves() {
        let first = |room: u32, length: u32| {
            let transfer = submit(&mut flow(), &[cts(1, 7, room)], 7, length).expect("cleared");
            let mut stripes = transfer.stripes(|_| 1);
            stripes.next().map(|(_, immediates)| (immediates.first.length_code(), immediates.second.is_some()))
        };
        let limit = Imm::EXPLICIT_LIMIT;
        assert_eq!(first(limit, limit - 1), Some((LengthCode::Bytes(limit - 1), false)));
        assert_eq!(first(limit, limit), Some((LengthCode::Full, false)));
        assert_eq!(first(limit + 1, limit), Some((LengthCode::Low(limit as u16), true)));
    }
}
