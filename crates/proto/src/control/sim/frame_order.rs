//! The frames of recovery that established ends send to each other, and the order in which they
//! have to be received.
//!
//! A frame tells the control connection that it was sent over, and how many frames of this end were
//! sent over that before. So the end that receives it sees whether one is missing, comes twice or
//! too late.

use crate::control::event::PeerChange;
use crate::frame::Frame;
use crate::handle::Secret;

/// A control connection, by its number from 1 on, and frames that one end has sent over it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Mark {
    wire: u64,
    frames: u64,
}

/// What one end of a connection has sent and received.
#[derive(Debug, Default)]
pub(super) struct FrameOrder {
    sent: Mark,
    /// Frames, over all control connections.
    pub(super) sent_in_all: u64,
    received: Mark,
    /// Whether the control connection over which it has received that is gone.
    is_cut_off: bool,
}

impl FrameOrder {
    /// The body of the next frame, which goes over `wire`.
    pub(super) fn next_body(&mut self, secret: Secret, wire: u64, padding: usize) -> Vec<u8> {
        if self.sent.wire != wire {
            self.sent = Mark { wire, frames: 0 };
        }
        let body =
            [&secret[..], &wire.to_le_bytes(), &self.sent.frames.to_le_bytes(), &vec![7; padding]]
                .concat();
        self.sent.frames += 1;
        self.sent_in_all += 1;
        body
    }

    /// The end of the connection with this `secret` receives a change.
    pub(super) fn handle_change(&mut self, secret: Secret, change: &PeerChange) {
        match change {
            PeerChange::Frame(frame) => self.handle_frame(secret, frame),
            PeerChange::Lost(_) | PeerChange::Back => self.is_cut_off = true,
            PeerChange::Doubted
            | PeerChange::Inquiry(_)
            | PeerChange::Closed(_)
            | PeerChange::Unknown(_)
            | PeerChange::Broken(_) => {}
        }
    }

    fn handle_frame(&mut self, secret: Secret, frame: &Frame) {
        let number =
            |at: usize| u64::from_le_bytes(frame.body[at..at + 8].try_into().expect("8 bytes"));
        assert_eq!(
            (frame.secret, &frame.body[..16]),
            (secret, &secret[..]),
            "a frame of another connection"
        );
        let (wire, before) = (number(16), number(24));
        let expected = if wire == self.received.wire { self.received.frames } else { 0 };
        assert!(
            wire >= self.received.wire,
            "a frame of control connection {wire}, after {:?}",
            self.received
        );
        assert!(
            wire > self.received.wire || !self.is_cut_off,
            "a frame of a lost control connection, after {:?}",
            self.received
        );
        assert_eq!(before, expected, "frames of control connection {wire} sent before this one");
        self.received = Mark { wire, frames: before + 1 };
        self.is_cut_off = false;
    }

    /// Whether `peer` has received all that was sent over control connection `wire`.
    pub(super) fn was_received_by(&self, peer: &Self, wire: u64) -> bool {
        self.sent.wire != wire || self.sent == peer.received
    }
}
