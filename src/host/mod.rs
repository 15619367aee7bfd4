//! The machine. It uses neither the verbs nor the protocol.
//!
//! | file | contents |
//! | --- | --- |
//! | [`variables`], [`config`], `reader` | the table of settings; the settings, parsed; how one is read and checked |
//! | [`conf_file`] | NCCL's configuration files |
//! | [`hca`], [`iface`], [`name_list`] | `NCCL_IB_HCA`; the interface for control connections; their lists of names |
//! | [`gid`], [`ib`] | which entry of a GID table is used; InfiniBand addresses |
//! | [`sysfs`], [`cuda`], [`launcher`], [`random`] | /sys and /proc; the CUDA driver; the launcher's rank; random bytes |

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
