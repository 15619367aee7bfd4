//! # Ferrite
//!
//! An NCCL network plugin: `libnccl-net.so`, which implements the ncclNet interface, versions 8 to 12, over raw RDMA
//! verbs. This page is the map of its sources.
//!
//! ```text
//!            NCCL ── ncclNetPlugin_v8 … v12
//!                       │
//!   abi    NCCL's interface: tables, handles, logger; errors become result codes, panics become errors
//!    │
//!   net    the plugin's objects: Network, Nic, Rail, Listener, Connector, SendComm, RecvComm
//!    ├──────────────────┬──────────────────┬───────────────────┐
//!   proto              verbs              host                stats
//!   what two peers     libibverbs:        the machine:        counters of connections,
//!   agree on; pure     owned objects      settings, sysfs,    in a file for `ferrite top`
//!                                         GIDs, interfaces
//! ```
//!
//! `abi → net → {proto, verbs, host, stats}`. The lower four do not use each other. [`proto`] and [`verbs`] are packages of their own
//! (`crates/proto`, `crates/verbs`), so that the compiler sees to that; `host` and `stats` may use `error` and `version`.
//! `proto` has no `unsafe`. That of `verbs` is behind a safe interface. Here it stays in `abi`, and in the few files that allow it at their
//! head: elsewhere it is an error.
//!
//! ## The path of a message
//!
//! 1. `irecv` gives [`proto::recv::RecvFlow`] a buffer. Its clear-to-send is 32 bytes with address, key, size, tag and
//!    sequence number. It is written into a ring in the sender's memory: unsignalled, with one doorbell, and inline if the
//!    device has enough inline data. Several that are due at once share a write.
//! 2. `isend` finds the clear-to-send in [`proto::send::SendFlow`] by its tag and posts one RDMA WRITE with immediate data:
//!    one doorbell, one completion. A few bytes of host memory go inline.
//! 3. The immediate data names the clear-to-send and tells the length. The receiver's `test` polls its completion. Receive work
//!    requests have no memory and belong to no message: they are posted 32 at a time.
//!
//! A grouped receive takes as many clear-to-sends as it has messages. Each message completes by itself, and the group with the
//! last one. A message is split over several queue pairs, at multiples of 128 bytes, if both ends are set so; and over all rails
//! if there are several. The receiver counts stripes, in whatever order they come. The sender decides where a message is split
//! ([`proto::stripe`], [`proto::rail_weights`]). With `FERRITE_LANES=auto` a connection that has sent much has
//! lanes if it is faster with them: queue pairs that each carry a share of their own ([`proto::automatic_lanes`]). One that stays slow is given another path by a recovery
//! ([`proto::lanes`], docs/paths.md). A length that the 22 bits of one immediate cannot tell is told in two.
//!
//! ## Rails
//!
//! Equal ports of one card are one device to NCCL ([`net::device::nic`]). NCCL before 2.24 is shown them merged; later ones are shown
//! each port, and merge them by a call (`abi::devices`). A connection has the sender's rails, and the receiver finds a port for each that
//! reaches it ([`net::device::pairing`]). It begins on the rails that connect, and its recovery takes in the others later.
//! Each rail has its queue pairs and its completion queue, and a clear-to-send may go over any of them. A clear-to-send has room
//! for two keys; with three or four rails it has 64 bytes, which is still one packet. Memory is registered on every card
//! ([`net::mr::handle`]). A connection with one rail takes a shorter path through the code, which branches off before anything
//! is polled or posted.
//!
//! ## Setting up a connection
//!
//! `listen` makes a random token. The token travels in NCCL's handle, with the TCP port of the process and the GIDs of the device's ports, by which
//! `connect` chooses its own. Then:
//!
//! | step | who | message |
//! |---|---|---|
//! | 1 | `connect` | Hello: the token, the rails that it can use with their queue pairs, and its ring of clear-to-sends |
//! | 2 | listener | Reply: on which of these rails the connection begins, its queue pairs there, and what is negotiated. It is ready to receive |
//! | 3 | `connect` | Commit. `connect` is complete |
//! | 4 | `accept` | complete when the Commit has come |
//!
//! No call waits. `connect` creates its queue pairs while the peer's port is being reached. Reaching the peer's port and connecting queue pairs have a deadline; connecting a queue pair is tried again
//! between calls while the peer's address cannot be resolved. How long the peer takes to accept has no limit: NCCL may call
//! `accept` hours later, and the peer lives as long as its control connection stands. A caller with another token or another
//! protocol version is told so. Until then it costs one socket.
//!
//! All connections from one process to another share one TCP connection, the control connection
//! ([`proto::control::conn::ControlConn`]). Each frame carries a secret, which the sender makes up for each attempt: frames of
//! an attempt that was given up are recognised by it. The control connection stays open while one of its connections exists.
//! Its end does not tell whether the peer lives: the kernel of a process that is killed closes it, or resets it if something was not read,
//! and a proxy or a firewall does the same to processes that live. So both ends find that out:
//!
//! | what is seen | what follows |
//! |---|---|
//! | Goodbye | the peer has closed this connection, or has failed, for the reason in the frame |
//! | closed without a Goodbye, reset, or lost | the side that dialled dials again, once for all of its connections, and each goes on by its secret. The other side dials too if it still waits after 0.2 s, and asks for that: each process that dials has a port, and tells it ([`proto::handshake::Caller`]) |
//! | three refusals within at least one second | the peer's process has died, unless its device acknowledges probes. While it does, the peer lives |
//! | closed, and for 10 s neither the peer's port nor its device answers | the peer's process has died, and its address is gone with it |
//! | the peer does not know the secret | the peer has closed the connection |
//!
//! A peer that asks to go on has committed: its Commit may be lost. While the control connection is lost, an end that waits for
//! the peer probes the peer's device ([`net::data::health::Probe`]): only that tells of a host that is gone. Forked children keep no control sockets and no devices ([`net::control::fork`]), so that a process's death is seen when
//! it dies and not when its forked workers do.
//!
//! ## Recovery
//!
//! After a fault of a port, a path, a queue pair or a card both ends destroy all queue pairs of the connection and make new ones, over the rails
//! that both can use then ([`proto::recovery`]). The receiver says which messages have not arrived, and the sender sends those again.
//! Nothing old can be written any more when anything new begins, so no buffer changes after NCCL has been told that it is complete. What
//! takes long is done by [`net::background::workers`], whose threads exist only while there is something to recover. A card that is lost is
//! opened again when it is back: [`net::device::card`] stays, and has another [`net::device::open_device`] from then on. For operators:
//! docs/failover.md.
//!
//! ## Reports of waits
//!
//! Both ends of a connection count their messages alike, so the numbers of both tell what a waiting end waits for
//! ([`proto::explain`]). A watcher looks at all ends once a second. When one has waited for too long, a thread asks the peers over the
//! control connections ([`net::explain`]), and these ask theirs, until processes are found that wait for nobody. For operators:
//! docs/hang-report.md.
//!
//! NCCL tells of its operations as to a profiler, whose tables are in the same library (`abi::profiler`). What it has begun and not ended
//! is kept in tables without locks ([`net::operations`]); the watcher finds there what operation a waiting end's messages are of, by
//! communicator, direction and peer.
//!
//! ## Threads
//!
//! NCCL's service thread creates, registers and closes; its progress thread sends, receives and tests; both may be in one
//! communicator at once. So `void*` never becomes `&mut`: the data path's state sits in a [`net::data::exclusive_cell::ExclusiveCell`],
//! the rest is immutable or behind a lock. The first thread that sends or receives enters the cell by plain loads and stores, and others
//! that look into a communicator pay for it with the system call `membarrier`. Unless a profiler hears of messages, the data path allocates nothing, takes no lock and makes no
//! system call of its own; while all is well it executes no locked instruction either, if NCCL calls from one thread and the kernel has
//! `membarrier`. Ferrite's only threads in healthy times are one [`net::background::watcher::Watcher`] per card that is listened on or has connections. It
//! waits for device events and clears away what an abort has left half-made; one of them also drives the control connections and
//! serves the port, from the first `listen` on. As the network is made, a thread asks the kernel for `membarrier`, and ends. Up to four threads recover connections while there is one to recover; they enter a
//! communicator for short moments, in which NCCL's thread waits. So does a watcher, once a second. One more thread asks and reports while
//! a message waits for too long. The library is never unmapped (`-z nodelete`).
//!
//! ## Where things are decided
//!
//! | question | place |
//! |---|---|
//! | what does a peer see on the wire? | [`proto::cts`], [`proto::imm`], [`proto::frame`], [`proto::handshake`], [`proto::handle`] |
//! | which environment variables are there? | [`host::variables::VARIABLES`] |
//! | which settings come from NCCL's environment plugin? | `abi::env_plugin` |
//! | which GID is used, and why? | [`host::gid`], [`net::device::gid_table`], [`net::device::rail`] |
//! | which connections share a control connection, and when does it end? | [`proto::control::plane`], [`proto::control::pool`] |
//! | who is let in at the port, and how many may wait there? | [`proto::control::acceptor`] |
//! | what becomes of connections whose control connection is lost? | [`proto::control::plane`], [`proto::control::redial`], [`net::data::health::Probe`] |
//! | what does a waiting end wait for, and what does the log say of it? | [`proto::explain`], [`net::explain`] |
//! | what happens after a fault, in which order, and when is it given up? | [`proto::recovery`], [`net::recovery`] |
//! | when does a call take the short way, and who keeps it out? | [`net::data::state_word`], [`net::data::exclusive_cell`] |
//! | which lock is taken first? | [`net::control`] |
//! | what bounds a connection that NCCL has abandoned during set-up? | [`net::setup`] |
//! | when is a card that was lost opened again, and who gives up what was made of it before? | [`net::device::card`], `net::recovery::devices` |
//! | which port of another card is borrowed, and when? | [`net::recovery`], [`net::device::spares`] |
//! | how are queue pairs connected, and how often is it tried? | [`net::qp::connect`] |
//! | which memory region serves which memory? | [`net::mr::table`] |
//! | can GPU memory be registered, and what is missing? | [`net::device::gdr`] |
//! | which table does NCCL take, and what is different in it? | [`abi`] |
//! | which operation are a connection's messages of? | [`net::operations`], `abi::profiler` |
//! | what does NCCL's pointer for a request point to? | [`proto::requests`], `abi::handles` |
//! | what does a profiler of the user's hear of messages? | `abi::network_events` |
//! | which port of one end is connected with which of the other? | [`net::device::pairing`], `net::setup::rails`, [`net::recovery::rails`] |
//! | which device does a connection use, if that is not the one that NCCL names? | [`net::device::networks`] |
//! | which ports are one device? | [`net::device::nic`], `abi::devices` |
//! | how much of a message does a rail carry, or a lane? | [`proto::stripe`], [`proto::rail_weights`], [`proto::lanes`] |
//! | which lane is slow, what leads it over another path, and how often? | [`proto::lanes`], [`proto::recovery::move_budget`] |
//! | how large are the queues, and how many receives are posted? | [`net::data::send::SENDER_QP_CAPS`], [`net::data::cts_sender::RECEIVER_QP_CAPS`], [`proto::recv::Receives`] |
//! | what if a device has little inline data, or none? | [`verbs::queue_pair`], [`net::data::cts_sender`] |
//! | when does a device take no locks to post? | [`verbs::thread_domain`] |
//! | what does an error say? | [`error`], [`verbs::status`], [`net::qp::failure`] |
//! | what is counted, and how does another process read it? | [`stats`], docs/stats-file.md |
//! | how is a peer called in messages? | [`proto::identity`], [`net::peer::name`] |
//! | how is libibverbs found? | [`verbs::library`] |
//! | what does `ferrite doctor` see of the machine? | [`inspect`] |
//!
//! ## Glossary
//!
//! Terms of the InfiniBand specification and of NCCL have their meaning there; the others are Ferrite's.
//!
//! | term | meaning |
//! |---|---|
//! | missing list | the receiver's list of the messages that have not arrived, during a recovery |
//! | attempt | one try to recover a connection; attempts are numbered, and 0 is its set-up |
//! | borrowed port | a port of another card that stands in for a rail while no own port can be used |
//! | card | what libibverbs opens as one device: an RDMA card, or a PCI function of one |
//! | clear-to-send (CTS) | 32 or 64 bytes that tell the sender a receive buffer: address, keys, size, tag, sequence number |
//! | communicator | NCCL's send or receive end of a connection: `sendComm`, `recvComm` |
//! | completion queue (CQ) | where a device reports completed work requests; a connection has one per rail |
//! | context | what `init` gives NCCL for one of its own communicators (`ncclComm_t`), from version 11 on |
//! | control connection | a TCP connection between two processes, which all connections between them share |
//! | device | what NCCL is told of: one rail, or several that are merged |
//! | dma-buf | a Linux descriptor for memory of a device, by which GPU memory can be registered |
//! | doorbell | the write to a device that makes it look for new work requests |
//! | ECE | enhanced connection establishment: vendor's options that two devices agree on |
//! | endpoint | the description of one end of a connection that the peer is told |
//! | fence | the end of queue pairs: to state ERROR, all completions taken in, destroyed |
//! | FLID | the LID under which other InfiniBand subnets address a port |
//! | flush | an RDMA READ to this process itself, after which received data is in GPU memory |
//! | GID | a port's 128-bit address; the GID table of a port has several |
//! | GPUDirect RDMA | an RDMA device reads and writes GPU memory without a copy in host memory |
//! | group | the messages of one `irecv` call, 1 to 8 |
//! | handle | the 128 bytes that NCCL carries from `listen` to `connect`; or an object behind NCCL's `void*` |
//! | immediate | 32 bits that come with an RDMA WRITE and complete a receive work request |
//! | inline data | data that the CPU gives to the device with the work request, so that it needs no registration |
//! | LID | a port's 16-bit address within an InfiniBand subnet |
//! | lane | one of several queue pairs of a rail, with a share of its own of each message that is cut |
//! | link layer | InfiniBand, or Ethernet (RoCE) |
//! | lkey, rkey | the keys of a memory region for local and for the peer's work requests |
//! | memory region (MR) | registered memory, which a device can access |
//! | operation | a collective of NCCL, or a send or receive, as a user calls it; it consists of many messages |
//! | probe | an RDMA WRITE of zero bytes, which tells whether the peer's device acknowledges |
//! | queue pair (QP) | a send and a receive queue, connected to one of the peer; states RESET, INIT, RTR, RTS, ERROR |
//! | queue pair index | the number of a queue pair within its connection |
//! | rail | a port that carries part of a connection; rails have the numbers of the sender's ports, and the receiver pairs its own with them |
//! | record | the part of the statistics file that one end of a connection has |
//! | recovery | new queue pairs for a connection after a fault, and what has not arrived sent again |
//! | request | what `isend`, `irecv` and `iflush` give to NCCL for `test`; at most 256 at a time |
//! | ring | the memory of the sender that clear-to-sends are written to, with a place for each of 512 |
//! | RoCE | RDMA over Ethernet |
//! | signalled | of a work request: its success is reported as a completion |
//! | sink | registered memory of a device whose bytes nobody looks at: tests of a path are written there |
//! | state word | what each call of the data path looks at first: 0 while all is well with the peer and nobody else is inside |
//! | stripe | the part of a message that one queue pair carries |
//! | token | the random number in a handle, by which a listener knows its peer |
//! | trailing immediate write | a write of zero bytes that carries the immediate, where the fabric may reorder packets |
//! | usual case | one message, one rail, one queue pair, nothing failed or due: it has a path of fewer instructions |
//! | watcher | the thread of a card that reads device events and control connections |
//! | work request (WR) | an operation posted to a queue pair |
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
// The modules are private: `pub` means visible in the whole crate, and the compiler finds what is unused.
#![allow(unreachable_pub)]
#![allow(rustdoc::private_intra_doc_links)]

mod abi;
mod error;
mod host;
pub mod inspect;
mod net;
mod stats;
pub mod testing;
mod version;

use ferrite_proto as proto;
use ferrite_verbs as verbs;
