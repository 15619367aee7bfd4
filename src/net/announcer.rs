//! The way of clear-to-sends into the sender's memory: over the first lane of each rail in turn.

use super::lanes::{Lane, WorkId};
use super::receiver::RECEIVER_DEPTHS;
use crate::error::{Error, Result};
use crate::proto::MAX_RAILS;
use crate::proto::handshake::{Ring, Terms};
use crate::proto::recv::RecvFlow;
use crate::proto::wire::Slot;
use crate::verbs::work::{Span, Target, Write};

/// One of so many clear-to-send work requests of a rail reports its completion, and with it that of those before it.
const SIGNAL_EVERY: u32 = 32;

/// Where clear-to-sends go, and whose turn it is to carry them.
#[derive(Debug)]
pub struct Announcer {
    ring: Ring,
    slot_bytes: usize,
    slots_per_write: u32,
    rails: usize,
    /// The rail whose turn it is.
    turn: usize,
    /// Key of the ring on that rail.
    rkey: u32,
    /// Work requests of that rail.
    account: Account,
    /// Those of the others.
    waiting: [Account; MAX_RAILS],
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
    /// A device offers no inline data.
    pub fn new(lanes: &[Lane], ring: Ring, terms: &Terms) -> Result<Self> {
        let (rails, slot_bytes) = (usize::from(terms.striping.rails()), terms.slot_bytes());
        let inline_bytes = lanes.iter().take(rails).map(|lane| lane.pair.inline_bytes()).min().unwrap_or(0);
        let slots_per_write = inline_bytes / slot_bytes as u32;
        if slots_per_write == 0 {
            let text = format!("the device takes {inline_bytes} bytes of inline data; {slot_bytes} are needed");
            return Err(Error::os(text, libc::EOPNOTSUPP));
        }
        let (account, waiting) = (Account::default(), [Account::default(); MAX_RAILS]);
        Ok(Self { ring, slot_bytes, slots_per_write, rails, turn: 0, rkey: ring.rkeys[0], account, waiting })
    }

    /// Whether there is room for another write.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.account.has_room()
    }

    /// Whether there is more than one rail to write over.
    #[inline(always)]
    pub fn has_turns(&self) -> bool {
        self.rails > 1
    }

    /// Writes as many as fit one write, inline, with one doorbell: over the rail whose turn it is, which is the first where
    /// there are no `TURNS`.
    ///
    /// # Errors
    /// The device refuses the write.
    #[inline(always)]
    pub fn announce_some<const TURNS: bool>(&mut self, flow: &mut RecvFlow, lanes: &mut [Lane]) -> Result<()> {
        let (turn, slot_bytes) = if TURNS { (self.turn, self.slot_bytes) } else { (0, Slot::BYTES) };
        let Some(lane) = lanes.get_mut(turn) else { return Err(no_lane()) };
        let Some(places) = flow.poll_announcement(self.slots_per_write) else { return Ok(()) };
        let at = places.start * slot_bytes;
        let slots = if TURNS { flow.encoded(places) } else { flow.encoded_narrow(places) };
        self.account.posted = self.account.posted.wrapping_add(1);
        lane.pair.post_write(&Write {
            id: WorkId::Announce { lane: turn as u8 }.to_bits(),
            local: Span { addr: slots.as_ptr() as u64, length: size_of_val(slots) as u32, lkey: 0 },
            target: Target { addr: self.ring.addr.wrapping_add(at as u64), rkey: self.rkey },
            imm: None,
            inline: true,
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
        self.posted.wrapping_sub(self.retired) < RECEIVER_DEPTHS.send
    }
}

#[cold]
#[inline(never)]
fn no_lane() -> Error {
    Error::internal("a queue pair that does not exist")
}
