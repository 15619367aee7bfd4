//! What a receiver does while not all is well: it reports faults, and goes on over new queue pairs.

use super::caps::RECEIVER_QP_CAPS;
use super::cts_sender::CtsSender;
use super::mode::Mode;
use super::receiver::{RecvComm, RecvPath};
use crate::error::{Error, Result};
use crate::net::control::peer_state::PeerState;
use crate::net::device::conn_memory::ConnMemory;
use crate::net::qp::fence::Drained;
use crate::net::qp::set::{InitQpSet, QpSet};
use crate::net::recovery::end::End;
use crate::proto::imm::Imm;
use crate::proto::rail_weights::RailWeights;
use crate::proto::recovery::account::Account;
use crate::proto::recovery::rail_mask::RailMask;
use crate::proto::requests::RequestId;
use crate::verbs::queue_pair::QpCaps;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a receive is tested in vain before it is asked whether its clear-to-send has arrived.
const PROBE_AFTER: Duration = Duration::from_millis(30);

impl End for RecvComm {
    fn memory(&self) -> &ConnMemory {
        &self.memory
    }

    fn describe(&self, _qps: &mut InitQpSet) -> Result<()> {
        Ok(())
    }

    fn caps(&self) -> QpCaps {
        RECEIVER_QP_CAPS
    }

    fn poll(&self) -> Result<()> {
        self.path.visit(|path| path.poll_any(&self.peer).map(drop))
    }

    fn probe(&self) -> Result<()> {
        self.path.visit(|path| {
            if !self.peer.is_recovering()
                && let Err(e) = path.cts_sender.probe.send(&mut path.qps, self.peer.is_doubted())
            {
                path.handle_failure(&self.peer, e)?;
            }
            path.poll_any(&self.peer).map(drop)
        })
    }

    fn take_qps(&self) -> Result<QpSet> {
        self.path.visit(|path| {
            self.peer.set_recovering(true);
            path.mode = Mode::Fencing;
            Ok(path.qps.take())
        })
    }

    fn handle_drained(&self, drained: &Drained) -> Result<()> {
        self.path.visit(|path| {
            path.mode = Mode::Fenced;
            drained
                .arrivals
                .iter()
                .try_for_each(|(qp, imm)| Ok(path.flow.handle_immediate(*qp, Imm::from_bits(*imm))?))
        })
    }

    fn prepare(&self, qps: &mut QpSet) -> Result<()> {
        // No receive is accepted while the connection recovers, so this stays what the messages need.
        let receives = self.path.visit(|path| Ok(path.flow.receives()))?;
        qps.keep_receives(receives)?;
        // Here, where a device that has no room for its memory makes the attempt fail, and not the connection.
        let (ring, slot_bytes) = self.path.visit(|path| Ok(path.ring))?;
        let cts_sender = CtsSender::new(qps, ring, slot_bytes)?;
        self.path.visit(|path| {
            path.prepared = Some(Box::new(cts_sender));
            Ok(())
        })
    }

    fn resume(&self, qps: QpSet, _weights: RailWeights, _account: Option<&Account>) -> Result<Option<Account>> {
        self.path.visit(|path| {
            let prepared = path.prepared.take().ok_or_else(|| Error::internal("queue pairs are not prepared"))?;
            if self.memory.use_devices(qps.devices()) {
                path.flow.renew_keys(|addr, length| self.memory.rkeys_at(addr, length));
            }
            let account = path.flow.account(qps.striping);
            path.flushes.iter_mut().for_each(|flushes| flushes.handle_devices(qps.devices()));
            qps.tell(&path.stats);
            path.stats.handle_recovery();
            path.stall.reset(qps.round_trip);
            path.qps = qps;
            path.choose_path();
            path.cts_sender = *prepared;
            path.mode = Mode::Running;
            self.peer.set_recovering(false);
            Ok(Some(account))
        })
    }

    fn drain(&self) -> Result<()> {
        Ok(())
    }

    fn is_drained(&self) -> Result<bool> {
        Ok(true)
    }
}

impl RecvPath {
    /// To be called when the peer's state is not open. Returns whether buffers may be posted: not while the connection recovers.
    ///
    /// # Errors
    /// The peer has gone.
    #[cold]
    #[inline(never)]
    pub(super) fn check_peer(&mut self, peer: &Arc<PeerState>) -> Result<bool> {
        self.sticky_error.check(peer)?;
        Ok(!peer.is_recovering())
    }

    /// As [`Self::progress`], while the peer's state is not open. If only the control connection is lost, sends a probe.
    ///
    /// # Errors
    /// The connection has failed, or the peer has gone.
    #[cold]
    #[inline(never)]
    pub(super) fn progress_not_open(&mut self, peer: &Arc<PeerState>, awaited: RequestId) -> Result<()> {
        // Read before the queue is polled: what the peer has sent before it went is in the queue then.
        let (is_gone, is_recovering) = (peer.is_gone(), peer.is_recovering());
        self.sticky_error.check_failed()?;
        if self.mode.waits_for_arrivals(peer.is_broken()) {
            return Ok(());
        }
        let polled = self.poll_any(peer)?;
        if polled == 0 && is_gone {
            let error = self.sticky_error.reason(peer);
            return Err(self.sticky_error.fail(peer, error));
        }
        if is_recovering {
            return Ok(());
        }
        if polled == 0 {
            self.flow.handle_empty_poll(awaited);
            if let Err(e) = self.cts_sender.probe.send(&mut self.qps, peer.is_doubted()) {
                return self.handle_failure(peer, e);
            }
        }
        self.send_cts().or_else(|e| self.handle_failure(peer, e))
    }

    /// Polls all completion queues; returns the number of completions.
    ///
    /// # Errors
    /// The connection has failed.
    fn poll_any(&mut self, peer: &Arc<PeerState>) -> Result<usize> {
        let polled = self.poll_rails(peer).or_else(|e| self.handle_failure(peer, e).map(|()| 0))?;
        if polled > 0 {
            peer.handle_acknowledged();
        }
        Ok(polled)
    }

    /// Something has failed: new queue pairs may cure it, or else the connection ends.
    ///
    /// # Errors
    /// It ends.
    #[cold]
    #[inline(never)]
    pub(super) fn handle_failure(&mut self, peer: &Arc<PeerState>, error: Error) -> Result<()> {
        self.handle_failure_on(peer, error, 0)
    }

    /// As [`Self::handle_failure`], where nothing is acknowledged on the `lagging` lanes, as a bit mask of queue pairs.
    ///
    /// # Errors
    /// As there.
    fn handle_failure_on(&mut self, peer: &Arc<PeerState>, error: Error, lagging: u32) -> Result<()> {
        if let Some(recovery) = self.recovery.as_ref().filter(|_| error.is_recoverable)
            && !peer.is_broken()
        {
            return recovery.report(&error.text(), lagging).map_err(|e| self.sticky_error.fail(peer, e));
        }
        Err(self.sticky_error.fail(peer, error))
    }

    /// Requests have been tested many times in vain. That the messages do not come may be due to the sender; but their clear-to-sends
    /// have to arrive.
    ///
    /// # Errors
    /// The connection ends.
    #[cold]
    #[inline(never)]
    pub(super) fn check_stall(&mut self, peer: &Arc<PeerState>) -> Result<()> {
        let now = Instant::now();
        let limit = self.stall.limit(now);
        if self.recovery.is_none() || limit.is_zero() {
            return Ok(());
        }
        if self.stall.waited(self.flow.oldest_missing(), now).is_none_or(|waited| waited < PROBE_AFTER) {
            return Ok(());
        }
        if let Err(e) = self.cts_sender.probe_writes(&mut self.qps) {
            return self.handle_failure(peer, e);
        }
        match self.cts_sender.probe.outstanding_for() {
            Some(waited) if waited > limit => {
                self.stall.back_off(now);
                let text = format!(
                    "clear-to-sends have not been acknowledged for {} ms (FERRITE_STALL_MS)",
                    waited.as_millis()
                );
                // Clear-to-sends go over the first queue pair of each rail.
                let firsts = RailMask::first(self.qps.rails.len() as u8).0;
                let lagging = if self.qps.labels.are_used() { firsts.into() } else { 0 };
                self.handle_failure_on(peer, Error::remote(text).recoverable(), lagging)
            }
            _ => Ok(()),
        }
    }
}
