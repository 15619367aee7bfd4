//! The receiving end of a connection: takes buffers in, says which clear-to-sends are to be written, counts arrivals.

use super::arrival::Arrival;
use super::cts::{Cts, CtsWords, KeysByRail, SlotIndex};
use super::cts_shadow::CtsShadow;
use super::cts_window::CtsWindow;
use super::imm::Imm;
use super::receives::Receives;
use super::recovery::rail_mask::RailMask;
use super::recv_requests::RecvRequest;
use super::requests::{Entry, RequestId, Requests};
use super::stripe::Striping;
use super::{MAX_GROUP, MAX_RAILS, RING_SLOTS, Violation, violation};
use std::ops::Range;

/// The clear-to-send of a buffer of more than this many bytes is sent at once; others may be coalesced.
pub(super) const COALESCE_MAX_BYTES: u32 = 16 << 10;

/// One buffer of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer<'a, K = [u32; MAX_RAILS]> {
    /// Its address in this process.
    pub addr: u64,
    /// Its size in bytes.
    pub length: u32,
    /// Keys of its memory.
    pub rkeys: &'a K,
    /// The tag that its message has to carry.
    pub tag: u32,
}

/// State of the receiving end. All memory is allocated by [`RecvFlow::new`].
#[derive(Debug)]
pub struct RecvFlow {
    pub(super) striping: Striping,
    pub(super) shadow: CtsShadow,
    /// The message of each slot.
    pub(super) arrivals: Box<[Arrival; RING_SLOTS]>,
    pub(super) window: CtsWindow,
    pub(super) receives: Receives,
    pub(super) requests: Requests<RecvRequest>,
    /// The bytes of each message of the group that was complete last.
    pub(super) done: [u32; MAX_GROUP],
    /// The rails of the connection.
    pub(super) all_rails: RailMask,
    /// By slot, the rails over which messages have come that had arrived before the last account.
    pub(super) earlier_rails: Vec<RailMask>,
}

impl RecvFlow {
    /// A flow with nothing posted.
    pub fn new(striping: Striping) -> Self {
        let receives = Receives::default();
        let mut window = CtsWindow::new();
        window.set_limit(receives.most_messages());
        Self {
            striping,
            shadow: CtsShadow::new(striping.rails()),
            arrivals: Box::new([Arrival::new(RequestId::from_bits(0), 0, 0); RING_SLOTS]),
            window,
            receives,
            requests: Requests::default(),
            done: [0; MAX_GROUP],
            all_rails: striping.rail_numbers(),
            earlier_rails: Vec::new(),
        }
    }

    /// Posts a grouped receive of `count` buffers, 1 to [`MAX_GROUP`]; `buffer` returns each. `None`: too much is outstanding,
    /// to be tried again.
    ///
    /// # Errors
    /// The group has no or too many members, or `buffer` returns an error. Nothing is posted then.
    pub fn post<'a, E: From<Violation>, K: KeysByRail + 'a>(
        &mut self,
        count: usize,
        buffer: impl FnMut(usize) -> Result<Buffer<'a, K>, E>,
    ) -> Result<Option<RequestId>, E> {
        self.begin(count, buffer, |_| ())
    }

    /// As [`Self::post`]; if it is posted, `begun` is called with the request's entry.
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn begin<'a, E: From<Violation>, K: KeysByRail + 'a>(
        &mut self,
        count: usize,
        mut buffer: impl FnMut(usize) -> Result<Buffer<'a, K>, E>,
        begun: impl FnOnce(&Entry<RecvRequest>),
    ) -> Result<Option<RequestId>, E> {
        if !(1..=MAX_GROUP).contains(&count) {
            return Err(violation!("a receive of {} messages; 1 to {MAX_GROUP} are possible", { count }).into());
        }
        if !self.window.has_space(count) {
            return Ok(None);
        }
        let Self { requests, window, shadow, arrivals, .. } = self;
        let Some(entry) = requests.allocate() else { return Ok(None) };
        let id = entry.id();
        entry.value.begin(count as u8);
        let mut longest = 0;
        for index in 0..count {
            let Buffer { addr, length, rkeys, tag } = match buffer(index) {
                Ok(buffer) => buffer,
                Err(e) => {
                    self.withdraw(id);
                    return Err(e);
                }
            };
            let seq = window.next().wrapping_add(index as u32);
            let slot = SlotIndex::of(seq).index();
            let cts = Cts { addr, length, rkeys: [rkeys.of_rail(0), rkeys.of_rail(1)], tag, seq };
            shadow.put(slot, &cts, || [rkeys.of_rail(2), rkeys.of_rail(3)]);
            arrivals[slot] = Arrival::new(id, index as u8, length);
            longest = longest.max(length);
        }
        window.push(count, longest > COALESCE_MAX_BYTES);
        begun(entry);
        if longest > Imm::EXPLICIT_LIMIT {
            self.expect_two_immediates();
        }
        Ok(Some(id))
    }

    /// Ends a request of which nothing has been posted.
    #[cold]
    #[inline(never)]
    fn withdraw(&mut self, id: RequestId) {
        if let Some(request) = self.requests.get(id) {
            request.end();
        }
        self.requests.release_id(id);
    }

    /// Whether no request is in use.
    pub fn is_idle(&self) -> bool {
        self.requests.are_all_free()
    }

    /// Messages that are expected and have not arrived.
    pub fn outstanding(&self) -> u32 {
        self.window.missing()
    }

    /// Whether clear-to-sends are to be written now.
    #[inline(always)]
    pub fn is_cts_due(&self) -> bool {
        self.window.is_due()
    }

    /// Whether some wait for others, so that [`Self::handle_empty_poll`] has something to do.
    #[inline(always)]
    pub fn has_waiting_cts(&self) -> bool {
        self.window.waiting() != 0
    }

    /// The slots of the sender's ring that are to be written now: contiguous, at most `limit`, which is not 0. To be called as long as
    /// [`Self::is_cts_due`].
    #[inline(always)]
    pub fn take_cts(&mut self, limit: u32) -> Range<usize> {
        self.window.take(limit)
    }

    /// As [`Self::take_cts`], if some are due.
    #[cfg(any(test, fuzzing))]
    pub(super) fn poll_cts(&mut self, limit: u32) -> Option<Range<usize>> {
        self.is_cts_due().then(|| self.take_cts(limit))
    }

    /// What is to be written into `slots`, on a connection of one or two rails.
    #[inline]
    pub fn encoded_cts_narrow(&self, slots: Range<usize>) -> &[CtsWords] {
        self.shadow.narrow(slots)
    }

    /// What is to be written into `slots`: one or two halves for each.
    pub fn encoded_cts(&self, slots: Range<usize>) -> &[CtsWords] {
        self.shadow.encoded(slots)
    }

    /// The rails over which the latest message into the buffer at `addr` has come, as a bit mask; all rails, if none of the last
    /// [`RING_SLOTS`] messages has. Looks at every slot.
    pub fn rails_of(&self, addr: u64) -> u32 {
        let all = self.all_rails.0.into();
        if self.all_rails.count() == 1 {
            return all;
        }
        let mut slots = (1..=RING_SLOTS as u32).map(|back| SlotIndex::of(self.window.next().wrapping_sub(back)));
        // Messages of no bytes have any address.
        let is_full = |arrival: &Arrival| !arrival.is_pending() && arrival.length > 0;
        let is_it = |slot: &SlotIndex| is_full(&self.arrivals[slot.index()]) && self.shadow.address(*slot) == addr;
        let Some(slot) = slots.find(is_it) else { return all };
        self.rails_of_slot(slot.index()).0.into()
    }

    /// A poll of the completion queue found nothing; request `tested` is what NCCL tests.
    #[inline]
    pub fn handle_empty_poll(&mut self, tested: RequestId) {
        let Self { window, arrivals, .. } = self;
        window.handle_empty_poll(|slot| arrivals[slot].request == tested);
    }

    /// Whether request `id` is complete.
    ///
    /// # Errors
    /// The id is stale.
    #[inline]
    pub fn is_done(&self, id: RequestId) -> Result<bool, Violation> {
        Ok(!self.requests.tested(id)?.value.is_pending())
    }

    /// The number of messages of request `id`, and the bytes of those that have arrived.
    pub fn messages(&self, id: RequestId) -> (u8, u64) {
        let Some(request) = self.requests.get(id) else { return (0, 0) };
        let lengths = request.lengths.iter().take(request.count.get().into());
        (request.count.get(), lengths.map(|length| u64::from(length.get())).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::imm::LengthCode;
    use crate::proto::{MAX_REQUESTS, QpIndex};
    use std::sync::Arc;

    fn one_qp() -> Striping {
        Striping::new(1, 1, false)
    }

    fn buffer(length: u32) -> Buffer<'static> {
        Buffer { addr: 0x1000, length, rkeys: &[1, 0, 0, 0], tag: 0 }
    }

    fn post(flow: &mut RecvFlow, buffers: &[Buffer<'_>]) -> Result<Option<RequestId>, Violation> {
        flow.post(buffers.len(), |i| Ok(buffers[i]))
    }

    fn flow_with(lengths: &[u32]) -> (RecvFlow, Vec<RequestId>) {
        let mut flow = RecvFlow::new(one_qp());
        let ids = lengths.iter().map(|n| post(&mut flow, &[buffer(*n)]).expect("valid").expect("space")).collect();
        while flow.poll_cts(8).is_some() {}
        (flow, ids)
    }

    fn imm(seq: u32, extent: LengthCode) -> Imm {
        Imm::new(SlotIndex::of(seq), extent)
    }

    #[test]
    fn a_grouped_receive_completes_with_its_last_message() {
        let mut flow = RecvFlow::new(one_qp());
        let id = post(&mut flow, &[buffer(100), buffer(200), buffer(0)]).expect("valid").expect("space");
        assert_eq!(flow.poll_cts(8), Some(1..4), "sequence numbers start with 1");
        for (seq, n) in [(3, 0), (1, 99), (2, 200)] {
            assert_eq!(flow.poll_done(id), Ok(None));
            flow.handle_immediate(QpIndex(0), imm(seq, LengthCode::Bytes(n))).expect("outstanding");
        }
        assert_eq!(flow.poll_done(id), Ok(Some(&[99, 200, 0][..])));
        assert!(flow.poll_done(id).is_err());
    }

    #[test]
    fn an_immediate_that_fits_no_message_is_a_violation() {
        let bad = |imms: &[(u8, Imm)]| {
            let (mut flow, _) = flow_with(&[64]);
            imms.iter()
                .map(|(qp, imm)| flow.handle_immediate(QpIndex(*qp), *imm))
                .last()
                .expect("at least one")
                .is_err()
        };
        assert!(bad(&[(0, imm(1, LengthCode::Bytes(65)))]), "longer than the buffer");
        assert!(bad(&[(0, imm(2, LengthCode::Bytes(1)))]), "nothing posted there");
        assert!(bad(&[(0, imm(0, LengthCode::Bytes(1)))]), "nothing posted before the first");
        assert!(bad(&[(0, imm(1, LengthCode::Bytes(1))), (0, imm(1, LengthCode::Bytes(1)))]), "twice");
        assert!(bad(&[(0, imm(1, LengthCode::High(0)))]), "high half first");
        assert!(bad(&[(0, imm(1, LengthCode::Low(0))), (0, imm(1, LengthCode::Low(0)))]), "low half twice");
        assert!(bad(&[(0, imm(1, LengthCode::Low(0))), (0, imm(1, LengthCode::High(1)))]), "65536 bytes for 64");
        assert!(bad(&[(1, imm(1, LengthCode::Stripe)), (0, imm(1, LengthCode::Full))]), "a stripe too many");
        let mut wide = RecvFlow::new(Striping::new(1, 4, true));
        post(&mut wide, &[buffer(1 << 20)]).expect("valid").expect("space");
        assert_eq!(wide.poll_cts(8), Some(1..2));
        let mut stripe = |qp| wide.handle_immediate(QpIndex(qp), imm(1, LengthCode::Stripe)).is_err();
        assert_eq!([1, 2, 3, 1].map(&mut stripe), [false, false, false, true], "twice on queue pair 1");
    }

    #[test]
    fn the_257th_request_waits() {
        let mut flow = RecvFlow::new(one_qp());
        while flow.receives.more().is_some() {
            flow.handle_more_receives();
        }
        for _ in 0..MAX_REQUESTS {
            assert!(post(&mut flow, &[buffer(1)]).expect("valid").is_some());
        }
        assert_eq!(post(&mut flow, &[buffer(1)]), Ok(None));
        assert!(post(&mut flow, &[]).is_err());
        assert!(post(&mut flow, &[buffer(1); 9]).is_err());
    }

    #[test]
    fn a_held_back_cts_is_written_when_its_request_is_tested() {
        let (mut flow, mut ids) = flow_with(&[8, 8]);
        ids.push(post(&mut flow, &[buffer(8)]).expect("valid").expect("space"));
        assert_eq!(flow.poll_cts(8), None);
        for sent in [ids[0], ids[1]] {
            flow.handle_empty_poll(sent);
            assert_eq!(flow.poll_cts(8), None, "the sender has that one");
        }
        flow.handle_empty_poll(ids[2]);
        assert_eq!(flow.poll_cts(8), Some(3..4));
    }

    #[test]
    fn data_for_a_slot_whose_cts_was_not_sent_is_a_violation() {
        let mut flow = flow_with(&[8, 8]).0;
        post(&mut flow, &[buffer(8)]).expect("valid").expect("space");
        assert_eq!(flow.poll_cts(8), None);
        assert!(flow.handle_immediate(QpIndex(0), imm(3, LengthCode::Full)).is_err());
    }

    #[test]
    fn the_cts_of_a_large_receive_is_written_at_once() {
        let mut flow = flow_with(&[8, 8]).0;
        post(&mut flow, &[buffer(COALESCE_MAX_BYTES + 1)]).expect("valid").expect("space");
        assert!(flow.poll_cts(8).is_some());
    }

    #[test]
    fn the_rails_of_a_buffer_are_those_of_its_latest_message() {
        let mut flow = RecvFlow::new(Striping::new(3, 2, false));
        let at = |addr, length| Buffer { addr, ..buffer(length) };
        let post = |flow: &mut RecvFlow, addr, length| {
            post(flow, &[at(addr, length)]).expect("valid").expect("space");
            while flow.poll_cts(8).is_some() {}
        };
        post(&mut flow, 0x1000, 100);
        post(&mut flow, 0x2000, 20_000);
        assert_eq!(flow.rails_of(0x1000), 0b111, "nothing has arrived there");
        flow.handle_immediate(QpIndex(4), imm(1, LengthCode::Full)).expect("outstanding");
        flow.handle_immediate(QpIndex(5), imm(2, LengthCode::Full)).expect("outstanding");
        flow.handle_immediate(QpIndex(1), imm(2, LengthCode::Stripe)).expect("outstanding");
        assert_eq!(flow.rails_of(0x2000), 0b111, "a stripe is missing");
        flow.handle_immediate(QpIndex(0), imm(2, LengthCode::Stripe)).expect("outstanding");
        assert_eq!((flow.rails_of(0x1000), flow.rails_of(0x2000)), (0b010, 0b111));
        post(&mut flow, 0x1000, 100);
        flow.handle_immediate(QpIndex(2), imm(3, LengthCode::Full)).expect("outstanding");
        assert_eq!(flow.rails_of(0x1000), 0b100, "the latest message counts");
        post(&mut flow, 0x1000, 0);
        flow.handle_immediate(QpIndex(0), imm(4, LengthCode::Full)).expect("outstanding");
        assert_eq!(flow.rails_of(0x1000), 0b100, "one of no bytes has put nothing there");
    }

    #[test]
    fn what_a_connection_has_outstanding_is_told() {
        let mut flow = RecvFlow::new(one_qp());
        assert!(flow.is_idle() && !flow.has_waiting_cts());
        let id = post(&mut flow, &[buffer(100), buffer(200)]).expect("valid").expect("space");
        assert!(!flow.is_idle() && flow.has_waiting_cts());
        let slots = flow.poll_cts(8).expect("due");
        assert!(!flow.has_waiting_cts());
        assert_eq!(flow.encoded_cts_narrow(slots.clone()), flow.encoded_cts(slots));
        assert_eq!((flow.messages(id), flow.oldest_missing()), ((2, 0), 1));
        flow.handle_immediate(QpIndex(0), imm(1, LengthCode::Bytes(7))).expect("outstanding");
        assert_eq!((flow.messages(id), flow.oldest_missing()), ((2, 7), 2));
        assert!(!flow.complete_whole(QpIndex(0), imm(2, LengthCode::Stripe)), "that is another case");
        assert!(flow.complete_whole(QpIndex(0), imm(2, LengthCode::Bytes(200))));
        assert_eq!(flow.messages(id), (2, 207));
        assert_eq!(flow.poll_done(id), Ok(Some(&[7, 200][..])));
        assert!(flow.is_idle());
        assert_eq!(flow.messages(id), (0, 0));
    }

    #[test]
    fn an_entry_whose_request_has_ended_is_refused_with_its_id() {
        let (mut flow, ids) = flow_with(&[100]);
        let entries = Arc::clone(flow.entries());
        let entry = &entries[ids[0].index()];
        assert_eq!(entry.id(), ids[0]);
        flow.handle_immediate(QpIndex(0), imm(1, LengthCode::Bytes(100))).expect("outstanding");
        assert!(flow.finish(entry).expect("live").is_some());
        let refusal = flow.finish(entry).expect_err("it has ended");
        assert_eq!(refusal, flow.is_done(ids[0]).expect_err("it has ended"));
        // One that has never been in use.
        assert!(flow.finish(&entries[MAX_REQUESTS - 1]).is_err());
    }
}
