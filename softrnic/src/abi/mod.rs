//! The binary interface: what the application's headers promise, and nothing of ours.

pub(crate) mod export;
pub(crate) mod names;
pub mod qp_ex;
#[cfg(any(feature = "tools", test))]
pub(crate) mod rdma_cm;
pub mod types;
