//! Health of one end: detects a dead path or a dead peer, and keeps the error that ends it.

use crate::error::{Error, Result};
use crate::net::operations::snapshot::OperationsSnapshot;
use crate::net::peer::first_error;
use crate::net::peer::state::PeerState;
use crate::net::qp::set::QpSet;
use crate::net::qp::wr_id::WrId;
use crate::proto::explain::operation::PeerRank;
use crate::proto::{MAX_RAILS, QpIndex};
use crate::stats::labels::Labels;
use crate::verbs::clock;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Unsuccessful tests between two readings of the clock, at most.
const LOOK_EVERY: u32 = 256;
/// Where fewer tests than that come in this time, the clock is read more often.
const LOOK_WITHIN: Duration = Duration::from_millis(8);
/// An acknowledgement may take this many times the time from one test to the next: a thread that
/// has many connections tests each rarely, and they share their rails.
const PAUSES: u32 = 64;
/// Time without a suspicion after which the limit is halved.
const QUIET: Duration = Duration::from_secs(60);
/// Data may take this many times its time at the rails' nominal speed.
const SLACK: u32 = 50;
/// An acknowledgement may take this many of the round trips that the queue pair test measured.
const ROUND_TRIPS: u32 = 2;
/// The limit is never more than this many times the first one.
const MAX_FACTOR: u32 = 8;

/// Detects a path that carries nothing although no device reports an error.
///
/// A device retransmits for seconds before it reports a missing acknowledgement. This detects it
/// earlier: the oldest message has been in flight for much longer than its data and acknowledgement
/// should take.
///
/// The round trip is known once this connection, or another one to the same port, has recovered:
/// recovery tests its new queue pairs. On a path with a long round trip only the first suspicion is
/// wrong. A wrong suspicion costs one recovery and loses nothing.
///
/// Each recovery from a suspicion doubles the limit, so a fabric that pauses for long is not
/// disturbed repeatedly. Each minute without one halves it.
#[derive(Debug)]
pub struct DeadPathDetector {
    /// Unsuccessful tests until the clock is read.
    left: u32,
    /// Those from one reading of the clock to the next, at most [`LOOK_EVERY`].
    every: u32,
    /// How many there were when `left` was last `every`, modulo 2^32.
    earlier: u32,
    /// When the clock was last read, and how many there were then.
    looked: (Instant, u32),
    /// The time from one test to the next; zero if unknown.
    apart: Duration,
    oldest: Option<(u32, Instant)>,
    /// Time without an acknowledgement after which a path is suspected; zero disables this.
    limit: Duration,
    /// Zero if unknown.
    round_trip: Duration,
    factor: u32,
    /// Time of the last suspicion or of the last halving of the factor.
    last: Instant,
}

impl DeadPathDetector {
    /// Suspects a path after `limit_ms` milliseconds plus the time that the data and its
    /// acknowledgement take; 0 disables this. `round_trip` is zero if unknown.
    pub fn new(limit_ms: u64, round_trip: Duration) -> Self {
        let (limit, now) = (Duration::from_millis(limit_ms), clock::now());
        Self {
            left: LOOK_EVERY,
            every: LOOK_EVERY,
            earlier: 0,
            looked: (now, 0),
            apart: Duration::ZERO,
            oldest: None,
            limit,
            round_trip,
            factor: 1,
            last: now,
        }
    }

    /// Call after each unsuccessful test. Returns whether [`Self::check`] is due.
    #[inline(always)]
    pub fn is_due(&mut self) -> bool {
        self.left -= 1;
        let is_due = self.left == 0;
        if is_due {
            self.count_look();
        }
        is_due
    }

    /// The last result of [`Self::is_due`].
    pub fn was_due(&self) -> bool {
        self.left == self.every
    }

    #[cold]
    #[inline(never)]
    fn count_look(&mut self) {
        self.earlier = self.earlier.wrapping_add(self.every);
        self.left = self.every;
    }

    /// The clock is read at `now`. If tests are rare, fewer pass until it is read again.
    fn set_pace(&mut self, now: Instant) {
        let (then, before) = self.looked;
        let (since, tests) = (now.saturating_duration_since(then), self.tests());
        if let Some(apart) = since.checked_div(tests.wrapping_sub(before)) {
            self.apart = apart;
        }
        if since > LOOK_WITHIN {
            let fitting = LOOK_WITHIN.as_nanos() * u128::from(self.every) / since.as_nanos();
            self.every = (fitting as u32).max(1);
        } else if since < LOOK_WITHIN / 4 {
            self.every = (2 * self.every).min(LOOK_EVERY);
        }
        (self.earlier, self.left, self.looked) = (tests, self.every, (now, tests));
    }

    /// How often [`Self::is_due`] was called, modulo 2^32.
    pub fn tests(&self) -> u32 {
        self.earlier.wrapping_add(self.every - self.left)
    }

    /// Message `oldest` is the oldest one in flight at `now`. Returns its age if that is
    /// suspicious. `data_time` is the time that all data in flight takes.
    pub fn check(&mut self, oldest: u32, data_time: Duration, now: Instant) -> Option<Duration> {
        let waited = self.waited(oldest, now)?;
        self.calm_down(now);
        let limit = (self.patience() + SLACK * data_time) * self.factor;
        (!self.limit.is_zero() && waited >= limit).then_some(waited)
    }

    /// Doubles the limit, as a suspicion leads to a recovery.
    pub fn back_off(&mut self, now: Instant) {
        self.oldest = None;
        self.factor = (self.factor * 2).min(MAX_FACTOR);
        self.last = now;
    }

    fn calm_down(&mut self, now: Instant) {
        if self.factor > 1 && now.saturating_duration_since(self.last) >= QUIET {
            self.factor /= 2;
            self.last = now;
        }
    }

    /// How long message `oldest` has been the oldest one in flight; `None` on the first call for
    /// it.
    pub fn waited(&mut self, oldest: u32, now: Instant) -> Option<Duration> {
        self.set_pace(now);
        match self.oldest {
            Some((before, since)) if before == oldest => Some(now.saturating_duration_since(since)),
            _ => {
                self.oldest = Some((oldest, now));
                None
            }
        }
    }

    /// Time without an acknowledgement after which a path is suspected; zero disables this.
    pub fn limit(&mut self, now: Instant) -> Duration {
        self.calm_down(now);
        if self.limit.is_zero() { Duration::ZERO } else { self.patience() * self.factor }
    }

    fn patience(&self) -> Duration {
        self.limit + ROUND_TRIPS * self.round_trip + PAUSES * self.apart
    }

    /// Restarts for new queue pairs, whose test measured this `round_trip`.
    pub fn reset(&mut self, round_trip: Duration) {
        (self.oldest, self.round_trip) = (None, round_trip);
    }
}

/// The probes of one end: writes of zero bytes that show whether the peer's device still
/// acknowledges.
///
/// While the control connection is lost and the peer's host is unreachable over it, only a probe
/// can detect that the peer is gone. An end with writes in flight sees them fail. An end that only
/// waits for the peer has none and would wait for ever, so it posts a probe from time to time.
///
/// The peer's device acknowledges the probe without its process, as long as the process lives. A
/// failed probe is reported like a failed write of data. Probes are frequent where the peer's port
/// refuses connections: an acknowledged one shows that the peer's process still lives.
#[derive(Debug, Default)]
pub struct Probe {
    /// Writes that are not complete.
    outstanding: u32,
    /// When a probe was last due.
    turn: Option<Instant>,
    /// When the last probe was sent.
    sent: Option<Instant>,
}

/// Interval between probes. None is sent while one is outstanding: a device reports a missing
/// acknowledgement after 8.6 s by default (see `NCCL_IB_TIMEOUT`).
const PROBE_EVERY: Duration = Duration::from_secs(10);
/// The interval while the peer is suspected to be dead.
const PROBE_EVERY_IN_DOUBT: Duration = Duration::from_millis(200);

impl Probe {
    /// Posts a write on the first queue pair of each rail. Does nothing if a probe is outstanding,
    /// or was sent within the last [`PROBE_EVERY`] or [`PROBE_EVERY_IN_DOUBT`]. The caller keeps
    /// room for it in the send queues.
    ///
    /// # Errors
    /// The device refuses the write.
    pub fn send(&mut self, qps: &mut QpSet, is_in_doubt: bool) -> Result<()> {
        let every = if is_in_doubt { PROBE_EVERY_IN_DOUBT } else { PROBE_EVERY };
        if self.take_turn(clock::now(), every) { self.send_now(qps) } else { Ok(()) }
    }

    /// Returns whether a probe is due at `now`; one is due once per interval `every`.
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
            debug_assert!(
                self.outstanding <= MAX_RAILS as u32,
                "more than one probe is outstanding"
            );
        }
        Ok(())
    }

    /// How long a probe has been outstanding; `None` if none is.
    pub fn outstanding_for(&self) -> Option<Duration> {
        self.sent
            .filter(|_| self.is_outstanding())
            .map(|sent| clock::now().saturating_duration_since(sent))
    }

    /// Whether a probe is not complete.
    pub fn is_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// Handles the completion of work request `id`, which carries no data, from the completion
    /// queue of `whose` end.
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

/// The mode of one end's data path. Only in [`Mode::Running`] may the peer's state be open, which
/// lets NCCL's calls skip the mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The queue pairs exist.
    Running,
    /// The queue pairs exist. No new message begins; those in flight continue.
    Draining,
    /// Receiver: the queue pairs are being destroyed, and their arrivals are not handled yet. There
    /// are none to post on or to poll.
    Fencing,
    /// There are no queue pairs.
    Fenced,
    /// New queue pairs exist. Some messages that must be resent are not posted yet.
    Replaying,
}

impl Mode {
    /// Whether a test must wait until arrivals are handled, even if the peer has closed. If the
    /// connection `is_broken` (the peer has died or failed, or the device is lost), nothing more
    /// arrives.
    pub fn waits_for_arrivals(self, is_broken: bool) -> bool {
        self == Self::Fencing && !is_broken
    }
}

/// The final error of one end: every later call returns it.
#[derive(Debug)]
pub struct StickyError {
    /// What this end does, for messages: `sending to` or `receiving from`.
    task: &'static str,
    error: Option<Error>,
    /// The last error that NCCL got.
    logged: Option<Error>,
}

impl StickyError {
    /// No error.
    pub fn new(task: &'static str) -> Self {
        Self { task, error: None, logged: None }
    }

    /// Call before a new operation begins.
    ///
    /// # Errors
    /// This end has failed (the peer is informed), or the peer has gone.
    #[inline]
    pub fn check(&self, peer: &Arc<PeerState>) -> Result<()> {
        if peer.is_gone() { Err(self.reason(peer)) } else { Ok(()) }
    }

    /// Call before completions are polled; polling continues after the peer has gone.
    ///
    /// # Errors
    /// This end has failed.
    #[cold]
    #[inline(never)]
    pub fn check_failed(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }

    /// The error of this end, or else the reason why the peer has gone.
    #[cold]
    #[inline(never)]
    pub fn reason(&self, peer: &Arc<PeerState>) -> Error {
        if let Some(error) = &self.error {
            return error.clone();
        }
        let gone = Error::remote(format!("{} {}: {}", self.task, peer.peer(), peer.reason()));
        if peer.state().has_closed() {
            return gone
                .hint("NCCL there also closes after an error on another connection: read its log");
        }
        first_error::record(&gone.text());
        gone
    }

    /// Records `error` unless this end has failed before, and informs the peer. Returns the
    /// recorded error.
    #[cold]
    #[inline(never)]
    pub fn fail(&mut self, peer: &Arc<PeerState>, error: Error) -> Error {
        first_error::record(&error.text());
        peer.fail(&error.text());
        self.error.get_or_insert(error).clone()
    }

    /// `error` for NCCL, with the operation that it ends, if one is outstanding and known for its
    /// peer. Marked as logged if it equals the last one, since NCCL keeps calling a failed
    /// communicator.
    #[cold]
    #[inline(never)]
    pub fn log_once(&mut self, error: Error, labels: &Labels) -> Error {
        if self.logged.as_ref() == Some(&error) {
            return error.logged();
        }
        self.logged = Some(error.clone());
        let operation =
            labels.is_waiting().then(|| OperationsSnapshot::now().operation_of(labels)).flatten();
        match operation.filter(|operation| matches!(operation.peer, PeerRank::Known(_))) {
            Some(operation) => error.context(format_args!("during {operation}")),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    mod dead_path {
        use super::*;

        #[test]
        fn each_test_without_success_is_counted_and_one_of_256_looks_at_the_clock() {
            let mut dead_path = DeadPathDetector::new(0, Duration::ZERO);
            for count in 1..=1000 {
                assert_eq!(dead_path.is_due(), count % LOOK_EVERY == 0);
                assert_eq!(dead_path.was_due(), count % LOOK_EVERY == 0);
                assert_eq!(dead_path.tests(), count);
            }
        }

        const MS: Duration = Duration::from_millis(1);

        /// Whether message 7 becomes suspicious within `within` of tests that come `apart`.
        fn is_suspected(
            dead_path: &mut DeadPathDetector,
            begin: Instant,
            apart: Duration,
            within: Duration,
        ) -> bool {
            let times = (1..).map(|test| apart * test).take_while(|time| *time <= within);
            let mut checks = times.filter_map(|time| {
                dead_path
                    .is_due()
                    .then(|| dead_path.check(7, Duration::ZERO, begin + time))
                    .flatten()
            });
            checks.next().is_some()
        }

        #[test]
        fn a_stall_is_found_in_time_however_rare_the_tests_are() {
            for apart in [MS / 10_000, MS / 100, MS, 5 * MS, 20 * MS] {
                let mut dead_path = DeadPathDetector::new(100, Duration::ZERO);
                let mut begin = Instant::now();
                // The first time, it is not yet known how rare the tests are.
                for most in [3 * LOOK_EVERY, PAUSES + 3] {
                    let within = 100 * MS + most * apart + 2 * LOOK_WITHIN;
                    assert!(is_suspected(&mut dead_path, begin, apart, within), "{apart:?} {most}");
                    begin = dead_path.looked.0;
                    dead_path.back_off(begin);
                    dead_path.factor = 1;
                }
            }
        }

        #[test]
        fn rare_tests_make_a_connection_patient() {
            let mut dead_path = DeadPathDetector::new(100, Duration::ZERO);
            let within = 100 * MS + (PAUSES - 1) * MS;
            assert!(!is_suspected(&mut dead_path, Instant::now(), MS, within));
        }

        #[test]
        fn after_a_pause_the_clock_is_soon_read_as_rarely_as_before() {
            let (begin, mut dead_path) =
                (Instant::now(), DeadPathDetector::new(100, Duration::ZERO));
            let mut now = begin + Duration::from_secs(3600);
            for _ in 0..20 {
                dead_path.waited(7, now);
                now += MS / 100;
            }
            assert_eq!(dead_path.every, LOOK_EVERY);
        }

        /// The age in ms at which message 7 becomes suspicious, counted from `begin` and checked
        /// each ms.
        fn suspected_after(
            dead_path: &mut DeadPathDetector,
            data_time: Duration,
            begin: Instant,
        ) -> Option<u32> {
            dead_path.reset(dead_path.round_trip);
            (0..100_000).find(|ms| match dead_path.check(7, data_time, begin + *ms * MS) {
                None => false,
                Some(waited) => {
                    assert_eq!(waited, *ms * MS);
                    dead_path.back_off(begin + *ms * MS);
                    true
                }
            })
        }

        #[test]
        fn a_message_that_is_the_oldest_one_for_long_is_suspicious_and_the_next_one_twice_as_late()
        {
            let (mut dead_path, now) = (DeadPathDetector::new(100, Duration::ZERO), Instant::now());
            let limits = [100, 200, 400, 800, 800];
            assert_eq!(
                limits.map(|_| suspected_after(&mut dead_path, Duration::ZERO, now)),
                limits.map(Some)
            );
            let mut dead_path = DeadPathDetector::new(100, Duration::ZERO);
            assert_eq!(
                suspected_after(&mut dead_path, 2 * MS, now),
                Some(200),
                "50 times what the data takes"
            );
            assert_eq!(suspected_after(&mut dead_path, 2 * MS, now), Some(400));
        }

        #[test]
        fn an_acknowledgement_has_two_round_trips_beside_the_limit() {
            let (mut dead_path, now) = (DeadPathDetector::new(100, 80 * MS), Instant::now());
            assert_eq!(dead_path.limit(now), 260 * MS);
            assert_eq!(suspected_after(&mut dead_path, 2 * MS, now), Some(360));
            dead_path.reset(10 * MS);
            assert_eq!(
                suspected_after(&mut dead_path, Duration::ZERO, now),
                Some(240),
                "twice as late as the first"
            );
            let mut never = DeadPathDetector::new(0, 80 * MS);
            assert_eq!(
                (never.limit(now), suspected_after(&mut never, Duration::ZERO, now)),
                (Duration::ZERO, None)
            );
        }

        #[test]
        fn each_message_has_a_time_of_its_own_and_none_begins_with_a_reset() {
            let (mut dead_path, now) = (DeadPathDetector::new(100, Duration::ZERO), Instant::now());
            let check = |dead_path: &mut DeadPathDetector, oldest, ms| {
                dead_path.check(oldest, Duration::ZERO, now + ms * MS)
            };
            let early = [(1, 0), (1, 99), (2, 100), (2, 199)];
            assert_eq!(early.map(|(oldest, ms)| check(&mut dead_path, oldest, ms)), [None; 4]);
            assert_eq!(
                [200, 300].map(|ms| check(&mut dead_path, 2, ms)),
                [100, 200].map(|ms| Some(ms * MS))
            );
            dead_path.back_off(now + 300 * MS);
            assert_eq!(check(&mut dead_path, 2, 1000), None, "it begins anew");
            dead_path.reset(dead_path.round_trip);
            assert_eq!(dead_path.waited(2, now + 2000 * MS), None);
            assert_eq!(dead_path.waited(2, now + 2001 * MS), Some(MS));
        }

        #[test]
        fn a_quiet_minute_halves_the_limit_until_it_is_the_first_one() {
            let (mut dead_path, now) = (DeadPathDetector::new(100, Duration::ZERO), Instant::now());
            for _ in 0..3 {
                dead_path.back_off(now);
            }
            let minute = Duration::from_secs(60);
            assert_eq!(dead_path.limit(now + minute - MS), 800 * MS);
            assert_eq!(dead_path.limit(now + minute), 400 * MS);
            assert_eq!(dead_path.limit(now + 2 * minute - MS), 400 * MS);
            assert_eq!(
                [2, 3, 4].map(|minutes| dead_path.limit(now + minutes * minute)),
                [200 * MS, 100 * MS, 100 * MS]
            );
            dead_path.back_off(now + 4 * minute);
            assert_eq!(
                dead_path.limit(now + 5 * minute - MS),
                200 * MS,
                "the minute begins with the last suspicion"
            );
            dead_path.check(1, Duration::ZERO, now + 5 * minute);
            assert_eq!(
                suspected_after(&mut dead_path, Duration::ZERO, now + 5 * minute),
                Some(100),
                "a check looks at that as well"
            );
        }

        #[test]
        fn without_a_limit_nothing_is_suspicious() {
            let mut dead_path = DeadPathDetector::new(0, Duration::ZERO);
            let now = Instant::now();
            assert_eq!(suspected_after(&mut dead_path, Duration::ZERO, now), None);
            assert_eq!(dead_path.limit(now), Duration::ZERO);
        }
    }

    mod probe {
        use super::*;

        #[test]
        fn a_probe_is_due_at_once_and_then_every_ten_seconds_unless_one_is_outstanding() {
            let (mut probe, begin) = (Probe::default(), Instant::now());
            let mut due =
                |seconds| probe.take_turn(begin + Duration::from_secs(seconds), PROBE_EVERY);
            assert_eq!(
                [due(0), due(0), due(9), due(10), due(19), due(20)],
                [true, false, false, true, false, true]
            );
            probe.outstanding = 1;
            assert!(!probe.take_turn(begin + Duration::from_secs(100), PROBE_EVERY));
            probe.outstanding = 0;
            assert!(probe.take_turn(begin + Duration::from_secs(100), PROBE_EVERY));
            let in_doubt = begin + Duration::from_secs(100) + PROBE_EVERY_IN_DOUBT;
            assert!(
                !probe.take_turn(in_doubt, PROBE_EVERY)
                    && probe.take_turn(in_doubt, PROBE_EVERY_IN_DOUBT)
            );
        }

        #[test]
        fn probes_are_outstanding_until_each_rail_has_completed_its_own() {
            let sent = Instant::now().checked_sub(Duration::from_secs(5));
            let mut probe = Probe { outstanding: 2, turn: None, sent };
            let complete = |probe: &mut Probe| {
                probe.handle_completion(WrId::Probe { qp: 0 }.to_bits(), "sender")
            };
            complete(&mut probe).expect("a probe");
            assert!(probe.is_outstanding());
            assert!(probe.outstanding_for() >= Some(Duration::from_secs(5)));
            complete(&mut probe).expect("a probe");
            assert!(!probe.is_outstanding());
            assert_eq!(probe.outstanding_for(), None);
            let error = probe
                .handle_completion(WrId::Receive { qp: 0 }.to_bits(), "sender")
                .expect_err("no probe");
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
