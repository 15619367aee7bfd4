//! The tables, in nccl-tests' and perftest's words; for the terminal and for Markdown.

use std::collections::BTreeMap;

use crate::measure::estimate::Estimate;
use crate::measure::metric::{Label, Metric, MetricInfo};
use crate::measure::sample::size_text;
use crate::report::text::{number, percent};
use crate::report::verdict::key_name;
use crate::results::changed::{ChangedGroup, ChangedRow};
use crate::results::judgement::{Finding, Judgement};
use crate::results::record::Record;
use crate::results::rows::{Group, Row};

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

/// A column of a table of `T`s: its name, and its cell in a row.
pub(super) struct Column<'r, T> {
    name: String,
    cell: Box<dyn Fn(&T) -> String + 'r>,
}

impl<'r, T> Column<'r, T> {
    pub(super) fn new(name: impl Into<String>, cell: impl Fn(&T) -> String + 'r) -> Self {
        Self { name: name.into(), cell: Box::new(cell) }
    }
}

impl Table {
    pub(super) fn new<'r, T: 'r>(title: &str, columns: Vec<Column<'_, T>>, rows: impl Iterator<Item = &'r T>) -> Self {
        let cells = |row: &T| columns.iter().map(|column| (column.cell)(row)).collect();
        let rows = rows.map(cells).collect();
        Self { title: title.into(), rows, columns: columns.into_iter().map(|column| column.name).collect() }
    }
}

/// All tables of a run: of the groups of rows, then of each metric.
pub(crate) fn tables(record: &Record) -> Vec<Table> {
    let of_metric = Metric::ALL.iter().filter_map(|metric| {
        let mut rows = record.rows.iter().filter(|row| row.key.metric == *metric).peekable();
        rows.peek()?;
        Some(Table::new(metric.info().title?, columns(record, metric.info()), rows))
    });
    groups(record.scope.find(), &record.groups).into_iter().chain(of_metric).collect()
}

/// The groups of rows, if there are any.
pub(super) fn groups(find: f64, groups: &[Group]) -> Option<Table> {
    let mut columns = vec![
        Column::new("all together", |group: &Group| group.name.clone()),
        Column::new("rows", |group: &Group| group.rows.to_string()),
    ];
    columns.extend(judged(find, |group: &Group| &group.judgement));
    let title = "B against A: times better below 1, rates above 1";
    (!groups.is_empty()).then(|| Table::new(title, columns, groups.iter()))
}

/// What has changed since an earlier run: groups, then rows.
pub(crate) fn changes(record: &Record) -> Vec<Table> {
    let Some(earlier) = &record.earlier else { return Vec::new() };
    let ratio = |value: f64| format!("{value:.2}");
    let mut of_groups = vec![
        Column::new("all together", |group: &ChangedGroup| group.name.clone()),
        Column::new("rows", |group: &ChangedGroup| group.rows.to_string()),
        Column::new("B/A then", move |group: &ChangedGroup| ratio(group.medians.then)),
        Column::new("B/A now", move |group: &ChangedGroup| ratio(group.medians.now)),
    ];
    of_groups.extend(changed(record, |group: &ChangedGroup| &group.judgement));
    let mut of_rows = vec![
        Column::new("row", |row: &ChangedRow| key_name(&row.key)),
        Column::new("B/A then", move |row: &ChangedRow| ratio(row.medians.then)),
        Column::new("B/A now", move |row: &ChangedRow| ratio(row.medians.now)),
    ];
    of_rows.extend(changed(record, |row: &ChangedRow| &row.judgement));
    vec![
        Table::new("B against A, now and then: times better below 1, rates above 1", of_groups, earlier.groups.iter()),
        Table::new("The same of each row", of_rows, earlier.rows.iter()),
    ]
}

/// The columns of a [`Judgement`] of a change.
fn changed<'r, T: 'r>(record: &Record, of: fn(&T) -> &Judgement) -> [Column<'r, T>; 4] {
    let names = ["now/then [interval]", "A/A of both", "change", "found from"];
    let mut names = names.into_iter();
    judged(record.scope.find(), of)
        .map(|column| Column { name: names.next().map_or(column.name, str::to_owned), cell: column.cell })
}

/// The columns of a metric's table: what a row is about, the values of each side, the judgement.
fn columns<'r>(record: &'r Record, metric: &'static MetricInfo) -> Vec<Column<'r, Row>> {
    type Values = BTreeMap<String, f64>;
    type SideOf = fn(&Row) -> Option<&Values>;
    let is_comparison = record.sides.len() > 1;
    let sides: [(&str, SideOf); 2] = [("A ", |row| Some(&row.a)), ("B ", |row| row.b.as_ref())];
    let sides = if is_comparison { &sides[..] } else { &[("", sides[0].1)] };
    let mut columns: Vec<_> = metric.labels.iter().map(|label| labelled(record, *label)).collect();
    for &(side, values) in sides {
        columns.extend(metric.shown.iter().map(|name| {
            Column::new(format!("{side}{name}"), move |row| {
                let value = values(row).and_then(|values| values.get(*name));
                value.map_or_else(|| "-".into(), |value| number(*value))
            })
        }));
    }
    if is_comparison {
        columns.extend(judged(record.scope.find(), |row: &Row| &row.judgement));
    }
    columns
}

fn labelled(record: &Record, label: Label) -> Column<'_, Row> {
    match label {
        Label::Size => Column::new("size", |row: &Row| size_text(row.key.bytes)),
        Label::Direction => Column::new("dir", |row: &Row| row.key.direction.to_string()),
        Label::Wrong => Column::new("#wrong", |row: &Row| {
            record.sides.iter().map(|side| side.wrong(row.key.bytes)).sum::<u64>().to_string()
        }),
        Label::Connections => {
            Column::new("connections", |row: &Row| format!("{:.0}", row.a.get("connections").copied().unwrap_or(0.0)))
        }
        Label::AtOnce => Column::new("at once", |row: &Row| row.key.depth.to_string()),
    }
}

/// The columns of a [`Judgement`], which `of` finds in a row; `find`: the difference that must not be missed.
pub(super) fn judged<'r, T: 'r>(find: f64, of: fn(&T) -> &Judgement) -> [Column<'r, T>; 4] {
    let difference = move |judgement: &Judgement| {
        let too_noisy = judgement.finding == Some(Finding::Unclear) && !judgement.excludes(find);
        match (judgement.is_likely(), too_noisy) {
            (true, _) => "likely",
            (_, true) => "too noisy",
            _ => finding_word(judgement.finding),
        }
        .to_owned()
    };
    let found_from = |judgement: &Judgement| {
        let least = judgement.least.filter(|_| judgement.finding != Some(Finding::Biased));
        least.map_or_else(|| "-".into(), percent)
    };
    [
        Column::new("B/A [interval]", move |row| interval(of(row).ratio)),
        Column::new("A/A [interval]", move |row| interval(of(row).noise)),
        Column::new("difference", move |row| difference(of(row))),
        Column::new("found from", move |row| found_from(of(row))),
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
