//! What a worker process reports to its parent.

use serde::{Deserialize, Serialize};

use crate::measure::byte_check::Check;
use crate::measure::sample::Sample;
use crate::results::loaded::LoadedTransport;
use crate::verbs::port_counters::PortCounters;

/// What a worker reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(super) enum Report {
    /// It is ready.
    Loaded(Box<LoadedTransport>),
    /// One measurement.
    Sample(Sample),
    /// The checks of one process.
    Checks {
        /// One per kind and size.
        checks: Vec<Check>,
    },
    /// What the device's own counters say passed through it.
    PortCounters(PortCounters),
}
