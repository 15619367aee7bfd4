//! What a sender does while not all is well: it reports faults, and goes on over new queue pairs.

use super::caps::SENDER_QP_CAPS;
use super::mode::Mode;
use super::other_work::OtherWork;
use super::sender::{SendComm, SendPath};
use crate::error::{Error, Result};
use crate::net::device::conn_memory::ConnMemory;
use crate::net::qp::fence::Drained;
use crate::net::qp::set::{InitQpSet, QpSet};
use crate::net::recovery::end::End;
use crate::proto::Violation;
use crate::proto::imm::Imm;
use crate::proto::rail_weights::RailWeights;
use crate::proto::recovery::account::Account;
use crate::proto::recovery::sender::Unapplied;
use crate::verbs::queue_pair::QpCaps;
use std::time::Instant;

impl End for SendComm {
    fn memory(&self) -> &ConnMemory {
        &self.memory
    }

    fn describe(&self, qps: &mut InitQpSet) -> Result<()> {
        self.path.visit(|path| qps.describe_ring(&mut path.ring))
    }

    fn caps(&self) -> QpCaps {
        SENDER_QP_CAPS
    }

    fn poll(&self) -> Result<()> {
        self.path.visit(|path| path.poll_any().map(drop))
    }

    fn probe(&self) -> Result<()> {
        self.path.visit(|path| {
            path.check_peer()?;
            path.poll_any().map(drop)
        })
    }

    fn take_qps(&self) -> Result<QpSet> {
        self.path.visit(|path| {
            // Set while no other thread is inside: the end of a replay, which clears it, happens inside as well.
            self.peer.set_recovering(true);
            path.mode = Mode::Fenced;
            Ok(path.qps.take())
        })
    }

    /// The receiver's account says what has arrived.
    fn handle_drained(&self, _drained: &Drained) -> Result<()> {
        Ok(())
    }

    fn prepare(&self, _qps: &mut QpSet) -> Result<()> {
        Ok(())
    }

    fn resume(&self, qps: QpSet, weights: RailWeights, account: Option<&Account>) -> Result<Option<Account>> {
        let account = account.ok_or_else(|| Error::internal("a sender goes on without an account"))?;
        self.path.visit(|path| {
            path.flow.apply_account(account, qps.striping, weights).map_err(|why| unapplied(&why))?;
            path.memory.use_devices(qps.devices());
            qps.tell(&path.stats);
            path.stats.handle_recovery();
            path.stats.set_moves(qps.labels.replaced());
            path.stall.reset(qps.round_trip);
            path.use_qps(qps);
            path.choose_path();
            path.other_work = OtherWork::default();
            path.mode = Mode::Replaying;
            path.replay().map(|()| None)
        })
    }

    fn drain(&self) -> Result<()> {
        self.path.visit(|path| {
            self.peer.set_recovering(true);
            path.mode = Mode::Draining;
            Ok(())
        })
    }

    fn is_drained(&self) -> Result<bool> {
        self.path.visit(|path| {
            path.poll_any()?;
            Ok(path.flow.outstanding() == 0)
        })
    }
}

impl SendPath {
    /// To be called when the peer's state is not open. Returns whether a message may be sent: not while the connection recovers.
    /// If only the control connection is lost, sends a probe; no message may be sent while that is outstanding. The send queues have
    /// room for a probe only while no message is in flight.
    ///
    /// # Errors
    /// The peer has gone, or its device does not acknowledge.
    #[cold]
    #[inline(never)]
    pub(super) fn check_peer(&mut self) -> Result<bool> {
        self.sticky_error.check(&self.peer)?;
        if self.peer.is_recovering() {
            return self.replay().map(|()| false);
        }
        if self.flow.is_idle()
            && let Err(e) = self.other_work.probe.send(&mut self.qps, self.peer.is_doubted())
        {
            self.handle_failure(e)?;
        }
        if self.other_work.probe.is_outstanding() {
            self.poll_any()?;
        }
        Ok(!self.other_work.probe.is_outstanding())
    }

    /// As [`Self::progress`], while the peer's state is not open.
    ///
    /// # Errors
    /// The connection has failed, or nothing will come of what is under way.
    #[cold]
    #[inline(never)]
    pub(super) fn progress_not_open(&mut self) -> Result<()> {
        self.sticky_error.check_failed()?;
        if self.recovery.is_some() && self.peer.state().has_closed() {
            // It does so only when all that has begun has arrived. The device would report that much later if acknowledgements are
            // lost, or never.
            self.flow.complete_all();
            return Ok(());
        }
        // Read before the queue is polled. What the peer has acknowledged before it went is in the queue then.
        let is_broken = self.peer.is_broken();
        let polled = self.poll_any()?;
        self.replay()?;
        if polled == 0 && is_broken {
            let error = self.sticky_error.reason(&self.peer);
            return Err(self.sticky_error.fail(&self.peer, error));
        }
        Ok(())
    }

    /// Polls all completion queues; returns the number of completions.
    ///
    /// # Errors
    /// The connection has failed.
    pub(super) fn poll_any(&mut self) -> Result<usize> {
        match self.poll_rails() {
            Ok(polled) => {
                if polled > 0 {
                    self.peer.handle_acknowledged();
                }
                Ok(polled)
            }
            Err(e) => self.handle_failure(e).map(|()| 1),
        }
    }

    /// Something has failed: new queue pairs may cure it, or else the connection ends.
    ///
    /// # Errors
    /// It ends.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_failure(&mut self, error: Error) -> Result<()> {
        if let Some(recovery) = self.recovery.as_ref().filter(|_| error.is_recoverable)
            && !self.peer.is_broken()
        {
            let lagging = if self.qps.labels.are_used() { self.flow.lagging_lanes() } else { 0 };
            return recovery.report(&error.text(), lagging).map_err(|e| self.sticky_error.fail(&self.peer, e));
        }
        Err(self.sticky_error.fail(&self.peer, error))
    }

    /// The receiver has written what is no clear-to-send.
    #[cold]
    #[inline(never)]
    pub(super) fn violated(&mut self, violation: Violation) -> Error {
        self.sticky_error.fail(&self.peer, violation.into())
    }

    /// Requests have been tested many times in vain.
    ///
    /// # Errors
    /// The connection ends.
    #[cold]
    #[inline(never)]
    pub(super) fn check_stall(&mut self) -> Result<()> {
        self.look_at_lanes();
        if let (Some(qp), Some(recovery)) = (self.flow.poll_slow_lane(), &self.recovery)
            && self.qps.labels.are_used()
        {
            recovery.report_slow_lane(qp, self.lane_trials.as_ref().and_then(|trials| trials.speed()));
        }
        let Some((oldest, bytes)) = self.flow.unacknowledged().filter(|_| self.recovery.is_some()) else {
            return Ok(());
        };
        let Some(waited) = self.stall.check(oldest, self.qps.time_to_carry(bytes), Instant::now()) else {
            return Ok(());
        };
        let text = format!("no data has been acknowledged for {} ms (FERRITE_STALL_MS)", waited.as_millis());
        self.handle_failure(Error::remote(text).recoverable())
    }

    /// From now on it posts to `qps`, over which messages are cut already.
    fn use_qps(&mut self, qps: QpSet) {
        self.inline_up_to = qps.inline_bytes();
        self.qps = qps;
        self.usual_up_to = self.usual_bytes();
        self.lane_trials.iter_mut().for_each(|trials| trials.handle_new_queue_pairs());
    }

    /// Up to how many bytes a message is one write on the only rail; 0: none is known to be.
    pub(super) fn usual_bytes(&self) -> u32 {
        let one_write_up_to = self.trailing_immediate_above.min(self.qps.striping.whole_up_to());
        let is_any = self.has_one_rail && !self.flow.has_lanes();
        if is_any { one_write_up_to.min(Imm::EXPLICIT_LIMIT - 1) } else { 0 }
    }

    /// Takes up lanes, or gives them up, where they are automatic.
    #[inline(never)]
    pub(super) fn look_at_lanes(&mut self) {
        let (Some(trials), Some(recovery)) = (&mut self.lane_trials, &self.recovery) else { return };
        let done = self.stats.done();
        if !trials.is_due(done.1) {
            return;
        }
        let striping = self.qps.striping;
        let per_rail = if self.flow.has_lanes() { striping.qps_per_rail() } else { 1 };
        if let Some(wish) = trials.look(done, (striping.rails(), per_rail)) {
            recovery.report_wish(wish);
        }
    }

    /// Goes on to send again what has not arrived, as far as the send queues have room. When all of it is posted, the connection runs.
    ///
    /// # Errors
    /// The memory of a message is not registered any more, or the connection ends.
    pub(super) fn replay(&mut self) -> Result<()> {
        if self.mode != Mode::Replaying {
            return Ok(());
        }
        while let Some(length) = self.flow.peek_replay() {
            if !self.has_room(length) {
                return Ok(());
            }
            let Some((transfer, addr)) = self.flow.poll_replay() else { break };
            let length = transfer.length;
            let Some(lkeys) = self.memory.lkeys_at(addr, length) else {
                let text = format!("{length} bytes at {addr:#x} are to be sent again, but are not registered any more");
                return Err(self.sticky_error.fail(&self.peer, Error::argument(text)));
            };
            self.stats.handle_resent(length);
            let lkey = |rail: u8| lkeys.get(usize::from(rail)).copied().unwrap_or_default();
            if let Err(e) = self.post(addr, lkey, transfer) {
                return self.handle_failure(e);
            }
        }
        self.mode = Mode::Running;
        self.peer.set_recovering(false);
        Ok(())
    }
}

fn unapplied(why: &Unapplied) -> Error {
    Error::remote(why.to_string())
}
