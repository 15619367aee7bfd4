//! A receive communicator: buffers in, clear-to-sends out, completions by identity.

use super::device::Device;
use super::flush::FlushLane;
use super::lanes::{Lane, Lanes, WorkId};
use super::link::Link;
use super::region::{MemoryKind, Registration};
use super::single::SingleCaller;
use super::standing::Standing;
use crate::error::{Error, Result};
use crate::proto::handshake::{Ring, Terms};
use crate::proto::recv::{Buffer, RecvFlow};
use crate::proto::requests::RequestId;
use crate::proto::wire::{Imm, Slot};
use crate::proto::{self, MAX_GROUP, Violation};
use crate::verbs::queue::Depths;
use crate::verbs::work::{RECV_BATCH, Span, Target, Write};
use std::sync::Arc;

/// Sizes of a receiver's queues: it sends clear-to-sends only, inline, and keeps receives for all it has announced.
pub const RECEIVER_DEPTHS: Depths =
    Depths { send: 128, recv: proto::RING_SLOTS as u32, inline_bytes: (MAX_GROUP * Slot::BYTES) as u32 };
/// One of so many clear-to-send work requests reports its completion, and with it that of those before it.
const SIGNAL_EVERY: u32 = 32;
/// The lane that carries clear-to-sends.
const ANNOUNCE_LANE: usize = 0;

/// The receiving end of a connection.
#[derive(Debug)]
pub struct RecvComm {
    path: SingleCaller<RecvPath>,
    /// The peer.
    pub link: Arc<Link>,
    /// The device it is on.
    pub device: Arc<Device>,
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
    pub memory: &'a Registration,
}

/// The state behind the data path.
#[derive(Debug)]
pub struct RecvPath {
    flow: RecvFlow,
    lanes: Lanes,
    ring: Ring,
    slots_per_write: u32,
    /// Clear-to-send work requests that have been posted, and those that are known to be complete.
    announcements: u32,
    retired: u32,
    flush: Option<FlushLane>,
    standing: Standing,
}

impl RecvPath {
    /// Readies connected queue pairs: receives are posted from here on, so that the peer may send.
    ///
    /// # Errors
    /// The device offers no inline data, or refuses the receives.
    pub fn new(lanes: Lanes, ring: Ring, terms: &Terms) -> Result<Self> {
        let flow = RecvFlow::new(terms.striping);
        let inline_bytes = lanes.lanes.first().map_or(0, |lane| lane.pair.inline_bytes());
        let slots_per_write = inline_bytes / Slot::BYTES as u32;
        if slots_per_write == 0 {
            let text = format!("the device takes {inline_bytes} bytes of inline data; {} are needed", Slot::BYTES);
            return Err(Error::os(text, libc::EOPNOTSUPP));
        }
        let (announcements, retired, flush, standing) = (0, 0, None, Standing::new("receiving from"));
        let mut path = Self { flow, lanes, ring, slots_per_write, announcements, retired, flush, standing };
        for lane in &mut path.lanes.lanes {
            lane.refill()?;
        }
        Ok(path)
    }
}

impl RecvComm {
    /// A receiver.
    pub fn new(device: Arc<Device>, link: Arc<Link>, path: RecvPath) -> Self {
        Self { path: SingleCaller::new(path), link, device }
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
                path.progress(&self.device, &self.link)?;
            }
            if let Some(lengths) = path.flow.poll_done(id).map_err(Violation::into_misuse)? {
                done(lengths);
            }
            Ok(())
        })
    }

    /// Begins to make received data visible to the GPU. `None`: there is nothing to wait for.
    ///
    /// # Errors
    /// The connection has failed, or the flush cannot be posted.
    pub fn iflush<'a>(&self, received: impl Iterator<Item = Expected<'a>>) -> Result<Option<RequestId>> {
        if !self.device.config.flush {
            return Ok(None);
        }
        // One read behind the last bytes is behind all of them: they came over the same device.
        let last = received.filter(|e| e.length > 0 && e.memory.kind == MemoryKind::Gpu).last();
        let Some(Expected { addr, memory, .. }) = last else { return Ok(None) };
        self.path.enter(|path| {
            path.standing.check_failed()?;
            if path.flush.is_none() {
                path.flush = Some(FlushLane::new(&self.device)?);
            }
            let Some(flush) = &mut path.flush else { return Ok(None) };
            flush.post(addr, memory.rkey).map_err(|e| path.standing.fail(&self.link, e))
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
            let result = match &mut path.flush {
                Some(flush) => flush.test(id),
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
        link: &Arc<Link>,
    ) -> Result<Option<RequestId>> {
        self.standing.check(link)?;
        let posted = self.flow.post(count, |i| {
            let Expected { addr, length, tag, memory } = expected(i)?;
            memory.require("irecv", addr, length)?;
            Ok::<_, Error>(Buffer { addr, length, rkeys: [memory.rkey, 0], tag })
        })?;
        self.announce().map_err(|e| self.standing.fail(link, e))?;
        Ok(posted)
    }

    #[inline(always)]
    fn progress(&mut self, device: &Arc<Device>, link: &Arc<Link>) -> Result<()> {
        // Looked at before the queue: what the peer sent before it went is in the queue by then.
        let gone = link.is_gone();
        if gone {
            self.standing.check_failed()?;
        }
        let Self { flow, lanes, retired, standing, .. } = self;
        let polled = lanes.poll(device, link, |lanes, completion| match WorkId::from_bits(completion.id()) {
            WorkId::Receive { lane } => {
                flow.handle_immediate(proto::Lane(lane), Imm::from_bits(completion.imm()))?;
                lanes.get_mut(usize::from(lane)).map_or_else(|| Err(no_lane()), Lane::handle_receive)
            }
            WorkId::Announce { .. } => {
                *retired = retired.wrapping_add(SIGNAL_EVERY);
                Ok(())
            }
            _ => Err(misplaced(completion.id())),
        });
        let polled = polled.map_err(|e| standing.fail(link, e))?;
        if polled == 0 {
            self.flow.handle_fruitless_poll();
            if gone {
                let error = self.standing.refusal(link);
                return Err(self.standing.fail(link, error));
            }
        }
        self.announce().map_err(|e| self.standing.fail(link, e))
    }

    /// Writes due clear-to-sends into the sender's ring.
    #[inline(always)]
    fn announce(&mut self) -> Result<()> {
        while self.flow.is_announcement_due() && self.has_room() {
            self.announce_some()?;
        }
        Ok(())
    }

    /// Whether another clear-to-send work request fits the queue.
    #[inline]
    fn has_room(&self) -> bool {
        self.announcements.wrapping_sub(self.retired) < RECEIVER_DEPTHS.send
    }

    /// Writes as many as fit one write, inline, with one doorbell.
    #[inline(never)]
    fn announce_some(&mut self) -> Result<()> {
        let Self { flow, lanes, ring, announcements, .. } = self;
        let Some(lane) = lanes.lanes.get_mut(ANNOUNCE_LANE) else { return Err(no_lane()) };
        let Some(places) = flow.poll_announcement(self.slots_per_write) else { return Ok(()) };
        let at = places.start * Slot::BYTES;
        let slots = flow.encoded(places);
        *announcements = announcements.wrapping_add(1);
        lane.pair.post_write(&Write {
            id: WorkId::Announce { lane: ANNOUNCE_LANE as u8 }.to_bits(),
            local: Span { addr: slots.as_ptr() as u64, length: size_of_val(slots) as u32, lkey: 0 },
            target: Target { addr: ring.addr.wrapping_add(at as u64), rkey: ring.rkey },
            imm: None,
            inline: true,
            signaled: announcements.is_multiple_of(SIGNAL_EVERY),
        })
    }
}

#[cold]
#[inline(never)]
fn no_lane() -> Error {
    Error::internal("a queue pair that does not exist")
}

#[cold]
#[inline(never)]
fn misplaced(id: u64) -> Error {
    Error::internal(format!("a receiver's completion queue reports {:?}", WorkId::from_bits(id)))
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
