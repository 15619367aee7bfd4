//! The events from a [`ControlPlane`](super::plane::ControlPlane) for its driver and the streams'
//! owners.

use super::{ConnId, StreamId};
use crate::frame::Frame;
use std::net::SocketAddr;

/// A task for the driver.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// Begin to connect to `address`.
    Dial {
        /// The control connection that this becomes.
        conn: ConnId,
        /// The peer's port.
        address: SocketAddr,
    },
    /// Send `last`, as far as the kernel accepts it at once, and close. The number is no longer
    /// valid.
    Close {
        /// The control connection.
        conn: ConnId,
        /// Bytes that have not been sent yet.
        last: Vec<u8>,
    },
    /// Notify the owner of an established stream.
    Peer {
        /// Its stream.
        stream: StreamId,
        /// The change.
        change: PeerChange,
    },
    /// Write a line to the log.
    Log {
        /// Its urgency.
        level: Level,
        /// The line.
        text: String,
    },
}

/// A change at the peer of an established stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerChange {
    /// It has sent this frame of the RDMA connection's recovery. Frames keep the peer's order;
    /// those from before a loss of the control connection never come after [`Self::Back`].
    Frame(Frame),
    /// It asks what this end waits for, or reports what its own end waits for.
    Inquiry(Frame),
    /// The control connection is lost, for this reason; the peer may still be alive.
    Lost(String),
    /// The control connection is lost, and the peer may be dead. Probe whether its device still
    /// acknowledges, and report it to
    /// [`handle_acknowledged`](super::plane::ControlPlane::handle_acknowledged).
    Doubted,
    /// The stream has a control connection again, after [`Self::Lost`] or before this end has
    /// noticed the loss. Frames that this end sent before may be lost.
    Back,
    /// The peer has closed in good order, after everything has arrived. What is in flight may still
    /// be acknowledged.
    Closed(String),
    /// The peer does not know the connection: it has closed it, in good order or not, or has died.
    /// What is in flight may still be acknowledged, or be lost.
    Unknown(String),
    /// The peer has died or failed, for this reason.
    Broken(String),
}

/// Urgency of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// An operator should know.
    Warn,
    /// Useful when something else has gone wrong.
    Info,
    /// For developers.
    Debug,
}

/// How a control connection has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// No TCP connection was established; the errno.
    Unreachable(i32),
    /// The peer's host or a device in between has closed it in order, without a goodbye. The peer
    /// has died, or something in between has closed an idle connection.
    Closed,
    /// The network has failed, or the connection was reset, for this reason. The peer may still be
    /// alive.
    Lost(String),
    /// The input is not a frame of Ferrite's protocol, or not allowed here.
    Wrong(String),
    /// The listening process refuses this one, for this reason.
    Refused(String),
}

/// The next input for the owner of a stream during set-up.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// A frame.
    Frame(Frame),
    /// Nothing yet.
    Nothing,
    /// The control connection has ended; nothing more will arrive.
    End(End),
}
