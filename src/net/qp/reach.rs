//! Tests whether new queue pairs reach the peer, by a few writes over each before anything else.
//! The first write has no bytes. Each of the others is a whole packet, from the smallest MTU up to
//! that of the path: switches may drop packets above their MTU.
//!
//! An active port says nothing of the paths behind it, and each queue pair may have its own. The
//! peer's device acknowledges the writes without its process.

use super::set::QpSet;
use super::wr_id::WrId;
use crate::error::{Error, Result};
use crate::proto::recovery::path_mtu;
use crate::proto::recovery::rail_mask::RailMask;
use crate::proto::stripe::Striping;
use crate::proto::{MAX_QPS, QpIndex};
use crate::verbs::clock;
use crate::verbs::status::Status;
use crate::verbs::work::Batch;
use std::time::{Duration, Instant};

/// Once one queue pair has acknowledged, the others have this many times as long, and at least the
/// limit divided by this: the paths of one connection are about equally long. A queue pair that has
/// only acknowledged small packets has the whole limit.
const OTHERS: u32 = 8;

/// Connected queue pairs that have carried only test writes.
#[derive(Debug)]
pub struct ReachTest {
    qps: QpSet,
    answers: WriteStates,
    begun: Instant,
    /// How long after the beginning the queues were last polled.
    looked: Duration,
    patience: TestDeadline,
    /// The shortest time to an acknowledgement: for the others the thread may have been late.
    round_trip: Option<Duration>,
}

/// The queue pairs with unacknowledged writes, as a bit mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SilentQps(pub u32);

/// The state of the writes. Queue pairs are bit masks.
#[derive(Debug, Default)]
struct WriteStates {
    /// Queue pairs with an incomplete write.
    waiting: u32,
    /// Queue pairs with a failed write, and those of them where the peer's device acknowledged a
    /// write in none of the retries.
    failed: u32,
    exhausted: u32,
    /// By queue pair: the number of posted writes, and of acknowledged ones.
    posted: [u8; MAX_QPS],
    acknowledged: [u8; MAX_QPS],
}

impl WriteStates {
    /// Handles a completion. Returns whether it is an acknowledged write of its queue pair.
    ///
    /// # Errors
    /// It is a completion of something else: the peer has sent a message too early.
    fn handle(&mut self, id: WrId, status: Status) -> Result<bool> {
        let (qp, place) = (1_u32.wrapping_shl(id.qp().into()), usize::from(id.qp()) % MAX_QPS);
        if status != Status::SUCCESS {
            // On a failed queue pair, the receives and the other writes complete too.
            self.failed |= qp;
            self.waiting &= !qp;
            if status == Status::RETRY_EXCEEDED {
                self.exhausted |= qp;
            }
            return Ok(false);
        }
        let is_own = matches!(id, WrId::Probe { .. });
        if is_own && self.failed & qp != 0 {
            // Receives may be flushed before an earlier write is reported: there is no order
            // between the two queues.
            return Ok(false);
        }
        if !is_own || self.waiting & qp == 0 {
            return Err(Error::remote(format!(
                "the peer broke the protocol: a message arrived before the connection resumed ({id:?})"
            )));
        }
        self.acknowledged[place] += 1;
        if self.acknowledged[place] == self.posted[place] {
            self.waiting &= !qp;
        }
        Ok(true)
    }

    /// `count` writes are posted over queue pair number `qp`.
    fn handle_posted(&mut self, qp: u8, count: u8) {
        self.waiting |= 1_u32.wrapping_shl(qp.into());
        self.posted[usize::from(qp) % MAX_QPS] = count;
    }

    /// The `ibv_mtu` code of the largest acknowledged packets on queue pair number `qp`, if larger
    /// ones are pending or failed after all retries. 0: only the write without data is
    /// acknowledged.
    fn largest(&self, qp: u8) -> Option<u8> {
        self.largest_of(qp, self.waiting | self.exhausted)
    }

    fn largest_of(&self, qp: u8, qps: u32) -> Option<u8> {
        let is_one = qps & 1_u32.wrapping_shl(qp.into()) != 0;
        self.acknowledged[usize::from(qp) % MAX_QPS].checked_sub(1).filter(|_| is_one)
    }

    /// Whether a waiting queue pair has acknowledged something.
    fn is_one_partial(&self) -> bool {
        (0..MAX_QPS as u8).any(|qp| self.largest_of(qp, self.waiting).is_some())
    }
}

/// How long a test waits.
#[derive(Debug, Clone, Copy)]
struct TestDeadline {
    limit: Duration,
    /// The end of the wait, from the beginning: the limit, or less once a queue pair has
    /// acknowledged.
    until: Duration,
}

impl TestDeadline {
    fn new(limit: Duration) -> Self {
        Self { limit, until: limit }
    }

    /// A queue pair has acknowledged, this long after the beginning.
    fn handle_acknowledged(&mut self, after: Duration) {
        self.until = self.until.min((self.limit / OTHERS).max(after * OTHERS));
    }

    /// Whether the wait is over, this long after the beginning. `is_one_partial` says whether a
    /// waiting queue pair has acknowledged something.
    fn is_over(self, elapsed: Duration, is_one_partial: bool) -> bool {
        elapsed >= if is_one_partial { self.limit } else { self.until }
    }
}

/// The upper bound for a round trip whose acknowledgement was seen `after` the beginning, and not
/// when this thread last `looked`. A late thread sees early acknowledgements late. An
/// underestimated round trip does no harm.
fn believed(looked: Duration, after: Duration) -> Duration {
    after.min(2 * looked + Duration::from_millis(1))
}

impl ReachTest {
    /// Posts the writes, which have this much time.
    ///
    /// # Errors
    /// The device refuses.
    pub fn begin(mut qps: QpSet, limit: Duration) -> Result<Self> {
        let mut answers = WriteStates::default();
        for index in 0..qps.qps.len() as u8 {
            let mtu = qps.path_mtu(QpIndex(index));
            answers.handle_posted(index, mtu + 1);
            (0..=mtu).try_for_each(|code| qps.post_probe(QpIndex(index), path_mtu::bytes(code)))?;
        }
        Ok(Self {
            qps,
            answers,
            begun: clock::now(),
            looked: Duration::ZERO,
            patience: TestDeadline::new(limit),
            round_trip: None,
        })
    }

    /// The queue pairs with unacknowledged writes, once that is decided for each.
    ///
    /// # Errors
    /// The peer has sent a message too early. The connection cannot continue.
    pub fn poll(&mut self) -> Result<Option<SilentQps>> {
        let looked = std::mem::replace(&mut self.looked, clock::since(self.begun));
        for on in &mut self.qps.rails {
            let mut batch = Batch::default();
            // A failed queue reports nothing more.
            for completion in on.queue.poll(&mut batch).unwrap_or_default() {
                if self.answers.handle(WrId::from_bits(completion.id()), completion.status())? {
                    let after = clock::since(self.begun);
                    self.patience.handle_acknowledged(after);
                    let after = believed(looked, after);
                    self.round_trip =
                        Some(self.round_trip.map_or(after, |shortest| shortest.min(after)));
                }
            }
        }
        let WriteStates { waiting, failed, .. } = self.answers;
        let is_over = waiting == 0
            || self.patience.is_over(clock::since(self.begun), self.answers.is_one_partial());
        Ok(is_over.then_some(SilentQps(failed | waiting)))
    }

    /// The rails that lose packets above those that are acknowledged, with the `ibv_mtu` code of
    /// the latter; 0: only packets without data. Call it when the test is over.
    pub fn cut_rails(&self) -> impl Iterator<Item = (u8, u8)> {
        let striping = self.qps.striping;
        (0..striping.qp_count())
            .filter_map(move |qp| Some((striping.rail_of(QpIndex(qp)), self.answers.largest(qp)?)))
    }

    /// The queue pairs that are tested.
    pub fn qps(&self) -> &QpSet {
        &self.qps
    }

    /// The rails where no queue pair is acknowledged, if the `silent` ones are not.
    pub fn dead_rails(&self, silent: SilentQps) -> RailMask {
        let striping = self.qps.striping;
        let alive = (0..striping.qp_count()).filter(|qp| silent.0 & 1 << qp == 0);
        alive.fold(striping.rail_numbers(), |dead, qp| {
            dead - RailMask::only(striping.rail_of(QpIndex(qp)))
        })
    }

    /// The rails where some queue pair is not acknowledged, if the `silent` ones are not and some
    /// rail is complete; otherwise none.
    pub fn flawed_rails(&self, silent: SilentQps) -> RailMask {
        flawed_rails(self.qps.striping, silent)
    }

    /// The time from a write to its acknowledgement; zero if nothing has been acknowledged.
    pub fn round_trip(&self) -> Duration {
        self.round_trip.unwrap_or_default()
    }

    /// The queue pairs.
    pub fn into_qps(self) -> QpSet {
        self.qps
    }
}

fn flawed_rails(striping: Striping, silent: SilentQps) -> RailMask {
    let silent = (0..striping.qp_count()).filter(|qp| silent.0 & 1 << qp != 0);
    let rails = silent
        .fold(RailMask::NONE, |rails, qp| rails | RailMask::only(striping.rail_of(QpIndex(qp))));
    if rails == striping.rail_numbers() { RailMask::NONE } else { rails }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_late_does_not_take_that_for_the_round_trip() {
        let ms = Duration::from_millis;
        assert_eq!(believed(ms(0), ms(2000)), ms(1));
        assert_eq!(believed(ms(80), ms(81)), ms(81));
        assert_eq!(believed(ms(80), ms(2000)), ms(161));
    }

    #[test]
    fn rails_with_a_silent_queue_pair_are_flawed_if_others_have_none() {
        let striping = Striping::new(2, 4, false);
        let flawed = |silent| flawed_rails(striping, SilentQps(silent)).0;
        assert_eq!(
            [flawed(0), flawed(0b0001), flawed(0b1010), flawed(0b0101), flawed(0b0110)],
            [0, 0b01, 0b10, 0b01, 0]
        );
    }

    #[test]
    fn a_write_may_be_reported_after_a_flushed_receive_and_a_message_may_not_come() {
        let mut answers = waits_for_two(1);
        let receive = WrId::Receive { qp: 0 };
        assert!(!answers.handle(receive, Status(5)).expect("a flushed receive"));
        let probe = WrId::Probe { qp: 0 };
        assert!(!answers.handle(probe, Status::SUCCESS).expect("a write before it"));
        assert_eq!((answers.failed, answers.waiting), (0b01, 0b10));
        answers.handle(WrId::Receive { qp: 1 }, Status::SUCCESS).expect_err("a message");
    }

    /// The wait in microseconds if one queue pair acknowledges after each of `acknowledged`, and
    /// another one never does.
    fn waited(limit_us: u64, acknowledged_us: &[u64]) -> u64 {
        let mut patience = TestDeadline::new(Duration::from_micros(limit_us));
        acknowledged_us
            .iter()
            .for_each(|after| patience.handle_acknowledged(Duration::from_micros(*after)));
        let over =
            (0..=limit_us).find(|elapsed| patience.is_over(Duration::from_micros(*elapsed), false));
        over.expect("it ends with the limit")
    }

    /// Two queue pairs with this many writes each.
    fn waits_for_two(writes: u8) -> WriteStates {
        let mut answers = WriteStates::default();
        (0..2).for_each(|qp| answers.handle_posted(qp, writes));
        answers
    }

    #[test]
    fn a_queue_pair_reaches_the_peer_when_all_sizes_are_acknowledged() {
        let mut answers = waits_for_two(3);
        let ok =
            |answers: &mut WriteStates, qp| answers.handle(WrId::Probe { qp }, Status::SUCCESS);
        assert!(!answers.is_one_partial());
        assert_eq!(
            (ok(&mut answers, 1), answers.waiting, answers.largest(1)),
            (Ok(true), 0b11, Some(0))
        );
        assert_eq!(
            (ok(&mut answers, 1), answers.waiting, answers.largest(1)),
            (Ok(true), 0b11, Some(1))
        );
        assert!(answers.is_one_partial());
        assert_eq!(
            (ok(&mut answers, 1), answers.waiting, answers.largest(1)),
            (Ok(true), 0b01, None)
        );
        assert_eq!(answers.largest(0), None, "nothing is acknowledged there");
        assert!(
            ok(&mut answers, 0).is_ok() && answers.handle(WrId::Probe { qp: 0 }, Status(7)).is_ok()
        );
        assert_eq!((answers.largest(0), answers.failed), (None, 0b01), "one that fails is not cut");
    }

    /// Short retries are over before the test is.
    #[test]
    fn a_queue_pair_whose_larger_packets_are_not_acknowledged_in_all_retries_is_cut() {
        let mut answers = waits_for_two(3);
        for status in [Status::SUCCESS, Status::SUCCESS, Status::RETRY_EXCEEDED, Status(5)] {
            answers.handle(WrId::Probe { qp: 1 }, status).expect("its writes");
        }
        assert_eq!((answers.largest(1), answers.failed, answers.waiting), (Some(1), 0b10, 0b01));
        assert!(!answers.is_one_partial(), "no more of it is waited for");
        answers.handle(WrId::Probe { qp: 0 }, Status::RETRY_EXCEEDED).expect("its write");
        assert_eq!(answers.largest(0), None, "nothing arrives there");
    }

    #[test]
    fn what_has_acknowledged_small_packets_has_all_of_the_limit_for_large_ones() {
        let mut patience = TestDeadline::new(Duration::from_millis(80));
        patience.handle_acknowledged(Duration::from_micros(50));
        let is_over =
            |ms, is_one_partial| patience.is_over(Duration::from_millis(ms), is_one_partial);
        assert_eq!([is_over(9, false), is_over(10, false)], [false, true]);
        assert_eq!([is_over(79, true), is_over(80, true)], [false, true]);
    }

    #[test]
    fn only_its_own_write_tells_that_a_queue_pair_reaches_the_peer() {
        let mut answers = waits_for_two(1);
        assert_eq!(answers.handle(WrId::Probe { qp: 1 }, Status::SUCCESS), Ok(true));
        assert_eq!((answers.waiting, answers.failed), (0b01, 0));
        for id in [WrId::Receive { qp: 0 }, WrId::Cts { qp: 0 }, WrId::Probe { qp: 1 }] {
            let error =
                answers.handle(id, Status::SUCCESS).expect_err("not the write of queue pair 0");
            assert!(error.text().contains("the peer broke the protocol"), "{error}");
        }
        assert_eq!(answers.waiting, 0b01, "still waited for");
    }

    #[test]
    fn a_queue_pair_that_fails_does_not_reach_the_peer_whatever_is_completed_first() {
        for id in [WrId::Receive { qp: 0 }, WrId::Probe { qp: 0 }] {
            let mut answers = waits_for_two(1);
            assert_eq!(answers.handle(id, Status::RETRY_EXCEEDED), Ok(false));
            assert_eq!((answers.waiting, answers.failed), (0b10, 0b01));
        }
    }

    #[test]
    fn what_is_silent_has_an_eighth_of_the_limit_once_another_one_has_acknowledged() {
        assert_eq!(waited(8000, &[]), 8000, "nothing is known of the paths");
        assert_eq!((waited(8000, &[20]), waited(8000, &[20, 900])), (1000, 1000));
        assert_eq!(
            (waited(8000, &[300]), waited(8000, &[300, 20])),
            (2400, 1000),
            "eight times as long as the quickest"
        );
        assert_eq!(waited(8000, &[5000]), 8000, "never longer than the limit");
    }
}
