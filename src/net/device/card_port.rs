//! An active port of an RDMA card. It is one device to NCCL, alone or together with others. In a
//! connection it carries a rail.

use super::card::Card;
use super::gdr::Gdr;
use super::gid_table::{Choice, GidTable};
use super::pairing::Nearness;
use crate::error::{Error, Result};
use crate::host::config::Config;
use crate::host::gid::{self, GidEntry, Preference};
use crate::host::ib;
use crate::host::sysfs;
use crate::verbs::context::{Context, LinkLayer, PortAttributes};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// An active port of a card.
#[derive(Debug)]
pub struct CardPort {
    /// The card.
    pub card: Arc<Card>,
    /// Unique among the ports.
    pub name: String,
    /// Its number on the card, from 1.
    pub number: u8,
    /// The port number as NCCL's built-in transport counts: across the functions of a card.
    pub port_of_card: i32,
    /// Bandwidth in Mbit/s.
    pub speed_mbps: u32,
    /// Whether the link layer is InfiniBand; otherwise it is Ethernet.
    pub infiniband: bool,
    /// Settings.
    pub config: Arc<Config>,
    /// Its GID table.
    gids: GidTable,
    /// Whether it has been logged that peers are in another network.
    has_logged_networks: AtomicBool,
}

impl CardPort {
    /// Every active InfiniBand or Ethernet port that the settings admit, in libibverbs' order.
    /// Problems that the user should know go into `missing`.
    pub fn discover(
        contexts: &[Arc<Context>],
        config: &Arc<Config>,
        gdr: &Gdr,
        missing: &mut Vec<String>,
    ) -> Vec<Arc<Self>> {
        let mut ports: Vec<Arc<Self>> = Vec::new();
        for context in contexts {
            let card = match Card::open(context, config, gdr) {
                Ok(card) => card,
                Err(e) => {
                    if config.hca.admits_some_of(context.name()) {
                        missing.push(format!("{} is not used: {e}", context.name()));
                    }
                    continue;
                }
            };
            for port in 1..=card.port_count() {
                // NCCL's built-in transport adds the number of earlier ports of the card, in all of
                // its functions.
                let siblings = ports
                    .iter()
                    .filter(|p| card.pci_path().is_some() && p.card.pci_path() == card.pci_path());
                let before = siblings.count() as i32;
                match Self::open(&card, port, before, config) {
                    Ok(Ok(found)) => ports.push(Arc::new(found)),
                    // Many cards have a port without a cable.
                    Ok(Err(why)) if config.hca.names(context.name(), port) => {
                        missing.push(format!(
                            "{}:{port}, which NCCL_IB_HCA names, is not used: {why}",
                            context.name()
                        ));
                    }
                    Ok(Err(why)) => log::debug!("{}:{port} is not used: {why}", context.name()),
                    Err(e) if config.hca.admits(context.name(), port) => {
                        missing.push(format!("{}:{port} is not used: {e}", context.name()));
                    }
                    Err(e) => log::debug!("{}:{port} is not used: {e}", context.name()),
                }
            }
        }
        ports
    }

    /// Why ports of `contexts` are not used: each reason, with the names of the ports.
    pub fn passed_over(
        contexts: &[Arc<Context>],
        config: &Config,
    ) -> BTreeMap<String, Vec<String>> {
        let mut reasons: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for context in contexts {
            let Ok(attributes) = context.attributes() else { continue };
            for port in 1..=attributes.port_count {
                let why = match context.port(port) {
                    Ok(attributes) => excluded(config, context.name(), port)
                        .or_else(|| unusable_reason(&attributes)),
                    Err(error) => Some(error.text()),
                };
                if let Some(why) = why {
                    reasons.entry(why).or_default().push(format!("{}:{port}", context.name()));
                }
            }
        }
        reasons
    }

    /// The port with this number, or why it is not used.
    fn open(
        card: &Arc<Card>,
        port: u8,
        before: i32,
        config: &Arc<Config>,
    ) -> Result<std::result::Result<Self, String>> {
        let context = &card.device().context;
        let attributes = context.port(port)?;
        if let Some(why) =
            unusable_reason(&attributes).or_else(|| excluded(config, context.name(), port))
        {
            return Ok(Err(why));
        }
        let name = match card.port_count() {
            1 => context.name().to_owned(),
            _ => format!("{}:{port}", context.name()),
        };
        let query_speed = || {
            context.port_speed_mbps(port).or_else(|| kernel_speed_mbps(context, port, &attributes))
        };
        let queried_speed = config.query_port_speed.then(query_speed).flatten();
        Ok(Ok(Self {
            card: Arc::clone(card),
            name,
            number: port,
            port_of_card: i32::from(port) + before,
            speed_mbps: queried_speed
                .unwrap_or_else(|| speed_mbps(attributes.speed, attributes.width)),
            infiniband: attributes.is_infiniband(),
            config: Arc::clone(config),
            gids: GidTable::new(card, port),
            has_logged_networks: AtomicBool::new(false),
        }))
    }
}

/// The present address of a port.
#[derive(Debug, Clone, Copy)]
pub struct LocalAddress {
    /// State of the port.
    pub port: PortAttributes,
    /// Entry of the GID table.
    pub gid: GidEntry,
}

impl CardPort {
    /// Its address without a particular peer.
    ///
    /// # Errors
    /// The port is down or has no usable GID.
    pub fn local_address(&self) -> Result<LocalAddress> {
        self.address_towards(&[])
    }

    /// Queries the port and chooses the GID, preferably in the network of one of `peers`, of the
    /// first of them if there are several. Reopens a lost device that is back.
    ///
    /// # Errors
    /// The device is lost, or the port is down or has no usable GID.
    pub fn address_towards(&self, peers: &[[u8; 16]]) -> Result<LocalAddress> {
        self.address_at(self.active_port(Context::recent_port)?, peers)
    }

    /// [`Self::address_towards`] after a fault: does not rely on the cached port state.
    ///
    /// # Errors
    /// As for [`Self::address_towards`].
    pub fn address_now(&self, peers: &[[u8; 16]]) -> Result<LocalAddress> {
        self.address_at(self.active_port(Context::port)?, peers)
    }

    /// The state of the port, as `look` finds it.
    ///
    /// # Errors
    /// The device is lost, or the port is down.
    fn active_port(
        &self,
        look: impl FnOnce(&Context, u8) -> crate::verbs::error::Result<PortAttributes>,
    ) -> Result<PortAttributes> {
        let port = look(&self.card.living_device()?.context, self.number)?;
        if !port.active {
            return Err(Error::os(
                format_args!("using {}: the port is down", self.name),
                libc::ENETDOWN,
            )
            .recoverable());
        }
        Ok(port)
    }

    /// Chooses the GID while the port is in this state.
    fn address_at(&self, port: PortAttributes, peers: &[[u8; 16]]) -> Result<LocalAddress> {
        let gid = match self.config.gid_index {
            // The setting is for RoCE only, as in NCCL's built-in transport: a site may set it for
            // all of its hosts.
            _ if port.is_infiniband() => self.infiniband_gid(),
            Some(index) => self
                .gids
                .entry(i32::from(index))
                .ok_or_else(|| self.no_such_entry(index, port.gid_count))?,
            None => self.automatic_gid(port.gid_count, peers)?,
        };
        Ok(LocalAddress { port, gid })
    }

    /// How near the port is to each of `peers`, whose GIDs may be unknown, and its address towards
    /// each.
    ///
    /// # Errors
    /// As for [`Self::address_towards`].
    pub fn nearness(&self, peers: &[Option<[u8; 16]>]) -> Result<Vec<(LocalAddress, Nearness)>> {
        let port = self.active_port(Context::recent_port)?;
        peers
            .iter()
            .map(|peer| {
                let address = self.address_at(port, peer.as_slice())?;
                Ok((
                    address,
                    peer.map_or(Nearness::Unknown, |peer| self.nearness_of(&address, &peer)),
                ))
            })
            .collect()
    }

    /// How near `address`, which is this port's, is to the GID of a peer's port.
    pub fn nearness_of(&self, address: &LocalAddress, peer: &[u8; 16]) -> Nearness {
        let own = &address.gid.gid;
        let is_near = match address.port.is_infiniband() {
            true => own[..8] == peer[..8],
            false => gid::are_in_one_network(own, peer, self.config.subnet_bits),
        };
        match () {
            () if is_near => Nearness::Near,
            () if address.port.is_infiniband() || gid::are_of_one_kind(own, peer) => Nearness::Far,
            () => Nearness::Impossible,
        }
    }

    /// The index of `address` in the GID table now. It may have changed since the address was
    /// chosen.
    ///
    /// # Errors
    /// The table no longer has the GID.
    pub fn index_of(&self, address: &LocalAddress) -> Result<u8> {
        let LocalAddress { port, gid } = address;
        if port.is_infiniband() {
            return Ok(gid.index);
        }
        self.gids.index_of(gid, port.gid_count).ok_or_else(|| {
            let text = format!(
                "{}: GID {} disappeared while the connection was set up",
                self.name,
                gid.address()
            );
            Error::system(text).recoverable()
        })
    }

    /// Entry 0, or, if it has an FLID, the entry that other subnets route to.
    fn infiniband_gid(&self) -> GidEntry {
        let routable = self.gids.entry(i32::from(self.config.routable_flid_gid_index));
        let routable = routable.filter(|entry| ib::flid(&entry.gid).is_some());
        routable.or_else(|| self.gids.entry(0)).unwrap_or(GidEntry {
            index: 0,
            gid: [0; 16],
            roce_version: None,
        })
    }

    /// The best entry of the table: in the network of one of `peers`, or else of a kind that
    /// matches the first.
    fn automatic_gid(&self, count: i32, peers: &[[u8; 16]]) -> Result<GidEntry> {
        let choose = |want| self.gids.choose(count, &want).map(|choice| (choice, want));
        let near = peers.get(1..).unwrap_or_default().iter();
        let near = near.map(|peer| self.preference(Some(*peer))).filter_map(choose);
        let first = choose(self.preference(peers.first().copied()));
        let is_near =
            |(choice, want): &(Choice, Preference)| choice.entry.is_in_peers_network(want);
        let chosen = match first {
            Some(first) if peers.len() > 1 && !is_near(&first) => {
                { near }.find(is_near).or(Some(first))
            }
            first => first,
        };
        let Some((chosen, want)) = chosen else {
            return Err(self.no_gid(count).recoverable());
        };
        self.log_change(chosen, &want);
        Ok(chosen.entry)
    }

    /// Logs if another entry is used than before.
    fn log_change(&self, Choice { entry, before }: Choice, want: &Preference) {
        if let Some(old) = before {
            let (name, why, index) = (&self.name, gid::reason(&entry, want), entry.index);
            log::info!(
                "{name}: now using GID {} (index {index}; {why}) instead of {}",
                entry.address(),
                old.address()
            );
        }
    }

    /// There is no usable GID.
    fn no_gid(&self, count: i32) -> Error {
        match self.gids.errno(count) {
            None => {
                let operation = format_args!("{}: the port has no GID (no IP address?)", self.name);
                Error::os(operation, libc::EADDRNOTAVAIL)
            }
            Some(errno) => Error::os(format_args!("{}: reading the port's GIDs", self.name), errno)
                .hint("is its network interface in the network namespace of this process?"),
        }
    }

    fn no_such_entry(&self, index: u8, count: i32) -> Error {
        let table = gid::describe_table(&self.gids.read(count));
        Error::usage(format!(
            "NCCL_IB_GID_INDEX={index}: {} has no GID there; its table of {count} entries: {table}",
            self.name
        ))
    }

    /// Logs, once for each port, that a peer's GID is in another network. That may be intended, or
    /// explain why connecting fails later.
    pub fn log_other_network(&self, local: &LocalAddress, remote: &[u8; 16], peer: &str) {
        let bits = self.config.subnet_bits;
        let is_near =
            local.port.is_infiniband() || gid::are_in_one_network(&local.gid.gid, remote, bits);
        if is_near || self.has_logged_networks.swap(true, Ordering::Relaxed) {
            return;
        }
        let text = format!(
            "{}: peers are in another network (GID {} here, {} of {peer}; NCCL_IB_SUBNET_PREFIX_LEN={bits}), so packets \
             have to be routed",
            self.name,
            local.gid.address(),
            gid::address(remote)
        );
        log::log!(
            if self.config.warn_of_networks { log::Level::Warn } else { log::Level::Info },
            "{text}"
        );
    }

    /// The port on one line, for the log: its GID or LID, and why.
    pub fn describe(&self) -> String {
        let speed = self.speed_mbps / 1000;
        match self.local_address() {
            Ok(LocalAddress { port, .. }) if port.is_infiniband() => {
                format!("{} InfiniBand {speed} Gb/s LID {}", self.name, port.lid)
            }
            Ok(LocalAddress { gid, .. }) => {
                let why = match self.config.gid_index {
                    Some(_) => {
                        format!("NCCL_IB_GID_INDEX; {}", gid::reason(&gid, &self.preference(None)))
                    }
                    None => gid::reason(&gid, &self.preference(None)),
                };
                format!(
                    "{} RoCE {speed} Gb/s GID {} (index {}; {why})",
                    self.name,
                    gid.address(),
                    gid.index
                )
            }
            Err(e) => format!("{} ({e})", self.name),
        }
    }

    /// What is wrong with its address, if anything: the port has none, or a link-local one that the
    /// user did not choose.
    pub fn address_trouble(&self) -> Option<String> {
        let LocalAddress { port, gid } = match self.local_address() {
            Ok(address) => address,
            Err(e) => return Some(e.to_string()),
        };
        let is_bad =
            !port.is_infiniband() && self.config.gid_index.is_none() && gid.is_link_local();
        is_bad.then(|| {
            format!(
                "{} has a link-local address only ({}), which no router forwards: give its network interface an IP address",
                self.name,
                gid.address()
            )
        })
    }

    /// What in the addresses of this port (`local`) and the peer's port may cause a fault between
    /// them.
    pub fn trouble_towards(&self, local: &LocalAddress, peer: &[u8; 16]) -> Option<String> {
        if local.port.is_infiniband() {
            return None;
        }
        let (ours, theirs) = (local.gid.is_link_local(), gid::is_link_local(peer));
        let cure = "which no router forwards: give its network interface an IP address";
        let peers =
            || format!("the peer has a link-local address only ({}), {cure}", gid::address(peer));
        match () {
            () if ours => {
                let also = if theirs { ", as has the peer" } else { "" };
                Some(format!("{} has a link-local address only ({}){also}, {cure}", self.name, local.gid.address()))
            }
            () if theirs => Some(peers()),
            () if !gid::are_in_one_network(&local.gid.gid, peer, self.config.subnet_bits) => Some(
                "the two are in different networks, and no router joins them (if rails are not connected, NCCL_CROSS_NIC=0 \
                 keeps connections on one rail)"
                    .into(),
            ),
            () => None,
        }
    }

    fn preference(&self, peer: Option<[u8; 16]>) -> Preference {
        let Config { gid_family: family, roce_version, gid_range: range, subnet_bits, .. } =
            *self.config;
        Preference { family, roce_version, range, subnet_bits, peer }
    }
}

/// The index into the partition key table of `port` that queue pairs get.
///
/// # Errors
/// The port does not have the key in the settings.
pub fn partition_index(context: &Context, port: u8, config: &Config) -> Result<u16> {
    let Some(key) = config.pkey else { return Ok(config.pkey_index) };
    context.partition_index(port, key)?.ok_or_else(|| {
        let name = context.name();
        Error::usage(format!(
            "NCCL_IB_PKEY_VALUE={key:#06x}: port {port} of {name} has no such partition key"
        ))
        .hint(format_args!("cat /sys/class/infiniband/{name}/ports/{port}/pkeys/*"))
    })
}

/// Why a port is unusable; `None` if it is usable.
fn unusable_reason(attributes: &PortAttributes) -> Option<String> {
    match attributes.link_layer {
        _ if !attributes.active => {
            Some("it is not active (cable, switch port, `ip link set … up`; it is not used later either)".into())
        }
        LinkLayer::Other(number) => Some(format!("its link layer ({number}) is neither InfiniBand nor Ethernet")),
        LinkLayer::InfiniBand | LinkLayer::Ethernet => None,
    }
}

fn excluded(config: &Config, device: &str, port: u8) -> Option<String> {
    (!config.hca.admits(device, port))
        .then(|| format!("NCCL_IB_HCA={} excludes it", config.hca.text()))
}

/// Bandwidth of a port according to the kernel, which may exceed the range of the verbs' bit masks.
fn kernel_speed_mbps(context: &Context, port: u8, attributes: &PortAttributes) -> Option<u32> {
    let told = speed_mbps(attributes.speed, attributes.width);
    let rate = attributes.speed_may_be_higher.then(|| sysfs::rate_mbps(context.name(), port))?;
    rate.filter(|rate| *rate > told)
}

/// Bandwidth of a port from the verbs' bit masks `speed` (`active_speed`) and `width`
/// (`active_width`).
fn speed_mbps(speed: u32, width: u8) -> u32 {
    const PER_LANE_MBPS: [u32; 9] =
        [2_500, 5_000, 10_000, 10_000, 14_000, 25_000, 50_000, 100_000, 200_000];
    const LANES: [u32; 5] = [1, 4, 8, 12, 2];
    let per_lane =
        PER_LANE_MBPS.get(speed.trailing_zeros() as usize).copied().unwrap_or(PER_LANE_MBPS[0]);
    let lanes = LANES.get(width.trailing_zeros() as usize).copied().unwrap_or(1);
    per_lane * lanes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_speed_is_speed_per_lane_times_lanes() {
        assert_eq!(speed_mbps(128, 2), 400_000, "NDR, 4 lanes");
        assert_eq!(speed_mbps(32, 2), 100_000, "EDR, 4 lanes");
        assert_eq!(speed_mbps(16, 1), 14_000);
        assert_eq!(speed_mbps(0, 0), 2_500, "nothing reported");
    }
}
