//! Whether the peer's device still acknowledges.
//!
//! While the line is lost, nobody is told that the peer has died, or that its host is gone. An end with data under way hears
//! of it by that. One that waits for the peer has nothing under way, and would wait for ever: it writes nothing, zero bytes,
//! to the peer's memory now and then, which the peer's device acknowledges without its process, as long as that lives; the
//! failure is told like that of data. Dialling again tells much sooner, but only of a peer whose host can be reached, and only
//! the end that has dialled before.

use crate::error::{Error, Result};
use crate::net::qp::set::{QpSet, WrId};
use crate::verbs::work::Write;
use std::time::{Duration, Instant};

/// What an end asks its devices.
#[derive(Debug, Default)]
pub struct Probe {
    /// Writes that are not acknowledged yet.
    outstanding: u32,
    next: Option<Instant>,
}

/// How often it is asked. An answer that is not one takes the device longer, as `NCCL_IB_TIMEOUT` says.
const EVERY: Duration = Duration::from_secs(10);

impl Probe {
    /// One write over the first lane of each rail, unless there was one a moment ago or is one still. The caller has kept
    /// room for it in the queues.
    ///
    /// # Errors
    /// The device refuses it.
    pub fn send(&mut self, lanes: &mut QpSet) -> Result<()> {
        let now = Instant::now();
        if self.outstanding > 0 || self.next.is_some_and(|next| now < next) {
            return Ok(());
        }
        self.next = Some(now + EVERY);
        let rails = lanes.striping.rails();
        for (number, lane) in (0..rails).zip(&mut lanes.lanes) {
            let id = WrId::Probe { lane: number }.to_bits();
            lane.pair.post_write(&Write { id, signaled: true, ..Write::default() })?;
            self.outstanding += 1;
        }
        Ok(())
    }

    /// Whether an answer is due.
    pub fn is_outstanding(&self) -> bool {
        self.outstanding > 0
    }

    /// The work request `id`, which is none that carries data, is complete.
    ///
    /// # Errors
    /// It is not one of these; `whose` completion queue has reported it.
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
