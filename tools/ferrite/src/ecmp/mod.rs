//! A model of a fabric with ECMP: how fast the connections of a job are when switches choose their paths by a hash.
//!
//! ```text
//! job ──► run ──► connection ──► the plugin's own SendFlow and RecvFlow
//!          │  └─► fair: max-min fair rates of all lanes
//!          └────► fabric ──► hash: which path a packet takes
//! ```
//!
//! What a message becomes is decided by the plugin's own code: [`nccl_net::inspect::proto`]. The fabric is a fluid: a lane that has
//! something to send has a rate, in such a way that no link carries more than its capacity and the rates are max-min fair. There are
//! no packets, no queues in switches, and no congestion control that takes time.
//!
//! | file | what |
//! |---|---|
//! | `hash` | the header fields of a packet that switches hash, and the hash |
//! | `fabric` | NICs, switches and links; the path of a packet |
//! | `fair` | max-min fair rates |
//! | `job` | which NIC sends to which, and which messages wait for others |
//! | `policy` | what a transport does with its queue pairs |
//! | `connection` | one connection: both ends, and what is on its lanes |
//! | `run` | time |
//! | `scenario` | a fabric, a job and what is wrong, for several policies and seeds |
//! | `report` | the results as text and as JSON |

mod connection;
mod fabric;
mod fair;
mod hash;
pub(crate) mod job;
pub(crate) mod policy;
pub(crate) mod report;
mod run;
pub(crate) mod scenario;
