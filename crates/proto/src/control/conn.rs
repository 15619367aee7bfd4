//! One control connection: the bytes that come and go, and the streams that share it.

use super::StreamId;
use crate::Violation;
use crate::frame::{Assembler, Frame};
use crate::handle::Secret;
use std::collections::{BTreeMap, BTreeSet};
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

/// While so many bytes wait to be sent on a control connection without established streams, nothing more is to be read from it:
/// they are answers, and a peer that does not read them is not to cause more.
pub const MAX_BACKLOG: usize = 16 << 10;
/// The bytes by which that is more for each established stream. Two processes may have a missing list of each of their connections to
/// send to each other at once. If neither read until its own were sent, neither would read ever again.
const STREAM_BACKLOG: usize = 64 << 10;

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
    /// Those of them that are established.
    established: BTreeSet<Secret>,
    /// The most there were at once: frames of a stream may wait after it has ended.
    most_established: usize,
    /// Streams whose peer is asked over this one to dial another one for them.
    asking: BTreeMap<Secret, StreamId>,
    /// Whether the peer asks so over this one. It closes it.
    pub is_for_requests: bool,
    /// Whether a frame has come.
    pub is_answered: bool,
    /// Where the process that has dialled this one is called itself.
    pub caller: Option<SocketAddr>,
    /// Whether this process has told where it is called itself.
    pub has_reported: bool,
}

impl ControlConn {
    /// One to or from `peer`.
    pub fn new(peer: SocketAddr, stage: Stage) -> Self {
        Self {
            peer,
            stage,
            assembler: Assembler::default(),
            outgoing: Vec::new(),
            streams: BTreeMap::new(),
            established: BTreeSet::new(),
            most_established: 0,
            asking: BTreeMap::new(),
            is_for_requests: false,
            is_answered: false,
            caller: None,
            has_reported: false,
        }
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
    #[cfg(any(test, fuzzing))]
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

    /// While [`Self::backlog`] is that much, nothing more is to be read.
    pub fn max_backlog(&self) -> usize {
        MAX_BACKLOG + STREAM_BACKLOG * self.most_established
    }

    /// From now on frames with `secret` are of `stream`.
    pub fn attach(&mut self, secret: Secret, stream: StreamId) {
        self.streams.insert(secret, stream);
    }

    /// The RDMA connection of the stream with `secret` is there: from now on the peer may send frames of any length.
    pub fn handle_established(&mut self, secret: &Secret) {
        if self.streams.contains_key(secret) {
            self.established.insert(*secret);
            self.most_established = self.most_established.max(self.established.len());
            self.assembler.allow_missing_lists();
        }
    }

    /// Nothing more is expected of the stream with `secret`.
    pub fn detach(&mut self, secret: &Secret) {
        self.streams.remove(secret);
        self.established.remove(secret);
    }

    /// The stream with `secret`, if it is on this connection.
    pub fn stream(&self, secret: &Secret) -> Option<StreamId> {
        self.streams.get(secret).copied()
    }

    /// The peer is asked over this one to dial another one for `stream`.
    pub fn ask(&mut self, secret: Secret, stream: StreamId) {
        self.asking.insert(secret, stream);
    }

    /// It need not be any more.
    pub fn stop_asking(&mut self, secret: &Secret) {
        self.asking.remove(secret);
    }

    /// The stream with `secret` that it is asked for.
    pub fn asks_for(&self, secret: &Secret) -> Option<StreamId> {
        self.asking.get(secret).copied()
    }

    /// The streams that share it.
    pub fn streams(&self) -> impl Iterator<Item = StreamId> {
        self.streams.values().copied()
    }

    /// How many streams share it, or have something asked over it.
    pub fn stream_count(&self) -> usize {
        self.streams.len() + self.asking.len()
    }

    /// All of them, which are on no connection from here on.
    pub fn take_streams(&mut self) -> Vec<StreamId> {
        self.established.clear();
        let asking = std::mem::take(&mut self.asking).into_values();
        std::mem::take(&mut self.streams).into_values().chain(asking).collect()
    }

    /// What was to go out when it ends.
    pub fn into_outgoing(self) -> Vec<u8> {
        if self.stage == Stage::Dialling { Vec::new() } else { self.outgoing }
    }
}
