//! # Ferrite
//!
//! An NCCL network plugin: `libnccl-net.so` implements ncclNet, versions 8 to 12, over RDMA verbs.
//! This page is the map of its sources.
//!
//! ```text
//!          NCCL ── ncclNetPlugin_v8 … v12
//!                     │
//!   abi               NCCL's tables, handles and logger; errors become result codes, panics become errors
//!    │
//!   net               Network, Nic, CardPort, Listener, Connector, SendComm, RecvComm
//!    ├────────────────┬─────────────────┬──────────────────┐
//!   proto            verbs             host               stats
//!   what two peers   libibverbs,       settings, sysfs,   counters of connections,
//!   agree on;        owned and safe    GIDs, interfaces   in a file for `ferrite top`
//!   no I/O, no clock
//! ```
//!
//! The lower four do not use each other; all may use `error` and `version`. `proto` and `verbs` are
//! crates of their own. `unsafe` is an error outside `abi`, `verbs` and the few files that allow it
//! at their head. [`inspect`] is what the programs use of the plugin, [`testing`] what only its tests
//! use, `net::sim` both ends over simulated devices.
//!
//! | folder of `net` | what it holds |
//! |---|---|
//! | [`net::device`] | what is opened once: cards, ports, GID tables, which ports make one device |
//! | [`net::mr`] | registered memory, GPU memory included |
//! | [`net::setup`] | `listen`, `connect`, `accept` |
//! | [`net::qp`] | queue pairs: made, connected, fenced; the errors of their completions |
//! | [`net::data`] | `isend`, `irecv`, `iflush`, `test` |
//! | [`net::control`], [`net::peer`] | TCP between processes; what is known of a peer |
//! | [`net::background`] | watchers of cards, worker threads, device events |
//! | [`net::recovery`] | new queue pairs after a fault |
//! | [`net::operations`], [`net::explain`] | which operation a message belongs to; reports of waits |
//!
//! ## A message
//!
//! 1. `irecv` → [`net::data::recv`] → [`proto::recv::RecvFlow`]: a clear-to-send of 32 bytes
//!    (address, keys, size, tag, sequence number) goes by RDMA WRITE into a ring in the sender's
//!    memory. Those due together share one write.
//! 2. `isend` → [`net::data::send`] → [`proto::send::SendFlow`]: finds the clear-to-send of its tag
//!    and posts one RDMA WRITE with immediate data: one doorbell, one completion. Short messages of
//!    host memory go inline.
//! 3. `test`: the sender polls the write's completion; the receiver polls the immediate, which
//!    names the clear-to-send and the length. Its receive work requests have no memory, and are
//!    posted 32 at a time.
//!
//! With several rails or lanes a message is cut at multiples of 128 bytes ([`proto::stripe`],
//! [`proto::rail_weights`], [`proto::lanes`]); the receiver counts the parts, which may come in any
//! order. A grouped receive of `n` messages takes `n` clear-to-sends. A connection of one rail and
//! one queue pair takes a fast path, which [`net::data`] chooses before anything is polled.
//!
//! ## A connection
//!
//! `listen` puts a random token, the process's TCP port and the GIDs of the device into NCCL's
//! handle. Then:
//!
//! | step | who | what |
//! |---|---|---|
//! | 1 | `connect` | Hello: the token, the rails it can use with their queue pairs, the address of its ring |
//! | 2 | listener | Reply: the rails the connection begins on, its queue pairs, what is negotiated |
//! | 3 | `connect` | Commit; `connect` returns the communicator |
//! | 4 | `accept` | returns the communicator when the Commit has arrived |
//!
//! No call waits; `FERRITE_HANDSHAKE_TIMEOUT` bounds each step but the wait for the peer's
//! `accept`, which NCCL may call hours later. All connections from one process to another share one
//! TCP connection ([`proto::control`]), which stays open while one of them exists. If it breaks, it
//! is dialled again. A peer counts as dead after a Goodbye, or when its port refuses and its RDMA
//! device acknowledges no probe ([`proto::control::redial`], [`net::data::health::Probe`]).
//!
//! ## A fault
//!
//! A port, path, queue pair or card fails: [`net::data::health`] or
//! [`net::background::device_events`] reports it to [`net::recovery::conn`], which drives
//! [`proto::recovery`] on a worker thread. Both ends fence: they bring their queue pairs to ERROR,
//! take in all completions and destroy them, so nothing old can write to a buffer any more. They
//! make new ones over the rails that work; the receiver lists the messages that have not arrived,
//! and the sender sends those again. For operators: docs/failover.md.
//!
//! ## Threads
//!
//! NCCL's service thread creates, registers and closes while its progress thread sends, receives
//! and tests. So `void*` never becomes `&mut`: the data path's state is in an
//! [`net::data::exclusive_cell::ExclusiveCell`], which its thread enters by plain loads and stores;
//! a visitor pays with `membarrier`. One watcher thread per card in use reads device events, and
//! one of them drives the control connections. Up to four workers exist while connections recover,
//! and one thread while a hang is reported. The library is never unmapped.
//!
//! ## Where things are decided
//!
//! | question | place |
//! |---|---|
//! | Which versions of ncclNet are there? | `abi/v8.rs` to `abi/v12.rs`, and `VERSIONS` in `abi/process.rs` |
//! | What goes over the wire? | [`proto::cts`], [`proto::imm`], [`proto::frame`], [`proto::handshake`], [`proto::handle`] |
//! | Which settings are there, and what do they default to? | [`host::variables::VARIABLES`], read by [`host::config`] |
//! | Which GID, and why? | [`host::gid`], [`net::device::gid_table`] |
//! | Which ports are one device, and which are paired? | [`net::device::nic`], [`net::device::pairing`] |
//! | When is a peer dead? | [`proto::control::redial`] |
//! | What happens after a fault, and when is it given up? | [`proto::recovery`] |
//! | How do old queue pairs end before new ones are made? | [`net::qp::fence`] |
//! | How many worker threads are there? | [`net::background::workers`] |
//! | What does the log say of a recovery? | [`net::recovery::conn`]; the error at its end: [`proto::recovery`] |
//! | What does a waiting end wait for? | [`proto::explain::verdict`] |
//! | What do drivers do differently? | [`verbs::thread_domain`], [`net::qp::fence`]; softrnic plays them: `softrnic/src/drivers` |
//! | How large are queues, and what is sent inline? | [`net::data::send::SENDER_QP_CAPS`], [`net::data::cts_sender::RECEIVER_QP_CAPS`] |
//! | When are clear-to-sends written, and in which order? | `crates/proto/src/cts_window.rs`; over which rail: [`net::data::cts_sender`] |
//! | How is a message divided over rails? | [`proto::stripe`]; how large the shares are: [`proto::rail_weights`] |
//! | When is a path suspected, though no device reports an error? | [`net::data::health::DeadPathDetector`] |
//! | What may the peer do with memory? | [`verbs::memory`] |
//! | Which ranges share a memory region, and how long does one live? | [`net::mr::regions`] |
//! | Can GPU memory be registered? | [`net::device::gdr`] |
//! | Which lock is taken first? | [`net::control`] |
//! | What does an error say? | [`error`], [`verbs::status`], [`net::qp::failure`] |
//! | What does a hang report say? | [`net::explain`]; its texts: `net/explain/text.rs` |
//! | Which counters are there? | [`stats::layout`]; counted in [`stats::record`] |
//! | What do the columns of `ferrite top` show? | `crates/ferrite/src/top/table.rs` |
//! | How does `ferrite compare` judge? | `lab/src/results/judgement.rs` |
//!
//! ## Ferrite's own terms
//!
//! Terms of the InfiniBand specification, rdma-core and NCCL keep their meaning.
//!
//! | term | meaning |
//! |---|---|
//! | attempt | one try to recover a connection; number 0 is its set-up |
//! | card | what libibverbs opens as one device |
//! | clear-to-send | 32 or 64 bytes that describe a receive buffer to the sender |
//! | control connection | the TCP connection that all connections between two processes share |
//! | device | what NCCL sees: one port, or several merged |
//! | fence | the end of queue pairs: to ERROR, completions taken in, destroyed |
//! | lane | one of several queue pairs of a rail, with its own share of each message |
//! | missing list | the receiver's list of the messages that have not arrived, in a recovery |
//! | probe | an RDMA WRITE of zero bytes that shows whether the peer's device acknowledges |
//! | rail | a port that carries part of a connection, by the sender's numbering |
//! | ring | the sender's memory for clear-to-sends, 512 places |
//! | state word | what each call reads first: 0 while nothing is wrong and nobody else is inside |
//! | stripe | the part of a message that one queue pair carries |
#![cfg_attr(
    not(test),
    deny(
        // It is allowed at the head of `abi`, and of the few files that make system calls.
        unsafe_code,
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
// The modules are private: `pub` means visible in the whole crate, and the compiler finds what is
// unused.
#![allow(unreachable_pub)]
#![allow(rustdoc::private_intra_doc_links)]

mod abi;
mod error;
#[cfg(any(test, feature = "simulator"))]
pub mod fuzz;
mod host;
pub mod inspect;
#[cfg(test)]
mod log_line;
mod net;
mod stats;
pub mod testing;
mod version;

use ferrite_proto as proto;
use ferrite_verbs as verbs;
