//! The end of a connection's queue pairs, after which nothing that belongs to them can happen any more.
//!
//! A device executes a request of the peer only on a queue pair that is not in state ERROR. All receives that are posted on a
//! queue pair complete when it is moved there: first those that messages have come for, with success, then the others, flushed.
//! So once as many have completed as were posted, all that has arrived is known, and nothing more will arrive. Once a queue pair is
//! destroyed, the device neither reads nor writes memory for it.

use super::set::QpSet;
use super::wr_id::WrId;
use crate::error::{Error, Result};
use crate::net::control::peer_state::PeerState;
use crate::proto::QpIndex;
use crate::verbs::status::Status;
use crate::verbs::work::Batch;
use std::time::{Duration, Instant};

/// How long posted receives may take to complete. A device needs microseconds; one that has failed may never complete them.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(50);
/// The least time for them, of a device that was lost long ago.
const LEAST_DRAIN: Duration = Duration::from_millis(10);

/// What had arrived on queue pairs before their end and had not been polled, in order for each of them.
#[derive(Debug, Default)]
pub struct Drained {
    /// Queue pairs, and the immediates of the messages.
    pub arrivals: Vec<(QpIndex, u32)>,
    /// The error of a work request that would fail on new queue pairs as well.
    pub failure: Option<Error>,
}

impl QpSet {
    /// Moves all queue pairs, which are connected to `peer`, to state ERROR, polls until all of their receives have completed, and
    /// destroys them.
    pub fn fence(mut self, peer: &PeerState) -> Drained {
        for connected in &mut self.qps {
            if let Err(e) = connected.qp.fail() {
                // The device has failed, and completes nothing more.
                log::debug!("{e}");
                connected.receives = 0;
            }
        }
        let mut drained = Drained::default();
        let begun = Instant::now();
        loop {
            let mut polled = 0;
            for place in 0..self.rails.len() {
                match self.drain_rail(place, peer, &mut drained) {
                    Ok(count) => polled += count,
                    // The queue has failed, and reports nothing more.
                    Err(e) => {
                        log::debug!("{e}");
                        let of_rail = |index: u8| usize::from(self.striping.place_of(QpIndex(index))) == place;
                        let qps = (0..).zip(&mut self.qps).filter(|(index, _)| of_rail(*index));
                        qps.for_each(|(_, connected)| connected.receives = 0);
                    }
                }
            }
            if self.qps.iter().all(|connected| connected.receives == 0) && polled == 0 {
                return drained;
            }
            if Instant::now() > self.drain_limit(begun) {
                let missing: u32 = self.qps.iter().map(|connected| connected.receives).sum();
                log::warn!("{}: {missing} receives of queue pairs in state ERROR have not completed", self.name);
                return drained;
            }
            if polled == 0 {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Until when posted receives may complete, of a fence that has `begun` then. Many connections of a device that is lost do not wait one
    /// after the other.
    fn drain_limit(&self, begun: Instant) -> Instant {
        let lost = self.rails.iter().filter_map(|on| on.device.context.failed_at()).max();
        lost.map_or(begun + DRAIN_LIMIT, |lost| (lost + DRAIN_LIMIT).max(begun + LEAST_DRAIN))
    }

    /// Takes a batch of completions of the rail at `place` in, and returns their number.
    ///
    /// # Errors
    /// The queue has failed.
    fn drain_rail(&mut self, place: usize, peer: &PeerState, drained: &mut Drained) -> Result<usize> {
        let mut batch = Batch::default();
        let completions = self.rails[place].queue.poll(&mut batch)?;
        for completion in completions {
            let status = completion.status();
            if status != Status::SUCCESS && !status.is_recoverable() && drained.failure.is_none() {
                drained.failure = Some(self.failure(peer, completion));
            }
            let WrId::Receive { qp } = WrId::from_bits(completion.id()) else { continue };
            let Some(connected) = self.qps.get_mut(usize::from(qp)) else { continue };
            connected.receives = connected.receives.saturating_sub(1);
            if status == Status::SUCCESS {
                drained.arrivals.push((QpIndex(qp), completion.imm()));
            }
        }
        Ok(completions.len())
    }
}
