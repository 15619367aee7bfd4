//! How often each rail has fallen, and until when it is not used again beside another one.

use super::rail_mask::RailMask;
use crate::MAX_RAILS;
use crate::control::Time;
use std::time::Duration;

/// Falls that are longer ago do not count.
const MEMORY: Duration = Duration::from_secs(60);
/// How long a rail waits that has fallen twice. With each further fall it is 4 times as long.
const FIRST_WAIT: Duration = Duration::from_millis(100);
/// A rail waits no longer than this.
const LONGEST_WAIT: Duration = Duration::from_secs(60);
/// A rail waits at least so long that nothing comes through over: to try it again interrupts the traffic of the others.
const LEAST_WAIT_UNREACHABLE: Duration = Duration::from_secs(1);
/// As many falls as change the time that a rail waits.
const FALLS: usize = 7;

/// The history of all rails of a connection. A rail falls when an end cannot use it any more.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct RailHistory {
    /// The rails that both ends can use.
    usable: RailMask,
    /// The latest falls of each rail.
    falls: [[Option<Time>; FALLS]; MAX_RAILS],
    /// Until when each rail waits.
    wait: [Time; MAX_RAILS],
}

impl RailHistory {
    /// Both ends can use `rails`, and none has fallen.
    pub(super) fn new(rails: RailMask) -> Self {
        Self { usable: rails, falls: [[None; FALLS]; MAX_RAILS], wait: [Time::ZERO; MAX_RAILS] }
    }

    /// The rails that both ends can use.
    pub(super) fn usable(&self) -> RailMask {
        self.usable
    }

    /// Both ends can use `usable` from now on.
    pub(super) fn handle_usable(&mut self, now: Time, usable: RailMask) {
        let before = std::mem::replace(&mut self.usable, usable);
        for (rail, (falls, wait)) in (0..).zip(self.falls.iter_mut().zip(&mut self.wait)) {
            match (before.contains(rail), usable.contains(rail)) {
                (true, false) => {
                    falls.rotate_right(1);
                    falls[0] = Some(now);
                }
                (false, true) => {
                    let recent = falls.iter().flatten().filter(|fall| now.saturating_sub(**fall) < MEMORY).count();
                    *wait = now + wait_after(recent as u32);
                }
                _ => {}
            }
        }
    }

    /// Nothing comes through over `rails`, although both ends could use them: no port will tell when that has passed.
    pub(super) fn handle_unreachable(&mut self, now: Time, rails: RailMask) {
        for rail in rails.iter().map(usize::from).filter(|rail| *rail < MAX_RAILS) {
            let falls = &mut self.falls[rail];
            falls.rotate_right(1);
            falls[0] = Some(now);
            let recent = falls.iter().flatten().filter(|fall| now.saturating_sub(**fall) < MEMORY).count();
            self.wait[rail] = now + wait_after(recent as u32).max(LEAST_WAIT_UNREACHABLE);
        }
    }

    /// Of the rails that both ends can use, those that need not wait.
    pub(super) fn ready(&self, now: Time) -> RailMask {
        let waiting = self.usable.iter().filter(|rail| self.wait[usize::from(*rail) % MAX_RAILS] > now);
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
        assert_eq!(history.ready(now + LEAST_WAIT_UNREACHABLE), both);
        (0..3).for_each(|_| history.handle_unreachable(now, RailMask::only(1)));
        assert_eq!(history.next_ready(both - RailMask::only(0)), Some(now + Duration::from_millis(1600)));
    }

    #[test]
    fn what_did_not_come_through_a_minute_ago_does_not_count() {
        let (mut history, now) = (RailHistory::new(RailMask::first(2)), Time::from_secs(100));
        (0..3).for_each(|_| history.handle_unreachable(now, RailMask::only(1)));
        history.handle_unreachable(now + MEMORY, RailMask::only(1));
        assert_eq!(history.next_ready(RailMask::only(1)), Some(now + MEMORY + LEAST_WAIT_UNREACHABLE));
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
