//! The events that a [`ControlPlane`](super::plane::ControlPlane) gives to its driver and to the streams' owners.

use super::{ConnId, StreamId};
use crate::frame::Frame;
use std::net::SocketAddr;

/// What the driver has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Begin to connect to `address`.
    Dial {
        /// The control connection that this becomes.
        conn: ConnId,
        /// The peer's port.
        address: SocketAddr,
    },
    /// Hand over `last`, as far as the kernel takes it at once, and close. The number is not valid any more.
    Close {
        /// The control connection.
        conn: ConnId,
        /// Bytes that have not been sent yet.
        last: Vec<u8>,
    },
    /// Tell the owner of an established stream.
    Peer {
        /// Its stream.
        stream: StreamId,
        /// The change.
        change: PeerChange,
    },
    /// Write a line to the log.
    Log {
        /// How urgent it is.
        level: Level,
        /// The line.
        text: String,
    },
}

/// What is known newly of the peer of an established stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerChange {
    /// It has sent this frame of the recovery of the RDMA connection. In the order in which the peer has sent them; what it has
    /// sent before the control connection was lost never comes after [`Self::Back`].
    Frame(Frame),
    /// It asks what this end waits for, or tells what its end waits for.
    Inquiry(Frame),
    /// The control connection is lost, for this reason; the peer may well live.
    Lost(String),
    /// The control connection is lost, and there are signs that the peer has died: whether its device still acknowledges is to be found out,
    /// and told by [`handle_acknowledged`](super::plane::ControlPlane::handle_acknowledged).
    Doubted,
    /// The stream has a control connection again, after [`Self::Lost`] or before this end has noticed that. What this end had sent
    /// before may be lost.
    Back,
    /// The peer has closed in good order, which it does once all has arrived. What is under way may still be acknowledged.
    Closed(String),
    /// The peer does not know the connection: it has closed it, in good order or not, or has died. What is under way may still be
    /// acknowledged, and may be lost.
    Unknown(String),
    /// The peer has died or given up, for this reason.
    Broken(String),
}

/// Urgency of a line in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// An operator should know.
    Warn,
    /// Worth to know when something else has gone wrong.
    Info,
    /// For developers.
    Debug,
}

/// How a control connection has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// No TCP connection came about; the errno.
    Unreachable(i32),
    /// The peer's host, or what is between, has closed it in order. The peer has said no goodbye: it has died, or something between has
    /// closed a connection that was idle for too long.
    Closed,
    /// The network between the hosts has failed, or it was reset, for this reason. The peer may well live.
    Lost(String),
    /// What came is not a frame of Ferrite's protocol, or one that is not allowed here.
    Wrong(String),
    /// The listening process wants nothing of this one, for this reason.
    Refused(String),
}

/// What the owner of a stream that is being set up receives.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A frame.
    Frame(Frame),
    /// Nothing yet.
    Nothing,
    /// The control connection has ended; no more will come.
    End(End),
}
