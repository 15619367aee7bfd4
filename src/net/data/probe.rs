//! Probes: writes of zero bytes, which tell whether the peer's device still acknowledges.
//!
//! While the control connection is lost and the peer's host cannot be reached over it, nothing else tells this end that the peer is gone.
//! An end with writes in flight learns of it when they fail. An end that waits for the peer has no writes in flight, and would wait for
//! ever, so it posts a probe now and then. The peer's device acknowledges it, without its process, as long as the process
//! lives; a failed probe is reported like a failed write of data. Where the peer's port refuses, probes are sent often: one that is
//! acknowledged shows that it is not the peer's process that refuses.

use crate::error::{Error, Result};
use crate::net::qp::set::QpSet;
use crate::net::qp::wr_id::WrId;
use crate::proto::QpIndex;
use std::time::{Duration, Instant};

/// The probes of one end.
#[derive(Debug, Default)]
pub struct Probe {
    /// Writes that are not complete.
    outstanding: u32,
    /// When it was a probe's turn last.
    turn: Option<Instant>,
    /// When the last one was sent.
    sent: Option<Instant>,
}

/// Time from one probe to the next. A device takes longer to report a missing acknowledgement, as `NCCL_IB_TIMEOUT` says.
const EVERY: Duration = Duration::from_secs(10);
/// The same while it is doubted that the peer lives.
const EVERY_IN_DOUBT: Duration = Duration::from_millis(200);

impl Probe {
    /// Posts a write on the first queue pair of each rail, unless a probe is outstanding or was sent within the last [`EVERY`], or
    /// [`EVERY_IN_DOUBT`]. The caller keeps room for it in the send queues.
    ///
    /// # Errors
    /// The device refuses the write.
    pub fn send(&mut self, qps: &mut QpSet, is_in_doubt: bool) -> Result<()> {
        let every = if is_in_doubt { EVERY_IN_DOUBT } else { EVERY };
        if self.take_turn(Instant::now(), every) { self.send_now(qps) } else { Ok(()) }
    }

    /// Whether a probe is due `now`, which it is so often.
    fn take_turn(&mut self, now: Instant, every: Duration) -> bool {
        let is_due = !self.is_outstanding() && self.turn.is_none_or(|turn| turn + every <= now);
        if is_due {
            self.turn = Some(now);
        }
        is_due
    }

    /// Posts a write on the first queue pair of each rail. No probe may be outstanding.
    ///
    /// # Errors
    /// The device refuses the write.
    pub fn send_now(&mut self, qps: &mut QpSet) -> Result<()> {
        self.sent = Some(Instant::now());
        for index in 0..qps.striping.rails().min(qps.qps.len() as u8) {
            qps.post_probe(QpIndex(index), 0)?;
            self.outstanding += 1;
        }
        Ok(())
    }

    /// How long a probe has been outstanding; `None` if there is none.
    pub fn outstanding_for(&self) -> Option<Duration> {
        self.sent.filter(|_| self.is_outstanding()).map(|sent| sent.elapsed())
    }

    /// Whether a probe is not complete.
    pub fn is_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// The work request `id` is complete, which carries no data. `whose` completion queue has reported it.
    ///
    /// # Errors
    /// It is not a probe.
    #[cold]
    #[inline(never)]
    pub fn handle_completion(&mut self, id: u64, whose: &str) -> Result<()> {
        match WrId::from_bits(id) {
            WrId::Probe { .. } => {
                self.outstanding = self.outstanding.saturating_sub(1);
                Ok(())
            }
            work => Err(Error::internal(format!("a {whose}'s completion queue reports {work:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_is_due_at_once_and_then_every_ten_seconds_unless_one_is_outstanding() {
        let (mut probe, begin) = (Probe::default(), Instant::now());
        let mut due = |seconds| probe.take_turn(begin + Duration::from_secs(seconds), EVERY);
        assert_eq!([due(0), due(0), due(9), due(10), due(19), due(20)], [true, false, false, true, false, true]);
        probe.outstanding = 1;
        assert!(!probe.take_turn(begin + Duration::from_secs(100), EVERY));
        probe.outstanding = 0;
        assert!(probe.take_turn(begin + Duration::from_secs(100), EVERY));
        let in_doubt = begin + Duration::from_secs(100) + EVERY_IN_DOUBT;
        assert!(!probe.take_turn(in_doubt, EVERY) && probe.take_turn(in_doubt, EVERY_IN_DOUBT));
    }

    #[test]
    fn probes_are_outstanding_until_each_rail_has_completed_its_own() {
        let sent = Instant::now().checked_sub(Duration::from_secs(5));
        let mut probe = Probe { outstanding: 2, turn: None, sent };
        let complete = |probe: &mut Probe| probe.handle_completion(WrId::Probe { qp: 0 }.to_bits(), "sender");
        complete(&mut probe).expect("a probe");
        assert!(probe.is_outstanding());
        assert!(probe.outstanding_for() >= Some(Duration::from_secs(5)));
        complete(&mut probe).expect("a probe");
        assert!(!probe.is_outstanding());
        assert_eq!(probe.outstanding_for(), None);
        let error = probe.handle_completion(WrId::Receive { qp: 0 }.to_bits(), "sender").expect_err("no probe");
        assert!(error.text().contains("a sender's completion queue reports"), "{error:?}");
    }
}
