//! Numbers and sentences that the table, the report and the chart have in common.

use crate::measure::plan::Scope;
use crate::results::machine::differing;
use crate::results::record::Record;
use crate::results::side::Side;

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
    [partial, busy, different_variables(record)].into_iter().flatten().collect()
}

/// What the processes of a side alone were given: `, with NAME=VALUE OTHER=VALUE`.
pub(crate) fn variables(side: &Side) -> String {
    let all: Vec<String> = side.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
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
    let value = |value: &Option<&String>| value.map_or_else(|| "unset".into(), |value| format!("{value:?}"));
    let words = |(name, here, there): &(&String, Option<&String>, Option<&String>)| {
        format!("{name} is {} on {} and {} on {}", value(here), record.machine.host, value(there), other.host)
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
