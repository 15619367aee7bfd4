//! `test`: whether a request is complete, and taking completions in while it is not.
//!
//! The short way, while the state word is clear, begins with [`super::first_look`]; it polls the completion queue, and does little else than count if
//! that is empty. The general way: a recovery, a peer that is lost or gone, several rails or lanes, a message that is timed.

use super::cts_sender::CtsSender;
use super::other_work::OtherWork;
use super::receiver::{RecvComm, RecvPath};
use super::sender::{SendComm, SendPath};
use super::usual::Done;
use crate::error::{Error, Result};
use crate::net::control::peer_state::PeerState;
use crate::net::qp::set::ConnectedQp;
use crate::net::qp::wr_id::WrId;
use crate::proto::imm::Imm;
use crate::proto::recv::RecvFlow;
use crate::proto::recv_requests::{Finished, RecvRequest};
use crate::proto::requests::{Entry, RequestId};
use crate::proto::send::SendFlow;
use crate::proto::send_requests::SendRequest;
use crate::proto::{QpIndex, Violation};
use crate::verbs::status::Status;
use crate::verbs::work::{Batch, Completion};
use std::sync::Arc;

impl SendComm {
    /// `test` by the long way: calls `done` with the number of bytes sent, once the request is complete.
    ///
    /// # Errors
    /// The connection has failed, or the request has ended. The error is the same each time.
    #[inline(never)]
    pub(super) fn test_in_general(&self, request: &Entry<SendRequest>, done: impl Done) -> Result<()> {
        self.path.enter(|path| match path.finish(request, done)? {
            true => Ok(()),
            false if path.peer.state().is_open() => path.poll_for(request, done),
            false => path.progress_for(request, done),
        })
    }
}

impl SendPath {
    /// If `request` is complete, calls `done` and returns true; it has ended then.
    ///
    /// # Errors
    /// The request has ended.
    #[inline(always)]
    pub(super) fn finish(&mut self, request: &Entry<SendRequest>, done: impl Done) -> Result<bool> {
        let Some(length) = self.flow.finish(request).map_err(Violation::into_misuse)? else { return Ok(false) };
        self.stats.handle_done(length);
        done(&[length]);
        Ok(true)
    }

    /// `test` of `request`, which is not complete, while the peer's state is open.
    ///
    /// # Errors
    /// The connection has failed.
    #[inline(always)]
    fn poll_for(&mut self, request: &Entry<SendRequest>, done: impl Done) -> Result<()> {
        if !self.is_plain {
            return self.progress_for(request, done);
        }
        let mut batch = Batch::default();
        match self.qps.queue.poll(&mut batch) {
            Ok([]) if self.has_nothing_to_do() => Ok(()),
            Ok([]) => self.handle_empty_poll(),
            Ok(completions) => self.handle_others(completions, request, done),
            Err(e) => self.handle_failure(e),
        }
    }

    /// A poll has found nothing, and it is time to look at the clock.
    ///
    /// # Errors
    /// The connection has failed.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_empty_poll(&mut self) -> Result<()> {
        self.check_stall()
    }

    /// Handles the `completions` of the only completion queue, for `request`.
    ///
    /// # Errors
    /// The connection has failed.
    #[inline(never)]
    pub(super) fn handle_others(
        &mut self,
        completions: &[Completion],
        request: &Entry<SendRequest>,
        done: impl Done,
    ) -> Result<()> {
        match self.handle_completions(completions) {
            Ok(()) => self.finish(request, done).map(drop),
            Err(e) => self.fail_after(request, done, e),
        }
    }

    /// A poll has found `error`, and may have found before it that `request` is complete.
    ///
    /// # Errors
    /// The connection has failed, and the request is not complete.
    #[cold]
    #[inline(never)]
    fn fail_after(&mut self, request: &Entry<SendRequest>, done: impl Done, error: Error) -> Result<()> {
        let outcome = self.handle_failure(error);
        // What is complete stays so, whatever has failed after it.
        if self.finish(request, done)? { Ok(()) } else { outcome }
    }

    /// As [`Self::poll_for`], in all cases.
    ///
    /// # Errors
    /// As there.
    #[inline(never)]
    fn progress_for(&mut self, request: &Entry<SendRequest>, done: impl Done) -> Result<()> {
        let progress = self.progress_in_general();
        if self.finish(request, done)? { Ok(()) } else { progress }
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

    /// Handles completions in their order.
    ///
    /// # Errors
    /// As [`crate::net::qp::set::QpSet::handle_completions`].
    #[inline(always)]
    fn handle_completions(&mut self, mut completions: &[Completion]) -> Result<()> {
        while let [completion, others @ ..] = completions {
            if completion.status() != Status::SUCCESS {
                return self.handle_failed(completions, Ok(()));
            }
            if let Err(e) = handle_sent(&mut self.flow, &mut self.other_work, completion) {
                return self.handle_failed(others, Err(e));
            }
            completions = others;
        }
        Ok(())
    }

    /// As [`Self::handle_completions`], where one has failed, or has led to the error `outcome` before these.
    ///
    /// # Errors
    /// As there.
    #[cold]
    #[inline(never)]
    fn handle_failed(&mut self, completions: &[Completion], outcome: Result<()>) -> Result<()> {
        let Self { flow, qps, other_work, peer, .. } = self;
        qps.handle_completions(peer, completions, outcome, |_, completion| handle_sent(flow, other_work, completion))
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
    /// `test` by the long way: calls `done` with the number of bytes of each message, once the request is complete.
    ///
    /// # Errors
    /// The connection has failed, or the request has ended. The error is the same each time.
    #[inline(never)]
    pub(super) fn test_in_general(&self, request: &Entry<RecvRequest>, done: impl Done) -> Result<()> {
        self.path.enter(|path| match path.finish(request, done)? {
            true => Ok(()),
            false if self.peer.state().is_open() => path.poll_for(&self.peer, request, done),
            false => path.progress_for(&self.peer, request, done),
        })
    }
}

impl RecvPath {
    /// As [`SendPath::finish`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub(super) fn finish(&mut self, request: &Entry<RecvRequest>, done: impl Done) -> Result<bool> {
        match self.flow.finish(request).map_err(Violation::into_misuse)? {
            None => return Ok(false),
            // Nearly all groups have one member.
            Some(Finished::One(length)) => {
                self.stats.handle_done(length);
                done(&[length]);
            }
            Some(Finished::Group) => self.finish_group(request, done),
        }
        Ok(true)
    }

    #[inline(never)]
    fn finish_group(&mut self, request: &Entry<RecvRequest>, done: impl Done) {
        let lengths = self.flow.lengths(request);
        self.stats.handle_group_done(lengths);
        done(lengths);
    }

    /// As [`SendPath::poll_for`].
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    fn poll_for(&mut self, peer: &Arc<PeerState>, request: &Entry<RecvRequest>, done: impl Done) -> Result<()> {
        if !self.is_plain {
            return self.progress_for(peer, request, done);
        }
        let mut batch = Batch::default();
        match self.qps.queue.poll(&mut batch) {
            Ok([]) if self.has_nothing_to_do() => Ok(()),
            Ok([]) => self.handle_empty_poll(peer, request.id()),
            Ok(completions) => self.handle_others(peer, completions, request, done),
            Err(e) => self.handle_failure(peer, e),
        }
    }

    /// A poll has found nothing. NCCL tests request `awaited`. Looks at the clock, if that is due, and sends clear-to-sends that have
    /// waited for others.
    ///
    /// # Errors
    /// The connection has failed.
    #[inline(never)]
    pub(super) fn handle_empty_poll(&mut self, peer: &Arc<PeerState>, awaited: RequestId) -> Result<()> {
        self.flow.handle_empty_poll(awaited);
        if self.stall.was_due() {
            self.check_stall(peer)?;
        }
        self.send_cts().or_else(|e| self.handle_failure(peer, e))
    }

    /// As [`SendPath::handle_others`]; there may be no completions. Posts receives before, and sends the clear-to-sends that are due after.
    ///
    /// # Errors
    /// As there, or the device refuses.
    #[inline(never)]
    pub(super) fn handle_others(
        &mut self,
        peer: &Arc<PeerState>,
        completions: &[Completion],
        request: &Entry<RecvRequest>,
        done: impl Done,
    ) -> Result<()> {
        let handled = match self.qps.qps.iter_mut().try_for_each(ConnectedQp::post_missing) {
            Ok(()) => self.handle_completions(peer, completions),
            Err(e) => self.handle_failed(peer, completions, Err(e)),
        };
        match handled {
            Ok(()) => self.finish(request, done).map(drop),
            Err(e) => self.fail_after(peer, request, done, e),
        }
    }

    /// As [`SendPath::fail_after`].
    ///
    /// # Errors
    /// As there.
    #[cold]
    #[inline(never)]
    fn fail_after(
        &mut self,
        peer: &Arc<PeerState>,
        request: &Entry<RecvRequest>,
        done: impl Done,
        error: Error,
    ) -> Result<()> {
        let outcome = self.handle_failure(peer, error);
        if self.finish(request, done)? { Ok(()) } else { outcome }
    }

    /// As [`SendPath::progress_for`].
    ///
    /// # Errors
    /// As there.
    #[inline(never)]
    fn progress_for(&mut self, peer: &Arc<PeerState>, request: &Entry<RecvRequest>, done: impl Done) -> Result<()> {
        let progress = self.progress_in_general(peer, request.id());
        if self.finish(request, done)? { Ok(()) } else { progress }
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
                let _ = self.stall.is_due();
                self.handle_empty_poll(peer, awaited)
            }
            Ok(_) => self.send_cts().or_else(|e| self.handle_failure(peer, e)),
            Err(e) => self.handle_failure(peer, e),
        }
    }

    /// As [`SendPath::handle_completions`]; then sends the clear-to-sends that are due.
    ///
    /// # Errors
    /// As there, or the device refuses a clear-to-send.
    #[inline(always)]
    fn handle_completions(&mut self, peer: &Arc<PeerState>, mut completions: &[Completion]) -> Result<()> {
        while let [completion, others @ ..] = completions {
            if completion.status() != Status::SUCCESS {
                return self.handle_failed(peer, completions, Ok(()));
            }
            let Self { flow, qps, cts_sender, .. } = self;
            if let Err(e) = handle(flow, cts_sender, &mut qps.qps, completion) {
                return self.handle_failed(peer, others, Err(e));
            }
            completions = others;
        }
        self.send_cts()
    }

    /// As [`SendPath::handle_failed`].
    ///
    /// # Errors
    /// As there.
    #[cold]
    #[inline(never)]
    fn handle_failed(&mut self, peer: &Arc<PeerState>, completions: &[Completion], outcome: Result<()>) -> Result<()> {
        let Self { flow, qps, cts_sender, .. } = self;
        qps.handle_completions(peer, completions, outcome, |qps, completion| handle(flow, cts_sender, qps, completion))
    }

    #[inline(never)]
    pub(super) fn poll_rails(&mut self, peer: &Arc<PeerState>) -> Result<usize> {
        let Self { flow, qps, cts_sender, .. } = self;
        qps.poll_rails(peer, |qps, completion| handle(flow, cts_sender, qps, completion))
    }
}

/// Handles the completion of a sender's work request that has succeeded.
#[inline(always)]
fn handle_sent(flow: &mut SendFlow, other_work: &mut OtherWork, completion: &Completion) -> Result<()> {
    match WrId::from_bits(completion.id()) {
        WrId::Data { request, .. } => Ok(flow.handle_completion(request)?),
        _ => handle_other(flow, other_work, completion.id()),
    }
}

/// As [`handle_sent`], for work that is not a stripe in one write.
#[inline(never)]
fn handle_other(flow: &mut SendFlow, other_work: &mut OtherWork, id: u64) -> Result<()> {
    match other_work.handle_completion(id)? {
        Some((request, _)) => Ok(flow.handle_completion(request)?),
        None => Ok(()),
    }
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
            if qp.count_receive() { qp.post_missing() } else { Ok(()) }
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
