//! The protocol between the two ends of a connection, as values: no verbs, no sockets, no clock, no
//! unsafe.
//!
//! ```text
//!        sender                                     receiver
//!   isend ─► SendFlow                               RecvFlow ◄─ irecv
//!             ▲   ring of slots in sender memory       │
//!             │◄────── RDMA WRITE: Cts ────────────────┤ take_cts
//!             │                                        │
//!             └─ Transfer ── RDMA WRITE + Imm ────────►│ handle_immediate
//!   test ◄─ handle_completion                          └─► test
//! ```
//!
//! The receiver writes a clear-to-send, [`cts::Cts`], for each buffer into a ring in the sender's
//! memory. The sender answers with RDMA WRITEs into that buffer; the last carries an immediate,
//! [`imm::Imm`]. The immediate contains the slot of the clear-to-send. So the slot, not the order,
//! assigns a completion to a message. Any queue pair may carry any message or stripe, and receive
//! work requests belong to no particular message.
//!
//! Methods called `handle_*` handle events, those called `poll_*` return the next work, and the
//! others serve the caller's requests.
//!
//! Every clear-to-send has a 32-bit sequence number; its slot in the ring is that number modulo
//! [`RING_SLOTS`]. The immediate carries only the slot. That is unambiguous as long as a slot is
//! reused only after its earlier message has arrived, which [`recv::RecvFlow`] ensures. After a
//! fault, full sequence numbers identify what is missing, once the queue pairs that could deliver
//! late writes are destroyed: see [`recovery`].
//!
//! | file | contents |
//! | --- | --- |
//! | `cts`, `imm` | the two formats of the data path |
//! | [`send`] | the sending end, a message to post, and the space in send queues |
//! | [`lanes`] | queue pairs with individual shares: which stays slow, and how their paths are chosen |
//! | [`recv`] | the receiving end, an awaited message, and how many may be awaited |
//! | `cts_window` | which clear-to-sends are sent when, and their bytes |
//! | `stripe`, `rail_weights` | how a message is cut over queue pairs, and the share of each rail or lane |
//! | [`requests`], [`shared`] | the table of requests and their state at each end; its numbers |
//! | `recovery` | what the ends do after a fault: new queue pairs, and resending |
//! | `explain` | what a stalled operation waits for |
//! | `frame`, `handle`, `handshake`, `endpoint`, `identity`, `codec` | the control messages |
//! | `fuzz` | inputs of a fuzzer: messages of peers, and schedules |
//! | `sample`, `random` | for tests: what ends say at set-up; random numbers by seed |
//! | `tests` | tests of several files together |
#![deny(clippy::disallowed_methods)]
#![forbid(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links)]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::exit,
        clippy::print_stdout, clippy::print_stderr
    )
)]

mod codec;
pub mod control;
pub mod cts;
mod cts_window;
pub mod endpoint;
pub mod explain;
pub mod frame;
#[cfg(any(test, feature = "simulator"))]
pub mod fuzz;
pub mod handle;
pub mod handshake;
pub mod identity;
pub mod imm;
pub mod lanes;
pub mod rail_weights;
#[cfg(any(test, feature = "simulator"))]
pub mod random;
pub mod recovery;
pub mod recv;
pub mod requests;
#[cfg(any(test, feature = "simulator"))]
mod sample;
pub mod send;
pub mod shared;
pub mod stripe;
#[cfg(test)]
mod tests;
mod violation;

pub use violation::Violation;
pub(crate) use violation::violation;

/// Version of everything in this crate that peers see. Peers of different versions refuse each
/// other.
pub const PROTOCOL_VERSION: u16 = 6;
/// Slots in the ring of clear-to-sends. A grouped receive of n messages takes n of them.
pub const RING_SLOTS: usize = 512;
/// Requests that may be outstanding on one communicator; the next one must wait.
pub const MAX_REQUESTS: usize = 256;
/// Messages in one grouped receive.
pub const MAX_GROUP: usize = 8;
/// Queue pairs of one connection.
pub const MAX_QPS: usize = 32;
/// Rails of one connection. A rail is a port at each end.
pub const MAX_RAILS: usize = 4;
/// Longest message, in bytes. NCCL never passes more.
pub const MAX_MESSAGE: u32 = 1 << 30;

/// Index of a queue pair within its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct QpIndex(pub u8);
