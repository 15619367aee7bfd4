//! Control of a fabric from outside: takes ports down and up, changes their addresses and limits,
//! fails devices, and reports. What it changes is at once true for all processes of the fabric;
//! events reach them shortly afterwards.
//!
//! A controlling process takes no process slot in the fabric. It must not use the devices of the
//! same fabric itself: record locks are per process.

pub(crate) mod network;
pub(crate) mod report;

/// The process that copies GPU memory for another one.
pub mod gpu_helper {
    pub use crate::copy::gpu::helper::Stage;
    pub use crate::copy::gpu::helper::serve;
}

pub use crate::control::network::Error;
pub use crate::control::network::Fate;
pub use crate::control::network::Found;
pub use crate::control::network::InForce;
pub use crate::control::network::clean;
pub use crate::control::network::planned;
pub use crate::control::network::planned_part;
pub use crate::control::network::remains;
pub use crate::control::report::Capacities;
pub use crate::control::report::Commands;
pub use crate::control::report::Cq;
pub use crate::control::report::DeviceName;
pub use crate::control::report::GidKind;
pub use crate::control::report::PortName;
pub use crate::control::report::Work;
pub use network::Network;
pub use report::{Counters, Delayed, Device, Gid, LinkLayer, Path, Port, Process, Qp, Report};
