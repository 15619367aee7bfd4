//! Recovery of a connection after a fault: what [`crate::proto::recovery`] decides, done with verbs.
//!
//! After a fault all queue pairs of the connection are replaced, over the rails that both ends can use then. The receiver says which
//! messages have not arrived, and the sender sends those again.
//!
//! | file | what it is |
//! |---|---|
//! | [`conn`] | one connection's recovery: what has happened, the state machine, and who does what it asks for |
//! | [`inbox`] | what has happened to it and is not handled yet |
//! | [`new_qps`] | the queue pairs of an attempt: created, connected, tested |
//! | `progress` | how it goes on with them, up to their use |
//! | `events` | its events: of the peer, of ports and of failed queue pairs |
//! | `moves`, `changes` | other lanes, and other paths for slow ones; one connection at a time changes its lanes |
//! | `log_lines` | what the log says of connections that recover |
//! | [`end`] | what the recovery needs of a send or receive communicator |
//! | `in_use` | the devices that the queue pairs of a connection are on |
//! | `devices` | the devices of a connection's own cards: lost, open again, with the connection's memory or not |
//! | [`rails`] | which rails of a device can be used at present |
//! | `spare` | the port of another card that a connection uses while none of its own can be used |
//!
//! NCCL's threads only report faults here. The rest is done by [`crate::net::background::workers`], whose threads exist only while there
//! is something to recover: creating, connecting and destroying queue pairs may take milliseconds each, and resolving an
//! address up to a second.

mod changes;
pub mod conn;
mod devices;
pub mod end;
mod events;
mod in_use;
mod inbox;
mod log_lines;
mod moves;
mod new_qps;
mod progress;
pub mod rails;
mod spare;
