//! One RDMA connection's share of a control connection.

use crate::error::Result;
use crate::net::control::driver::{ControlDriver, inherited};
use crate::net::control::observers::PeerObserver;
use crate::proto::control::StreamId;
use crate::proto::control::event::Received;
use crate::proto::frame::Kind;
use crate::proto::handle::{Secret, Token};
use std::net::SocketAddr;
use std::sync::Arc;

/// The way to the peer of one connection. When it is dropped, the peer is sent a Goodbye.
#[derive(Debug)]
pub struct ControlStream {
    driver: Arc<ControlDriver>,
    id: StreamId,
    peer: SocketAddr,
}

impl ControlStream {
    /// A stream to the listener at `address` that knows `token`. `secret` is made up for this attempt alone.
    ///
    /// # Errors
    /// This is a forked child, and the connections are its parent's.
    pub fn open(driver: &Arc<ControlDriver>, address: SocketAddr, token: Token, secret: Secret) -> Result<Self> {
        let id = driver.open(address, token, secret).ok_or_else(inherited)?;
        Ok(Self { driver: Arc::clone(driver), id, peer: address })
    }

    /// The next client for the listener that knows `token`.
    pub fn fetch(driver: &Arc<ControlDriver>, token: &Token) -> Option<Self> {
        let (id, peer) = driver.with(|plane, _| plane.fetch(token)).flatten()?;
        Some(Self { driver: Arc::clone(driver), id, peer })
    }

    /// What drives it.
    pub fn driver(&self) -> &Arc<ControlDriver> {
        &self.driver
    }

    /// The other end's address, as it was when the connection was set up.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// Whether its control connection has come about.
    ///
    /// # Errors
    /// The attempt failed with this errno; `Ok(false)` while it is under way.
    pub fn poll_connected(&self) -> std::result::Result<bool, i32> {
        let _ = self.driver.poll();
        self.driver.with(|plane, _| plane.poll_connected(self.id)).unwrap_or(Ok(false))
    }

    /// Queues a frame, and sends it as soon as the kernel takes it. After a refusal the peer expects no other.
    pub fn send(&self, kind: Kind, body: Vec<u8>) {
        self.driver.with(|plane, _| plane.send(self.id, kind, body));
    }

    /// The next frame of the peer, while the connection is set up.
    pub fn poll_frame(&self) -> Received {
        let poll = || self.driver.with(|plane, _| plane.poll_received(self.id)).unwrap_or(Received::Nothing);
        match poll() {
            Received::Nothing => {
                let _ = self.driver.poll();
                poll()
            }
            received => received,
        }
    }

    /// Whether nothing more is to be expected of the peer while the connection is set up: it has gone, and has not committed
    /// before.
    pub fn is_over(&self) -> bool {
        self.driver.with(|plane, _| plane.is_over(self.id)).unwrap_or(false)
    }

    /// The connection is there: from now on `peer` receives what becomes of its other end, and frames of recovery, if it
    /// `receives_recovery`.
    pub fn establish(&self, peer: &Arc<dyn PeerObserver>, receives_recovery: bool) {
        self.driver.establish(self.id, peer, receives_recovery);
    }

    /// The peer's device has acknowledged or sent something, while it is doubted that the peer lives.
    pub fn handle_acknowledged(&self) {
        self.driver.with(|plane, now| plane.handle_acknowledged(now, self.id));
    }

    /// This end has failed, and the peer is sent the reason.
    pub fn fail(&self, reason: &str) {
        self.driver.with(|plane, _| plane.fail(self.id, reason));
    }
}

impl Drop for ControlStream {
    fn drop(&mut self) {
        self.driver.close(self.id);
    }
}
