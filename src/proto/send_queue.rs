//! How much space the send queues of a connection have, counted in work requests.
//!
//! A stripe takes one to three work requests of its queue pair: the data, with an immediate or without; the immediate, where it
//! follows the data in a trailing immediate write; the second immediate of a length that one cannot carry. Only the last of them
//! is signalled; its completion stands for all of them.
//!
//! No queue overflows. At most [`MAX_REQUESTS`] messages are outstanding, each with at most one stripe on a queue pair, and a
//! message stays outstanding until the completions of all its stripes have been polled. So the *first* work requests of all
//! stripes take at most that many entries of a send queue. The *extra* ones, which most stripes do not have, are counted here
//! for each queue pair. They get [`EXTRA_WRS`] entries less one, which is kept for a probe that may still be outstanding when
//! messages begin again. [`SEND_QUEUE_DEPTH`] is the sum. Messages that find no entry wait.

use super::{MAX_QPS, MAX_REQUESTS, QpIndex};

/// Work requests that the send queue of a queue pair has to take.
pub const SEND_QUEUE_DEPTH: u32 = MAX_REQUESTS as u32 + EXTRA_WRS;
/// Entries of a send queue for extra work requests and a probe. Messages that need extra ones have many packets each, so as many
/// as these keep a path full.
const EXTRA_WRS: u32 = 64;
/// Most work requests of one stripe.
pub const MAX_STRIPE_WRS: usize = 3;

/// Extra work requests that a send queue has space for.
const MAX_EXTRA_WRS: u16 = EXTRA_WRS as u16 - 1;

/// How many extra work requests are outstanding, by queue pair.
#[derive(Debug)]
pub struct SendQueueSpace {
    extra: [u16; MAX_QPS],
    most: u16,
}

impl Default for SendQueueSpace {
    fn default() -> Self {
        Self::new(MAX_EXTRA_WRS)
    }
}

impl SendQueueSpace {
    /// Space for `most` extra work requests on each queue pair, of which a stripe may take two.
    pub(super) fn new(most: u16) -> Self {
        Self { extra: [0; MAX_QPS], most }
    }

    /// Whether each of the first `qps` queue pairs has space for a stripe with up to `extra` extra work requests.
    #[inline]
    pub fn has_space(&self, qps: usize, extra: u8) -> bool {
        self.extra.iter().take(qps).all(|outstanding| outstanding + u16::from(extra) <= self.most)
    }

    /// A stripe with `extra` extra work requests has been posted on `qp`, which had space for it.
    #[inline]
    pub fn handle_posted(&mut self, qp: QpIndex, extra: u8) {
        self.extra[usize::from(qp.0) % MAX_QPS] += u16::from(extra);
    }

    /// The completion of such a stripe has been polled.
    #[inline]
    pub fn handle_completion(&mut self, qp: QpIndex, extra: u8) {
        let outstanding = &mut self.extra[usize::from(qp.0) % MAX_QPS];
        *outstanding = outstanding.saturating_sub(extra.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many stripes with `extra` extra work requests fit on queue pair 1 at a time.
    fn fit(extra: u8) -> u32 {
        let mut space = SendQueueSpace::default();
        let mut count = 0;
        while space.has_space(2, extra) && count < MAX_REQUESTS as u32 {
            space.handle_posted(QpIndex(1), extra);
            count += 1;
        }
        // The most that the queue holds then: all first ones, these extra ones, a probe.
        assert!(MAX_REQUESTS as u32 + count * u32::from(extra) < SEND_QUEUE_DEPTH);
        if count < MAX_REQUESTS as u32 {
            assert!(space.has_space(1, extra), "the other queue is empty");
            space.handle_completion(QpIndex(1), extra);
            assert!(space.has_space(2, extra), "one has been completed");
        }
        count
    }

    #[test]
    fn messages_of_one_two_and_three_work_requests_fit_256_63_and_31_times() {
        assert_eq!([0, 1, 2].map(fit), [256, 63, 31]);
    }
}
