//! One RDMA connection's share of a control connection.

use crate::error::Result;
use crate::net::control::driver::{ControlDriver, inherited};
use crate::net::control::observers::PeerObserver;
use crate::proto::control::StreamId;
use crate::proto::control::event::Received;
use crate::proto::frame::Kind;
use crate::proto::handle::{Secret, Token};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::sync::Arc;

/// What an established connection does with its control connection. Dropping it sends a Goodbye.
pub trait PeerStream: Debug + Send + Sync {
    /// The connection is established: reports changes at the other end to `peer` from now on, and
    /// frames of recovery if it `receives_recovery`.
    fn establish(&self, peer: &Arc<dyn PeerObserver>, receives_recovery: bool);

    /// Queues a frame, and sends it as soon as the kernel accepts it. A refusal must be the last
    /// frame.
    fn send(&self, kind: Kind, body: Vec<u8>);

    /// Records a sign of life from the peer's device, while the peer is suspected to be dead.
    fn handle_acknowledged(&self);

    /// Ends the connection from this end, and sends `reason` to the peer.
    fn fail(&self, reason: &str);
}

/// A connection's stream to its peer. Dropping it sends a Goodbye.
#[derive(Debug)]
pub struct ControlStream {
    driver: Arc<ControlDriver>,
    id: StreamId,
    peer: SocketAddr,
}

impl ControlStream {
    /// Opens a stream to the listener with `token` at `address`. `secret` is generated for this
    /// attempt.
    ///
    /// # Errors
    /// This is a forked child, and the connections belong to its parent.
    pub fn open(
        driver: &Arc<ControlDriver>,
        address: SocketAddr,
        token: Token,
        secret: Secret,
    ) -> Result<Self> {
        let id = driver.open(address, token, secret).ok_or_else(inherited)?;
        Ok(Self { driver: Arc::clone(driver), id, peer: address })
    }

    /// The next client of the listener with `token`.
    pub fn fetch(driver: &Arc<ControlDriver>, token: &Token) -> Option<Self> {
        let (id, peer) = driver.with(|plane, _| plane.fetch(token)).flatten()?;
        Some(Self { driver: Arc::clone(driver), id, peer })
    }

    /// Its driver.
    pub fn driver(&self) -> &Arc<ControlDriver> {
        &self.driver
    }

    /// The other end's address at set-up.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether its control connection is established.
    ///
    /// # Errors
    /// The attempt failed with this errno; `Ok(false)` while it is in progress.
    pub fn poll_connected(&self) -> std::result::Result<bool, i32> {
        let _ = self.driver.poll();
        self.driver.with(|plane, _| plane.poll_connected(self.id)).unwrap_or(Ok(false))
    }

    /// The next frame of the peer, during set-up.
    pub fn poll_frame(&self) -> Received {
        let poll = || {
            self.driver.with(|plane, _| plane.poll_received(self.id)).unwrap_or(Received::Nothing)
        };
        match poll() {
            Received::Nothing => {
                let _ = self.driver.poll();
                poll()
            }
            received => received,
        }
    }

    /// Whether nothing more can arrive during set-up: the peer has gone without a commit.
    pub fn is_over(&self) -> bool {
        self.driver.with(|plane, _| plane.is_over(self.id)).unwrap_or(false)
    }
}

impl PeerStream for ControlStream {
    fn establish(&self, peer: &Arc<dyn PeerObserver>, receives_recovery: bool) {
        self.driver.establish(self.id, peer, receives_recovery);
    }

    fn send(&self, kind: Kind, body: Vec<u8>) {
        self.driver.with(|plane, _| plane.send(self.id, kind, body));
    }

    fn handle_acknowledged(&self) {
        self.driver.with(|plane, now| plane.handle_acknowledged(now, self.id));
    }

    fn fail(&self, reason: &str) {
        self.driver.with(|plane, _| plane.fail(self.id, reason));
    }
}

impl Drop for ControlStream {
    fn drop(&mut self) {
        self.driver.close(self.id);
    }
}
