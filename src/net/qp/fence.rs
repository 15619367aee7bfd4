//! The end of a connection's queue pairs, after which nothing that belongs to them can happen any more.
//!
//! A device executes a request of the peer only on a queue pair that is not in state ERROR. All receives that are posted on a
//! queue pair complete when it is moved there: first those that messages have come for, with success, then the others, flushed.
//! So once as many have completed as were posted, all that has arrived is known, and nothing more will arrive. Once a queue pair is
//! destroyed, the device neither reads nor writes memory for it.
//!
//! Some providers (ionic's) report all receives as flushed that have not been polled when the queue pair is moved. So the queues are polled
//! until they are empty before. What arrives between is not known to have arrived, and is sent again: the receiver's fence comes after
//! the sender's ([`crate::proto::recovery`]), so the sender has told nobody that it is sent.

use super::set::QpSet;
use super::wr_id::WrId;
use crate::error::{Error, Result};
use crate::net::device::open_device::LOSS_LIMIT;
use crate::net::peer::state::PeerState;
use crate::proto::QpIndex;
use crate::verbs::status::Status;
use crate::verbs::work::Batch;
use std::time::{Duration, Instant};

/// How long posted receives may take to complete on queue pairs in state ERROR, or of a device that is lost. A device needs
/// microseconds; one that is lost may never complete them.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(50);
/// The least time for them, of a device that was lost or began to refuse commands long ago.
const LEAST_DRAIN: Duration = Duration::from_millis(10);
/// Time from one attempt to move a queue pair to state ERROR to the next.
const TRY_EVERY: Duration = Duration::from_millis(1);

/// What had arrived on queue pairs before their end and had not been polled, in order for each of them.
#[derive(Debug, Default)]
pub struct Drained {
    /// Queue pairs, and the immediates of the messages.
    pub arrivals: Vec<(QpIndex, u32)>,
    /// The error of a work request that would fail on new queue pairs as well.
    pub failure: Option<Error>,
}

impl QpSet {
    /// Takes in what has arrived, moves all queue pairs, which are connected to `peer`, to state ERROR, polls until all of their receives have
    /// completed, and destroys them.
    ///
    /// A device that is about to be lost may refuse that, and go on to receive, even on queue pairs that are destroyed. It is asked
    /// again until it obeys, or has completed all receives, or has been lost for [`DRAIN_LIMIT`], or has refused for [`LOSS_LIMIT`]. A
    /// sender has no receives, and does not wait: what its device still sends, the receiver's fence keeps out.
    pub fn fence(mut self, peer: &PeerState) -> Drained {
        let drained = self.drain(peer);
        self.destroy();
        drained
    }

    /// Destroys all. What their completion queues do from now on concerns nobody.
    pub fn destroy(self) {
        let watched = self.rails.iter().filter_map(|on| Some((on.port.card.started_watcher()?, on.queue.id())));
        watched.for_each(|(watcher, queue)| watcher.give_up_queue(queue));
    }

    /// [`Self::fence`], without the end.
    fn drain(&mut self, peer: &PeerState) -> Drained {
        let mut refused: Vec<usize> = (0..self.qps.len()).collect();
        let (mut drained, begun) = (Drained::default(), Instant::now());
        self.empty(peer, &mut drained, begun);
        let mut next_try = begun;
        loop {
            if !refused.is_empty() && Instant::now() >= next_try {
                refused.retain(|index| !self.fail(*index));
                next_try = Instant::now() + TRY_EVERY;
            }
            let mut polled = 0;
            for place in 0..self.rails.len() {
                match self.drain_rail(place, peer, &mut drained) {
                    Ok(count) => polled += count,
                    // The queue has failed, and reports nothing more. Queue pairs that are not in state ERROR may receive on.
                    Err(_) if refused.iter().any(|index| self.place_of(*index) == place) => {}
                    Err(e) => {
                        log::debug!("{e}");
                        self.give_up(place);
                    }
                }
            }
            if self.qps.iter().all(|connected| connected.receives == 0) && polled == 0 {
                return drained;
            }
            let now = Instant::now();
            for place in 0..self.rails.len() {
                let is_refused = refused.iter().any(|index| self.place_of(*index) == place);
                if now <= self.drain_limit(place, begun, is_refused) {
                    continue;
                }
                let (missing, port) = (self.give_up(place), &self.rails[place].port.name);
                match is_refused {
                    _ if missing == 0 => {}
                    true => log::warn!(
                        "{port}: queue pairs could not be moved to state ERROR, and {missing} receives are left"
                    ),
                    false => log::warn!("{port}: {missing} receives of queue pairs in state ERROR have not completed"),
                }
            }
            if polled == 0 {
                std::thread::sleep(PAUSE);
            }
        }
    }

    /// Takes in what the queues have, of a fence that has `begun` then.
    fn empty(&mut self, peer: &PeerState, drained: &mut Drained, begun: Instant) {
        for place in 0..self.rails.len() {
            // A peer that goes on for ever does not keep this end here.
            while self.drain_rail(place, peer, drained).unwrap_or(0) > 0 && begun.elapsed() < LEAST_DRAIN {}
        }
    }

    /// Moves the queue pair with this index to state ERROR. Whether its device has done so; one that is lost is not asked again.
    fn fail(&self, index: usize) -> bool {
        let (connected, device) = (&self.qps[index], &self.rails[self.place_of(index)].device);
        let outcome = connected.qp.fail();
        device.handle_command(outcome.is_err());
        if let Err(e) = &outcome {
            log::debug!("{e}");
        }
        outcome.is_ok() || device.is_lost()
    }

    /// The place of the rail of the queue pair with this index, among the rails in use.
    fn place_of(&self, index: usize) -> usize {
        index % self.rails.len().max(1)
    }

    /// The receives on the rail at `place` are not waited for any more. Returns how many they are.
    fn give_up(&mut self, place: usize) -> u32 {
        let rails = self.rails.len().max(1);
        let of_rail = self.qps.iter_mut().skip(place).step_by(rails);
        of_rail.map(|connected| std::mem::take(&mut connected.receives)).sum()
    }

    /// Until when receives on the rail at `place` may complete, of a fence that has `begun` then. Many connections of a device that is
    /// lost, or refuses commands, do not wait one after the other.
    fn drain_limit(&self, place: usize, begun: Instant, is_refused: bool) -> Instant {
        let device = &self.rails[place].device;
        let limit = match (device.context.failed_at(), device.refuses_since()) {
            (Some(lost), _) => lost + DRAIN_LIMIT,
            (None, Some(since)) if is_refused => since + LOSS_LIMIT,
            (None, _) => begun + DRAIN_LIMIT,
        };
        limit.max(begun + LEAST_DRAIN)
    }

    /// Takes a batch of completions of the rail at `place` in, and returns their number.
    ///
    /// # Errors
    /// The queue has failed.
    fn drain_rail(&mut self, place: usize, peer: &PeerState, drained: &mut Drained) -> Result<usize> {
        let mut batch = Batch::default();
        let queue = &self.rails[place].queue;
        let completions = queue.poll(&mut batch)?;
        if completions.is_empty() {
            queue.check()?;
        }
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
