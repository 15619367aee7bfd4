//! What processes wait for, as a text.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::error::Result;
use crate::hang::ask;
use crate::hang::outside::State;
use crate::hang::stats_file::{self, Connection};

/// What is known of one process.
#[derive(Debug)]
pub enum Finding {
    /// What it says itself: its report.
    Answer(Value),
    /// It has not answered: its state, and its connections as far as its statistics file has them.
    Outside(State, Vec<Connection>),
}

impl Finding {
    /// Of process `pid`, which has `limit` for its answer.
    pub fn of_process(pid: u32, limit: Duration) -> Self {
        if let Some(answer) = ask::ask(pid, limit) {
            return Self::Answer(answer);
        }
        let file = stats_file::of_process(pid).and_then(|path| stats_file::connections(&path).ok());
        Self::Outside(State::of(pid), file.unwrap_or_default())
    }

    /// Of the process that has written the statistics file at `path`, and may be dead.
    ///
    /// # Errors
    /// It is no such file.
    pub fn of_file(path: &Path) -> Result<Self> {
        Ok(Self::Outside(State::Ended, stats_file::connections(path)?))
    }

    /// Whether something waits, or the process cannot go on.
    pub fn is_waiting(&self) -> bool {
        match self {
            Self::Answer(report) => {
                let some = |name: &str, waits: fn(&Value) -> bool| {
                    report[name].as_array().is_some_and(|all| all.iter().any(waits))
                };
                // A listener that NCCL does not ask may have been left.
                some("waits", |_| true) || some("set_ups", |set_up| set_up["called"] == true)
            }
            Self::Outside(State::Running, connections) => connections.iter().any(Connection::is_waiting),
            Self::Outside(..) => true,
        }
    }

    /// For people: one line, and a further one for each connection with something outstanding of a process that has not answered.
    pub fn text(&self) -> String {
        match self {
            Self::Answer(report) => report["text"].as_str().unwrap_or_default().to_owned(),
            Self::Outside(state, connections) => {
                let waiting = connections.iter().filter(|connection| connection.is_waiting());
                let lines = waiting.map(|Connection { device, sends, peer, begun, done, wants, operation }| {
                    let what = if *sends { "sends to" } else { "receives from" };
                    let wants = if *wants { ", one more waits to be asked for" } else { "" };
                    let within = if operation.is_empty() { String::new() } else { format!(" in {operation}") };
                    format!("\n  {device}: {what} {peer}{within}: {begun} messages begun, {done} done{wants}")
                });
                let lines: String = lines.collect();
                format!("does not answer: {}{lines}", state.text())
            }
        }
    }
}

/// What all of `findings`, by process id, come to: first what most of them name as the cause.
pub fn summary(findings: &BTreeMap<u32, Finding>) -> String {
    let mut causes: BTreeMap<String, usize> = BTreeMap::new();
    for finding in findings.values() {
        let Finding::Answer(report) = finding else { continue };
        let waits = report["waits"].as_array().into_iter().flatten();
        let texts = waits.filter_map(|wait| wait["cause"]["text"].as_str());
        // Once for each process: its connections wait for the same, as a rule.
        if let Some(text) = texts.min_by_key(|text| text.len()) {
            *causes.entry(text.to_owned()).or_default() += 1;
        }
    }
    let mut causes: Vec<_> = causes.into_iter().collect();
    causes.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let causes = causes.iter().map(|(text, count)| format!("named by {count} process(es): {text}\n"));
    let processes = findings.iter().map(|(pid, finding)| format!("process {pid}: {}\n", finding.text()));
    causes.chain(processes).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cause_that_most_processes_name_comes_first() {
        let report = |cause: &str| {
            let wait = serde_json::json!({"cause": {"text": cause}});
            Finding::Answer(serde_json::json!({"text": "waits", "waits": [wait]}))
        };
        let stopped = Finding::Outside(State::Stopped, Vec::new());
        let findings = BTreeMap::from([(1, report("a")), (2, report("b")), (3, report("b")), (4, stopped)]);
        let text = summary(&findings);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..2], ["named by 2 process(es): b", "named by 1 process(es): a"]);
        assert!(lines[5].starts_with("process 4: does not answer: it is stopped"), "{text}");
        assert!(findings.values().all(Finding::is_waiting));
    }

    #[test]
    fn a_connection_that_is_not_set_up_waits_if_nccl_asks_for_it() {
        let report = |called: bool| {
            Finding::Answer(serde_json::json!({"text": "", "waits": [], "set_ups": [{"called": called}]}))
        };
        assert!(report(true).is_waiting() && !report(false).is_waiting());
        assert!(!Finding::Answer(serde_json::json!({"text": "", "waits": []})).is_waiting(), "an older one");
    }
}
