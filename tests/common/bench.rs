//! One connection each way, and messages over it that are checked to the last byte.

use super::{are_all, pattern};
use lab::error::Result;
use lab::pair::PeerConn;
use lab::pair::WorkerCtx;
use lab::transport::Transport;
use lab::transport::buffer::Buffer;
use lab::transport::comm::Region;
use lab::transport::deadline::finished;
use lab::transport::deadline::posted;
use std::sync::Arc;

/// A connection each way, and registered memory for both.
pub(crate) struct Bench {
    // Regions first: they are deregistered before their communicators are closed.
    pub(crate) out: Region,
    pub(crate) into: Region,
    pub(crate) link: PeerConn,
    pub(crate) _transport: Transport,
}

impl Bench {
    pub(crate) fn open(worker: &mut WorkerCtx, transport: Transport, bytes: usize) -> Result<Self> {
        let device = worker.rank().min(transport.devices()? - 1);
        Self::open_on(worker, transport, device, bytes)
    }

    pub(crate) fn open_on(
        worker: &mut WorkerCtx,
        transport: Transport,
        device: usize,
        bytes: usize,
    ) -> Result<Self> {
        let link = PeerConn::open(worker, &transport, device)?;
        let (mine, theirs) = (Arc::new(Buffer::new(bytes)?), Arc::new(Buffer::new(bytes)?));
        let (out, into) = (link.send.register(&mine)?, link.recv.register(&theirs)?);
        Ok(Self { out, into, link, _transport: transport })
    }

    /// Sends `sent` bytes to a peer that does the same, with room for `room`, and checks every byte
    /// and the ones after.
    pub(crate) fn exchange(
        &self,
        worker: &WorkerCtx,
        seed: usize,
        sent: usize,
        room: usize,
    ) -> Result<()> {
        const MARGIN: usize = 64;
        let (mine, theirs) =
            (pattern(2 * seed + worker.rank(), sent), pattern(2 * seed + 1 - worker.rank(), sent));
        self.out.memory().write(0, &mine)?;
        self.into.memory().set(0, room + MARGIN, 0xee)?;
        let mut deadline = worker.deadline("an exchange");
        let receive = posted(&mut deadline, || self.link.recv.receive(&self.into, 0, room, 3))?;
        let send = posted(&mut deadline, || self.link.send.send(&self.out, 0, sent, 3))?;
        let (mut went, mut came) = ([-1], [-1]);
        finished(&mut deadline, send, &mut went)?;
        finished(&mut deadline, receive, &mut came)?;
        let expected = sent.min(room);
        assert_eq!(
            (went[0], came[0]),
            (expected as i32, expected as i32),
            "{sent} bytes into {room}"
        );
        let got = self.into.memory().read(0, room + MARGIN)?;
        assert!(got[..expected] == theirs[..expected], "{sent} bytes into {room}: wrong data");
        assert!(
            are_all(&got[expected..], 0xee),
            "{sent} bytes into {room}: bytes past the message"
        );
        Ok(())
    }
}

/// Around every edge that a transport may have.
pub(crate) const SIZES: &[usize] = &[
    0, 1, 7, 8, 63, 64, 65, 127, 128, 129, 4095, 4096, 4097, 8191, 8192, 8193, 65536, 65537,
    1_000_003, 1_048_576, 4_194_304,
];
