//! What was counted, as text and as JSON.

use serde::Serialize;

use crate::cost::case::{Case, connection_words};
use crate::cost::quantity::QUANTITIES;
use crate::cost::queues::DRIVERS;
use crate::cost::worker::CostReport;
use crate::error::Result;
use crate::nccl::release;
use crate::pair::message::json_error;

/// Width of the first column; of each other one.
const WORDS: usize = 36;
const NUMBER: usize = 11;

/// What one transport takes in one case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Side {
    /// Its name, and the release of NCCL where it is built in.
    name: String,
    /// Of one message, in the order of [`QUANTITIES`].
    #[serde(skip)]
    costs: Vec<f64>,
    /// Of the connection: bytes of its queues in the order of [`DRIVERS`].
    #[serde(skip)]
    queue_bytes: Vec<u64>,
    queue_pairs: usize,
    completion_queues: usize,
    commands: u64,
}

/// All transports in one case.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct CaseReport {
    pub(crate) case: Case,
    pub(crate) sides: Vec<Side>,
}

impl Side {
    pub(crate) fn of(report: &CostReport) -> Self {
        let CostReport { identity, messages, counted, queues, commands } = report;
        let name = match identity.nccl_version {
            Some(version) => format!("NCCL {}", release::version_text(version)),
            None => identity.name.clone(),
        };
        Self {
            name,
            costs: QUANTITIES.iter().map(|quantity| quantity.per_message(counted, *messages)).collect(),
            queue_bytes: DRIVERS.iter().map(|driver| driver.bytes(queues)).collect(),
            queue_pairs: queues.queue_pairs.len(),
            completion_queues: queues.completion_queues.len(),
            commands: *commands,
        }
    }

    fn json(&self) -> serde_json::Value {
        let costs =
            QUANTITIES.iter().zip(&self.costs).map(|(quantity, cost)| (quantity.name.to_owned(), (*cost).into()));
        let bytes =
            DRIVERS.iter().zip(&self.queue_bytes).map(|(driver, bytes)| (driver.name.to_owned(), (*bytes).into()));
        serde_json::json!({
            "name": self.name,
            "per_message": costs.collect::<serde_json::Map<_, _>>(),
            "connection": {
                "queue_pairs": self.queue_pairs,
                "completion_queues": self.completion_queues,
                "commands": self.commands,
                "queue_bytes": bytes.collect::<serde_json::Map<_, _>>(),
            },
        })
    }
}

/// All cases as one JSON object.
///
/// # Errors
/// [`crate::error::Error::Unreadable`] if a number has no JSON.
pub(crate) fn json(reports: &[CaseReport]) -> Result<String> {
    let cases: Vec<_> = reports
        .iter()
        .map(|report| {
            let sides: Vec<_> = report.sides.iter().map(Side::json).collect();
            serde_json::json!({ "case": report.case, "transports": sides })
        })
        .collect();
    let all = serde_json::json!({ "schema": "ferrite-cost/1", "cases": cases });
    serde_json::to_string_pretty(&all).map(|text| text + "\n").map_err(|e| json_error(&e))
}

/// A table for each case, and one for each kind of connection.
pub(crate) fn text(reports: &[CaseReport]) -> String {
    let mut text = String::new();
    for report in reports {
        text += &heading(&format!("{}; per message", report.case), &report.sides);
        for (index, quantity) in QUANTITIES.iter().enumerate() {
            text += &row(quantity.words, report.sides.iter().map(|side| count(side.costs[index])));
        }
        text.push('\n');
    }
    for (index, report) in reports.iter().enumerate() {
        if reports[..index].iter().any(|before| before.case.connects_like(report.case)) {
            continue;
        }
        text += &heading(&format!("{}; per connection, both ends", connection_words(report.case)), &report.sides);
        text += &row("queue pairs", report.sides.iter().map(|side| side.queue_pairs.to_string()));
        text += &row("completion queues", report.sides.iter().map(|side| side.completion_queues.to_string()));
        text += &row("commands to the card", report.sides.iter().map(|side| side.commands.to_string()));
        for (index, driver) in DRIVERS.iter().enumerate() {
            let kib = |side: &Side| format!("{:.0}", side.queue_bytes[index] as f64 / 1024.0);
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
        Side {
            name: name.into(),
            costs: vec![cost; QUANTITIES.len()],
            queue_bytes: vec![4096; DRIVERS.len()],
            queue_pairs: 2,
            completion_queues: 2,
            commands: 12,
        }
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
