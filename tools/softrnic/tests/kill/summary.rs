//! What a soak has seen.

use std::collections::BTreeMap;
use std::fmt;

use crate::Fate;
use crate::common::verbs::OK;
use crate::participant::{Ending, MODELLED};

#[derive(Default)]
pub(crate) struct Summary {
    /// Rounds by how the victim was to die, and how often it lived to its end instead.
    deaths: BTreeMap<String, (u64, u64)>,
    /// What survivors waited for the failure of their request, in microseconds.
    waits: Vec<u64>,
    messages: u64,
}

impl Summary {
    pub(crate) fn add(&mut self, fate: &Fate, is_killed: bool, told: Option<Ending>) {
        let count = self.deaths.entry(fate.name()).or_default();
        count.0 += 1;
        count.1 += u64::from(!is_killed);
        if let Some(ending) = told.filter(|ending| ending.status != OK) {
            self.waits.push(ending.waited_us);
            self.messages += ending.messages;
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, (rounds, escaped)) in &self.deaths {
            writeln!(f, "{rounds:6} died {name}; {escaped} of them were done before that")?;
        }
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        let at = |part: usize| waits.get(waits.len().saturating_sub(1) * part / 100).copied().unwrap_or(0) as f64 / 1e3;
        writeln!(f, "{:6} survivors with a peer to lose, {} messages before", waits.len(), self.messages)?;
        let modelled = MODELLED.as_micros() as f64 / 1e3;
        write!(
            f,
            "told after {:.1} ms (median), {:.1} ms (p99), {:.1} ms (most); modelled {modelled:.1} ms",
            at(50),
            at(99),
            at(100)
        )
    }
}
