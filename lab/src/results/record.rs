//! What a run leaves behind: `raw.json`. `docs/raw-json.md` describes it for readers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::cost::report::CaseReport;
use crate::measure::plan::Scope;
use crate::results::changed::Earlier;
use crate::results::machine::Machine;
use crate::results::rows::{Group, Row};
use crate::results::run::Run;
use crate::results::side::Side;
use crate::verbs::libibverbs::Verbs;

/// The name and version of the format.
pub const SCHEMA: &str = "ferrite-run/2";

/// A whole run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`SCHEMA`].
    pub schema: String,
    /// Version of this tool, with the commit it was built from if that is known.
    pub tool: String,
    /// Whether all sessions ran; false if the run was interrupted.
    pub complete: bool,
    /// The command line.
    pub command: Vec<String>,
    /// When it started; seconds since 1970.
    pub started_unix: u64,
    /// How long it took; s.
    pub seconds: f64,
    /// Where it ran.
    pub machine: Machine,
    /// Where rank 1 ran, if that is another host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_machine: Option<Machine>,
    /// The libibverbs.
    pub verbs: Verbs,
    /// The variables that all processes got beside those of `machine`.
    pub settings: BTreeMap<String, String>,
    /// How thorough it was.
    pub scope: Scope,
    /// A, and B unless only one side was measured.
    pub sides: Vec<Side>,
    /// Every pair of processes that measured, in the order they ran.
    pub sessions: Vec<Run>,
    /// One per key.
    pub rows: Vec<Row>,
    /// Rows that are judged together; none with one side.
    pub groups: Vec<Group>,
    /// Against an earlier run, if one was named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub earlier: Option<Earlier>,
    /// What messages cost, on the software device.
    #[serde(default)]
    pub costs: Vec<CaseReport>,
}
