//! A send communicator: slots in, work requests out, completions in.

use super::lanes::{Lanes, WorkId};
use super::link::Link;
use super::memory::Memory;
use super::nic::Nic;
use super::single::SingleCaller;
use super::standing::Standing;
use crate::error::{Error, Result};
use crate::proto::handshake::Terms;
use crate::proto::requests::RequestId;
use crate::proto::send::{SendFlow, Transfer};
use crate::proto::shares::Shares;
use crate::proto::wire::{Imm, Place, Slot, SlotWords};
use crate::proto::{Lane as LaneId, MAX_REQUESTS, RING_SLOTS, Violation};
use crate::verbs::queue::Depths;
use crate::verbs::shared::SharedRing;
use crate::verbs::work::{Span, Target, Write};
use std::sync::Arc;

/// Sizes of a sender's queues. A request keeps its place until all it has posted is complete, so a queue that has room
/// for one stripe of each request is never full. It receives nothing; one receive work request is the least every device
/// accepts.
pub const SENDER_DEPTHS: Depths = Depths { send: MAX_REQUESTS as u32 * STRIPE_REQUESTS_MAX, recv: 1, inline_bytes: 0 };
/// Most work requests that one stripe needs: data, and two notices.
const STRIPE_REQUESTS_MAX: u32 = 3;

/// The ring of clear-to-sends.
pub type SlotRing = SharedRing<{ size_of::<SlotWords>() / 8 }, RING_SLOTS>;

/// The sending end of a connection.
#[derive(Debug)]
pub struct SendComm {
    path: SingleCaller<SendPath>,
    /// The peer.
    pub link: Arc<Link>,
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
    /// Shorter ones are posted in the usual way: as one write, on the only rail.
    usual_below: u32,
    standing: Standing,
}

impl SendComm {
    /// A sender over connected queue pairs.
    pub fn new(nic: Arc<Nic>, link: Arc<Link>, lanes: Lanes, ring: SlotRing, terms: &Terms, shares: Shares) -> Self {
        let apart_above = if terms.adaptive_routing { nic.config.ar_threshold } else { u32::MAX };
        let usual_below = if lanes.are_on_several_rails() { 0 } else { apart_above.saturating_add(1) };
        let flow = SendFlow::new(terms.striping, shares);
        let standing = Standing::new("sending to");
        let path = SendPath { flow, lanes, ring, apart_above, usual_below, standing };
        Self { path: SingleCaller::new(path), link, nic }
    }

    /// Begins to send `span` of registered memory. `None`: the receiver is not ready, try again.
    ///
    /// # Errors
    /// The connection has failed.
    #[inline(always)]
    pub fn isend(&self, addr: u64, length: u32, tag: u32, memory: &Memory) -> Result<Option<RequestId>> {
        self.path.enter(|path| {
            path.standing.check(&self.link)?;
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
    #[inline(always)]
    fn progress(&mut self, link: &Arc<Link>) -> Result<()> {
        self.progress_by(link, Self::poll)
    }

    #[inline(never)]
    fn progress_on_rails(&mut self, link: &Arc<Link>) -> Result<()> {
        self.progress_by(link, Self::poll_rails)
    }

    #[inline(always)]
    fn progress_by(
        &mut self,
        link: &Arc<Link>,
        poll: impl FnOnce(&mut Self, &Arc<Link>) -> Result<usize>,
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
    fn poll(&mut self, link: &Arc<Link>) -> Result<usize> {
        let Self { flow, lanes, .. } = self;
        lanes.poll(link, |_, completion| match WorkId::from_bits(completion.id()) {
            WorkId::Data { request, .. } => Ok(flow.handle_completion(request)?),
            _ => Err(misplaced(completion.id())),
        })
    }

    fn poll_rails(&mut self, link: &Arc<Link>) -> Result<usize> {
        let Self { flow, lanes, .. } = self;
        flow.handle_poll();
        lanes.poll_rails(link, |_, completion| match WorkId::from_bits(completion.id()) {
            WorkId::Data { request, lane } => Ok(flow.handle_completion_on(request, LaneId(lane))?),
            _ => Err(misplaced(completion.id())),
        })
    }

    #[inline(always)]
    fn send(&mut self, addr: u64, length: u32, tag: u32, memory: &Memory) -> Result<Option<RequestId>> {
        let Self { flow, ring, .. } = self;
        let read = |seq| ring.read(Place::of(seq).index(), |last_word| Slot::seq_of(last_word) == seq);
        let Some(transfer) = flow.submit(tag, length, read)? else { return Ok(None) };
        match transfer.as_single() {
            Some((lane, imm)) if transfer.length < self.usual_below => {
                self.post_single(addr, memory.lkey(0), &transfer, lane, imm)?;
            }
            _ => self.post(addr, memory, transfer)?,
        }
        Ok(Some(transfer.id))
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
            let mut writes = [data; STRIPE_REQUESTS_MAX as usize];
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
            let id = WorkId::Data { request: transfer.id, lane: stripe.lane.0 };
            writes[count - 1].id = id.to_bits();
            writes[count - 1].signaled = true;
            // A failure before the signalled write is reported with its own id.
            for write in &mut writes[..count - 1] {
                write.id = id.to_bits();
            }
            lane.pair.post_writes(&writes[..count])?;
        }
        Ok(())
    }
}

#[cold]
#[inline(never)]
fn misplaced(id: u64) -> Error {
    Error::internal(format!("a sender's completion queue reports {:?}", WorkId::from_bits(id)))
}

#[cold]
#[inline(never)]
fn no_such_lane(lane: LaneId) -> Error {
    Error::internal(format!("{lane:?} does not exist"))
}
