//! The RDMA side of a run.
//!
//! | file | what is in it |
//! |---|---|
//! | [`libibverbs`] | [`Verbs`]: which libibverbs the transports use |
//! | `fabric` | the file of a fabric of the software device |
//! | `control` | the command line of the software device |
//! | [`port_counters`] | the kernel's counters of a device's port |

pub(crate) mod control;
mod fabric;
pub mod libibverbs;
pub mod port_counters;

pub use libibverbs::Verbs;
