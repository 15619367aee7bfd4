//! A send communicator: reads clear-to-sends, posts writes, polls completions, and resends over new
//! queue pairs after a fault.

use super::both_ends::{Done, Outcome, Path, Test, Tested, end_check, name_operation};
use super::exclusive_cell::{BegunCall, ExclusiveCell, FirstStep, Inside};
use super::health::{DeadPathDetector, Mode, Probe, StickyError};
use crate::error::{Error, Result};
use crate::net::device::conn_memory::ConnMemory;
use crate::net::device::nic::Nic;
use crate::net::mr::handle::MrHandle;
use crate::net::operations::snapshot::OperationsSnapshot;
use crate::net::peer::state::PeerState;
use crate::net::qp::fence::Drained;
use crate::net::qp::set::{InitQpSet, QpSet};
use crate::net::qp::wr_id::WrId;
use crate::net::recovery::conn::ConnRecovery;
use crate::net::recovery::end::{End, Owner};
use crate::proto::cts::{Cts, CtsWords, SlotIndex};
use crate::proto::explain::snapshot::{EndCheck, EndSnapshot};
use crate::proto::handshake::Negotiated;
use crate::proto::imm::Imm;
use crate::proto::rail_weights::RailWeights;
use crate::proto::recovery::machine::Role;
use crate::proto::recovery::missing_list::MissingList;
use crate::proto::recovery::move_budget::{Carried, Speeds};
use crate::proto::requests::{Entries, Entry, RequestId, SendRequest, TestResult};
use crate::proto::send::MissingListError;
use crate::proto::send::{
    FastSubmit, MAX_STRIPE_WRS, SEND_QUEUE_DEPTH, SendFlow, SendQueueSpace, SendRefusal, Transfer,
};
use crate::proto::{MAX_MESSAGE, QpIndex, RING_SLOTS, Violation};
use crate::stats::Completed;
use crate::stats::labels::Labels;
use crate::stats::record::ConnStats;
use crate::verbs::clock;
use crate::verbs::device_memory::read_barrier;
use crate::verbs::prepared_write::{Data, ImmediateWrite, RefusedPost};
use crate::verbs::qp_ex::Operations;
use crate::verbs::queue_pair::QpCaps;
use crate::verbs::shared::SharedRing;
use crate::verbs::status::Status;
use crate::verbs::work::{Batch, Completion, ReadOutcome, Sge, Success, Target, Unread, Write};
use std::sync::{Arc, Weak};
use std::time::Instant;

/// Bytes of a message that a sender sends inline. mlx5 lays out a write with immediate in 64 bytes,
/// and this many fit beside its header, so queues do not grow.
const INLINE_MESSAGE: u32 = 28;

/// Capacities of a sender's queue pairs. It sends short messages of host memory inline.
/// [`crate::proto::send::SendQueueSpace`] explains why its send queue never overflows. It receives
/// nothing; every device accepts one receive work request, and some accept no fewer.
pub const SENDER_QP_CAPS: QpCaps = QpCaps {
    max_send_wr: SEND_QUEUE_DEPTH,
    max_recv_wr: 1,
    max_inline_data: INLINE_MESSAGE,
    operations: Operations::WRITE_AND_IMM,
};

// 257 or more entries are rounded up to 512, which is large enough for one queue pair.
const _: () = assert!(SENDER_QP_CAPS.max_send_wr + SENDER_QP_CAPS.max_recv_wr < 512);

/// The ring that the receiver writes clear-to-sends to.
pub type CtsRing = SharedRing<{ size_of::<CtsWords>() / 8 }, RING_SLOTS>;

/// The sending end of a connection.
#[repr(C)]
#[derive(Debug)]
pub struct SendComm {
    /// The state of the data path. First, as in [`ExclusiveCell`].
    pub path: ExclusiveCell<SendPath>,
    /// The peer's state.
    pub peer: Arc<PeerState>,
    /// The device that it uses.
    pub nic: Arc<Nic>,
    /// The memory that NCCL has registered for it.
    pub memory: Arc<ConnMemory>,
    /// The labels of NCCL's operation in the statistics.
    pub labels: Labels,
    /// The entries of its request table.
    pub requests: Entries<SendRequest>,
    /// `None`: the first fault ends the connection.
    pub(in crate::net) recovery: Option<Arc<ConnRecovery>>,
}

/// The state of the data path.
///
/// Its methods come in these groups, in this order:
/// - `isend`: `look_for_cts` and `send_next`, and `send` for all cases; `post*`, which hand writes
///   to the device;
/// - `test`: those of [`Path`], and `progress`, which polls all queues;
/// - while a message is timed: `handle_due`, `choose_path`;
/// - during a fault: `check_*`, which NCCL's calls run; `replay`, which resends.
#[derive(Debug)]
pub struct SendPath {
    flow: SendFlow,
    // Queue pairs before the ring: the peer can no longer write when the memory is deregistered.
    qps: QpSet,
    ring: CtsRing,
    /// A longer stripe has its immediate in a separate trailing write. `u32::MAX`: no stripe has.
    trailing_immediate_above: u32,
    /// Whether several writes on one queue pair share one doorbell.
    chain_writes: bool,
    other_work: OtherWork,
    sticky_error: StickyError,
    /// What is possible while the peer's state is not open.
    mode: Mode,
    dead_path: DeadPathDetector,
    /// `None`: the first fault ends the connection.
    recovery: Option<Arc<ConnRecovery>>,
    peer: Arc<PeerState>,
    memory: Arc<ConnMemory>,
    stats: ConnStats,
    /// Whether there is one rail without lanes, and no message is being timed.
    is_plain: bool,
    /// Messages of up to this many bytes, except 0, are one write on the only rail.
    fast_up_to: u32,
    /// Messages of host memory of up to this many bytes are sent inline.
    inline_up_to: u32,
    /// The write of such a message.
    single: ImmediateWrite,
    /// Whether it has had one rail from the beginning.
    has_one_rail: bool,
    /// `None`: its lanes never move to other paths.
    speed_meter: Option<Box<SpeedMeter>>,
    /// Whether the tags of messages are known to be ranks.
    tags_are_ranks: bool,
    /// Whether a message has been truncated and a warning logged.
    has_cut: bool,
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
        let trailing_immediate_above =
            if terms.adaptive_routing { nic.config.ar_threshold } else { u32::MAX };
        let mut flow = SendFlow::new(terms.striping, weights);
        if nic.config.lanes {
            flow.use_lanes();
        }
        let has_one_rail = terms.count == 1;
        let is_plain = !qps.are_on_several_rails() && !flow.has_lanes();
        qps.watch(&peer);
        let sticky_error = StickyError::new("sending to");
        let recovery =
            terms.failover.then(|| ConnRecovery::new(&nic, &peer, terms, Role::Sender, &qps));
        let (memory, labels) = (ConnMemory::new(&nic, &peer, qps.devices()), Labels::of(&stats));
        let (requests, inline_up_to) = (Arc::clone(flow.entries()), qps.inline_bytes());
        let may_move = recovery.is_some() && terms.striping.is_split() && qps.labels.are_used();
        let mut path = SendPath {
            flow,
            dead_path: DeadPathDetector::new(nic.config.stall_ms, qps.round_trip),
            qps,
            ring,
            trailing_immediate_above,
            chain_writes: nic.config.chain_writes,
            other_work: OtherWork::default(),
            sticky_error,
            mode: Mode::Running,
            recovery: recovery.clone(),
            speed_meter: may_move.then(Box::default),
            peer: Arc::clone(&peer),
            memory: Arc::clone(&memory),
            stats,
            is_plain,
            has_one_rail,
            fast_up_to: 0,
            inline_up_to,
            tags_are_ranks: nic.has_only_ranks_as_tags(),
            has_cut: false,
            single: ImmediateWrite::default(),
        };
        path.fast_up_to = path.fast_bytes();
        Self {
            path: ExclusiveCell::new(path, peer.word()),
            peer,
            nic,
            memory,
            labels,
            requests,
            recovery,
        }
    }

    /// NCCL's `isend` of `length` bytes, at most [`MAX_MESSAGE`], in `memory`. Calls `begun` on
    /// success. If it does not, the receiver has not cleared the message or the send queues are
    /// full: try again. `memory` is only called if the message may begin.
    ///
    /// # Errors
    /// The connection has failed, or the bytes are outside `memory`.
    #[inline(always)]
    pub fn isend<'m, O: Outcome>(
        &self,
        addr: u64,
        length: u32,
        tag: u32,
        memory: impl FnOnce() -> Result<&'m MrHandle>,
        begun: impl FnOnce(&Entry<SendRequest>) + Copy,
    ) -> O {
        match self.path.begin(SendPath::look_for_cts) {
            BegunCall::Done => O::SUCCESS,
            BegunCall::Next(inside) => isend_next(inside, addr, length, tag, memory, begun),
            BegunCall::Other => isend_in_general(&self.path, addr, length, tag, memory, begun),
        }
    }

    /// Starts recovery from faults, if both ends support it. `owner` holds the communicator.
    pub fn start(&self, owner: &Weak<dyn Owner>) {
        self.recovery.iter().for_each(|recovery| recovery.start(owner.clone()));
    }

    /// Records that NCCL reports operations for its messages, so tags are ranks.
    pub fn handle_operation(&self) {
        if !self.nic.has_only_ranks_as_tags() {
            // If another thread is inside, the next message repeats this call.
            let _ = self.path.enter(|path| {
                path.tags_are_ranks = true;
                Ok(())
            });
        }
    }

    /// The present state, unless a thread is inside.
    pub fn snapshot(&self) -> EndCheck {
        let snapshot = self.path.try_visit(|path| {
            let ring = &path.ring;
            let read = |seq| {
                ring.read(SlotIndex::of(seq).index(), |last_word| Cts::seq_of(last_word) == seq)
            };
            let snapshot = path.flow.snapshot(path.dead_path.tests(), read);
            EndSnapshot {
                sender_rank: snapshot.sender_rank.filter(|_| path.tags_are_ranks),
                ..snapshot
            }
        });
        end_check(snapshot, &self.peer)
    }
}

/// [`SendComm::isend`], where the fast path continues.
#[inline(never)]
extern "C" fn isend_next<'m, O: Outcome>(
    inside: Inside<'_, SendPath>,
    addr: u64,
    length: u32,
    tag: u32,
    memory: impl FnOnce() -> Result<&'m MrHandle>,
    begun: impl FnOnce(&Entry<SendRequest>) + Copy,
) -> O {
    inside.end("isend", |path| path.send_next(addr, length, tag, memory()?, begun))
}

/// [`SendComm::isend`] by the slow path.
#[inline(never)]
extern "C" fn isend_in_general<'m, O: Outcome>(
    path: &ExclusiveCell<SendPath>,
    addr: u64,
    length: u32,
    tag: u32,
    memory: impl FnOnce() -> Result<&'m MrHandle>,
    begun: impl FnOnce(&Entry<SendRequest>) + Copy,
) -> O {
    O::of("isend", || {
        let memory = memory()?;
        path.report(|path| path.send(addr, length, tag, memory, begun))
    })
}

impl Tested for SendComm {
    type Path = SendPath;

    #[inline(always)]
    fn path(&self) -> &ExclusiveCell<SendPath> {
        &self.path
    }
}

impl End for SendComm {
    fn memory(&self) -> &ConnMemory {
        &self.memory
    }

    fn describe(&self, qps: &mut InitQpSet) -> Result<()> {
        self.path.visit(|path| qps.describe_ring(&mut path.ring))
    }

    fn caps(&self) -> QpCaps {
        SENDER_QP_CAPS
    }

    fn poll(&self) -> Result<usize> {
        self.path.visit(SendPath::poll_any)
    }

    fn probe(&self) -> Result<()> {
        self.path.visit(|path| {
            path.check_peer()?;
            path.poll_any().map(drop)
        })
    }

    fn is_reporting(&self) -> Result<bool> {
        Ok(true)
    }

    fn take_qps(&self) -> Result<QpSet> {
        self.path.visit(|path| {
            // Set while no other thread is inside: the end of a replay, which clears it, also
            // happens inside.
            self.peer.set_recovering(true);
            path.mode = Mode::Fenced;
            Ok(path.qps.take())
        })
    }

    /// Nothing to do: the receiver's missing list says what has arrived.
    fn handle_drained(&self, _drained: &Drained) -> Result<()> {
        Ok(())
    }

    fn prepare(&self, _qps: &mut QpSet) -> Result<()> {
        Ok(())
    }

    fn resume(
        &self,
        qps: QpSet,
        weights: RailWeights,
        missing_list: Option<&MissingList>,
    ) -> Result<Option<MissingList>> {
        let missing_list = missing_list
            .ok_or_else(|| Error::internal("a sender resumes without a missing list"))?;
        let (striping, mut unused) = (qps.striping, Some(qps));
        // If the list does not apply, they are destroyed after the visit: NCCL's thread waits for
        // that.
        self.path.visit(|path| {
            path.flow
                .apply_missing_list(missing_list, striping, weights)
                .map_err(|why| unapplied(&why))?;
            let Some(qps) = unused.take() else { return Ok(None) };
            path.memory.use_devices(qps.devices());
            qps.record_in(&path.stats);
            path.stats.handle_recovery();
            path.stats.set_moves(qps.labels.replaced());
            path.dead_path.reset(qps.round_trip);
            path.use_qps(qps);
            path.choose_path();
            path.other_work = OtherWork::default();
            path.mode = Mode::Replaying;
            path.replay().map(|()| None)
        })
    }

    fn drain(&self) -> Result<()> {
        self.path.visit(|path| {
            self.peer.set_recovering(true);
            path.mode = Mode::Draining;
            Ok(())
        })
    }

    fn keep_queue_pairs(&self) -> Result<()> {
        self.path.visit(|path| {
            if path.mode == Mode::Draining {
                // Messages of the latest missing list may still be unsent.
                path.mode = Mode::Replaying;
            }
            path.replay()
        })
    }

    fn is_drained(&self) -> Result<bool> {
        self.path.visit(|path| {
            path.poll_any()?;
            Ok(path.flow.outstanding() == 0)
        })
    }
}

// `isend`: begins messages, and posts them.
impl SendPath {
    /// The first step of [`SendComm::isend`]: checks whether the receiver has cleared a message to
    /// send.
    #[inline(always)]
    fn look_for_cts(&mut self) -> FirstStep {
        let Self { flow, ring, stats, .. } = self;
        let is_there = |seq| {
            ring.is_there(SlotIndex::of(seq).index(), |last_word| Cts::seq_of(last_word) == seq)
        };
        match flow.refuse(is_there) {
            SendRefusal::Next => FirstStep::Next,
            SendRefusal::Again => FirstStep::Done,
            SendRefusal::First if stats.handle_refused_untimed() => FirstStep::Done,
            SendRefusal::First | SendRefusal::No => FirstStep::Other,
        }
    }

    /// Sends a message whose clear-to-send may be there; on the fast path as one write on the only
    /// rail.
    ///
    /// # Errors
    /// The connection has failed, or the bytes are outside `memory`.
    #[inline(always)]
    fn send_next(
        &mut self,
        addr: u64,
        length: u32,
        tag: u32,
        memory: &MrHandle,
        begun: impl FnOnce(&Entry<SendRequest>) + Copy,
    ) -> Result<()> {
        if self.is_fast(length) && !self.stats.is_due_next() && memory.covers(addr, length) {
            let Self { flow, ring, .. } = self;
            let read = |seq| ring.read_found(SlotIndex::of(seq).index(), Cts::last_word_of(seq));
            if let FastSubmit::Begun(transfer) = flow.submit_single(tag, addr, length, read, begun)
            {
                // The timer is not due: `is_due_next` was false above.
                let _ = self.stats.handle_begun(1);
                return self.post_single(&transfer, addr, memory);
            }
        }
        self.send(addr, length, tag, memory, begun)
    }

    /// Whether a message of `length` bytes, which is not 0, is one write on the only rail.
    #[inline(always)]
    fn is_fast(&self, length: u32) -> bool {
        length.wrapping_sub(1) < self.fast_up_to
    }

    /// Posts a message at `addr` in `memory` that is one write.
    #[inline(always)]
    fn post_single(&mut self, transfer: &Transfer, addr: u64, memory: &MrHandle) -> Result<()> {
        debug_assert!(self.is_fast(transfer.length), "the message needs more than one write");
        debug_assert_eq!(
            self.mode,
            Mode::Running,
            "a message begins while the connection is not running"
        );
        // The processor reads the data of an inline write. A GPU may have written the data, and
        // then a flag that NCCL has read.
        read_barrier();
        let (qp, imm) = transfer.single();
        let id = WrId::Data { request: transfer.id, qp: qp.0 }.to_bits();
        let Some(connected) = self.qps.qps.get_mut(usize::from(qp.0)) else {
            return self.recover_or_fail(no_such_qp(qp));
        };
        let length = transfer.length;
        let data = Data {
            local: Sge { addr, length, lkey: memory.lkey(0) },
            target: Target { addr: transfer.remote_addr, rkey: transfer.rkeys[0] },
            source: memory.source(length, self.inline_up_to),
        };
        match connected.qp.post_immediate(&mut self.single, (id, imm.to_bits()), data) {
            Ok(()) => Ok(()),
            Err(refused) => self.handle_refused_post(refused),
        }
    }

    /// Handles a write of [`Self::post_single`] that the device has refused.
    ///
    /// # Errors
    /// The connection has failed.
    #[cold]
    #[inline(never)]
    fn handle_refused_post(&mut self, refused: RefusedPost) -> Result<()> {
        // Looked up again, so that nothing is kept for it during the post.
        let qp = WrId::from_bits(refused.id).qp();
        let connected = self.qps.qps.get(usize::from(qp));
        self.recover_or_fail(connected.map_or_else(
            || no_such_qp(QpIndex(qp)),
            |connected| connected.qp.refusal(refused).into(),
        ))
    }

    /// [`SendComm::isend`] for all cases.
    ///
    /// # Errors
    /// As there.
    #[inline(never)]
    fn send(
        &mut self,
        addr: u64,
        length: u32,
        tag: u32,
        memory: &MrHandle,
        begun: impl FnOnce(&Entry<SendRequest>),
    ) -> Result<()> {
        debug_assert!(length <= MAX_MESSAGE, "nobody has checked the length");
        memory.require("isend", addr, length)?;
        if !self.peer.state().is_open() && !self.check_peer()? {
            return Ok(());
        }
        if !self.has_room(length) {
            return Ok(());
        }
        let Self { flow, ring, .. } = self;
        let read =
            |seq| ring.read(SlotIndex::of(seq).index(), |last_word| Cts::seq_of(last_word) == seq);
        let Some(transfer) = flow.submit(tag, addr, length, read).map_err(|v| self.violated(v))?
        else {
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
        if self.is_fast(transfer.length) {
            return self.post_single(&transfer, addr, memory);
        }
        // What cannot be posted is sent after the recovery.
        self.post(addr, |rail| memory.lkey(rail), transfer).or_else(|e| self.recover_or_fail(e))
    }

    /// Whether the send queues have room for all writes that a message of `length` bytes may need.
    #[inline]
    fn has_room(&self, length: u32) -> bool {
        let extra = u8::from(length > self.trailing_immediate_above)
            + u8::from(length >= Imm::EXPLICIT_LIMIT);
        extra == 0 || self.other_work.room.has_space(self.qps.qps.len(), extra)
    }

    /// Posts a message stripe by stripe, with one doorbell per stripe unless `FERRITE_CHAIN_WRITES`
    /// is off. A stripe is the data with its immediate. Where the fabric may reorder packets, the
    /// immediate is in a trailing write. `lkey` returns the key of the memory by rail number.
    #[inline(never)]
    fn post(&mut self, addr: u64, lkey: impl Fn(u8) -> u32, transfer: Transfer) -> Result<()> {
        if self.qps.are_on_several_rails() || self.flow.has_lanes() {
            self.flow.handle_posted(&transfer);
        }
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
            let immediate =
                |imm: u32| Write { imm: Some(imm), target: data.target, ..Write::default() };
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
            // A failed unsignalled write is reported too, with this id.
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

    /// Warns that a message of `length` bytes has been truncated to the bytes of `transfer`.
    #[cold]
    #[inline(never)]
    fn handle_cut(&mut self, length: u32, transfer: &Transfer) {
        self.has_cut = true;
        let operation = OperationsSnapshot::now().operation_of(&Labels::of(&self.stats));
        let within = operation.map(|operation| format!(" in {operation}")).unwrap_or_default();
        log::warn!(
            "{}: a message of {length} bytes to {}{within} is longer than its receive of {} bytes, and is cut to that size. The two ranks differ \
             in the count, the data type or the order of their operations, or in a buffer size (NCCL_BUFFSIZE, NCCL_P2P_NET_CHUNKSIZE, \
             NCCL_CHUNK_SIZE). It is reported once for each connection",
            self.qps.name,
            self.peer.peer(),
            transfer.length,
        );
    }
}

// `test`: handles completions.
impl Path for SendPath {
    type Request = SendRequest;

    #[inline(always)]
    fn peer(&self) -> &PeerState {
        &self.peer
    }

    #[cold]
    #[inline(never)]
    fn log_once(&mut self, error: Error) -> Error {
        self.sticky_error.log_once(error, &Labels::of(&self.stats))
    }

    #[inline(always)]
    fn is_plain(&self) -> bool {
        self.is_plain
    }

    #[inline(always)]
    fn qps(&mut self) -> &mut QpSet {
        &mut self.qps
    }

    #[inline(always)]
    fn finish_fast(&mut self, test: &Test<'_, SendRequest, impl Done>) -> TestResult {
        let progress = self.flow.progress(test.request);
        if let TestResult::Finished(length) = progress {
            self.stats.handle_done(length);
            (test.done)(&[length]);
        }
        progress
    }

    #[inline(always)]
    fn finish(&mut self, test: &Test<'_, SendRequest, impl Done>) -> Result<bool> {
        let Some(length) = self.flow.finish(test.request).map_err(Error::misuse)? else {
            return Ok(false);
        };
        self.stats.handle_done(length);
        (test.done)(&[length]);
        Ok(true)
    }

    #[inline(always)]
    fn has_nothing_to_do(&mut self) -> bool {
        !self.dead_path.is_due()
    }

    #[cold]
    #[inline(never)]
    fn handle_empty_poll(&mut self, _test: &Test<'_, SendRequest, impl Done>) -> Result<()> {
        self.check_path()
    }

    #[inline(always)]
    fn read_fast<'c>(
        &mut self,
        unread: Unread,
        batch: &'c mut Batch,
    ) -> Result<Option<&'c [Completion]>> {
        let Self { flow, qps, stats, .. } = self;
        // A message has at most one completion for each queue pair. Looking for one more takes
        // longer.
        let most = stats.outstanding() * qps.qps.len();
        let Some(queue) = qps.first_queue() else { return Ok(None) };
        Ok(queue.read(unread, batch, most, |success| take(flow, success))?)
    }

    #[inline(always)]
    fn handle_fast<'c>(&mut self, mut completions: &'c [Completion]) -> Option<&'c [Completion]> {
        while let [completion, others @ ..] = completions {
            match completion.success().map(|success| take(&mut self.flow, success)) {
                Some(ReadOutcome::Yes) => completions = others,
                _ => return Some(completions),
            }
        }
        None
    }

    #[inline(always)]
    fn finish_fast_completions(&mut self, test: &Test<'_, SendRequest, impl Done>) -> bool {
        self.finish_fast(test);
        true
    }

    #[inline(always)]
    fn handle_completions(&mut self, mut completions: &[Completion]) -> Result<()> {
        while let [completion, others @ ..] = completions {
            if completion.status() != Status::SUCCESS {
                return self.handle_batch_with_errors(completions, Ok(()));
            }
            if let Err(e) = handle_sent(&mut self.flow, &mut self.other_work, completion) {
                return self.handle_batch_with_errors(others, Err(e));
            }
            completions = others;
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    fn recover_or_fail(&mut self, error: Error) -> Result<()> {
        if let Some(recovery) = self.recovery.as_ref().filter(|_| error.is_recoverable)
            && !self.peer.is_broken()
        {
            let lagging = if self.qps.labels.are_used() { self.flow.lagging_lanes() } else { 0 };
            return recovery
                .report(&error.text(), lagging)
                .map_err(|e| self.sticky_error.fail(&self.peer, e));
        }
        Err(self.sticky_error.fail(&self.peer, error))
    }

    /// Also checks whether the timed message is complete.
    #[inline(never)]
    fn progress_in_general(&mut self, _test: &Test<'_, SendRequest, impl Done>) -> Result<()> {
        let outcome = self.progress();
        if let Some(id) = self.stats.timed_request() {
            match self.flow.is_done(RequestId::from_bits(id)) {
                Ok(false) => return outcome,
                Ok(true) => {
                    let bytes = self.flow.bytes(RequestId::from_bits(id));
                    self.stats.handle_timed_done(Completed { messages: 1, bytes });
                    self.speed_meter.iter_mut().for_each(|speed_meter| speed_meter.handle_done());
                }
                Err(_) => self.stats.forget_timed(),
            }
        }
        self.choose_path();
        outcome
    }
}

// Helpers of `test`.
impl SendPath {
    /// Polls all completion queues, or does its equivalent outside normal operation.
    ///
    /// # Errors
    /// The connection has failed.
    fn progress(&mut self) -> Result<()> {
        if !self.peer.state().is_open() {
            return self.progress_not_open();
        }
        match self.poll_rails() {
            Ok(0) if self.dead_path.is_due() => self.check_path(),
            Ok(_) => Ok(()),
            Err(e) => self.recover_or_fail(e),
        }
    }

    /// [`Self::handle_completions`] where one has failed, or `outcome` is an error of earlier ones.
    ///
    /// # Errors
    /// The connection has failed.
    #[cold]
    #[inline(never)]
    fn handle_batch_with_errors(
        &mut self,
        completions: &[Completion],
        outcome: Result<()>,
    ) -> Result<()> {
        let Self { flow, qps, other_work, peer, .. } = self;
        qps.for_each_success(peer, completions, outcome, |_, completion| {
            handle_sent(flow, other_work, completion)
        })
    }

    #[inline(never)]
    fn poll_rails(&mut self) -> Result<usize> {
        let Self { flow, qps, other_work, peer, .. } = self;
        flow.handle_poll();
        qps.poll_rails(peer, |_, completion| match WrId::from_bits(completion.id()) {
            WrId::Data { request, qp } => Ok(flow.handle_completion_on(request, QpIndex(qp))?),
            _ => match other_work.handle_completion(completion.id())? {
                Some((request, qp)) => Ok(flow.handle_completion_on(request, qp)?),
                None => Ok(()),
            },
        })
    }
}

// While a message is timed: checks after each poll whether it is complete.
impl SendPath {
    /// Handles that a message has been accepted that is timed, or the one before it.
    #[cold]
    #[inline(never)]
    fn handle_due(&mut self, id: RequestId, tag: u32) {
        self.stats.handle_due_send(id.to_bits(), Some(tag).filter(|_| self.tags_are_ranks));
        if self.stats.timed_request() == Some(id.to_bits())
            && let Some(place) = self.flow.place(id)
        {
            self.stats.set_timed_place(place);
            // This scans all requests, so do it only where it is needed.
            if let Some(speed_meter) = self.speed_meter.as_mut().filter(|_| self.flow.has_lanes())
                && let Some((_, bytes)) = self.flow.unacknowledged()
            {
                speed_meter.begun = Some((clock::now(), bytes));
            }
        }
        name_operation(&mut self.stats, id);
        self.choose_path();
    }

    /// Call when the rails or the timed message have changed.
    fn choose_path(&mut self) {
        let is_one = !self.qps.are_on_several_rails() && !self.flow.has_lanes();
        self.is_plain = is_one && self.stats.timed_request().is_none();
    }
}

// During a fault: reports it, and resumes over new queue pairs.
impl SendPath {
    /// Call when the peer's state is not open. Returns whether a message may be sent, which is
    /// false during a recovery. If only the control connection is lost, sends a probe; no message
    /// may be sent while it is outstanding. The send queues have room for a probe only while no
    /// message is in flight.
    ///
    /// # Errors
    /// The peer has gone, or its device does not acknowledge.
    #[cold]
    #[inline(never)]
    fn check_peer(&mut self) -> Result<bool> {
        self.sticky_error.check(&self.peer)?;
        if self.peer.is_recovering() {
            return self.replay().map(|()| false);
        }
        if self.flow.is_idle()
            && let Err(e) = self.other_work.probe.send(&mut self.qps, self.peer.is_doubted())
        {
            self.recover_or_fail(e)?;
        }
        if self.other_work.probe.is_outstanding() {
            self.poll_any()?;
        }
        Ok(!self.other_work.probe.is_outstanding())
    }

    /// [`Self::progress`] while the peer's state is not open.
    ///
    /// # Errors
    /// The connection has failed, or what is in flight cannot complete.
    #[cold]
    #[inline(never)]
    fn progress_not_open(&mut self) -> Result<()> {
        self.sticky_error.check_failed()?;
        if self.recovery.is_some() && self.peer.state().has_closed() {
            // The peer closes only when everything that has begun has arrived. If acknowledgements
            // are lost, the device would report that much later or never.
            self.flow.complete_all();
            return Ok(());
        }
        // Read before the queue is polled, so that everything the peer acknowledged before it went
        // is in the queue.
        let is_broken = self.peer.is_broken();
        let polled = self.poll_any()?;
        self.replay()?;
        if polled == 0 && is_broken {
            let error = self.sticky_error.reason(&self.peer);
            return Err(self.sticky_error.fail(&self.peer, error));
        }
        Ok(())
    }

    /// Polls all completion queues; returns the number of completions.
    ///
    /// # Errors
    /// The connection has failed.
    fn poll_any(&mut self) -> Result<usize> {
        match self.poll_rails() {
            Ok(polled) => {
                if polled > 0 {
                    self.peer.handle_acknowledged();
                }
                Ok(polled)
            }
            Err(e) => self.recover_or_fail(e).map(|()| 1),
        }
    }

    /// The receiver has written an invalid clear-to-send.
    #[cold]
    #[inline(never)]
    fn violated(&mut self, violation: Violation) -> Error {
        self.sticky_error.fail(&self.peer, violation.into())
    }

    /// Handles many unsuccessful tests.
    ///
    /// # Errors
    /// The connection ends.
    #[cold]
    #[inline(never)]
    fn check_path(&mut self) -> Result<()> {
        if let (Some(qp), Some(recovery)) = (self.flow.poll_slow_lane(), &self.recovery)
            && self.qps.labels.are_used()
        {
            let speed =
                self.speed_meter.as_ref().and_then(|speed_meter| speed_meter.speeds.speed());
            recovery.report_slow_lane(qp, speed);
        }
        let (Some((oldest, bytes)), Some(recovery)) = (self.flow.unacknowledged(), &self.recovery)
        else {
            return Ok(());
        };
        let now = clock::now();
        let waited = self.dead_path.check(oldest, self.qps.time_to_carry(bytes), now);
        let Some(waited) = waited.filter(|waited| recovery.may_start(*waited)) else {
            return Ok(());
        };
        self.dead_path.back_off(now);
        let text = format!(
            "no data has been acknowledged for {} ms (FERRITE_STALL_MS)",
            waited.as_millis()
        );
        self.recover_or_fail(Error::remote(text).recoverable())
    }

    /// Uses `qps` from now on; messages are already cut for them.
    fn use_qps(&mut self, qps: QpSet) {
        debug_assert!(self.qps.qps.is_empty(), "queue pairs are replaced that were not taken out");
        self.inline_up_to = qps.inline_bytes();
        self.qps = qps;
        self.fast_up_to = self.fast_bytes();
        self.speed_meter.iter_mut().for_each(|speed_meter| **speed_meter = SpeedMeter::default());
    }

    /// The most bytes of a message that is one write on the only rail; 0 if no message is.
    fn fast_bytes(&self) -> u32 {
        let one_write_up_to = self.trailing_immediate_above.min(self.qps.striping.whole_up_to());
        let is_any = self.has_one_rail && !self.flow.has_lanes();
        if is_any { one_write_up_to.min(Imm::EXPLICIT_LIMIT - 1) } else { 0 }
    }

    /// Resends what has not arrived, as far as the send queues have room. The connection runs once
    /// everything is posted.
    ///
    /// # Errors
    /// The memory of a message is no longer registered, or the connection ends.
    fn replay(&mut self) -> Result<()> {
        if self.mode != Mode::Replaying {
            return Ok(());
        }
        while let Some(length) = self.flow.peek_replay() {
            if !self.has_room(length) {
                return Ok(());
            }
            let Some((transfer, addr)) = self.flow.poll_replay() else { break };
            let length = transfer.length;
            let Some(lkeys) = self.memory.lkeys_at(addr, length) else {
                let text = format!(
                    "{length} bytes at {addr:#x} must be resent, but their memory is no longer registered"
                );
                return Err(self.sticky_error.fail(&self.peer, Error::argument(text)));
            };
            self.stats.handle_resent(length);
            let lkey = |rail: u8| lkeys.get(usize::from(rail)).copied().unwrap_or_default();
            if let Err(e) = self.post(addr, lkey, transfer) {
                return self.recover_or_fail(e);
            }
        }
        self.mode = Mode::Running;
        self.peer.set_recovering(false);
        Ok(())
    }
}

/// Handles a completion on the fast path, which takes writes that carry data and its immediate
/// ([`WrId::Data`]).
#[inline(always)]
fn take(flow: &mut SendFlow, success: Success<'_>) -> ReadOutcome {
    match WrId::from_bits(success.id()) {
        WrId::Data { request, .. } if flow.complete_stripe(request) => ReadOutcome::Yes,
        _ => ReadOutcome::No,
    }
}

/// Handles a successful completion of a sender's work request.
#[inline(always)]
fn handle_sent(
    flow: &mut SendFlow,
    other_work: &mut OtherWork,
    completion: &Completion,
) -> Result<()> {
    match WrId::from_bits(completion.id()) {
        WrId::Data { request, .. } => Ok(flow.handle_completion(request)?),
        _ => handle_other(flow, other_work, completion.id()),
    }
}

/// [`handle_sent`] for work that is not a stripe in one write.
#[inline(never)]
fn handle_other(flow: &mut SendFlow, other_work: &mut OtherWork, id: u64) -> Result<()> {
    match other_work.handle_completion(id)? {
        Some((request, _)) => Ok(flow.handle_completion(request)?),
        None => Ok(()),
    }
}

#[cold]
#[inline(never)]
fn no_such_qp(qp: QpIndex) -> Error {
    Error::internal(format!("{qp:?} does not exist"))
}

fn unapplied(why: &MissingListError) -> Error {
    Error::remote(why.to_string())
}

/// Work requests that are not a stripe in one write.
#[derive(Debug, Default)]
struct OtherWork {
    /// Room in the send queues for stripes of several writes.
    room: SendQueueSpace,
    probe: Probe,
}

impl OtherWork {
    /// Handles the completion of work request `id`. Returns the stripe that this completes, if any.
    ///
    /// # Errors
    /// The sender has no such work request.
    #[inline(never)]
    fn handle_completion(&mut self, id: u64) -> Result<Option<(RequestId, QpIndex)>> {
        match WrId::from_bits(id) {
            WrId::LongData { request, qp, extra } => {
                self.room.handle_completion(QpIndex(qp), extra);
                Ok(Some((request, QpIndex(qp))))
            }
            _ => self.probe.handle_completion(id, "sender").map(|()| None),
        }
    }
}

/// How fast the present queue pairs carry what is in flight. It measures the messages that are timed
/// for the statistics.
#[derive(Debug, Default)]
struct SpeedMeter {
    /// When the present measurement began, and how many bytes were in flight then.
    begun: Option<(Instant, u64)>,
    speeds: Speeds,
}

impl SpeedMeter {
    /// Records that the timed message is acknowledged.
    fn handle_done(&mut self) {
        if let Some((begun, bytes)) = self.begun.take() {
            let ns = u64::try_from(clock::since(begun).as_nanos()).unwrap_or(u64::MAX);
            self.speeds.add(Carried { bytes, ns });
        }
    }
}
