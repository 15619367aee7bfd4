//! What the network is like: devices, ports, links, addresses.

pub(crate) mod ecmp;
pub(crate) mod gid;
pub(crate) mod header;
pub(crate) mod link;
pub(crate) mod port;
pub(crate) mod port_id;
pub(crate) mod topology;
