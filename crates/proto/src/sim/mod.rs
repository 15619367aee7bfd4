//! Two ends that recover from faults, over a simulated fabric, driven by a seed: see [`recovery`].
//! The data path as it ships has a simulator of its own, in the plugin.
//!
//! Every test runs many seeds: `FERRITE_SIM_SEEDS=1000000` sets how many, `FERRITE_SIM_SEED=42`
//! runs just that one; both together run so many from that one on, so that several processes can
//! share the work.

mod fabric;
mod plan;
mod recovery;
pub(super) mod visits;

pub(super) use plan::{endpoint, hello, reply};
pub(super) use recovery::check;
