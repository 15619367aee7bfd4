//! Progress of a recovery with the new queue pairs of an attempt, up to their use.

use super::conn::{ConnRecovery, Work};
use super::end::End;
use super::new_qps::Progress;
use crate::error::Result;
use crate::proto::recovery::missing_list::MissingList;
use crate::proto::recovery::rail_mask::RailMask;
use std::time::Instant;

impl ConnRecovery {
    /// Continues with the new queue pairs. Returns when to call it again.
    pub(super) fn advance(&self, work: &mut Work, end: &dyn End) -> Result<Option<Instant>> {
        let now = self.now();
        let Some(progress) = work.new_qps.advance(end)? else { return Ok(None) };
        match progress {
            Progress::Wait(until) => return Ok(Some(until)),
            Progress::Connected(attempt, endpoint, reach) => {
                work.machine.handle_reach(reach);
                work.machine.handle_connected(now, attempt, Ok(endpoint));
            }
            Progress::Unreachable(attempt, dead, why) => {
                work.machine.handle_unusable(now, attempt, dead, why)
            }
            Progress::Unproven(attempt, dead, why) => {
                // The sender learns it from the rails that this end reports as usable. A rail that
                // was not tested beside others may not be to blame: the rest may be worse.
                if dead != work.machine.rails() {
                    dead.iter().for_each(|rail| work.rails.avoid(rail));
                }
                work.machine.handle_unusable(now, attempt, dead, why);
            }
            Progress::Proven(attempt) if work.machine.is_resuming(attempt) => {
                self.resume(work, end, attempt, None)?
            }
            // The peer has begun another attempt meanwhile: do not use these queue pairs.
            Progress::Proven(attempt) => {
                work.new_qps.discard();
                work.machine.handle_unreachable(now, attempt, RailMask::NONE);
            }
            Progress::Failed(attempt, e) => {
                let why = self.describe_failure(work, &e);
                work.machine.handle_connected(now, attempt, Err(why));
            }
        }
        Ok(Some(Instant::now()))
    }

    /// Resumes over the queue pairs of `attempt`; the sender with the receiver's `missing_list`.
    pub(super) fn resume(
        &self,
        work: &mut Work,
        end: &dyn End,
        attempt: u32,
        missing_list: Option<&MissingList>,
    ) -> Result<()> {
        let (qps, weights) = work.new_qps.take()?;
        self.in_use.use_qps(&qps);
        self.peer.handle_new_queue_pairs();
        let missing_list = end.resume(qps, weights, missing_list)?;
        work.machine.handle_resumed(self.now(), attempt, missing_list);
        if end.is_drained()? {
            work.machine.handle_acknowledged();
        }
        if !self.in_use.lost(work.machine.rails()).is_empty() {
            self.look_at_ports(work, end);
        }
        Ok(())
    }
}
