//! What has happened in all rounds of a run.

use std::collections::BTreeMap;
use std::fmt;

use crate::Plan;
use crate::common::verbs::OK;
use crate::participant::{Ending, MODELLED};

#[derive(Default)]
pub(crate) struct Summary {
    /// Rounds by how the victim was to be killed, and how many of them it ended before.
    kills: BTreeMap<String, (u64, u64)>,
    /// What survivors waited for the failure of their request, in microseconds.
    waits: Vec<u64>,
    messages: u64,
}

impl Summary {
    pub(crate) fn add(&mut self, plan: &Plan, is_killed: bool, ending: Option<Ending>) {
        let count = self.kills.entry(plan.name()).or_default();
        count.0 += 1;
        count.1 += u64::from(!is_killed);
        if let Some(ending) = ending.filter(|ending| ending.status != OK) {
            self.waits.push(ending.waited_us);
            self.messages += ending.messages;
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, (rounds, done)) in &self.kills {
            writeln!(f, "{rounds:6} killed {name}; {done} of them were done before that")?;
        }
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        let at = |part: usize| {
            waits.get(waits.len().saturating_sub(1) * part / 100).copied().unwrap_or(0) as f64 / 1e3
        };
        writeln!(
            f,
            "{:6} survivors whose peer was killed, {} messages before",
            waits.len(),
            self.messages
        )?;
        let modelled = MODELLED.as_micros() as f64 / 1e3;
        write!(
            f,
            "failed after {:.1} ms (median), {:.1} ms (p99), {:.1} ms (most); modelled {modelled:.1} ms",
            at(50),
            at(99),
            at(100)
        )
    }
}
