//! The machine around us: settings, device filters, GIDs, sysfs, interfaces. Knows nothing of verbs or protocol.

pub mod config;
pub mod cuda;
pub mod gid;
pub mod hca;
pub mod ib;
pub mod iface;
pub mod random;
pub mod sysfs;
pub mod variables;
