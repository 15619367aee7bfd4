//! How one end of a connection stands: whether it has failed, and what its link says of the other end.

use crate::error::{Error, Result};
use crate::net::control::peer_state::PeerState;
use std::sync::Arc;

/// The failure of this end, if there is one; it is for good.
#[derive(Debug)]
pub struct Standing {
    /// What this end does with the peer, for messages: `sending to`.
    doing: &'static str,
    failed: Option<Error>,
}

impl Standing {
    /// All is well.
    pub fn new(doing: &'static str) -> Self {
        Self { doing, failed: None }
    }

    /// Nothing new begins after the peer has gone, nor after this end has failed, which its link tells too.
    ///
    /// # Errors
    /// One of the two.
    #[inline]
    pub fn check(&self, link: &Arc<PeerState>) -> Result<()> {
        if link.is_gone() { Err(self.refusal(link)) } else { Ok(()) }
    }

    /// What has arrived may still be collected after the peer has gone, unless this end has failed.
    ///
    /// # Errors
    /// It has.
    #[cold]
    #[inline(never)]
    pub fn check_failed(&self) -> Result<()> {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Why nothing goes on: the failure of this end, or else what has become of the peer.
    #[cold]
    #[inline(never)]
    pub fn refusal(&self, link: &Arc<PeerState>) -> Error {
        let gone = || Error::remote(format!("{} {}: {}", self.doing, link.peer(), link.reason()));
        self.failed.clone().unwrap_or_else(gone)
    }

    /// This end fails for `error`, unless it has before, and the peer is told; the error that counts.
    #[cold]
    #[inline(never)]
    pub fn fail(&mut self, link: &Arc<PeerState>, error: Error) -> Error {
        link.fail(&error.text);
        self.failed.get_or_insert(error).clone()
    }
}
