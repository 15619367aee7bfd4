//! A report again and again.

use std::io::{IsTerminal, stdout};
use std::thread;
use std::time::Duration;

use ibverbs::control::{Network, Report};

use crate::outcome::{Failure, print};

/// Clears a terminal, and goes to its first line.
const CLEAR: &str = "\x1b[H\x1b[2J";

/// The time between two reports.
pub(crate) fn period(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "must be seconds, from 0.01 to 86400".to_owned())
}

/// Prints what `network` is like, as `text`, until no process uses it any more. On a terminal each report replaces the last one;
/// elsewhere they follow each other with `between` them.
pub(crate) fn watch(
    network: &Network,
    period: Duration,
    between: &str,
    text: impl Fn(&Report) -> String,
) -> Result<(), Failure> {
    let (mut before, next) = if stdout().is_terminal() { (CLEAR, CLEAR) } else { ("", between) };
    loop {
        let report = network.report();
        if !report.processes.iter().any(|process| process.is_alive) {
            eprintln!("softrnic: no process uses {} any more", network.name());
            return Ok(());
        }
        print(&format!("{before}{}", text(&report)))?;
        before = next;
        thread::sleep(period);
    }
}

#[cfg(test)]
mod tests {
    use super::period;
    use std::time::Duration;

    #[test]
    fn a_period_is_a_time_that_can_be_waited() {
        assert_eq!(period("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "-1", "nan", "inf", "1e9", "soon", ""] {
            assert!(period(wrong).is_err(), "{wrong}");
        }
    }
}
