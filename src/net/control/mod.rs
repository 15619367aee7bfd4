//! The control connections between processes: the sockets under [`crate::proto::control`].
//!
//! | file | what it is |
//! |---|---|
//! | [`driver`] | the one lock around this process's control plane, and its sockets |
//! | `sockets` | what is done under that lock: reading, writing, accepting clients, notifying of peers |
//! | [`socket`], [`port`] | a TCP connection, and the port where this process is called; never blocking |
//! | [`stream`] | one RDMA connection's share of a control connection, while it is set up |
//! | [`observers`] | what receives the changes at a peer, and what it says of recoveries and of waits |
//! | [`epoll`], [`fork`] | many descriptors that are waited on at once, and what a forked child keeps of them: nothing |
//!
//! Locks: the driver's, then the reason of a [`PeerState`](crate::net::peer::state::PeerState), then its inbox for recovery, or its slot for
//! inquiries. Neither is held while the verbs are called, and the data path takes none. Nothing is called while the first error is locked. The
//! lists of connections that are being set up are locked before the driver; the watcher only tries them.

pub mod driver;
pub mod epoll;
pub mod fork;
pub mod observers;
pub mod port;
pub mod socket;
mod sockets;
pub mod stream;
