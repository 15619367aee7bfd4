//! The control connections of a process, as a value: which RDMA connections share them, their
//! frames, and what happens to streams that lose theirs. No sockets, locks or clock: bytes and the
//! time go in, bytes and [`event::Event`]s come out.
//!
//! ```text
//!   ControlPlane ── one per process
//!    ├── ControlConn ×n      one TCP connection to another process: bytes ⇄ frames, and the streams that share it
//!    ├── Stream ×n           one RDMA connection's share: an inbox while it is set up; later its frames of recovery and its end
//!    ├── ControlPool         the dialled ControlConns by address, and the Redial of those that are lost
//!    └── ControlAcceptor     unauthenticated clients, listeners with their pending clients, streams by secret
//! ```
//!
//! A stream keeps its [`StreamId`] as long as its RDMA connection lives; the [`conn::ControlConn`]
//! that carries it may change. Frames identify the stream by the connection's secret, so those of
//! an abandoned attempt are recognised.

pub mod acceptor;
pub mod conn;
pub mod event;
mod losses;
pub mod plane;
pub mod pool;
pub mod redial;
pub(super) mod refusal;
#[cfg(any(test, feature = "simulator"))]
pub(super) mod sim;
pub mod stream;

use std::time::Duration;

/// Time since a moment that the caller keeps.
pub type Time = Duration;

/// A control connection of this process. Numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// A stream of this process. Numbers are never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);
