//! What one transmission of a request came to.

use crate::abi::consts::Status;

/// What one transmission of a request came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TxOutcome {
    /// Acknowledged.
    Done,
    /// No answer: there is no such queue pair, or it does not take packets from us.
    Lost,
    /// "Receiver not ready", with the responder's timer code.
    NotReady(u32),
    /// Its bytes are being copied through the shared file.
    Staged,
    /// Another process holds the queue pair or the device: to be tried again in a moment, without a trace.
    Busy,
    /// Failed for good.
    Failed(Status),
}
