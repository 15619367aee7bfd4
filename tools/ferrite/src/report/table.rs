//! The tables, in nccl-tests' and perftest's words; for the terminal and for Markdown.

use crate::measure::metric::Metric;
use crate::measure::sample::size_text;
use crate::report::{number, percent};
use crate::results::estimate::Estimate;
use crate::results::judgement::{Finding, Judgement};
use crate::results::record::Record;
use crate::results::rows::Row;

/// A table: a title, column names, rows of cells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    /// What it shows, with units.
    pub(crate) title: String,
    /// The column names.
    pub(crate) columns: Vec<String>,
    /// The cells.
    pub(crate) rows: Vec<Vec<String>>,
}

/// All tables of a run.
pub(crate) fn tables(record: &Record) -> Vec<Table> {
    let titles = [
        (Metric::Latency, "Latency: half round trip of a ping-pong, us"),
        (Metric::MessageRate, "Message rate: 8 in flight, Mmsg/s (10^6 messages a second)"),
        (Metric::Bandwidth, "Bandwidth: 8 in flight, GB/s (10^9 bytes a second; `both` is the sum of two directions)"),
        (Metric::SetupOne, "Connection set-up, one by one, ms each (listen until both ends are ready)"),
        (Metric::SetupMany, "Connection set-up, many at once, ms for all"),
    ];
    let of_metric = titles.iter().filter_map(|(metric, title)| {
        let rows: Vec<&Row> = record.rows.iter().filter(|row| row.key.metric == *metric).collect();
        (!rows.is_empty()).then(|| table(record, *metric, title, &rows))
    });
    groups(record).into_iter().chain(of_metric).collect()
}

/// The columns of a [`Judgement`].
const JUDGED: [&str; 4] = ["B/A [interval]", "A/A [interval]", "difference", "found from"];

/// The groups of rows, if there are any.
fn groups(record: &Record) -> Option<Table> {
    let row = |group: &crate::results::rows::Group| {
        let mut cells = vec![group.name.clone(), group.rows.to_string()];
        cells.extend(judged(record, &group.judgement));
        cells
    };
    let mut columns = vec!["all together".to_owned(), "rows".into()];
    columns.extend(JUDGED.map(String::from));
    let title = "B against A: times better below 1, rates above 1".into();
    (!record.groups.is_empty()).then(|| Table { title, columns, rows: record.groups.iter().map(row).collect() })
}

fn judged(record: &Record, judgement: &Judgement) -> [String; 4] {
    let Judgement { ratio, noise, finding, least } = judgement;
    let too_noisy = *finding == Some(Finding::Unclear) && !judgement.excludes(record.scope.find());
    let least = least.filter(|_| *finding != Some(Finding::Biased));
    [
        interval(*ratio),
        interval(*noise),
        if too_noisy { "too noisy" } else { finding_word(*finding) }.into(),
        least.map_or_else(|| "-".into(), percent),
    ]
}

/// The finding in a word or three.
fn finding_word(finding: Option<Finding>) -> &'static str {
    match finding {
        Some(Finding::Better) => "better",
        Some(Finding::Worse) => "worse",
        Some(Finding::Unclear) => "none found",
        Some(Finding::Biased) => "A is not A",
        None => "too few runs",
    }
}

/// The values shown of each side, by metric.
fn shown(metric: Metric) -> &'static [&'static str] {
    match metric {
        Metric::Latency | Metric::SetupOne => &["min", "typ", "p99"],
        Metric::SetupMany => &["total"],
        Metric::MessageRate | Metric::Bandwidth | Metric::Copy => &["typ", "peak"],
    }
}

fn table(record: &Record, metric: Metric, title: &str, rows: &[&Row]) -> Table {
    let two = record.sides.len() > 1;
    let sides: &[&str] = if two { &["A", "B"] } else { &["A"] };
    let mut columns: Vec<String> = match metric {
        Metric::Latency => vec!["size".into(), "#wrong".into()],
        Metric::MessageRate | Metric::Bandwidth | Metric::Copy => vec!["size".into(), "dir".into(), "#wrong".into()],
        Metric::SetupOne | Metric::SetupMany => vec!["connections".into(), "at once".into()],
    };
    for side in sides {
        for value in shown(metric) {
            columns.push(if two { format!("{side} {value}") } else { (*value).into() });
        }
    }
    if two {
        columns.extend(JUDGED.map(String::from));
    }
    Table { title: title.into(), columns, rows: rows.iter().map(|row| cells(record, row, two)).collect() }
}

fn cells(record: &Record, row: &Row, two: bool) -> Vec<String> {
    let key = &row.key;
    let wrong: u64 = record.sides.iter().map(|side| side.wrong(key.bytes)).sum();
    let mut cells = match key.metric {
        Metric::Latency => vec![size_text(key.bytes), wrong.to_string()],
        Metric::MessageRate | Metric::Bandwidth | Metric::Copy => {
            vec![size_text(key.bytes), key.direction.to_string(), wrong.to_string()]
        }
        Metric::SetupOne | Metric::SetupMany => {
            let connections = row.a.get("connections").copied().unwrap_or(0.0);
            vec![format!("{connections:.0}"), key.depth.to_string()]
        }
    };
    for side in [Some(&row.a), row.b.as_ref()].into_iter().take(if two { 2 } else { 1 }) {
        for value in shown(key.metric) {
            cells.push(side.and_then(|side| side.get(*value)).map_or_else(|| "-".into(), |value| number(*value)));
        }
    }
    if two {
        cells.extend(judged(record, &row.judgement));
    }
    cells
}

fn interval(estimate: Option<Estimate>) -> String {
    estimate.map_or_else(|| "-".into(), |e| format!("{:.2} [{:.2}, {:.2}]", e.median, e.low, e.high))
}

impl Table {
    /// Right-aligned columns for a terminal.
    pub(crate) fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.chain(self.columns.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.columns.len()).map(width).collect();
        let line = |cells: &[String]| {
            let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}"));
            cells.collect::<Vec<_>>().join("  ")
        };
        let mut text = format!("{}\n  {}\n", self.title, line(&self.columns));
        for row in &self.rows {
            text.push_str(&format!("  {}\n", line(row)));
        }
        text
    }

    /// A Markdown table.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut text = format!("### {}\n\n{}", self.title, line(&self.columns));
        text.push_str(&format!("|{}\n", "---:|".repeat(self.columns.len())));
        text.extend(self.rows.iter().map(|row| line(row)));
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table {
            title: "Latency, us".into(),
            columns: vec!["size".into(), "A typ".into()],
            rows: vec![vec!["8".into(), "1.500".into()], vec!["4K".into(), "12.25".into()]],
        }
    }

    #[test]
    fn text_is_aligned() {
        assert_eq!(table().text(), "Latency, us\n  size  A typ\n     8  1.500\n    4K  12.25\n");
    }

    #[test]
    fn markdown_is_a_table() {
        let expected = "### Latency, us\n\n| size | A typ |\n|---:|---:|\n| 8 | 1.500 |\n| 4K | 12.25 |\n";
        assert_eq!(table().markdown(), expected);
    }
}
