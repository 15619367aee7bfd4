//! What NCCL calls a device: ports of a card, their addresses, and GPUDirect.

pub mod address;
pub mod card;
pub mod gdr;
pub mod nic;
pub mod rail;
