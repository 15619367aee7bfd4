//! How far the clocks of several machines are apart, from messages between them.
//!
//! A sender's `isend` is accepted after the receiver's `irecv` has begun, and before the message is found arrived.
//! Both ends number their messages alike, so each message that both have timed bounds the difference of their clocks from both
//! sides; messages in the other direction bound it too. The middle between the tightest bounds is taken: it is wrong by half their distance at most.

use std::collections::BTreeMap;

use super::pairs;
use super::recording::{Process, TimedEnd};
use super::timed::Timed;

/// How to set one clock against the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offset {
    /// What is to be added to its times, in nanoseconds.
    pub(crate) ns: i64,
    /// By how much that may be wrong. `None`: by as much as the machines' times of day are, since no message tells.
    pub(crate) uncertainty: Option<i64>,
}

/// What the time by the second clock is more than by the first, at least and at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    low: i64,
    high: i64,
}

impl Bounds {
    const NONE: Self = Self { low: i64::MIN, high: i64::MAX };

    /// Of a message whose sender has the first clock.
    fn of(sent: &Timed, received: &Timed) -> Self {
        Self { low: received.begin(false) - sent.sent(), high: received.at - sent.sent() }
    }

    fn reversed(self) -> Self {
        Self { low: self.high.saturating_neg(), high: self.low.saturating_neg() }
    }

    fn and(self, other: Self) -> Self {
        Self { low: self.low.max(other.low), high: self.high.min(other.high) }
    }

    fn middle(self) -> i64 {
        ((i128::from(self.low) + i128::from(self.high)) / 2) as i64
    }

    /// Clocks that run at different rates make the bounds contradict each other; their distance is how far the clocks have gone apart.
    fn half_width(self) -> i64 {
        (self.high.abs_diff(self.low).div_ceil(2)).min(i64::MAX as u64) as i64
    }
}

/// How to set each clock of `ends`, whose pairs `connections` are. The first one by name is as it is.
pub(crate) fn offsets(ends: &[(&Process, &TimedEnd)], connections: &[(usize, usize)]) -> BTreeMap<String, Offset> {
    let mut bounds: BTreeMap<(&str, &str), Bounds> = BTreeMap::new();
    for &(sender, receiver) in connections {
        let ((from, sender), (to, receiver)) = (ends[sender], ends[receiver]);
        for (sent, received) in pairs::messages(sender, receiver) {
            let found = Bounds::of(sent, received);
            for (key, found) in [((from, to), found), ((to, from), found.reversed())] {
                let known = bounds.entry((&key.0.clock, &key.1.clock)).or_insert(Bounds::NONE);
                *known = known.and(found);
            }
        }
    }
    bounds.retain(|(from, to), _| from != to);
    let zeros: BTreeMap<&str, i64> = ends.iter().map(|(process, _)| (process.clock.as_str(), process.zero)).collect();
    set(&zeros, &bounds).into_iter().map(|(clock, offset)| (clock.to_owned(), offset)).collect()
}

/// Sets clock after clock, each by the one whose bounds are tightest of those that are set.
fn set<'a>(zeros: &BTreeMap<&'a str, i64>, bounds: &BTreeMap<(&'a str, &'a str), Bounds>) -> BTreeMap<&'a str, Offset> {
    let Some((first, first_zero)) = zeros.first_key_value() else { return BTreeMap::new() };
    let mut done = BTreeMap::from([(*first, Offset { ns: 0, uncertainty: Some(0) })]);
    while done.len() < zeros.len() {
        let reached =
            |((from, to), _): &(&(&'a str, &'a str), &Bounds)| done.contains_key(from) && !done.contains_key(to);
        let next = bounds.iter().filter(reached).min_by_key(|(_, bounds)| bounds.half_width());
        let (clock, offset) = match next {
            Some(((from, to), bounds)) => {
                let ns = done[from].ns.saturating_sub(bounds.middle());
                let add = |sum: i64| sum.saturating_add(bounds.half_width());
                (*to, Offset { ns, uncertainty: done[from].uncertainty.map(add) })
            }
            None => {
                let Some((clock, zero)) = zeros.iter().find(|(clock, _)| !done.contains_key(*clock)) else { break };
                (*clock, Offset { ns: zero.saturating_sub(*first_zero), uncertainty: None })
            }
        };
        done.insert(clock, offset);
    }
    done
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::stats_file::tests::parsed;
    use crate::trace::pairs::tests::end;
    use crate::trace::recording::Recording;
    use crate::trace::recording::tests::with_messages;

    fn process(clock: &str, zero: i64) -> Process {
        let mut recording = Recording::default();
        recording.add("file".into(), &parsed(&with_messages(&[])));
        let (_, process) = recording.processes.pop_first().expect("one");
        Process { clock: clock.into(), zero, ..process }
    }

    /// A message that is cleared at 1,000 and sent at 1,000 + `wait` by one clock, and arrives 2,000 later: the sender's end and the receiver's,
    /// whose clock is `ahead`.
    fn message(connection: u64, wait: u64, ahead: u64) -> [TimedEnd; 2] {
        let (sent, arrived) = (1_000 + wait, 3_000 + wait);
        let sender = end(true, connection, &[(1, sent + 2_500, [0, 0, 2_500])]);
        [sender, end(false, connection, &[(1, arrived + ahead, [0, arrived - 1_000, 0])])]
    }

    #[test]
    fn a_clock_is_set_by_messages_and_the_uncertainty_is_half_of_what_they_leave_open() {
        let (a, b) = (process("a", 0), process("b", 0));
        let ahead = 5_000_000_000;
        let [[one, two], [three, four]] = [message(1, 1_000, ahead), message(2, 300, ahead)];
        let ends = [(&a, &one), (&b, &two), (&a, &three), (&b, &four)];
        let pairs = pairs::connections(ends.iter().map(|(_, end)| *end));
        // From the sending on between -300 and 2,000.
        let offset = offsets(&ends, &pairs)["b"];
        assert_eq!(offset, Offset { ns: -(ahead as i64) - 850, uncertainty: Some(1_150) });
    }

    #[test]
    fn messages_in_the_other_direction_bound_the_difference_too() {
        let (a, b) = (process("a", 0), process("b", 0));
        let [there_from, there_to] = message(1, 1_000, 7_000);
        // The sender's clock is ahead by 7,000.
        let back_from = end(true, 2, &[(1, 1_300 + 2_500 + 7_000, [0, 0, 2_500])]);
        let back_to = end(false, 2, &[(1, 3_300, [0, 2_300, 0])]);
        let ends = [(&a, &there_from), (&b, &there_to), (&b, &back_from), (&a, &back_to)];
        let offset = offsets(&ends, &pairs::connections(ends.iter().map(|(_, end)| *end)))["b"];
        // The messages back leave between -2,000 and 300, and those there between -1,000 and 2,000.
        assert_eq!(offset, Offset { ns: -7_000 + 350, uncertainty: Some(650) });
    }

    #[test]
    fn clocks_are_set_over_others_and_those_that_no_message_reaches_by_the_time_of_day() {
        let all = [("a", 100), ("b", 0), ("c", 0), ("d", 350)].map(|(clock, zero)| process(clock, zero));
        let [[one, two], [three, four]] = [message(1, 2_000, 10_000), message(2, 2_000, 20_000)];
        let alone = end(true, 3, &[]);
        let ends = [(&all[0], &one), (&all[1], &two), (&all[1], &three), (&all[2], &four), (&all[3], &alone)];
        let found = offsets(&ends, &pairs::connections(ends.iter().map(|(_, end)| *end)));
        let found: Vec<_> = found.values().map(|offset| (offset.ns, offset.uncertainty)).collect();
        assert_eq!(found, [(0, Some(0)), (-10_000, Some(2_000)), (-30_000, Some(4_000)), (250, None)]);
    }

    #[test]
    fn one_clock_is_not_set_and_impossible_times_do_not_overflow() {
        let a = process("a", i64::MIN);
        let b = process("b", i64::MAX);
        let most = (1 << 59) - 1;
        let ends = [
            (&a, &end(true, 1, &[(1, most, [0; 3])])),
            (&b, &end(false, 1, &[(1, 0, [0, most, 0])])),
            (&a, &end(true, 2, &[(1, 0, [0, 0, most])])),
            (&b, &end(false, 2, &[(1, most, [0; 3])])),
            (&process("c", i64::MIN), &end(true, 0, &[])),
        ];
        let found = offsets(&ends, &[(0, 1), (2, 3)]);
        assert_eq!((found["a"].ns, found.len()), (0, 3));
        let (one, two) = (end(true, 1, &[(1, 900, [0; 3])]), end(false, 1, &[(1, 100, [0; 3])]));
        assert_eq!(offsets(&[(&a, &one), (&a, &two)], &[(0, 1)]).len(), 1);
    }
}
