//! Recovery of a connection after a fault: executes the decisions of [`crate::proto::recovery`]
//! with verbs.
//!
//! After a fault all queue pairs of the connection are replaced, over the rails that both ends can
//! use by then. The receiver lists the messages that have not arrived, and the sender resends them.
//!
//! | file | contents |
//! | --- | --- |
//! | [`conn`] | the recovery of one connection: its events, the state machine, the actions, the log lines |
//! | [`inbox`] | events that are not handled yet |
//! | [`new_qps`] | the queue pairs of an attempt: created, connected, tested |
//! | [`end`] | what the recovery needs of a send or receive communicator |
//! | `devices` | the devices that a connection's queue pairs use; those of its own cards: lost, reopened, with or without its memory |
//! | [`rails`] | which rails of a device are usable at present |
//!
//! NCCL's threads only report faults here. The threads of [`crate::net::background::workers`] do
//! the rest, and exist only while something recovers. Creating, connecting and destroying queue
//! pairs may take milliseconds each, and resolving an address up to a second.

pub mod conn;
mod devices;
pub mod end;
mod inbox;
mod new_qps;
pub mod rails;
