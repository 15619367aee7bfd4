//! What established ends say to each other of recovery, and what of it they have to hear.
//!
//! A frame tells the control connection that it was sent over, and how many frames of this end were sent over that before. So the end
//! that hears it sees whether one is missing, comes twice or too late.

use crate::proto::control::event::PeerChange;
use crate::proto::frame::Frame;
use crate::proto::handle::Secret;

/// A control connection, by its number from 1 on, and frames that one end has sent over it.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct Mark {
    wire: u64,
    frames: u64,
}

/// What one end of a connection has said, and heard.
#[derive(Debug, Default)]
pub(super) struct Talk {
    said: Mark,
    /// Frames, over all control connections.
    pub(super) said_in_all: u64,
    heard: Mark,
    /// Whether the control connection over which it has heard that is gone.
    is_cut_off: bool,
}

impl Talk {
    /// The body of the next frame, which goes over `wire`.
    pub(super) fn say(&mut self, secret: Secret, wire: u64, padding: usize) -> Vec<u8> {
        if self.said.wire != wire {
            self.said = Mark { wire, frames: 0 };
        }
        let body = [&secret[..], &wire.to_le_bytes(), &self.said.frames.to_le_bytes(), &vec![7; padding]].concat();
        self.said.frames += 1;
        self.said_in_all += 1;
        body
    }

    /// The end of the connection with this `secret` hears something.
    pub(super) fn handle_change(&mut self, secret: Secret, change: &PeerChange) {
        match change {
            PeerChange::Frame(frame) => self.handle_frame(secret, frame),
            PeerChange::Lost(_) | PeerChange::Back => self.is_cut_off = true,
            PeerChange::Closed(_) | PeerChange::Unknown(_) | PeerChange::Broken(_) => {}
        }
    }

    fn handle_frame(&mut self, secret: Secret, frame: &Frame) {
        let number = |at: usize| u64::from_le_bytes(frame.body[at..at + 8].try_into().expect("8 bytes"));
        assert_eq!((frame.secret, &frame.body[..16]), (secret, &secret[..]), "a frame of another connection");
        let (wire, before) = (number(16), number(24));
        let expected = if wire == self.heard.wire { self.heard.frames } else { 0 };
        assert!(wire >= self.heard.wire, "a frame of control connection {wire}, after {:?}", self.heard);
        assert!(
            wire > self.heard.wire || !self.is_cut_off,
            "a frame of a lost control connection, after {:?}",
            self.heard
        );
        assert_eq!(before, expected, "frames of control connection {wire} sent before this one");
        self.heard = Mark { wire, frames: before + 1 };
        self.is_cut_off = false;
    }

    /// Whether `peer` has heard all that was said over control connection `wire`.
    pub(super) fn was_heard_by(&self, peer: &Self, wire: u64) -> bool {
        self.said.wire != wire || self.said == peer.heard
    }
}
