//! Network devices as NCCL sees them: cards, their ports, and GPUDirect RDMA.
//!
//! [`gid_table`] and [`gdr`] ← [`card`] ← [`rail`] ← [`nic`].

pub mod card;
pub mod gdr;
pub mod gid_table;
pub mod nic;
pub mod rail;
