//! Signs of life of a peer's device, and how soon its death is reported.

use super::app::Pair;
use super::network::Network;
use super::world::World;
use crate::control::Time;
use std::time::Duration;

/// How long both processes are stopped: long enough for a death, and not so long that refusals
/// before it count no more.
const STOPPED: Duration = Duration::from_millis(1500);

/// How long after the end of its control connections, and of its device, an end may not know that
/// its peer has died: if it can call that; if not.
const TOLD_WITHIN: [Duration; 2] = [Duration::from_secs(6), Duration::from_secs(14)];

impl World {
    /// Both processes are stopped for a while. When they run again, they dial, and hear of it,
    /// before they ask each other's devices.
    pub(super) fn stop(&mut self) {
        self.now += STOPPED;
        for process in (0..2).filter(|process| !self.network.is_dead[*process]) {
            self.planes[process].handle_timeout(self.now);
        }
        self.settle();
        for index in 0..self.network.wires.len() {
            if self.network.wires[index].is_waiting() {
                self.accept_clients(index);
            }
        }
        (0..2).for_each(|process| self.give_signs_of_life(process));
    }

    /// The devices of peers that are in doubt acknowledge, as long as their processes live, or a
    /// child has the device, and as these have not destroyed the queue pairs.
    pub(super) fn give_signs_of_life(&mut self, process: usize) {
        if self.network.is_dead[1 - process] && self.network.heir_until[1 - process] <= self.now {
            return;
        }
        for pair in self.pairs.iter_mut().filter(|pair| !pair.has_closed[1 - process]) {
            if let Some(end) = pair.end(process).filter(|end| end.is_in_doubt) {
                self.planes[process].handle_acknowledged(self.now, end.stream);
            }
        }
    }
}

impl Network {
    /// One process has died: the other one has been told in time, if it was, once the network was
    /// well.
    pub(super) fn check_reported(
        &self,
        pair: &mut Pair,
        calm_since: Time,
        without_port: &[bool; 2],
    ) {
        let dead = usize::from(self.is_dead[1]);
        let most = TOLD_WITHIN[usize::from(without_port[dead])];
        if let Some(end) = pair.end(1 - dead)
            && let (Some(lost), Some(told)) = (end.lost_at, end.reported_at)
        {
            // That may come late, where one was lost without a word.
            let ended = self.ended[1 - dead].max(self.heir_until[dead]);
            let waited = told.saturating_sub(lost.max(calm_since).max(ended));
            assert!(waited <= most, "told after {waited:?}: {end:?}");
        }
    }
}
