//! A send communicator: reads clear-to-sends, posts writes, polls completions.

use super::exclusive_cell::{ExclusiveCell, Inside};
use super::lane_trials::LaneTrials;
use super::mode::Mode;
use super::other_work::OtherWork;
use super::stall::Stall;
use super::sticky_error::StickyError;
use crate::error::{Error, Result};
use crate::net::control::peer_state::PeerState;
use crate::net::device::conn_memory::ConnMemory;
use crate::net::device::nic::Nic;
use crate::net::mr::handle::MrHandle;
use crate::net::qp::set::QpSet;
use crate::net::qp::wr_id::WrId;
use crate::net::recovery::conn::ConnRecovery;
use crate::net::recovery::end::Owner;
use crate::proto::cts::{Cts, CtsWords, SlotIndex};
use crate::proto::handshake::Negotiated;
use crate::proto::imm::Imm;
use crate::proto::rail_weights::RailWeights;
use crate::proto::recovery::action::Role;
use crate::proto::requests::{Entries, Entry};
use crate::proto::send::SendFlow;
use crate::proto::send_queue::MAX_STRIPE_WRS;
use crate::proto::send_requests::SendRequest;
use crate::proto::send_single::Usual;
use crate::proto::transfer::Transfer;
use crate::proto::{QpIndex, RING_SLOTS};
use crate::stats::labels::Labels;
use crate::stats::record::ConnStats;
use crate::verbs::prepared_write::{PreparedWrite, RefusedPost};
use crate::verbs::shared::SharedRing;
use crate::verbs::work::{Sge, Target, Write};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

/// The ring that the receiver writes clear-to-sends to.
pub type CtsRing = SharedRing<{ size_of::<CtsWords>() / 8 }, RING_SLOTS>;

/// The sending end of a connection.
#[derive(Debug)]
pub struct SendComm {
    /// The state of the data path.
    pub path: ExclusiveCell<SendPath>,
    /// The peer's state.
    pub peer: Arc<PeerState>,
    /// The device that it uses.
    pub nic: Arc<Nic>,
    /// The memory that NCCL has registered for it.
    pub memory: Arc<ConnMemory>,
    /// What the statistics say of NCCL's operation.
    pub labels: Labels,
    /// The entries of its table of requests.
    pub requests: Entries<SendRequest>,
    recovery: Option<Arc<ConnRecovery>>,
}

/// The state of the data path.
#[derive(Debug)]
pub struct SendPath {
    pub(super) flow: SendFlow,
    // Queue pairs before the ring: the peer cannot write any more when the memory is deregistered.
    pub(super) qps: QpSet,
    pub(super) ring: CtsRing,
    /// A stripe of more bytes has its immediate in a trailing write of its own. `u32::MAX`: no stripe has.
    pub(super) trailing_immediate_above: u32,
    /// Whether several writes on one queue pair have one doorbell.
    chain_writes: bool,
    pub(super) other_work: OtherWork,
    pub(super) sticky_error: StickyError,
    /// What is possible while the peer's state is not open.
    pub(super) mode: Mode,
    pub(super) stall: Stall,
    /// `None`: the first fault ends the connection.
    pub(super) recovery: Option<Arc<ConnRecovery>>,
    pub(super) peer: Arc<PeerState>,
    pub(super) memory: Arc<ConnMemory>,
    pub(super) stats: ConnStats,
    /// Whether there is one rail without lanes, and no message is being timed.
    pub(super) is_plain: bool,
    /// Messages of so many bytes or fewer, but not of 0, are one write on the only rail.
    pub(super) usual_up_to: u32,
    /// Such a message of host memory, of so many bytes or fewer, is sent inline.
    pub(super) inline_up_to: u32,
    /// The write of such a message: signalled, with immediate data.
    single: PreparedWrite,
    /// Whether it has had one rail from the beginning.
    pub(super) has_one_rail: bool,
    /// `None`: it never has lanes.
    pub(super) lane_trials: Option<Box<LaneTrials>>,
    /// Whether the tags of messages are known to be ranks.
    pub(super) tags_are_ranks: bool,
    /// Whether a message has been cut, and that been told.
    pub(super) has_cut: bool,
}

impl SendComm {
    /// A sender over connected queue pairs.
    pub fn new(
        nic: Arc<Nic>,
        peer: Arc<PeerState>,
        qps: QpSet,
        ring: CtsRing,
        terms: &Negotiated,
        weights: RailWeights,
        stats: ConnStats,
    ) -> Self {
        let trailing_immediate_above = if terms.adaptive_routing { nic.config.ar_threshold } else { u32::MAX };
        let mut flow = SendFlow::new(terms.striping, weights);
        if nic.plan.lanes {
            flow.use_lanes();
        }
        let has_one_rail = !qps.are_on_several_rails();
        let is_plain = has_one_rail && !flow.has_lanes();
        qps.watch(&peer);
        let sticky_error = StickyError::new("sending to");
        let recovery = terms.failover.then(|| ConnRecovery::new(&nic, &peer, terms, Role::Sender, &qps));
        let (memory, labels) = (ConnMemory::new(&nic, &peer, qps.devices()), Labels::of(&stats));
        let (requests, inline_up_to) = (Arc::clone(flow.entries()), qps.inline_bytes());
        // Of a peer that cuts no messages, queue pairs take turns and are no lanes, however many there are.
        let may_have_lanes = recovery.as_ref().filter(|_| terms.striping.is_split());
        let lane_trials = may_have_lanes.and_then(|_| LaneTrials::new(&nic, qps.first_number()));
        let mut path = SendPath {
            flow,
            stall: Stall::new(nic.config.stall_ms, qps.round_trip),
            qps,
            ring,
            trailing_immediate_above,
            chain_writes: nic.config.chain_writes,
            other_work: OtherWork::default(),
            sticky_error,
            mode: Mode::Running,
            recovery: recovery.clone(),
            lane_trials,
            peer: Arc::clone(&peer),
            memory: Arc::clone(&memory),
            stats,
            is_plain,
            has_one_rail,
            usual_up_to: 0,
            inline_up_to,
            tags_are_ranks: nic.has_only_ranks_as_tags(),
            has_cut: false,
            single: PreparedWrite::new(&Write {
                local: Sge { length: 1, ..Sge::default() },
                imm: Some(0),
                signaled: true,
                ..Write::default()
            }),
        };
        path.usual_up_to = path.usual_bytes();
        Self { path: ExclusiveCell::new(path, peer.word()), peer, nic, memory, labels, requests, recovery }
    }

    /// The number of its first queue pair; 0 while it has none.
    pub fn queue_pair(&self) -> u32 {
        let number = |path: &mut SendPath| Ok(path.qps.qps.first().map_or(0, |connected| connected.qp.number()));
        self.path.enter(number).unwrap_or(0)
    }

    /// `owner` has the communicator. From now on it recovers from faults, if both ends do.
    pub fn start(&self, owner: &Weak<dyn Owner>) {
        self.recovery.iter().for_each(|recovery| recovery.start(owner.clone()));
    }

    /// Begins to send `length` bytes at `addr` in the usual case: as one write, with the clear-to-send that comes next, on the only
    /// rail. The thread is `inside` of this communicator by [`Self::look_for_cts`]. `memory` returns the memory handle. Then `begun` is
    /// called. `None`: it is another case, and nothing has been done.
    ///
    /// # Errors
    /// The connection has failed.
    #[inline(always)]
    pub fn isend_usual<'a>(
        mut inside: Inside<'_, SendPath>,
        addr: u64,
        length: u32,
        tag: u32,
        memory: impl FnOnce() -> Option<&'a MrHandle>,
        begun: impl FnOnce(&Entry<SendRequest>),
    ) -> Option<Result<()>> {
        let outcome = inside.state().send_usual(addr, length, tag, memory, begun);
        inside.leave();
        outcome
    }

    /// Begins to send `length` bytes at `addr` of `memory`, in all cases. Then `begun` is called; if it is not, the receiver has not cleared
    /// it to send, or the send queues have no room: try again.
    ///
    /// # Errors
    /// The connection has failed, or the bytes are outside of `memory`.
    #[inline(never)]
    pub fn isend(
        &self,
        addr: u64,
        length: u32,
        tag: u32,
        memory: &MrHandle,
        begun: impl FnOnce(&Entry<SendRequest>),
    ) -> Result<()> {
        self.path.enter(|path| {
            if !self.peer.state().is_open() && !path.check_peer()? {
                return Ok(());
            }
            memory.require("isend", addr, length)?;
            path.send(addr, length, tag, memory, begun)
        })
    }
}

impl SendPath {
    #[inline(always)]
    fn send_usual<'a>(
        &mut self,
        addr: u64,
        length: u32,
        tag: u32,
        memory: impl FnOnce() -> Option<&'a MrHandle>,
        begun: impl FnOnce(&Entry<SendRequest>),
    ) -> Option<Result<()>> {
        if !self.is_usual(length) || self.stats.is_due_next() {
            return None;
        }
        let memory = memory()?;
        if !memory.covers(addr, length) {
            return None;
        }
        let Self { flow, ring, single, inline_up_to, .. } = self;
        let read = |seq| ring.read_found(SlotIndex::of(seq).index(), Cts::last_word_of(seq));
        let prepare = |cts: &Cts| {
            let local = Sge { addr, length, lkey: memory.lkey(0) };
            single.set_data(local, Target { addr: cts.addr, rkey: cts.rkeys[0] });
            single.set_signaled_data(memory.source(length, *inline_up_to));
        };
        let Usual::Begun(transfer) = flow.submit_single(tag, addr, length, read, prepare, begun) else { return None };
        // Not due, as has been asked.
        let _ = self.stats.handle_begun(1);
        Some(self.post_single(&transfer))
    }

    /// Whether a message of `length` bytes is one write on the only rail, and not of 0 bytes.
    #[inline(always)]
    fn is_usual(&self, length: u32) -> bool {
        length.wrapping_sub(1) < self.usual_up_to
    }

    /// Posts a message that is one write, whose data and target are prepared.
    #[inline(always)]
    fn post_single(&mut self, transfer: &Transfer) -> Result<()> {
        // The processor reads the data of an inline write. A GPU may have written it, and then a flag, which NCCL has read: no read of the data
        // may come before that of the flag.
        fence(Ordering::Acquire);
        let (qp, imm) = transfer.single();
        self.single.set_id(WrId::Data { request: transfer.id, qp: qp.0 }.to_bits(), imm.to_bits());
        let Some(connected) = self.qps.qps.get_mut(usize::from(qp.0)) else {
            return self.handle_failure(no_such_qp(qp));
        };
        match connected.qp.try_post(&mut self.single) {
            Ok(()) => Ok(()),
            Err(refused) => self.handle_refused_post(refused),
        }
    }

    /// The device has refused the write of [`Self::post_single`].
    ///
    /// # Errors
    /// The connection has failed.
    #[cold]
    #[inline(never)]
    fn handle_refused_post(&mut self, refused: RefusedPost) -> Result<()> {
        // Looked up again, so that nothing is kept for it during the post.
        let qp = WrId::from_bits(self.single.id()).qp();
        let connected = self.qps.qps.get(usize::from(qp));
        self.handle_failure(
            connected.map_or_else(|| no_such_qp(QpIndex(qp)), |connected| connected.qp.refusal(refused)),
        )
    }

    #[inline(always)]
    fn send(
        &mut self,
        addr: u64,
        length: u32,
        tag: u32,
        memory: &MrHandle,
        begun: impl FnOnce(&Entry<SendRequest>),
    ) -> Result<()> {
        if !self.has_room(length) {
            return Ok(());
        }
        let Self { flow, ring, .. } = self;
        let read = |seq| ring.read(SlotIndex::of(seq).index(), |last_word| Cts::seq_of(last_word) == seq);
        let Some(transfer) = flow.submit(tag, addr, length, read).map_err(|v| self.violated(v))? else {
            self.stats.handle_refused();
            return Ok(());
        };
        if let Some(entry) = self.flow.entry(transfer.id) {
            begun(entry);
        }
        if length > transfer.length && !self.has_cut {
            self.handle_cut(length, &transfer);
        }
        if self.stats.handle_begun(1) {
            self.handle_due(transfer.id, tag);
        }
        if self.is_usual(transfer.length) {
            let local = Sge { addr, length: transfer.length, lkey: memory.lkey(0) };
            self.single.set_data(local, Target { addr: transfer.remote_addr, rkey: transfer.rkeys[0] });
            self.single.set_signaled_data(memory.source(transfer.length, self.inline_up_to));
            return self.post_single(&transfer);
        }
        // What cannot be posted is sent when the connection has recovered.
        self.post(addr, |rail| memory.lkey(rail), transfer).or_else(|e| self.handle_failure(e))
    }

    /// Whether the send queues have room for all writes that a message of `length` bytes may take.
    #[inline]
    pub(super) fn has_room(&self, length: u32) -> bool {
        let extra = u8::from(length > self.trailing_immediate_above) + u8::from(length >= Imm::EXPLICIT_LIMIT);
        extra == 0 || self.other_work.room.has_space(self.qps.qps.len(), extra)
    }

    /// Posts a message stripe by stripe, with one doorbell each unless `FERRITE_CHAIN_WRITES` says otherwise: the data with its immediate, or, where the fabric may reorder
    /// packets, the immediate in a trailing write of its own. `lkey` returns the key of the memory by rail number.
    #[inline(never)]
    pub(super) fn post(&mut self, addr: u64, lkey: impl Fn(u8) -> u32, transfer: Transfer) -> Result<()> {
        for (stripe, imms) in transfer.stripes(|qp| self.flow.weight_of(qp)) {
            let is_trailing = stripe.length > self.trailing_immediate_above;
            let at = u64::from(stripe.offset);
            let rail = transfer.rail_of(stripe.qp);
            let rkey = self.flow.rkey(&transfer, rail, |slot| self.ring.read_front(slot.index()));
            let data = Write {
                local: Sge { addr: addr + at, length: stripe.length, lkey: lkey(rail) },
                target: Target { addr: transfer.remote_addr.wrapping_add(at), rkey },
                imm: (!is_trailing).then(|| imms.first.to_bits()),
                ..Write::default()
            };
            let immediate = |imm: u32| Write { imm: Some(imm), target: data.target, ..Write::default() };
            let mut writes = [data; MAX_STRIPE_WRS];
            let mut count = 1;
            if is_trailing {
                writes[count] = immediate(imms.first.to_bits());
                count += 1;
            }
            if let Some(second) = imms.second {
                writes[count] = immediate(second.to_bits());
                count += 1;
            }
            if self.qps.are_on_several_rails() {
                self.stats.handle_stripe(rail, stripe.length);
            }
            if self.flow.has_lanes() {
                self.stats.handle_lane_stripe(stripe.qp.0, stripe.length);
            }
            let Some(connected) = self.qps.qps.get_mut(usize::from(stripe.qp.0)) else {
                return Err(no_such_qp(stripe.qp));
            };
            let id = match (count as u8 - 1, transfer.id, stripe.qp.0) {
                (0, request, qp) => WrId::Data { request, qp },
                (extra, request, qp) => {
                    self.other_work.room.handle_posted(stripe.qp, extra);
                    WrId::LongData { request, qp, extra }
                }
            };
            writes[count - 1].signaled = true;
            // An unsignalled write that fails is reported too, with this id.
            for write in &mut writes[..count] {
                write.id = id.to_bits();
            }
            if self.chain_writes {
                connected.qp.post_writes(&writes[..count])?;
            } else {
                writes[..count].iter().try_for_each(|write| connected.qp.post_write(write))?;
            }
        }
        Ok(())
    }
}

#[cold]
#[inline(never)]
fn no_such_qp(qp: QpIndex) -> Error {
    Error::internal(format!("{qp:?} does not exist"))
}
