//! Memory registration.
//!
//! | file | contents |
//! | --- | --- |
//! | [`handle`] | what NCCL holds: memory that is registered on every card of a device |
//! | [`regions`] | the memory regions of one card; ranges of NCCL's within one range share a region |
//! | [`table`] | which range uses which region |
//! | [`dma_buf`] | descriptors of GPU memory |

pub mod dma_buf;
pub mod handle;
pub mod regions;
pub mod table;
