//! A connection in each direction between the two processes of a pair.

use crate::error::Result;
use crate::pair::worker_ctx::WorkerCtx;
use crate::transport::comm::{RecvComm, SendComm};
use crate::transport::instance::Transport;
use crate::transport::listener::{self, Handle};

/// A connection in each direction between the two processes.
#[derive(Debug)]
pub struct PeerConn {
    /// Towards the peer.
    pub send: SendComm,
    /// From the peer.
    pub recv: RecvComm,
}

impl PeerConn {
    /// Connects both ways; both processes call it.
    ///
    /// # Errors
    /// Those of the transport's calls; [`Error::Stalled`](crate::error::Error::Stalled), [`Error::PeerGone`](crate::error::Error::PeerGone).
    pub fn open(worker: &mut WorkerCtx, transport: &Transport, device: usize) -> Result<Self> {
        let (handle, mut listener) = transport.listen(device)?;
        let mut theirs = Handle([0; _]);
        theirs.0.copy_from_slice(&worker.exchange(&handle.0)?);
        let mut deadline = worker.deadline("connecting both ways");
        let (send, recv) =
            listener::connect_and_accept(transport, device, &mut theirs, &mut listener, &mut deadline, || ())?;
        listener.close()?;
        Ok(Self { send, recv })
    }

    /// Closes both directions; both processes call it, since a transport may need the peer.
    ///
    /// # Errors
    /// Those of the transport's calls; [`Error::Misuse`](crate::error::Error::Misuse) while memory is registered.
    pub fn close(self) -> Result<()> {
        let sent = self.send.close();
        self.recv.close()?;
        sent
    }
}
