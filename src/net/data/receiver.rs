//! A receive communicator: takes buffers, sends clear-to-sends, polls completions.

use super::cts_sender::CtsSender;
use super::exclusive_cell::ExclusiveCell;
use super::flush::Flushes;
use super::mode::Mode;
use super::stall::Stall;
use super::sticky_error::StickyError;
use crate::error::{Error, Result};
use crate::net::control::peer_state::PeerState;
use crate::net::device::conn_memory::ConnMemory;
use crate::net::device::nic::Nic;
use crate::net::mr::cache::MemoryKind;
use crate::net::mr::handle::MrHandle;
use crate::net::qp::set::{ConnectedQp, QpSet};
use crate::net::qp::wr_id::WrId;
use crate::net::recovery::conn::ConnRecovery;
use crate::net::recovery::end::Owner;
use crate::proto::handshake::{Negotiated, Ring};
use crate::proto::imm::Imm;
use crate::proto::recovery::action::Role;
use crate::proto::recovery::rail_mask::RailMask;
use crate::proto::recv::{Buffer, RecvFlow};
use crate::proto::requests::RequestId;
use crate::proto::{self, Violation};
use crate::stats::labels::Labels;
use crate::stats::record::ConnStats;
use crate::verbs::work::Completion;
use std::sync::{Arc, Weak};

/// The receiving end of a connection.
#[derive(Debug)]
pub struct RecvComm {
    pub(super) path: ExclusiveCell<RecvPath>,
    /// The peer's state.
    pub peer: Arc<PeerState>,
    /// The device that it uses.
    pub nic: Arc<Nic>,
    /// The memory that NCCL has registered for it.
    pub memory: Arc<ConnMemory>,
    /// What the statistics say of NCCL's operation.
    pub labels: Labels,
    recovery: Option<Arc<ConnRecovery>>,
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
    /// The buffer's memory handle.
    pub memory: &'a MrHandle,
}

/// The state of the data path.
#[derive(Debug)]
pub struct RecvPath {
    pub(super) flow: RecvFlow,
    pub(super) qps: QpSet,
    /// The sender's ring, and the size of a clear-to-send in it.
    pub(super) ring: (Ring, usize),
    pub(super) cts_sender: CtsSender,
    pub(super) flushes: Option<Box<Flushes>>,
    pub(super) sticky_error: StickyError,
    /// What is possible while the peer's state is not open.
    pub(super) mode: Mode,
    pub(super) stall: Stall,
    /// `None`: the first fault ends the connection.
    pub(super) recovery: Option<Arc<ConnRecovery>>,
    pub(super) stats: ConnStats,
    /// Whether there is one rail, and no message is being timed.
    pub(super) is_plain: bool,
}

impl RecvPath {
    /// Posts receives on connected queue pairs, so that the peer may send.
    ///
    /// # Errors
    /// The device refuses the receives; or clear-to-sends can neither be inline nor in registered memory.
    pub fn new(mut qps: QpSet, ring: Ring, terms: &Negotiated, stats: ConnStats) -> Result<Self> {
        let flow = RecvFlow::new(terms.striping);
        qps.keep_receives(flow.receives())?;
        Ok(Self {
            flow,
            cts_sender: CtsSender::new(&qps, ring, terms.slot_bytes())?,
            is_plain: !qps.are_on_several_rails(),
            qps,
            ring: (ring, terms.slot_bytes()),
            flushes: None,
            sticky_error: StickyError::new("receiving from"),
            mode: Mode::Running,
            stall: Stall::new(0),
            recovery: None,
            stats,
        })
    }
}

impl RecvComm {
    /// A receiver on `terms`.
    pub fn new(nic: Arc<Nic>, peer: Arc<PeerState>, mut path: RecvPath, terms: &Negotiated) -> Self {
        path.qps.watch(&peer);
        let recovery = terms.failover.then(|| ConnRecovery::new(&nic, &peer, terms, Role::Receiver, &path.qps));
        path.recovery = recovery.clone();
        path.stall = Stall::new(nic.config.stall_ms);
        let (memory, labels) = (ConnMemory::new(&nic, path.qps.devices()), Labels::of(&path.stats));
        Self { path: ExclusiveCell::new(path), peer, nic, memory, labels, recovery }
    }

    /// `owner` has the communicator. From now on it recovers from faults, if both ends do.
    pub fn start(&self, owner: &Weak<dyn Owner>) {
        self.recovery.iter().for_each(|recovery| recovery.start(owner.clone()));
    }

    /// Begins to receive a group of `count` messages; `expected` returns each of them. `None`: too many receives are outstanding;
    /// try again.
    ///
    /// # Errors
    /// The connection has failed, or `count` or a buffer is not valid.
    #[inline(always)]
    pub fn irecv<'a>(
        &self,
        count: usize,
        expected: impl Fn(usize) -> Result<Expected<'a>>,
    ) -> Result<Option<RequestId>> {
        // Nearly all groups have one member. For them the count is a constant to the compiler.
        if count == 1 {
            return self.path.enter(|path| path.receive(1, &expected, &self.peer));
        }
        self.irecv_group(count, expected)
    }

    #[inline(never)]
    fn irecv_group<'a>(
        &self,
        count: usize,
        expected: impl Fn(usize) -> Result<Expected<'a>>,
    ) -> Result<Option<RequestId>> {
        self.path.enter(|path| path.receive(count, &expected, &self.peer))
    }

    /// Calls `done` with the number of bytes of each message, once the request is complete.
    ///
    /// # Errors
    /// The connection has failed. The error is the same each time.
    #[inline(always)]
    pub fn test(&self, id: RequestId, done: impl FnOnce(&[u32])) -> Result<()> {
        self.path.enter(|path| {
            if !path.flow.is_done(id).map_err(Violation::into_misuse)? {
                if path.is_plain {
                    path.progress(&self.peer, id)?;
                } else {
                    path.progress_otherwise(&self.peer, id)?;
                }
            }
            let RecvPath { flow, stats, .. } = path;
            if let Some(lengths) = flow.poll_done(id).map_err(Violation::into_misuse)? {
                match lengths {
                    // Nearly all groups have one member.
                    [length] => {
                        stats.handle_done(*length);
                        done(std::slice::from_ref(length));
                    }
                    many => {
                        stats.handle_group_done(many);
                        done(many);
                    }
                }
            }
            Ok(())
        })
    }

    /// Begins to flush received data to GPU memory. `None`: no flush is needed. To NCCL that is a complete flush, so there is no
    /// way to ask it to try again.
    ///
    /// # Errors
    /// The connection has failed, the flush cannot be posted, or too many flushes are outstanding.
    pub fn iflush<'a>(&self, received: impl Iterator<Item = Result<Expected<'a>>>) -> Result<Option<RequestId>> {
        if !self.nic.config.flush {
            return Ok(None);
        }
        self.path.enter(|path| {
            path.sticky_error.check_failed()?;
            let (mut rails, mut last) = (RailMask::NONE, None);
            for expected in received {
                let expected = expected?;
                if expected.length > 0 && expected.memory.kind() == MemoryKind::Gpu {
                    rails = rails | RailMask(path.flow.rails_of(expected.addr) as u8);
                    last = Some(expected);
                }
            }
            // A read over a rail is behind all earlier writes of that rail, so one address is enough.
            let Some(Expected { addr, memory, .. }) = last else { return Ok(None) };
            let flushes = path.flushes.get_or_insert_default();
            // A rail that is not in use any more has no queue pair whose writes could be under way.
            let in_use = path.qps.striping.rail_numbers();
            let rails = if (rails & in_use).is_empty() { in_use } else { rails & in_use };
            let posted = flushes.post(&path.qps, rails, addr, memory, path.recovery.is_some());
            let posted = posted.map_err(|e| path.sticky_error.fail(&self.peer, e))?;
            let id = posted.ok_or_else(too_many_flushes)?;
            path.stats.handle_flush();
            Ok(Some(id))
        })
    }

    /// Whether a flush is complete.
    ///
    /// # Errors
    /// The flush has failed.
    #[inline(never)]
    pub fn test_flush(&self, id: RequestId) -> Result<bool> {
        self.path.enter(|path| {
            path.sticky_error.check_failed()?;
            let in_use = match path.recovery {
                None => Some(RailMask::NONE),
                // Of a peer that has gone nothing is recovered any more.
                Some(_) if self.peer.is_recovering() && !self.peer.is_gone() => None,
                Some(_) => Some(path.qps.striping.rail_numbers()),
            };
            let result = match &mut path.flushes {
                // A peer that has gone during a recovery leaves no queue pairs: the reads go over the device's own ports.
                Some(flushes) if path.qps.rails.is_empty() => {
                    flushes.test(self.nic.own_ports(), &self.memory, id, in_use)
                }
                Some(flushes) => flushes.test(path.qps.ports(), &self.memory, id, in_use),
                None => Err(Error::internal("a flush is tested that was not begun")),
            };
            let done = result.map_err(|e| path.sticky_error.fail(&self.peer, e))?;
            if done {
                path.stats.handle_flush_done();
            }
            Ok(done)
        })
    }
}

impl Drop for RecvComm {
    /// Tells a sender whose messages were expected that this end is closed, so that it does not have to wait for its device to
    /// report that.
    fn drop(&mut self) {
        let outstanding = self.path.enter(|path| Ok(path.flow.outstanding()));
        if outstanding != Ok(0) {
            self.peer.fail("the receiver was closed with receives outstanding");
        }
    }
}

impl RecvPath {
    #[inline(always)]
    fn receive<'a>(
        &mut self,
        count: usize,
        expected: &impl Fn(usize) -> Result<Expected<'a>>,
        peer: &Arc<PeerState>,
    ) -> Result<Option<RequestId>> {
        if !peer.state().is_open() && !self.check_peer(peer)? {
            return Ok(None);
        }
        let posted = self.flow.post(count, |i| {
            let Expected { addr, length, tag, memory } = expected(i)?;
            memory.require("irecv", addr, length)?;
            Ok::<_, Error>(Buffer { addr, length, rkeys: &memory.rkeys, tag })
        })?;
        let Some(id) = posted else { return self.receive_later(count, expected, peer) };
        if self.stats.handle_begun(count) {
            return self.handle_due(peer, id, expected(0)?.tag).map(|()| Some(id));
        }
        if let Err(e) = self.send_cts() {
            self.handle_failure(peer, e)?;
        }
        Ok(Some(id))
    }

    /// Too many receives are outstanding. If what they lack is receive work requests, more of these are posted.
    #[inline(never)]
    fn receive_later<'a>(
        &mut self,
        count: usize,
        expected: &impl Fn(usize) -> Result<Expected<'a>>,
        peer: &Arc<PeerState>,
    ) -> Result<Option<RequestId>> {
        let Some(more) = self.flow.more_receives(count) else {
            return self.send_cts().or_else(|e| self.handle_failure(peer, e)).map(|()| None);
        };
        if let Err(e) = self.qps.keep_receives(more) {
            return self.handle_failure(peer, e).map(|()| None);
        }
        self.flow.handle_more_receives();
        self.receive(count, expected, peer)
    }

    #[inline(always)]
    fn progress(&mut self, peer: &Arc<PeerState>, awaited: RequestId) -> Result<()> {
        self.progress_by(peer, awaited, |path, peer| path.poll(peer))
    }

    #[inline(always)]
    pub(super) fn progress_by(
        &mut self,
        peer: &Arc<PeerState>,
        awaited: RequestId,
        poll: impl FnOnce(&mut Self, &Arc<PeerState>) -> Result<usize>,
    ) -> Result<()> {
        if !peer.state().is_open() {
            return self.progress_not_open(peer, awaited);
        }
        match poll(self, peer) {
            Ok(0) => {
                self.flow.handle_empty_poll(awaited);
                if self.stall.is_due() {
                    self.check_stall(peer)?;
                }
            }
            Ok(_) => {}
            Err(e) => return self.handle_failure(peer, e),
        }
        match self.send_cts() {
            Ok(()) => Ok(()),
            Err(e) => self.handle_failure(peer, e),
        }
    }

    #[inline(always)]
    pub(super) fn poll(&mut self, peer: &Arc<PeerState>) -> Result<usize> {
        let Self { flow, qps, cts_sender, .. } = self;
        qps.poll(peer, |qps, completion| handle(flow, cts_sender, qps, completion))
    }

    #[inline(never)]
    pub(super) fn poll_rails(&mut self, peer: &Arc<PeerState>) -> Result<usize> {
        let Self { flow, qps, cts_sender, .. } = self;
        qps.poll_rails(peer, |qps, completion| handle(flow, cts_sender, qps, completion))
    }

    /// Sends due clear-to-sends, as far as the send queues have room.
    #[inline(always)]
    pub(super) fn send_cts(&mut self) -> Result<()> {
        while self.flow.is_cts_due() && self.cts_sender.has_room() {
            self.send_some_cts()?;
        }
        Ok(())
    }

    #[inline(never)]
    fn send_some_cts(&mut self) -> Result<()> {
        let Self { flow, qps, cts_sender, .. } = self;
        if cts_sender.is_plain() {
            return cts_sender.send_some::<true>(flow, &mut qps.qps);
        }
        self.send_cts_in_turn()
    }

    #[inline(never)]
    fn send_cts_in_turn(&mut self) -> Result<()> {
        let Self { flow, qps, cts_sender, .. } = self;
        let outcome = cts_sender.send_some::<false>(flow, &mut qps.qps);
        cts_sender.pass_on();
        outcome
    }
}

/// Handles the completion of a work request that has succeeded.
#[inline(always)]
fn handle(
    flow: &mut RecvFlow,
    cts_sender: &mut CtsSender,
    qps: &mut [ConnectedQp],
    completion: &Completion,
) -> Result<()> {
    match WrId::from_bits(completion.id()) {
        WrId::Receive { qp } => {
            flow.handle_immediate(proto::QpIndex(qp), Imm::from_bits(completion.imm()))?;
            let Some(qp) = qps.get_mut(usize::from(qp)) else { return Err(no_such_qp()) };
            qp.handle_receive()
        }
        WrId::Cts { qp } => {
            cts_sender.handle_completion(qp);
            Ok(())
        }
        _ => cts_sender.probe.handle_completion(completion.id(), "receiver"),
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
fn no_such_qp() -> Error {
    Error::internal("a queue pair that does not exist")
}
