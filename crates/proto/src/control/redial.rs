//! When to redial a peer whose control connection is lost, and when to declare it dead.
//!
//! There is no limit: while the network is down, whether the peer is alive is unknown. Only a
//! refusing port shows that it is dead, and not at once: a full queue of clients gets the same
//! answer. A firewall may also refuse, for any time; then the peer's device still acknowledges. The
//! device of a dead process does not: its queue pairs end with it, since forked children do not
//! keep the device open.

use super::Time;
use std::time::Duration;

/// The first pause after a loss; it doubles each time.
pub const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// The longest pause.
pub const LAST_PAUSE: Duration = Duration::from_secs(1);
/// How long a TCP connection may take: the kernel itself would retransmit the first packet for up
/// to a minute.
pub const DIAL_LIMIT: Duration = Duration::from_secs(5);
/// After this long, the end of a control connection does not suggest that something ends each new
/// one.
const STEADY: Duration = Duration::from_secs(10);

/// Refusals in a row that show a closed port.
const REFUSALS: u32 = 3;
/// The longest gap within a row. After a longer one nothing was dialled, for example because this
/// process was stopped.
const GAP: Duration = Duration::from_secs(5);
/// The least time between the first and the last of them.
const REFUSED_FOR: Duration = Duration::from_secs(1);
/// How long an end that does not dial waits before it asks the peer to dial.
const ASK_AFTER: Duration = Duration::from_millis(200);
/// A peer that has closed the control connection is dead if it gives no other sign of life for this
/// time.
pub const DOUBT_LIMIT: Duration = Duration::from_secs(10);
/// A peer whose device acknowledges is dead all the same after this time without another sign of
/// life.
pub const LONGEST_DOUBT: Duration = Duration::from_secs(600);
/// A peer that cannot be dialled is looked after so often.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Looks in a row without an acknowledgement of the peer's device that show that it is silent.
pub const LOOKS: u32 = 3;
/// Looks that follow sooner count as one. The device is asked more often.
const LOOKS_APART: Duration = Duration::from_millis(500);

/// The attempts to dial one peer since its last control connection was lost.
#[derive(Debug, Default)]
pub struct Redial {
    due: Option<Time>,
    pause: Duration,
    /// Losses in quick succession.
    losses: u32,
}

impl Redial {
    /// When to dial the peer; `None` during an attempt, or if there is no need.
    pub fn due(&self) -> Option<Time> {
        self.due
    }

    /// A control connection established at `since` is lost at `now`: redials after a pause that
    /// grows with the number of losses. `jitter` is a random number.
    pub fn handle_loss(&mut self, now: Time, since: Time, jitter: u64) {
        if now.saturating_sub(since) > STEADY {
            self.losses = 0;
        }
        self.pause = LAST_PAUSE.min(FIRST_PAUSE * (1 << self.losses.min(10)));
        self.losses = self.losses.saturating_add(1);
        self.due = Some(now + spread(self.pause, jitter));
    }

    /// Handles a failed attempt.
    pub fn handle_failed_dial(&mut self, now: Time, jitter: u64) {
        self.due = Some(now + spread(self.pause, jitter));
        self.pause = LAST_PAUSE.min(2 * self.pause.max(FIRST_PAUSE));
    }

    /// The peer should dial; asks it to if it does not.
    pub fn handle_wait(&mut self, now: Time, jitter: u64) {
        self.due = Some(now + spread(ASK_AFTER, jitter));
        self.pause = FIRST_PAUSE;
    }

    /// The network has changed: moves a later attempt to `now`.
    pub fn handle_network_change(&mut self, now: Time) {
        self.due = self.due.map(|due| due.min(now));
    }

    /// Stops the timer: an attempt is in progress, or there is no need any more.
    pub fn stop(&mut self) {
        self.due = None;
    }
}

/// Whether a refusing port belongs to a dead process.
#[derive(Debug, Default, Clone, Copy)]
pub struct Refusals {
    count: u32,
    since: Time,
    last: Time,
}

impl Refusals {
    /// Counts a refusal.
    pub fn handle_refusal(&mut self, now: Time) {
        if self.count == 0 || now.saturating_sub(self.last) > GAP {
            (self.count, self.since) = (0, now);
        }
        (self.count, self.last) = (self.count.saturating_add(1), now);
    }

    /// An attempt has had another result.
    pub fn clear(&mut self) {
        self.count = 0;
    }

    /// Whether there are none.
    pub fn are_none(&self) -> bool {
        self.count == 0
    }

    /// Whether there were enough, over long enough, to show that the peer's process has ended.
    pub fn indicate_peer_death(&self, now: Time) -> bool {
        self.count >= REFUSALS && now.saturating_sub(self.since) >= REFUSED_FOR
    }
}

/// Looks for an acknowledgement of a peer's device.
///
/// They are counted, and not only timed: a process that was stopped, or had no processor, looks
/// once when it runs again, perhaps before its device was asked. The acknowledgements that it has
/// missed do not show that the peer is dead.
#[derive(Debug, Default, Clone, Copy)]
pub struct Silence {
    looks: u32,
    last: Time,
}

impl Silence {
    /// One more. The device `acknowledged` something last then.
    pub fn handle_look(&mut self, now: Time, acknowledged: Option<Time>) {
        if acknowledged.is_some_and(|acknowledged| acknowledged >= self.last) {
            *self = Self { looks: 0, last: now };
        } else if self.looks == 0 || now.saturating_sub(self.last) >= LOOKS_APART {
            *self = Self { looks: self.looks.saturating_add(1), last: now };
        }
    }

    fn is_long(&self) -> bool {
        self.looks >= LOOKS
    }
}

/// What speaks for and against the life of a peer that does not answer.
#[derive(Debug, Default, Clone, Copy)]
pub struct LifeSigns {
    /// Refusals of its port.
    pub refusals: Refusals,
    /// Since when a control connection is closed without life signs over another one.
    pub closed: Option<Time>,
    /// Since when all waiting ends probe its device.
    pub doubted: Option<Time>,
    /// Looks without an acknowledgement of its device since then.
    pub silence: Silence,
}

impl LifeSigns {
    /// Whether to probe its device.
    pub fn cast_doubt(&self) -> bool {
        !self.refusals.are_none() || self.closed.is_some()
    }

    /// Whether they show that it is dead.
    pub fn indicate_peer_death(&self, now: Time) -> bool {
        let lasts = |since: Option<Time>, time| {
            since.is_some_and(|since| now.saturating_sub(since) >= time)
        };
        // The device of a dead process may acknowledge as long as something else has it open, such
        // as a child that was not forked by `fork`.
        let is_silent =
            self.doubted.is_some() && self.silence.is_long() || lasts(self.doubted, LONGEST_DOUBT);
        is_silent && (self.refusals.indicate_peer_death(now) || lasts(self.closed, DOUBT_LIMIT))
    }
}

/// Between three and five quarters of `pause`, so that processes that lost their peer together do
/// not all return together.
fn spread(pause: Duration, jitter: u64) -> Duration {
    pause * 3 / 4 + pause * (jitter % 513) as u32 / 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_with_each_loss_and_each_failure_up_to_a_second_and_are_spread() {
        let mut redial = Redial::default();
        let now = Duration::from_secs(100);
        for losses in 0..20 {
            redial.handle_loss(now, now, u64::MAX / 30 * losses);
            let pause = LAST_PAUSE.min(FIRST_PAUSE * (1 << losses.min(10)));
            let due = redial.due().expect("it is dialled");
            assert!(
                (now + pause * 3 / 4..=now + pause * 5 / 4).contains(&due),
                "{losses}: {due:?}"
            );
        }
        redial.handle_loss(now + 2 * STEADY, now, 0);
        assert_eq!(
            redial.due(),
            Some(now + 2 * STEADY + FIRST_PAUSE * 3 / 4),
            "it has stood for long"
        );
        let mut before = Duration::ZERO;
        for _ in 0..10 {
            redial.handle_failed_dial(now, 256);
            let pause = redial.due().expect("again") - now;
            assert!(pause >= before && pause <= LAST_PAUSE * 5 / 4);
            before = pause;
        }
        assert_eq!(spread(LAST_PAUSE, 0), LAST_PAUSE * 3 / 4);
        assert_ne!(spread(LAST_PAUSE, 1), spread(LAST_PAUSE, 400));
    }

    #[test]
    fn a_change_of_the_network_makes_an_attempt_due_that_waits_and_no_other() {
        let (mut redial, now) = (Redial::default(), Duration::from_secs(100));
        redial.handle_network_change(now);
        assert_eq!(redial.due(), None);
        redial.handle_loss(now, now, 0);
        assert!(redial.due() > Some(now));
        redial.handle_network_change(now);
        assert_eq!(redial.due(), Some(now));
        redial.handle_network_change(now + STEADY);
        assert_eq!(redial.due(), Some(now), "it is not put off");
    }

    #[test]
    fn three_refusals_within_a_second_or_two_over_a_day_are_no_death() {
        let mut refusals = Refusals::default();
        let at = |ms| Duration::from_millis(ms);
        for ms in [0, 10, 30, 999] {
            refusals.handle_refusal(at(ms));
            assert!(!refusals.indicate_peer_death(at(ms)), "{ms} ms");
        }
        refusals.handle_refusal(at(1000));
        assert!(refusals.indicate_peer_death(at(1000)));
        refusals.clear();
        for ms in [2000, 90_000_000, 90_005_001] {
            refusals.handle_refusal(at(ms));
            assert!(!refusals.indicate_peer_death(at(ms)), "{ms} ms");
        }
    }

    #[test]
    fn a_peer_whose_device_acknowledges_lives_however_long_its_port_refuses() {
        let at = |ms| Duration::from_millis(ms);
        let mut signs = LifeSigns::default();
        assert!(!signs.cast_doubt());
        (0..3).for_each(|n| signs.refusals.handle_refusal(at(n * 500)));
        assert!(
            signs.cast_doubt() && !signs.indicate_peer_death(at(1000)),
            "nobody has asked its device"
        );
        signs.doubted = Some(at(0));
        let look = |signs: &mut LifeSigns, ms, acknowledged: Option<u64>| {
            signs.refusals.handle_refusal(at(ms));
            signs.silence.handle_look(at(ms), acknowledged.map(at));
            signs.indicate_peer_death(at(ms))
        };
        assert_eq!(
            [0, 499, 500, 999, 1000].map(|ms| look(&mut signs, ms, None)),
            [false, false, false, false, true]
        );
        assert!(!look(&mut signs, 1500, Some(1000)), "as late as the last look");
        assert_eq!(
            [2000, 2500, 3000].map(|ms| look(&mut signs, ms, Some(1499))),
            [false, false, true]
        );
        assert!((7..1200).all(|n| !look(&mut signs, n * 500, Some(n * 500 - 1))));
        assert_eq!(
            [599_999, 600_000].map(|ms| signs.indicate_peer_death(at(ms))),
            [false, true],
            "something has its device open"
        );
    }

    #[test]
    fn a_peer_that_has_closed_and_is_silent_is_dead_unless_its_device_acknowledges() {
        let at = |ms| Duration::from_millis(ms);
        let mut signs = LifeSigns { closed: Some(at(0)), ..LifeSigns::default() };
        (0..LOOKS).for_each(|n| signs.silence.handle_look(LOOK_EVERY * n, None));
        assert!(
            signs.cast_doubt() && !signs.indicate_peer_death(at(90_000)),
            "nobody has asked its device"
        );
        signs.doubted = Some(at(0));
        assert_eq!([9999, 10_000].map(|ms| signs.indicate_peer_death(at(ms))), [false, true]);
        signs.silence.handle_look(at(60_000), Some(at(59_500)));
        assert!(!signs.indicate_peer_death(at(60_000)));
    }

    #[test]
    fn who_waits_to_be_dialled_asks_after_a_fifth_of_a_second_and_then_sooner() {
        let (mut redial, now) = (Redial::default(), Duration::from_secs(100));
        redial.handle_wait(now, 256);
        assert_eq!(redial.due(), Some(now + ASK_AFTER));
        redial.handle_failed_dial(now, 256);
        assert_eq!(redial.due(), Some(now + FIRST_PAUSE));
    }

    #[test]
    fn a_connection_that_has_stood_for_ten_seconds_is_still_lost_soon() {
        let now = Duration::from_secs(100);
        let due_after = |stood: Duration| {
            let mut redial = Redial::default();
            redial.handle_loss(now, now, 0);
            redial.handle_loss(now, now - stood, 0);
            redial.due()
        };
        assert_eq!(due_after(STEADY), Some(now + FIRST_PAUSE * 2 * 3 / 4));
        assert_eq!(due_after(STEADY + Duration::from_nanos(1)), Some(now + FIRST_PAUSE * 3 / 4));
    }
}
