//! A receive communicator: buffers in, clear-to-sends out, completions by identity.

use super::cts_sender::Announcer;
use super::exclusive_cell::SingleCaller;
use super::flush::Flushes;
use super::sticky_error::Standing;
use crate::error::{Error, Result};
use crate::net::control::peer_state::{PeerState, State};
use crate::net::device::nic::Nic;
use crate::net::mr::handle::Memory;
use crate::net::mr::region::MemoryKind;
use crate::net::qp::set::{Lane, Lanes, WorkId};
use crate::proto::handshake::{Ring, Terms};
use crate::proto::recv::{Buffer, RecvFlow};
use crate::proto::requests::RequestId;
use crate::proto::wire::{Imm, Slot};
use crate::proto::{self, MAX_GROUP, Violation};
use crate::verbs::queue::Depths;
use crate::verbs::work::{Completion, RECV_BATCH};
use std::sync::Arc;

/// Sizes of a receiver's queues: it sends clear-to-sends, inline if the device can, and a probe at times; it keeps receives for
/// all it has announced.
pub const RECEIVER_DEPTHS: Depths =
    Depths { send: 128, recv: proto::RING_SLOTS as u32, inline_bytes: (MAX_GROUP * Slot::BYTES) as u32 };

/// The receiving end of a connection.
#[derive(Debug)]
pub struct RecvComm {
    path: SingleCaller<RecvPath>,
    /// The peer.
    pub link: Arc<PeerState>,
    /// The device it is on.
    pub nic: Arc<Nic>,
}

/// A message that a receive expects.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// Address of the buffer.
    pub addr: u64,
    /// Its size in bytes.
    pub length: u32,
    /// The message's tag.
    pub tag: u32,
    /// The buffer's registration.
    pub memory: &'a Memory,
}

/// The state behind the data path.
#[derive(Debug)]
pub struct RecvPath {
    flow: RecvFlow,
    lanes: Lanes,
    announcer: Announcer,
    flushes: Option<Box<Flushes>>,
    standing: Standing,
}

impl RecvPath {
    /// Readies connected queue pairs: receives are posted from here on, so that the peer may send.
    ///
    /// # Errors
    /// The device refuses the receives, or the memory for clear-to-sends where it takes too little inline data.
    pub fn new(lanes: Lanes, ring: Ring, terms: &Terms) -> Result<Self> {
        let flow = RecvFlow::new(terms.striping);
        let announcer = Announcer::new(&lanes.lanes, ring, terms)?;
        let standing = Standing::new("receiving from");
        let mut path = Self { flow, lanes, announcer, flushes: None, standing };
        for lane in &mut path.lanes.lanes {
            lane.refill()?;
        }
        Ok(path)
    }
}

impl RecvComm {
    /// A receiver.
    pub fn new(nic: Arc<Nic>, link: Arc<PeerState>, path: RecvPath) -> Self {
        nic.watch_queues(&link, &path.lanes);
        Self { path: SingleCaller::new(path), link, nic }
    }

    /// Begins to receive a group of `count` messages, of which `expected` tells each. `None`: too much is outstanding,
    /// try again.
    ///
    /// # Errors
    /// The connection has failed, or the group is impossible.
    #[inline(always)]
    pub fn irecv<'a>(
        &self,
        count: usize,
        expected: impl Fn(usize) -> Result<Expected<'a>>,
    ) -> Result<Option<RequestId>> {
        // Nearly all groups are of one: for them the compiler knows the number.
        if count == 1 {
            return self.path.enter(|path| path.receive(1, expected, &self.link));
        }
        self.irecv_group(count, expected)
    }

    #[inline(never)]
    fn irecv_group<'a>(
        &self,
        count: usize,
        expected: impl Fn(usize) -> Result<Expected<'a>>,
    ) -> Result<Option<RequestId>> {
        self.path.enter(|path| path.receive(count, expected, &self.link))
    }

    /// Tells `done` the bytes of each message, once the request is complete.
    ///
    /// # Errors
    /// The connection has failed; the same error each time.
    #[inline(always)]
    pub fn test(&self, id: RequestId, done: impl FnOnce(&[u32])) -> Result<()> {
        self.path.enter(|path| {
            if !path.flow.is_done(id).map_err(Violation::into_misuse)? {
                if path.lanes.are_on_several_rails() {
                    path.progress_on_rails(&self.link, id)?;
                } else {
                    path.progress(&self.link, id)?;
                }
            }
            if let Some(lengths) = path.flow.poll_done(id).map_err(Violation::into_misuse)? {
                done(lengths);
            }
            Ok(())
        })
    }

    /// Begins to make received data visible to the GPU. `None`: there is nothing to wait for. NCCL takes that for a flush that is
    /// complete, so it cannot be told in this way to try again later.
    ///
    /// # Errors
    /// The connection has failed, the flush cannot be posted, or as many as there can be are outstanding.
    pub fn iflush<'a>(&self, received: impl Iterator<Item = Result<Expected<'a>>>) -> Result<Option<RequestId>> {
        if !self.nic.config.flush {
            return Ok(None);
        }
        self.path.enter(|path| {
            path.standing.check_failed()?;
            let (mut rails, mut last) = (0, None);
            for expected in received {
                let expected = expected?;
                if expected.length > 0 && expected.memory.kind() == MemoryKind::Gpu {
                    rails |= path.flow.rails_of(expected.addr);
                    last = Some(expected);
                }
            }
            // One read behind the last bytes of a rail is behind all of its bytes.
            let Some(Expected { addr, memory, .. }) = last else { return Ok(None) };
            let flushes = path.flushes.get_or_insert_default();
            let posted = flushes.post(&self.nic, rails, addr, memory).map_err(|e| path.standing.fail(&self.link, e))?;
            posted.map_or_else(|| Err(too_many_flushes()), |id| Ok(Some(id)))
        })
    }

    /// Whether a flush is complete.
    ///
    /// # Errors
    /// It failed.
    #[inline(never)]
    pub fn test_flush(&self, id: RequestId) -> Result<bool> {
        self.path.enter(|path| {
            path.standing.check_failed()?;
            let result = match &mut path.flushes {
                Some(flushes) => flushes.test(id),
                None => Err(Error::internal("a flush is tested that never began")),
            };
            result.map_err(|e| path.standing.fail(&self.link, e))
        })
    }
}

impl Drop for RecvComm {
    /// A sender whose messages were expected is told that they are not any more, so that it does not wait for its device
    /// to find out.
    fn drop(&mut self) {
        let outstanding = self.path.enter(|path| Ok(path.flow.outstanding()));
        if outstanding != Ok(0) {
            self.link.fail("the receiver was closed with receives outstanding");
        }
    }
}

impl RecvPath {
    #[inline(always)]
    fn receive<'a>(
        &mut self,
        count: usize,
        expected: impl Fn(usize) -> Result<Expected<'a>>,
        link: &Arc<PeerState>,
    ) -> Result<Option<RequestId>> {
        self.standing.check(link)?;
        let posted = self.flow.post(count, |i| {
            let Expected { addr, length, tag, memory } = expected(i)?;
            memory.require("irecv", addr, length)?;
            Ok::<_, Error>(Buffer { addr, length, rkeys: &memory.rkeys, tag })
        })?;
        self.announce().map_err(|e| self.standing.fail(link, e))?;
        Ok(posted)
    }

    #[inline(always)]
    fn progress(&mut self, link: &Arc<PeerState>, awaited: RequestId) -> Result<()> {
        self.progress_by(link, awaited, Self::poll)
    }

    #[inline(never)]
    fn progress_on_rails(&mut self, link: &Arc<PeerState>, awaited: RequestId) -> Result<()> {
        self.progress_by(link, awaited, Self::poll_rails)
    }

    #[inline(always)]
    fn progress_by(
        &mut self,
        link: &Arc<PeerState>,
        awaited: RequestId,
        poll: impl FnOnce(&mut Self, &Arc<PeerState>) -> Result<usize>,
    ) -> Result<()> {
        // Looked at before the queue: what the peer sent before it went is in the queue by then.
        let state = link.state();
        if !state.is_open() {
            self.standing.check_failed()?;
        }
        let polled = poll(self, link).map_err(|e| self.standing.fail(link, e))?;
        if polled == 0 {
            self.flow.handle_fruitless_poll(awaited);
            if !state.is_open() {
                self.attend(link, state)?;
            }
        }
        self.announce().map_err(|e| self.standing.fail(link, e))
    }

    /// Nothing has come, and the peer has gone, or the line is lost: then it is asked whether it is there.
    ///
    /// # Errors
    /// It has gone.
    #[cold]
    #[inline(never)]
    fn attend(&mut self, link: &Arc<PeerState>, state: State) -> Result<()> {
        if state.is_gone() {
            let error = self.standing.refusal(link);
            return Err(self.standing.fail(link, error));
        }
        self.announcer.probe.send(&mut self.lanes).map_err(|e| self.standing.fail(link, e))
    }

    #[inline(always)]
    fn poll(&mut self, link: &Arc<PeerState>) -> Result<usize> {
        let Self { flow, lanes, announcer, .. } = self;
        lanes.poll(link, |lanes, completion| handle(flow, announcer, lanes, completion))
    }

    fn poll_rails(&mut self, link: &Arc<PeerState>) -> Result<usize> {
        let Self { flow, lanes, announcer, .. } = self;
        lanes.poll_rails(link, |lanes, completion| handle(flow, announcer, lanes, completion))
    }

    /// Writes due clear-to-sends into the sender's ring, as far as the queues have room.
    #[inline(always)]
    fn announce(&mut self) -> Result<()> {
        while self.flow.is_announcement_due() && self.announcer.has_room() {
            self.announce_some()?;
        }
        Ok(())
    }

    #[inline(never)]
    fn announce_some(&mut self) -> Result<()> {
        let Self { flow, lanes, announcer, .. } = self;
        if announcer.is_plain() {
            return announcer.announce_some::<true>(flow, &mut lanes.lanes);
        }
        self.announce_in_turn()
    }

    #[inline(never)]
    fn announce_in_turn(&mut self) -> Result<()> {
        let Self { flow, lanes, announcer, .. } = self;
        let outcome = announcer.announce_some::<false>(flow, &mut lanes.lanes);
        announcer.pass_on();
        outcome
    }
}

/// A work request has succeeded.
#[inline(always)]
fn handle(flow: &mut RecvFlow, announcer: &mut Announcer, lanes: &mut [Lane], completion: &Completion) -> Result<()> {
    match WorkId::from_bits(completion.id()) {
        WorkId::Receive { lane } => {
            flow.handle_immediate(proto::Lane(lane), Imm::from_bits(completion.imm()))?;
            lanes.get_mut(usize::from(lane)).map_or_else(|| Err(no_lane()), Lane::handle_receive)
        }
        WorkId::Announce { lane } => {
            announcer.handle_completion(lane);
            Ok(())
        }
        _ => announcer.probe.handle_completion(completion.id(), "receiver"),
    }
}

#[cold]
#[inline(never)]
fn too_many_flushes() -> Error {
    let most = proto::MAX_REQUESTS;
    Error::internal(format!("{most} flushes are outstanding on this communicator, which is the most; test some first"))
}

#[cold]
#[inline(never)]
fn no_lane() -> Error {
    Error::internal("a queue pair that does not exist")
}

impl Lane {
    /// A receive has been used up.
    #[inline(always)]
    fn handle_receive(&mut self) -> Result<()> {
        self.receives = self.receives.saturating_sub(1);
        if self.receives + RECV_BATCH as u32 <= RECEIVER_DEPTHS.recv { self.refill() } else { Ok(()) }
    }

    /// Posts receives as long as a whole batch fits.
    #[inline(never)]
    fn refill(&mut self) -> Result<()> {
        while self.receives + RECV_BATCH as u32 <= RECEIVER_DEPTHS.recv {
            self.pair.post_receives(RECV_BATCH)?;
            self.receives += RECV_BATCH as u32;
        }
        Ok(())
    }
}
