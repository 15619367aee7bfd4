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
    limit: Duration,
    /// The time from the beginning after which no more is waited for: the limit, or less once a rail has acknowledged.
    until: Duration,
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
        Ok(Self { qps, waiting, failed: RailMask::NONE, begun: Instant::now(), limit, until: limit })
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
                    let others = (self.limit / OTHERS).max(self.begun.elapsed() * OTHERS);
                    self.until = self.until.min(others);
                } else {
                    self.failed = self.failed | rail;
                }
            }
        }
        let is_over = self.waiting.is_empty() || self.begun.elapsed() >= self.until;
        is_over.then(|| self.failed | self.waiting)
    }

    /// The queue pairs.
    pub fn into_qps(self) -> QpSet {
        self.qps
    }
}
