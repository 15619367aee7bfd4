//! A model of a fabric with ECMP: how fast the connections of a job are when switches choose their paths by a hash.
//!
//! ```text
//! job ──► run ──► connection ──► the plugin's own SendFlow and RecvFlow
//!          │  └─► fair: max-min fair rates of all lanes; or queues ──► rate_control
//!          └────► fabric ──► hash: which path a packet takes
//! ```
//!
//! What a message becomes is decided by the plugin's own code: [`nccl_net::inspect::proto`]. The fabric is a fluid: a lane that has
//! something to send has a rate, in such a way that no link carries more than its capacity and the rates are max-min fair. Or, if asked
//! for, queues fill in switches, and rates follow them. There are no packets.
//!
//! | file | what |
//! |---|---|
//! | `hash` | the header fields of a packet that switches hash, and the hash |
//! | `fabric` | NICs, switches and links; the path of a packet |
//! | `fair` | max-min fair rates |
//! | `queues`, `rate_control` | instead of them: queues in switches, links that are stopped; DCQCN |
//! | `job` | which NIC sends to which, and which messages wait for others |
//! | `policy` | what a transport does with its queue pairs |
//! | `connection` | one connection: both ends, and what is on its lanes |
//! | `run` | time |
//! | [`device_paths`] | the paths of the software device as the model sees them |
//! | `scenario` | a fabric, a job and what is wrong, for several policies and seeds |
//! | `report`, `plot` | the results as text; as bars |
//! | `results` | the same as JSON, and those of several runs from it |

mod connection;
pub mod device_paths;
mod fabric;
mod fair;
mod hash;
pub(crate) mod job;
pub(crate) mod plot;
pub(crate) mod policy;
mod queues;
pub(crate) mod rate_control;
pub(crate) mod report;
pub(crate) mod results;
mod run;
pub(crate) mod scenario;
