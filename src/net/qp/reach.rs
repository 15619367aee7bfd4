//! Whether new queue pairs reach the peer: a write of no bytes over each rail, before anything else.
//!
//! That a port is active says nothing of the path behind it. The peer's device acknowledges the write without its process.

use super::set::QpSet;
use super::wr_id::WrId;
use crate::error::Result;
use crate::proto::recovery::rail_mask::RailMask;
use crate::verbs::status::Status;
use crate::verbs::work::{Batch, Write};
use std::time::{Duration, Instant};

/// When one rail has acknowledged, the others have so many times as long as that took, and at least the limit divided by this number:
/// the paths of one connection are about equally long.
const OTHERS: u32 = 8;

/// Connected queue pairs, over which nothing has been sent but one write of no bytes on each rail.
#[derive(Debug)]
pub struct ReachTest {
    qps: QpSet,
    /// Rails whose write is not complete.
    waiting: RailMask,
    /// Rails whose write has failed.
    failed: RailMask,
    begun: Instant,
    patience: Patience,
}

/// How long a test waits.
#[derive(Debug, Clone, Copy)]
struct Patience {
    limit: Duration,
    /// The time from the beginning after which no more is waited for: the limit, or less once a rail has acknowledged.
    until: Duration,
}

impl Patience {
    fn new(limit: Duration) -> Self {
        Self { limit, until: limit }
    }

    /// A rail has acknowledged, so long after the beginning.
    fn handle_acknowledged(&mut self, after: Duration) {
        self.until = self.until.min((self.limit / OTHERS).max(after * OTHERS));
    }

    /// Whether no more is waited for, so long after the beginning.
    fn is_over(self, elapsed: Duration) -> bool {
        elapsed >= self.until
    }
}

impl ReachTest {
    /// Posts the writes, which have so much time.
    ///
    /// # Errors
    /// The device refuses.
    pub fn begin(mut qps: QpSet, limit: Duration) -> Result<Self> {
        let waiting = qps.striping.rail_numbers();
        // The first queue pairs are on different rails.
        for (number, connected) in (0..waiting.count()).zip(&mut qps.qps) {
            let id = WrId::Probe { qp: number }.to_bits();
            connected.qp.post_write(&Write { id, signaled: true, ..Write::default() })?;
        }
        Ok(Self { qps, waiting, failed: RailMask::NONE, begun: Instant::now(), patience: Patience::new(limit) })
    }

    /// The rails over which nothing is acknowledged, once that is known of each.
    pub fn poll(&mut self) -> Option<RailMask> {
        for on in &self.qps.rails {
            let mut batch = Batch::default();
            // A queue that has failed reports nothing more.
            let completions = on.queue.poll(&mut batch).unwrap_or_default();
            for completion in completions {
                let rail = RailMask::only(on.number);
                self.waiting = self.waiting - rail;
                if completion.status() == Status::SUCCESS {
                    self.patience.handle_acknowledged(self.begun.elapsed());
                } else {
                    self.failed = self.failed | rail;
                }
            }
        }
        let is_over = self.waiting.is_empty() || self.patience.is_over(self.begun.elapsed());
        is_over.then(|| self.failed | self.waiting)
    }

    /// The queue pairs.
    pub fn into_qps(self) -> QpSet {
        self.qps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time that is waited if a rail acknowledges after each of `acknowledged`, in microseconds, and another one never does.
    fn waited(limit_us: u64, acknowledged_us: &[u64]) -> u64 {
        let mut patience = Patience::new(Duration::from_micros(limit_us));
        acknowledged_us.iter().for_each(|after| patience.handle_acknowledged(Duration::from_micros(*after)));
        let over = (0..=limit_us).find(|elapsed| patience.is_over(Duration::from_micros(*elapsed)));
        over.expect("it ends with the limit")
    }

    #[test]
    fn a_rail_that_is_silent_has_an_eighth_of_the_limit_once_another_one_has_acknowledged() {
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
