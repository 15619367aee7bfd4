//! The data path: the process that posts a request also executes it, on both sides.
//!
//! `pump` works off a send queue; `wire` says when a request reaches the peer; `requester` gathers and checks the local
//! side and hands the request to `remote`; `datagram` does so for UD. What has to wait is left in the queue with a time, for the next `poll` or the
//! `service` thread. `teardown`, `modify` and `receive` are the calls that change a queue pair. A `fault_hook` around the
//! engine may decide that a transmission or a call goes wrong.

mod complete;
pub(crate) mod datagram;
pub(crate) mod delayed_packet;
pub(crate) mod fault_hook;
pub(crate) mod flush;
pub(crate) mod modify;
pub(crate) mod poll;
pub(crate) mod pump;
pub(crate) mod receive;
pub(crate) mod register;
mod requester;
pub(crate) mod service;
pub(crate) mod state;
pub(crate) mod teardown;
mod wait;
pub(crate) mod wire;
