//! What the two ends of a connection agree on, as values: no verbs, no sockets, no clock, no unsafe.
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
//! The receiver writes a clear-to-send, [`cts::Cts`], for each buffer into a ring in the sender's memory. The sender answers with
//! RDMA WRITEs into that buffer, of which the last carries an immediate, [`imm::Imm`]. The immediate names the slot of the
//! clear-to-send. So a completion belongs to a message by the slot and not by order: any queue pair may carry any message or
//! stripe, and receive work requests belong to no particular message.
//!
//! Methods called `handle_*` take in what has happened, those called `poll_*` return what is to be done next, the others are
//! what the caller asks for.
//!
//! Every clear-to-send has a 32-bit sequence number; its slot in the ring is that number modulo [`RING_SLOTS`]. The immediate
//! carries only the slot. That is unambiguous as long as the next clear-to-send in the same slot is written only after the
//! message of the one before has arrived. [`recv::RecvFlow`] sees to that. After a fault, what is missing is named by full sequence
//! numbers, once the queue pairs from which late writes could come are destroyed: see [`recovery`].
//!
//! | file | what |
//! |---|---|
//! | `cts`, `imm` | the two formats of the data path |
//! | [`send`] | the sending end, with one message that is to be posted, and the space in send queues |
//! | [`lanes`] | queue pairs of which each has a share of its own: which stays slow; what chooses the path of each; how many a process may have |
//! | [`automatic_lanes`] | when a connection takes lanes by itself, and gives them up; how fast it is |
//! | [`recv`] | the receiving end, with one message that is awaited, and how many may be |
//! | `cts_window` | which clear-to-sends are sent when, and their bytes |
//! | `stripe`, `rail_weights` | how a message is cut over queue pairs, and how much each rail or lane gets |
//! | [`requests`], [`shared`] | the table of requests, and what is known of one at each end; its numbers |
//! | `recovery` | what the ends do after a fault: new queue pairs, and what is sent again |
//! | `explain` | what an operation that does not go on waits for |
//! | `frame`, `handle`, `handshake`, `endpoint`, `identity`, `codec` | the control messages |
//! | `fuzz` | what a fuzzer chooses the input of: what peers say, and schedules |
//! | `arrival_orders`, `automatic_lanes_sim` | tests: every order of a few immediates; lanes of a connection that a seed drives |
//! | `sim`, `malformed_input`, `exhaustive`, `random` | tests: two ends that recover, over a simulated fabric with faults; peers that say anything; all values where there are few |
#![deny(clippy::disallowed_methods)]
#![forbid(unsafe_code)]
#![allow(rustdoc::private_intra_doc_links)]
#![cfg_attr(
    not(any(test, fuzzing)),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::exit,
        clippy::print_stdout,
        clippy::print_stderr
    )
)]

#[cfg(test)]
mod arrival_orders;
pub mod automatic_lanes;
#[cfg(test)]
mod automatic_lanes_sim;
mod codec;
pub mod control;
pub mod cts;
mod cts_window;
pub mod endpoint;
#[cfg(test)]
mod exhaustive;
pub mod explain;
pub mod frame;
#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod handle;
pub mod handshake;
pub mod identity;
pub mod imm;
pub mod lanes;
#[cfg(test)]
mod malformed_input;
pub mod rail_weights;
#[cfg(any(test, fuzzing, feature = "simulator"))]
pub mod random;
pub mod recovery;
pub mod recv;
pub mod requests;
pub mod send;
pub mod shared;
#[cfg(any(test, fuzzing))]
mod sim;
pub mod stripe;
mod violation;

pub use violation::Violation;
pub(crate) use violation::violation;

/// Version of everything in this module that peers see. Peers of different versions refuse each other.
pub const PROTOCOL_VERSION: u16 = 6;
/// Slots in the ring of clear-to-sends. A grouped receive of n messages takes n of them.
pub const RING_SLOTS: usize = 512;
/// Requests that may be outstanding on one communicator; the next one has to wait.
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
