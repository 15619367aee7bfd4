//! What two Ferrites agree on, as values: no verbs, no sockets, no clock, no unsafe.
//!
//! ```text
//!        sender                                     receiver
//!   isend ─► SendFlow                               RecvFlow ◄─ irecv
//!             ▲   ring of slots in sender memory       │
//!             │◄────── RDMA WRITE: Slot (clear-to-send)┤ poll_announcement
//!             │                                        │
//!             └─ Transfer ── RDMA WRITE + Imm ────────►│ handle_immediate
//!   test ◄─ handle_completion                          └─► test
//! ```
//!
//! The receiver announces a buffer by writing a [`wire::Slot`] into the ring that lives in the sender's memory; the
//! sender answers with RDMA WRITEs into that buffer, of which the last carries a [`wire::Imm`]. The immediate names the
//! slot, so a completion is attributed by identity and never by order: any queue pair may carry any message or stripe,
//! and receive work requests belong to nobody in particular.
//!
//! Grammar of the methods: `handle_*` for what happened, `poll_*` for what is to be done next, the other verbs for what
//! the caller asks.
//!
//! Every slot has a 32-bit sequence number; its place in the ring is that number modulo [`RING_SLOTS`]. The immediate
//! carries only the place. That is unambiguous as long as a slot's successor in the same place is announced only after
//! the slot has completed at the receiver, which [`recv::RecvFlow`] keeps; a peer that resends after a fault has to
//! agree on full sequence numbers first, and to have retired the queue pairs from which late writes could come.
#![forbid(unsafe_code)]

mod arrival;
mod codec;
pub mod control;
pub mod endpoint;
pub mod frame;
pub mod handle;
pub mod handshake;
#[cfg(test)]
mod hostile;
pub mod recv;
pub mod requests;
pub mod room;
pub mod send;
mod shadow;
pub mod shares;
#[cfg(test)]
mod sim;
pub mod stripe;
mod violation;
pub mod wire;

pub use violation::Violation;
pub(crate) use violation::violation;

/// Version of everything in this module that peers see. Peers of different versions refuse each other.
pub const PROTOCOL_VERSION: u16 = 2;
/// Slots in the ring of clear-to-sends. A grouped receive of n takes n of them.
pub const RING_SLOTS: usize = 512;
/// Requests that may be outstanding on one communicator; the next one has to wait.
pub const MAX_REQUESTS: usize = 256;
/// Messages in one grouped receive.
pub const MAX_GROUP: usize = 8;
/// Queue pairs of one connection.
pub const MAX_LANES: usize = 32;
/// Ports that one connection may lie on, as its rails.
pub const MAX_RAILS: usize = 4;
/// Longest message, in bytes. NCCL never passes more.
pub const MAX_MESSAGE: u32 = 1 << 30;

/// Index of a queue pair within its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Lane(pub u8);
