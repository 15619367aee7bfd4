//! How a port is addressed: which entry of its GID table it uses towards a peer, and why.

use super::rail::Rail;
use crate::error::{Error, Result};
use crate::host::config::Config;
use crate::host::gid::{self, GidEntry, Preference};
use crate::host::{ib, sysfs};
use crate::verbs::port::PortAttributes;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How a rail is addressed, right now.
#[derive(Debug, Clone, Copy)]
pub struct LocalAddress {
    /// What the port says.
    pub port: PortAttributes,
    /// Entry of the GID table.
    pub gid: GidEntry,
}

/// What is known of a port's GID table: tables are long, and reading one for every connection takes its time.
#[derive(Debug, Default)]
pub struct Addresses {
    table: Mutex<Option<Table>>,
    told_of_networks: AtomicBool,
}

#[derive(Debug)]
struct Table {
    /// The card's count of changes when it was read.
    changes: u32,
    entries: Vec<GidEntry>,
}

/// Entries of the longest table that the index of an entry can name.
const LONGEST_TABLE: i32 = 256;

impl Rail {
    /// Reads the port and chooses the GID.
    ///
    /// # Errors
    /// The port is down or has no usable GID.
    pub fn local_address(&self) -> Result<LocalAddress> {
        self.address_towards(None)
    }

    /// The same; of several GIDs one in the network of `peer`, if that is known.
    ///
    /// # Errors
    /// The port is down or has no usable GID.
    pub fn address_towards(&self, peer: Option<[u8; 16]>) -> Result<LocalAddress> {
        let port = self.card.context.port(self.port)?;
        if !port.active {
            return Err(Error::os(format_args!("using {}: the port is down", self.name), libc::ENETDOWN));
        }
        let gid = match self.config.gid_index {
            // The setting is about RoCE, here as in the built-in transport: a site may set it for all of its nodes.
            _ if port.is_infiniband() => self.infiniband_gid(),
            Some(index) => self.entry(i32::from(index)).ok_or_else(|| self.no_such_entry(index, port.gid_count))?,
            None => self.automatic_gid(port.gid_count, peer)?,
        };
        Ok(LocalAddress { port, gid })
    }

    /// Where `gid` is in the table now, which may have changed since it was chosen.
    ///
    /// # Errors
    /// It is there no more.
    pub fn index_of(&self, address: &LocalAddress) -> Result<u8> {
        let LocalAddress { port, gid } = address;
        let holds = |index: &i32| self.card.context.gid(self.port, *index).is_some_and(|g| g.bytes == gid.gid);
        // Tables hold an address once for each version.
        let versioned = |index: &i32| self.entry(*index).is_some_and(|e| e.roce_version == gid.roce_version);
        let same = |index: &i32| holds(index) && versioned(index);
        if port.is_infiniband() || same(&i32::from(gid.index)) {
            return Ok(gid.index);
        }
        let found = (0..port.gid_count.min(LONGEST_TABLE)).find(same);
        found.and_then(|i| u8::try_from(i).ok()).ok_or_else(|| {
            let text = format!("{}: GID {} has gone while the connection was set up", self.name, gid.address());
            Error::system(text)
        })
    }

    /// Entry 0, or the one that other subnets know, where there is one.
    fn infiniband_gid(&self) -> GidEntry {
        let routable = self.entry(i32::from(self.config.routable_flid_gid_index));
        let routable = routable.filter(|entry| ib::flid(&entry.gid).is_some());
        routable.or_else(|| self.entry(0)).unwrap_or(GidEntry { index: 0, gid: [0; 16], roce_version: None })
    }

    /// The best entry of the table, which is read again only if it has changed.
    fn automatic_gid(&self, count: i32, peer: Option<[u8; 16]>) -> Result<GidEntry> {
        let mut table = self.addresses.lock();
        let changes = self.card.context.gid_changes();
        let want = self.preference(peer);
        let current = table.as_ref().filter(|t| self.card.is_watched() && t.changes == changes);
        let known = current.and_then(|t| gid::choose(&t.entries, &want));
        // The event may still be on its way.
        if let Some(entry) = known.filter(|known| self.entry(i32::from(known.index)) == Some(*known)) {
            return Ok(entry);
        }
        let before = table.take().and_then(|t| gid::choose(&t.entries, &want));
        let entries = self.read_table(count);
        let chosen = gid::choose(&entries, &want);
        *table = Some(Table { changes, entries });
        if let (Some(old), Some(new)) = (before, chosen.filter(|new| before != Some(*new))) {
            let (name, why) = (&self.name, gid::reason(&new, &want));
            let (old, address) = (old.address(), new.address());
            log::info!("{name}: GID {} {address} ({why}) is used from now on; it was {old}", new.index);
        }
        chosen.ok_or_else(|| {
            Error::os(format_args!("{}: the port has no GID (no IP address?)", self.name), libc::EADDRNOTAVAIL)
        })
    }

    fn read_table(&self, count: i32) -> Vec<GidEntry> {
        (0..count.min(LONGEST_TABLE)).filter_map(|index| self.entry(index)).collect()
    }

    /// `None`: it is empty or unreadable, as entries are in some containers.
    fn entry(&self, index: i32) -> Option<GidEntry> {
        let context = &self.card.context;
        let gid = context.gid(self.port, index)?;
        let roce_version = gid.roce_version.or_else(|| sysfs::roce_version(context.name(), self.port, index));
        Some(GidEntry { index: u8::try_from(index).ok()?, gid: gid.bytes, roce_version })
    }

    fn no_such_entry(&self, index: u8, count: i32) -> Error {
        let table = gid::describe_table(&self.read_table(count));
        Error::usage(format!(
            "NCCL_IB_GID_INDEX={index}: {} has no GID there; its table of {count} entries: {table}",
            self.name
        ))
    }

    /// Says, once for each rail, that its peers are in another network: that may be meant so, or the reason for what fails
    /// later.
    pub fn tell_of_networks(&self, local: &LocalAddress, remote: &[u8; 16], peer: &str) {
        let bits = self.config.subnet_bits;
        let near = local.port.is_infiniband() || gid::are_neighbours(&local.gid.gid, remote, bits);
        if near || self.addresses.told_of_networks.swap(true, Ordering::Relaxed) {
            return;
        }
        let text = format!(
            "{}: peers are in another network (GID {} here, {} of {peer}; NCCL_IB_SUBNET_PREFIX_LEN={bits}), so packets \
             have to be routed",
            self.name,
            local.gid.address(),
            gid::address(remote)
        );
        log::log!(if self.config.warn_of_networks { log::Level::Warn } else { log::Level::Info }, "{text}");
    }

    /// One line for people: how this rail is used.
    pub fn describe(&self) -> String {
        let speed = self.speed_mbps / 1000;
        match self.local_address() {
            Ok(LocalAddress { port, .. }) if port.is_infiniband() => {
                format!("{} InfiniBand {speed} Gb/s LID {}", self.name, port.lid)
            }
            Ok(LocalAddress { gid, .. }) => {
                let why = match self.config.gid_index {
                    Some(_) => format!("NCCL_IB_GID_INDEX; {}", gid::reason(&gid, &self.preference(None))),
                    None => gid::reason(&gid, &self.preference(None)),
                };
                format!("{} RoCE {speed} Gb/s GID {} {} ({why})", self.name, gid.index, gid.address())
            }
            Err(e) => format!("{} ({e})", self.name),
        }
    }

    fn preference(&self, peer: Option<[u8; 16]>) -> Preference {
        let Config { gid_family: family, roce_version, gid_range: range, subnet_bits, .. } = *self.config;
        Preference { family, roce_version, range, subnet_bits, peer }
    }
}

impl Addresses {
    fn lock(&self) -> MutexGuard<'_, Option<Table>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
