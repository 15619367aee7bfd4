//! A receive communicator: takes buffers, sends clear-to-sends, polls completions, and resumes over
//! new queue pairs after a fault.

use super::both_ends::{Done, Outcome, Path, Test, Tested, end_check, name_operation};
use super::cts_sender::{CtsSender, RECEIVER_QP_CAPS};
use super::exclusive_cell::{BegunCall, ExclusiveCell, FirstStep};
use super::flush::Flushes;
use super::health::{DeadPathDetector, Mode, StickyError};
use crate::error::{Error, Result};
use crate::net::device::conn_memory::ConnMemory;
use crate::net::device::nic::Nic;
use crate::net::mr::handle::MrHandle;
use crate::net::mr::regions::MemoryKind;
use crate::net::peer::first_error;
use crate::net::peer::state::PeerState;
use crate::net::qp::fence::Drained;
use crate::net::qp::set::{ConnectedQp, InitQpSet, QpSet};
use crate::net::qp::wr_id::WrId;
use crate::net::recovery::conn::ConnRecovery;
use crate::net::recovery::end::{End, Owner};
use crate::proto;
use crate::proto::explain::snapshot::{EndCheck, EndSnapshot};
use crate::proto::handshake::{Negotiated, Ring};
use crate::proto::imm::Imm;
use crate::proto::rail_weights::RailWeights;
use crate::proto::recovery::machine::Role;
use crate::proto::recovery::missing_list::MissingList;
use crate::proto::recovery::rail_mask::RailMask;
use crate::proto::recv::{Buffer, RecvFlow};
use crate::proto::requests::{Entries, Entry, Finished, RecvRequest, RequestId, TestResult};
use crate::proto::{MAX_GROUP, QpIndex};
use crate::stats::Completed;
use crate::stats::labels::Labels;
use crate::stats::record::ConnStats;
use crate::verbs::clock;
use crate::verbs::queue_pair::QpCaps;
use crate::verbs::status::Status;
use crate::verbs::work::{Batch, Completion, ReadOutcome, Success, Unread};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How long a receive stays incomplete before a probe checks whether its clear-to-send has arrived.
const PROBE_AFTER: Duration = Duration::from_millis(30);

/// The receiving end of a connection.
#[repr(C)]
#[derive(Debug)]
pub struct RecvComm {
    /// The state of the data path. First, as in [`ExclusiveCell`].
    pub path: ExclusiveCell<RecvPath>,
    /// The peer's state.
    pub peer: Arc<PeerState>,
    /// The device that it uses.
    pub nic: Arc<Nic>,
    /// The memory that NCCL has registered for it.
    pub memory: Arc<ConnMemory>,
    /// The labels of NCCL's operation in the statistics.
    pub labels: Labels,
    /// The entries of its request table.
    pub requests: Entries<RecvRequest>,
    /// `None`: the first fault ends the connection.
    pub(in crate::net) recovery: Option<Arc<ConnRecovery>>,
}

/// A message that a receive expects.
#[derive(Debug, Clone, Copy)]
pub struct Expected<'a> {
    /// Address of the buffer.
    pub addr: u64,
    /// Its size in bytes, at most [`proto::MAX_MESSAGE`].
    pub length: u32,
    /// The message's tag.
    pub tag: u32,
    /// The buffer's memory handle.
    pub memory: &'a MrHandle,
}

/// The state of the data path.
///
/// Its methods come in the same groups and order as those of [`super::send::SendPath`]:
/// - `irecv`: `begin_single` and `send_due_cts`, and `receive` for all cases; `send_*`, which post
///   clear-to-sends;
/// - `test`: those of [`Path`], and `progress`, which polls all queues;
/// - while a receive is timed: `handle_due`, `choose_path`;
/// - during a fault: `check_*`, `recover_or_fail_without`.
#[derive(Debug)]
pub struct RecvPath {
    flow: RecvFlow,
    qps: QpSet,
    /// The sender's ring, and the size of a clear-to-send in it.
    ring: (Ring, usize),
    cts_sender: CtsSender,
    /// The one for queue pairs that a recovery is about to use.
    prepared: Option<Box<CtsSender>>,
    flushes: Option<Box<Flushes>>,
    sticky_error: StickyError,
    /// The error of a poll of the present queue pairs: a completion may have been lost.
    poll_error: Option<Error>,
    /// What is possible while the peer's state is not open.
    mode: Mode,
    dead_path: DeadPathDetector,
    /// `None`: the first fault ends the connection.
    recovery: Option<Arc<ConnRecovery>>,
    peer: Arc<PeerState>,
    stats: ConnStats,
    /// Whether there is one rail, and no message is being timed.
    is_plain: bool,
    /// Whether the tags of messages are known to be ranks.
    tags_are_ranks: bool,
}

/// A receive communicator before its peer has committed.
#[derive(Debug)]
pub struct PreparedPath {
    flow: RecvFlow,
    qps: QpSet,
    ring: (Ring, usize),
    cts_sender: CtsSender,
    stats: ConnStats,
}

impl PreparedPath {
    /// Posts receives on connected queue pairs, so that the peer may send.
    ///
    /// # Errors
    /// The device refuses the receives; or clear-to-sends can neither be inline nor in registered
    /// memory.
    pub fn new(mut qps: QpSet, ring: Ring, terms: &Negotiated, stats: ConnStats) -> Result<Self> {
        let flow = RecvFlow::over(terms.striping, terms.count);
        qps.keep_receives(flow.receives())?;
        let cts_sender = CtsSender::new(&qps, ring, terms.slot_bytes())?;
        Ok(Self { flow, qps, ring: (ring, terms.slot_bytes()), cts_sender, stats })
    }
}

impl RecvComm {
    /// A receiver on `terms`.
    pub fn new(
        nic: Arc<Nic>,
        peer: Arc<PeerState>,
        prepared: PreparedPath,
        terms: &Negotiated,
    ) -> Self {
        let PreparedPath { flow, qps, ring, cts_sender, stats } = prepared;
        qps.watch(&peer);
        let recovery =
            terms.failover.then(|| ConnRecovery::new(&nic, &peer, terms, Role::Receiver, &qps));
        let (memory, labels) = (ConnMemory::new(&nic, &peer, qps.devices()), Labels::of(&stats));
        let requests = Arc::clone(flow.entries());
        let path = RecvPath {
            flow,
            dead_path: DeadPathDetector::new(nic.config.stall_ms, qps.round_trip),
            is_plain: !qps.are_on_several_rails(),
            qps,
            ring,
            cts_sender,
            prepared: None,
            flushes: None,
            sticky_error: StickyError::new("receiving from"),
            poll_error: None,
            mode: Mode::Running,
            recovery: recovery.clone(),
            peer: Arc::clone(&peer),
            stats,
            tags_are_ranks: nic.has_only_ranks_as_tags(),
        };
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

    /// NCCL's `irecv` of a group of `count` messages; `expected` returns each of them. Calls `begun`
    /// on success. If it does not, too many receives are outstanding: try again.
    ///
    /// # Errors
    /// The connection has failed, or `count` or a buffer is not valid.
    #[inline(always)]
    pub fn irecv<'a, O: Outcome, E: Into<Error>>(
        &self,
        count: usize,
        expected: impl Fn(usize) -> std::result::Result<Expected<'a>, E> + Copy,
        begun: impl FnOnce(&Entry<RecvRequest>) + Copy,
    ) -> O {
        if count == 1 {
            match self.path.begin(|path| path.begin_single(expected, begun)) {
                BegunCall::Done => return O::SUCCESS,
                BegunCall::Next(inside) => {
                    let sent = inside.resume(|path| path.send_due_cts(), RecvPath::log_once);
                    return O::from_result("irecv", sent);
                }
                BegunCall::Other => {}
            }
        }
        irecv_in_general(&self.path, count, expected, begun)
    }

    /// Starts recovery from faults, if both ends support it. `owner` holds the communicator.
    pub fn start(&self, owner: &Weak<dyn Owner>) {
        self.recovery.iter().for_each(|recovery| recovery.start(owner.clone()));
    }

    /// Begins to flush a group of `count` messages to GPU memory; `received` returns each of them.
    /// Calls `begun` unless no flush is needed. NCCL takes that for a complete flush, so this
    /// cannot ask it to try again.
    ///
    /// # Errors
    /// The connection has failed, the flush cannot be posted, or too many flushes are outstanding.
    pub fn iflush<'a, O: Outcome, E: Into<Error>>(
        &self,
        count: usize,
        received: impl Fn(usize) -> std::result::Result<Expected<'a>, E>,
        begun: impl FnOnce(&Entry<()>),
    ) -> O {
        self.path.call("iflush", |path| {
            check_group(count)?;
            if !self.nic.config.flush {
                return Ok(());
            }
            path.sticky_error.check_failed()?;
            let (mut rails, mut last) = (RailMask::NONE, None);
            for i in 0..count {
                let expected = received(i).map_err(E::into)?;
                if expected.length > 0 && expected.memory.kind() == MemoryKind::Gpu {
                    rails = rails | RailMask(path.flow.rails_of(expected.addr) as u8);
                    last = Some(expected);
                }
            }
            // A read over a rail follows all earlier writes of that rail, so one address is enough.
            let Some(Expected { addr, memory, .. }) = last else { return Ok(()) };
            let flushes = path.flushes.get_or_insert_default();
            // A rail that is no longer in use has no queue pair, and so no writes in flight.
            let in_use = path.qps.striping.rail_numbers();
            let rails = if (rails & in_use).is_empty() { in_use } else { rails & in_use };
            let posted = flushes.post(&path.qps, rails, addr, memory, path.recovery.is_some());
            let posted = posted.map_err(|e| path.sticky_error.fail(&self.peer, e))?;
            let id = posted.ok_or_else(too_many_flushes)?;
            if let Some(entry) = flushes.entry(id) {
                begun(entry);
            }
            path.stats.handle_flush();
            Ok(())
        })
    }

    /// NCCL's `test` of a flush. Calls `done` if it is complete.
    ///
    /// # Errors
    /// The flush has failed.
    pub fn test_flush<O: Outcome>(&self, id: RequestId, done: impl FnOnce()) -> O {
        self.path.call("test", |path| {
            path.sticky_error.check_failed()?;
            let in_use = match path.recovery {
                None => Some(RailMask::NONE),
                // A gone peer is not recovered.
                Some(_) if self.peer.is_recovering() && !self.peer.is_gone() => None,
                Some(_) => Some(path.qps.striping.rail_numbers()),
            };
            let result = match &mut path.flushes {
                // If the peer went during a recovery there are no queue pairs: the reads use the
                // device's own ports.
                Some(flushes) if path.qps.rails.is_empty() => {
                    flushes.test(self.nic.own_ports(), &self.memory, id, in_use)
                }
                Some(flushes) => flushes.test(path.qps.ports(), &self.memory, id, in_use),
                None => Err(Error::internal("test() on a flush that was never started")),
            };
            if result.map_err(|e| path.sticky_error.fail(&self.peer, e))? {
                path.stats.handle_flush_done();
                done();
            }
            Ok(())
        })
    }

    /// Same as [`SendComm::handle_operation`](super::send::SendComm::handle_operation).
    pub fn handle_operation(&self) {
        if !self.nic.has_only_ranks_as_tags() {
            let _ = self.path.enter(|path| {
                path.tags_are_ranks = true;
                Ok(())
            });
        }
    }

    /// The present state, unless a thread is inside.
    pub fn snapshot(&self) -> EndCheck {
        let snapshot = self.path.try_visit(|path| {
            let flushes = path.flushes.as_ref().is_some_and(|flushes| flushes.are_outstanding());
            let snapshot = path.flow.snapshot(path.dead_path.tests(), flushes);
            EndSnapshot {
                sender_rank: snapshot.sender_rank.filter(|_| path.tags_are_ranks),
                ..snapshot
            }
        });
        end_check(snapshot, &self.peer)
    }
}

/// [`RecvComm::irecv`] by the slow path.
#[inline(never)]
extern "C" fn irecv_in_general<'a, O: Outcome, E: Into<Error>>(
    path: &ExclusiveCell<RecvPath>,
    count: usize,
    expected: impl Fn(usize) -> std::result::Result<Expected<'a>, E> + Copy,
    begun: impl FnOnce(&Entry<RecvRequest>) + Copy,
) -> O {
    path.call("irecv", |path| path.receive(count, expected, begun))
}

impl Drop for RecvComm {
    /// Informs a sender whose messages were expected that this end is closed, so that it need not
    /// wait for its device to report it.
    fn drop(&mut self) {
        let outstanding = self.path.get_mut().map(|path| path.flow.outstanding());
        if outstanding != Some(0) {
            self.peer.fail(&first_error::with_first(
                "the receiver was closed with receives outstanding",
            ));
        }
    }
}

impl Tested for RecvComm {
    type Path = RecvPath;

    #[inline(always)]
    fn path(&self) -> &ExclusiveCell<RecvPath> {
        &self.path
    }
}

impl End for RecvComm {
    fn memory(&self) -> &ConnMemory {
        &self.memory
    }

    fn describe(&self, _qps: &mut InitQpSet) -> Result<()> {
        Ok(())
    }

    fn caps(&self) -> QpCaps {
        RECEIVER_QP_CAPS
    }

    fn poll(&self) -> Result<usize> {
        self.path.visit(RecvPath::poll_any)
    }

    fn probe(&self) -> Result<()> {
        self.path.visit(|path| {
            if !self.peer.is_recovering()
                && let Err(e) = path.cts_sender.probe.send(&mut path.qps, self.peer.is_doubted())
            {
                path.recover_or_fail(e)?;
            }
            path.poll_any().map(drop)
        })
    }

    fn is_reporting(&self) -> Result<bool> {
        self.path.visit(|path| Ok(path.qps.is_reporting()))
    }

    fn take_qps(&self) -> Result<QpSet> {
        self.path.visit(|path| {
            self.peer.set_recovering(true);
            path.mode = Mode::Fencing;
            Ok(path.qps.take())
        })
    }

    fn handle_drained(&self, drained: &Drained) -> Result<()> {
        self.path.visit(|path| {
            path.mode = Mode::Fenced;
            path.poll_error = path.poll_error.take().or_else(|| drained.poll_error.clone());
            drained.arrivals.iter().try_for_each(|(qp, imm)| {
                let handled = path.flow.handle_immediate(*qp, Imm::from_bits(*imm));
                handled.map_err(|e| Error::from(e).after_poll(path.poll_error.as_ref()))
            })
        })
    }

    fn prepare(&self, qps: &mut QpSet) -> Result<()> {
        // No receive is accepted while the connection recovers, so this stays what the messages
        // need.
        let receives = self.path.visit(|path| Ok(path.flow.receives()))?;
        qps.keep_receives(receives)?;
        // Allocated here, where a lack of device memory fails the attempt instead of the
        // connection.
        let (ring, slot_bytes) = self.path.visit(|path| Ok(path.ring))?;
        let cts_sender = CtsSender::new(qps, ring, slot_bytes)?;
        self.path.visit(|path| {
            path.prepared = Some(Box::new(cts_sender));
            Ok(())
        })
    }

    fn resume(
        &self,
        qps: QpSet,
        _weights: RailWeights,
        _missing_list: Option<&MissingList>,
    ) -> Result<Option<MissingList>> {
        self.path.visit(|path| {
            let prepared = path
                .prepared
                .take()
                .ok_or_else(|| Error::internal("the queue pairs are not prepared"))?;
            if self.memory.use_devices(qps.devices()) {
                path.flow.renew_keys(|addr, length| self.memory.rkeys_at(addr, length));
            }
            let missing_list = path.flow.missing_list(qps.striping);
            path.flushes.iter_mut().for_each(|flushes| flushes.handle_devices(qps.devices()));
            qps.record_in(&path.stats);
            path.stats.handle_recovery();
            path.dead_path.reset(qps.round_trip);
            debug_assert!(path.qps.qps.is_empty(), "the old queue pairs were not taken out");
            debug_assert!(
                qps.qps.iter().all(|connected| connected.receives >= path.flow.receives()),
                "new queue pairs have no receives posted"
            );
            path.qps = qps;
            path.choose_path();
            path.cts_sender = *prepared;
            (path.mode, path.poll_error) = (Mode::Running, None);
            self.peer.set_recovering(false);
            Ok(Some(missing_list))
        })
    }

    fn drain(&self) -> Result<()> {
        Ok(())
    }

    fn keep_queue_pairs(&self) -> Result<()> {
        Ok(())
    }

    fn is_drained(&self) -> Result<bool> {
        Ok(true)
    }
}

// `irecv`: posts buffers, and sends their clear-to-sends.
impl RecvPath {
    /// The first step of [`RecvComm::irecv`] of one message, whose length fits one immediate: begins
    /// it, and calls `begun`.
    #[inline(always)]
    fn begin_single<'a, E: Into<Error>>(
        &mut self,
        expected: impl Fn(usize) -> std::result::Result<Expected<'a>, E>,
        begun: impl FnOnce(&Entry<RecvRequest>),
    ) -> FirstStep {
        let Ok(Expected { addr, length, tag, memory }) = expected(0) else {
            return FirstStep::Other;
        };
        let buffer = Buffer { addr, length, rkeys: &memory.rkeys, tag };
        if self.stats.is_due_next()
            || !memory.covers(addr, length)
            || !self.flow.begin_single(buffer, begun)
        {
            return FirstStep::Other;
        }
        // The timer is not due: `is_due_next` was false above.
        let _ = self.stats.handle_begun(1);
        if self.can_send_cts() { FirstStep::Next } else { FirstStep::Done }
    }

    /// Sends the clear-to-sends that are due after [`Self::begin_single`].
    ///
    /// # Errors
    /// The connection has failed.
    #[inline(always)]
    fn send_due_cts(&mut self) -> Result<()> {
        match self.send_one_write() {
            // One write is nearly always enough.
            Ok(()) if !self.can_send_cts() => Ok(()),
            Ok(()) => self.send_cts().or_else(|e| self.recover_or_fail(e)),
            Err(e) => self.recover_or_fail(e),
        }
    }

    /// [`RecvComm::irecv`] for all cases.
    ///
    /// # Errors
    /// As there.
    #[inline(never)]
    fn receive<'a, E: Into<Error>>(
        &mut self,
        count: usize,
        expected: impl Fn(usize) -> std::result::Result<Expected<'a>, E> + Copy,
        begun: impl FnOnce(&Entry<RecvRequest>) + Copy,
    ) -> Result<()> {
        if !self.peer.state().is_open() && !self.check_peer()? {
            return Ok(());
        }
        check_group(count)?;
        let buffer = |i| {
            let Expected { addr, length, tag, memory } = expected(i).map_err(E::into)?;
            debug_assert!(length <= proto::MAX_MESSAGE, "nobody has checked the length");
            let addr = memory.require_target("irecv", addr, length)?;
            Ok::<_, Error>(Buffer { addr, length, rkeys: &memory.rkeys, tag })
        };
        let Some(id) = self.flow.begin(count, buffer, begun)? else {
            return self.receive_later(count, expected, begun);
        };
        if self.stats.handle_begun(count) {
            return self.handle_due(id, expected(0).map_err(E::into)?.tag);
        }
        match self.send_cts() {
            Ok(()) => Ok(()),
            Err(e) => self.recover_or_fail(e),
        }
    }

    /// Too many receives are outstanding. Posts more receive work requests if these are what is
    /// missing.
    #[inline(never)]
    fn receive_later<'a, E: Into<Error>>(
        &mut self,
        count: usize,
        expected: impl Fn(usize) -> std::result::Result<Expected<'a>, E> + Copy,
        begun: impl FnOnce(&Entry<RecvRequest>) + Copy,
    ) -> Result<()> {
        let Some(more) = self.flow.more_receives(count) else {
            return self.send_cts().or_else(|e| self.recover_or_fail(e));
        };
        if let Err(e) = self.qps.keep_receives(more) {
            return self.recover_or_fail(e);
        }
        self.flow.handle_more_receives();
        self.receive(count, expected, begun)
    }

    #[inline(always)]
    fn can_send_cts(&self) -> bool {
        self.flow.is_cts_due() && self.cts_sender.has_room()
    }

    /// Sends due clear-to-sends, as far as the send queues have room.
    #[inline(never)]
    fn send_cts(&mut self) -> Result<()> {
        while self.can_send_cts() {
            self.send_one_write()?;
        }
        Ok(())
    }

    #[inline(always)]
    fn send_one_write(&mut self) -> Result<()> {
        let Self { flow, qps, cts_sender, .. } = self;
        cts_sender.send_some(flow, &mut qps.qps)
    }
}

// `test`: handles completions.
impl Path for RecvPath {
    type Request = RecvRequest;

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

    /// [`Self::finish`] is needed for a group.
    #[inline(always)]
    fn finish_fast(&mut self, test: &Test<'_, RecvRequest, impl Done>) -> TestResult {
        let progress = self.flow.progress(test.request);
        if let TestResult::Finished(length) = progress {
            self.stats.handle_done(length);
            (test.done)(&[length]);
        }
        progress
    }

    #[inline(always)]
    fn finish(&mut self, test: &Test<'_, RecvRequest, impl Done>) -> Result<bool> {
        match self.flow.finish(test.request).map_err(Error::misuse)? {
            None => return Ok(false),
            // Nearly all groups have one member.
            Some(Finished::One(length)) => {
                self.stats.handle_done(length);
                (test.done)(&[length]);
            }
            Some(Finished::Group) => self.finish_group(test),
        }
        Ok(true)
    }

    #[inline(always)]
    fn has_nothing_to_do(&mut self) -> bool {
        !self.dead_path.is_due() && !self.flow.has_waiting_cts()
    }

    /// Reads the clock if that is due, and sends clear-to-sends that were delayed to be batched.
    #[inline(never)]
    fn handle_empty_poll(&mut self, test: &Test<'_, RecvRequest, impl Done>) -> Result<()> {
        self.flow.handle_empty_poll(test.request.id());
        if self.dead_path.was_due() {
            self.check_path()?;
        }
        self.send_cts().or_else(|e| self.recover_or_fail(e))
    }

    #[inline(always)]
    fn read_fast<'c>(
        &mut self,
        unread: Unread,
        batch: &'c mut Batch,
    ) -> Result<Option<&'c [Completion]>> {
        let Self { flow, qps: QpSet { rails, qps, .. }, cts_sender, stats, .. } = self;
        let Some(on) = rails.first_mut() else { return Ok(None) };
        // Most messages have one completion: to look for another one would take longer.
        let take = |success: Success<'_>| take(flow, cts_sender, qps, success);
        Ok(on.queue.read(unread, batch, stats.outstanding(), take)?)
    }

    #[inline(always)]
    fn handle_fast<'c>(&mut self, mut completions: &'c [Completion]) -> Option<&'c [Completion]> {
        while let [completion, others @ ..] = completions {
            let Self { flow, qps, cts_sender, .. } = self;
            let take = |success| take(flow, cts_sender, &mut qps.qps, success);
            match completion.success().map(take) {
                Some(ReadOutcome::Yes | ReadOutcome::Uncounted) => completions = others,
                Some(ReadOutcome::Last) => return Some(others),
                Some(ReadOutcome::No) | None => return Some(completions),
            }
        }
        None
    }

    #[inline(always)]
    fn finish_fast_completions(&mut self, test: &Test<'_, RecvRequest, impl Done>) -> bool {
        !self.flow.is_cts_due() && self.finish_fast(test) != TestResult::Other
    }

    /// Posts receives before, and sends due clear-to-sends after.
    #[inline(never)]
    fn handle_completions(&mut self, completions: &[Completion]) -> Result<()> {
        match self.qps.qps.iter_mut().try_for_each(ConnectedQp::post_missing) {
            Ok(()) => self.handle_posted(completions),
            Err(e) => self.handle_batch_with_errors(completions, Err(e)),
        }
    }

    #[cold]
    #[inline(never)]
    fn recover_or_fail(&mut self, error: Error) -> Result<()> {
        self.recover_or_fail_without(error, 0)
    }

    /// Also checks whether the timed receive is complete.
    #[inline(never)]
    fn progress_in_general(&mut self, test: &Test<'_, RecvRequest, impl Done>) -> Result<()> {
        let outcome = self.progress(test);
        if let Some(id) = self.stats.timed_request() {
            self.handle_posted_cts();
            match self.flow.is_done(RequestId::from_bits(id)) {
                Ok(false) => return outcome,
                Ok(true) => {
                    let (messages, bytes) = self.flow.messages(RequestId::from_bits(id));
                    self.stats.handle_timed_done(Completed { messages, bytes });
                }
                Err(_) => self.stats.forget_timed(),
            }
        }
        self.choose_path();
        outcome
    }
}

// Helpers of `test`.
impl RecvPath {
    #[inline(never)]
    fn finish_group(&mut self, test: &Test<'_, RecvRequest, impl Done>) {
        let lengths = self.flow.lengths(test.request);
        self.stats.handle_group_done(lengths);
        (test.done)(lengths);
    }

    /// [`Self::handle_completions`] where no receives need posting before.
    ///
    /// # Errors
    /// The connection has failed.
    #[inline(always)]
    fn handle_posted(&mut self, mut completions: &[Completion]) -> Result<()> {
        while let [completion, others @ ..] = completions {
            if completion.status() != Status::SUCCESS {
                return self.handle_batch_with_errors(completions, Ok(()));
            }
            let Self { flow, qps, cts_sender, .. } = self;
            if let Err(e) = handle(flow, cts_sender, &mut qps.qps, completion) {
                return self.handle_batch_with_errors(others, Err(e));
            }
            completions = others;
        }
        self.send_cts()
    }

    /// Same as [`SendPath::progress`](super::send::SendPath::progress).
    ///
    /// # Errors
    /// The connection has failed.
    fn progress(&mut self, test: &Test<'_, RecvRequest, impl Done>) -> Result<()> {
        if !self.peer.state().is_open() {
            return self.progress_not_open(test);
        }
        match self.poll_rails() {
            Ok(0) => {
                let _ = self.dead_path.is_due();
                self.handle_empty_poll(test)
            }
            Ok(_) => self.send_cts().or_else(|e| self.recover_or_fail(e)),
            Err(e) => self.recover_or_fail(e),
        }
    }

    /// Same as [`SendPath::handle_batch_with_errors`](super::send::SendPath::handle_batch_with_errors).
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
        let Self { flow, qps, cts_sender, peer, .. } = self;
        qps.for_each_success(peer, completions, outcome, |qps, completion| {
            handle(flow, cts_sender, qps, completion)
        })
    }

    #[inline(never)]
    fn poll_rails(&mut self) -> Result<usize> {
        let Self { flow, qps, cts_sender, peer, .. } = self;
        qps.poll_rails(peer, |qps, completion| handle(flow, cts_sender, qps, completion))
    }
}

// While a receive is timed: checks after each poll whether it is complete.
impl RecvPath {
    /// Handles an accepted receive that is timed, or the one after it, and then continues as for
    /// others.
    ///
    /// # Errors
    /// The connection has failed.
    #[cold]
    #[inline(never)]
    fn handle_due(&mut self, id: RequestId, tag: u32) -> Result<()> {
        let (count, _) = self.flow.messages(id);
        let tag = Some(tag).filter(|_| self.tags_are_ranks);
        if let Some(rank) = self.stats.handle_due_receive(id.to_bits(), count, tag) {
            self.peer.peer().set_rank(rank);
        }
        name_operation(&mut self.stats, id);
        let outcome = self.send_cts().or_else(|e| self.recover_or_fail(e));
        self.handle_posted_cts();
        self.choose_path();
        outcome
    }

    /// Handles that due clear-to-sends were posted, as far as the send queues had room.
    fn handle_posted_cts(&mut self) {
        if !self.flow.is_cts_due() {
            self.stats.handle_announced();
        }
    }

    /// Same as [`SendPath::choose_path`](super::send::SendPath::choose_path).
    fn choose_path(&mut self) {
        self.is_plain = !self.qps.are_on_several_rails() && self.stats.timed_request().is_none();
    }
}

// During a fault: reports it, and resumes over new queue pairs.
impl RecvPath {
    /// Call when the peer's state is not open. Returns whether buffers may be posted, which is
    /// false during a recovery.
    ///
    /// # Errors
    /// The peer has gone.
    #[cold]
    #[inline(never)]
    fn check_peer(&mut self) -> Result<bool> {
        self.sticky_error.check(&self.peer)?;
        Ok(!self.peer.is_recovering())
    }

    /// [`Self::progress`] while the peer's state is not open. Sends a probe if only the control
    /// connection is lost.
    ///
    /// # Errors
    /// The connection has failed, or the peer has gone.
    #[cold]
    #[inline(never)]
    fn progress_not_open(&mut self, test: &Test<'_, RecvRequest, impl Done>) -> Result<()> {
        // Read before the queue is polled, so that everything the peer sent before it went is in
        // the queue.
        let (is_gone, is_recovering) = (self.peer.is_gone(), self.peer.is_recovering());
        self.sticky_error.check_failed()?;
        if self.mode.waits_for_arrivals(self.peer.is_broken()) {
            return Ok(());
        }
        let polled = self.poll_any()?;
        if polled == 0 && is_gone {
            let error = self.sticky_error.reason(&self.peer);
            return Err(self.sticky_error.fail(&self.peer, error));
        }
        if is_recovering {
            return Ok(());
        }
        if polled == 0 {
            self.flow.handle_empty_poll(test.request.id());
            if let Err(e) = self.cts_sender.probe.send(&mut self.qps, self.peer.is_doubted()) {
                return self.recover_or_fail(e);
            }
        }
        self.send_cts().or_else(|e| self.recover_or_fail(e))
    }

    /// Polls all completion queues; returns the number of completions.
    ///
    /// # Errors
    /// The connection has failed.
    fn poll_any(&mut self) -> Result<usize> {
        let polled = self.poll_rails().or_else(|e| self.recover_or_fail(e).map(|()| 0))?;
        if polled > 0 {
            self.peer.handle_acknowledged();
        }
        Ok(polled)
    }

    /// [`Self::recover_or_fail`] where the `lagging` lanes acknowledge nothing, as a bit mask of
    /// queue pairs.
    ///
    /// # Errors
    /// The connection ends.
    fn recover_or_fail_without(&mut self, error: Error, lagging: u32) -> Result<()> {
        if error.loses_completion {
            self.poll_error.get_or_insert_with(|| error.clone());
        }
        if let Some(recovery) = self.recovery.as_ref().filter(|_| error.is_recoverable)
            && !self.peer.is_broken()
        {
            return recovery
                .report(&error.text(), lagging)
                .map_err(|e| self.sticky_error.fail(&self.peer, e));
        }
        let error = error.after_poll(self.poll_error.as_ref());
        Err(self.sticky_error.fail(&self.peer, error))
    }

    /// Handles many unsuccessful tests. Missing messages may be the sender's doing, but the
    /// clear-to-sends must arrive.
    ///
    /// # Errors
    /// The connection ends.
    #[cold]
    #[inline(never)]
    fn check_path(&mut self) -> Result<()> {
        let now = clock::now();
        let limit = self.dead_path.limit(now);
        let Some(recovery) = self.recovery.as_ref().filter(|_| !limit.is_zero()) else {
            return Ok(());
        };
        if self
            .dead_path
            .waited(self.flow.oldest_missing(), now)
            .is_none_or(|waited| waited < PROBE_AFTER)
        {
            return Ok(());
        }
        if let Err(e) = self.cts_sender.probe_writes(&mut self.qps) {
            return self.recover_or_fail(e);
        }
        match self.cts_sender.probe.outstanding_for() {
            Some(waited) if waited > limit && recovery.may_start(waited) => {
                self.dead_path.back_off(now);
                let text = format!(
                    "clear-to-sends have not been acknowledged for {} ms (FERRITE_STALL_MS)",
                    waited.as_millis()
                );
                // Clear-to-sends use the first queue pair of each rail.
                let firsts = RailMask::first(self.qps.rails.len() as u8).0;
                let lagging = if self.qps.labels.are_used() { firsts.into() } else { 0 };
                self.recover_or_fail_without(Error::remote(text).recoverable(), lagging)
            }
            _ => Ok(()),
        }
    }
}

/// Handles a completion on the fast path, which takes receives that complete a whole message, and
/// writes of clear-to-sends. It stops where receives must be posted.
#[inline(always)]
fn take(
    flow: &mut RecvFlow,
    cts_sender: &mut CtsSender,
    qps: &mut [ConnectedQp],
    success: Success<'_>,
) -> ReadOutcome {
    let qp = match WrId::from_bits(success.id()) {
        WrId::Receive { qp } => qp,
        WrId::Cts { qp } => {
            cts_sender.handle_completion(qp);
            return ReadOutcome::Uncounted;
        }
        _ => return ReadOutcome::No,
    };
    let Some(connected) = qps.get_mut(usize::from(qp)) else { return ReadOutcome::No };
    if !flow.complete_whole(QpIndex(qp), Imm::from_bits(success.imm())) {
        return ReadOutcome::No;
    }
    if connected.count_receive() { ReadOutcome::Last } else { ReadOutcome::Yes }
}

/// Handles a successful completion of a receiver's work request.
#[inline(always)]
fn handle(
    flow: &mut RecvFlow,
    cts_sender: &mut CtsSender,
    qps: &mut [ConnectedQp],
    completion: &Completion,
) -> Result<()> {
    match WrId::from_bits(completion.id()) {
        WrId::Receive { qp } => {
            flow.handle_immediate(QpIndex(qp), Imm::from_bits(completion.imm()))?;
            let Some(qp) = qps.get_mut(usize::from(qp)) else { return Err(no_such_qp()) };
            if qp.count_receive() { qp.post_missing() } else { Ok(()) }
        }
        WrId::Cts { qp } => {
            cts_sender.handle_completion(qp);
            Ok(())
        }
        _ => cts_sender.probe.handle_completion(completion.id(), "receiver"),
    }
}

/// Checks a number of messages, which NCCL passes as a signed number.
///
/// # Errors
/// The number is out of range.
fn check_group(count: usize) -> Result<()> {
    let bad = || {
        Error::argument(format!(
            "n is {}; 1 to {MAX_GROUP} are allowed",
            (count as u32).cast_signed()
        ))
    };
    if (1..=MAX_GROUP).contains(&count) { Ok(()) } else { Err(bad()) }
}

#[cold]
#[inline(never)]
fn no_such_qp() -> Error {
    Error::internal("a queue pair that does not exist")
}

#[cold]
#[inline(never)]
fn too_many_flushes() -> Error {
    let most = proto::MAX_REQUESTS;
    Error::internal(format!(
        "{most} flushes are outstanding on this communicator, the maximum; test some first"
    ))
}
