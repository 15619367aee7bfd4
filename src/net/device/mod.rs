//! Network devices as NCCL sees them: cards, their ports, and GPUDirect RDMA.
//!
//! [`gid_table`] and [`gdr`] ← [`card`] ← [`rail`] ← [`spares`] ← [`nic`] ← [`conn_memory`].

pub mod card;
pub mod conn_memory;
pub mod gdr;
pub mod gid_table;
pub mod nic;
pub mod rail;
pub mod spares;
