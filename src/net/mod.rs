//! The plugin's objects, which connect the protocol with the verbs and the machine.
//!
//! | folder | contents | uses |
//! | --- | --- | --- |
//! | [`control`] | TCP connections between processes, for set-up and for detecting a dead peer | |
//! | [`peer`] | the state of a connection's peer | `control` |
//! | [`background`] | threads that wait for devices and control connections, and threads that recover connections | `control`, `peer` |
//! | [`mr`] | registered memory: the memory regions of a card, and NCCL's handles | `background` |
//! | [`operations`] | the operations that NCCL has reported | |
//! | [`explain`] | hang reports: what a stalled operation waits for | `control`, `peer`, `background`, `operations` |
//! | [`device`] | devices as NCCL sees them: cards and ports, their GIDs, GPUDirect RDMA | `peer`, `background`, `mr`, `explain` |
//! | [`qp`] | the queue pairs of a connection, and connecting them | and `device` |
//! | [`recovery`] | new queue pairs for a connection after a fault | and `qp` |
//! | [`data`] | the data path: isend, irecv, iflush, test | and `recovery`, `operations` |
//! | [`setup`] | listen, connect and accept | and `data`, `explain` |
//! | [`network`] | all devices of the process | all of them |
//! | `sim` | tests: both ends of a connection over simulated devices, with faults and recovery | `data` |

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
#[cfg(any(test, feature = "simulator"))]
pub mod sim;
