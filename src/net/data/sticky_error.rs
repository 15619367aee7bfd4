//! The error with which one end of a connection has failed.

use crate::error::{Error, Result};
use crate::net::control::first_error;
use crate::net::control::peer_state::PeerState;
use std::sync::Arc;

/// The error of one end, which is final: once there is one, every later call returns it.
#[derive(Debug)]
pub struct StickyError {
    /// The task of this end, for messages: `sending to` or `receiving from`.
    task: &'static str,
    error: Option<Error>,
}

impl StickyError {
    /// No error.
    pub fn new(task: &'static str) -> Self {
        Self { task, error: None }
    }

    /// To be called before something new begins.
    ///
    /// # Errors
    /// This end has failed, as the peer is told, or the peer has gone.
    #[inline]
    pub fn check(&self, peer: &Arc<PeerState>) -> Result<()> {
        if peer.is_gone() { Err(self.reason(peer)) } else { Ok(()) }
    }

    /// To be called before completions are polled, which go on after the peer has gone.
    ///
    /// # Errors
    /// This end has failed.
    #[cold]
    #[inline(never)]
    pub fn check_failed(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// The error of this end, or else an error that tells why the peer has gone.
    #[cold]
    #[inline(never)]
    pub fn reason(&self, peer: &Arc<PeerState>) -> Error {
        if let Some(error) = &self.error {
            return error.clone();
        }
        let gone = Error::remote(format!("{} {}: {}", self.task, peer.peer(), peer.reason()));
        if peer.state().has_closed() {
            return gone.hint("NCCL there does so after an error on another connection, too: its log tells");
        }
        first_error::record(&gone.text());
        gone
    }

    /// Records that this end has failed with `error`, unless it has failed before, and tells the peer. Returns the recorded error.
    #[cold]
    #[inline(never)]
    pub fn fail(&mut self, peer: &Arc<PeerState>, error: Error) -> Error {
        first_error::record(&error.text());
        peer.fail(&error.text());
        self.error.get_or_insert(error).clone()
    }
}
