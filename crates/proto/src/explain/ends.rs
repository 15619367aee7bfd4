//! The ends of a process's connections.
//!
//! A process may have many thousands. Facts about all of them are computed once for each check,
//! question or report, not for each end: a test counts the visited ends.

use super::local_end::{LocalEnd, SETTLED};
use super::snapshot::{CheckedEnd, EndCheck};
use crate::control::Time;
use std::collections::BTreeMap;
use std::time::Duration;

/// Identifies an end within its process.
pub type EndId = u64;

/// They are checked every second. After such a long gap this process was stopped.
pub const STOPPED: Duration = Duration::from_secs(5);

/// All known ends, with their latest state.
#[derive(Debug, Default)]
pub(super) struct Ends {
    by_id: BTreeMap<EndId, LocalEnd>,
    /// The lead of each end when the process was last idle.
    baseline: BTreeMap<EndId, u32>,
    /// When they were last checked.
    looked: Time,
    /// The rank with which this process sends, if messages show exactly one.
    rank: Option<u32>,
    /// How many ends were visited.
    #[cfg(test)]
    reads: std::cell::Cell<usize>,
}

impl Ends {
    /// Handles the present state of all ends, in order of their numbers. Ends that are busy keep
    /// their earlier state. Returns whether a waiting end was closed.
    ///
    /// After a long gap this process was stopped, so how long anything has stood still is unknown.
    pub(super) fn handle_checked_ends(&mut self, now: Time, ends: Vec<CheckedEnd>) -> bool {
        if now > std::mem::replace(&mut self.looked, now) + STOPPED {
            self.by_id.clear();
        }
        let has_changed = ends.len() != self.by_id.len()
            || ends.iter().any(|checked_end| checked_end.found != EndCheck::Unchanged);
        if !has_changed {
            return false;
        }
        let is_there =
            |id: &EndId| ends.binary_search_by_key(id, |checked_end| checked_end.id).is_ok();
        let has_lost_wait =
            self.iter().any(|(id, end)| !is_there(id) && end.snapshot.numbers.is_waiting());
        self.by_id.retain(|id, _| is_there(id));
        self.baseline.retain(|id, _| is_there(id));
        for CheckedEnd { id, found, peer, operation, recovery } in ends {
            match (self.by_id.get_mut(&id), found) {
                (Some(end), EndCheck::Snapshot(snapshot)) => {
                    end.update(now, snapshot);
                    (end.operation, end.recovery) = (operation, recovery);
                }
                (Some(end), EndCheck::InCall) => end.called = now,
                (None, EndCheck::Snapshot(snapshot)) => {
                    drop(self.by_id.insert(id, LocalEnd::new(now, snapshot, peer, operation)))
                }
                (None, EndCheck::InCall) | (_, EndCheck::Visited | EndCheck::Unchanged) => {}
            }
        }
        if !self.are_waiting() {
            self.baseline =
                self.iter().map(|(id, end)| (*id, end.snapshot.numbers.lead())).collect();
        }
        self.rank = self.only_rank();
        has_lost_wait
    }

    /// One of them.
    pub(super) fn get(&self, id: EndId) -> Option<&LocalEnd> {
        self.by_id.get(&id)
    }

    /// One of them, for an exchange with its peer.
    pub(super) fn get_mut(&mut self, id: EndId) -> Option<&mut LocalEnd> {
        self.by_id.get_mut(&id)
    }

    /// All, in the order of their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&EndId, &LocalEnd)> {
        self.by_id.iter().inspect(|_| self.count())
    }

    /// Whether any of them waits, however briefly.
    pub(super) fn are_waiting(&self) -> bool {
        self.iter().any(|(_, end)| end.snapshot.numbers.is_waiting())
    }

    /// Whether one has moved messages, or begun to wait, within the last second.
    pub(super) fn are_busy(&self, now: Time) -> bool {
        self.iter().any(|(_, end)| now < end.since + SETTLED)
    }

    /// The rank of this process for the peer of an end, if messages show it.
    pub(super) fn rank(&self, id: Option<EndId>) -> Option<u32> {
        id.and_then(|id| self.get(id)?.own_rank()).or(self.rank)
    }

    /// Messages sent minus messages received, over all ends, since the process was last idle.
    pub(super) fn lead(&self) -> i32 {
        let lead = |(id, end): (&EndId, &LocalEnd)| {
            end.snapshot.numbers.lead().wrapping_sub(self.baseline.get(id).copied().unwrap_or(0))
        };
        self.iter().map(lead).fold(0, u32::wrapping_add) as i32
    }

    fn only_rank(&self) -> Option<u32> {
        let mut ranks = self.iter().filter_map(|(_, end)| end.own_rank());
        let first = ranks.next()?;
        ranks.all(|rank| rank == first).then_some(first)
    }

    #[cfg(not(test))]
    fn count(&self) {}

    #[cfg(test)]
    fn count(&self) {
        self.reads.update(|reads| reads + 1);
    }

    /// How many ends were visited since the last call.
    #[cfg(test)]
    pub(super) fn take_reads(&self) -> usize {
        self.reads.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explain::numbers::Numbers;
    use crate::explain::snapshot::{Contact, EndSnapshot};
    use crate::identity::Identity;

    fn checked_end(id: EndId, numbers: Numbers) -> CheckedEnd {
        let (refusals, calls, contact) = (0, 0, Contact::Up);
        let snapshot = EndSnapshot {
            numbers,
            refusals,
            calls,
            has_requests: true,
            recovers: false,
            contact,
            sender_rank: None,
        };
        let peer = Identity { host: "n".into(), pid: 1, rank: None, label: None };
        CheckedEnd {
            id,
            found: EndCheck::Snapshot(snapshot),
            peer,
            operation: None,
            recovery: String::new(),
        }
    }

    fn snapshot(ends: &mut Ends, now: Time) {
        ends.handle_checked_ends(
            now,
            vec![checked_end(
                1,
                Numbers::Sender { seen: 1, sent: 1, acknowledged: 0, wants: false },
            )],
        );
    }

    #[test]
    fn ends_that_are_as_before_keep_their_state_and_are_not_visited() {
        let (mut ends, first) = (Ends::default(), Time::from_secs(1));
        let idle = |id| {
            checked_end(id, Numbers::Sender { seen: 1, sent: 1, acknowledged: 1, wants: false })
        };
        ends.handle_checked_ends(first, vec![idle(1), idle(2)]);
        ends.take_reads();
        let again = first + Duration::from_secs(1);
        ends.handle_checked_ends(again, vec![CheckedEnd::unchanged(1), CheckedEnd::unchanged(2)]);
        assert_eq!((ends.take_reads(), ends.get(2).map(|end| end.since)), (0, Some(first)));
        ends.handle_checked_ends(again, vec![CheckedEnd::unchanged(2)]);
        assert!(ends.get(1).is_none() && ends.get(2).is_some(), "one has been closed");
        ends.handle_checked_ends(again + STOPPED * 2, vec![CheckedEnd::unchanged(2)]);
        assert!(ends.get(2).is_none(), "what was known before a stop is outdated");
    }

    /// A process that was stopped does not know how long its ends have waited.
    #[test]
    fn ends_of_a_process_that_was_stopped_are_new() {
        let (mut ends, first) = (Ends::default(), Time::from_secs(1));
        snapshot(&mut ends, first);
        snapshot(&mut ends, first + STOPPED);
        assert_eq!(ends.get(1).map(|end| end.since), Some(first), "it was looked at in time");
        let later = first + STOPPED + STOPPED + Duration::from_millis(1);
        snapshot(&mut ends, later);
        assert_eq!(ends.get(1).map(|end| end.since), Some(later));
    }

    #[test]
    fn a_process_leads_by_what_it_has_sent_less_what_it_has_received_since_it_waited_for_nothing() {
        let mut ends = Ends::default();
        let mut lead = |sent: u32, acknowledged: u32, arrived: u32| {
            let sender = Numbers::Sender { seen: 99, sent, acknowledged, wants: false };
            let receiver =
                Numbers::Receiver { posted: arrived, announced: arrived, arrived, flushes: false };
            ends.handle_checked_ends(
                Time::from_secs(1),
                vec![checked_end(1, sender), checked_end(2, receiver)],
            );
            ends.lead()
        };
        assert_eq!(lead(10, 10, 30), 0, "it waits for nothing");
        assert_eq!([lead(15, 12, 32), lead(16, 12, 40)], [3, -4]);
    }

    #[test]
    fn an_end_that_has_stood_still_for_a_second_is_not_busy() {
        let (mut ends, first) = (Ends::default(), Time::from_secs(1));
        snapshot(&mut ends, first);
        assert!(
            ends.are_busy(first + SETTLED - Duration::from_millis(1))
                && !ends.are_busy(first + SETTLED)
        );
    }
}
