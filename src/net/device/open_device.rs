//! A device as it was opened once. One that is lost and comes back is opened again, which gives another one of these.

use crate::error::Result;
use crate::net::mr::cache::MrCache;
use crate::verbs::context::Context;
use crate::verbs::memory::ProtectionDomain;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// An open device with what all connections over it share. It is closed when nothing is left that was made from it.
#[derive(Debug)]
pub struct OpenDevice {
    /// Memory regions.
    pub regions: MrCache,
    /// The protection domain of all objects on the device.
    pub domain: Arc<ProtectionDomain>,
    /// The open device.
    pub context: Arc<Context>,
    /// Since when it has refused to move queue pairs to state ERROR, without having done so once.
    refuses_since: Mutex<Option<Instant>>,
}

/// How long a device may refuse commands before it reports that it is lost. Drivers look at their device's health every few seconds.
pub const LOSS_LIMIT: Duration = Duration::from_secs(10);

impl OpenDevice {
    /// That of `context`, whose memory regions have relaxed ordering or not.
    ///
    /// # Errors
    /// The device has no more protection domains.
    pub fn new(context: Arc<Context>, relaxed_ordering: bool) -> Result<Arc<Self>> {
        let domain = ProtectionDomain::new(&context)?;
        let regions = MrCache::new(&domain, relaxed_ordering);
        Ok(Arc::new(Self { regions, domain, context, refuses_since: Mutex::default() }))
    }

    /// It has moved a queue pair to state ERROR, or has refused to.
    pub fn handle_command(&self, is_refused: bool) {
        let mut since = self.refuses_since.lock().unwrap_or_else(PoisonError::into_inner);
        *since = since.filter(|_| is_refused).or_else(|| is_refused.then(Instant::now));
    }

    /// Since when it has refused that, if it does.
    pub fn refuses_since(&self) -> Option<Instant> {
        *self.refuses_since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has reported that it is lost (`IBV_EVENT_DEVICE_FATAL`).
    pub fn is_lost(&self) -> bool {
        self.context.has_failed()
    }
}
