//! The objects of one process, as the application holds them: device, context, protection domain, memory region,
//! completion queue and channel, queue pair. They hold state; `engine` acts on them.

pub(crate) mod channel;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod device;
pub(crate) mod mr;
pub(crate) mod pd;
pub(crate) mod qp;
pub(crate) mod send_queue;
pub(crate) mod send_ring;
pub(crate) mod transition;
