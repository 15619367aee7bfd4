//! A receive communicator: takes buffers, sends clear-to-sends, polls completions.

use super::cts_sender::CtsSender;
use super::exclusive_cell::ExclusiveCell;
use super::flush::Flushes;
use super::mode::Mode;
use super::stall::Stall;
use super::sticky_error::StickyError;
use crate::error::{Error, Result};
use crate::net::control::first_error;
use crate::net::control::peer_state::PeerState;
use crate::net::device::conn_memory::ConnMemory;
use crate::net::device::nic::Nic;
use crate::net::mr::cache::MemoryKind;
use crate::net::mr::handle::MrHandle;
use crate::net::qp::set::QpSet;
use crate::net::recovery::conn::ConnRecovery;
use crate::net::recovery::end::Owner;
use crate::proto;
use crate::proto::handshake::{Negotiated, Ring};
use crate::proto::recovery::action::Role;
use crate::proto::recovery::rail_mask::RailMask;
use crate::proto::recv::{Buffer, RecvFlow};
use crate::proto::recv_requests::RecvRequest;
use crate::proto::requests::{Entries, Entry, RequestId};
use crate::stats::labels::Labels;
use crate::stats::record::ConnStats;
use std::sync::{Arc, Weak};
use std::time::Duration;

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
    /// The entries of its table of requests.
    pub requests: Entries<RecvRequest>,
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
    /// That of queue pairs that are about to be used, during a recovery.
    pub(super) prepared: Option<Box<CtsSender>>,
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
    /// Whether the tags of messages are known to be ranks.
    pub(super) tags_are_ranks: bool,
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
            prepared: None,
            flushes: None,
            sticky_error: StickyError::new("receiving from"),
            mode: Mode::Running,
            stall: Stall::new(0, Duration::ZERO),
            recovery: None,
            stats,
            tags_are_ranks: false,
        })
    }
}

impl RecvComm {
    /// A receiver on `terms`.
    pub fn new(nic: Arc<Nic>, peer: Arc<PeerState>, mut path: RecvPath, terms: &Negotiated) -> Self {
        path.qps.watch(&peer);
        let recovery = terms.failover.then(|| ConnRecovery::new(&nic, &peer, terms, Role::Receiver, &path.qps));
        path.recovery = recovery.clone();
        path.stall = Stall::new(nic.config.stall_ms, path.qps.round_trip);
        path.tags_are_ranks = nic.has_only_ranks_as_tags();
        let (memory, labels) = (ConnMemory::new(&nic, &peer, path.qps.devices()), Labels::of(&path.stats));
        let requests = Arc::clone(path.flow.entries());
        Self { path: ExclusiveCell::new(path, peer.word()), peer, nic, memory, labels, requests, recovery }
    }

    /// The number of its first queue pair; 0 while it has none.
    pub fn queue_pair(&self) -> u32 {
        let number = |path: &mut RecvPath| Ok(path.qps.qps.first().map_or(0, |connected| connected.qp.number()));
        self.path.enter(number).unwrap_or(0)
    }

    /// `owner` has the communicator. From now on it recovers from faults, if both ends do.
    pub fn start(&self, owner: &Weak<dyn Owner>) {
        self.recovery.iter().for_each(|recovery| recovery.start(owner.clone()));
    }

    /// Begins to receive one message in the usual case: its length fits one immediate, and there is room. `expected` returns the message.
    /// Then `begun` is called. `None`: it is another case, and nothing has been done.
    ///
    /// # Errors
    /// The connection has failed.
    #[inline(always)]
    pub fn irecv_usual<'a>(
        &self,
        expected: impl FnOnce() -> Option<Expected<'a>>,
        begun: impl FnOnce(&Entry<RecvRequest>),
    ) -> Option<Result<()>> {
        let mut inside = self.path.begin_if_clear()?;
        let outcome = inside.state().receive_usual(expected, begun, &self.peer);
        inside.leave();
        outcome
    }

    /// Begins to receive a group of `count` messages; `expected` returns each of them. Then `begun` is called; if it is not, too many
    /// receives are outstanding: try again.
    ///
    /// # Errors
    /// The connection has failed, or `count` or a buffer is not valid.
    pub fn irecv<'a>(
        &self,
        count: usize,
        expected: impl Fn(usize) -> Result<Expected<'a>> + Copy,
        begun: impl FnOnce(&Entry<RecvRequest>) + Copy,
    ) -> Result<()> {
        self.path.enter(|path| {
            if !self.peer.state().is_open() && !path.check_peer(&self.peer)? {
                return Ok(());
            }
            path.receive(count, expected, begun, &self.peer)
        })
    }

    /// Begins to flush received data to GPU memory. Then `begun` is called; if it is not, no flush is needed. To NCCL that is a complete
    /// flush, so there is no way to ask it to try again.
    ///
    /// # Errors
    /// The connection has failed, the flush cannot be posted, or too many flushes are outstanding.
    pub fn iflush<'a>(
        &self,
        received: impl Iterator<Item = Result<Expected<'a>>>,
        begun: impl FnOnce(&Entry<()>),
    ) -> Result<()> {
        if !self.nic.config.flush {
            return Ok(());
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
            let Some(Expected { addr, memory, .. }) = last else { return Ok(()) };
            let flushes = path.flushes.get_or_insert_default();
            // A rail that is not in use any more has no queue pair whose writes could be under way.
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
        let outstanding = self.path.get_mut().map(|path| path.flow.outstanding());
        if outstanding != Some(0) {
            self.peer.fail(&first_error::with_first("the receiver was closed with receives outstanding"));
        }
    }
}

impl RecvPath {
    #[inline(always)]
    fn receive_usual<'a>(
        &mut self,
        expected: impl FnOnce() -> Option<Expected<'a>>,
        begun: impl FnOnce(&Entry<RecvRequest>),
        peer: &Arc<PeerState>,
    ) -> Option<Result<()>> {
        let Expected { addr, length, tag, memory } = expected()?;
        let buffer = Buffer { addr, length, rkeys: &memory.rkeys, tag };
        if self.stats.is_due_next() || !memory.covers(addr, length) || !self.flow.begin_single(buffer, begun) {
            return None;
        }
        // Not due, as has been asked.
        let _ = self.stats.handle_begun(1);
        Some(match self.send_cts() {
            Ok(()) => Ok(()),
            Err(e) => self.handle_failure(peer, e),
        })
    }

    fn receive<'a>(
        &mut self,
        count: usize,
        expected: impl Fn(usize) -> Result<Expected<'a>> + Copy,
        begun: impl FnOnce(&Entry<RecvRequest>) + Copy,
        peer: &Arc<PeerState>,
    ) -> Result<()> {
        let buffer = |i| {
            let Expected { addr, length, tag, memory } = expected(i)?;
            let addr = memory.require_target("irecv", addr, length)?;
            Ok::<_, Error>(Buffer { addr, length, rkeys: &memory.rkeys, tag })
        };
        let Some(id) = self.flow.begin(count, buffer, begun)? else {
            return self.receive_later(count, expected, begun, peer);
        };
        if self.stats.handle_begun(count) {
            return self.handle_due(peer, id, expected(0)?.tag);
        }
        match self.send_cts() {
            Ok(()) => Ok(()),
            Err(e) => self.handle_failure(peer, e),
        }
    }

    /// Too many receives are outstanding. If what they lack is receive work requests, more of these are posted.
    #[inline(never)]
    fn receive_later<'a>(
        &mut self,
        count: usize,
        expected: impl Fn(usize) -> Result<Expected<'a>> + Copy,
        begun: impl FnOnce(&Entry<RecvRequest>) + Copy,
        peer: &Arc<PeerState>,
    ) -> Result<()> {
        let Some(more) = self.flow.more_receives(count) else {
            return self.send_cts().or_else(|e| self.handle_failure(peer, e));
        };
        if let Err(e) = self.qps.keep_receives(more) {
            return self.handle_failure(peer, e);
        }
        self.flow.handle_more_receives();
        self.receive(count, expected, begun, peer)
    }

    /// Sends due clear-to-sends, as far as the send queues have room.
    #[inline(always)]
    pub(super) fn send_cts(&mut self) -> Result<()> {
        if self.can_send_cts() { self.send_some_cts() } else { Ok(()) }
    }

    #[inline(always)]
    fn can_send_cts(&self) -> bool {
        self.flow.is_cts_due() && self.cts_sender.has_room()
    }

    /// As [`Self::send_cts`], which has found that some are due and have room.
    #[inline(never)]
    fn send_some_cts(&mut self) -> Result<()> {
        self.send_one_write()?;
        if self.can_send_cts() { self.send_more_cts() } else { Ok(()) }
    }

    /// As [`Self::send_some_cts`], where one write is not enough.
    #[cold]
    #[inline(never)]
    fn send_more_cts(&mut self) -> Result<()> {
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

#[cold]
#[inline(never)]
fn too_many_flushes() -> Error {
    let most = proto::MAX_REQUESTS;
    Error::internal(format!("{most} flushes are outstanding on this communicator, which is the most; test some first"))
}
