//! What both ends of a connection share: how NCCL tests their requests, which operation a timed
//! message belongs to, and what state they report.
//!
//! NCCL makes many calls that find nothing, and several that repeat an earlier result. The first
//! check of `test` and `isend` decides these. It calls no function and needs few registers, so such
//! a call is cheap. Where there is more to do, it jumps to a second function with the C ABI, which
//! lets no panic out ([`Outcome::of`]): so the first check needs no stack frame.

use super::exclusive_cell::{BegunCall, ExclusiveCell, FirstStep, Inside, Occupant};
use crate::error::{Error, Result};
use crate::net::operations::live;
use crate::net::peer::state::PeerState;
use crate::net::qp::set::QpSet;
use crate::proto::explain::snapshot::{Contact, EndCheck, EndSnapshot};
use crate::proto::requests::{Entry, RequestId, TestResult};
use crate::stats::labels::Labels;
use crate::stats::record::ConnStats;
use crate::verbs::completion_queue::CompletionQueue;
use crate::verbs::work::{Batch, Completion, CompletionLook, Unread};

/// Receives the number of bytes of each message of a complete request.
pub trait Done: Fn(&[u32]) + Copy {}

impl<F: Fn(&[u32]) + Copy> Done for F {}

/// What a call returns: NCCL's result code. The simulator takes the result itself.
pub trait Outcome {
    /// A success.
    const SUCCESS: Self;

    /// Runs the last step of NCCL's function `call`; it may panic.
    fn of(call: &'static str, step: impl FnOnce() -> Result<()>) -> Self;

    /// The result of the last step of NCCL's function `call`. Its caller guards against panics.
    fn from_result(call: &'static str, result: Result<()>) -> Self;
}

/// A call of `test`. Passed by reference, so that no register keeps it during the poll.
#[derive(Debug)]
pub struct Test<'a, R, D> {
    /// The request.
    pub request: &'a Entry<R>,
    /// Receives the result.
    pub done: D,
}

/// An end of a connection, whose requests NCCL tests.
pub trait Tested {
    /// The state of its data path.
    type Path: Path;

    /// The cell of that state.
    fn path(&self) -> &ExclusiveCell<Self::Path>;
}

/// NCCL's `test`. Calls `done` if the request is complete, which ends it.
///
/// # Errors
/// The connection has failed, or the request has ended. Each call returns the same error.
#[inline(always)]
pub fn test<T: Tested, O: Outcome>(end: &T, request: &Entry<RequestOf<T>>, done: impl Done) -> O {
    match end.path().begin(|path| path.check(&Test { request, done })) {
        BegunCall::Done => O::SUCCESS,
        BegunCall::Next(inside) => poll_for(request, done, inside),
        BegunCall::Other => test_in_general(request, done, end.path()),
    }
}

/// [`test()`], where the fast path continues. The parameters are in the order of its callers,
/// so that they stay in their registers.
#[inline(never)]
extern "C" fn poll_for<P: Path, O: Outcome>(
    request: &Entry<P::Request>,
    done: impl Done,
    inside: Inside<'_, P>,
) -> O {
    inside.end("test", |path| path.poll_for(&Test { request, done }))
}

/// [`test()`] by the slow path.
#[inline(never)]
extern "C" fn test_in_general<P: Path, O: Outcome>(
    request: &Entry<P::Request>,
    done: impl Done,
    path: &ExclusiveCell<P>,
) -> O {
    path.call("test", |path| path.test_in_general(&Test { request, done }))
}

impl<P: Path> Inside<'_, P> {
    /// Runs the last step of NCCL's function `call`.
    #[inline(always)]
    pub(super) fn end<O: Outcome>(
        self,
        call: &'static str,
        step: impl FnOnce(&mut P) -> Result<()>,
    ) -> O {
        O::of(call, || self.resume(step, P::log_once))
    }
}

impl<P: Path> ExclusiveCell<P> {
    /// Runs NCCL's function `call` by the slow path.
    #[inline(always)]
    pub(super) fn call<O: Outcome>(
        &self,
        call: &'static str,
        body: impl FnOnce(&mut P) -> Result<()>,
    ) -> O {
        O::of(call, || self.report(body))
    }

    /// Runs the body of a call of NCCL's, which gets its error.
    #[inline(always)]
    pub(super) fn report(&self, body: impl FnOnce(&mut P) -> Result<()>) -> Result<()> {
        self.enter(|path| body(path).map_err(|e| path.log_once(e)))
    }
}

/// A request of an end.
pub type RequestOf<T> = <<T as Tested>::Path as Path>::Request;

/// The data path state of an end, as `test` needs it.
pub trait Path {
    /// A request.
    type Request;

    /// The state of the peer.
    fn peer(&self) -> &PeerState;

    /// `error` for NCCL: see [`super::health::StickyError::log_once`].
    fn log_once(&mut self, error: Error) -> Error;

    /// Whether there is one completion queue, and no message is being timed.
    fn is_plain(&self) -> bool;

    /// The queue pairs.
    fn qps(&mut self) -> &mut QpSet;

    /// If the request is complete and [`Self::finish`] is not needed, ends it and calls `done`.
    fn finish_fast(&mut self, test: &Test<'_, Self::Request, impl Done>) -> TestResult;

    /// If the request is complete, ends it, calls `done` and returns true.
    ///
    /// # Errors
    /// The request has ended already.
    fn finish(&mut self, test: &Test<'_, Self::Request, impl Done>) -> Result<bool>;

    /// Call after an empty poll; if it returns false, call [`Self::handle_empty_poll`].
    fn has_nothing_to_do(&mut self) -> bool;

    /// Handles an empty poll.
    ///
    /// # Errors
    /// The connection has failed.
    fn handle_empty_poll(&mut self, test: &Test<'_, Self::Request, impl Done>) -> Result<()>;

    /// Reads the completions of the only queue, which a look has found, and handles them in order
    /// while they fit the fast path. Returns `None` if all do, and no other work is due. Otherwise
    /// pass the returned ones to [`Self::handle_others`]: those that are left, or an empty slice.
    ///
    /// # Errors
    /// The queue has failed.
    fn read_fast<'c>(
        &mut self,
        unread: Unread,
        batch: &'c mut Batch,
    ) -> Result<Option<&'c [Completion]>>;

    /// The same as [`Self::read_fast`] for completions of a poll.
    fn handle_fast<'c>(&mut self, completions: &'c [Completion]) -> Option<&'c [Completion]>;

    /// Finishes the request if it is complete, after [`Self::read_fast`] or [`Self::handle_fast`]
    /// has handled all completions. If it returns false, call [`Self::handle_others`].
    fn finish_fast_completions(&mut self, test: &Test<'_, Self::Request, impl Done>) -> bool;

    /// Handles all kinds of completions in order.
    ///
    /// # Errors
    /// The connection has failed.
    fn handle_completions(&mut self, completions: &[Completion]) -> Result<()>;

    /// Handles a failure: recovers with new queue pairs, or else ends the connection.
    ///
    /// # Errors
    /// The connection ends.
    fn recover_or_fail(&mut self, error: Error) -> Result<()>;

    /// Polls all completion queues, or does its equivalent outside normal operation.
    ///
    /// # Errors
    /// The connection has failed.
    fn progress_in_general(&mut self, test: &Test<'_, Self::Request, impl Done>) -> Result<()>;

    /// [`Self::handle_fast`] for all cases.
    ///
    /// # Errors
    /// The connection has failed, and the request is not complete.
    #[inline(never)]
    fn handle_others(
        &mut self,
        completions: &[Completion],
        test: &Test<'_, Self::Request, impl Done>,
    ) -> Result<()> {
        match self.handle_completions(completions) {
            Ok(()) => self.finish(test).map(drop),
            Err(e) => self.fail_after(test, e),
        }
    }

    /// A poll has failed with `error`; it may first have completed the request.
    ///
    /// # Errors
    /// The connection has failed, and the request is not complete.
    #[cold]
    #[inline(never)]
    fn fail_after(
        &mut self,
        test: &Test<'_, Self::Request, impl Done>,
        error: Error,
    ) -> Result<()> {
        let outcome = self.recover_or_fail(error);
        // A completed request stays complete, whatever fails after it.
        if self.finish(test)? { Ok(()) } else { outcome }
    }

    /// The first step of [`test()`]: checks whether the request is complete.
    #[inline(always)]
    fn check(&mut self, test: &Test<'_, Self::Request, impl Done>) -> FirstStep {
        match self.finish_fast(test) {
            TestResult::Finished(_) => FirstStep::Done,
            TestResult::Pending if self.is_plain() => FirstStep::Next,
            TestResult::Pending | TestResult::Other => FirstStep::Other,
        }
    }

    /// `test` by the slow path: checks whether the request is complete, and polls if not.
    ///
    /// # Errors
    /// As for [`test()`].
    #[inline(always)]
    fn test_in_general(&mut self, test: &Test<'_, Self::Request, impl Done>) -> Result<()> {
        if self.finish(test)? {
            return Ok(());
        }
        if !self.is_plain() || !self.peer().state().is_open() {
            return self.progress_for(test);
        }
        self.poll_for(test)
    }

    /// Polls the only completion queue.
    ///
    /// # Errors
    /// The connection has failed.
    #[inline(always)]
    fn poll_for(&mut self, test: &Test<'_, Self::Request, impl Done>) -> Result<()> {
        let queue = self.qps().first_queue();
        match queue.map_or(Some(CompletionLook::Nothing), CompletionQueue::look) {
            Some(CompletionLook::Nothing) if self.has_nothing_to_do() => Ok(()),
            Some(CompletionLook::Nothing) => self.handle_empty_poll(test),
            Some(CompletionLook::Something(unread)) => self.read_for(unread, test),
            Some(CompletionLook::Failed) => {
                let error = self.qps().first_queue().map(|queue| queue.poll_error());
                error.map_or(Ok(()), |error| self.recover_or_fail(error.into()))
            }
            None => self.poll_batch_for(test),
        }
    }

    /// [`Self::poll_for`] where the device only tells whether there are completions by returning
    /// them.
    ///
    /// # Errors
    /// The connection has failed.
    #[inline(never)]
    fn poll_batch_for(&mut self, test: &Test<'_, Self::Request, impl Done>) -> Result<()> {
        let mut batch = Batch::default();
        let Some(queue) = self.qps().first_queue() else { return Ok(()) };
        match queue.poll(&mut batch) {
            Ok([]) if self.has_nothing_to_do() => Ok(()),
            Ok([]) => self.handle_empty_poll(test),
            Ok(completions) => self.handle_polled(completions, test),
            Err(e) => self.recover_or_fail(e.into()),
        }
    }

    /// Reads completions that a look has found, and handles them.
    ///
    /// # Errors
    /// The connection has failed, and the request is not complete.
    #[inline(never)]
    fn read_for(
        &mut self,
        unread: Unread,
        test: &Test<'_, Self::Request, impl Done>,
    ) -> Result<()> {
        let mut batch = Batch::default();
        match self.read_fast(unread, &mut batch) {
            Ok(None) if self.finish_fast_completions(test) => Ok(()),
            Ok(others) => self.handle_others(others.unwrap_or_default(), test),
            Err(e) => self.recover_or_fail(e),
        }
    }

    /// Handles the completions of a poll.
    ///
    /// # Errors
    /// The connection has failed, and the request is not complete.
    #[inline(never)]
    fn handle_polled(
        &mut self,
        completions: &[Completion],
        test: &Test<'_, Self::Request, impl Done>,
    ) -> Result<()> {
        match self.handle_fast(completions) {
            None if self.finish_fast_completions(test) => Ok(()),
            others => self.handle_others(others.unwrap_or_default(), test),
        }
    }

    /// Polls all completion queues for the request, or does its equivalent outside normal operation.
    ///
    /// # Errors
    /// The connection has failed, and the request is not complete.
    #[inline(never)]
    fn progress_for(&mut self, test: &Test<'_, Self::Request, impl Done>) -> Result<()> {
        let progress = self.progress_in_general(test);
        if self.finish(test)? { Ok(()) } else { progress }
    }
}

/// If request `id` is timed from now on, assigns it to the operation that NCCL's profiler has last
/// reported.
pub(super) fn name_operation(stats: &mut ConnStats, id: RequestId) {
    if stats.timed_request() == Some(id.to_bits()) {
        let labels = Labels::of(stats);
        let call = labels
            .communicator()
            .and_then(|id| live::recent(id, labels.is_sender(), labels.peer_rank()));
        stats.set_timed_operation(call.map_or(0, |call| call.to_bits()));
    }
}

/// Converts what was found, with the state of `peer`.
pub(super) fn end_check(
    snapshot: std::result::Result<EndSnapshot, Occupant>,
    peer: &PeerState,
) -> EndCheck {
    let snapshot = match snapshot {
        Ok(snapshot) => snapshot,
        Err(Occupant::Nccl) => return EndCheck::InCall,
        Err(Occupant::Visitor) => return EndCheck::Visited,
    };
    let state = peer.state();
    let contact = match (state.is_gone(), state.is_lost()) {
        (true, _) => Contact::Gone,
        (false, true) => Contact::Lost,
        (false, false) => Contact::Up,
    };
    EndCheck::Snapshot(EndSnapshot { recovers: state.is_recovering(), contact, ..snapshot })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::control::driver::ControlDriver;
    use crate::net::control::observers::PeerObserver;
    use crate::net::control::stream::ControlStream;
    use crate::net::data::send::CtsRing;
    use crate::proto::control::event::PeerChange;
    use crate::proto::cts::{Cts, SlotIndex};
    use crate::proto::explain::numbers::Numbers;
    use crate::proto::rail_weights::RailWeights;
    use crate::proto::send::SendFlow;
    use crate::proto::stripe::Striping;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;
    use std::time::Duration;

    /// A peer that is never reached.
    fn unreached_peer() -> Arc<PeerState> {
        let driver = ControlDriver::new(Duration::from_secs(20), None).expect("descriptors");
        let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let stream =
            ControlStream::open(&driver, nowhere, [1; 16], [2; 16]).expect("this is no child");
        PeerState::new("the peer".into(), stream, true)
    }

    #[test]
    fn a_look_tells_whether_the_connection_recovers_and_what_is_known_of_the_peer() {
        let peer = unreached_peer();
        let numbers = Numbers::Sender { seen: 1, sent: 1, acknowledged: 0, wants: false };
        let at = |recovers, contact| EndSnapshot {
            numbers,
            refusals: 2,
            calls: 3,
            has_requests: true,
            recovers,
            contact,
            sender_rank: None,
        };
        let snapshot = |recovers, contact| EndCheck::Snapshot(at(recovers, contact));
        let now = || end_check(Ok(at(false, Contact::Gone)), &peer);
        assert_eq!(now(), snapshot(false, Contact::Up));
        peer.set_recovering(true);
        assert_eq!(now(), snapshot(true, Contact::Up));
        drop(peer.handle_change(PeerChange::Lost("a test".into())));
        assert_eq!(now(), snapshot(true, Contact::Lost));
        drop(peer.handle_change(PeerChange::Closed("bye".into())));
        assert_eq!(now(), snapshot(true, Contact::Gone));
        peer.set_recovering(false);
        assert_eq!(now(), snapshot(false, Contact::Gone));
    }

    /// Holds whatever the first number of a connection is, and however long the connection lasts.
    #[test]
    fn a_ring_that_nobody_has_written_to_has_no_clear_to_send_and_tells_no_rank() {
        for layout in [[1, 1], [2, 2], [2, 1]] {
            let mut ring = CtsRing::new(layout[0], Cts::empty_last_word).expect("memory");
            ring.lay_out(layout[1], Cts::empty_last_word);
            let read = |seq: u32| {
                ring.read(SlotIndex::of(seq).index(), |last_word| Cts::seq_of(last_word) == seq)
            };
            let first = [0, u32::MAX - 600, 1 << 31]
                .into_iter()
                .flat_map(|from: u32| (0..1200).map(move |i| from.wrapping_add(i)));
            assert_eq!(first.filter(|seq| read(*seq).is_some()).count(), 0, "{layout:?}");
            let flow = SendFlow::new(Striping::new(1, 1, false), RailWeights::from_speeds([1]));
            assert_eq!(flow.snapshot(0, read).sender_rank, None);
        }
    }

    #[test]
    fn where_a_thread_is_inside_it_is_reported_which() {
        let peer = unreached_peer();
        assert_eq!(end_check(Err(Occupant::Nccl), &peer), EndCheck::InCall);
        assert_eq!(end_check(Err(Occupant::Visitor), &peer), EndCheck::Visited);
    }
}
