//! One control connection: its input and output, and the streams that share it.

use super::StreamId;
use crate::Violation;
use crate::frame::{Assembler, Frame};
use crate::handle::Secret;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

/// Who has dialled a control connection, and its progress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// This process dials, and the kernel has no answer yet.
    Dialling,
    /// This process has dialled.
    Dialled,
    /// The peer has dialled, and has not shown yet that it knows a listener or a connection of this
    /// process.
    Unauthenticated,
    /// The peer has dialled.
    Accepted,
}

/// The backlog above which a control connection without established streams is not read. The
/// backlog consists of answers, and a peer that does not read them must not cause more.
pub const MAX_BACKLOG: usize = 16 << 10;
/// The additional backlog for each established stream. Two processes may send each other a missing
/// list for each of their connections at once. If neither read before its own were sent, neither
/// would ever read again.
const STREAM_BACKLOG: usize = 64 << 10;

/// The state machine of one control connection: bytes in, frames out, and vice versa.
#[derive(Debug)]
pub struct ControlConn {
    /// The other end's address.
    pub peer: SocketAddr,
    /// Its progress.
    pub stage: Stage,
    assembler: Assembler,
    outgoing: Vec<u8>,
    /// The streams that may still receive something, ordered by secret so that a seed is
    /// reproducible.
    streams: BTreeMap<Secret, StreamId>,
    /// Those of them that are established.
    established: BTreeSet<Secret>,
    /// The most there were at once: frames of a stream may be queued after its end.
    most_established: usize,
    /// Streams for which the peer is asked, over this one, to dial another one.
    asking: BTreeMap<Secret, StreamId>,
    /// Whether the peer uses it for such requests. The peer closes it.
    pub is_for_requests: bool,
    /// Whether a frame has arrived.
    pub is_answered: bool,
    /// The address where the process that dialled this one accepts connections.
    pub caller: Option<SocketAddr>,
    /// Whether this process has announced where it accepts connections.
    pub has_reported: bool,
}

impl ControlConn {
    /// A connection to or from `peer`.
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

    /// Whether this process has dialled or is dialling.
    pub fn is_dialled(&self) -> bool {
        matches!(self.stage, Stage::Dialling | Stage::Dialled)
    }

    /// Adds bytes that have arrived.
    pub fn handle_bytes(&mut self, bytes: &[u8]) {
        self.assembler.handle_bytes(bytes);
    }

    /// The next complete frame.
    ///
    /// # Errors
    /// These are not bytes of this Ferrite version.
    pub fn poll_frame(&mut self) -> Result<Option<Frame>, Violation> {
        self.assembler.poll_frame()
    }

    /// Whether a part of a frame has arrived.
    pub fn has_begun(&self) -> bool {
        self.assembler.has_begun()
    }

    /// Bytes of incomplete frames.
    #[cfg(any(test, feature = "simulator"))]
    pub fn pending_bytes(&self) -> usize {
        self.assembler.pending_bytes()
    }

    /// Queues a frame.
    pub fn send(&mut self, frame: &Frame) {
        self.outgoing.extend_from_slice(&frame.emit());
    }

    /// The bytes to send, in order; none before the connection is established.
    pub fn poll_transmit(&self) -> &[u8] {
        if self.stage == Stage::Dialling { &[] } else { &self.outgoing }
    }

    /// The kernel has accepted the first `count` of them.
    pub fn handle_transmitted(&mut self, count: usize) {
        self.outgoing.drain(..count.min(self.outgoing.len()));
    }

    /// Bytes that wait to be sent.
    pub fn backlog(&self) -> usize {
        self.outgoing.len()
    }

    /// While [`Self::backlog`] is this large, read nothing more.
    pub fn max_backlog(&self) -> usize {
        MAX_BACKLOG + STREAM_BACKLOG * self.most_established
    }

    /// Assigns frames with `secret` to `stream` from now on.
    pub fn attach(&mut self, secret: Secret, stream: StreamId) {
        self.streams.insert(secret, stream);
    }

    /// The RDMA connection of the stream with `secret` is established: the peer may send frames of
    /// any length from now on.
    pub fn handle_established(&mut self, secret: &Secret) {
        if self.streams.contains_key(secret) {
            self.established.insert(*secret);
            self.most_established = self.most_established.max(self.established.len());
            self.assembler.allow_missing_lists();
        }
    }

    /// Expects nothing more for the stream with `secret`.
    pub fn detach(&mut self, secret: &Secret) {
        self.streams.remove(secret);
        self.established.remove(secret);
    }

    /// The stream with `secret`, if it is on this connection.
    pub fn stream(&self, secret: &Secret) -> Option<StreamId> {
        self.streams.get(secret).copied()
    }

    /// Asks the peer over this one to dial another one for `stream`.
    pub fn ask(&mut self, secret: Secret, stream: StreamId) {
        self.asking.insert(secret, stream);
    }

    /// Stops asking.
    pub fn stop_asking(&mut self, secret: &Secret) {
        self.asking.remove(secret);
    }

    /// The stream with `secret` for which it asks.
    pub fn asks_for(&self, secret: &Secret) -> Option<StreamId> {
        self.asking.get(secret).copied()
    }

    /// The streams that share it.
    pub fn streams(&self) -> impl Iterator<Item = StreamId> {
        self.streams.values().copied()
    }

    /// How many streams share it, or use it to ask.
    pub fn stream_count(&self) -> usize {
        self.streams.len() + self.asking.len()
    }

    /// Removes all streams.
    pub fn take_streams(&mut self) -> Vec<StreamId> {
        self.established.clear();
        let asking = std::mem::take(&mut self.asking).into_values();
        std::mem::take(&mut self.streams).into_values().chain(asking).collect()
    }

    /// The output that was pending at its end.
    pub fn into_outgoing(self) -> Vec<u8> {
        if self.stage == Stage::Dialling { Vec::new() } else { self.outgoing }
    }
}
