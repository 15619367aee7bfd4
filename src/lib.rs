//! # Ferrite
//!
//! An NCCL network plugin: `libnccl-net.so`, which implements the ncclNet v8 interface over raw RDMA verbs. This page is
//! the map.
//!
//! ```text
//!            NCCL ── ncclNetPlugin_v8
//!                       │
//!   abi    what NCCL sees: vtable, handles, logger, the edge where errors become codes and panics stop
//!    │
//!   net    our objects: Nic, Rail, Listener, Connector, SendComm, RecvComm; the only place where the rest meets
//!    ├──────────────────┬──────────────────┐
//!   proto              verbs              host
//!   what two peers     libibverbs,        the machine: settings, sysfs, GIDs,
//!   agree on; pure     owned              interfaces
//! ```
//!
//! `abi → net → {proto, verbs, host}`, and those three never see each other; `error` is everybody's. A test reads the
//! sources and enforces it, and that `unsafe` stays in `abi`, `verbs` and the few files that make system calls.
//!
//! ## The way of a message
//!
//! 1. `irecv` gives [`proto::recv::RecvFlow`] a buffer. Its clear-to-send, 32 bytes with address, key, size, tag and
//!    sequence number, is written into the ring in the sender's memory: inline where the device can, unsignalled, one
//!    doorbell. Small ones that come in quick succession share a write.
//! 2. `isend` finds the clear-to-send in [`proto::send::SendFlow`] by its tag and posts one RDMA WRITE with immediate:
//!    one doorbell, one completion.
//! 3. The immediate names the slot and tells the length. The receiver's `test` polls it off the completion queue.
//!    Receive work requests carry no memory and belong to nobody: they are posted 32 at a time.
//!
//! A grouped receive is as many slots as it has members; each member completes by itself and the group with the last.
//! A message is cut over several queue pairs at 128-byte multiples when both ends want it, and over all rails where there
//! are several; the receiver counts stripes, however they come. Where the cuts are is the sender's affair: see
//! [`proto::shares`]. Lengths that the immediate's 22 bits cannot tell are told in two of them.
//!
//! ## Rails
//!
//! Like ports of one card are one device to NCCL ([`net::device::nic`]). A connection lies on as many rails as both ends have: each
//! has its queue pairs and its completion queue, and a clear-to-send goes over any of them. Two keys fit a clear-to-send;
//! with three or four rails it takes 64 bytes, still one packet. Memory is registered on every card ([`net::mr::handle`]).
//! A connection of one rail takes the short way through all of it, which branches off before anything is polled or posted.
//!
//! ## Setting up a connection
//!
//! `listen` makes a random token, which travels in NCCL's handle with the process's TCP port. `connect` says hello with the
//! token, its rails with their queue pairs, and its ring; the listener answers with its queue pairs and the terms, and is
//! ready to receive; `connect` commits and is done; `accept` is done when the commit has come. Every step is non-blocking.
//! What ought to be quick has a deadline: reaching the peer's port, and connecting queue pairs, which are tried again between
//! calls while the peer cannot be resolved. How long the peer takes to accept has none: NCCL may begin hours later there, and
//! as long as the control connection stands the peer lives.
//! A caller that does not know the token, or speaks another version, is told so and costs nothing but a socket.
//!
//! All connections from one process to another share a TCP connection, the control connection
//! ([`proto::control::conn::ControlConn`]). Every frame bears the secret that the sender has made up for this one attempt, so
//! that what belongs to an attempt that was given up is recognised. A control connection stays open as long as one of its
//! connections is there: its end tells a dead peer from a broken path, and a failing side says why on it. One that is lost or
//! reset tells nothing. The side that has dialled dials again, once for all of its connections, and each of them goes on over the
//! new one by its secret ([`proto::control::plane`]); that a peer wants to go on says that it had committed, should the commit be
//! lost. A port that refuses three times within a second or more, or does not know the connection, is its end. Meanwhile an end
//! that waits for the peer asks the peer's device whether it is there ([`net::data::probe`]): that alone tells of a host that is
//! gone, and tells the side that cannot dial. Forked children keep no control sockets ([`net::control::fork`]), so that a
//! process's death is told when it dies and not when its workers have.
//!
//! ## Threads
//!
//! NCCL's service thread creates, registers and closes; its progress thread sends, receives and tests; both may be in one
//! communicator at once. So `void*` never becomes `&mut`: the data path's state sits in a [`net::data::exclusive_cell::SingleCaller`],
//! the rest is immutable or behind a lock. The data path allocates nothing, takes no lock and makes no system call of its
//! own. Ferrite's only threads are one [`net::control::watcher::Watcher`] per card that is listened on or has connections. It
//! waits for device events and clears away what an abort has left half-made; one of them also drives the control connections and
//! serves the port, from the first `listen` on. The library is never unmapped (`-z nodelete`).
//!
//! ## Where things are decided
//!
//! | question | place |
//! |---|---|
//! | what does a peer see on the wire? | [`proto::wire`], [`proto::frame`], [`proto::handshake`], [`proto::handle`] |
//! | which environment variables are there? | [`host::variables::VARIABLES`] |
//! | which GID is used, and why? | [`host::gid`], [`net::device::address`] |
//! | who shares a control connection, and when does it end? | [`proto::control::plane`], [`proto::control::pool`] |
//! | who is let in at the port, and how many may wait there? | [`proto::control::acceptor`] |
//! | what becomes of connections whose control connection is lost? | [`proto::control::plane`], [`proto::control::redial`], [`net::data::probe`] |
//! | what bounds a connection that NCCL has given up half-way? | [`net::setup::connectors`], [`net::setup::listen`] |
//! | which lock is taken first? | [`net::control`] |
//! | how are queue pairs connected, and how often is it tried? | [`net::qp::connect`] |
//! | which registration serves which memory? | [`net::mr::cache`] |
//! | can GPU memory be registered, and what is missing? | [`net::device::gdr`] |
//! | which ports are one device? | [`net::device::nic`] |
//! | how much of a message does a rail get? | [`proto::stripe`], [`proto::shares`] |
//! | how large are the queues, and why do they never overflow? | [`net::data::sender::SENDER_DEPTHS`], [`proto::room`], [`net::data::receiver::RECEIVER_DEPTHS`] |
//! | what if a device takes little inline data, or none? | [`verbs::queue`], [`net::data::cts_sender`] |
//! | what does an error say? | [`verbs::status`], `net::qp::set` |
//! | how is libibverbs found? | [`verbs::library`] |
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::exit,
        clippy::print_stdout,
        clippy::print_stderr,
        clippy::todo,
        clippy::unimplemented
    )
)]

pub mod abi;
pub mod error;
pub mod host;
pub mod net;
pub mod proto;
pub mod verbs;
