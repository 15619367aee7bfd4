//! The sending side of a connection: clear-to-sends in, transfers out.

use super::requests::{RequestId, Requests};
use super::stripe::{Stripe, Striping};
use super::wire::{Extent, Imm, Place, Slot};
use super::{Lane, MAX_RAILS, RING_SLOTS, Violation, violation};

/// How far past the oldest unclaimed slot a message looks for its tag.
const SCAN_SLOTS: u32 = 64;

/// One message on its way: what the queue pairs are to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transfer {
    /// The request that completes when every stripe has been acknowledged.
    pub id: RequestId,
    /// Address of the peer's buffer.
    pub remote_addr: u64,
    /// Keys of the peer's buffer, per rail.
    pub rkeys: [u32; MAX_RAILS],
    /// Bytes to be sent: the lesser of the message and the buffer.
    pub length: u32,
    place: Place,
    posted: u32,
    striping: Striping,
    lane: Lane,
}

impl Transfer {
    /// The lane and the immediate, if the message is one write.
    #[inline]
    pub fn as_single(&self) -> Option<(Lane, Imm)> {
        let whole = self.length < Imm::EXPLICIT_LIMIT && self.striping.count(self.length) == 1;
        whole.then_some((self.lane, Imm { place: self.place, extent: Extent::Bytes(self.length) }))
    }

    /// The stripes in the order in which they are to be posted, each with its immediates.
    pub fn stripes(&self) -> impl Iterator<Item = (Stripe, Immediates)> {
        self.striping.stripes(self.length, self.lane).enumerate().map(|(i, stripe)| (stripe, self.immediates(i == 0)))
    }

    fn immediates(&self, first: bool) -> Immediates {
        let imm = |extent| Imm { place: self.place, extent };
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
    rkeys: [u32; MAX_RAILS],
    tag: u32,
}

#[derive(Debug, Clone, Copy, Default)]
struct Outgoing {
    length: u32,
    pending_stripes: u32,
}

/// State of the sending side. All memory is allocated by [`SendFlow::new`].
#[derive(Debug)]
pub struct SendFlow {
    striping: Striping,
    /// Copies of the slots in `head..next`, by place: what a peer overwrites later has no effect. A claimed one is gone.
    offers: Box<[Option<Offer>; RING_SLOTS]>,
    /// Oldest slot that no message has claimed.
    head: u32,
    /// The slot that the peer announces next.
    next: u32,
    lane: Lane,
    requests: Requests<Outgoing>,
}

impl SendFlow {
    /// A flow that has seen no slot.
    pub fn new(striping: Striping) -> Self {
        Self {
            striping,
            offers: Box::new([None; RING_SLOTS]),
            head: 1,
            next: 1,
            lane: Lane(0),
            requests: Requests::default(),
        }
    }

    /// Sequence number of the slot to look for in the ring, or `None` while the ring is full of unclaimed ones.
    #[inline]
    pub fn awaited_slot(&self) -> Option<u32> {
        (self.next.wrapping_sub(self.head) < RING_SLOTS as u32).then_some(self.next)
    }

    /// Takes in the slot that [`Self::awaited_slot`] named.
    ///
    /// # Errors
    /// The slot has another sequence number.
    #[inline]
    pub fn handle_slot(&mut self, slot: Slot) -> Result<(), Violation> {
        let Slot { addr, length, rkeys, tag, seq, .. } = slot;
        if Some(seq) != self.awaited_slot() {
            return Err(violation!("clear-to-send {} came where {} was due", { seq }, { self.next }));
        }
        self.offers[Place::of(seq).index()] = Some(Offer { addr, length, rkeys, tag });
        self.next = self.next.wrapping_add(1);
        Ok(())
    }

    /// Matches a message of `length` bytes with the oldest unclaimed slot of its tag.
    /// `None`: there is none yet, or too many requests are outstanding.
    #[inline]
    pub fn submit(&mut self, tag: u32, length: u32) -> Option<Transfer> {
        let (place, offer) = self.find(tag)?;
        let length = length.min(offer.length);
        let (id, request) = self.requests.allocate()?;
        *request = Outgoing { length, pending_stripes: self.striping.count(length) };
        self.claim(place);
        let lane = self.lane;
        self.lane = self.striping.after(lane);
        Some(Transfer {
            id,
            remote_addr: offer.addr,
            rkeys: offer.rkeys,
            length,
            place,
            posted: offer.length,
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
            _ => Err(violation!("send completion for {:?}, which is not outstanding", { id })),
        }
    }

    /// Bytes sent, once request `id` is complete. The id is stale afterwards.
    ///
    /// # Errors
    /// The id is stale.
    #[inline]
    pub fn poll_done(&mut self, id: RequestId) -> Result<Option<u32>, Violation> {
        Ok(self.requests.release_if(id, |request| request.pending_stripes == 0)?.map(|request| request.length))
    }

    #[inline]
    fn find(&self, tag: u32) -> Option<(Place, Offer)> {
        let known = self.next.wrapping_sub(self.head).min(SCAN_SLOTS);
        (0..known).find_map(|i| {
            let place = Place::of(self.head.wrapping_add(i));
            let offer = self.offers[place.index()].as_ref()?;
            (offer.tag == tag).then_some((place, *offer))
        })
    }

    #[inline]
    fn claim(&mut self, place: Place) {
        self.offers[place.index()] = None;
        while self.head != self.next && self.offers[Place::of(self.head).index()].is_none() {
            self.head = self.head.wrapping_add(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_LANE: Striping = Striping { lanes: 1, split: false };

    fn slot(seq: u32, tag: u32, length: u32) -> Slot {
        Slot { addr: 0x1000 * u64::from(seq), length, rkeys: [9, 0], tag, group: (0, 1), seq }
    }

    #[test]
    fn a_message_waits_for_its_slot() {
        let mut flow = SendFlow::new(ONE_LANE);
        assert_eq!(flow.submit(7, 100), None);
        flow.handle_slot(slot(1, 7, 64)).expect("slot 1 is due");
        let transfer = flow.submit(7, 100).expect("there is a slot");
        assert_eq!((transfer.length, transfer.remote_addr), (64, 0x1000), "truncated to what the peer has room for");
        assert_eq!(flow.submit(7, 100), None, "a slot is used once");
    }

    #[test]
    fn tags_are_matched_in_order_and_do_not_block_each_other() {
        let mut flow = SendFlow::new(ONE_LANE);
        for (seq, tag) in [(1, 10), (2, 20), (3, 10)] {
            flow.handle_slot(slot(seq, tag, 8)).expect("in order");
        }
        let addr = |t: Option<Transfer>| t.map(|t| t.remote_addr);
        assert_eq!(addr(flow.submit(20, 8)), Some(0x2000));
        assert_eq!(addr(flow.submit(20, 8)), None);
        assert_eq!(addr(flow.submit(10, 8)), Some(0x1000));
        assert_eq!(addr(flow.submit(10, 8)), Some(0x3000));
    }

    #[test]
    fn a_slot_out_of_order_is_a_violation() {
        let mut flow = SendFlow::new(ONE_LANE);
        assert!(flow.handle_slot(slot(2, 0, 0)).is_err());
    }

    #[test]
    fn a_completion_from_nowhere_is_a_violation() {
        let mut flow = SendFlow::new(ONE_LANE);
        flow.handle_slot(slot(1, 0, 8)).expect("due");
        let id = flow.submit(0, 8).expect("there is a slot").id;
        assert_eq!(flow.poll_done(id), Ok(None));
        assert_eq!(flow.handle_completion(id), Ok(()));
        assert!(flow.handle_completion(id).is_err(), "twice");
        assert_eq!(flow.poll_done(id), Ok(Some(8)));
        assert!(flow.handle_completion(id).is_err(), "after the end");
        assert!(flow.poll_done(id).is_err(), "tested after the end");
    }

    #[test]
    fn a_length_that_fits_no_immediate_travels_in_two() {
        let mut flow = SendFlow::new(ONE_LANE);
        let long = Imm::EXPLICIT_LIMIT + 0x2_0003;
        flow.handle_slot(slot(1, 0, long + 1)).expect("due");
        flow.handle_slot(slot(2, 0, long)).expect("due");
        let partial = flow.submit(0, long).expect("slot 1");
        let (_, imms) = partial.stripes().next().expect("one stripe");
        assert_eq!(imms.first.extent, Extent::Low(3));
        assert_eq!(imms.second.map(|i| i.extent), Some(Extent::High((long >> 16) as u16)));
        let full = flow.submit(0, long).expect("slot 2");
        let (_, imms) = full.stripes().next().expect("one stripe");
        assert_eq!((imms.first.extent, imms.second), (Extent::Full, None));
    }
}
