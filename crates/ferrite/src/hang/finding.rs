//! What processes wait for, as a text.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::hang::ask::{self, Silence};
use crate::hang::outside::State;
use crate::hang::stats_file::{self, Connection};
use lab::error::Result;
use lab::system::output::plain;

/// A wait of so long is a hang where a process does not tell its own time. The plugin's default, too.
const THRESHOLD: Duration = Duration::from_secs(10);
/// What has waited for less is under way: nothing is said of it.
const UNDER_WAY_S: f64 = 1.0;

/// What is known of one process.
#[derive(Debug)]
pub enum Finding {
    /// What it says itself: its report.
    Answer(Value),
    /// It has not answered: its state, and what it has left for others.
    Outside(State, Traces),
}

/// What is seen of a process without its answer.
#[derive(Debug)]
pub struct Traces {
    /// Why there is no answer.
    silence: Silence,
    /// Its connections as its statistics file has them. `None`: it has no such file.
    connections: Option<Vec<Connection>>,
}

impl Traces {
    /// Whether there is a statistics file.
    pub fn has_file(&self) -> bool {
        self.connections.is_some()
    }
}

impl Finding {
    /// Of process `pid`, which has `limit` for its answer.
    pub fn of_process(pid: u32, limit: Duration) -> Self {
        let silence = match ask::ask(pid, limit) {
            Ok(answer) => return Self::Answer(answer),
            Err(silence) => silence,
        };
        let state = State::of(pid);
        let path = if state == State::Ended { stats_file::of_dead(pid) } else { stats_file::of_living(pid) };
        let connections = path.and_then(|path| stats_file::connections(&path).ok());
        Self::Outside(state, Traces { silence, connections })
    }

    /// Of the process that has written the statistics file at `path`, and may be dead.
    ///
    /// # Errors
    /// It is no such file.
    pub fn of_file(path: &Path) -> Result<Self> {
        Ok(Self::of_connections(stats_file::connections(path)?))
    }

    /// Of a process that has left these connections.
    pub(crate) fn of_connections(connections: Vec<Connection>) -> Self {
        Self::Outside(State::Ended, Traces { silence: Silence::NoSocket, connections: Some(connections) })
    }

    /// Whether the process lives and uses Ferrite, as far as can be seen.
    pub fn is_of_ferrite(&self) -> bool {
        match self {
            Self::Answer(_) => true,
            Self::Outside(State::Ended, _) => false,
            Self::Outside(_, traces) => traces.silence == Silence::NoAnswer || traces.connections.is_some(),
        }
    }

    /// Whether something has waited for as long as `threshold`, by default for as long as the process says itself, or the process does not go on.
    pub fn hangs(&self, threshold: Option<Duration>) -> bool {
        match self {
            Self::Answer(report) => {
                let own = report["threshold_s"].as_u64().filter(|own| *own > 0).map(Duration::from_secs);
                let threshold = threshold.or(own).unwrap_or(THRESHOLD).as_secs_f64();
                let some = |name: &str, counts: fn(&Value) -> bool| {
                    let is_long = |wait: &Value| wait["since_s"].as_f64().is_some_and(|since| since >= threshold);
                    report[name].as_array().is_some_and(|all| all.iter().any(|wait| counts(wait) && is_long(wait)))
                };
                // A peer that goes on with other messages is slow here. A listener that NCCL does not ask may have been left.
                some("waits", |wait| wait["verdict"] != "Moving") || some("set_ups", |set_up| set_up["called"] == true)
            }
            Self::Outside(state, Traces { silence, connections }) => {
                let threshold = threshold.unwrap_or(THRESHOLD);
                let some = |hangs: &dyn Fn(&Connection) -> bool| connections.iter().flatten().any(hangs);
                match (state, silence) {
                    (State::Stopped, _) => true,
                    // As it was when it ended.
                    (State::Ended, _) => some(&Connection::is_waiting),
                    (State::InKernel(_), Silence::NoAnswer) => true,
                    // It has had all the time that it needs for an answer.
                    (State::Running, Silence::NoAnswer) => some(&Connection::is_waiting),
                    (_, Silence::NoSocket) => some(&|connection| connection.stall >= threshold),
                }
            }
        }
    }

    /// For people: one line, and a further one for each connection with something outstanding of a process that has not answered.
    pub fn text(&self) -> String {
        match self {
            // Another user's process has written it.
            Self::Answer(report) => match report["waits"][0]["since_s"].as_f64() {
                Some(since) if since < UNDER_WAY_S && !report["set_ups"][0]["called"].as_bool().unwrap_or(false) => {
                    "messages are under way, and none has waited for a second".into()
                }
                _ => plain(report["text"].as_str().unwrap_or_default()),
            },
            Self::Outside(state, traces) => {
                let waiting = traces.connections.iter().flatten().filter(|connection| connection.is_waiting());
                let lines = waiting.map(|Connection { device, sends, peer, begun, done, wants, operation, .. }| {
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
        let waits = waits.filter(|wait| wait["since_s"].as_f64().is_none_or(|since| since >= UNDER_WAY_S));
        let texts = waits.filter_map(|wait| wait["cause"]["text"].as_str());
        // Once for each process: its connections wait for the same, as a rule.
        if let Some(text) = texts.min_by_key(|text| text.len()) {
            *causes.entry(plain(text)).or_default() += 1;
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

    fn outside(state: State, silence: Silence, connections: Option<Vec<Connection>>) -> Finding {
        Finding::Outside(state, Traces { silence, connections })
    }

    fn connection(stall_s: u64) -> Connection {
        Connection {
            device: "mlx5_0".into(),
            sends: true,
            peer: "rank 1".into(),
            begun: 9,
            done: 7,
            wants: false,
            stall: Duration::from_secs(stall_s),
            operation: String::new(),
        }
    }

    #[test]
    fn the_cause_that_most_processes_name_comes_first() {
        let report = |cause: &str| {
            let wait = serde_json::json!({"cause": {"text": cause}, "since_s": 12.0});
            Finding::Answer(serde_json::json!({"text": "waits", "waits": [wait]}))
        };
        let stopped = outside(State::Stopped, Silence::NoAnswer, None);
        let findings = BTreeMap::from([(1, report("a")), (2, report("b")), (3, report("b")), (4, stopped)]);
        let text = summary(&findings);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines[..2], ["named by 2 process(es): b", "named by 1 process(es): a"]);
        assert!(lines[5].starts_with("process 4: does not answer: it is stopped"), "{text}");
        assert!(findings.values().all(|finding| finding.hangs(None)));
    }

    #[test]
    fn a_wait_is_a_hang_once_it_is_as_long_as_the_process_says_or_the_user() {
        let report = |since: f64, verdict: &str| {
            let wait = serde_json::json!({"since_s": since, "verdict": verdict});
            Finding::Answer(serde_json::json!({"text": "it", "threshold_s": 5, "waits": [wait], "set_ups": []}))
        };
        let hangs =
            |since, verdict, threshold: Option<u64>| report(since, verdict).hangs(threshold.map(Duration::from_secs));
        assert!(!hangs(0.0, "Unknown", None), "a busy job");
        assert!(!hangs(4.9, "PeerSilent", None) && hangs(5.0, "PeerSilent", None));
        assert!(hangs(4.9, "PeerSilent", Some(1)) && !hangs(5.0, "PeerSilent", Some(60)));
        assert!(!hangs(50.0, "Moving", None), "its peer goes on with other messages");
        assert!(report(0.0, "Unknown").text().contains("none has waited for a second"));
        assert_eq!(report(2.0, "Unknown").text(), "it", "who asks wants to know it before it is a hang");
        let off = Finding::Answer(serde_json::json!({"threshold_s": 0, "waits": [{"since_s": 9.0}]}));
        assert!(!off.hangs(None), "a process that reports nothing by itself has the default");
    }

    #[test]
    fn a_connection_that_is_not_set_up_waits_if_nccl_asks_for_it() {
        let report = |called: bool, since: f64| {
            let set_up = serde_json::json!({"called": called, "since_s": since});
            Finding::Answer(serde_json::json!({"text": "", "waits": [], "set_ups": [set_up]}))
        };
        assert!(report(true, 10.0).hangs(None) && !report(false, 10.0).hangs(None) && !report(true, 3.0).hangs(None));
        assert!(!Finding::Answer(serde_json::json!({"text": "", "waits": []})).hangs(None), "an older one");
    }

    #[test]
    fn of_a_process_that_does_not_answer_its_state_and_its_file_tell_whether_it_hangs() {
        let busy = || Some(vec![connection(0)]);
        for (state, silence, connections, hangs) in [
            (State::Running, Silence::NoSocket, busy(), false),
            (State::Running, Silence::NoSocket, Some(vec![connection(10)]), true),
            (State::Running, Silence::NoAnswer, busy(), true),
            (State::Running, Silence::NoAnswer, Some(Vec::new()), false),
            (State::InKernel(String::new()), Silence::NoSocket, busy(), false),
            (State::InKernel(String::new()), Silence::NoAnswer, None, true),
            (State::Stopped, Silence::NoAnswer, busy(), true),
            (State::Ended, Silence::NoSocket, busy(), true),
            (State::Ended, Silence::NoSocket, Some(Vec::new()), false),
        ] {
            let finding = outside(state, silence, connections);
            assert_eq!(finding.hangs(None), hangs, "{finding:?}");
        }
        assert!(!outside(State::Running, Silence::NoSocket, None).is_of_ferrite(), "any other process");
        assert!(!outside(State::Ended, Silence::NoAnswer, busy()).is_of_ferrite(), "it has ended meanwhile");
        assert!(outside(State::Stopped, Silence::NoAnswer, None).is_of_ferrite());
    }

    #[test]
    fn what_a_process_says_changes_no_terminal() {
        let wait = serde_json::json!({"cause": {"text": "a\u{1b}[2J"}, "since_s": 12.0});
        let report = serde_json::json!({"text": "b\u{9b}2J\n\u{7}", "waits": [wait]});
        let text = summary(&BTreeMap::from([(1, Finding::Answer(report))]));
        assert!(text.chars().all(|c| c == '\n' || !c.is_control()) && text.lines().count() == 2, "{text:?}");
    }
}
