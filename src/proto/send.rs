//! The sending side of a connection: clear-to-sends in, transfers out.

use super::requests::{RequestId, Requests};
use super::shares::Shares;
use super::stripe::{Stripe, Striping};
use super::wire::{Extent, Imm, Place, Slot, SlotWords, parse_further};
use super::{Lane, Violation, violation};

/// Slots, from the oldest unclaimed one on, among which a message looks for its tag. Later ones stay in the ring.
const WINDOW_SLOTS: usize = 64;
/// Messages from here on show how fast rails are; the stripes of shorter ones end in the order in which queues are polled.
const LEARNING_BYTES: u32 = 64 << 10;

/// One message on its way: what the queue pairs are to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The request that completes when every stripe has been acknowledged.
    pub id: RequestId,
    /// Address of the peer's buffer.
    pub remote_addr: u64,
    /// Keys of the peer's buffer on the first two rails.
    pub rkeys: [u32; Slot::KEYS],
    /// Bytes to be sent: the lesser of the message and the buffer.
    pub length: u32,
    /// Where its slot is in the ring. Until the message has arrived, no other slot gets this place.
    pub place: Place,
    posted: u32,
    stripes: u32,
    striping: Striping,
    lane: Lane,
}

impl Transfer {
    /// The lane and the immediate, if the message is one write.
    #[inline]
    pub fn as_single(&self) -> Option<(Lane, Imm)> {
        let whole = self.stripes == 1 && self.length < Imm::EXPLICIT_LIMIT;
        whole.then_some((self.lane, Imm::new(self.place, Extent::Bytes(self.length))))
    }

    /// Key of the peer's buffer on rail number `rail`; `further` reads what precedes the slot in its place, where slots
    /// have two halves.
    pub fn rkey(&self, rail: u8, further: impl FnOnce(Place) -> SlotWords) -> u32 {
        let rail = usize::from(rail);
        match self.rkeys.get(rail) {
            Some(key) => *key,
            None => parse_further(&further(self.place)).get(rail - Slot::KEYS).copied().unwrap_or_default(),
        }
    }

    /// The rail that `lane` belongs to.
    #[inline]
    pub fn rail_of(&self, lane: Lane) -> u8 {
        self.striping.rail_of(lane)
    }

    /// The stripes in the order in which they are to be posted, each with its immediates; `shares` are the flow's.
    pub fn stripes(&self, shares: Shares) -> impl Iterator<Item = (Stripe, Immediates)> {
        self.striping
            .stripes(self.length, self.lane, shares)
            .enumerate()
            .map(|(i, stripe)| (stripe, self.immediates(i == 0)))
    }

    fn immediates(&self, first: bool) -> Immediates {
        let imm = |extent| Imm::new(self.place, extent);
        let (first, second) = if !first {
            (Extent::Stripe, None)
        } else if self.length < Imm::EXPLICIT_LIMIT {
            (Extent::Bytes(self.length), None)
        } else if self.length == self.posted {
            (Extent::Full, None)
        } else {
            (Extent::Low(self.length as u16), Some(Extent::High((self.length >> 16) as u16)))
        };
        Immediates { first: imm(first), second: second.map(imm) }
    }
}

/// The immediates that close a stripe: one, or two for a length that one cannot carry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Immediates {
    /// Goes with the data, or right behind it.
    pub first: Imm,
    /// Goes behind that, in a write of no bytes.
    pub second: Option<Imm>,
}

/// What a clear-to-send offers.
#[derive(Debug, Clone, Copy)]
struct Offer {
    addr: u64,
    length: u32,
    rkeys: [u32; Slot::KEYS],
    tag: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Outgoing {
    length: u32,
    pending_stripes: u32,
    /// The poll in which a stripe completed that was not the last.
    poll: u32,
}

/// State of the sending side. All memory is allocated by [`SendFlow::new`].
#[derive(Debug)]
pub struct SendFlow {
    striping: Striping,
    /// What the slots in `head..next` say, by sequence number modulo the window. A claimed one is gone.
    offers: Box<[Option<Offer>; WINDOW_SLOTS]>,
    /// Oldest slot that no message has claimed.
    head: u32,
    /// The slot that the peer announces next.
    next: u32,
    lane: Lane,
    shares: Shares,
    /// Number of the poll that goes on, where there are several rails.
    poll: u32,
    requests: Requests<Outgoing>,
}

impl SendFlow {
    /// A flow that has seen no slot, over rails that begin with `shares`.
    pub fn new(striping: Striping, shares: Shares) -> Self {
        Self {
            striping,
            offers: Box::new([None; WINDOW_SLOTS]),
            head: 1,
            next: 1,
            lane: Lane(0),
            shares,
            poll: 0,
            requests: Requests::default(),
        }
    }

    /// Matches a message of `length` bytes with the oldest unclaimed slot of its tag. `read` looks for the slot of
    /// a sequence number in the ring; what it has found once is not asked for again, so that it does not matter what
    /// a peer overwrites later. `None`: there is no such slot yet, or too many requests are outstanding.
    ///
    /// # Errors
    /// A slot is not what may be there.
    #[inline(always)]
    pub fn submit(
        &mut self,
        tag: u32,
        length: u32,
        mut read: impl FnMut(u32) -> Option<SlotWords>,
    ) -> Result<Option<Transfer>, Violation> {
        if self.requests.is_exhausted() {
            return Ok(None);
        }
        if self.head != self.next
            && let Some((place, offer)) = self.claim(tag)
        {
            return Ok(self.begin(place, offer, length));
        }
        while self.next.wrapping_sub(self.head) < WINDOW_SLOTS as u32 {
            let Some(words) = read(self.next) else { break };
            if let Some((place, offer)) = self.handle_slot(Slot::parse(&words)?, tag)? {
                return Ok(self.begin(place, offer, length));
            }
        }
        Ok(None)
    }

    /// Takes in the next slot: for a message of tag `wanted`, which has found none before it, or to be kept for others.
    #[inline(always)]
    fn handle_slot(&mut self, slot: Slot, wanted: u32) -> Result<Option<(Place, Offer)>, Violation> {
        let Slot { addr, length, rkeys, tag, seq, .. } = slot;
        if seq != self.next {
            return Err(violation!("clear-to-send {} came where {} was due", seq, self.next));
        }
        let offer = Offer { addr, length, rkeys, tag };
        let is_oldest = self.head == seq;
        self.next = seq.wrapping_add(1);
        if tag != wanted {
            self.offers[index(seq)] = Some(offer);
            return Ok(None);
        }
        if is_oldest {
            self.head = self.next;
        } else {
            self.offers[index(seq)] = None;
        }
        Ok(Some((Place::of(seq), offer)))
    }

    /// Takes the oldest slot of `tag` out of those that are kept.
    #[inline(never)]
    fn claim(&mut self, tag: u32) -> Option<(Place, Offer)> {
        let known = self.next.wrapping_sub(self.head);
        let mut kept = (0..known).map(|i| self.head.wrapping_add(i));
        let seq = kept.find(|seq| self.offers[index(*seq)].is_some_and(|offer| offer.tag == tag))?;
        let offer = self.offers[index(seq)].take()?;
        while self.head != self.next && self.offers[index(self.head)].is_none() {
            self.head = self.head.wrapping_add(1);
        }
        Some((Place::of(seq), offer))
    }

    #[inline(always)]
    fn begin(&mut self, place: Place, offer: Offer, length: u32) -> Option<Transfer> {
        let length = length.min(offer.length);
        let stripes = self.striping.count(length);
        let (id, request) = self.requests.allocate()?;
        (request.length, request.pending_stripes) = (length, stripes);
        let lane = self.lane;
        self.lane = self.striping.after(lane);
        Some(Transfer {
            id,
            remote_addr: offer.addr,
            rkeys: offer.rkeys,
            length,
            place,
            posted: offer.length,
            stripes,
            striping: self.striping,
            lane,
        })
    }

    /// One stripe of request `id` has been acknowledged.
    ///
    /// # Errors
    /// No such request: a completion came twice, or from nowhere.
    #[inline]
    pub fn handle_completion(&mut self, id: RequestId) -> Result<(), Violation> {
        match self.requests.get_mut(id) {
            Some(request) if request.pending_stripes > 0 => {
                request.pending_stripes -= 1;
                Ok(())
            }
            _ => Err(violation!("send completion for {:?}, which is not outstanding", id)),
        }
    }

    /// Whether no message is under way: all have been found complete.
    pub fn is_idle(&self) -> bool {
        self.requests.are_all_free()
    }

    /// How much of a message each rail gets at present.
    pub fn shares(&self) -> Shares {
        self.shares
    }

    /// The completions from here on are found in another poll than those before.
    pub fn handle_poll(&mut self) {
        self.poll = self.poll.wrapping_add(1);
    }

    /// As [`Self::handle_completion`], where there are several rails: which of them is the last one with a message is
    /// what their shares are learnt from.
    ///
    /// # Errors
    /// As [`Self::handle_completion`].
    pub fn handle_completion_on(&mut self, id: RequestId, lane: Lane) -> Result<(), Violation> {
        self.handle_completion(id)?;
        let Some(request) = self.requests.get_mut(id) else { return Ok(()) };
        if request.pending_stripes > 0 {
            request.poll = self.poll;
        } else if request.length >= LEARNING_BYTES && request.poll != self.poll {
            self.shares.handle_late(self.striping.rail_of(lane));
        }
        Ok(())
    }

    /// Whether request `id` is complete.
    ///
    /// # Errors
    /// The id is stale.
    #[inline]
    pub fn is_done(&self, id: RequestId) -> Result<bool, Violation> {
        self.requests.check(id, |request| request.pending_stripes == 0)
    }

    /// Bytes sent, once request `id` is complete. The id is stale afterwards.
    ///
    /// # Errors
    /// The id is stale.
    #[inline]
    pub fn poll_done(&mut self, id: RequestId) -> Result<Option<u32>, Violation> {
        Ok(self.requests.release_if(id, |request| request.pending_stripes == 0)?.map(|request| request.length))
    }
}

/// Where the slot of sequence number `seq` is kept.
#[inline]
fn index(seq: u32) -> usize {
    seq as usize % WINDOW_SLOTS
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> SendFlow {
        SendFlow::new(Striping::new(1, 1, false), Shares::by_speed([1]))
    }

    fn slot(seq: u32, tag: u32, length: u32) -> Slot {
        Slot { addr: 0x1000 * u64::from(seq), length, rkeys: [9, 0], tag, group: (0, 1), seq }
    }

    /// Submits a message when the ring holds `slots`.
    fn submit(flow: &mut SendFlow, slots: &[Slot], tag: u32, length: u32) -> Option<Transfer> {
        let read = |seq| slots.iter().find(|slot| slot.seq == seq).map(Slot::emit);
        flow.submit(tag, length, read).expect("the slots are good")
    }

    #[test]
    fn a_message_waits_for_its_slot() {
        let mut flow = flow();
        assert_eq!(submit(&mut flow, &[], 7, 100), None);
        let slots = [slot(1, 7, 64)];
        let transfer = submit(&mut flow, &slots, 7, 100).expect("there is a slot");
        assert_eq!((transfer.length, transfer.remote_addr), (64, 0x1000), "truncated to what the peer has room for");
        assert_eq!(submit(&mut flow, &slots, 7, 100), None, "a slot is used once");
    }

    #[test]
    fn tags_are_matched_in_order_and_do_not_block_each_other() {
        let mut flow = flow();
        let slots = [slot(1, 10, 8), slot(2, 20, 8), slot(3, 10, 8), slot(4, 10, 8)];
        let mut addr = |tag| submit(&mut flow, &slots, tag, 8).map(|t| t.remote_addr);
        assert_eq!(addr(20), Some(0x2000));
        assert_eq!(addr(20), None);
        assert_eq!(addr(10), Some(0x1000));
        assert_eq!(addr(10), Some(0x3000));
        assert_eq!(addr(10), Some(0x4000));
        assert_eq!(addr(10), None);
    }

    #[test]
    fn a_tag_behind_the_window_waits() {
        let mut flow = flow();
        let window = WINDOW_SLOTS as u32;
        let mut slots: Vec<_> = (1..=window).map(|seq| slot(seq, 10, 8)).collect();
        slots.push(slot(window + 1, 20, 8));
        assert_eq!(submit(&mut flow, &slots, 20, 8), None);
        assert!(submit(&mut flow, &slots, 10, 8).is_some());
        assert!(submit(&mut flow, &slots, 20, 8).is_some());
    }

    #[test]
    fn a_slot_out_of_order_is_a_violation() {
        let mut flow = flow();
        assert!(flow.submit(0, 8, |_| Some(slot(2, 0, 0).emit())).is_err());
    }

    #[test]
    fn a_completion_from_nowhere_is_a_violation() {
        let mut flow = flow();
        let id = submit(&mut flow, &[slot(1, 0, 8)], 0, 8).expect("there is a slot").id;
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
        let slots = [slot(1, 0, long + 1), slot(2, 0, long)];
        let partial = submit(&mut flow, &slots, 0, long).expect("slot 1");
        let (_, imms) = partial.stripes(flow.shares()).next().expect("one stripe");
        assert_eq!(imms.first.extent(), Extent::Low(3));
        assert_eq!(imms.second.map(|i| i.extent()), Some(Extent::High((long >> 16) as u16)));
        let full = submit(&mut flow, &slots, 0, long).expect("slot 2");
        let (_, imms) = full.stripes(flow.shares()).next().expect("one stripe");
        assert_eq!((imms.first.extent(), imms.second), (Extent::Full, None));
    }
    #[test]
    fn a_rail_that_completes_later_gets_less() {
        let mut flow = SendFlow::new(Striping::new(2, 1, false), Shares::by_speed([1, 1]));
        let mut seq = 0;
        // The lengths of a message's stripes on lanes 0 and 1, which complete in this order, in one poll or in two.
        let mut message = |polls: u32| {
            seq += 1;
            let transfer = submit(&mut flow, &[slot(seq, 0, 1 << 20)], 0, 1 << 20).expect("there is a slot");
            let stripes: Vec<_> = transfer.stripes(flow.shares()).map(|(stripe, _)| stripe).collect();
            let lengths = [0, 1].map(|lane| stripes.iter().find(|s| s.lane == Lane(lane)).expect("a stripe").length);
            for lane in [0, 1] {
                flow.handle_completion_on(transfer.id, Lane(lane)).expect("outstanding");
                (1..polls).for_each(|_| flow.handle_poll());
            }
            flow.handle_poll();
            assert_eq!(flow.poll_done(transfer.id), Ok(Some(1 << 20)));
            lengths
        };
        (0..50).for_each(|_| assert_eq!(message(1), [1 << 19; 2], "no order can be seen"));
        assert_eq!(message(2), [1 << 19; 2], "nothing is known yet");
        let late: Vec<_> = (0..50).map(|_| message(2)[1]).collect();
        assert!(late.is_sorted_by(|a, b| a > b) && late[49] < 450_000, "{late:?}");
    }
}
