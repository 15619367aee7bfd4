//! The plugin's objects: where the protocol meets the verbs and the machine.
//!
//! | folder | what is in it | uses |
//! |---|---|---|
//! | [`control`] | TCP connections between processes: they carry the set-up, and tell when a peer has died | |
//! | [`peer`] | what is known of a connection's peer | `control` |
//! | [`background`] | the threads that wait for devices and control connections, and those that recover connections | `control`, `peer` |
//! | [`mr`] | registered memory: the cache of memory regions, and NCCL's handles | `background` |
//! | [`operations`] | the operations that NCCL has told of | |
//! | [`explain`] | the report of what an operation waits for that does not go on | `control`, `peer`, `background`, `operations` |
//! | [`device`] | devices as NCCL sees them: cards and ports, their GIDs, GPUDirect RDMA | `peer`, `background`, `mr`, `explain` |
//! | [`qp`] | the queue pairs of a connection, and connecting them | and `device` |
//! | [`recovery`] | new queue pairs for a connection after a fault | and `qp` |
//! | [`data`] | the data path: isend, irecv, iflush, test | and `recovery`, `operations` |
//! | [`setup`] | listen, connect and accept | and `data`, `explain` |
//! | [`network`] | all devices of the process | all of them |
//! | `sim` | tests: both ends of a connection over simulated devices, with faults | `data` |

pub mod background;
pub mod control;
pub mod data;
pub mod device;
pub mod explain;
pub mod mr;
pub mod network;
pub mod operations;
pub mod peer;
pub mod qp;
pub mod recovery;
pub mod setup;
#[cfg(test)]
mod sim;
