//! A transport that is ready, and the two devices that one process connects.

use std::time::Duration;

use crate::error::Result;
use crate::transport::deadline::Deadline;
use crate::transport::instance::Transport;
use crate::transport::local_conn::LocalConn;

/// A transport that is ready, and the two devices that talk.
pub(crate) struct Endpoints {
    pub(crate) transport: Transport,
    pub(crate) listener: usize,
    pub(crate) sender: usize,
    pub(crate) silence: Duration,
}

impl Endpoints {
    /// A connection from the sender's device to the listener's.
    pub(crate) fn connect(&self) -> Result<LocalConn> {
        LocalConn::open(&self.transport, self.sender, self.listener, &mut self.deadline("connecting to itself"))
    }

    pub(super) fn deadline(&self, what: &'static str) -> Deadline {
        Deadline::new(what, self.silence)
    }
}
