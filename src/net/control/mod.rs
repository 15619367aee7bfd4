//! The control connections between processes: the sockets under [`crate::proto::control`].
//!
//! | file | contents |
//! | --- | --- |
//! | [`driver`] | the lock around this process's control plane, and its sockets |
//! | `sockets` | the work under that lock: reading, writing, accepting clients, notifying observers |
//! | [`socket`], [`port`] | a TCP connection, and the port where this process accepts clients; both non-blocking |
//! | [`stream`] | one RDMA connection's share of a control connection, during set-up |
//! | [`observers`] | receivers of changes at a peer, and of its frames about recoveries and waits |
//! | [`epoll`], [`fork`] | waiting for many descriptors; keeping descriptors from forked children |
//!
//! Lock order: the driver's, then the reason of a
//! [`PeerState`](crate::net::peer::state::PeerState), then its slot for recovery or for
//! inquiries. None is held during verbs calls, and the data path takes none. Nothing is called
//! while the first error is locked. The lists of connections being set up are locked before the
//! driver; the watcher only tries them.

pub mod driver;
pub mod epoll;
pub mod fork;
pub mod observers;
pub mod port;
pub mod socket;
mod sockets;
pub mod stream;
