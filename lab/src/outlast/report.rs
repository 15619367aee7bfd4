//! Outcomes as text and as a Markdown table.

use std::fmt::Write;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::outlast::scenario::SCENARIOS;

/// The lines of one run.
pub(crate) fn text(outcome: &Outcome) -> String {
    let Outcome { received, planned: (messages, bytes), ends: [sender, receiver], .. } = outcome;
    let mut text = format!(
        "{} {}: {} on {} and {}, {messages} messages of {bytes} B, seed {}\n",
        outcome.scenario,
        outcome.repetition,
        outcome.side,
        outcome.devices[0],
        outcome.devices[1],
        outcome.seed
    );
    for step in &outcome.script {
        text += &format!("  {step}\n");
    }
    text += &format!("  sender {}; receiver {}\n", end_text(sender), end_text(receiver));
    text += &format!(
        "  {} of {messages} messages, longest gap {:.1} ms at {:.0} ms; {} wrong bytes\n",
        received.messages,
        received.longest_gap_ms,
        received.gap_at_ms,
        received.wrong_bytes()
    );
    for note in &received.notes {
        text += &format!("    {note}\n");
    }
    let known = |value: Option<u64>| value.map_or_else(|| "n/a".into(), |value| value.to_string());
    text += &format!(
        "  payload {} B, sent and acknowledged {} B, resent {} B, transmissions lost {}; by the log {} failures, {} recoveries\n",
        outcome.payload_bytes,
        known(outcome.sent_bytes),
        known(outcome.resent_bytes),
        known(outcome.lost_transmissions),
        known(outcome.failures),
        known(outcome.recoveries)
    );
    text += &format!("  by ferrite {}\n", outcome.tool);
    text
}

fn end_text(EndAt { end, at_ms }: &EndAt) -> String {
    match end {
        End::Finished => format!("finished after {at_ms} ms"),
        End::Error { call, code, text } => {
            let text = if text.is_empty() { String::new() } else { format!(" ({text})") };
            format!("got error {code} from {call} after {at_ms} ms{text}")
        }
        End::Hang { text } => format!("hung until {at_ms} ms: {text}"),
        End::Killed => format!("was killed after {at_ms} ms"),
        End::Died { text } => format!("died after {at_ms} ms ({text})"),
    }
}

/// A run of a file of outcomes, one JSON object a line.
///
/// # Errors
/// [`Error::Unreadable`] with the line's number.
pub(crate) fn read_lines(name: &str, text: &str) -> Result<Vec<Outcome>> {
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let read = |(at, line): (usize, &str)| {
        serde_json::from_str(line)
            .map_err(|e| Error::Unreadable(format!("{name}, line {}: {e}", at + 1)))
    };
    lines.map(read).collect()
}

/// A row per scenario, a column per side, in the order in which they come.
pub(crate) fn table(outcomes: &[Outcome]) -> String {
    let mut sides: Vec<&str> = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for outcome in outcomes {
        for (all, one) in [(&mut sides, &outcome.side), (&mut names, &outcome.scenario)] {
            if !all.contains(&one.as_str()) {
                all.push(one);
            }
        }
    }
    let place = |name: &&str| {
        SCENARIOS.iter().position(|scenario| scenario.name == *name).unwrap_or(SCENARIOS.len())
    };
    names.sort_by_key(place);
    let mut page = String::new();
    // Writing to a String does not fail.
    let mut line = |text: String| writeln!(page, "{text}").unwrap_or_default();
    line(format!("| scenario | {} |", sides.join(" | ")));
    line(format!("|---|{}", "---|".repeat(sides.len())));
    for name in names {
        let claim =
            SCENARIOS.iter().find(|scenario| scenario.name == name).map(|scenario| scenario.claim);
        let title = claim.map_or_else(|| name.to_owned(), |claim| format!("`{name}`: {claim}"));
        let cells = sides.iter().map(|side| {
            let of = |outcome: &&Outcome| outcome.scenario == name && outcome.side == *side;
            cell(&outcomes.iter().filter(of).collect::<Vec<_>>())
        });
        line(format!("| {title} | {} |", cells.collect::<Vec<_>>().join(" | ")));
    }
    page
}

/// What happened in the repetitions of one cell, the same ends together.
fn cell(outcomes: &[&Outcome]) -> String {
    let mut kinds: Vec<(String, Vec<&Outcome>)> = Vec::new();
    for outcome in outcomes {
        let kind = kind(outcome);
        match kinds.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, all)) => all.push(outcome),
            None => kinds.push((kind, vec![outcome])),
        }
    }
    let words = kinds.iter().map(|(kind, all)| {
        let part = if all.len() == outcomes.len() {
            String::new()
        } else {
            format!("{}/{}: ", all.len(), outcomes.len())
        };
        format!("{part}{kind}, {}", numbers(all))
    });
    if kinds.is_empty() { "-".into() } else { words.collect::<Vec<_>>().join("; ") }
}

fn kind(outcome: &Outcome) -> String {
    let [sender, receiver] = &outcome.ends;
    let ends = match (&sender.end, &receiver.end) {
        (End::Finished, End::Finished) => "continues".into(),
        (sender, receiver) => {
            format!("sender {}, receiver {}", end_word(sender), end_word(receiver))
        }
    };
    if outcome.received.wrong_bytes() > 0 { format!("**WRONG BYTES**, {ends}") } else { ends }
}

fn end_word(end: &End) -> String {
    match end {
        End::Finished => "finished".into(),
        End::Error { code, .. } => format!("error {code}"),
        End::Hang { .. } => "hangs".into(),
        End::Killed => "killed".into(),
        End::Died { text } => format!("dies ({text})"),
    }
}

fn numbers(all: &[&Outcome]) -> String {
    let wrong = range(all.iter().map(|outcome| outcome.received.wrong_bytes()));
    let gap = range(all.iter().map(|outcome| outcome.received.longest_gap_ms.round() as u64));
    let finished = |outcome: &&&Outcome| outcome.ends.iter().all(|end| end.end == End::Finished);
    let first_end = |outcome: &&Outcome| {
        let bad = outcome.ends.iter().filter(|end| !matches!(end.end, End::Finished | End::Killed));
        bad.map(|end| end.at_ms).min()
    };
    let mut words = Vec::new();
    if all.iter().any(|outcome| outcome.received.wrong_bytes() > 0) {
        words.push(format!("{wrong} B wrong"));
    }
    if all.iter().all(|outcome| finished(&outcome)) {
        words.push(format!("gap {gap} ms"));
    } else {
        words.push(format!("after {} ms", range(all.iter().filter_map(first_end))));
    }
    words.join(", ")
}

fn range(values: impl Iterator<Item = u64>) -> String {
    let values: Vec<u64> = values.collect();
    match (values.iter().min(), values.iter().max()) {
        (Some(least), Some(most)) if least == most => least.to_string(),
        (Some(least), Some(most)) => format!("{least} to {most}"),
        _ => "-".into(),
    }
}

/// How one end came out of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "how", rename_all = "snake_case")]
pub(crate) enum End {
    /// With all of its messages.
    Finished,
    /// A call returned an error.
    Error {
        /// The call.
        call: String,
        /// Its `ncclResult_t`.
        code: u32,
        /// The transport's last warning.
        text: String,
    },
    /// No message completed for the limit.
    Hang {
        /// What it was waiting for.
        text: String,
    },
    /// The script killed the process.
    Killed,
    /// The process died by itself.
    Died {
        /// Its exit status.
        text: String,
    },
}

/// [`End`], and when.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EndAt {
    /// How.
    #[serde(flatten)]
    pub(crate) end: End,
    /// After the start of the stream; ms.
    pub(crate) at_ms: u64,
}

/// What the receiver has seen of the messages.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Received {
    /// Messages completed.
    pub(crate) messages: u64,
    /// When the last of them was; ms after the start.
    pub(crate) last_ms: f64,
    /// The longest time between two of them; ms.
    pub(crate) longest_gap_ms: f64,
    /// When that gap began; ms after the start.
    pub(crate) gap_at_ms: f64,
    /// Bytes of completed messages that were not what had been sent, and bytes written beside a
    /// message.
    pub(crate) wrong_on_arrival: u64,
    /// Bytes of buffers that changed after their message had completed.
    pub(crate) wrong_later: u64,
    /// Messages that came with another size than they were sent with.
    pub(crate) wrong_sizes: u64,
    /// The first things that were wrong, in words.
    pub(crate) notes: Vec<String>,
}

impl Received {
    /// All wrong bytes; a wrong size counts as one.
    pub(crate) fn wrong_bytes(&self) -> u64 {
        self.wrong_on_arrival + self.wrong_later + self.wrong_sizes
    }
}

/// What a worker process reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "report", rename_all = "snake_case")]
pub(crate) enum Report {
    /// The transport is there and the connection stands; the stream begins.
    Started {
        /// The transport's name and version, such as `IB 2.30.7`.
        transport: String,
        /// The name of this rank's device.
        device: String,
    },
    /// The receiver is so far.
    Progress(Received),
    /// This end has come to its end, and looked at all of its buffers again.
    Ended {
        /// How.
        end: EndAt,
        /// Of the receiver.
        received: Option<Received>,
    },
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Outcome {
    /// The version of this program, with the commit; empty in files of before there was this.
    #[serde(default)]
    pub(crate) tool: String,
    /// The command line.
    pub(crate) command: String,
    /// The scenario, or `own`.
    pub(crate) scenario: String,
    /// What was loaded, such as `IB 2.30.7`, and with which switches.
    pub(crate) side: String,
    /// Which repetition, from 1.
    pub(crate) repetition: u32,
    /// Seed of the software device's and the script's random decisions.
    pub(crate) seed: u64,
    /// Devices of both ranks.
    pub(crate) devices: [String; 2],
    /// What was done when, as it happened.
    pub(crate) script: Vec<String>,
    /// The sender's and the receiver's end.
    pub(crate) ends: [EndAt; 2],
    /// Messages planned, and the size of each.
    pub(crate) planned: (u64, usize),
    /// What the receiver saw.
    pub(crate) received: Received,
    /// Bytes of messages completed.
    pub(crate) payload_bytes: u64,
    /// Bytes that the sender's ports sent and that were acknowledged; none if the device was gone
    /// before it was asked.
    pub(crate) sent_bytes: Option<u64>,
    /// Those beyond the payload, if all messages have completed.
    pub(crate) resent_bytes: Option<u64>,
    /// Transmissions of either side that got no answer.
    pub(crate) lost_transmissions: Option<u64>,
    /// As the transport's log tells, of the end that tells more; none for a transport whose words
    /// are not known.
    pub(crate) recoveries: Option<u64>,
    /// The same for failures after which the transport continued.
    pub(crate) failures: Option<u64>,
    /// How long it all took; s.
    pub(crate) seconds: f64,
}

impl Outcome {
    /// Whether every message arrived, with both ends at their end and nothing wrong.
    pub(crate) fn is_finished(&self) -> bool {
        self.ends.iter().all(|end| end.end == End::Finished) && self.received.wrong_bytes() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(side: &str, end: End, wrong: u64, gap: f64) -> Outcome {
        let end = EndAt { end, at_ms: 700 };
        let received = Received {
            messages: 10,
            longest_gap_ms: gap,
            wrong_later: wrong,
            ..Received::default()
        };
        Outcome {
            tool: "1.2.3+0123456789ab".into(),
            command: "ferrite outlast".into(),
            scenario: "late-write".into(),
            side: side.into(),
            repetition: 1,
            seed: 1,
            devices: ["a".into(), "b".into()],
            script: Vec::new(),
            ends: [end.clone(), end],
            planned: (10, 8),
            received,
            payload_bytes: 80,
            sent_bytes: None,
            resent_bytes: None,
            lost_transmissions: Some(3),
            recoveries: None,
            failures: None,
            seconds: 1.0,
        }
    }

    #[test]
    fn a_cell_tells_apart_what_happened() {
        let error = || End::Error { call: "test".into(), code: 6, text: "x".into() };
        let all = [
            outcome("A", End::Finished, 0, 3.2),
            outcome("A", End::Finished, 0, 8.0),
            outcome("A", End::Finished, 5, 1.0),
            outcome("B", error(), 0, 1.0),
        ];
        let page = table(&all);
        assert!(
            page.starts_with("| scenario | A | B |\n|---|---|---|\n| `late-write`: two ports; "),
            "{page}"
        );
        let cells = "| 2/3: continues, gap 3 to 8 ms; 1/3: **WRONG BYTES**, continues, 5 B wrong, gap 1 ms \
                     | sender error 6, receiver error 6, after 700 ms |\n";
        assert!(page.ends_with(cells), "{page}");
    }

    #[test]
    fn a_script_of_ones_own_is_a_row_with_its_name() {
        let named =
            Outcome { scenario: "down for 5 s".into(), ..outcome("A", End::Finished, 0, 3.2) };
        assert!(table(&[named]).ends_with("\n| down for 5 s | continues, gap 3 ms |\n"));
    }

    #[test]
    fn what_is_not_known_is_not_made_up() {
        let text = text(&outcome("A", End::Killed, 0, 1.0));
        assert!(
            text.contains("sent and acknowledged n/a B, resent n/a B, transmissions lost 3; "),
            "{text}"
        );
        assert!(
            text.contains("sender was killed after 700 ms; receiver was killed after 700 ms"),
            "{text}"
        );
        assert!(text.ends_with("\n  by ferrite 1.2.3+0123456789ab\n"), "{text}");
    }

    #[test]
    fn outcomes_are_read_as_they_are_written() {
        let one = outcome("A", End::Died { text: "signal 6 SIGABRT".into() }, 0, 1.0);
        let line = serde_json::to_string(&one).expect("it is written");
        assert_eq!(
            read_lines("x", &format!("{line}\n\n{line}\n")).expect("it is read"),
            [one.clone(), one]
        );
        assert!(line.contains(r#""tool":"1.2.3+0123456789ab""#), "{line}");
        let problem = read_lines("x", "{}").expect_err("it is none").to_string();
        assert!(problem.starts_with("x, line 1: "), "{problem}");
    }
}
