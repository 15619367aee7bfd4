//! A connection whose two ends are in this process.

use crate::error::Result;
use crate::transport::comm::{RecvComm, SendComm};
use crate::transport::deadline::Deadline;
use crate::transport::instance::Transport;
use crate::transport::listener;

/// Both ends of one connection.
#[derive(Debug)]
pub struct LocalConn {
    pub send: SendComm,
    pub recv: RecvComm,
}

impl LocalConn {
    /// Connects device `from` to a new listener on device `to`: one thread calls `connect` and `accept` in turn until both
    /// ends are there.
    pub fn open(transport: &Transport, from: usize, to: usize, deadline: &mut Deadline) -> Result<Self> {
        let (mut handle, mut listener) = transport.listen(to)?;
        let (send, recv) = listener::connect_and_accept(transport, from, &mut handle, &mut listener, deadline, || ())?;
        listener.close()?;
        Ok(Self { send, recv })
    }

    /// Closes both ends, the sending one first.
    pub fn close(self) -> Result<()> {
        let sent = self.send.close();
        self.recv.close()?;
        sent
    }
}
