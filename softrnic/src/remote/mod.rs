//! What the requester's process does at the peer's queue pair, on the shared file alone.
//!
//! `responder` enters the peer's queue pair, checks its memory keys and does what the peer's NIC
//! would. Where memory can only be reached by its own process, `staged_transfer` cuts the message
//! into copies, which the other process carries out.

pub(crate) mod responder;
pub(crate) mod staged_transfer;
