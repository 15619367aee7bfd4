//! The way of clear-to-sends into the sender's memory: over the first lane of each rail in turn.
//!
//! They go inline where the devices take that many bytes inline. A device that does not is given registered memory to take
//! them from, in which each has the place that it has in the ring: the place is filled again only after the message has
//! arrived that its clear-to-send asked for, and so after the device has read it.

use super::probe::Probe;
use super::receiver::RECEIVER_DEPTHS;
use crate::error::{Error, Result};
use crate::net::qp::set::{Lane, WorkId};
use crate::proto::cts::Cts;
use crate::proto::handshake::{Ring, Terms};
use crate::proto::recv::RecvFlow;
use crate::proto::{MAX_GROUP, MAX_RAILS, RING_SLOTS};
use crate::verbs::staging::Staging;
use crate::verbs::work::{Span, Target, Write};

/// One of so many clear-to-send work requests of a rail reports its completion, and with it that of those before it.
const SIGNAL_EVERY: u32 = 32;

/// Clear-to-send work requests of a rail at a time; one more place is kept for a [probe](super::probe).
const ROOM: u32 = RECEIVER_DEPTHS.send - 1;

/// Where clear-to-sends go, and whose turn it is to carry them.
#[derive(Debug)]
pub struct Announcer {
    ring: Ring,
    slot_bytes: usize,
    slots_per_write: u32,
    rails: usize,
    /// There is one rail, and all go inline over it.
    is_plain: bool,
    /// What a device takes them from that takes too little inline.
    staging: Option<Box<Staging>>,
    /// The rail whose turn it is.
    turn: usize,
    /// Key of the ring on that rail.
    rkey: u32,
    /// Work requests of that rail.
    account: Account,
    /// Those of the others.
    waiting: [Account; MAX_RAILS],
    /// Other writes on the same queue pairs.
    pub(in crate::net) probe: Probe,
}

/// Work requests of one rail.
#[derive(Debug, Clone, Copy, Default)]
struct Account {
    posted: u32,
    /// Those that are known to be complete.
    retired: u32,
}

impl Announcer {
    /// Writes into `ring` over the first of `lanes` on each rail.
    ///
    /// # Errors
    /// A device takes too little inline data, and no memory can be registered instead.
    pub fn new(lanes: &[Lane], ring: Ring, terms: &Terms) -> Result<Self> {
        let (rails, slot_bytes) = (usize::from(terms.striping.rails()), terms.slot_bytes());
        let inline_bytes = lanes.iter().take(rails).map(|lane| lane.pair.inline_bytes()).min().unwrap_or(0);
        let (staging, slots_per_write) = match inline_bytes / slot_bytes as u32 {
            0 => (
                Some(Box::new(Staging::new(lanes.iter().take(rails).map(|lane| &lane.pair), RING_SLOTS * slot_bytes)?)),
                MAX_GROUP as u32,
            ),
            slots => (None, slots),
        };
        let is_plain = rails == 1 && staging.is_none();
        let (account, waiting) = (Account::default(), [Account::default(); MAX_RAILS]);
        Ok(Self {
            ring,
            slot_bytes,
            slots_per_write,
            rails,
            is_plain,
            staging,
            turn: 0,
            rkey: ring.rkeys[0],
            account,
            waiting,
            probe: Probe::default(),
        })
    }

    /// Whether there is room for another write.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.account.has_room()
    }

    /// Whether there is one rail, and all go inline over it.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.is_plain
    }

    /// Writes as many as fit one write, with one doorbell, over the rail whose turn it is. `PLAIN`: as [`Self::is_plain`] says.
    ///
    /// # Errors
    /// The device refuses the write.
    #[inline(always)]
    pub fn announce_some<const PLAIN: bool>(&mut self, flow: &mut RecvFlow, lanes: &mut [Lane]) -> Result<()> {
        let (turn, slot_bytes) = if PLAIN { (0, Cts::BYTES) } else { (self.turn, self.slot_bytes) };
        let Some(lane) = lanes.get_mut(turn) else { return Err(no_lane()) };
        let Some(places) = flow.poll_cts(self.slots_per_write) else { return Ok(()) };
        let at = places.start * slot_bytes;
        let slots = if PLAIN { flow.encoded_cts_narrow(places) } else { flow.encoded_cts(places) };
        let (addr, lkey, inline) = match &mut self.staging {
            Some(staging) if !PLAIN => (staging.put(at, slots)?, staging.lkey(turn), false),
            _ => (slots.as_ptr() as u64, 0, true),
        };
        self.account.posted = self.account.posted.wrapping_add(1);
        lane.pair.post_write(&Write {
            id: WorkId::Announce { lane: turn as u8 }.to_bits(),
            local: Span { addr, length: size_of_val(slots) as u32, lkey },
            target: Target { addr: self.ring.addr.wrapping_add(at as u64), rkey: self.rkey },
            imm: None,
            inline,
            signaled: self.account.posted.is_multiple_of(SIGNAL_EVERY),
        })
    }

    /// The completion of a write on the first lane of rail number `rail` tells of those before it, too.
    #[inline(never)]
    pub fn handle_completion(&mut self, rail: u8) {
        let rail = usize::from(rail);
        let account = if rail == self.turn { &mut self.account } else { &mut self.waiting[rail % MAX_RAILS] };
        account.retired = account.retired.wrapping_add(SIGNAL_EVERY);
        if !self.has_room() {
            self.take_turn(rail);
        }
    }

    /// It is the next rail's turn whose queue has room. If none has, the first one that completes something gets it.
    pub fn pass_on(&mut self) {
        let mut others = (1..self.rails).map(|step| (self.turn + step) % self.rails);
        if let Some(next) = others.find(|rail| self.waiting[*rail].has_room()) {
            self.take_turn(next);
        }
    }

    fn take_turn(&mut self, rail: usize) {
        self.waiting[self.turn] = self.account;
        (self.turn, self.account, self.rkey) = (rail, self.waiting[rail], self.ring.rkeys[rail]);
    }
}

impl Account {
    /// Whether another work request fits the queue.
    #[inline(always)]
    fn has_room(self) -> bool {
        self.posted.wrapping_sub(self.retired) < ROOM
    }
}

#[cold]
#[inline(never)]
fn no_lane() -> Error {
    Error::internal("a queue pair that does not exist")
}
