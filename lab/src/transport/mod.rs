//! A transport's calls with Rust's types: ownership for what must be closed, results that name the
//! call.
//!
//! ```text
//! Transport ── listen ──> Listener ── accept ──> RecvComm ── register ──> Region
//!     └─────── connect ──> SendComm ── register ──> Region      └ receive ──> Request
//!                              └ send ──> Request
//! ```
//! A [`Region`](comm::Region) holds its communicator and its memory; a [`Request`](comm::Request)
//! borrows its communicator. So deregistration comes before close, and no request is tested after
//! it. Dropping a request forgets it (the operation continues); dropping anything else closes it and
//! logs a failure.
//!
//! | file | what is in it |
//! |---|---|
//! | [`instance`] | [`Transport`]: a loaded and initialised transport, and its devices; the device of each rank where two are made into one |
//! | [`buffer`] | host memory for registration |
//! | [`comm`] | send and receive communicators, memory regions, requests |
//! | [`listener`] | [`Listener`], [`Handle`], `listen` and `connect`; a connection whose two ends are in this process |
//! | [`deadline`] | polling with a time limit |

pub mod buffer;
pub mod comm;
pub mod deadline;
pub mod instance;
pub mod listener;

pub use instance::{Properties, Transport};
pub use listener::{Handle, Listener};
