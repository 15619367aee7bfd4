//! The data path: whoever posts a request also executes it, on both sides.
//!
//! `pump` works off a send queue; `wire` says when a request reaches the peer; `requester` gathers and checks the local
//! side; `visit` enters the peer's QP; `responder` does there what the peer's NIC would; `copy` (with `vector`) and
//! `atomic` move the bytes. What has to wait is left in the queue with a time, for the next poll or the service thread.

mod atomic;
mod copy;
mod ghost;
mod job;
mod moving;
mod pump;
mod requester;
mod responder;
mod server;
mod vector;
mod visit;
mod wire;

pub(crate) use copy::{CopyError, Piece, Way, copy_plain, copy_words};
pub(crate) use ghost::Ghost;
pub(crate) use moving::Moving;
pub(crate) use pump::{drain, forget, poll, pump, wake};
pub(crate) use server::Server;
pub(crate) use vector::line_step;
pub(crate) use wire::plan;

use crate::abi::consts::Status;

/// What one transmission of a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Acknowledged.
    Done,
    /// No answer: nobody there, or nobody who feels addressed.
    Lost,
    /// "Receiver not ready", with the responder's timer code.
    NotReady(u32),
    /// Its bytes are on their way through the stage.
    Moving,
    /// Someone else is at it: to be tried again in a moment, without a trace.
    Busy,
    /// Failed for good.
    Failed(Status),
}
