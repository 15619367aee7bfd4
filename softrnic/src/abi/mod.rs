//! The binary interface: what the application's headers promise, and nothing of ours.

pub(crate) mod consts;
pub(crate) mod cq_ex;
pub(crate) mod device_attr;
pub(crate) mod domains;
pub(crate) mod export;
pub(crate) mod init_attr_ex;
pub(crate) mod names;
pub(crate) mod qp_ex;
#[cfg(any(feature = "tools", test))]
pub(crate) mod rdma_cm;
pub(crate) mod srq;
pub(crate) mod types;
