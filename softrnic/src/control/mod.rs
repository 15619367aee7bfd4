//! Control of a fabric from outside: takes ports down and up, changes their addresses and limits, fails devices, and
//! reports. What it changes is at once true for all processes of the fabric; events reach them shortly afterwards.
//!
//! A controlling process takes no process slot in the fabric. It must not use the devices of the same fabric itself: record
//! locks are per process.

pub(crate) mod addresses;
mod clean;
mod error;
mod failure;
mod inject;
pub(crate) mod names;
pub(crate) mod network;
mod parse;
mod planned;
mod report;
mod work;

/// The process that copies GPU memory for another one.
pub mod gpu_helper {
    pub use crate::copy::gpu::server::{Stage, serve};
}

pub use clean::{Fate, Found, clean, remains};
pub use error::Error;
pub use inject::InForce;
pub use names::{DeviceName, GidKind, PortName};
pub use network::Network;
pub use planned::planned;
pub use report::{Counters, Delayed, Device, Gid, LinkLayer, Path, Port, Process, Qp, Report};
pub use work::{Capacities, Commands, Cq, Work};
