//! The end of a connection's queue pairs, after which they cannot have any effect.
//!
//! A device executes requests of the peer only on a queue pair that is not in state ERROR. When a
//! queue pair moves there, all of its posted receives complete: first, with success, those for
//! which messages have arrived, then the others, flushed. So once as many have completed as were
//! posted, all arrivals are known, and nothing more will arrive. Once a queue pair is destroyed,
//! the device neither reads nor writes memory for it.
//!
//! Some providers (ionic) report all receives as flushed that were not polled before the move. So
//! the queues are polled first, until they stay empty: a device may acknowledge a message shortly
//! before it reports the arrival. The receiver's fence comes after the sender's
//! ([`crate::proto::recovery`]). So messages that arrive later count as missing and are resent, and
//! the sender has not reported them as sent.
//!
//! The completion queues of thread domains are kept for the new queue pairs. A queue writes to no
//! memory but its own, and a destroyed queue pair adds nothing to it. The completions that
//! it left are removed first. The drivers with thread domains (mlx5, hns, ionic) remove them when
//! they destroy it. Other drivers (qedr) may read the freed queue pair when the queue is polled, so
//! there the queue is destroyed. It is also destroyed if anything is in doubt: its device refused a
//! command or is lost, a receive is missing, or the queue has failed.

use super::init_rail::KeptQueue;
use super::set::QpSet;
use super::wr_id::WrId;
use crate::error::{Error, Result};
use crate::net::device::open_device::LOSS_LIMIT;
use crate::net::peer::state::PeerState;
use crate::proto::QpIndex;
use crate::verbs::clock;
use crate::verbs::status::Status;
use crate::verbs::work::Batch;
use std::time::{Duration, Instant};

/// How long posted receives may take to complete on queue pairs in state ERROR or of a lost device.
/// A device needs microseconds; a lost one may never complete them.
const DRAIN_LIMIT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_micros(50);
/// The least time for a device that was lost, or began to refuse commands, long ago.
const LEAST_DRAIN: Duration = Duration::from_millis(10);
/// Interval between attempts to move a queue pair to state ERROR.
const TRY_EVERY: Duration = Duration::from_millis(1);

/// Messages that had arrived on queue pairs before their end and had not been polled, in order for
/// each.
#[derive(Debug, Default)]
pub struct Drained {
    /// Queue pairs, and the immediates of the messages.
    pub arrivals: Vec<(QpIndex, u32)>,
    /// The error of a work request that would fail on new queue pairs too.
    pub failure: Option<Error>,
    /// The error of a poll that may have lost an arrival.
    pub poll_error: Option<Error>,
    /// The completion queues that other queue pairs may use.
    pub queues: Vec<KeptQueue>,
}

impl QpSet {
    /// Handles arrivals, moves all queue pairs, which are connected to `peer`, to state ERROR,
    /// polls until all of their receives have completed, and destroys them.
    ///
    /// A device about to be lost may refuse that and still receive, even on destroyed queue pairs.
    /// The fence repeats the command until the device obeys, has completed all receives, has been
    /// lost for [`DRAIN_LIMIT`], or has refused for [`LOSS_LIMIT`]. A sender has no receives and
    /// does not wait: the receiver's fence blocks what its device still sends.
    pub fn fence(mut self, peer: &PeerState) -> Drained {
        let (mut drained, doubtful) = self.drain(peer);
        self.give_up_queues();
        self.qps.clear();
        let sound = (0..).zip(self.rails).filter(|(place, _)| doubtful & 1_u32 << place == 0);
        drained.queues = sound.filter_map(|(_, on)| on.into_kept()).collect();
        drained
    }

    /// Destroys all queue pairs. Later completions do not matter.
    pub fn destroy(self) {
        self.give_up_queues();
    }

    /// From now on a failure of a completion queue concerns no connection.
    fn give_up_queues(&self) {
        let watched = self
            .rails
            .iter()
            .filter_map(|on| Some((on.port.card.started_watcher()?, on.queue.id())));
        watched.for_each(|(watcher, queue)| watcher.events().give_up_queue(queue));
    }

    /// [`Self::fence`] without destroying the queue pairs. Also returns a mask of the places of
    /// rails whose queues are in doubt.
    fn drain(&mut self, peer: &PeerState) -> (Drained, u32) {
        let mut doubtful = 0;
        let mut refused: Vec<usize> = (0..self.qps.len()).collect();
        let (mut drained, begun) = (Drained::default(), clock::now());
        self.empty(peer, &mut drained, begun);
        let mut next_try = begun;
        loop {
            if !refused.is_empty() && clock::now() >= next_try {
                refused.retain(|index| !self.fail(*index));
                next_try = clock::now() + TRY_EVERY;
            }
            let mut polled = 0;
            for place in 0..self.rails.len() {
                match self.drain_rail(place, peer, &mut drained) {
                    Ok(count) => polled += count,
                    // The queue has failed, and reports nothing more. Queue pairs that are not in
                    // state ERROR may still receive.
                    Err(_) if refused.iter().any(|index| self.place_of(*index) == place) => {}
                    Err(e) => {
                        log::debug!("{e}");
                        self.give_up(place);
                        doubtful |= 1 << place;
                    }
                }
            }
            if self.qps.iter().all(|connected| connected.receives == 0) && polled == 0 {
                let of_refused = refused.iter().map(|index| 1 << self.place_of(*index));
                return (drained, of_refused.fold(doubtful, |all, one| all | one));
            }
            let now = clock::now();
            for place in 0..self.rails.len() {
                let is_refused = refused.iter().any(|index| self.place_of(*index) == place);
                if now <= self.drain_limit(place, begun, is_refused) {
                    continue;
                }
                doubtful |= 1 << place;
                let (missing, port) = (self.give_up(place), &self.rails[place].port.name);
                match is_refused {
                    _ if missing == 0 => {}
                    true => log::warn!(
                        "{port}: queue pairs could not be moved to state ERROR, and {missing} receives are left"
                    ),
                    false => log::warn!(
                        "{port}: {missing} receives of queue pairs in state ERROR have not completed"
                    ),
                }
            }
            if polled == 0 {
                clock::sleep(PAUSE);
            }
        }
    }

    /// Handles the contents of the queues until they stay empty for a [`PAUSE`], in a fence that
    /// started at `begun`. A sender has no arrivals.
    fn empty(&mut self, peer: &PeerState, drained: &mut Drained, begun: Instant) {
        let mut was_empty = self.qps.iter().all(|connected| connected.receives == 0);
        // An endlessly sending peer must not keep this end here.
        while clock::since(begun) < LEAST_DRAIN {
            let rails = self.rails.len();
            let polled = (0..rails).map(|place| self.drain_rail(place, peer, drained).unwrap_or(0));
            let is_empty = polled.sum::<usize>() == 0;
            match (is_empty, was_empty) {
                (true, true) => return,
                (true, false) => clock::sleep(PAUSE),
                (false, _) => {}
            }
            was_empty = is_empty;
        }
    }

    /// Moves the queue pair with this index to state ERROR. Returns whether its device obeyed; a
    /// lost device gets no further command.
    fn fail(&self, index: usize) -> bool {
        let (connected, device) = (&self.qps[index], &self.rails[self.place_of(index)].device);
        let outcome = connected.qp.fail();
        device.handle_command(outcome.is_err());
        if let Err(e) = &outcome {
            log::debug!("{e}");
        }
        outcome.is_ok() || device.is_lost()
    }

    /// The place of the rail of the queue pair with this index among the rails in use.
    fn place_of(&self, index: usize) -> usize {
        index % self.rails.len().max(1)
    }

    /// Stops waiting for receives on the rail at `place`. Returns their number.
    fn give_up(&mut self, place: usize) -> u32 {
        let rails = self.rails.len().max(1);
        let of_rail = self.qps.iter_mut().skip(place).step_by(rails);
        of_rail.map(|connected| std::mem::take(&mut connected.receives)).sum()
    }

    /// Until when receives on the rail at `place` may complete, in a fence that started at `begun`.
    /// Many connections of a lost or refusing device do not wait one after the other.
    fn drain_limit(&self, place: usize, begun: Instant, is_refused: bool) -> Instant {
        let device = &self.rails[place].device;
        let limit = match (device.context.failed_at(), device.refuses_since()) {
            (Some(lost), _) => lost + DRAIN_LIMIT,
            (None, Some(since)) if is_refused => since + LOSS_LIMIT,
            (None, _) => begun + DRAIN_LIMIT,
        };
        limit.max(begun + LEAST_DRAIN)
    }

    /// Handles a batch of completions of the rail at `place`. Returns their number.
    ///
    /// # Errors
    /// The queue has failed.
    fn drain_rail(
        &mut self,
        place: usize,
        peer: &PeerState,
        drained: &mut Drained,
    ) -> Result<usize> {
        let mut batch = Batch::default();
        let queue = &mut self.rails[place].queue;
        let completions = queue.poll(&mut batch).map_err(Error::from).inspect_err(|e| {
            drained.poll_error.get_or_insert_with(|| e.clone());
        })?;
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
