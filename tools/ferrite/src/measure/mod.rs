//! The measurements and the checks, as both processes of a pair run them in step.

pub mod copy;
pub mod latency;
pub mod pattern;
pub mod setup;
pub mod stream;
pub mod streams;
pub mod verify;

use std::sync::Arc;

use crate::comm::Region;
use crate::error::Result;
use crate::link::Link;
use crate::seat::Seat;
use crate::transport::Transport;

/// Room after each message where nothing may be written; bytes.
pub const GUARD: usize = 256;

/// The tag of messages that need none.
pub(crate) const TAG: i32 = 7;

/// A connection each way with registered memory on both sides: what the tests run on.
///
/// Field order is the order of closing: regions before their communicators.
#[derive(Debug)]
pub struct Bench {
    /// Where messages are sent from.
    pub out: Region,
    /// Where messages are received.
    pub into: Region,
    /// The connections.
    pub link: Link,
}

impl Bench {
    /// Connects and registers `bytes` for sending and as much for receiving.
    ///
    /// # Errors
    /// Those of [`Link::open`] and of registration.
    pub fn open(seat: &mut Seat, transport: &Transport, device: usize, bytes: usize) -> Result<Self> {
        let link = Link::open(seat, transport, device)?;
        let out = link.send.register(&Arc::new(seat.buffer(bytes)?))?;
        let into = link.recv.register(&Arc::new(seat.buffer(bytes)?))?;
        Ok(Self { out, into, link })
    }

    /// Deregisters and closes; both processes do so at the same time.
    ///
    /// # Errors
    /// Those of [`Link::close`].
    pub fn close(self) -> Result<()> {
        let Self { out, into, link } = self;
        drop((out, into));
        link.close()
    }
}
