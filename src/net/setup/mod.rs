//! Connection set-up: `listen`, `connect` and `accept`.
//!
//! | file | contents |
//! | --- | --- |
//! | [`listen`] | the listener, and `accept`, which advances its candidates |
//! | [`connect`], [`connectors`] | `connect`: one connection, and those that are not finished |
//! | `dials`, `waiting` | which failures are waited out: of TCP connections; of ports and devices |
//! | `rails` | the rails on which a connection begins |
//! | `identity` | who the two ends are: for the peer, for messages, in the statistics |
//! | `summary` | how long the steps took, and one log line for many connections |
//! | [`nccl_comm`] | NCCL's communicator that a connection is for |

pub mod connect;
pub mod connectors;
mod dials;
mod identity;
pub mod listen;
#[cfg(test)]
mod listen_tests;
pub mod nccl_comm;
mod rails;
mod summary;
mod waiting;
