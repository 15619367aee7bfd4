//! Selection of an entry of a port's GID table.

use crate::error::{Error, Result};
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

/// Address family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// IPv4, mapped into IPv6 in a GID.
    V4,
    /// IPv6.
    V6,
}

/// One entry of a GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// Index in the table.
    pub index: u8,
    /// The GID.
    pub gid: [u8; 16],
    /// RoCE version, if the kernel reports it.
    pub roce_version: Option<u8>,
}

/// The criteria of the selection.
#[derive(Debug, Clone, Copy)]
pub struct Preference {
    /// Preferred address family.
    pub family: Family,
    /// Preferred RoCE version.
    pub roce_version: u8,
    /// The requested network (`NCCL_IB_ADDR_RANGE`).
    pub range: Option<AddressRange>,
    /// Prefix length of IPv4 networks.
    pub subnet_bits: u8,
    /// The peer's GID, if it is known.
    pub peer: Option<[u8; 16]>,
}

/// Prefix length of IPv6 networks.
const IPV6_SUBNET_BITS: u32 = 64;

/// A network: an address and a prefix length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressRange {
    address: IpAddr,
    prefix: u8,
}

impl fmt::Display for AddressRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

impl AddressRange {
    /// Parses `address/prefix`.
    ///
    /// # Errors
    /// The text has another form. The error names the variable and the form.
    pub fn parse(text: &str) -> Result<Self> {
        let parsed = text.split_once('/').and_then(|(address, prefix)| {
            let range = Self { address: address.parse().ok()?, prefix: prefix.parse().ok()? };
            (range.prefix <= if range.address.is_ipv4() { 32 } else { 128 }).then_some(range)
        });
        let expected = "an address and a prefix length such as 10.1.0.0/16 is expected";
        parsed.ok_or_else(|| Error::usage(format!("NCCL_IB_ADDR_RANGE={text}: {expected}")))
    }

    /// Whether `address` is in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(a), IpAddr::V4(b)) => have_same_prefix(
                u128::from(u32::from(a)),
                u128::from(u32::from(b)),
                32 - u32::from(self.prefix),
            ),
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                have_same_prefix(u128::from(a), u128::from(b), 128 - u32::from(self.prefix))
            }
            _ => false,
        }
    }
}

/// Whether two addresses are equal except in their last `host_bits` bits.
fn have_same_prefix(a: u128, b: u128, host_bits: u32) -> bool {
    (a ^ b).checked_shr(host_bits).unwrap_or(0) == 0
}

/// A GID as an IP address.
pub fn address(gid: &[u8; 16]) -> IpAddr {
    let v6 = Ipv6Addr::from(*gid);
    v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
}

/// Whether two GIDs are in one network, by their prefixes. `subnet_bits` is the prefix length of
/// IPv4 networks. Within a network packets need no router.
pub fn are_in_one_network(a: &[u8; 16], b: &[u8; 16], subnet_bits: u8) -> bool {
    match (address(a), address(b)) {
        (IpAddr::V4(a), IpAddr::V4(b)) => have_same_prefix(
            u128::from(u32::from(a)),
            u128::from(u32::from(b)),
            32 - u32::from(subnet_bits.min(32)),
        ),
        (IpAddr::V6(a), IpAddr::V6(b)) => {
            have_same_prefix(u128::from(a), u128::from(b), 128 - IPV6_SUBNET_BITS)
        }
        _ => false,
    }
}

/// Whether packets from one GID may reach the other: they have the same address family, and both or
/// neither are link-local.
pub fn are_of_one_kind(a: &[u8; 16], b: &[u8; 16]) -> bool {
    address(a).is_ipv4() == address(b).is_ipv4() && is_link_local(a) == is_link_local(b)
}

/// Whether no router forwards the address.
pub fn is_link_local(gid: &[u8; 16]) -> bool {
    gid[0] == 0xfe && gid[1] & 0xc0 == 0x80
}

impl GidEntry {
    /// The GID as an IP address.
    pub fn address(&self) -> IpAddr {
        address(&self.gid)
    }

    /// Whether `other` has the same RoCE version and address family, and both or neither are
    /// link-local.
    pub fn is_like(&self, other: &Self) -> bool {
        let kind = |entry: &Self| (entry.roce_version, entry.family(), entry.is_link_local());
        kind(self) == kind(other)
    }

    /// Whether no router forwards the address.
    pub fn is_link_local(&self) -> bool {
        is_link_local(&self.gid)
    }

    fn family(&self) -> Family {
        if self.address().is_ipv4() { Family::V4 } else { Family::V6 }
    }

    fn is_in_range(&self, want: &Preference) -> bool {
        want.range.is_none_or(|range| range.contains(self.address()))
    }

    /// Whether it is in the peer's network.
    pub fn is_in_peers_network(&self, want: &Preference) -> bool {
        want.peer.is_some_and(|peer| are_in_one_network(&self.gid, &peer, want.subnet_bits))
    }

    /// Whether the peer's address has the same family; others cannot be reached.
    fn suits_peer(&self, want: &Preference) -> bool {
        want.peer.is_some_and(|peer| address(&peer).is_ipv4() == self.address().is_ipv4())
    }

    /// The rank; higher is better. In order of weight: in the requested network; of the peer's
    /// family; in the peer's network; routable; the preferred RoCE version, else an unknown one;
    /// the preferred family.
    fn score(&self, want: &Preference) -> (bool, (bool, bool), bool, u8, bool) {
        let version = match self.roce_version {
            Some(v) if v == want.roce_version => 2,
            None => 1,
            Some(_) => 0,
        };
        let towards_peer = (self.suits_peer(want), self.is_in_peers_network(want));
        (
            self.is_in_range(want),
            towards_peer,
            !self.is_link_local(),
            version,
            self.family() == want.family,
        )
    }
}

/// The first entry of the highest rank. `None`: there is no entry.
pub fn choose(entries: &[GidEntry], want: &Preference) -> Option<GidEntry> {
    let mut best: Option<GidEntry> = None;
    for entry in entries {
        if best.is_none_or(|b| entry.score(want) > b.score(want)) {
            best = Some(*entry);
        }
    }
    best
}

/// Why [`choose`] chose `entry`, for the log.
pub fn reason(entry: &GidEntry, want: &Preference) -> String {
    let reach = if entry.is_link_local() { "link-local only" } else { "routable" };
    let version = match entry.roce_version {
        Some(v) if v == want.roce_version => format!("RoCE v{v}"),
        Some(v) => format!("RoCE v{v}, no v{} found", want.roce_version),
        None => "RoCE version unknown to the kernel".into(),
    };
    let range = if entry.is_in_range(want) { "" } else { ", none found in NCCL_IB_ADDR_RANGE" };
    let near = if entry.is_in_peers_network(want) { ", in the peer's network" } else { "" };
    format!("{reach}, {version}{range}{near}")
}

/// The table in one line, for messages: index, address and RoCE version of each entry.
pub fn describe_table(entries: &[GidEntry]) -> String {
    const SHOWN: usize = 16;
    let version = |e: &GidEntry| e.roce_version.map_or(String::new(), |v| format!(" (RoCE v{v})"));
    let mut lines: Vec<_> = entries
        .iter()
        .take(SHOWN)
        .map(|e| format!("{}: {}{}", e.index, e.address(), version(e)))
        .collect();
    if entries.len() > SHOWN {
        lines.push(format!("and {} more", entries.len() - SHOWN));
    }
    if lines.is_empty() { "it is empty".into() } else { lines.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WANT: Preference = Preference {
        family: Family::V4,
        roce_version: 2,
        range: None,
        subnet_bits: 24,
        peer: None,
    };

    fn entry(index: u8, address: &str, roce_version: Option<u8>) -> GidEntry {
        let gid = match address.parse().expect("an address") {
            IpAddr::V4(a) => a.to_ipv6_mapped().octets(),
            IpAddr::V6(a) => a.octets(),
        };
        GidEntry { index, gid, roce_version }
    }

    fn chosen(entries: &[GidEntry]) -> Option<u8> {
        choose(entries, &WANT).map(|e| e.index)
    }

    #[test]
    fn the_usual_mlx5_table() {
        let table = [
            entry(0, "fe80::1", Some(1)),
            entry(1, "fe80::1", Some(2)),
            entry(2, "10.0.0.1", Some(1)),
            entry(3, "10.0.0.1", Some(2)),
        ];
        assert_eq!(chosen(&table), Some(3));
    }

    /// A VLAN interface adds its own address, and the port's link-local one a second time. NCCL's
    /// transport takes the first of a kind too.
    #[test]
    fn what_a_vlan_adds_to_the_table_is_taken_only_towards_its_network() {
        let of = |first: u8, address: &str| {
            [entry(first, address, Some(1)), entry(first + 1, address, Some(2))]
        };
        let own = [of(0, "fe80::1"), of(2, "10.0.0.1")].concat();
        let table = [own, [of(4, "fe80::1"), of(6, "10.84.0.1")].concat()].concat();
        assert_eq!(chosen(&table), Some(3));
        let towards =
            |peer| choose(&table, &Preference { peer: Some(entry(0, peer, None).gid), ..WANT });
        let cases = [("10.0.0.9", 3), ("10.84.0.9", 7), ("192.168.0.9", 3), ("fe80::9", 1)];
        for (peer, index) in cases {
            assert_eq!(towards(peer).map(|e| e.index), Some(index), "{peer}");
        }
    }

    #[test]
    fn a_range_comes_first() {
        let table = [
            entry(0, "fe80::1", Some(2)),
            entry(1, "10.0.0.1", Some(2)),
            entry(2, "10.1.2.3", Some(1)),
        ];
        let want = |range| Preference { range: AddressRange::parse(range).ok(), ..WANT };
        assert_eq!(choose(&table, &want("10.1.0.0/16")).map(|e| e.index), Some(2));
        assert_eq!(choose(&table, &want("fe80::/10")).map(|e| e.index), Some(0));
        assert_eq!(choose(&table, &want("0.0.0.0/0")).map(|e| e.index), Some(1));
        let none =
            choose(&table, &want("192.168.0.0/24")).expect("something is better than nothing");
        assert!(
            reason(&none, &want("192.168.0.0/24")).contains("none found in NCCL_IB_ADDR_RANGE")
        );
        for bad in ["10.1.0.0", "10.1.0.0/33", "10.1/16", "/8", "x/y"] {
            assert!(
                AddressRange::parse(bad)
                    .expect_err("refused")
                    .text()
                    .contains(&format!("NCCL_IB_ADDR_RANGE={bad}: "))
            );
        }
    }

    /// `findings/nccl-address-range-without-match-is-gid-0.sh` has NCCL's choices.
    #[test]
    fn where_nccls_own_transport_chooses_otherwise() {
        type Address = (&'static str, u8);
        const LINK: [Address; 2] = [("fe80::1", 1), ("fe80::1", 2)];
        const MANY: [Address; 6] = [
            ("192.0.2.1", 1),
            ("192.0.2.1", 2),
            ("198.51.100.1", 1),
            ("198.51.100.1", 2),
            ("2001:db8::1", 1),
            ("2001:db8::1", 2),
        ];
        let range = |text| AddressRange::parse(text).ok();
        let (v4, v6) = ("198.51.100.0/24", "2001:db8::/32");
        let peer = Some(entry(0, "198.51.100.9", None).gid);
        // The addresses after the link-local ones, the preference, the chosen index.
        let cases: [(&[Address], Preference, u8); 7] = [
            (&[], WANT, 1),
            (&MANY[4..], WANT, 3),
            (&[MANY[0], MANY[5]], WANT, 3),
            (&MANY, Preference { peer, ..WANT }, 5),
            (&MANY, Preference { range: range("203.0.113.0/24"), ..WANT }, 3),
            (&MANY, Preference { range: range(v6), ..WANT }, 7),
            (&MANY, Preference { range: range(v4), family: Family::V6, ..WANT }, 5),
        ];
        for (addresses, want, index) in cases {
            let table: Vec<_> = (0..)
                .zip(LINK.iter().chain(addresses))
                .map(|(i, (address, version))| entry(i, address, Some(*version)))
                .collect();
            assert_eq!(choose(&table, &want).map(|e| e.index), Some(index), "{table:?} {want:?}");
        }
    }

    #[test]
    fn the_peers_network_comes_before_the_first_routable_one() {
        let table = [
            entry(0, "fe80::1", Some(2)),
            entry(1, "10.0.0.1", Some(2)),
            entry(2, "10.0.7.1", Some(1)),
            entry(3, "10.0.7.1", Some(2)),
            entry(4, "2001:db8::1", Some(2)),
        ];
        let towards = |peer| {
            let want = Preference { peer: Some(entry(0, peer, None).gid), ..WANT };
            choose(&table, &want)
                .map(|e| (e.index, reason(&e, &want).contains("in the peer's network")))
        };
        assert_eq!(towards("10.0.7.99"), Some((3, true)));
        assert_eq!(towards("10.0.0.99"), Some((1, true)));
        assert_eq!(towards("192.168.0.1"), Some((1, false)), "by a router");
        assert_eq!(towards("fe80::99"), Some((0, true)), "a peer that has nothing else");
        assert_eq!(towards("2001:db8::99"), Some((4, true)));
        assert_eq!(towards("2001:db8:1::99"), Some((4, false)), "of its family at least");
        let wide =
            Preference { subnet_bits: 16, peer: Some(entry(0, "10.0.99.1", None).gid), ..WANT };
        assert_eq!(choose(&table, &wide).map(|e| e.index), Some(1));
    }

    #[test]
    fn a_table_is_reported_in_one_line() {
        let table = [entry(0, "fe80::1", Some(1)), entry(3, "10.0.0.1", None)];
        assert_eq!(describe_table(&table), "0: fe80::1 (RoCE v1), 3: 10.0.0.1");
        assert_eq!(describe_table(&[]), "it is empty");
        let long: Vec<_> = (0..20).map(|i| entry(i, "10.0.0.1", None)).collect();
        assert!(describe_table(&long).ends_with("and 4 more"));
    }

    #[test]
    fn a_container_that_hides_the_types() {
        assert_eq!(chosen(&[entry(0, "fe80::1", None), entry(1, "10.0.0.1", None)]), Some(1));
    }

    #[test]
    fn the_wrong_version_is_better_than_link_local() {
        let table = [entry(0, "fe80::1", Some(2)), entry(1, "10.0.0.1", Some(1))];
        assert_eq!(chosen(&table), Some(1));
        assert!(reason(&table[1], &WANT).contains("no v2 found"));
        assert_eq!(chosen(&[]), None);
    }
}
