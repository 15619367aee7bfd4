//! The lanes of a connection: queue pairs of which each has a share of every large message that follows what it completes.
//!
//! Lanes that take the same link finish their stripes of a message at the same time. So all stripes that complete in the last poll
//! count as the slowest, if others have completed before.

use super::MAX_REQUESTS;
use super::QpIndex;
use super::rail_weights::LaneWeights;
use super::requests::RequestId;

/// The weights of a connection's lanes, and what they are learnt from.
#[derive(Debug)]
pub(super) struct Lanes {
    weights: LaneWeights,
    /// By index of the request.
    latest: [Latest; MAX_REQUESTS],
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
    /// Lanes that begin with `weights`.
    pub(super) fn new(weights: LaneWeights) -> Self {
        let none = Latest { request: RequestId::from_bits(0), poll: 0, qps: 0, is_later: false };
        Self { weights, latest: [none; MAX_REQUESTS] }
    }

    /// The weight of lane `qp`.
    #[inline]
    pub(super) fn weight(&self, qp: QpIndex) -> u64 {
        self.weights.of(qp.0)
    }

    /// The first one with the greatest weight of `count` lanes.
    pub(super) fn best(&self, count: u8) -> QpIndex {
        QpIndex(self.weights.greatest(count))
    }

    /// A stripe of `request` on `qp` has completed in poll number `poll`; `is_last`: all of its stripes have.
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
    }
}
