//! When a wait is reported, and how often.

use crate::control::Time;
use std::time::Duration;

/// Repetitions of a report, by the age of the wait; later ones every [`LAST_PAUSE`].
const REPEATS: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(300)];
const LAST_PAUSE: Duration = Duration::from_secs(600);
/// The longest limit that adapts.
const MAX_LEARNT: Duration = Duration::from_secs(120);

/// How long before a report the peers are asked. Whether one is silent shows after 3 s, and ends
/// are checked once a second.
const LEAD: Duration = Duration::from_millis(3500);

/// How long a wait may last before it is reported.
#[derive(Debug, Clone, Copy)]
pub struct ReportTimes {
    /// `None`: nothing is reported.
    limit: Option<Duration>,
    /// Whether the limit grows when a reported wait ends by itself.
    learns: bool,
    /// The reported wait: its age at the last report, and at the last check.
    reported: Option<(Duration, Duration)>,
}

/// What to report about the longest wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Due {
    /// Nothing.
    Nothing,
    /// The limit is reached: report who waits for whom.
    Report,
    /// It ended after the first time; from now on a wait is reported after the second.
    WentOn(Duration, Duration),
    /// Its connection was closed after this time.
    Closed(Duration),
}

impl ReportTimes {
    /// Reports after `limit`; zero disables this. If it `learns`, each wait that ends by itself
    /// doubles the limit.
    pub fn new(limit: Duration, learns: bool) -> Self {
        Self { limit: Some(limit).filter(|limit| !limit.is_zero()), learns, reported: None }
    }

    /// How long a wait may last; `None` for ever.
    pub fn limit(&self) -> Option<Duration> {
        self.limit
    }

    /// Whether a report is due, or will be soon, if the longest wait, of age `age`, continues.
    pub fn is_near(&self, age: Option<Time>) -> bool {
        let next = self.reported.map(|(report, _)| next_after(report)).or(self.limit);
        age.zip(next).is_some_and(|(age, next)| age + LEAD >= next)
    }

    /// What is due for a longest wait of age `age`; `None` if there is no wait. `is_closed`: a
    /// connection was closed while it waited, since the last call.
    pub fn check(&mut self, age: Option<Time>, is_closed: bool) -> Due {
        let Some(limit) = self.limit else { return Due::Nothing };
        let age = age.unwrap_or_default();
        match self.reported {
            // Another wait, or none.
            Some((_, before)) if age < before => {
                self.reported = None;
                if is_closed {
                    return Due::Closed(before);
                }
                if self.learns {
                    self.limit = Some((limit * 2).min(MAX_LEARNT.max(limit)));
                }
                Due::WentOn(before, self.limit.unwrap_or(limit))
            }
            Some((report, _)) => {
                self.reported = Some((report, age));
                if age >= next_after(report) { Due::Report } else { Due::Nothing }
            }
            None if age >= limit => Due::Report,
            None => Due::Nothing,
        }
    }

    /// Forgets the reported wait.
    pub fn forget(&mut self) {
        self.reported = None;
    }

    /// Records that a wait of this age has been reported.
    pub fn handle_report(&mut self, age: Duration) {
        self.reported = Some((age, age));
    }
}

/// The age at which to repeat the report of a wait that was reported at age `before`.
fn next_after(before: Duration) -> Duration {
    let last = REPEATS[REPEATS.len() - 1];
    let repeat = REPEATS.into_iter().find(|repeat| before < *repeat);
    repeat.unwrap_or_else(|| {
        last + LAST_PAUSE * ((before - last).as_secs() / LAST_PAUSE.as_secs() + 1) as u32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    /// The ages at which a wait of an hour is reported, checked each second.
    #[test]
    fn a_wait_is_reported_at_the_limit_and_then_ever_more_seldom() {
        let mut report_times = ReportTimes::new(s(10), true);
        let mut reports = Vec::new();
        for age in 0..3600 {
            if report_times.check(Some(s(age)), false) == Due::Report {
                report_times.handle_report(s(age));
                reports.push(age);
            }
        }
        assert_eq!(reports, [10, 60, 300, 900, 1500, 2100, 2700, 3300]);
    }

    #[test]
    fn a_report_is_near_some_seconds_before_it_is_due_each_time() {
        let mut report_times = ReportTimes::new(s(10), true);
        let near = |times: &ReportTimes, all: [u64; 4]| all.map(|age| times.is_near(Some(s(age))));
        assert_eq!(near(&report_times, [1, 6, 7, 11]), [false, false, true, true]);
        assert!(!report_times.is_near(None), "nobody waits");
        report_times.handle_report(s(10));
        assert_eq!(near(&report_times, [11, 56, 57, 60]), [false, false, true, true]);
        assert!(!ReportTimes::new(s(0), true).is_near(Some(s(100))), "nothing is ever reported");
        assert!(ReportTimes::new(s(2), false).is_near(Some(s(0))));
    }

    #[test]
    fn each_wait_that_ends_by_itself_doubles_the_limit_up_to_two_minutes_unless_it_is_set() {
        let mut limits = Vec::new();
        for learns in [true, false] {
            let mut report_times = ReportTimes::new(s(10), learns);
            for _ in 0..5 {
                let limit = report_times.limit().expect("it reports");
                assert_eq!(report_times.check(Some(limit - s(1)), false), Due::Nothing);
                assert_eq!(report_times.check(Some(limit), false), Due::Report);
                report_times.handle_report(limit);
                assert_eq!(report_times.check(Some(limit + s(3)), false), Due::Nothing);
                let Due::WentOn(after, next) = report_times.check(Some(s(1)), false) else {
                    panic!("another wait has begun")
                };
                assert_eq!((after, Some(next)), (limit + s(3), report_times.limit()));
                limits.push(next.as_secs());
            }
        }
        assert_eq!(limits, [20, 40, 80, 120, 120, 10, 10, 10, 10, 10]);
        let mut never = ReportTimes::new(s(0), true);
        assert_eq!((never.check(Some(s(10_000)), false), never.limit()), (Due::Nothing, None));
    }

    #[test]
    fn a_wait_that_is_looked_at_twice_at_once_is_the_same_one() {
        let mut report_times = ReportTimes::new(s(10), true);
        report_times.handle_report(s(10));
        assert_eq!(report_times.check(Some(s(10)), false), Due::Nothing);
        assert_eq!(report_times.limit(), Some(s(10)));
    }

    #[test]
    fn a_wait_that_is_forgotten_has_not_gone_on_and_teaches_nothing() {
        let mut report_times = ReportTimes::new(s(10), true);
        report_times.handle_report(s(10));
        report_times.forget();
        assert_eq!(
            (report_times.check(None, false), report_times.limit()),
            (Due::Nothing, Some(s(10)))
        );
    }

    #[test]
    fn a_wait_whose_connection_is_closed_has_not_gone_on_and_teaches_nothing() {
        let mut report_times = ReportTimes::new(s(10), true);
        assert_eq!(report_times.check(Some(s(10)), false), Due::Report);
        report_times.handle_report(s(10));
        assert_eq!(report_times.check(Some(s(11)), false), Due::Nothing);
        assert_eq!(
            (report_times.check(None, true), report_times.limit()),
            (Due::Closed(s(11)), Some(s(10)))
        );
        assert_eq!(report_times.check(None, true), Due::Nothing, "it was not reported");
    }
}
