//! The tables, in nccl-tests' and perftest's words; for the terminal and for Markdown.

use std::collections::BTreeMap;

use crate::measure::metric::{Label, Metric, MetricInfo};
use crate::measure::plan::Scope;
use crate::measure::sample::{Estimate, size_text};
use crate::report::verdict::key_name;
use crate::results::judgement::{ChangedGroup, ChangedRow, Finding, Judgement};
use crate::results::record::{Record, Side, differing};
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
    pub(super) fn new<'r, T: 'r>(
        title: &str,
        columns: Vec<Column<'_, T>>,
        rows: impl Iterator<Item = &'r T>,
    ) -> Self {
        let cells = |row: &T| columns.iter().map(|column| (column.cell)(row)).collect();
        let rows = rows.map(cells).collect();
        Self {
            title: title.into(),
            rows,
            columns: columns.into_iter().map(|column| column.name).collect(),
        }
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
        Table::new(
            "B against A, now and then: times better below 1, rates above 1",
            of_groups,
            earlier.groups.iter(),
        ),
        Table::new("The same of each row", of_rows, earlier.rows.iter()),
    ]
}

/// The columns of a [`Judgement`] of a change.
fn changed<'r, T: 'r>(record: &Record, of: fn(&T) -> &Judgement) -> [Column<'r, T>; 4] {
    let names = ["now/then [interval]", "A/A of both", "change", "found from"];
    let mut names = names.into_iter();
    judged(record.scope.find(), of).map(|column| Column {
        name: names.next().map_or(column.name, str::to_owned),
        cell: column.cell,
    })
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
        Label::Connections => Column::new("connections", |row: &Row| {
            format!("{:.0}", row.a.get("connections").copied().unwrap_or(0.0))
        }),
        Label::AtOnce => Column::new("at once", |row: &Row| row.key.depth.to_string()),
    }
}

/// The columns of a [`Judgement`], which `of` finds in a row; `find`: the difference that must not
/// be missed.
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
    estimate
        .map_or_else(|| "-".into(), |e| format!("{:.2} [{:.2}, {:.2}]", e.median, e.low, e.high))
}

impl Table {
    /// Right-aligned columns for a terminal.
    pub(crate) fn text(&self) -> String {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells
                .chain(self.columns.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
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

/// What stands before the results: the run is not whole, or was disturbed.
pub(crate) fn warnings(record: &Record) -> Vec<String> {
    let partial = (!record.complete).then(|| {
        format!(
            "PARTIAL: interrupted after {} sessions; the repetitions that were complete count",
            record.sessions.len()
        )
    });
    let busy = record.machine.busy_cpus.filter(|busy| *busy > 0.25);
    let busy = busy.map(|busy| {
        format!("note: other work kept {busy:.1} CPUs busy when the run began, so expect noise")
    });
    [partial, busy, different_variables(record)].into_iter().flatten().collect()
}

/// What the processes of a side alone were given: `, with NAME=VALUE OTHER=VALUE`.
pub(crate) fn variables(side: &Side) -> String {
    let all: Vec<String> =
        side.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if all.is_empty() { String::new() } else { format!(", with {}", all.join(" ")) }
}

/// `node1 ` before what is on the host of this rank, if the ranks are on two hosts.
pub(crate) fn host_of(record: &Record, rank: usize) -> String {
    match &record.other_machine {
        Some(other) if rank == 1 => format!("{} ", other.host),
        Some(_) => format!("{} ", record.machine.host),
        None => String::new(),
    }
}

/// The variables of transports that the two hosts have not alike.
fn different_variables(record: &Record) -> Option<String> {
    let other = record.other_machine.as_ref()?;
    let different = differing(&record.machine.environment, &other.environment);
    let value = |value: &Option<&String>| {
        value.map_or_else(|| "unset".into(), |value| format!("{value:?}"))
    };
    let words = |(name, here, there): &(&String, Option<&String>, Option<&String>)| {
        format!(
            "{name} is {} on {} and {} on {}",
            value(here),
            record.machine.host,
            value(there),
            other.host
        )
    };
    let all: Vec<String> = different.iter().map(words).collect();
    (!all.is_empty()).then(|| format!("note: the hosts are not alike: {}", all.join(", ")))
}

/// How many connections a stream is over, where it is several.
pub(crate) fn over_connections(scope: &Scope) -> String {
    match scope.streams {
        1 => String::new(),
        count => format!(" on each of {count} connections each way at once"),
    }
}

/// How many repetitions there are sessions of.
fn repetitions_run(record: &Record) -> usize {
    record.sessions.iter().map(|run| run.repetition + 1).max().unwrap_or(0)
}

/// `1 repetition`, `6 repetitions`.
pub(crate) fn repetitions(record: &Record) -> String {
    match repetitions_run(record) {
        1 => "1 repetition".into(),
        count => format!("{count} repetitions"),
    }
}

/// A fraction as a percentage: `4 %`, `0.4 %`, `250 %`.
pub(crate) fn percent(fraction: f64) -> String {
    let percent = fraction * 100.0;
    if percent < 9.95 { format!("{percent:.1} %") } else { format!("{percent:.0} %") }
}

/// A value with three or four significant digits.
pub(crate) fn number(value: f64) -> String {
    match value.abs() {
        v if !v.is_finite() => "-".into(),
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        v if v >= 0.1 || v == 0.0 => format!("{value:.3}"),
        v if v >= 0.01 => format!("{value:.4}"),
        _ => format!("{value:.5}"),
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
        let expected =
            "### Latency, us\n\n| size | A typ |\n|---:|---:|\n| 8 | 1.500 |\n| 4K | 12.25 |\n";
        assert_eq!(table().markdown(), expected);
    }

    #[test]
    fn numbers_keep_four_digits() {
        for (value, text) in [
            (0.00123, "0.00123"),
            (0.0123, "0.0123"),
            (0.5, "0.500"),
            (1.5, "1.500"),
            (12.345, "12.35"),
            (123.45, "123.5"),
            (12345.6, "12346"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
