//! What the requester's process does at the peer's queue pair, on the shared file alone.
//!
//! `guard` enters the peer's queue pair; `keys` checks its memory keys; `responder` does what the peer's NIC would
//! and takes a `receive`, `datagram` does so for UD; `atomic` changes eight bytes. Where memory can only be reached by its own process, `staged_transfer` cuts the message
//! into `staged_copy`s and the other process's `copy_server` carries them out.

pub(crate) mod atomic;
pub(crate) mod completion;
pub(crate) mod copy_server;
pub(crate) mod datagram;
pub(crate) mod guard;
pub(crate) mod hold;
pub(crate) mod keys;
pub(crate) mod outcome;
mod receive;
pub(crate) mod request;
pub(crate) mod responder;
pub(crate) mod staged_copy;
pub(crate) mod staged_transfer;
