//! The machine: settings, device filters, GID selection, sysfs, network interfaces, the CUDA
//! driver. It uses neither the verbs nor the protocol.

pub mod conf_file;
pub mod config;
pub mod cuda;
pub mod gid;
pub mod hca;
pub mod ib;
pub mod iface;
pub mod launcher;
pub mod name_list;
pub mod random;
mod reader;
pub mod sysfs;
pub mod variables;
