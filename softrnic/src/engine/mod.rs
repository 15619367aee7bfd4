//! The data path: the process that posts a request also executes it, on both sides.
//!
//! `requester` works off a send queue: it gathers and checks the local side, decides when a request
//! reaches the peer, and hands it to `remote`. What has to wait is left in the queue with a time,
//! for the next poll or the service thread. `receive` has datagrams and polls, `modify` the calls
//! that change or end a queue pair. A `FaultHook` around the engine may decide that a transmission
//! or a call goes wrong.

pub(crate) mod modify;
pub(crate) mod receive;
pub(crate) mod requester;
