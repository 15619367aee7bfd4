//! The machine: errno, standard error, the clock, environment variables, descriptors. Nothing here knows about RDMA.

pub(crate) mod clock;
pub(crate) mod env;
pub(crate) mod errno;
pub(crate) mod fd_queue;
pub(crate) mod in_use;
pub(crate) mod lock;
pub(crate) mod stderr;
pub(crate) mod sync;
