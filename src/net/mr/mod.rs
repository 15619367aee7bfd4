//! Memory registration: the cache of memory regions of a card, and the handle that NCCL holds.

pub mod cache;
pub mod dma_buf;
pub mod handle;
pub mod table;
