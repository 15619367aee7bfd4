//! The objects of one process, as the application holds them: device, context, protection, parent
//! and thread domain, memory region, completion queue and channel, queue pair, shared receive
//! queue, address handle. They hold state; `engine` acts on them.

pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod mr;
pub(crate) mod qp;
pub(crate) mod send_queue;
pub(crate) mod srq;
