//! An active port of an RDMA card: by itself a device to NCCL, or one rail of several.

use super::region::RegionCache;
use super::watcher::Watcher;
use crate::error::{Error, Result};
use crate::host::config::Config;
use crate::host::gid::{self, GidEntry, Preference};
use crate::host::sysfs;
use crate::verbs::context::{Context, DeviceAttributes, PortAttributes};
use crate::verbs::memory::ProtectionDomain;
use once_cell::sync::OnceCell;
use std::sync::{Arc, Mutex, PoisonError};

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
    pci_path: Option<String>,
}

/// An active port of a card.
#[derive(Debug)]
pub struct Rail {
    /// The card.
    pub card: Arc<Card>,
    /// Unique among the rails.
    pub name: String,
    /// The port, from 1.
    pub port: u8,
    /// Number of the port among all functions of its card, as NCCL's built-in transport counts.
    pub port_of_card: i32,
    /// Bandwidth in Mbit/s.
    pub speed_mbps: u32,
    /// Whether its link layer is InfiniBand, or else Ethernet.
    pub infiniband: bool,
    /// Whether GPU memory can be registered by address.
    pub peer_memory: bool,
    /// Settings.
    pub config: Arc<Config>,
    /// The GID last chosen: tables are long, and reading one for every connection takes its time.
    chosen_gid: Mutex<Option<GidEntry>>,
}

/// How this rail is addressed, right now.
#[derive(Debug, Clone, Copy)]
pub struct LocalAddress {
    /// What the port says.
    pub port: PortAttributes,
    /// Entry of the GID table.
    pub gid: GidEntry,
}

impl Card {
    fn open(context: &Arc<Context>, config: &Config) -> Result<Arc<Self>> {
        let domain = ProtectionDomain::new(context)?;
        Ok(Arc::new(Self {
            watcher: OnceCell::new(),
            regions: RegionCache::new(&domain, config.relaxed_ordering),
            dmabuf: domain.supports_dmabuf(),
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
        self.watcher.get_or_try_init(|| Watcher::start(&self.context))
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

impl Rail {
    /// The rails among `contexts`: every active port that the settings admit, in libibverbs' order.
    pub fn discover(contexts: &[Arc<Context>], config: &Arc<Config>) -> Vec<Arc<Self>> {
        let mut rails: Vec<Arc<Self>> = Vec::new();
        let peer_memory = sysfs::has_peer_memory();
        for context in contexts {
            let card = match Card::open(context, config) {
                Ok(card) => card,
                Err(e) => {
                    log::warn!("{} is not used: {e}", context.name());
                    continue;
                }
            };
            // NCCL's built-in transport numbers the ports of several functions of one card through.
            let siblings = rails.iter().filter(|r| card.pci_path.is_some() && r.card.pci_path == card.pci_path);
            let first_port = siblings.count() as i32;
            for port in 1..=card.attributes.port_count {
                match Self::open(&card, port, first_port, peer_memory, config) {
                    Ok(Some(rail)) => rails.push(Arc::new(rail)),
                    Ok(None) => {}
                    Err(e) => log::warn!("{}:{port} is not used: {e}", context.name()),
                }
            }
        }
        rails
    }

    fn open(card: &Arc<Card>, port: u8, first: i32, peer_memory: bool, config: &Arc<Config>) -> Result<Option<Self>> {
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
        Ok(Some(Self {
            card: Arc::clone(card),
            name,
            port,
            port_of_card: i32::from(port) + first,
            speed_mbps: speed_mbps(attributes.speed, attributes.width),
            infiniband: attributes.infiniband,
            peer_memory,
            config: Arc::clone(config),
            chosen_gid: Mutex::default(),
        }))
    }

    /// Reads the port and chooses the GID.
    ///
    /// # Errors
    /// The port is down or has no usable GID.
    pub fn local_address(&self) -> Result<LocalAddress> {
        let port = self.card.context.port(self.port)?;
        if !port.active {
            return Err(Error::os(format_args!("using {}: the port is down", self.name), libc::ENETDOWN));
        }
        let gid = match self.config.gid_index {
            Some(index) => self.entry(i32::from(index)).ok_or_else(|| {
                let (name, size) = (&self.name, port.gid_count);
                let text = format!("NCCL_IB_GID_INDEX={index}: {name} has no GID there (its table has {size} entries)");
                Error::usage(text)
            })?,
            None if port.infiniband => self.entry(0).unwrap_or(GidEntry { index: 0, gid: [0; 16], roce_version: None }),
            None => self.automatic_gid(port.gid_count)?,
        };
        Ok(LocalAddress { port, gid })
    }

    /// The entry chosen last if it is still what it was, else the best of the table.
    fn automatic_gid(&self, count: i32) -> Result<GidEntry> {
        let mut chosen = self.chosen_gid.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = *chosen
            && self.card.context.gid(self.port, i32::from(entry.index)) == Some(entry.gid)
        {
            return Ok(entry);
        }
        let entries: Vec<_> = (0..count.min(256)).filter_map(|index| self.entry(index)).collect();
        *chosen = gid::choose(&entries, &self.preference());
        chosen.ok_or_else(|| {
            Error::os(format_args!("{}: the port has no GID (no IP address?)", self.name), libc::EADDRNOTAVAIL)
        })
    }

    fn entry(&self, index: i32) -> Option<GidEntry> {
        let context = &self.card.context;
        let gid = context.gid(self.port, index)?;
        let roce_version = sysfs::roce_version(context.name(), self.port, index);
        Some(GidEntry { index: u8::try_from(index).ok()?, gid, roce_version })
    }

    /// One line for people: how this rail is used.
    pub fn describe(&self) -> String {
        let speed = self.speed_mbps / 1000;
        match self.local_address() {
            Ok(LocalAddress { port, .. }) if port.infiniband => {
                format!("{} InfiniBand {speed} Gb/s LID {}", self.name, port.lid)
            }
            Ok(LocalAddress { gid, .. }) => {
                let why = gid::reason(&gid, &self.preference());
                format!("{} RoCE {speed} Gb/s GID {} {} ({why})", self.name, gid.index, gid.address())
            }
            Err(e) => format!("{} ({e})", self.name),
        }
    }

    fn preference(&self) -> Preference {
        let Config { gid_family: family, roce_version, gid_range: range, .. } = *self.config;
        Preference { family, roce_version, range }
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
