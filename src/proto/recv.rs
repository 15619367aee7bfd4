//! The receiving side of a connection: buffers in, clear-to-sends out, completions by identity.

use super::arrival::Arrival;
use super::requests::{RequestId, Requests};
use super::shadow::Shadow;
use super::stripe::Striping;
use super::wire::{Extent, Imm, Place, Slot, SlotWords};
use super::{Lane, MAX_GROUP, MAX_RAILS, RING_SLOTS, Violation, violation};
use std::ops::Range;

/// Buffers up to this many bytes may be announced together with later ones.
const COALESCE_MAX_BYTES: u32 = 16 << 10;
/// Fruitless polls after which everything is announced.
const PATIENCE_POLLS: u32 = 32;

/// One buffer of a receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer<'a> {
    /// Its address in this process.
    pub addr: u64,
    /// Its size in bytes.
    pub length: u32,
    /// Keys of its memory region, one per rail.
    pub rkeys: &'a [u32; MAX_RAILS],
    /// The tag that its message has to carry.
    pub tag: u32,
}

/// A receive: the number of its messages, how many of them are missing, and the bytes of the others.
#[derive(Debug, Clone, Copy, Default)]
struct Incoming {
    count: u8,
    pending: u8,
    lengths: [u32; MAX_GROUP],
}

/// State of the receiving side. All memory is allocated by [`RecvFlow::new`].
///
/// Announcements are coalesced as TCP does window updates: small buffers wait until they are at least as many as the
/// announced ones that are still empty, so that a sender in full flow gets one write per several messages and never
/// runs dry. A receive that nothing else is in front of is announced at once.
///
/// So the third of three small receives waits while the sender has two clear-to-sends in hand. Three things end that. The
/// first of the two messages: where the three are taken in order, the third would have had to wait for it in any case, and the
/// sender misses at most the time of one message there and one clear-to-send back. A test of the third itself that finds nothing
/// else: somebody waits for just this one, and the others may be meant for somebody else. Or else a bounded number of fruitless
/// polls.
#[derive(Debug)]
pub struct RecvFlow {
    striping: Striping,
    /// What is written into the sender's ring.
    ring: Shadow,
    arrivals: Box<[Arrival; RING_SLOTS]>,
    /// Oldest slot whose message has not arrived.
    oldest: u32,
    /// First slot that the sender has not been told of.
    unannounced: u32,
    /// The slot that the next buffer gets.
    next: u32,
    /// Announced slots whose message has not arrived.
    open: u32,
    urgent: bool,
    fruitless_polls: u32,
    requests: Requests<Incoming>,
}

impl RecvFlow {
    /// A flow with nothing posted.
    pub fn new(striping: Striping) -> Self {
        Self {
            striping,
            ring: Shadow::new(striping.rails()),
            arrivals: Box::new([Arrival::new(RequestId::from_bits(0), 0, 0); RING_SLOTS]),
            oldest: 1,
            unannounced: 1,
            next: 1,
            open: 0,
            urgent: false,
            fruitless_polls: 0,
            requests: Requests::default(),
        }
    }

    /// Accepts a grouped receive of `count` buffers, 1 to [`MAX_GROUP`]; `buffer` tells each. `None`: too much is
    /// outstanding, try later.
    ///
    /// # Errors
    /// The group has no or too many members, or `buffer` says so; nothing is posted then.
    #[inline(always)]
    pub fn post<'a, E: From<Violation>>(
        &mut self,
        count: usize,
        mut buffer: impl FnMut(usize) -> Result<Buffer<'a>, E>,
    ) -> Result<Option<RequestId>, E> {
        if !(1..=MAX_GROUP).contains(&count) {
            return Err(violation!("a receive of {} messages; 1 to {MAX_GROUP} are possible", { count }).into());
        }
        if self.next.wrapping_sub(self.oldest) as usize + count > RING_SLOTS {
            return Ok(None);
        }
        let Some((id, request)) = self.requests.allocate() else { return Ok(None) };
        (request.count, request.pending) = (count as u8, count as u8);
        let mut large = false;
        for index in 0..count {
            let Buffer { addr, length, rkeys, tag } = match buffer(index) {
                Ok(buffer) => buffer,
                Err(e) => {
                    self.withdraw(id);
                    return Err(e);
                }
            };
            let seq = self.next.wrapping_add(index as u32);
            let place = Place::of(seq).index();
            let [key, second, further @ ..] = *rkeys;
            let group = (index as u8, count as u8);
            self.ring.put(place, &Slot { addr, length, rkeys: [key, second], tag, group, seq }, further);
            self.arrivals[place] = Arrival::new(id, index as u8, length);
            large |= length > COALESCE_MAX_BYTES;
        }
        self.next = self.next.wrapping_add(count as u32);
        self.urgent |= large;
        Ok(Some(id))
    }

    /// The receive of which this is the request is not going to be.
    #[cold]
    #[inline(never)]
    fn withdraw(&mut self, id: RequestId) {
        // A live id, so there is no error.
        let _ = self.requests.release_if(id, |_| true);
    }

    /// Messages that are expected and have not arrived.
    pub fn outstanding(&self) -> u32 {
        self.next.wrapping_sub(self.unannounced) + self.open
    }

    /// Whether [`Self::poll_announcement`] has anything to say.
    #[inline(always)]
    pub fn is_announcement_due(&self) -> bool {
        let waiting = self.next.wrapping_sub(self.unannounced);
        waiting != 0 && (waiting >= self.open || self.urgent)
    }

    /// The places to be written into the sender's ring now: contiguous, at most `limit`. Call until `None`.
    #[inline(always)]
    pub fn poll_announcement(&mut self, limit: u32) -> Option<Range<usize>> {
        if limit == 0 || !self.is_announcement_due() {
            return None;
        }
        let waiting = self.next.wrapping_sub(self.unannounced);
        let start = Place::of(self.unannounced).index();
        let count = waiting.min(limit).min((RING_SLOTS - start) as u32);
        self.unannounced = self.unannounced.wrapping_add(count);
        self.open += count;
        if self.unannounced == self.next {
            self.urgent = false;
            self.fruitless_polls = 0;
        } else {
            self.urgent = true;
        }
        Some(start..start + count as usize)
    }

    /// The encoded slots behind [`Self::poll_announcement`], where there are one or two rails.
    #[inline]
    pub fn encoded_narrow(&self, places: Range<usize>) -> &[SlotWords] {
        self.ring.narrow(places)
    }

    /// The encoded slots behind [`Self::poll_announcement`]: one or two halves each.
    pub fn encoded(&self, places: Range<usize>) -> &[SlotWords] {
        self.ring.any(places)
    }

    /// The rails over which the latest message into the buffer at `addr` has come, as a bit mask; all, if it is too long
    /// ago. Takes its time.
    pub fn rails_of(&self, addr: u64) -> u32 {
        let all = (1 << self.striping.rails()) - 1;
        if all == 1 {
            return all;
        }
        let mut places = (1..=RING_SLOTS as u32).map(|back| Place::of(self.next.wrapping_sub(back)));
        // Messages of no bytes have any address.
        let is_full = |arrival: &Arrival| !arrival.pending && arrival.length > 0;
        let is_it = |place: &Place| is_full(&self.arrivals[place.index()]) && self.ring.address(*place) == addr;
        let Some(place) = places.find(is_it) else { return all };
        let arrived = self.arrivals[place.index()].lanes;
        let lanes = (0..self.striping.lanes()).filter(|lane| arrived & 1 << lane != 0);
        lanes.fold(0, |rails, lane| rails | 1 << self.striping.rail_of(Lane(lane)))
    }

    /// A poll of the completion queue found nothing; request `awaited` is what was asked for.
    #[inline]
    pub fn handle_fruitless_poll(&mut self, awaited: RequestId) {
        self.fruitless_polls += 1;
        if self.fruitless_polls >= PATIENCE_POLLS || self.is_unannounced(awaited) {
            self.fruitless_polls = 0;
            self.urgent |= self.next != self.unannounced;
        }
    }

    /// Whether a buffer of request `id` has not been announced.
    #[inline]
    fn is_unannounced(&self, id: RequestId) -> bool {
        let waiting = self.next.wrapping_sub(self.unannounced);
        let place = |i: u32| Place::of(self.unannounced.wrapping_add(i)).index();
        (0..waiting).any(|i| self.arrivals[place(i)].request == id)
    }

    /// An immediate has arrived on `lane`, and with it all data before it on that lane.
    ///
    /// # Errors
    /// It fits no message that may arrive now. The connection cannot go on.
    #[inline(always)]
    pub fn handle_immediate(&mut self, lane: Lane, imm: Imm) -> Result<(), Violation> {
        let place = imm.place().index();
        if !self.is_announced(place) {
            return Err(violation!("data for slot place {}, which has not been announced", place));
        }
        let arrival = &mut self.arrivals[place];
        if !arrival.pending {
            return Err(violation!("data for slot place {}, where nothing is posted", place));
        }
        if arrival.lanes & 1 << lane.0 != 0 {
            return Err(violation!("a stripe arrived twice on queue pair {}", lane.0));
        }
        let Extent::Bytes(length) = imm.extent() else { return self.handle_coded(lane, imm) };
        arrival.set_length(length)?;
        self.handle_stripe(lane, place, length)
    }

    /// The same for an immediate that does not tell the length in bytes.
    #[inline(never)]
    fn handle_coded(&mut self, lane: Lane, imm: Imm) -> Result<(), Violation> {
        let place = imm.place().index();
        let arrival = &mut self.arrivals[place];
        if !arrival.accept(imm.extent())? {
            return Ok(());
        }
        if !arrival.is_length_known() {
            arrival.count_stripe(lane);
            return Ok(());
        }
        let length = arrival.length;
        self.handle_stripe(lane, place, length)
    }

    /// A stripe has arrived whole, of a message of `length` bytes.
    #[inline(always)]
    fn handle_stripe(&mut self, lane: Lane, place: usize, length: u32) -> Result<(), Violation> {
        let expected = self.striping.count(length);
        let arrival = &mut self.arrivals[place];
        let arrived = u32::from(arrival.count_stripe(lane));
        if arrived < expected {
            return Ok(());
        }
        if arrived > expected {
            return Err(violation!("more than {expected} stripes for a message of {length} bytes"));
        }
        arrival.pending = false;
        let (id, index) = (arrival.request, arrival.index);
        self.complete(id, index, length)
    }

    /// Whether request `id` is complete.
    ///
    /// # Errors
    /// The id is stale.
    #[inline]
    pub fn is_done(&self, id: RequestId) -> Result<bool, Violation> {
        self.requests.check(id, |request| request.pending == 0)
    }

    /// The bytes of each message, in the order of the receive's buffers, if `id` is complete. The id is stale afterwards.
    ///
    /// # Errors
    /// The id is stale.
    #[inline]
    pub fn poll_done(&mut self, id: RequestId) -> Result<Option<&[u32]>, Violation> {
        let done = self.requests.release_if(id, |request| request.pending == 0)?;
        Ok(done.map(|request| &request.lengths[..usize::from(request.count).min(MAX_GROUP)]))
    }

    /// Whether the slot that now has `place` has been announced. Between `oldest` and `unannounced` a place is unique.
    #[inline]
    fn is_announced(&self, place: usize) -> bool {
        let distance = place.wrapping_sub(Place::of(self.oldest).index()) % RING_SLOTS;
        distance < self.unannounced.wrapping_sub(self.oldest) as usize
    }

    #[inline(always)]
    fn complete(&mut self, id: RequestId, index: u8, length: u32) -> Result<(), Violation> {
        let request =
            self.requests.get_mut(id).ok_or_else(|| violation!("a slot belongs to {:?}, which has ended", id))?;
        request.lengths[usize::from(index) % MAX_GROUP] = length;
        request.pending -= 1;
        self.open -= 1;
        while self.oldest != self.unannounced && !self.arrivals[Place::of(self.oldest).index()].pending {
            self.oldest = self.oldest.wrapping_add(1);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proto::MAX_REQUESTS;

    fn one_lane() -> Striping {
        Striping::new(1, 1, false)
    }

    fn buffer(length: u32) -> Buffer<'static> {
        Buffer { addr: 0x1000, length, rkeys: &[1, 0, 0, 0], tag: 0 }
    }

    fn post(flow: &mut RecvFlow, buffers: &[Buffer<'_>]) -> Result<Option<RequestId>, Violation> {
        flow.post(buffers.len(), |i| Ok(buffers[i]))
    }

    fn flow_with(lengths: &[u32]) -> (RecvFlow, Vec<RequestId>) {
        let mut flow = RecvFlow::new(one_lane());
        let ids = lengths.iter().map(|n| post(&mut flow, &[buffer(*n)]).expect("valid").expect("room")).collect();
        while flow.poll_announcement(8).is_some() {}
        (flow, ids)
    }

    fn imm(seq: u32, extent: Extent) -> Imm {
        Imm::new(Place::of(seq), extent)
    }

    #[test]
    fn a_grouped_receive_completes_with_its_last_message() {
        let mut flow = RecvFlow::new(one_lane());
        let id = post(&mut flow, &[buffer(100), buffer(200), buffer(0)]).expect("valid").expect("room");
        assert_eq!(flow.poll_announcement(8), Some(1..4), "sequence numbers start with 1");
        for (seq, n) in [(3, 0), (1, 99), (2, 200)] {
            assert_eq!(flow.poll_done(id), Ok(None));
            flow.handle_immediate(Lane(0), imm(seq, Extent::Bytes(n))).expect("outstanding");
        }
        assert_eq!(flow.poll_done(id), Ok(Some(&[99, 200, 0][..])));
        assert!(flow.poll_done(id).is_err());
    }

    #[test]
    fn what_does_not_fit_is_a_violation() {
        let bad = |imms: &[(u8, Imm)]| {
            let (mut flow, _) = flow_with(&[64]);
            imms.iter()
                .map(|(lane, imm)| flow.handle_immediate(Lane(*lane), *imm))
                .last()
                .expect("at least one")
                .is_err()
        };
        assert!(bad(&[(0, imm(1, Extent::Bytes(65)))]), "longer than the buffer");
        assert!(bad(&[(0, imm(2, Extent::Bytes(1)))]), "nothing posted there");
        assert!(bad(&[(0, imm(0, Extent::Bytes(1)))]), "nothing posted before the first");
        assert!(bad(&[(0, imm(1, Extent::Bytes(1))), (0, imm(1, Extent::Bytes(1)))]), "twice");
        assert!(bad(&[(0, imm(1, Extent::High(0)))]), "high half first");
        assert!(bad(&[(0, imm(1, Extent::Low(0))), (0, imm(1, Extent::Low(0)))]), "low half twice");
        assert!(bad(&[(0, imm(1, Extent::Low(0))), (0, imm(1, Extent::High(1)))]), "65536 bytes for 64");
        assert!(bad(&[(1, imm(1, Extent::Stripe)), (0, imm(1, Extent::Full))]), "a stripe too many");
    }

    #[test]
    fn the_257th_request_waits() {
        let mut flow = RecvFlow::new(one_lane());
        for _ in 0..MAX_REQUESTS {
            assert!(post(&mut flow, &[buffer(1)]).expect("valid").is_some());
        }
        assert_eq!(post(&mut flow, &[buffer(1)]), Ok(None));
        assert!(post(&mut flow, &[]).is_err());
        assert!(post(&mut flow, &[buffer(1); 9]).is_err());
    }

    #[test]
    fn a_full_ring_waits_for_the_oldest_message() {
        let mut flow = RecvFlow::new(one_lane());
        let groups = RING_SLOTS / MAX_GROUP;
        let ids: Vec<_> =
            (0..groups).map(|_| post(&mut flow, &[buffer(1); 8]).expect("valid").expect("room")).collect();
        while flow.poll_announcement(8).is_some() {}
        assert_eq!(post(&mut flow, &[buffer(1)]), Ok(None));
        flow.handle_immediate(Lane(0), imm(2, Extent::Full)).expect("outstanding");
        assert_eq!(post(&mut flow, &[buffer(1)]), Ok(None), "slot 1 still holds its place");
        flow.handle_immediate(Lane(0), imm(1, Extent::Full)).expect("outstanding");
        assert!(post(&mut flow, &[buffer(1); 2]).expect("valid").is_some());
        assert_eq!(flow.poll_done(ids[0]), Ok(None));
    }

    #[test]
    fn small_receives_are_announced_together_and_none_is_forgotten() {
        let mut flow = RecvFlow::new(one_lane());
        let announced = |flow: &mut RecvFlow| {
            post(flow, &[buffer(8)]).expect("valid").expect("room");
            flow.poll_announcement(8).map(|r| r.len())
        };
        let runs: Vec<_> = (0..8).map(|_| announced(&mut flow)).collect();
        assert_eq!(runs, [Some(1), Some(1), None, Some(2), None, None, None, Some(4)]);
        assert_eq!(announced(&mut flow), None);
        let announced_long_ago = flow.arrivals[1].request;
        for _ in 0..PATIENCE_POLLS {
            assert_eq!(flow.poll_announcement(8), None);
            flow.handle_fruitless_poll(announced_long_ago);
        }
        assert_eq!(flow.poll_announcement(8).map(|r| r.len()), Some(1));
    }

    #[test]
    fn the_third_of_three_waits_for_the_first_message_or_for_who_asks_for_it() {
        let three = || {
            let (mut flow, mut ids) = flow_with(&[8, 8]);
            ids.push(post(&mut flow, &[buffer(8)]).expect("valid").expect("room"));
            assert_eq!(flow.poll_announcement(8), None);
            (flow, ids)
        };
        let (mut flow, _) = three();
        flow.handle_immediate(Lane(0), imm(1, Extent::Full)).expect("outstanding");
        assert_eq!(flow.poll_announcement(8), Some(3..4), "the first message has come");
        let (mut flow, ids) = three();
        for asked in [ids[0], ids[1]] {
            flow.handle_fruitless_poll(asked);
            assert_eq!(flow.poll_announcement(8), None, "the sender knows of that one");
        }
        flow.handle_fruitless_poll(ids[2]);
        assert_eq!(flow.poll_announcement(8), Some(3..4), "the sender cannot send what is waited for");
    }

    #[test]
    fn data_for_a_slot_the_sender_cannot_know_is_a_violation() {
        let mut flow = flow_with(&[8, 8]).0;
        post(&mut flow, &[buffer(8)]).expect("valid").expect("room");
        assert_eq!(flow.poll_announcement(8), None);
        assert!(flow.handle_immediate(Lane(0), imm(3, Extent::Full)).is_err());
    }

    #[test]
    fn a_large_receive_is_announced_at_once() {
        let mut flow = flow_with(&[8, 8]).0;
        post(&mut flow, &[buffer(COALESCE_MAX_BYTES + 1)]).expect("valid").expect("room");
        assert!(flow.poll_announcement(8).is_some());
    }
    #[test]
    fn the_rails_of_a_message_are_those_that_have_carried_it() {
        let mut flow = RecvFlow::new(Striping::new(3, 2, false));
        let at = |addr, length| Buffer { addr, ..buffer(length) };
        let post = |flow: &mut RecvFlow, addr, length| {
            post(flow, &[at(addr, length)]).expect("valid").expect("room");
            while flow.poll_announcement(8).is_some() {}
        };
        post(&mut flow, 0x1000, 100);
        post(&mut flow, 0x2000, 20_000);
        assert_eq!(flow.rails_of(0x1000), 0b111, "nothing has arrived there");
        flow.handle_immediate(Lane(4), imm(1, Extent::Full)).expect("outstanding");
        flow.handle_immediate(Lane(5), imm(2, Extent::Full)).expect("outstanding");
        flow.handle_immediate(Lane(1), imm(2, Extent::Stripe)).expect("outstanding");
        assert_eq!(flow.rails_of(0x2000), 0b111, "a stripe is missing");
        flow.handle_immediate(Lane(0), imm(2, Extent::Stripe)).expect("outstanding");
        assert_eq!((flow.rails_of(0x1000), flow.rails_of(0x2000)), (0b010, 0b111));
        post(&mut flow, 0x1000, 100);
        flow.handle_immediate(Lane(2), imm(3, Extent::Full)).expect("outstanding");
        assert_eq!(flow.rails_of(0x1000), 0b100, "the latest message counts");
        post(&mut flow, 0x1000, 0);
        flow.handle_immediate(Lane(0), imm(4, Extent::Full)).expect("outstanding");
        assert_eq!(flow.rails_of(0x1000), 0b100, "one of no bytes has put nothing there");
    }
}
