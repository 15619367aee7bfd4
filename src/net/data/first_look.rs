//! The first look of `test` and `isend`. It decides most calls: NCCL makes many that find nothing, and several that find what another
//! call has found already. It calls no function and needs few registers, so that such a call costs little.

use super::completion::Done;
use super::exclusive_cell::{ExclusiveCell, Inside};
use super::receiver::{RecvComm, RecvPath};
use super::sender::{SendComm, SendPath};
use crate::error::{Error, Result};
use crate::proto::cts::{Cts, SlotIndex};
use crate::proto::requests::RequestId;
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

    /// The first look of `test`. The call is over if the request is complete; `done` has been called with the number of bytes of each
    /// message then.
    fn first_look(&self, id: RequestId, done: impl Done) -> FirstLook<'_, Self::Path>;

    /// `test` of a request that is not complete goes on: polls the only completion queue.
    ///
    /// # Errors
    /// The queue has failed.
    fn poll<'b>(path: &Self::Path, batch: &'b mut Batch) -> Result<&'b [Completion]>;

    /// To be called when [`Self::poll`] has found nothing; false: [`Self::handle_empty_poll`] is to be called.
    fn has_nothing_to_do(path: &mut Self::Path) -> bool;

    /// A poll has found nothing while request `id` is tested.
    ///
    /// # Errors
    /// The connection has failed. The error is the same each time.
    fn handle_empty_poll(&self, inside: Inside<'_, Self::Path>, id: RequestId) -> Result<()>;

    /// Handles the completions that [`Self::poll`] has found. The thread is inside, and stays there.
    ///
    /// # Errors
    /// The connection has failed. The error is the same each time.
    fn handle_polled(
        &self,
        path: &mut Self::Path,
        completions: &[Completion],
        id: RequestId,
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
    /// As [`Self::handle_polled`]; or the request has ended.
    fn test(&self, id: RequestId, done: impl Done) -> Result<()>;
}

impl Tested for SendComm {
    type Path = SendPath;

    #[inline(always)]
    fn first_look(&self, id: RequestId, done: impl Done) -> FirstLook<'_, SendPath> {
        look(&self.path, |path| match path.flow.messages_if_done(id) {
            Some(1) if path.finish(id, done) == Ok(true) => Found::Complete,
            Some(0) if path.is_plain => Found::Incomplete,
            _ => Found::Other,
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

    fn handle_empty_poll(&self, mut inside: Inside<'_, SendPath>, _id: RequestId) -> Result<()> {
        let outcome = inside.state().handle_empty_poll();
        inside.leave();
        outcome
    }

    #[inline(always)]
    fn handle_polled(
        &self,
        path: &mut SendPath,
        completions: &[Completion],
        id: RequestId,
        done: impl Done,
    ) -> Result<()> {
        path.handle_polled(completions, id, done)
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

    fn test(&self, id: RequestId, done: impl Done) -> Result<()> {
        self.test_in_general(id, done)
    }
}

impl Tested for RecvComm {
    type Path = RecvPath;

    #[inline(always)]
    fn first_look(&self, id: RequestId, done: impl Done) -> FirstLook<'_, RecvPath> {
        look(&self.path, |path| match path.flow.messages_if_done(id) {
            Some(1) if path.finish(id, done) == Ok(true) => Found::Complete,
            Some(0) if path.is_plain => Found::Incomplete,
            _ => Found::Other,
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

    fn handle_empty_poll(&self, mut inside: Inside<'_, RecvPath>, id: RequestId) -> Result<()> {
        let outcome = inside.state().handle_empty_poll(&self.peer, id);
        inside.leave();
        outcome
    }

    #[inline(always)]
    fn handle_polled(
        &self,
        path: &mut RecvPath,
        completions: &[Completion],
        id: RequestId,
        done: impl Done,
    ) -> Result<()> {
        path.handle_polled(&self.peer, completions, id, done)
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

    fn test(&self, id: RequestId, done: impl Done) -> Result<()> {
        self.test_in_general(id, done)
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
    /// The first look of `isend`. The call is over if the receiver has not cleared any message to send; that is counted.
    #[inline(always)]
    pub fn look_for_cts(&self) -> FirstLook<'_, SendPath> {
        let Some(mut inside) = self.path.begin_if_clear() else { return FirstLook::Closed };
        let SendPath { flow, ring, stats, .. } = inside.state();
        let is_there = |seq| ring.is_there(SlotIndex::of(seq).index(), |last_word| Cts::seq_of(last_word) == seq);
        match flow.refuse(is_there) {
            Refusal::Again => {}
            Refusal::First if stats.handle_refused_untimed() => {}
            _ => return FirstLook::Inside(inside),
        }
        inside.leave();
        FirstLook::Over
    }
}
