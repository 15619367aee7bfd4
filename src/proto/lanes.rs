//! The lanes of a connection: queue pairs of which each has a share of every large message that follows what it completes.
//!
//! Lanes that take the same link finish their stripes of a message at the same time. So all stripes that complete in the last poll
//! count as the slowest, if others have completed before.

use super::rail_weights::LaneWeights;
use super::requests::RequestId;
use super::slow_lanes::SlowLanes;
use super::stripe::Striping;
use super::{MAX_QPS, MAX_REQUESTS, QpIndex};

/// Bytes from which on a message shows how fast rails are. The stripes of a shorter one complete in the order in which the
/// completion queues are polled.
pub(super) const LEARNING_BYTES: u32 = 64 << 10;

/// The weights of a connection's lanes, and what they are learnt from.
#[derive(Debug)]
pub(super) struct Lanes {
    weights: LaneWeights,
    /// By index of the request.
    latest: [Latest; MAX_REQUESTS],
    /// How many there are, and on how many rails.
    count: u8,
    rails: u8,
    random: u32,
    /// Of messages that teach nothing, and of those that do.
    turns: [Turn; 2],
    /// By index of the queue pair, the stripes that are posted and not complete.
    outstanding: [u16; MAX_QPS],
    slow_lanes: SlowLanes,
    /// The one that was found to stay slow.
    pub(super) slow: Option<QpIndex>,
}

/// The lane on which the next message of several stripes begins, and how many of such begin one lane further each.
#[derive(Debug, Clone, Copy, Default)]
struct Turn {
    first: u8,
    left: u8,
}

/// The stripes of a message that have completed in the latest poll in which any has.
#[derive(Debug, Clone, Copy)]
struct Latest {
    request: RequestId,
    poll: u32,
    /// Their queue pairs, as a bit mask.
    qps: u32,
    /// Whether others have completed before.
    is_later: bool,
}

impl Lanes {
    /// `count` lanes on `rails` rails that begin with `weights`.
    pub(super) fn new(weights: LaneWeights, count: u8, rails: u8) -> Self {
        let none = Latest { request: RequestId::from_bits(0), poll: 0, qps: 0, is_later: false };
        Self {
            weights,
            latest: [none; MAX_REQUESTS],
            count,
            rails,
            random: 0,
            turns: Default::default(),
            outstanding: [0; MAX_QPS],
            slow_lanes: SlowLanes::default(),
            slow: None,
        }
    }

    /// The same for new queue pairs, which begin with `weights`.
    pub(super) fn of_new_queue_pairs(&self, weights: LaneWeights, count: u8, rails: u8) -> Self {
        Self { slow_lanes: self.slow_lanes.of_new_queue_pairs(), ..Self::new(weights, count, rails) }
    }

    /// The weight of lane `qp`.
    #[inline]
    pub(super) fn weight(&self, qp: QpIndex) -> u64 {
        self.weights.of(qp.0)
    }

    /// A message of so many stripes is to be posted. Returns the lane of the first one, after which they go on as `striping` says: the
    /// first lane with the greatest weight, or, if there are several stripes, the next one in turn. It has `length` bytes.
    #[inline]
    pub(super) fn begin(&mut self, stripes: u32, striping: Striping, length: u32) -> QpIndex {
        let first = if stripes == 1 { self.weights.greatest(self.count) } else { self.next(length >= LEARNING_BYTES) };
        let first = QpIndex(first);
        let mut qp = first;
        for _ in 0..stripes {
            self.outstanding[usize::from(qp.0) % MAX_QPS] += 1;
            qp = striping.next_qp(qp);
        }
        first
    }

    /// Each lane once in as many messages as there are lanes, one after the other. What is posted later completes later, so no lane is to be
    /// posted last more often than others, in any thousand of messages. Nor is it to be so of every second or fourth message, as their
    /// caller may wait for those: so each turn begins with any lane, by a linear congruential generator (Numerical Recipes), whose high bits
    /// count. Messages that teach nothing have turns of their own: those between others would come upon the same lanes again and again.
    #[inline]
    fn next(&mut self, teaches: bool) -> u8 {
        let turn = &mut self.turns[usize::from(teaches)];
        if turn.left == 0 {
            self.random = self.random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            *turn = Turn { first: ((u64::from(self.random) * u64::from(self.count)) >> 32) as u8, left: self.count };
        }
        turn.left -= 1;
        let first = turn.first;
        turn.first = if first + 1 == self.count { 0 } else { first + 1 };
        first
    }

    /// The lanes, as a bit mask, on which a stripe is not complete while all stripes of others are. 0: it is so on none, or on all.
    pub(super) fn lagging(&self) -> u32 {
        let mask = (0..self.count).filter(|qp| self.outstanding[usize::from(*qp) % MAX_QPS] > 0);
        let mask = mask.fold(0_u32, |mask, qp| mask | 1 << qp);
        if mask.count_ones() == u32::from(self.count) { 0 } else { mask }
    }

    /// A stripe on `qp` is complete.
    #[inline]
    pub(super) fn handle_stripe(&mut self, qp: QpIndex) {
        let outstanding = &mut self.outstanding[usize::from(qp.0) % MAX_QPS];
        *outstanding = outstanding.saturating_sub(1);
    }

    /// That stripe is of `request`, which shows how fast lanes are, and has completed in poll number `poll`; `is_last`: all of its stripes have.
    pub(super) fn handle_completion(&mut self, request: RequestId, qp: QpIndex, poll: u32, is_last: bool) {
        let latest = &mut self.latest[request.index()];
        if latest.request != request {
            *latest = Latest { request, poll, qps: 0, is_later: false };
        } else if latest.poll != poll {
            *latest = Latest { request, poll, qps: 0, is_later: true };
        }
        latest.qps |= 1 << qp.0;
        let Latest { qps, is_later, .. } = *latest;
        if is_last && is_later {
            self.weights.handle_last(|lane| qps & 1 << lane != 0);
        }
        if is_last {
            let weights = &self.weights;
            let found = self.slow_lanes.handle_message(self.count, self.rails, |lane| weights.share_of(lane.0));
            self.slow = found.or(self.slow);
        }
    }
}
