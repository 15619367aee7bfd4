//! What the two ends have around them.

use super::control::Control;
use super::fabric::{Completion, End, Fabric, Status};
use super::plan::Plan;
use crate::cts::CtsWords;
use crate::random::Random;

/// The fabric, the control connection and the ring in the sender's memory.
#[derive(Debug)]
pub(super) struct Outside {
    pub(super) plan: Plan,
    pub(super) fabric: Fabric,
    pub(super) control: Control,
    pub(super) random: Random,
    /// As many halves as a clear-to-send has, for each slot.
    pub(super) ring: Vec<CtsWords>,
}

/// The completions of one poll of a completion queue, as `net::qp` takes them: those that have succeeded, in order; and the
/// first one that has failed, which ends the connection.
pub(super) struct Polled {
    pub(super) succeeded: Vec<Completion>,
    pub(super) failed: Option<Status>,
}

impl Outside {
    /// Polls the completion queue of a rail.
    pub(super) fn poll(&mut self, end: End, rail: usize) -> Polled {
        let limit = 1 + self.random.index(16);
        let completions = self.fabric.poll(end, rail, limit);
        let has_succeeded = |completion: &Completion| completion.status == Status::Success;
        let failed = completions.iter().find(|completion| !has_succeeded(completion)).map(|failed| failed.status);
        Polled { succeeded: completions.into_iter().filter(has_succeeded).collect(), failed }
    }
}
