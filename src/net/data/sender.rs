//! A send communicator: slots in, work requests out, completions in.

use super::exclusive_cell::SingleCaller;
use super::probe::Probe;
use super::sticky_error::Standing;
use crate::error::{Error, Result};
use crate::net::control::peer_state::PeerState;
use crate::net::device::nic::Nic;
use crate::net::mr::handle::Memory;
use crate::net::qp::set::{Lanes, WorkId};
use crate::proto::handshake::Terms;
use crate::proto::requests::RequestId;
use crate::proto::room::{Room, SEND_QUEUE_DEPTH, STRIPE_REQUESTS_MAX};
use crate::proto::send::{SendFlow, Transfer};
use crate::proto::shares::Shares;
use crate::proto::wire::{Imm, Place, Slot, SlotWords};
use crate::proto::{Lane as LaneId, RING_SLOTS, Violation};
use crate::verbs::queue::Depths;
use crate::verbs::shared::SharedRing;
use crate::verbs::work::{Span, Target, Write};
use std::sync::Arc;

/// Sizes of a sender's queues; why the send queue is never full is told in [`crate::proto::room`]. It receives nothing; one
/// receive work request is the least every device accepts.
pub const SENDER_DEPTHS: Depths = Depths { send: SEND_QUEUE_DEPTH, recv: 1, inline_bytes: 0 };

/// The ring of clear-to-sends.
pub type SlotRing = SharedRing<{ size_of::<SlotWords>() / 8 }, RING_SLOTS>;

/// The sending end of a connection.
#[derive(Debug)]
pub struct SendComm {
    path: SingleCaller<SendPath>,
    /// Shorter messages go the usual way.
    usual_below: u32,
    /// The peer.
    pub link: Arc<PeerState>,
    /// The device it is on.
    pub nic: Arc<Nic>,
}

#[derive(Debug)]
struct SendPath {
    flow: SendFlow,
    // Queue pairs before the ring: the peer's writes end before the memory goes.
    lanes: Lanes,
    ring: SlotRing,
    /// Bytes above which data and notice are posted apart; no message is as long as the greatest number.
    apart_above: u32,
    others: Others,
    standing: Standing,
}

/// Other work requests than those that carry a stripe by themselves.
#[derive(Debug, Default)]
struct Others {
    /// Those of stripes that take more than one.
    room: Room,
    probe: Probe,
}

impl Others {
    /// The work request `id` is complete; the stripe that it was the last of, if it carries data.
    ///
    /// # Errors
    /// It is none of these.
    #[inline(never)]
    fn handle_completion(&mut self, id: u64) -> Result<Option<(RequestId, LaneId)>> {
        match WorkId::from_bits(id) {
            WorkId::LongData { request, lane, further } => {
                self.room.handle_completion(LaneId(lane), further);
                Ok(Some((request, LaneId(lane))))
            }
            _ => self.probe.handle_completion(id, "sender").map(|()| None),
        }
    }
}

impl SendComm {
    /// A sender over connected queue pairs.
    pub fn new(
        nic: Arc<Nic>,
        link: Arc<PeerState>,
        lanes: Lanes,
        ring: SlotRing,
        terms: &Terms,
        shares: Shares,
    ) -> Self {
        let apart_above = if terms.adaptive_routing { nic.config.ar_threshold } else { u32::MAX };
        let one_write_below = Imm::EXPLICIT_LIMIT.min(apart_above.saturating_add(1));
        let usual_below = if lanes.are_on_several_rails() { 0 } else { one_write_below };
        nic.watch_queues(&link, &lanes);
        let flow = SendFlow::new(terms.striping, shares);
        let standing = Standing::new("sending to");
        let others = Others::default();
        let path = SendPath { flow, lanes, ring, apart_above, others, standing };
        Self { path: SingleCaller::new(path), usual_below, link, nic }
    }

    /// Whether a message of `length` bytes goes the usual way: each stripe as one write, on the only rail, while nothing is known
    /// against the peer. None does that is longer than [`crate::proto::MAX_MESSAGE`].
    #[inline(always)]
    pub fn is_usual(&self, length: u32) -> bool {
        length < self.usual_below && self.link.state().is_open()
    }

    /// Begins to send `length` bytes of registered memory, which [`Self::is_usual`]. `None`: the receiver is not ready, try again.
    ///
    /// # Errors
    /// The connection has failed, or the bytes are outside of `memory`.
    #[inline(always)]
    pub fn isend_usual(&self, addr: u64, length: u32, tag: u32, memory: &Memory) -> Result<Option<RequestId>> {
        self.path.enter(|path| {
            memory.require("isend", addr, length)?;
            path.send_usual(addr, length, tag, memory).map_err(|e| path.standing.fail(&self.link, e))
        })
    }

    /// The same for any number of bytes. `None` as well where the queues have no room.
    ///
    /// # Errors
    /// As [`Self::isend_usual`].
    pub fn isend(&self, addr: u64, length: u32, tag: u32, memory: &Memory) -> Result<Option<RequestId>> {
        self.path.enter(|path| {
            if !self.link.state().is_open() && !path.attend(&self.link)? {
                return Ok(None);
            }
            memory.require("isend", addr, length)?;
            path.send(addr, length, tag, memory).map_err(|e| path.standing.fail(&self.link, e))
        })
    }

    /// Bytes sent, once the request is complete.
    ///
    /// # Errors
    /// The connection has failed; the same error each time.
    #[inline(always)]
    pub fn test(&self, id: RequestId) -> Result<Option<u32>> {
        self.path.enter(|path| {
            if !path.flow.is_done(id).map_err(Violation::into_misuse)? {
                if path.lanes.are_on_several_rails() {
                    path.progress_on_rails(&self.link)?;
                } else {
                    path.progress(&self.link)?;
                }
            }
            path.flow.poll_done(id).map_err(Violation::into_misuse)
        })
    }
}

impl SendPath {
    /// The peer has gone, or the line is lost. In the latter case, whether sending goes on: not while an answer is due to
    /// whether the peer is there, for which there is room in the queues only if nothing else is under way.
    ///
    /// # Errors
    /// The peer has gone, or does not answer.
    #[cold]
    #[inline(never)]
    fn attend(&mut self, link: &Arc<PeerState>) -> Result<bool> {
        self.standing.check(link)?;
        if self.flow.is_idle() {
            self.others.probe.send(&mut self.lanes).map_err(|e| self.standing.fail(link, e))?;
        }
        if self.others.probe.is_outstanding() {
            let poll = if self.lanes.are_on_several_rails() { Self::poll_rails } else { Self::poll };
            poll(self, link).map_err(|e| self.standing.fail(link, e))?;
        }
        Ok(!self.others.probe.is_outstanding())
    }

    #[inline(always)]
    fn progress(&mut self, link: &Arc<PeerState>) -> Result<()> {
        self.progress_by(link, Self::poll)
    }

    #[inline(never)]
    fn progress_on_rails(&mut self, link: &Arc<PeerState>) -> Result<()> {
        self.progress_by(link, Self::poll_rails)
    }

    #[inline(always)]
    fn progress_by(
        &mut self,
        link: &Arc<PeerState>,
        poll: impl FnOnce(&mut Self, &Arc<PeerState>) -> Result<usize>,
    ) -> Result<()> {
        // A peer that has closed in good order has received what it waited for; its device's word on that is awaited.
        let broken = link.is_broken();
        if broken {
            self.standing.check_failed()?;
        }
        let polled = poll(self, link).map_err(|e| self.standing.fail(link, e))?;
        if polled == 0 && broken {
            let error = self.standing.refusal(link);
            return Err(self.standing.fail(link, error));
        }
        Ok(())
    }

    #[inline(always)]
    fn poll(&mut self, link: &Arc<PeerState>) -> Result<usize> {
        let Self { flow, lanes, others, .. } = self;
        lanes.poll(link, |_, completion| match WorkId::from_bits(completion.id()) {
            WorkId::Data { request, .. } => Ok(flow.handle_completion(request)?),
            _ => match others.handle_completion(completion.id())? {
                Some((request, _)) => Ok(flow.handle_completion(request)?),
                None => Ok(()),
            },
        })
    }

    fn poll_rails(&mut self, link: &Arc<PeerState>) -> Result<usize> {
        let Self { flow, lanes, others, .. } = self;
        flow.handle_poll();
        lanes.poll_rails(link, |_, completion| match WorkId::from_bits(completion.id()) {
            WorkId::Data { request, lane } => Ok(flow.handle_completion_on(request, LaneId(lane))?),
            _ => match others.handle_completion(completion.id())? {
                Some((request, lane)) => Ok(flow.handle_completion_on(request, lane)?),
                None => Ok(()),
            },
        })
    }

    #[inline(always)]
    fn send_usual(&mut self, addr: u64, length: u32, tag: u32, memory: &Memory) -> Result<Option<RequestId>> {
        let Self { flow, ring, .. } = self;
        let read = |seq| ring.read(Place::of(seq).index(), |last_word| Slot::seq_of(last_word) == seq);
        let Some(transfer) = flow.submit(tag, length, read)? else { return Ok(None) };
        match transfer.as_single() {
            Some((lane, imm)) => self.post_single(addr, memory.lkey(0), &transfer, lane, imm)?,
            None => self.post(addr, memory, transfer)?,
        }
        Ok(Some(transfer.id))
    }

    #[inline(always)]
    fn send(&mut self, addr: u64, length: u32, tag: u32, memory: &Memory) -> Result<Option<RequestId>> {
        if !self.has_room(length) {
            return Ok(None);
        }
        let Self { flow, ring, .. } = self;
        let read = |seq| ring.read(Place::of(seq).index(), |last_word| Slot::seq_of(last_word) == seq);
        let Some(transfer) = flow.submit(tag, length, read)? else { return Ok(None) };
        self.post(addr, memory, transfer)?;
        Ok(Some(transfer.id))
    }

    /// Whether the queues have room for all work requests that a message of `length` bytes may take.
    #[inline]
    fn has_room(&self, length: u32) -> bool {
        let further = u8::from(length > self.apart_above) + u8::from(length >= Imm::EXPLICIT_LIMIT);
        further == 0 || self.others.room.admits(self.lanes.lanes.len(), further)
    }

    /// The usual case: data and notice are one write.
    #[inline(always)]
    fn post_single(&mut self, addr: u64, lkey: u32, transfer: &Transfer, lane: LaneId, imm: Imm) -> Result<()> {
        let Some(on) = self.lanes.lanes.get_mut(usize::from(lane.0)) else { return Err(no_such_lane(lane)) };
        on.pair.post_write(&Write {
            id: WorkId::Data { request: transfer.id, lane: lane.0 }.to_bits(),
            local: Span { addr, length: transfer.length, lkey },
            target: Target { addr: transfer.remote_addr, rkey: transfer.rkeys[0] },
            imm: Some(imm.to_bits()),
            inline: false,
            signaled: true,
        })
    }

    /// One doorbell per stripe: data with its notice, or, where the fabric may reorder, the notice in a write of its own.
    #[inline(never)]
    fn post(&mut self, addr: u64, memory: &Memory, transfer: Transfer) -> Result<()> {
        for (stripe, imms) in transfer.stripes(self.flow.shares()) {
            let apart = stripe.length > 0 && stripe.length > self.apart_above;
            let at = u64::from(stripe.offset);
            let rail = transfer.rail_of(stripe.lane);
            let rkey = transfer.rkey(rail, |place| self.ring.read_front(place.index()));
            let data = Write {
                local: Span { addr: addr + at, length: stripe.length, lkey: memory.lkey(rail) },
                target: Target { addr: transfer.remote_addr.wrapping_add(at), rkey },
                imm: (!apart).then(|| imms.first.to_bits()),
                ..Write::default()
            };
            let notice = |imm: u32| Write { imm: Some(imm), ..Write::default() };
            let mut writes = [data; STRIPE_REQUESTS_MAX];
            let mut count = 1;
            if apart {
                writes[count] = notice(imms.first.to_bits());
                count += 1;
            }
            if let Some(second) = imms.second {
                writes[count] = notice(second.to_bits());
                count += 1;
            }
            let Some(lane) = self.lanes.lanes.get_mut(usize::from(stripe.lane.0)) else {
                return Err(no_such_lane(stripe.lane));
            };
            let id = match (count as u8 - 1, transfer.id, stripe.lane.0) {
                (0, request, lane) => WorkId::Data { request, lane },
                (further, request, lane) => {
                    self.others.room.handle_posted(stripe.lane, further);
                    WorkId::LongData { request, lane, further }
                }
            };
            writes[count - 1].signaled = true;
            // A failure before the signalled write is reported with its own id.
            for write in &mut writes[..count] {
                write.id = id.to_bits();
            }
            lane.pair.post_writes(&writes[..count])?;
        }
        Ok(())
    }
}

#[cold]
#[inline(never)]
fn no_such_lane(lane: LaneId) -> Error {
    Error::internal(format!("{lane:?} does not exist"))
}
