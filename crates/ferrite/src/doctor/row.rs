//! A row of the doctor's table.

use crate::doctor::finding::Finding;
use crate::doctor::machine::Machine;

/// What is looked at, why, and what to do if it is not as it should be.
pub(crate) struct Row {
    /// Its name, for `--only`.
    pub(crate) name: &'static str,
    /// What is looked at, and when it is no longer ok.
    pub(crate) what: &'static str,
    /// What goes wrong otherwise.
    pub(crate) why: &'static str,
    /// What to do, where a finding does not say better.
    pub(crate) cure: &'static str,
    /// The facts, with their verdicts. At least one.
    pub(crate) look: fn(&Machine) -> Vec<Finding>,
}
