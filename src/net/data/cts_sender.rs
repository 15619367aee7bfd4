//! Sends clear-to-sends into the sender's memory, over the first queue pair of each rail in turn.
//!
//! Writes are inline if all devices have enough inline space. Otherwise they come from registered
//! memory, where each clear-to-send has the same slot as in the ring. A slot is reused only after
//! its message has arrived, so after the device has read it.

use super::health::Probe;
use crate::error::{Error, Result};
use crate::net::qp::set::{ConnectedQp, QpSet};
use crate::net::qp::wr_id::WrId;
use crate::proto::cts::Cts;
use crate::proto::handshake::Ring;
use crate::proto::recv::{MAX_RECEIVES, RECEIVE_BATCH, RecvFlow};
use crate::proto::{MAX_GROUP, MAX_RAILS, RING_SLOTS};
use crate::verbs::prepared_write::{InlineWrite, RefusedPost};
use crate::verbs::qp_ex::Operations;
use crate::verbs::queue_pair::QpCaps;
use crate::verbs::staging::Staging;
use crate::verbs::work::{RECV_BATCH, Sge, Target, Write};

/// Clear-to-sends per write. At 256 bytes its work request is the largest that mlx5 writes to the
/// card directly instead of having it fetched.
const INLINE_CTS: usize = 6;

/// Capacities of a receiver's queue pairs. It sends clear-to-sends, inline if the device can, and
/// sometimes a probe. It has a receive posted for each message that it has cleared to send: see
/// [`crate::proto::recv::Receives`].
pub const RECEIVER_QP_CAPS: QpCaps = QpCaps {
    max_send_wr: 64,
    max_recv_wr: MAX_RECEIVES,
    max_inline_data: (INLINE_CTS * Cts::BYTES) as u32,
    operations: Operations::WRITE,
};

const _: () = assert!(RECV_BATCH as u32 == RECEIVE_BATCH);

// As for a sender: a completion queue of 512 entries is large enough for one queue pair.
const _: () = assert!(RECEIVER_QP_CAPS.max_send_wr + RECEIVER_QP_CAPS.max_recv_wr < 512);

/// One write in this many on a rail is signalled. Its completion covers the earlier ones.
const SIGNAL_EVERY: u32 = 32;

/// Writes on a rail that may be outstanding. One more slot in the send queue is reserved for a
/// [probe](Probe).
const MAX_OUTSTANDING: u32 = RECEIVER_QP_CAPS.max_send_wr - 1;

/// The ring that clear-to-sends are written to, and the rail whose turn it is to carry them.
#[derive(Debug)]
pub struct CtsSender {
    ring: Ring,
    /// Its keys, in the order of the rails in use.
    rkeys: [u32; MAX_RAILS],
    slot_bytes: usize,
    slots_per_write: u32,
    /// Number of rails in use.
    rails: usize,
    /// Whether there is only one rail, with enough inline space, and clear-to-sends have one half.
    is_plain: bool,
    /// The write for the plain case.
    plain: InlineWrite,
    /// Source buffer where a device has too little inline space.
    staging: Option<Box<Staging>>,
    /// The rail that the next write uses.
    turn: usize,
    /// Key of the ring for that rail.
    rkey: u32,
    /// Writes on that rail.
    writes: WriteCount,
    /// Writes on the other rails.
    other_writes: [WriteCount; MAX_RAILS],
    /// How many writes had been posted at the last probe.
    probed: u32,
    /// Probes, which use the same queue pairs.
    pub(in crate::net) probe: Probe,
}

/// The number of writes on one rail.
#[derive(Debug, Clone, Copy, Default)]
struct WriteCount {
    posted: u32,
    /// Those of them known to be complete.
    completed: u32,
}

impl CtsSender {
    /// Writes clear-to-sends of `slot_bytes` into `ring`, over the first queue pairs of each rail,
    /// which are the first of `qps`.
    ///
    /// # Errors
    /// A device has too little inline data, and memory cannot be registered instead.
    pub fn new(set: &QpSet, ring: Ring, slot_bytes: usize) -> Result<Self> {
        let (qps, rails) = (&set.qps, set.rails.len());
        let mut rkeys = [0; MAX_RAILS];
        rkeys.iter_mut().zip(&set.remote.rails).for_each(|(key, far)| *key = far.ring_key);
        let inline_bytes =
            qps.iter().take(rails).map(|connected| connected.qp.inline_bytes()).min().unwrap_or(0);
        let (staging, slots_per_write) = match inline_bytes / slot_bytes as u32 {
            0 => (
                Some(Box::new(Staging::new(
                    qps.iter().take(rails).map(|connected| &connected.qp),
                    RING_SLOTS * slot_bytes,
                )?)),
                MAX_GROUP as u32,
            ),
            slots => (None, slots),
        };
        let is_plain = rails == 1 && staging.is_none() && slot_bytes == Cts::BYTES;
        let (writes, other_writes) = (WriteCount::default(), [WriteCount::default(); MAX_RAILS]);
        Ok(Self {
            ring,
            rkeys,
            slot_bytes,
            slots_per_write,
            rails,
            is_plain,
            plain: InlineWrite::new(WrId::Cts { qp: 0 }.to_bits(), rkeys[0]),
            staging,
            turn: 0,
            rkey: rkeys[0],
            writes,
            other_writes,
            probed: 0,
            probe: Probe::default(),
        })
    }

    /// Whether the current rail has room for another write.
    #[inline(always)]
    pub fn has_room(&self) -> bool {
        self.writes.has_room()
    }

    /// Sends as many clear-to-sends as fit into one write, with one doorbell. Requires that some
    /// are due and [`Self::has_room`].
    ///
    /// # Errors
    /// The device refuses the write.
    #[inline(always)]
    pub fn send_some(&mut self, flow: &mut RecvFlow, qps: &mut [ConnectedQp]) -> Result<()> {
        if self.is_plain { self.send_plain(flow, qps) } else { self.send_in_turn(flow, qps) }
    }

    /// [`Self::send_some`] for the case [`Self::is_plain`].
    ///
    /// # Errors
    /// The device refuses the write.
    #[inline(always)]
    fn send_plain(&mut self, flow: &mut RecvFlow, qps: &mut [ConnectedQp]) -> Result<()> {
        let places = flow.take_cts(self.slots_per_write);
        let at = places.start * Cts::BYTES;
        let slots = flow.encoded_cts_narrow(places);
        let (addr, length) = (slots.as_ptr() as u64, size_of_val(slots) as u32);
        let range = (addr, length, self.ring.addr.wrapping_add(at as u64));
        let is_signaled = self.writes.count();
        let Some(connected) = qps.first_mut() else { return Err(no_such_qp()) };
        match connected.qp.post_inline(&mut self.plain, range, is_signaled) {
            Ok(()) => Ok(()),
            Err(refused) => Err(refusal(qps, refused)),
        }
    }

    /// [`Self::send_some`] over the current rail; then selects the next one.
    ///
    /// # Errors
    /// The device refuses the write.
    #[inline(never)]
    fn send_in_turn(&mut self, flow: &mut RecvFlow, qps: &mut [ConnectedQp]) -> Result<()> {
        let Some(connected) = qps.get_mut(self.turn) else { return Err(no_such_qp()) };
        let places = flow.take_cts(self.slots_per_write);
        let at = places.start * self.slot_bytes;
        let slots = flow.encoded_cts(places);
        let (addr, lkey, inline) = match &mut self.staging {
            Some(staging) => (staging.put(at, slots)?, staging.lkey(self.turn), false),
            None => (slots.as_ptr() as u64, 0, true),
        };
        let outcome = connected.qp.post_write(&Write {
            id: WrId::Cts { qp: self.turn as u8 }.to_bits(),
            local: Sge { addr, length: size_of_val(slots) as u32, lkey },
            target: Target { addr: self.ring.addr.wrapping_add(at as u64), rkey: self.rkey },
            imm: None,
            inline,
            signaled: self.writes.count(),
        });
        self.pass_on();
        Ok(outcome?)
    }

    /// Handles the completion of a signalled write on rail number `rail`, which covers the earlier
    /// ones.
    #[inline(never)]
    pub fn handle_completion(&mut self, rail: u8) {
        let rail = usize::from(rail);
        let writes = if rail == self.turn {
            &mut self.writes
        } else {
            &mut self.other_writes[rail % MAX_RAILS]
        };
        writes.completed = writes.completed.wrapping_add(SIGNAL_EVERY);
        debug_assert!(
            writes.posted.wrapping_sub(writes.completed) <= MAX_OUTSTANDING,
            "more writes are complete than were posted"
        );
        if !self.has_room() {
            self.take_turn(rail);
        }
    }

    /// Posts a probe if clear-to-sends were written since the last one and none is outstanding. Its
    /// completion shows that they have arrived.
    ///
    /// # Errors
    /// The device refuses.
    #[cold]
    pub fn probe_writes(&mut self, qps: &mut QpSet) -> Result<()> {
        let posted = self
            .other_writes
            .iter()
            .fold(self.writes.posted, |sum, writes| sum.wrapping_add(writes.posted));
        if self.probe.is_outstanding() || posted == self.probed {
            return Ok(());
        }
        self.probed = posted;
        self.probe.send_now(qps)
    }

    /// Selects the next rail whose queue has room. If none has room, the first rail with a
    /// completion is next.
    fn pass_on(&mut self) {
        let mut others = (1..self.rails).map(|step| (self.turn + step) % self.rails);
        if let Some(next) = others.find(|rail| self.other_writes[*rail].has_room()) {
            self.take_turn(next);
        }
    }

    fn take_turn(&mut self, rail: usize) {
        self.other_writes[self.turn] = self.writes;
        (self.turn, self.writes, self.rkey) = (rail, self.other_writes[rail], self.rkeys[rail]);
    }
}

impl WriteCount {
    /// Counts a write that is about to be posted. Returns whether to signal it.
    #[inline(always)]
    fn count(&mut self) -> bool {
        debug_assert!(self.has_room(), "a write is posted to a full queue");
        self.posted = self.posted.wrapping_add(1);
        self.posted.is_multiple_of(SIGNAL_EVERY)
    }

    /// Whether another work request fits the queue.
    #[inline(always)]
    fn has_room(self) -> bool {
        self.posted.wrapping_sub(self.completed) < MAX_OUTSTANDING
    }
}

/// The error of the post over the first of `qps`. Looks the queue pair up again, so that nothing is
/// kept for it during the post.
#[cold]
#[inline(never)]
fn refusal(qps: &[ConnectedQp], refused: RefusedPost) -> Error {
    qps.first().map_or_else(no_such_qp, |connected| connected.qp.refusal(refused).into())
}

#[cold]
#[inline(never)]
fn no_such_qp() -> Error {
    Error::internal("a queue pair that does not exist")
}
