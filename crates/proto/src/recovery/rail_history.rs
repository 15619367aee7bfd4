//! How often each rail has fallen, and until when it is not used again beside another one.

use super::rail_mask::RailMask;
use crate::MAX_RAILS;
use crate::control::Time;
use std::time::Duration;

/// Older falls do not count.
const MEMORY: Duration = Duration::from_secs(60);
/// How long a rail waits after its second fall. Each further fall multiplies this by 4.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// The longest wait of a rail.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// How long a rail waits after the first failed attempt over it: retrying interrupts the traffic of
/// the others.
const FIRST_WAIT_AFTER_FAILURE: Duration = Duration::from_secs(1);
/// The longest wait of a rail that has never run, and may never do so.
const LONGEST_WAIT_OF_NEW: Duration = Duration::from_secs(3600);
/// The number of falls that can change the wait of a rail.
const FALLS: usize = 7;

/// How long a rail waits after this many failed attempts in a row. A rail that `has_run` may be
/// back at any time.
pub fn wait_after_failures(in_a_row: u32, has_run: bool) -> Duration {
    let (factor, longest) = if has_run { (2_u32, LONGEST_WAIT) } else { (4, LONGEST_WAIT_OF_NEW) };
    FIRST_WAIT_AFTER_FAILURE
        .saturating_mul(factor.saturating_pow(in_a_row.saturating_sub(1)))
        .min(longest)
}

/// The history of all rails of a connection. A rail falls when an end can no longer use it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RailHistory {
    /// The rails that both ends can use.
    usable: RailMask,
    /// The rails that the connection has run on.
    run: RailMask,
    /// The latest falls of each rail.
    falls: [[Option<Time>; FALLS]; MAX_RAILS],
    /// How many attempts over each rail have failed since the connection last ran on it.
    failures: [u8; MAX_RAILS],
    /// Until when each rail waits.
    wait: [Time; MAX_RAILS],
}

impl RailHistory {
    /// A connection that runs on `rails`; none of them has failed.
    pub(super) fn new(rails: RailMask) -> Self {
        let (falls, failures, wait) =
            ([[None; FALLS]; MAX_RAILS], [0; MAX_RAILS], [Time::ZERO; MAX_RAILS]);
        Self { usable: rails, run: rails, falls, failures, wait }
    }

    /// The connection runs on `rails`.
    pub(super) fn handle_running(&mut self, rails: RailMask) {
        self.run = self.run | rails;
        rails.iter().for_each(|rail| self.failures[usize::from(rail) % MAX_RAILS] = 0);
    }

    /// The rails that both ends can use.
    pub(super) fn usable(&self) -> RailMask {
        self.usable
    }

    /// Records that both ends can use `usable` from now on.
    pub(super) fn handle_usable(&mut self, now: Time, usable: RailMask) {
        let before = std::mem::replace(&mut self.usable, usable);
        for (rail, (falls, wait)) in (0..).zip(self.falls.iter_mut().zip(&mut self.wait)) {
            match (before.contains(rail), usable.contains(rail)) {
                (true, false) => {
                    falls.rotate_right(1);
                    falls[0] = Some(now);
                }
                (false, true) => {
                    let recent = falls
                        .iter()
                        .flatten()
                        .filter(|fall| now.saturating_sub(**fall) < MEMORY)
                        .count();
                    *wait = now + wait_after(recent as u32);
                }
                _ => {}
            }
        }
    }

    /// Records that nothing arrives over `rails`, although both ends could use them: no port event
    /// will show when that has passed.
    pub(super) fn handle_unreachable(&mut self, now: Time, rails: RailMask) {
        for (rail, has_run) in
            rails.iter().map(|rail| (usize::from(rail) % MAX_RAILS, self.run.contains(rail)))
        {
            let falls = &mut self.falls[rail];
            falls.rotate_right(1);
            falls[0] = Some(now);
            let recent =
                falls.iter().flatten().filter(|fall| now.saturating_sub(**fall) < MEMORY).count();
            self.failures[rail] = self.failures[rail].saturating_add(1);
            let wait = wait_after_failures(self.failures[rail].into(), has_run);
            self.wait[rail] = now + wait_after(recent as u32).max(wait);
        }
    }

    /// The usable rails that need not wait.
    pub(super) fn ready(&self, now: Time) -> RailMask {
        let waiting =
            self.usable.iter().filter(|rail| self.wait[usize::from(*rail) % MAX_RAILS] > now);
        waiting.fold(self.usable, |ready, rail| ready - RailMask::only(rail))
    }

    /// When the next one of `rails` need not wait any more.
    pub(super) fn next_ready(&self, rails: RailMask) -> Option<Time> {
        (rails & self.usable).iter().map(|rail| self.wait[usize::from(rail) % MAX_RAILS]).min()
    }
}

fn wait_after(falls: u32) -> Duration {
    match falls {
        0 | 1 => Duration::ZERO,
        n => FIRST_WAIT.saturating_mul(4_u32.saturating_pow(n - 2)).min(LONGEST_WAIT),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_rail_waits_although_it_is_usable() {
        let both = RailMask::first(2);
        let mut history = RailHistory::new(both);
        let now = Time::from_secs(100);
        history.handle_unreachable(now, RailMask::only(1));
        assert_eq!((history.usable(), history.ready(now)), (both, RailMask::only(0)));
        assert_eq!(history.ready(now + FIRST_WAIT_AFTER_FAILURE), both);
    }

    /// In seconds: how long rail 1 waits after each of ten failures, the first of them at `now` and
    /// each as soon as it may be used again.
    fn waits_of(history: &mut RailHistory, mut now: Time) -> [u64; 10] {
        let only = RailMask::only(1);
        std::array::from_fn(|_| {
            let begun = now;
            history.handle_unreachable(now, only);
            now = history.next_ready(only).expect("usable");
            (now - begun).as_secs()
        })
    }

    #[test]
    fn an_unreachable_rail_waits_longer_each_time_until_it_runs() {
        let both = RailMask::first(2);
        let mut history = RailHistory::new(both);
        assert_eq!(waits_of(&mut history, Time::ZERO), [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
        history.handle_running(RailMask::only(0));
        history.handle_unreachable(Time::from_secs(10_000), RailMask::only(1));
        assert_eq!(
            history.next_ready(RailMask::only(1)),
            Some(Time::from_secs(10_060)),
            "another one has run"
        );
        history.handle_running(both);
        assert_eq!(waits_of(&mut history, Time::from_secs(20_000))[..3], [1, 2, 4]);
    }

    #[test]
    fn a_rail_that_has_never_run_waits_up_to_an_hour() {
        let mut history = RailHistory::new(RailMask::only(0));
        history.handle_usable(Time::ZERO, RailMask::first(2));
        assert_eq!(
            waits_of(&mut history, Time::ZERO),
            [1, 4, 16, 64, 256, 1024, 3600, 3600, 3600, 3600]
        );
        history.handle_running(RailMask::first(2));
        assert_eq!(waits_of(&mut history, Time::from_secs(50_000))[..3], [1, 2, 4]);
    }

    #[test]
    fn a_rail_waits_longer_with_each_fall_within_a_minute() {
        let (both, one) = (RailMask::first(2), RailMask::only(0));
        let mut history = RailHistory::new(both);
        let mut now = Time::from_secs(1);
        let mut waits = Vec::new();
        for _ in 0..9 {
            history.handle_usable(now, one);
            assert_eq!(history.ready(now), one);
            history.handle_usable(now, both);
            waits.push((history.next_ready(RailMask::only(1)).expect("usable") - now).as_millis());
            assert_eq!(history.ready(now + LONGEST_WAIT), both);
            now += Duration::from_millis(1);
        }
        assert_eq!(waits, [0, 100, 400, 1600, 6400, 25_600, 60_000, 60_000, 60_000]);
        now += MEMORY;
        history.handle_usable(now, one);
        history.handle_usable(now, both);
        assert_eq!(history.ready(now), both, "only the last fall counts");
    }
}
