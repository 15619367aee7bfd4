//! How an end finds out that its path or its peer is gone, what it can do meanwhile, and the error
//! with which it fails.

use crate::error::{Error, Result};
use crate::host::clock;
use crate::net::peer::first_error;
use crate::net::peer::state::PeerState;
use crate::net::qp::set::QpSet;
use crate::net::qp::wr_id::WrId;
use crate::proto::{MAX_RAILS, QpIndex};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Tests without success from one look at the clock to the next: as many as an `u8` counts.
const LOOK_EVERY: u32 = 1 << u8::BITS;
/// Time without a suspicion after which the limit is halved.
const QUIET: Duration = Duration::from_secs(60);
/// Data may take this many times as long as at the rails' nominal speed.
const SLACK: u32 = 50;
/// An acknowledgement may take this many times as long as in the test of the queue pairs, beside the limit.
const ROUND_TRIPS: u32 = 2;
/// The limit is never more than this many times the first one.
const MAX_FACTOR: u32 = 8;

/// Finding a path that carries nothing although no device reports an error.
///
/// A device resends for seconds before it reports that the peer does not acknowledge. A message that is the oldest one under way for
/// much longer than the data and its acknowledgement take shows that earlier. How long the acknowledgement takes is known once the
/// connection, or another one to the same port, has recovered, which tests its new queue pairs: on a path of a long round trip the first
/// suspicion is wrong, and there are no others. A wrong suspicion costs little: the connection recovers, and nothing is lost. Each
/// suspicion doubles the time until the next one, so that a fabric that pauses for long is not disturbed again and again. Each
/// quiet minute halves it again.
#[derive(Debug)]
pub struct Stall {
    /// Tests without success since the last time that [`Self::is_due`] said so.
    tests: u8,
    /// How often it has said so, modulo 2^32.
    looks: u32,
    oldest: Option<(u32, Instant)>,
    /// Time without an acknowledgement after which a path is suspected; zero: never.
    limit: Duration,
    /// Zero: it is not known.
    round_trip: Duration,
    factor: u32,
    /// When there was a suspicion last, or when the factor was halved.
    last: Instant,
}

impl Stall {
    /// A path is suspected after `limit_ms` milliseconds, and the time that the data and its acknowledgement take; 0: never. The
    /// `round_trip` is zero if it is not known.
    pub fn new(limit_ms: u64, round_trip: Duration) -> Self {
        let limit = Duration::from_millis(limit_ms);
        Self { tests: 0, looks: 0, oldest: None, limit, round_trip, factor: 1, last: clock::now() }
    }

    /// To be called after each test without success: whether it is time for [`Self::check`].
    #[inline(always)]
    pub fn is_due(&mut self) -> bool {
        self.tests = self.tests.wrapping_add(1);
        let is_due = self.tests == 0;
        if is_due {
            self.count_look();
        }
        is_due
    }

    /// What [`Self::is_due`] has returned last.
    pub fn was_due(&self) -> bool {
        self.tests == 0
    }

    #[cold]
    #[inline(never)]
    fn count_look(&mut self) {
        self.looks = self.looks.wrapping_add(1);
    }

    /// How often [`Self::is_due`] has been called, modulo 2^32.
    pub fn tests(&self) -> u32 {
        self.looks.wrapping_mul(LOOK_EVERY).wrapping_add(self.tests.into())
    }

    /// Message `oldest` is the oldest one under way `now`. Returns for how long, if that is suspicious. `data_time` is how long all data
    /// takes that is under way.
    pub fn check(&mut self, oldest: u32, data_time: Duration, now: Instant) -> Option<Duration> {
        let waited = self.waited(oldest, now)?;
        self.calm_down(now);
        if self.limit.is_zero() || waited < (self.patience() + SLACK * data_time) * self.factor {
            return None;
        }
        self.oldest = None;
        self.back_off(now);
        Some(waited)
    }

    /// There was a suspicion: the next one takes twice as long.
    pub fn back_off(&mut self, now: Instant) {
        self.factor = (self.factor * 2).min(MAX_FACTOR);
        self.last = now;
    }

    fn calm_down(&mut self, now: Instant) {
        if self.factor > 1 && now.saturating_duration_since(self.last) >= QUIET {
            self.factor /= 2;
            self.last = now;
        }
    }

    /// How long message `oldest` has been the oldest one under way; `None` when it is asked for the first time.
    pub fn waited(&mut self, oldest: u32, now: Instant) -> Option<Duration> {
        match self.oldest {
            Some((before, since)) if before == oldest => Some(now.saturating_duration_since(since)),
            _ => {
                self.oldest = Some((oldest, now));
                None
            }
        }
    }

    /// Time without an acknowledgement after which a path is suspected; zero: never.
    pub fn limit(&mut self, now: Instant) -> Duration {
        self.calm_down(now);
        if self.limit.is_zero() { Duration::ZERO } else { self.patience() * self.factor }
    }

    fn patience(&self) -> Duration {
        self.limit + ROUND_TRIPS * self.round_trip
    }

    /// There are new queue pairs, whose test has found this `round_trip`. What has been waited for so far does not count.
    pub fn reset(&mut self, round_trip: Duration) {
        (self.oldest, self.round_trip) = (None, round_trip);
    }
}

/// The probes of one end: writes of zero bytes, which tell whether the peer's device still acknowledges.
///
/// While the control connection is lost and the peer's host cannot be reached over it, nothing else tells this end that the peer is gone.
/// An end with writes in flight learns of it when they fail. An end that waits for the peer has no writes in flight, and would wait for
/// ever, so it posts a probe now and then. The peer's device acknowledges it, without its process, as long as the process
/// lives; a failed probe is reported like a failed write of data. Where the peer's port refuses, probes are sent often: one that is
/// acknowledged shows that it is not the peer's process that refuses.
#[derive(Debug, Default)]
pub struct Probe {
    /// Writes that are not complete.
    outstanding: u32,
    /// When it was a probe's turn last.
    turn: Option<Instant>,
    /// When the last one was sent.
    sent: Option<Instant>,
}

/// Time from one probe to the next. A device takes longer to report a missing acknowledgement, as `NCCL_IB_TIMEOUT` says.
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// The same while it is doubted that the peer lives.
const PROBE_EVERY_IN_DOUBT: Duration = Duration::from_millis(200);

impl Probe {
    /// Posts a write on the first queue pair of each rail, unless a probe is outstanding or was sent within the last [`PROBE_EVERY`], or
    /// [`PROBE_EVERY_IN_DOUBT`]. The caller keeps room for it in the send queues.
    ///
    /// # Errors
    /// The device refuses the write.
    pub fn send(&mut self, qps: &mut QpSet, is_in_doubt: bool) -> Result<()> {
        let every = if is_in_doubt { PROBE_EVERY_IN_DOUBT } else { PROBE_EVERY };
        if self.take_turn(clock::now(), every) { self.send_now(qps) } else { Ok(()) }
    }

    /// Whether a probe is due `now`, which it is so often.
    fn take_turn(&mut self, now: Instant, every: Duration) -> bool {
        let is_due = !self.is_outstanding() && self.turn.is_none_or(|turn| turn + every <= now);
        if is_due {
            self.turn = Some(now);
        }
        is_due
    }

    /// Posts a write on the first queue pair of each rail. No probe may be outstanding.
    ///
    /// # Errors
    /// The device refuses the write.
    pub fn send_now(&mut self, qps: &mut QpSet) -> Result<()> {
        self.sent = Some(clock::now());
        for index in 0..qps.striping.rails().min(qps.qps.len() as u8) {
            qps.post_probe(QpIndex(index), 0)?;
            self.outstanding += 1;
            debug_assert!(self.outstanding <= MAX_RAILS as u32, "more than one probe is outstanding");
        }
        Ok(())
    }

    /// How long a probe has been outstanding; `None` if there is none.
    pub fn outstanding_for(&self) -> Option<Duration> {
        self.sent.filter(|_| self.is_outstanding()).map(|sent| clock::now().saturating_duration_since(sent))
    }

    /// Whether a probe is not complete.
    pub fn is_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// The work request `id` is complete, which carries no data. `whose` completion queue has reported it.
    ///
    /// # Errors
    /// It is not a probe.
    #[cold]
    #[inline(never)]
    pub fn handle_completion(&mut self, id: u64, whose: &str) -> Result<()> {
        match WrId::from_bits(id) {
            WrId::Probe { .. } => {
                self.outstanding = self.outstanding.saturating_sub(1);
                Ok(())
            }
            work => Err(Error::internal(format!("a {whose}'s completion queue reports {work:?}"))),
        }
    }
}

/// The mode of one end's data path. While it is not [`Mode::Running`], the peer's state is not open, and NCCL's calls look at it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The queue pairs are there.
    Running,
    /// The queue pairs are there. No new message is begun, and those that have begun go on.
    Draining,
    /// Receiver: the queue pairs are being destroyed, and what has arrived on them is not taken in yet. There are none to post on or to poll.
    Fencing,
    /// There are no queue pairs.
    Fenced,
    /// There are new queue pairs. Some of the messages that have to be sent again have not been posted yet.
    Replaying,
}

impl Mode {
    /// Whether a test has to wait until what has arrived is taken in, although the peer may have closed. Where the connection `is_broken`, since
    /// the peer has died or given up or the device is lost, nothing will be taken in.
    pub fn waits_for_arrivals(self, is_broken: bool) -> bool {
        self == Self::Fencing && !is_broken
    }
}

/// The error of one end, which is final: once there is one, every later call returns it.
#[derive(Debug)]
pub struct StickyError {
    /// The task of this end, for messages: `sending to` or `receiving from`.
    task: &'static str,
    error: Option<Error>,
}

impl StickyError {
    /// No error.
    pub fn new(task: &'static str) -> Self {
        Self { task, error: None }
    }

    /// To be called before something new begins.
    ///
    /// # Errors
    /// This end has failed, as the peer is told, or the peer has gone.
    #[inline]
    pub fn check(&self, peer: &Arc<PeerState>) -> Result<()> {
        if peer.is_gone() { Err(self.reason(peer)) } else { Ok(()) }
    }

    /// To be called before completions are polled, which go on after the peer has gone.
    ///
    /// # Errors
    /// This end has failed.
    #[cold]
    #[inline(never)]
    pub fn check_failed(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// The error of this end, or else an error that tells why the peer has gone.
    #[cold]
    #[inline(never)]
    pub fn reason(&self, peer: &Arc<PeerState>) -> Error {
        if let Some(error) = &self.error {
            return error.clone();
        }
        let gone = Error::remote(format!("{} {}: {}", self.task, peer.peer(), peer.reason()));
        if peer.state().has_closed() {
            return gone.hint("NCCL there does so after an error on another connection, too: see its log");
        }
        first_error::record(&gone.text());
        gone
    }

    /// Records that this end has failed with `error`, unless it has failed before, and tells the peer. Returns the recorded error.
    #[cold]
    #[inline(never)]
    pub fn fail(&mut self, peer: &Arc<PeerState>, error: Error) -> Error {
        first_error::record(&error.text());
        peer.fail(&error.text());
        self.error.get_or_insert(error).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    mod stall {
        use super::*;

        #[test]
        fn each_test_without_success_is_counted_and_one_of_256_looks_at_the_clock() {
            let mut stall = Stall::new(0, Duration::ZERO);
            for count in 1..=1000 {
                assert_eq!(stall.is_due(), count % LOOK_EVERY == 0);
                assert_eq!(stall.was_due(), count % LOOK_EVERY == 0);
                assert_eq!(stall.tests(), count);
            }
        }

        const MS: Duration = Duration::from_millis(1);

        /// For how many ms message 7 is the oldest one until that is suspicious, from `begin` on. It is asked each ms.
        fn suspected_after(stall: &mut Stall, data_time: Duration, begin: Instant) -> Option<u32> {
            stall.reset(stall.round_trip);
            (0..100_000).find(|ms| match stall.check(7, data_time, begin + *ms * MS) {
                None => false,
                Some(waited) => {
                    assert_eq!(waited, *ms * MS);
                    true
                }
            })
        }

        #[test]
        fn a_message_that_is_the_oldest_one_for_long_is_suspicious_and_the_next_one_twice_as_late() {
            let (mut stall, now) = (Stall::new(100, Duration::ZERO), Instant::now());
            let limits = [100, 200, 400, 800, 800];
            assert_eq!(limits.map(|_| suspected_after(&mut stall, Duration::ZERO, now)), limits.map(Some));
            let mut stall = Stall::new(100, Duration::ZERO);
            assert_eq!(suspected_after(&mut stall, 2 * MS, now), Some(200), "50 times what the data takes");
            assert_eq!(suspected_after(&mut stall, 2 * MS, now), Some(400));
        }

        #[test]
        fn an_acknowledgement_has_two_round_trips_beside_the_limit() {
            let (mut stall, now) = (Stall::new(100, 80 * MS), Instant::now());
            assert_eq!(stall.limit(now), 260 * MS);
            assert_eq!(suspected_after(&mut stall, 2 * MS, now), Some(360));
            stall.reset(10 * MS);
            assert_eq!(suspected_after(&mut stall, Duration::ZERO, now), Some(240), "twice as late as the first");
            let mut never = Stall::new(0, 80 * MS);
            assert_eq!((never.limit(now), suspected_after(&mut never, Duration::ZERO, now)), (Duration::ZERO, None));
        }

        #[test]
        fn each_message_has_a_time_of_its_own_and_none_begins_with_a_reset() {
            let (mut stall, now) = (Stall::new(100, Duration::ZERO), Instant::now());
            let mut check = |oldest, ms| stall.check(oldest, Duration::ZERO, now + ms * MS);
            assert_eq!((check(1, 0), check(1, 99), check(2, 100), check(2, 199)), (None, None, None, None));
            assert_eq!(check(2, 200), Some(100 * MS));
            assert_eq!(check(2, 1000), None, "it begins anew");
            stall.reset(stall.round_trip);
            assert_eq!(stall.waited(2, now + 2000 * MS), None);
            assert_eq!(stall.waited(2, now + 2001 * MS), Some(MS));
        }

        #[test]
        fn a_quiet_minute_halves_the_limit_until_it_is_the_first_one() {
            let (mut stall, now) = (Stall::new(100, Duration::ZERO), Instant::now());
            for _ in 0..3 {
                stall.back_off(now);
            }
            let minute = Duration::from_secs(60);
            assert_eq!(stall.limit(now + minute - MS), 800 * MS);
            assert_eq!(stall.limit(now + minute), 400 * MS);
            assert_eq!(stall.limit(now + 2 * minute - MS), 400 * MS);
            assert_eq!([2, 3, 4].map(|minutes| stall.limit(now + minutes * minute)), [200 * MS, 100 * MS, 100 * MS]);
            stall.back_off(now + 4 * minute);
            assert_eq!(stall.limit(now + 5 * minute - MS), 200 * MS, "the minute begins with the last suspicion");
            stall.check(1, Duration::ZERO, now + 5 * minute);
            assert_eq!(
                suspected_after(&mut stall, Duration::ZERO, now + 5 * minute),
                Some(100),
                "a check looks at that as well"
            );
        }

        #[test]
        fn without_a_limit_nothing_is_suspicious() {
            let mut stall = Stall::new(0, Duration::ZERO);
            let now = Instant::now();
            assert_eq!(suspected_after(&mut stall, Duration::ZERO, now), None);
            assert_eq!(stall.limit(now), Duration::ZERO);
        }
    }

    mod probe {
        use super::*;

        #[test]
        fn a_probe_is_due_at_once_and_then_every_ten_seconds_unless_one_is_outstanding() {
            let (mut probe, begin) = (Probe::default(), Instant::now());
            let mut due = |seconds| probe.take_turn(begin + Duration::from_secs(seconds), PROBE_EVERY);
            assert_eq!([due(0), due(0), due(9), due(10), due(19), due(20)], [true, false, false, true, false, true]);
            probe.outstanding = 1;
            assert!(!probe.take_turn(begin + Duration::from_secs(100), PROBE_EVERY));
            probe.outstanding = 0;
            assert!(probe.take_turn(begin + Duration::from_secs(100), PROBE_EVERY));
            let in_doubt = begin + Duration::from_secs(100) + PROBE_EVERY_IN_DOUBT;
            assert!(!probe.take_turn(in_doubt, PROBE_EVERY) && probe.take_turn(in_doubt, PROBE_EVERY_IN_DOUBT));
        }

        #[test]
        fn probes_are_outstanding_until_each_rail_has_completed_its_own() {
            let sent = Instant::now().checked_sub(Duration::from_secs(5));
            let mut probe = Probe { outstanding: 2, turn: None, sent };
            let complete = |probe: &mut Probe| probe.handle_completion(WrId::Probe { qp: 0 }.to_bits(), "sender");
            complete(&mut probe).expect("a probe");
            assert!(probe.is_outstanding());
            assert!(probe.outstanding_for() >= Some(Duration::from_secs(5)));
            complete(&mut probe).expect("a probe");
            assert!(!probe.is_outstanding());
            assert_eq!(probe.outstanding_for(), None);
            let error = probe.handle_completion(WrId::Receive { qp: 0 }.to_bits(), "sender").expect_err("no probe");
            assert!(error.text().contains("a sender's completion queue reports"), "{error:?}");
        }
    }

    mod mode {
        use super::*;

        #[test]
        fn what_arrived_before_the_peer_has_closed_is_waited_for_unless_the_connection_is_broken() {
            let waits = |is_broken| {
                [Mode::Running, Mode::Draining, Mode::Fencing, Mode::Fenced, Mode::Replaying]
                    .map(|mode| mode.waits_for_arrivals(is_broken))
            };
            assert_eq!(waits(false), [false, false, true, false, false]);
            assert_eq!(waits(true), [false; 5]);
        }
    }
}
