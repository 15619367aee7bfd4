//! The results for people: a table on the terminal, `report.md`, `report.svg`; and `raw.json`.

pub mod chart;
pub mod markdown;
pub mod svg;
pub mod table;

use std::path::Path;

use crate::error::{Error, Result};
use crate::record::{Finding, Record, Row};
use crate::sample::{Direction, Metric};
use crate::seat::json_error;
use crate::stats;

/// Writes `report.md`, `report.svg` and `raw.json` into `folder`.
///
/// # Errors
/// [`Error::Io`].
pub fn write(record: &Record, folder: &Path) -> Result<()> {
    let raw = serde_json::to_string_pretty(record).map_err(|e| json_error(&e))?;
    std::fs::create_dir_all(folder)
        .map_err(|source| Error::io(format!("cannot create {}", folder.display()), source))?;
    for (name, text) in
        [("raw.json", raw + "\n"), ("report.svg", chart::draw(record)), ("report.md", markdown::write(record))]
    {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|source| Error::io(format!("cannot write {}", path.display()), source))?;
    }
    Ok(())
}

/// The last line: what the run showed.
pub fn verdict(record: &Record) -> String {
    let checked: u64 = record.sides.iter().map(|side| side.checked()).sum();
    let mut text = format!("valid run, data right ({checked} messages checked byte by byte)");
    if record.sides.len() < 2 {
        return text;
    }
    let medians: Vec<String> = HEADLINES
        .iter()
        .filter_map(|(name, wanted)| {
            let mut ratios: Vec<f64> =
                record.rows.iter().filter(|row| wanted(row)).filter_map(|row| Some(row.ratio?.median)).collect();
            Some(format!("{name} {:.2}", stats::median(&mut ratios)?))
        })
        .collect();
    let count = |finding| record.rows.iter().filter(|row| row.finding == Some(finding)).count();
    text.push_str(&format!("; median B/A: {}", medians.join(", ")));
    if record.rows.iter().all(|row| row.finding.is_none()) {
        text.push_str(&format!("; {} show no difference, five or more may", repetitions(record)));
        return text;
    }
    text.push_str(&format!(
        "; of {} rows B is better in {}, worse in {}, and no difference is shown in {}",
        record.rows.len(),
        count(Finding::Better),
        count(Finding::Worse),
        count(Finding::Unclear)
    ));
    text
}

/// A warning, if other work wanted the CPUs when the run began.
pub(crate) fn busy(record: &Record) -> Option<String> {
    let busy = record.machine.busy_cpus?;
    (busy > 0.25).then(|| format!("note: other work kept {busy:.1} CPUs busy when the run began, so expect noise"))
}

/// `1 repetition`, `6 repetitions`.
pub(crate) fn repetitions(record: &Record) -> String {
    match record.scope.repetitions {
        1 => "1 repetition".into(),
        count => format!("{count} repetitions"),
    }
}

type Wanted = fn(&Row) -> bool;

/// The groups of rows that the verdict sums up.
const HEADLINES: [(&str, Wanted); 5] = [
    ("latency 8 B to 4 KiB", |row| row.key.metric == Metric::Latency),
    ("message rate 8 B", |row| row.key.metric == Metric::MessageRate && row.key.direction == Direction::Forward),
    ("bandwidth 64 KiB to 4 MiB", |row| {
        row.key.metric == Metric::Bandwidth && (64 << 10..=4 << 20).contains(&row.key.bytes)
    }),
    ("one connection", |row| row.key.metric == Metric::SetupOne),
    ("many connections", |row| row.key.metric == Metric::SetupMany),
];

/// The finding in a word or three, for a column.
pub(crate) fn finding_word(finding: Option<Finding>) -> &'static str {
    match finding {
        Some(Finding::Better) => "better",
        Some(Finding::Worse) => "worse",
        Some(Finding::Unclear) => "none shown",
        None => "too few runs",
    }
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
