//! The control connections between processes: the sockets under [`crate::proto::control`], and the thread that waits for them.
//!
//! | file | what it is |
//! |---|---|
//! | [`driver`] | the one lock around this process's control plane, and its sockets |
//! | `sockets` | what is done under that lock: reading, writing, accepting clients, notifying of peers |
//! | [`socket`], [`port`] | a TCP connection, and the port where this process is called; never blocking |
//! | `peer_observer` | what receives the changes at a peer |
//! | [`stream`] | one RDMA connection's share of a control connection, while it is set up |
//! | [`peer_state`] | what is known of the peer of an established connection: one number for the data path |
//! | [`first_error`] | the first error of this process's connections, which peers are told when others are closed because of it |
//! | [`state_word`], [`sync`] | that number; what its guard is made of |
//! | [`peer_name`] | how a peer is called in log lines and errors |
//! | [`watcher`] | the thread that waits: for [`device_events`], for control connections, for [`periodic`] tasks |
//! | [`notices`] | lines for the log that many connections would write at once |
//! | [`workers`] | threads for what takes long and is rare: recovering connections |
//! | [`cq_owners`], [`port_listeners`], [`weak_registry`] | what receives a device's failure |
//! | [`recovery_events`] | what the recovery of a connection receives from the peer |
//! | [`recovery_progress`] | how a recovery stands that takes long |
//! | [`inquiry_events`] | what receives the peer's questions and answers about what a connection waits for |
//! | [`epoll`], [`fork`] | many descriptors that are waited on at once, and what a forked child keeps of them: nothing |
//!
//! Locks: the driver's, then the reason of a [`peer_state::PeerState`], then its inbox for recovery, or its slot for inquiries. Neither is held while the verbs are called, and the data path
//! takes none. Nothing is called while the first error is locked. The lists of connections that are being set up are locked before the driver; the watcher only tries them.

pub mod cq_owners;
pub mod device_events;
pub mod driver;
pub mod epoll;
pub mod first_error;
pub mod fork;
pub mod inquiry_events;
pub mod notices;
pub mod peer_name;
pub(super) mod peer_observer;
pub mod peer_state;
pub mod periodic;
pub mod port;
pub mod port_listeners;
pub mod recovery_events;
pub mod recovery_progress;
mod signals;
pub mod socket;
mod sockets;
pub mod state_word;
pub mod stream;
pub mod sync;
pub mod watcher;
pub mod weak_registry;
pub mod workers;
