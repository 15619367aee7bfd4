//! A device that was opened once. A lost device that comes back is opened again, which gives
//! another one of these.

use crate::error::Result;
use crate::net::control::fork::CloseOnFork;
use crate::net::mr::regions::SharedRegions;
use crate::proto::endpoint::SINK_BYTES;
use crate::verbs::clock;
use crate::verbs::context::Context;
use crate::verbs::memory::ProtectionDomain;
use crate::verbs::sink::Sink;
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// An open device with everything that its connections share. It is closed once no object created
/// from it is left.
#[derive(Debug)]
pub struct OpenDevice {
    // Declared first, to be dropped before the descriptors are closed.
    _unshared: [CloseOnFork; 2],
    /// Memory regions.
    pub regions: SharedRegions,
    /// The protection domain of all objects on the device.
    pub domain: Arc<ProtectionDomain>,
    /// The open device.
    pub context: Arc<Context>,
    /// The memory for path tests of all connections, while there are some.
    sink: Mutex<Weak<Sink>>,
    /// Its refusals to move queue pairs to state ERROR; `None` if it has obeyed since or got no
    /// such command.
    refusals: Mutex<Option<RefusedCommands>>,
}

/// Consecutive commands that a device has refused.
#[derive(Debug, Clone, Copy)]
struct RefusedCommands {
    first: Instant,
    last: Instant,
}

/// A refusal after a longer pause starts anew: the device has worked in between, even without this
/// command.
const REFUSALS_GAP: Duration = Duration::from_secs(1);

/// How long a device may refuse commands before it reports that it is lost. Drivers check their
/// device's health every few seconds.
pub const LOSS_LIMIT: Duration = Duration::from_secs(10);

impl OpenDevice {
    /// The device of `context`, with relaxed ordering for its memory regions or without.
    ///
    /// # Errors
    /// The device has no more protection domains.
    pub fn new(context: Arc<Context>, relaxed_ordering: bool) -> Result<Arc<Self>> {
        let domain = ProtectionDomain::new(&context)?;
        let regions = SharedRegions::new(&domain, relaxed_ordering);
        let _unshared = [
            CloseOnFork::with_mappings(context.command_fd()),
            CloseOnFork::new(context.event_fd().as_raw_fd()),
        ];
        Ok(Arc::new(Self {
            _unshared,
            regions,
            domain,
            context,
            sink: Mutex::default(),
            refusals: Mutex::default(),
        }))
    }

    /// The memory for path tests of connections over the device. It stays registered while one of
    /// them holds it.
    ///
    /// # Errors
    /// It cannot be registered.
    pub fn sink(&self) -> Result<Arc<Sink>> {
        let mut known = self.sink.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sink) = known.upgrade() {
            return Ok(sink);
        }
        let sink = Arc::new(Sink::new(&self.domain, SINK_BYTES)?);
        *known = Arc::downgrade(&sink);
        Ok(sink)
    }

    /// Records that the device has moved a queue pair to state ERROR, or has refused to.
    pub fn handle_command(&self, is_refused: bool) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        *refusals = is_refused.then(|| RefusedCommands::next(*refusals, clock::now()));
    }

    /// Since when it refuses that, if it does.
    pub fn refuses_since(&self) -> Option<Instant> {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).map(|refusals| refusals.first)
    }

    /// Whether it has reported that it is lost (`IBV_EVENT_DEVICE_FATAL`).
    pub fn is_lost(&self) -> bool {
        self.context.has_failed()
    }
}

impl RefusedCommands {
    /// Counts another refusal at `now`.
    fn next(before: Option<Self>, now: Instant) -> Self {
        let recent =
            before.filter(|before| now.saturating_duration_since(before.last) < REFUSALS_GAP);
        Self { first: recent.map_or(now, |before| before.first), last: now }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_long_after_another_begins_anew() {
        let begin = Instant::now();
        let at = |ms| begin + Duration::from_millis(ms);
        let one = RefusedCommands::next(None, at(0));
        let soon = RefusedCommands::next(Some(one), at(900));
        let sooner = RefusedCommands::next(Some(soon), at(1800));
        assert_eq!([one.first, soon.first, sooner.first], [at(0); 3]);
        assert_eq!(RefusedCommands::next(Some(sooner), at(2800)).first, at(2800));
    }
}
