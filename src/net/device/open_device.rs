//! A device as it was opened once. One that is lost and comes back is opened again, which gives another one of these.

use crate::error::Result;
use crate::net::mr::cache::MrCache;
use crate::verbs::context::Context;
use crate::verbs::memory::ProtectionDomain;
use std::sync::Arc;

/// An open device with what all connections over it share. It is closed when nothing is left that was made from it.
#[derive(Debug)]
pub struct OpenDevice {
    /// Memory regions.
    pub regions: MrCache,
    /// The protection domain of all objects on the device.
    pub domain: Arc<ProtectionDomain>,
    /// The open device.
    pub context: Arc<Context>,
}

impl OpenDevice {
    /// That of `context`, whose memory regions have relaxed ordering or not.
    ///
    /// # Errors
    /// The device has no more protection domains.
    pub fn new(context: Arc<Context>, relaxed_ordering: bool) -> Result<Arc<Self>> {
        let domain = ProtectionDomain::new(&context)?;
        Ok(Arc::new(Self { regions: MrCache::new(&domain, relaxed_ordering), domain, context }))
    }

    /// Whether it has reported that it is lost (`IBV_EVENT_DEVICE_FATAL`).
    pub fn is_lost(&self) -> bool {
        self.context.has_failed()
    }
}
