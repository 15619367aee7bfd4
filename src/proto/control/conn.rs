//! One control connection: the bytes that come and go, and the streams that share it.

use super::StreamId;
use crate::proto::Violation;
use crate::proto::frame::{Assembler, Frame};
use crate::proto::handle::Secret;
use std::collections::BTreeMap;
use std::net::SocketAddr;

/// Who has made a control connection, and how far it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// This process dials, and the kernel has no answer yet.
    Dialling,
    /// This process has dialled.
    Dialled,
    /// The peer has dialled, and has not shown yet that it knows a listener or a connection of this process.
    Unauthenticated,
    /// The peer has dialled.
    Accepted,
}

/// The state machine of one control connection: bytes in, frames out, and the other way round.
#[derive(Debug)]
pub struct ControlConn {
    /// The other end's address.
    pub peer: SocketAddr,
    /// How far it is.
    pub stage: Stage,
    assembler: Assembler,
    outgoing: Vec<u8>,
    /// The streams on which something may still come. In the order of their secrets: what a seed does can be repeated.
    streams: BTreeMap<Secret, StreamId>,
}

impl ControlConn {
    /// One to or from `peer`.
    pub fn new(peer: SocketAddr, stage: Stage) -> Self {
        Self { peer, stage, assembler: Assembler::default(), outgoing: Vec::new(), streams: BTreeMap::new() }
    }

    /// Whether this process has dialled, or dials.
    pub fn is_dialled(&self) -> bool {
        matches!(self.stage, Stage::Dialling | Stage::Dialled)
    }

    /// Bytes have come.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.assembler.handle_bytes(bytes);
    }

    /// The next frame that is whole.
    ///
    /// # Errors
    /// These are not the bytes of a Ferrite of this version.
    pub fn poll_frame(&mut self) -> Result<Option<Frame>, Violation> {
        self.assembler.poll_frame()
    }

    /// Whether a part of a frame has come.
    pub fn has_begun(&self) -> bool {
        self.assembler.has_begun()
    }

    /// Bytes of incomplete frames.
    #[cfg(test)]
    pub fn pending_bytes(&self) -> usize {
        self.assembler.pending_bytes()
    }

    /// Queues a frame.
    pub fn send(&mut self, frame: &Frame) {
        self.outgoing.extend_from_slice(&frame.emit());
    }

    /// The bytes that have to go out, in order; none before the connection has come about.
    pub fn poll_transmit(&self) -> &[u8] {
        if self.stage == Stage::Dialling { &[] } else { &self.outgoing }
    }

    /// The kernel has taken the first `count` of them.
    pub fn handle_transmitted(&mut self, count: usize) {
        self.outgoing.drain(..count.min(self.outgoing.len()));
    }

    /// Bytes that wait to be sent.
    pub fn backlog(&self) -> usize {
        self.outgoing.len()
    }

    /// From now on frames with `secret` are of `stream`.
    pub fn attach(&mut self, secret: Secret, stream: StreamId) {
        self.streams.insert(secret, stream);
    }

    /// Nothing more is expected of the stream with `secret`.
    pub fn detach(&mut self, secret: &Secret) {
        self.streams.remove(secret);
    }

    /// The stream with `secret`, if it is on this connection.
    pub fn stream(&self, secret: &Secret) -> Option<StreamId> {
        self.streams.get(secret).copied()
    }

    /// How many streams share it.
    pub fn stream_count(&self) -> usize {
        self.streams.len()
    }

    /// All of them, which are on no connection from here on.
    pub fn take_streams(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.streams).into_values().collect()
    }

    /// What was to go out when it ends.
    pub fn into_outgoing(self) -> Vec<u8> {
        if self.stage == Stage::Dialling { Vec::new() } else { self.outgoing }
    }
}
