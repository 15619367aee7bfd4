//! The objects of one process, as the application holds them: device, context, protection, parent and thread domain, memory region,
//! completion queue and channel, queue pair, shared receive queue, address handle. They hold state; `engine` acts on them.

pub(crate) mod acks;
pub(crate) mod ah;
pub(crate) mod channel;
pub(crate) mod context;
pub(crate) mod cq;
pub(crate) mod cq_request;
pub(crate) mod datagram;
pub(crate) mod device;
pub(crate) mod mr;
pub(crate) mod pd;
pub(crate) mod qp;
mod qp_entry;
mod qp_events;
pub(crate) mod qp_request;
pub(crate) mod send_queue;
pub(crate) mod send_ring;
pub(crate) mod srq;
pub(crate) mod td;
pub(crate) mod transition;
pub(crate) mod wr_list;
