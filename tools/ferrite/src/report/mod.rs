//! The results for people: a table on the terminal, `report.md`, `report.svg`; and `raw.json`.

pub(crate) mod chart;
pub(crate) mod markdown;
pub(crate) mod svg;
pub(crate) mod table;
pub(crate) mod verdict;

use std::path::Path;

use crate::error::{Error, Result};
use crate::pair::message::json_error;
use crate::results::record::Record;
use crate::system::output;

/// The files of a report.
pub(crate) const FILES: [&str; 3] = ["raw.json", "report.svg", "report.md"];

/// Writes [`FILES`] into `folder`.
///
/// # Errors
/// [`Error::Io`].
pub(crate) fn write(record: &Record, folder: &Path) -> Result<()> {
    let raw = serde_json::to_string_pretty(record).map_err(|e| json_error(&e))?;
    std::fs::create_dir_all(folder)
        .map_err(|source| Error::io(format!("cannot create {}", folder.display()), source))?;
    let texts = [raw + "\n", chart::draw(record), markdown::write(record)];
    FILES.iter().zip(texts).try_for_each(|(name, text)| output::write_file(&folder.join(name), &text))
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
    let busy =
        busy.map(|busy| format!("note: other work kept {busy:.1} CPUs busy when the run began, so expect noise"));
    [partial, busy].into_iter().flatten().collect()
}

/// How many repetitions there are sessions of.
pub(crate) fn repetitions_run(record: &Record) -> usize {
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

/// Two sides of nothing much, and a row of bandwidth and one of latency.
#[cfg(test)]
pub(crate) fn sample_record() -> Record {
    use crate::measure::estimate::Estimate;
    use crate::results::rows::Row;
    let estimate = |median: f64| Estimate { median, low: median - 0.05, high: median + 0.05, coverage: 0.96 };
    let row = |metric: &str, bytes: u64, unit: &str, direction: &str| -> Row {
        let key = serde_json::json!({"metric": metric, "bytes": bytes, "direction": direction, "depth": 8});
        let values = serde_json::json!({"min": 1.0, "typ": 1.5, "p99": 2.5, "peak": 1.5});
        let mut row = key;
        for (name, value) in [
            ("unit", unit.into()),
            ("headline", "typ".into()),
            ("a", values.clone()),
            ("b", values),
            ("ratio", serde_json::to_value(estimate(1.0)).expect("numbers")),
            ("noise", serde_json::to_value(estimate(0.9)).expect("numbers")),
            ("finding", "unclear".into()),
            ("least", 0.06.into()),
        ] {
            row[name] = value;
        }
        serde_json::from_value(row).expect("a row")
    };
    let device = serde_json::json!({"name": "x0", "pci_path": null, "guid": 1, "pointer_support": 1,
        "registration_is_global": 0, "speed_mbps": 1, "port": 1, "latency_us": 0.0, "max_comms": 1, "max_receives": 8,
        "device_type": 0, "device_version": 0, "fused": []});
    let side = |label: &str| {
        serde_json::json!({"label": label, "source": {"kind": "plugin", "path": "x.so"}, "identity": {"name": "X",
            "file": "x.so", "symbol": "s", "nccl_version": null, "interface": 8, "functions": 15}, "version": "1",
            "sha256": "0123456789abcdef", "verbs": [], "devices": [device, device], "cpus": [0, 1], "load_ms": 1.0,
            "init_ms": 1.0, "checks": []})
    };
    let mut record = serde_json::json!({"schema": "s", "tool": "0", "complete": true, "command": [], "started_unix": 0,
        "seconds": 1.0, "machine": {"kernel": "", "processor": "", "cpus": 2, "busy_cpus": null, "environment": {}},
        "verbs": {"kind": "system"}, "settings": {}, "scope": crate::measure::plan::Scope::quick(), "sessions": [], "groups": [],
        "sides": [side("A"), side("B")]});
    let rows = [row("bandwidth", 1 << 20, "GB/s", "forward"), row("latency", 8, "us", "both")];
    record["rows"] = serde_json::to_value(rows).expect("rows");
    serde_json::from_value(record).expect("a record")
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

    /// The committed results are still read, and drawn as they were.
    #[test]
    fn a_committed_record_gives_its_committed_report() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/results/softrnic-2-cores");
        let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("a committed file");
        let record: Record = serde_json::from_str(&read("raw.json")).expect("a record");
        assert_eq!(chart::draw(&record), read("report.svg"));
        assert_eq!(markdown::write(&record), read("report.md"));
    }
}
