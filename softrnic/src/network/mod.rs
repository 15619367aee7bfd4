//! What the network is like: devices, ports, links, addresses.

pub(crate) mod header;
pub(crate) mod topology;
