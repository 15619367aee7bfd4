//! An RDMA card, or one function of it: what its ports share.

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

/// What libibverbs opens as one device.
#[derive(Debug)]
pub struct Card {
    // Declared first: the thread has to stop before the card is closed.
    watcher: OnceCell<Watcher>,
    /// Registered memory.
    pub regions: MrCache,
    /// The protection domain of everything on the card.
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
    /// The card behind `context`.
    ///
    /// # Errors
    /// The device does not answer, or has no more protection domains.
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

    /// The card's watcher, started with its first connection.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn watcher(&self) -> Result<&Watcher> {
        self.watcher.get_or_try_init(|| Watcher::start(&self.context, self.fail_on_async_error))
    }

    /// The same, if it has been started.
    pub fn started_watcher(&self) -> Option<&Watcher> {
        self.watcher.get()
    }

    /// Whether somebody hears of changes.
    pub fn is_watched(&self) -> bool {
        self.started_watcher().is_some()
    }

    /// Identity of the card.
    pub fn guid(&self) -> u64 {
        self.attributes.system_image_guid
    }

    /// Its ports, active or not.
    pub fn port_count(&self) -> u8 {
        self.attributes.port_count
    }

    /// Queue pairs it can have.
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

    /// Whether it is a virtual function: its port is another card's as well.
    pub fn is_virtual(&self) -> bool {
        self.is_virtual
    }

    /// Path of the PCI function in /sys, if it has one.
    pub fn pci_path(&self) -> Option<&str> {
        self.pci_path.as_deref()
    }
}
