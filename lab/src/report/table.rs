//! The tables, and the words that they share with the verdict.

use crate::measure::metric::Better;
use crate::measure::plan::Scope;
use crate::measure::sample::Estimate;
use crate::results::judgement::{Finding, Judgement};
use crate::results::record::{Record, Side, differing};
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

/// All tables of a run: of the groups of rows, then of the rows.
pub(crate) fn tables(record: &Record) -> Vec<Table> {
    let is_comparison = record.sides.len() > 1;
    let value = |value: Option<f64>| value.map_or_else(|| "-".into(), number);
    let mut columns = vec![
        Column::new("row", |row: &Row| row.key.name()),
        Column::new("unit", |row: &Row| row.unit.clone()),
        Column::new("A", move |row: &Row| value(row.a)),
    ];
    if is_comparison {
        columns.push(Column::new("B", move |row: &Row| value(row.b)));
        columns.extend(judged(|row: &Row| {
            (row.key.name(), row.key.metric.info().better, &row.judgement)
        }));
    }
    let rows = Table::new("Rows: medians of blocks", columns, record.rows.iter());
    let groups = groups(&record.groups, |group| (group.name.clone(), group.metric.info().better));
    groups.into_iter().chain([rows]).collect()
}

/// The groups of rows, if there are any.
pub(super) fn groups<'r, G: AsRef<Judgement> + 'r>(
    groups: &'r [G],
    name: fn(&G) -> (String, Better),
) -> Option<Table> {
    let mut columns = vec![Column::new("group", move |group: &G| name(group).0)];
    columns.extend(judged(move |group: &G| {
        let (text, better) = name(group);
        (text, better, group.as_ref())
    }));
    let title = "B against A: times better below 1, rates above 1";
    (!groups.is_empty()).then(|| Table::new(title, columns, groups.iter()))
}

/// The columns of a [`Judgement`], which `of` finds in a row.
pub(super) fn judged<'r, T: 'r>(
    of: impl Fn(&T) -> (String, Better, &Judgement) + Copy + 'r,
) -> [Column<'r, T>; 3] {
    let words = move |row: &T| {
        let (name, better, judgement) = of(row);
        Named::new((name, better), judgement).words()
    };
    [
        Column::new("B/A [interval]", move |row| interval(of(row).2.ratio)),
        Column::new("sets", move |row| of(row).2.sets.to_string()),
        Column::new("B is", words),
    ]
}

fn interval(estimate: Option<Estimate>) -> String {
    estimate
        .map_or_else(|| "-".into(), |e| format!("{:.3} [{:.3}, {:.3}]", e.median, e.low, e.high))
}

impl Table {
    /// A Markdown table.
    pub(crate) fn markdown(&self) -> String {
        let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
        let mut text = format!("### {}\n\n{}", self.title, line(&self.columns));
        text.push_str(&format!("|{}\n", "---:|".repeat(self.columns.len())));
        text.extend(self.rows.iter().map(|row| line(row)));
        text
    }
}

/// A row or a group.
pub(super) struct Named<'r> {
    pub(super) name: String,
    pub(super) better: Better,
    pub(super) judgement: &'r Judgement,
}

impl<'r> Named<'r> {
    pub(super) fn new((name, better): (String, Better), judgement: &'r Judgement) -> Self {
        Self { name, better, judgement }
    }

    /// The statement: it follows from the interval, and names it.
    pub(super) fn words(&self) -> String {
        let Some((speed, slowest, fastest)) = self.judgement.speeds(self.better) else {
            return "undecided: nothing was measured".into();
        };
        match (self.judgement.finding, self.judgement.within, self.judgement.visible) {
            (Finding::Better | Finding::Worse, ..) => {
                let (near, far) = if speed > 1.0 { (slowest, fastest) } else { (fastest, slowest) };
                format!("{} [{} to {}]", change(speed), size(near), size(far))
            }
            (Finding::Same, Some(within), _) => format!("the same within {}", percent(within)),
            (_, _, Some(visible)) => format!(
                "undecided: {} to {}; visible from {}",
                change(slowest),
                change(fastest),
                percent(visible)
            ),
            _ => "undecided: too little time".into(),
        }
    }
}

/// `4.0 % faster`, `2.1x slower`.
pub(super) fn change(speed: f64) -> String {
    format!("{} {}", size(speed), if speed >= 1.0 { "faster" } else { "slower" })
}

fn size(speed: f64) -> String {
    let times = speed.max(1.0 / speed);
    if times < 1.5 { percent(times - 1.0) } else { format!("{times:.1}x") }
}

/// Notes on the results.
pub(crate) fn warnings(record: &Record) -> Vec<String> {
    let busy = record.machine.busy_cpus.filter(|busy| *busy > 0.25);
    let busy = busy.map(|busy| {
        let all = record.machine.cpus;
        format!("note: other work kept {busy:.1} of {all} CPUs busy when the run began")
    });
    [different_variables(record), busy, disturbed_side(record)].into_iter().flatten().collect()
}

/// Whether one side was disturbed much more often than the other: by its own threads, perhaps.
/// What they cost is left out with the blocks.
fn disturbed_side(record: &Record) -> Option<String> {
    let [a, b] = &record.sides[..] else { return None };
    let (more, less) = if a.blocks.part() > b.blocks.part() { (a, b) } else { (b, a) };
    let (high, low) = (more.blocks.part(), less.blocks.part());
    (high > 0.02 + 1.5 * low).then(|| {
        format!(
            "note: the kernel took a processor away in {} of the blocks of {}, and in {} of those \
             of {}. Threads of {} may have needed it; their time is left out (see --no-pin)",
            percent(high),
            more.label,
            percent(low),
            less.label,
            more.label
        )
    })
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
pub(crate) fn different_variables(record: &Record) -> Option<String> {
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
    use crate::report::sample_record::{judgement, sample_record};
    use crate::results::rows::Blocks;

    #[test]
    fn a_side_that_is_disturbed_more_often_is_named() {
        let mut record = sample_record();
        let mut blocks = |a, b| {
            for (side, disturbed) in record.sides.iter_mut().zip([a, b]) {
                side.blocks = Blocks { all: 1000, disturbed };
            }
            warnings(&record)
        };
        assert!(blocks(60, 80).is_empty() && blocks(0, 15).is_empty());
        let found = blocks(40, 120);
        assert!(found[0].contains("in 12 % of the blocks of B, and in 4.0 % of those of A"));
        let found = blocks(120, 40);
        assert!(found[0].contains("in 12 % of the blocks of A"), "{found:?}");
    }

    fn table() -> Table {
        Table {
            title: "Latency, us".into(),
            columns: vec!["size".into(), "A typ".into()],
            rows: vec![vec!["8".into(), "1.500".into()], vec!["4K".into(), "12.25".into()]],
        }
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

    #[test]
    fn each_finding_has_its_statement_and_the_interval_in_it() {
        let words = |better, finding, low, high| {
            Named::new(("x".into(), better), &judgement(finding, low, high)).words()
        };
        use Better::{Higher, Lower};
        use Finding::{Same, Undecided};
        for (better, finding, low, high, expected) in [
            (Lower, Finding::Better, 0.90, 0.95, "8.1 % faster [5.3 % to 11 %]"),
            (Higher, Finding::Better, 1.9, 2.2, "2.0x faster [1.9x to 2.2x]"),
            (Higher, Finding::Worse, 0.90, 0.95, "8.1 % slower [5.3 % to 11 %]"),
            (Lower, Same, 0.99, 1.03, "the same within 3.0 %"),
            (
                Lower,
                Undecided,
                0.95,
                1.12,
                "undecided: 12 % slower to 5.3 % faster; visible from 4.0 %",
            ),
        ] {
            assert_eq!(words(better, finding, low, high), expected);
        }
        let few = Judgement { visible: None, within: None, ..judgement(Undecided, 0.9, 1.0) };
        assert_eq!(Named::new(("x".into(), Lower), &few).words(), "undecided: too little time");
    }
}
