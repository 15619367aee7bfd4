//! A connection each way with registered memory at both ends.

use std::sync::Arc;

use crate::error::Result;
use crate::pair::peer_conn::PeerConn;
use crate::pair::worker_ctx::WorkerCtx;
use crate::transport::comm::Region;
use crate::transport::instance::Transport;

/// Room after each message where nothing may be written; bytes.
pub(crate) const GUARD: usize = 256;

/// The tag of messages that need none.
pub(crate) const TAG: i32 = 7;

/// A connection each way with registered memory on both sides: what the tests run on.
///
/// Field order is the order of closing: regions before their communicators.
#[derive(Debug)]
pub(crate) struct Bench {
    /// Where messages are sent from.
    pub out: Region,
    /// Where messages are received.
    pub into: Region,
    /// The connections.
    pub conn: PeerConn,
}

impl Bench {
    /// Connects and registers `bytes` for sending and as much for receiving.
    ///
    /// # Errors
    /// Those of [`PeerConn::open`] and of registration.
    pub(crate) fn open(worker: &mut WorkerCtx, transport: &Transport, device: usize, bytes: usize) -> Result<Self> {
        let conn = PeerConn::open(worker, transport, device)?;
        let out = conn.send.register(&Arc::new(worker.buffer(bytes)?))?;
        let into = conn.recv.register(&Arc::new(worker.buffer(bytes)?))?;
        Ok(Self { out, into, conn })
    }

    /// Deregisters and closes; both processes do so at the same time.
    ///
    /// # Errors
    /// Those of [`PeerConn::close`].
    pub(crate) fn close(self) -> Result<()> {
        let Self { out, into, conn } = self;
        drop((out, into));
        conn.close()
    }
}
