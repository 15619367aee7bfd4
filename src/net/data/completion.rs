//! `test`: whether a request is complete, and taking completions in while it is not.
//!
//! The short way, while the state word is clear, asks first whether the request is complete. If it is not, the completion queue is
//! polled, and a poll that finds nothing does little else than count. The general way is for all other cases: the connection
//! recovers, the peer is lost or gone, there are several rails or lanes, or a message is being timed.

use super::cts_sender::CtsSender;
use super::receiver::{RecvComm, RecvPath};
use super::sender::{SendComm, SendPath};
use crate::error::{Error, Result};
use crate::net::control::peer_state::PeerState;
use crate::net::qp::set::ConnectedQp;
use crate::net::qp::wr_id::WrId;
use crate::proto::imm::Imm;
use crate::proto::recv::RecvFlow;
use crate::proto::requests::RequestId;
use crate::proto::{QpIndex, Violation};
use crate::stats::record::ConnStats;
use crate::verbs::work::{Batch, Completion};
use std::sync::Arc;

/// What is told the number of bytes of each message of a request that is complete.
pub trait Done: Fn(&[u32]) + Copy {}

impl<F: Fn(&[u32]) + Copy> Done for F {}

impl SendComm {
    /// Calls `done` with the number of bytes sent, once the request is complete.
    ///
    /// # Errors
    /// The connection has failed. The error is the same each time.
    #[inline(always)]
    pub fn test(&self, id: RequestId, done: impl Done) -> Result<()> {
        let outcome = self.path.enter_if_clear(|path| path.test_open(id, done));
        outcome.unwrap_or_else(|| self.test_in_general(id, done))
    }

    #[inline(never)]
    fn test_in_general(&self, id: RequestId, done: impl Done) -> Result<()> {
        self.path.enter(|path| match path.peer.state().is_open() {
            true => path.test_open(id, done),
            false if path.finish(id, done)? => Ok(()),
            false => path.progress_for(id, done),
        })
    }
}

impl SendPath {
    /// `test`, while the peer's state is open.
    ///
    /// # Errors
    /// As [`SendComm::test`].
    #[inline(always)]
    fn test_open(&mut self, id: RequestId, done: impl Done) -> Result<()> {
        match self.finish(id, done)? {
            true => Ok(()),
            false if self.is_plain => self.poll_for(id, done),
            false => self.progress_for(id, done),
        }
    }

    /// If request `id` is complete, calls `done` and returns true; the id is stale afterwards.
    ///
    /// # Errors
    /// The id is stale.
    #[inline(always)]
    fn finish(&mut self, id: RequestId, done: impl Done) -> Result<bool> {
        let Some(length) = self.flow.poll_done(id).map_err(Violation::into_misuse)? else { return Ok(false) };
        self.stats.handle_done(length);
        done(&[length]);
        Ok(true)
    }

    /// Polls the only completion queue for request `id`, which is not complete.
    ///
    /// # Errors
    /// The connection has failed.
    #[inline(never)]
    fn poll_for(&mut self, id: RequestId, done: impl Done) -> Result<()> {
        let mut batch = Batch::default();
        match self.qps.queue.poll(&mut batch) {
            Ok([]) if !self.stall.is_due() => Ok(()),
            Ok([]) => self.check_stall(),
            Ok(completions) => match self.handle_completions(completions) {
                Ok(()) => self.finish(id, done).map(drop),
                Err(e) => self.fail_after(id, done, e),
            },
            Err(e) => self.handle_failure(e),
        }
    }

    /// A poll has found `error`, and may have found before it that request `id` is complete.
    ///
    /// # Errors
    /// The connection has failed, and the request is not complete.
    #[cold]
    #[inline(never)]
    fn fail_after(&mut self, id: RequestId, done: impl Done, error: Error) -> Result<()> {
        let outcome = self.handle_failure(error);
        // What is complete stays so, whatever has failed after it.
        if self.finish(id, done)? { Ok(()) } else { outcome }
    }

    /// As [`Self::poll_for`], in all cases.
    ///
    /// # Errors
    /// As there.
    #[inline(never)]
    fn progress_for(&mut self, id: RequestId, done: impl Done) -> Result<()> {
        let progress = self.progress_in_general();
        if self.finish(id, done)? { Ok(()) } else { progress }
    }

    /// Polls all completion queues, or does what takes the place of that.
    ///
    /// # Errors
    /// The connection has failed.
    pub(super) fn progress(&mut self) -> Result<()> {
        if !self.peer.state().is_open() {
            return self.progress_not_open();
        }
        match self.poll_rails() {
            Ok(0) if self.stall.is_due() => self.check_stall(),
            Ok(_) => Ok(()),
            Err(e) => self.handle_failure(e),
        }
    }

    #[inline(never)]
    fn handle_completions(&mut self, completions: &[Completion]) -> Result<()> {
        let Self { flow, qps, other_work, peer, .. } = self;
        qps.handle_completions(peer, completions, |_, completion| match WrId::from_bits(completion.id()) {
            WrId::Data { request, .. } => Ok(flow.handle_completion(request)?),
            _ => match other_work.handle_completion(completion.id())? {
                Some((request, _)) => Ok(flow.handle_completion(request)?),
                None => Ok(()),
            },
        })
    }

    #[inline(never)]
    pub(super) fn poll_rails(&mut self) -> Result<usize> {
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

impl RecvComm {
    /// Calls `done` with the number of bytes of each message, once the request is complete.
    ///
    /// # Errors
    /// The connection has failed. The error is the same each time.
    #[inline(always)]
    pub fn test(&self, id: RequestId, done: impl Done) -> Result<()> {
        let outcome = self.path.enter_if_clear(|path| path.test_open(&self.peer, id, done));
        outcome.unwrap_or_else(|| self.test_in_general(id, done))
    }

    #[inline(never)]
    fn test_in_general(&self, id: RequestId, done: impl Done) -> Result<()> {
        self.path.enter(|path| match self.peer.state().is_open() {
            true => path.test_open(&self.peer, id, done),
            false if path.finish(id, done)? => Ok(()),
            false => path.progress_for(&self.peer, id, done),
        })
    }
}

impl RecvPath {
    /// As [`SendPath::test_open`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    fn test_open(&mut self, peer: &Arc<PeerState>, id: RequestId, done: impl Done) -> Result<()> {
        match self.finish(id, done)? {
            true => Ok(()),
            false if self.is_plain => self.poll_for(peer, id, done),
            false => self.progress_for(peer, id, done),
        }
    }

    /// As [`SendPath::finish`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    fn finish(&mut self, id: RequestId, done: impl Done) -> Result<bool> {
        let Self { flow, stats, .. } = self;
        match flow.poll_done(id).map_err(Violation::into_misuse)? {
            None => return Ok(false),
            // Nearly all groups have one member.
            Some([length]) => {
                stats.handle_done(*length);
                done(std::slice::from_ref(length));
            }
            Some(lengths) => finish_group(stats, lengths, done),
        }
        Ok(true)
    }

    /// As [`SendPath::poll_for`].
    ///
    /// # Errors
    /// As there.
    #[inline(never)]
    fn poll_for(&mut self, peer: &Arc<PeerState>, id: RequestId, done: impl Done) -> Result<()> {
        let mut batch = Batch::default();
        match self.qps.queue.poll(&mut batch) {
            Ok([]) => match (self.stall.is_due(), self.flow.has_waiting_cts()) {
                (false, false) => Ok(()),
                (is_due, _) => self.handle_empty_poll(peer, id, is_due),
            },
            Ok(completions) => match self.handle_completions(peer, completions).and_then(|()| self.send_cts()) {
                Ok(()) => self.finish(id, done).map(drop),
                Err(e) => self.fail_after(peer, id, done, e),
            },
            Err(e) => self.handle_failure(peer, e),
        }
    }

    /// As [`SendPath::fail_after`].
    ///
    /// # Errors
    /// As there.
    #[cold]
    #[inline(never)]
    fn fail_after(&mut self, peer: &Arc<PeerState>, id: RequestId, done: impl Done, error: Error) -> Result<()> {
        let outcome = self.handle_failure(peer, error);
        if self.finish(id, done)? { Ok(()) } else { outcome }
    }

    /// As [`SendPath::progress_for`].
    ///
    /// # Errors
    /// As there.
    #[inline(never)]
    fn progress_for(&mut self, peer: &Arc<PeerState>, id: RequestId, done: impl Done) -> Result<()> {
        let progress = self.progress_in_general(peer, id);
        if self.finish(id, done)? { Ok(()) } else { progress }
    }

    /// A poll has found nothing. NCCL tests request `awaited`; `is_due` tells whether to look at the clock.
    ///
    /// # Errors
    /// The connection has failed.
    #[inline(never)]
    fn handle_empty_poll(&mut self, peer: &Arc<PeerState>, awaited: RequestId, is_due: bool) -> Result<()> {
        self.flow.handle_empty_poll(awaited);
        if is_due {
            self.check_stall(peer)?;
        }
        self.send_cts().or_else(|e| self.handle_failure(peer, e))
    }

    /// As [`SendPath::progress`]; NCCL tests request `awaited`.
    ///
    /// # Errors
    /// As there.
    pub(super) fn progress(&mut self, peer: &Arc<PeerState>, awaited: RequestId) -> Result<()> {
        if !peer.state().is_open() {
            return self.progress_not_open(peer, awaited);
        }
        match self.poll_rails(peer) {
            Ok(0) => {
                let is_due = self.stall.is_due();
                self.handle_empty_poll(peer, awaited, is_due)
            }
            Ok(_) => self.send_cts().or_else(|e| self.handle_failure(peer, e)),
            Err(e) => self.handle_failure(peer, e),
        }
    }

    #[inline(never)]
    fn handle_completions(&mut self, peer: &Arc<PeerState>, completions: &[Completion]) -> Result<()> {
        let Self { flow, qps, cts_sender, .. } = self;
        qps.handle_completions(peer, completions, |qps, completion| handle(flow, cts_sender, qps, completion))
    }

    #[inline(never)]
    pub(super) fn poll_rails(&mut self, peer: &Arc<PeerState>) -> Result<usize> {
        let Self { flow, qps, cts_sender, .. } = self;
        qps.poll_rails(peer, |qps, completion| handle(flow, cts_sender, qps, completion))
    }
}

#[inline(never)]
fn finish_group(stats: &mut ConnStats, lengths: &[u32], done: impl Done) {
    stats.handle_group_done(lengths);
    done(lengths);
}

/// Handles the completion of a receiver's work request that has succeeded.
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
fn no_such_qp() -> Error {
    Error::internal("a queue pair that does not exist")
}
