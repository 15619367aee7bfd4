//! An RDMA card, or a PCI function of one: what libibverbs opens as one device.

use super::gdr::Gdr;
use crate::error::Result;
use crate::host::config::Config;
use crate::host::sysfs;
use crate::net::control::watcher::Watcher;
use crate::net::mr::cache::MrCache;
use crate::verbs::context::{Context, DeviceAttributes};
use crate::verbs::memory::ProtectionDomain;
use once_cell::sync::OnceCell;
use std::sync::Arc;

/// An open RDMA device with what its ports share.
#[derive(Debug)]
pub struct Card {
    // Declared first: its thread stops before the device is closed.
    watcher: OnceCell<Watcher>,
    /// Memory regions.
    pub regions: MrCache,
    /// The protection domain of all objects on the card.
    pub domain: Arc<ProtectionDomain>,
    /// The open device.
    pub context: Arc<Context>,
    attributes: DeviceAttributes,
    peer_memory: bool,
    dmabuf: bool,
    fail_on_async_error: bool,
    pci_path: Option<String>,
    is_virtual: bool,
}

impl Card {
    /// The card of `context`.
    ///
    /// # Errors
    /// A query fails, or the device has no more protection domains.
    pub fn open(context: &Arc<Context>, config: &Config, gdr: &Gdr) -> Result<Arc<Self>> {
        let domain = ProtectionDomain::new(context)?;
        Ok(Arc::new(Self {
            watcher: OnceCell::new(),
            regions: MrCache::new(&domain, config.relaxed_ordering),
            peer_memory: gdr.works_by_address(&domain),
            dmabuf: domain.supports_dmabuf(),
            fail_on_async_error: config.fail_on_async_error,
            attributes: context.attributes()?,
            pci_path: sysfs::pci_path(context.name(), config.merge_vfs),
            is_virtual: sysfs::is_virtual_function(context.name()),
            context: Arc::clone(context),
            domain,
        }))
    }

    /// The card's watcher, which is started at the first call.
    ///
    /// # Errors
    /// The watcher cannot be started.
    pub fn watcher(&self) -> Result<&Watcher> {
        self.watcher.get_or_try_init(|| Watcher::start(&self.context, self.fail_on_async_error))
    }

    /// The card's watcher, if it has been started.
    pub fn started_watcher(&self) -> Option<&Watcher> {
        self.watcher.get()
    }

    /// Whether the card's watcher has been started, so that events are taken.
    pub fn is_watched(&self) -> bool {
        self.started_watcher().is_some()
    }

    /// GUID of the card.
    pub fn guid(&self) -> u64 {
        self.attributes.system_image_guid
    }

    /// Number of ports, active or not.
    pub fn port_count(&self) -> u8 {
        self.attributes.port_count
    }

    /// Queue pairs that it can have.
    pub fn max_queue_pairs(&self) -> i32 {
        self.attributes.max_queue_pairs
    }

    /// Whether GPU memory can be registered by address.
    pub fn supports_peer_memory(&self) -> bool {
        self.peer_memory
    }

    /// Whether GPU memory can be registered by dma-buf.
    pub fn supports_dmabuf(&self) -> bool {
        self.dmabuf
    }

    /// Whether it is a virtual function, which shares its port with another card.
    pub fn is_virtual(&self) -> bool {
        self.is_virtual
    }

    /// Path of the PCI function in /sys, if there is one.
    pub fn pci_path(&self) -> Option<&str> {
        self.pci_path.as_deref()
    }
}
