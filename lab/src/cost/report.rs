//! What was counted, as text and as JSON.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use nccl_net::inspect::version;

use crate::cost::case::{Case, connection_words};
use crate::cost::quantity::{QUANTITIES, Quantity};
use crate::cost::queues::DRIVERS;
use crate::cost::worker::CostReport;
use crate::error::Result;
use crate::nccl::release;
use crate::pair::message::json_error;

/// Width of the first column; of each other one.
const WORDS: usize = 36;
const NUMBER: usize = 11;

/// What one transport takes in one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Side {
    /// Its name, and the release of NCCL where it is built in.
    name: String,
    /// The costs of one message, by the names of [`QUANTITIES`].
    per_message: BTreeMap<String, f64>,
    connection: Connection,
}

/// What a connection takes, at both ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Connection {
    queue_pairs: usize,
    completion_queues: usize,
    /// Commands to the card.
    commands: u64,
    /// Bytes of its queues, by the names of [`DRIVERS`].
    queue_bytes: BTreeMap<String, u64>,
}

/// All transports in one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    pub(crate) case: Case,
    #[serde(rename = "transports")]
    pub(crate) sides: Vec<Side>,
}

impl Side {
    pub(crate) fn of(report: &CostReport) -> Self {
        let CostReport { identity, messages, counted, queues, commands } = report;
        let name = match identity.nccl_version {
            Some(version) => format!("NCCL {}", release::version_text(version)),
            None => identity.name.clone(),
        };
        let cost = |quantity: &Quantity| (quantity.name.to_owned(), quantity.per_message(counted, *messages));
        let connection = Connection {
            queue_pairs: queues.queue_pairs.len(),
            completion_queues: queues.completion_queues.len(),
            commands: *commands,
            queue_bytes: DRIVERS.iter().map(|driver| (driver.name.to_owned(), driver.bytes(queues))).collect(),
        };
        Self { name, per_message: QUANTITIES.iter().map(cost).collect(), connection }
    }
}

/// All cases as one JSON object.
///
/// # Errors
/// [`crate::error::Error::Unreadable`] if a number has no JSON.
pub(crate) fn json(reports: &[CaseReport]) -> Result<String> {
    let all = serde_json::json!({ "schema": "ferrite-cost/1", "tool": version::text(), "cases": reports });
    serde_json::to_string_pretty(&all).map(|text| text + "\n").map_err(|e| json_error(&e))
}

/// A table for each case, and one for each kind of connection.
pub(crate) fn text(reports: &[CaseReport]) -> String {
    let mut text = String::new();
    for report in reports {
        text += &heading(&format!("{}; per message", report.case), &report.sides);
        for quantity in &QUANTITIES {
            let cost =
                |side: &Side| side.per_message.get(quantity.name).map_or_else(|| "-".into(), |cost| count(*cost));
            text += &row(quantity.words, report.sides.iter().map(cost));
        }
        text.push('\n');
    }
    for (index, report) in reports.iter().enumerate() {
        if reports[..index].iter().any(|before| before.case.connects_like(report.case)) {
            continue;
        }
        text += &heading(&format!("{}; per connection, both ends", connection_words(report.case)), &report.sides);
        text += &row("queue pairs", report.sides.iter().map(|side| side.connection.queue_pairs.to_string()));
        text +=
            &row("completion queues", report.sides.iter().map(|side| side.connection.completion_queues.to_string()));
        text += &row("commands to the card", report.sides.iter().map(|side| side.connection.commands.to_string()));
        for driver in &DRIVERS {
            let bytes = |side: &Side| side.connection.queue_bytes.get(driver.name).copied();
            let kib =
                |side: &Side| bytes(side).map_or_else(|| "-".into(), |bytes| format!("{:.0}", bytes as f64 / 1024.0));
            text += &row(&format!("queues as {} lays them out, KiB", driver.name), report.sides.iter().map(kib));
        }
        text.push('\n');
    }
    text
}

fn heading(words: &str, sides: &[Side]) -> String {
    format!("{words}\n{}", row("", sides.iter().map(|side| side.name.clone())))
}

fn row(words: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: String = cells.map(|cell| format!(" {cell:>width$}", width = NUMBER.max(cell.len()))).collect();
    format!("  {words:<WORDS$}{cells}\n")
}

/// As many digits as tell something.
fn count(value: f64) -> String {
    match value {
        1000.0.. => format!("{value:.0}"),
        _ if value.fract() == 0.0 => format!("{value}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(name: &str, cost: f64) -> Side {
        let connection = Connection {
            queue_pairs: 2,
            completion_queues: 2,
            commands: 12,
            queue_bytes: DRIVERS.iter().map(|driver| (driver.name.to_owned(), 4096)).collect(),
        };
        let per_message = QUANTITIES.iter().map(|quantity| (quantity.name.to_owned(), cost)).collect();
        Side { name: name.into(), per_message, connection }
    }

    #[test]
    fn a_connection_is_told_once_for_all_sizes_and_depths() {
        let case = Case { bytes: 8, depth: 1, queue_pairs: 1, rails: 1 };
        let report = |case| CaseReport { case, sides: vec![side("A", 2.0), side("B", 0.03125)] };
        let reports = [report(case), report(Case { depth: 8, ..case }), report(Case { rails: 2, ..case })];
        let text = text(&reports);
        let headings: Vec<_> = text.lines().filter(|line| !line.is_empty() && !line.starts_with(' ')).collect();
        assert_eq!(
            headings,
            [
                "8 B, 1 in flight, 1 queue pair, 1 rail; per message",
                "8 B, 8 in flight, 1 queue pair, 1 rail; per message",
                "8 B, 1 in flight, 1 queue pair, 2 rails; per message",
                "1 queue pair, 1 rail; per connection, both ends",
                "1 queue pair, 2 rails; per connection, both ends",
            ]
        );
        assert!(text.contains(&row("doorbells", ["2".into(), "0.03".into()].into_iter())), "{text}");
        assert!(
            text.contains(&row("queues as mlx5 lays them out, KiB", ["4".into(), "4".into()].into_iter())),
            "{text}"
        );
        let json: serde_json::Value = serde_json::from_str(&json(&reports).expect("JSON")).expect("JSON");
        assert_eq!(json["tool"], version::text());
        assert_eq!(json["cases"][2]["case"]["rails"], 2);
        assert_eq!(json["cases"][0]["transports"][1]["per_message"]["doorbells"], 0.03125);
        assert_eq!(json["cases"][0]["transports"][0]["connection"]["queue_bytes"]["mlx5"], 4096);
    }

    #[test]
    fn counts_have_two_places_where_they_are_no_whole_numbers() {
        assert_eq!(
            [0.0, 1.0, 0.5, 4.03125, 70_000.25].map(count),
            ["0", "1", "0.50", "4.03", "70000"],
            "no more than tell something"
        );
    }
}
