//! The first look of `test` and `isend`. It decides most calls: NCCL makes many that find nothing, and several that find what another
//! call has found already. It calls no function and needs few registers, so that such a call costs little.

use super::exclusive_cell::{ExclusiveCell, Inside};
use super::receiver::{RecvComm, RecvPath};
use super::sender::{SendComm, SendPath};
use super::usual::Done;
use crate::error::{Error, Result};
use crate::proto::cts::{Cts, SlotIndex};
use crate::proto::recv_requests::RecvRequest;
use crate::proto::requests::{Entry, Progress};
use crate::proto::send_requests::SendRequest;
use crate::proto::send_single::Refusal;

pub use crate::verbs::work::{Batch, Completion};

/// What the first look has found.
#[derive(Debug)]
pub enum FirstLook<'a, T> {
    /// The call is over.
    Over,
    /// The call goes on by the short way.
    Inside(Inside<'a, T>),
    /// Nothing: the call has to take the long way.
    Closed,
}

/// An end of a connection, whose requests NCCL tests.
pub trait Tested {
    /// The state of its data path.
    type Path;
    /// A request.
    type Request;

    /// The first look of `test`. The call is over if the request is complete; `done` has been called with the number of bytes of each
    /// message then.
    fn first_look(&self, request: &Entry<Self::Request>, done: impl Done) -> FirstLook<'_, Self::Path>;

    /// `test` of a request that is not complete goes on: polls the only completion queue.
    ///
    /// # Errors
    /// The queue has failed.
    fn poll<'b>(path: &Self::Path, batch: &'b mut Batch) -> Result<&'b [Completion]>;

    /// To be called when [`Self::poll`] has found nothing; false: [`Self::handle_empty_poll`] is to be called.
    fn has_nothing_to_do(path: &mut Self::Path) -> bool;

    /// A poll has found nothing while `request` is tested.
    ///
    /// # Errors
    /// The connection has failed. The error is the same each time.
    fn handle_empty_poll(&self, inside: Inside<'_, Self::Path>, request: &Entry<Self::Request>) -> Result<()>;

    /// Handles the completions that [`Self::poll`] has found, as long as they are usual ones, and looks whether the request is complete. `None`:
    /// that is all. Otherwise [`Self::handle_others`] is to be called with the completions that it returns: those that are left, or an empty slice.
    fn handle_usual<'c>(
        path: &mut Self::Path,
        completions: &'c [Completion],
        request: &Entry<Self::Request>,
        done: impl Done,
    ) -> Option<&'c [Completion]>;

    /// As [`Self::handle_usual`], whatever there is to do.
    ///
    /// # Errors
    /// The connection has failed. The error is the same each time.
    fn handle_others(
        &self,
        inside: Inside<'_, Self::Path>,
        completions: &[Completion],
        request: &Entry<Self::Request>,
        done: impl Done,
    ) -> Result<()>;

    /// [`Self::poll`] has failed with `error`.
    ///
    /// # Errors
    /// The connection has failed. The error is the same each time.
    fn handle_failed_poll(&self, inside: Inside<'_, Self::Path>, error: Error) -> Result<()>;

    /// The state of its data path.
    fn path(&self) -> &ExclusiveCell<Self::Path>;

    /// The whole `test`, by the long way.
    ///
    /// # Errors
    /// As [`Self::handle_others`]; or the request has ended.
    fn test(&self, request: &Entry<Self::Request>, done: impl Done) -> Result<()>;
}

impl Tested for SendComm {
    type Path = SendPath;
    type Request = SendRequest;

    #[inline(always)]
    fn first_look(&self, request: &Entry<SendRequest>, done: impl Done) -> FirstLook<'_, SendPath> {
        look(&self.path, |path| {
            let progress = path.finish_usual(request, done);
            Found::of(progress, path.is_plain)
        })
    }

    #[inline(always)]
    fn poll<'b>(path: &SendPath, batch: &'b mut Batch) -> Result<&'b [Completion]> {
        path.qps.queue.poll(batch)
    }

    #[inline(always)]
    fn has_nothing_to_do(path: &mut SendPath) -> bool {
        path.has_nothing_to_do()
    }

    fn handle_empty_poll(&self, mut inside: Inside<'_, SendPath>, _request: &Entry<SendRequest>) -> Result<()> {
        let outcome = inside.state().handle_empty_poll();
        inside.leave();
        outcome
    }

    #[inline(always)]
    fn handle_usual<'c>(
        path: &mut SendPath,
        completions: &'c [Completion],
        request: &Entry<SendRequest>,
        done: impl Done,
    ) -> Option<&'c [Completion]> {
        path.handle_usual(completions, request, done)
    }

    fn handle_others(
        &self,
        mut inside: Inside<'_, SendPath>,
        completions: &[Completion],
        request: &Entry<SendRequest>,
        done: impl Done,
    ) -> Result<()> {
        let outcome = inside.state().handle_others(completions, request, done);
        inside.leave();
        outcome
    }

    fn handle_failed_poll(&self, mut inside: Inside<'_, SendPath>, error: Error) -> Result<()> {
        let outcome = inside.state().handle_failure(error);
        inside.leave();
        outcome
    }

    #[inline(always)]
    fn path(&self) -> &ExclusiveCell<SendPath> {
        &self.path
    }

    fn test(&self, request: &Entry<SendRequest>, done: impl Done) -> Result<()> {
        self.test_in_general(request, done)
    }
}

impl Tested for RecvComm {
    type Path = RecvPath;
    type Request = RecvRequest;

    #[inline(always)]
    fn first_look(&self, request: &Entry<RecvRequest>, done: impl Done) -> FirstLook<'_, RecvPath> {
        look(&self.path, |path| {
            let progress = path.finish_usual(request, done);
            Found::of(progress, path.is_plain)
        })
    }

    #[inline(always)]
    fn poll<'b>(path: &RecvPath, batch: &'b mut Batch) -> Result<&'b [Completion]> {
        path.qps.queue.poll(batch)
    }

    #[inline(always)]
    fn has_nothing_to_do(path: &mut RecvPath) -> bool {
        path.has_nothing_to_do()
    }

    fn handle_empty_poll(&self, mut inside: Inside<'_, RecvPath>, request: &Entry<RecvRequest>) -> Result<()> {
        let outcome = inside.state().handle_empty_poll(&self.peer, request.id());
        inside.leave();
        outcome
    }

    #[inline(always)]
    fn handle_usual<'c>(
        path: &mut RecvPath,
        completions: &'c [Completion],
        request: &Entry<RecvRequest>,
        done: impl Done,
    ) -> Option<&'c [Completion]> {
        path.handle_usual(completions, request, done)
    }

    fn handle_others(
        &self,
        mut inside: Inside<'_, RecvPath>,
        completions: &[Completion],
        request: &Entry<RecvRequest>,
        done: impl Done,
    ) -> Result<()> {
        let outcome = inside.state().handle_others(&self.peer, completions, request, done);
        inside.leave();
        outcome
    }

    fn handle_failed_poll(&self, mut inside: Inside<'_, RecvPath>, error: Error) -> Result<()> {
        let outcome = inside.state().handle_failure(&self.peer, error);
        inside.leave();
        outcome
    }

    #[inline(always)]
    fn path(&self) -> &ExclusiveCell<RecvPath> {
        &self.path
    }

    fn test(&self, request: &Entry<RecvRequest>, done: impl Done) -> Result<()> {
        self.test_in_general(request, done)
    }
}

/// What [`Tested::first_look`] has found of a request.
enum Found {
    Complete,
    /// It is not complete, and there is one completion queue to be polled for it.
    Incomplete,
    /// There is no such request, or it is one for the long way.
    Other,
}

impl Found {
    /// Of a connection that `is_plain`: it has one completion queue, and nothing is being timed.
    #[inline(always)]
    fn of(progress: Progress, is_plain: bool) -> Self {
        match progress {
            Progress::Pending if is_plain => Self::Incomplete,
            Progress::Finished(_) => Self::Complete,
            Progress::Pending | Progress::Other => Self::Other,
        }
    }
}

#[inline(always)]
fn look<T>(cell: &ExclusiveCell<T>, find: impl FnOnce(&mut T) -> Found) -> FirstLook<'_, T> {
    let Some(mut inside) = cell.begin_if_clear() else { return FirstLook::Closed };
    match find(inside.state()) {
        Found::Incomplete => FirstLook::Inside(inside),
        Found::Complete => {
            inside.leave();
            FirstLook::Over
        }
        Found::Other => {
            inside.leave();
            FirstLook::Closed
        }
    }
}

impl SendComm {
    /// The first look of `isend`. The call is over if the receiver has not cleared any message to send; that is counted. It goes on by the
    /// short way if there is the clear-to-send that comes next: [`Self::isend_usual`] is to be called.
    #[inline(always)]
    pub fn look_for_cts(&self) -> FirstLook<'_, SendPath> {
        let Some(mut inside) = self.path.begin_if_clear() else { return FirstLook::Closed };
        let SendPath { flow, ring, stats, .. } = inside.state();
        let is_there = |seq| ring.is_there(SlotIndex::of(seq).index(), |last_word| Cts::seq_of(last_word) == seq);
        let refusal = flow.refuse(is_there);
        if refusal == Refusal::Next {
            return FirstLook::Inside(inside);
        }
        let is_over = refusal == Refusal::Again || refusal == Refusal::First && stats.handle_refused_untimed();
        inside.leave();
        if is_over { FirstLook::Over } else { FirstLook::Closed }
    }
}
