//! The control connections of a process, as a value: which connections share them, the frames on them, and what becomes of connections
//! that lose theirs. No socket, no lock, no clock: bytes and the time come in, bytes and [`event::Event`]s go out.
//!
//! ```text
//!   ControlPlane ── one per process
//!    ├── ControlConn ×n      one TCP connection to another process: bytes ⇄ frames, and the streams that share it
//!    ├── Stream ×n           one RDMA connection's share: an inbox while it is set up; later its frames of recovery and its end
//!    ├── ControlPool         the dialled ControlConns by address, and the Redial of those that are lost
//!    └── ControlAcceptor     unauthenticated clients, listeners with their pending clients, streams by secret
//! ```
//!
//! A stream keeps its [`StreamId`] as long as its RDMA connection lives; the [`conn::ControlConn`] that carries it may change.
//! Frames name the stream by the connection's secret, so that what belongs to an attempt that was given up is recognised.

pub mod acceptor;
pub mod conn;
pub mod event;
mod losses;
pub mod plane;
pub mod pool;
pub mod redial;
pub(super) mod refusal;
#[cfg(any(test, fuzzing))]
pub(super) mod sim;
pub mod stream;

use std::time::Duration;

/// Time since some moment that the caller keeps.
pub type Time = Duration;

/// A control connection of this process. Numbers are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnId(pub u64);

/// A stream of this process. Numbers are never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);
