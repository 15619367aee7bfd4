//! One pair of processes that measured.

use serde::{Deserialize, Serialize};

use crate::measure::sample::Sample;
use crate::verbs::port_counters::PortCounters;

/// One pair of processes that measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// `A`, `B`, or `A2` for the second A of a repetition.
    pub side: String,
    /// From 0.
    pub repetition: usize,
    /// How long it ran; s.
    pub seconds: f64,
    /// The measurements.
    pub samples: Vec<Sample>,
    /// What the kernel's counters of the devices said, where there are any.
    pub traffic: Vec<PortCounters>,
}
