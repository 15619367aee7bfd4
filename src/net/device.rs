//! What NCCL calls a network device: an active port of an RDMA card.

use super::address::Addresses;
use super::gdr::Gdr;
use super::region::RegionCache;
use super::watcher::Watcher;
use crate::error::Result;
use crate::host::config::Config;
use crate::host::sysfs;
use crate::verbs::context::{Context, DeviceAttributes};
use crate::verbs::memory::ProtectionDomain;
use once_cell::sync::OnceCell;
use std::sync::Arc;

/// A card: what its ports share.
#[derive(Debug)]
pub struct Card {
    // Declared first: the thread has to stop before the card is closed.
    watcher: OnceCell<Watcher>,
    /// Registered memory.
    pub regions: RegionCache,
    /// The protection domain of everything on the card.
    pub domain: Arc<ProtectionDomain>,
    /// The open device.
    pub context: Arc<Context>,
    attributes: DeviceAttributes,
    dmabuf: bool,
    heeds_events: bool,
    pci_path: Option<String>,
}

/// An active port of a card.
#[derive(Debug)]
pub struct Device {
    /// The card.
    pub card: Arc<Card>,
    /// Unique among the devices.
    pub name: String,
    /// The port, from 1.
    pub port: u8,
    /// The port's number as NCCL's built-in transport counts it.
    pub port_of_card: i32,
    /// Bandwidth in Mbit/s.
    pub speed_mbps: u32,
    /// Whether GPU memory can be registered by address.
    pub peer_memory: bool,
    /// Settings.
    pub config: Arc<Config>,
    /// What is known of its GIDs.
    pub addresses: Addresses,
}

impl Card {
    fn open(context: &Arc<Context>, config: &Config) -> Result<Arc<Self>> {
        let domain = ProtectionDomain::new(context)?;
        Ok(Arc::new(Self {
            watcher: OnceCell::new(),
            regions: RegionCache::new(&domain, config.relaxed_ordering),
            dmabuf: domain.supports_dmabuf(),
            heeds_events: config.heed_events,
            attributes: context.attributes()?,
            pci_path: sysfs::pci_path(context.name(), config.merge_vfs),
            context: Arc::clone(context),
            domain,
        }))
    }

    /// The card's watcher, started with its first connection.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn watcher(&self) -> Result<&Watcher> {
        self.watcher.get_or_try_init(|| Watcher::start(&self.context, self.heeds_events))
    }

    /// Whether somebody hears of changes.
    pub fn is_watched(&self) -> bool {
        self.watcher.get().is_some()
    }

    /// Identity of the card.
    pub fn guid(&self) -> u64 {
        self.attributes.system_image_guid
    }

    /// Queue pairs it can have.
    pub fn max_queue_pairs(&self) -> i32 {
        self.attributes.max_queue_pairs
    }

    /// Whether GPU memory can be registered by dma-buf.
    pub fn supports_dmabuf(&self) -> bool {
        self.dmabuf
    }

    /// Path of the PCI function in /sys, if it has one.
    pub fn pci_path(&self) -> Option<&str> {
        self.pci_path.as_deref()
    }
}

impl Device {
    /// The devices among `contexts`: every active port that the settings admit, in libibverbs' order.
    pub fn discover(contexts: &[Arc<Context>], config: &Arc<Config>) -> Vec<Arc<Self>> {
        let mut devices: Vec<Arc<Self>> = Vec::new();
        let gdr = Gdr::look();
        for context in contexts {
            let card = match Card::open(context, config) {
                Ok(card) => card,
                Err(e) => {
                    log::warn!("{} is not used: {e}", context.name());
                    continue;
                }
            };
            let peer_memory = gdr.works_by_address(&card);
            for port in 1..=card.attributes.port_count {
                // NCCL's built-in transport adds the number of devices before it on the same card, its own ports included.
                let siblings = devices.iter().filter(|d| card.pci_path.is_some() && d.card.pci_path == card.pci_path);
                let before = siblings.count() as i32;
                match Self::open(&card, port, before, peer_memory, config) {
                    Ok(Some(device)) => devices.push(Arc::new(device)),
                    Ok(None) => {}
                    Err(e) => log::warn!("{}:{port} is not used: {e}", context.name()),
                }
            }
        }
        gdr.complain(&devices);
        devices
    }

    fn open(card: &Arc<Card>, port: u8, before: i32, peer_memory: bool, config: &Arc<Config>) -> Result<Option<Self>> {
        let context = &card.context;
        let attributes = context.port(port)?;
        if !attributes.active || !config.hca.admits(context.name(), port) {
            let why = if attributes.active { "NCCL_IB_HCA excludes it" } else { "it is not active" };
            log::debug!("{}:{port} is not used: {why}", context.name());
            return Ok(None);
        }
        let name = match card.attributes.port_count {
            1 => context.name().to_owned(),
            _ => format!("{}:{port}", context.name()),
        };
        let told_speed = context.port_speed_mbps(port).filter(|_| config.query_port_speed);
        Ok(Some(Self {
            card: Arc::clone(card),
            name,
            port,
            port_of_card: i32::from(port) + before,
            speed_mbps: told_speed.unwrap_or_else(|| speed_mbps(attributes.speed, attributes.width)),
            peer_memory,
            config: Arc::clone(config),
            addresses: Addresses::default(),
        }))
    }
}

/// Bandwidth of `width` links of `speed`, both as the verbs' bit masks.
fn speed_mbps(speed: u32, width: u8) -> u32 {
    const PER_LINK_MBPS: [u32; 9] = [2_500, 5_000, 10_000, 10_000, 14_000, 25_000, 50_000, 100_000, 200_000];
    const LINKS: [u32; 5] = [1, 4, 8, 12, 2];
    let per_link = PER_LINK_MBPS.get(speed.trailing_zeros() as usize).copied().unwrap_or(PER_LINK_MBPS[0]);
    let links = LINKS.get(width.trailing_zeros() as usize).copied().unwrap_or(1);
    per_link * links
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds() {
        assert_eq!(speed_mbps(128, 2), 400_000, "NDR, 4 links");
        assert_eq!(speed_mbps(32, 2), 100_000, "EDR, 4 links");
        assert_eq!(speed_mbps(16, 1), 14_000);
        assert_eq!(speed_mbps(0, 0), 2_500, "nothing told");
    }
}
