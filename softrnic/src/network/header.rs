//! The network header that a datagram's receive begins with: 40 bytes.
//!
//! RoCE v2 has an IPv6 header, or 20 bytes of nothing and an IPv4 header; RoCE v1 and InfiniBand
//! have a GRH, which is laid out like the header of IPv6.

use std::net::Ipv6Addr;

use crate::abi::types::Gid;

/// Its bytes.
pub(crate) type NetworkHeader = [u8; HEADER_BYTES];
pub(crate) const HEADER_BYTES: usize = 40;

/// Where the header of IPv4 begins.
const IPV4_AT: usize = 20;
/// `UDP`, as the next header.
const UDP: u8 = 17;
/// The transport of InfiniBand, as the next header.
const INFINIBAND: u8 = 27;
/// "Don't fragment", the only flag that RoCE sets.
const DONT_FRAGMENT: [u8; 2] = [0x40, 0];
/// UDP header.
const UDP_BYTES: usize = 8;
/// Base and datagram headers of the transport.
const TRANSPORT_BYTES: usize = 12 + 8;
const IMMEDIATE_BYTES: usize = 4;
const CHECKSUM_BYTES: usize = 4;

/// What it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Described {
    /// An address of the sending port, and what its packets look like.
    pub(crate) source: TypedGid,
    pub(crate) target: Gid,
    pub(crate) traffic_class: u8,
    pub(crate) flow_label: u32,
    pub(crate) hop_limit: u8,
}

/// Bytes behind the header, of a datagram with so many bytes of data.
fn bytes_behind(kind: GidType, data: u32, has_immediate: bool) -> u16 {
    let udp = if kind == GidType::RoceV2 { UDP_BYTES } else { 0 };
    let immediate = if has_immediate { IMMEDIATE_BYTES } else { 0 };
    (udp + TRANSPORT_BYTES + immediate + data.next_multiple_of(4) as usize + CHECKSUM_BYTES) as u16
}

impl Described {
    /// The header of a datagram with so many bytes of data.
    pub(crate) fn to_bytes(self, data: u32, has_immediate: bool) -> NetworkHeader {
        let behind = bytes_behind(self.source.kind, data, has_immediate);
        if self.source.kind == GidType::RoceV2 && is_mapped(&self.target) {
            return self.ipv4(behind);
        }
        let mut bytes = [0; HEADER_BYTES];
        let first = 6 << 28 | u32::from(self.traffic_class) << 20 | self.flow_label & 0xf_ffff;
        bytes[..4].copy_from_slice(&first.to_be_bytes());
        bytes[4..6].copy_from_slice(&behind.to_be_bytes());
        bytes[6] = if self.source.kind == GidType::RoceV2 { UDP } else { INFINIBAND };
        bytes[7] = self.hop_limit;
        bytes[8..24].copy_from_slice(&self.source.gid);
        bytes[24..].copy_from_slice(&self.target);
        bytes
    }

    /// What the completion of a datagram over RoCE has in place of a service level, as mlx5 says
    /// it: 8 for a UDP header, and the kind of the header in front of it: 0 a GRH, 1 of IPv6, 2 of
    /// IPv4.
    pub(crate) fn packet_type(self) -> u8 {
        match self.source.kind {
            GidType::Plain => 0,
            GidType::RoceV2 if is_mapped(&self.target) => 8 | 2,
            GidType::RoceV2 => 8 | 1,
        }
    }

    fn ipv4(self, behind: u16) -> NetworkHeader {
        let mut bytes = [0; HEADER_BYTES];
        let header = &mut bytes[IPV4_AT..];
        header[0] = 0x45;
        header[1] = self.traffic_class;
        header[2..4].copy_from_slice(&(behind + IPV4_AT as u16).to_be_bytes());
        header[6..8].copy_from_slice(&DONT_FRAGMENT);
        header[8] = self.hop_limit;
        header[9] = UDP;
        header[12..16].copy_from_slice(&self.source.gid[12..]);
        header[16..20].copy_from_slice(&self.target[12..]);
        let sum = checksum(header);
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes
    }

    /// What the bytes in front of a datagram say; `None`: they are no network header. Without UDP
    /// it is RoCE v1 or InfiniBand.
    pub(crate) fn of_bytes(bytes: &NetworkHeader) -> Option<Self> {
        let is_ipv4 = bytes[IPV4_AT] == 0x45 && checksum(&bytes[IPV4_AT..]) == 0;
        if is_ipv4 && bytes[IPV4_AT + 9] == UDP {
            let mapped = |at: usize| {
                let mut gid = [0; 16];
                gid[10..12].fill(0xff);
                gid[12..].copy_from_slice(&bytes[at..at + 4]);
                gid
            };
            return Some(Self {
                source: TypedGid { gid: mapped(IPV4_AT + 12), kind: GidType::RoceV2 },
                target: mapped(IPV4_AT + 16),
                traffic_class: bytes[IPV4_AT + 1],
                flow_label: 0,
                hop_limit: bytes[IPV4_AT + 8],
            });
        }
        if bytes[0] >> 4 != 6 {
            return None;
        }
        let first = u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let gid = |at: usize| std::array::from_fn(|i| bytes[at + i]);
        Some(Self {
            source: TypedGid {
                gid: gid(8),
                kind: if bytes[6] == UDP { GidType::RoceV2 } else { GidType::Plain },
            },
            target: gid(24),
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            hop_limit: bytes[7],
        })
    }
}

/// Of an IPv4 header: 0 if it holds the right one already.
fn checksum(header: &[u8]) -> u16 {
    let words =
        header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// How packets from a GID look on the wire. [`GidSlot::kind`](crate::shm::slots::GidSlot) holds
/// these numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum GidType {
    /// InfiniBand, or RoCE v1.
    #[default]
    Plain = 1,
    RoceV2 = 2,
}

impl GidType {
    /// `None` is an empty entry.
    pub(crate) fn from_slot(number: u32) -> Option<Self> {
        match number {
            1 => Some(Self::Plain),
            2 => Some(Self::RoceV2),
            _ => None,
        }
    }
}

/// One entry of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TypedGid {
    pub(crate) gid: Gid,
    pub(crate) kind: GidType,
}

/// The GUID of port `port` of device `device`, network order in memory: an EUI-64 of a locally
/// administered address. Port 0 is the device itself.
pub(crate) fn guid(device: usize, port: u32) -> u64 {
    u64::from_ne_bytes([0x02, 0x50, 0xf7, 0xff, 0xfe, 0x00, port as u8, device as u8 + 1])
}

/// The system image GUID of a device: that of the first one on its card, which has so many.
pub(crate) fn card_guid(devices_on_card: usize, device: usize) -> u64 {
    guid(device - device % devices_on_card, 0)
}

/// The link-local GID of an Ethernet port: its interface identifier is the *modified* EUI-64.
pub(crate) fn link_local(guid: u64) -> Gid {
    let mut gid = subnet_local(guid);
    gid[8] ^= 2;
    gid
}

/// The first GID of an InfiniBand port: the default subnet prefix and the port's GUID.
pub(crate) fn subnet_local(guid: u64) -> Gid {
    let mut gid = [0; 16];
    gid[..2].copy_from_slice(&[0xfe, 0x80]);
    gid[8..].copy_from_slice(&guid.to_ne_bytes());
    gid
}

/// `::ffff:10.82.<port>.<device + 1>`
pub(crate) fn mapped(device: usize, port: u32) -> Gid {
    mapped_in(82, device, port)
}

/// `::ffff:10.84.<port>.<device + 1>`
pub(crate) fn mapped_of_vlan(device: usize, port: u32) -> Gid {
    mapped_in(84, device, port)
}

fn mapped_in(network: u8, device: usize, port: u32) -> Gid {
    let mut gid = [0; 16];
    gid[10..].copy_from_slice(&[0xff, 0xff, 10, network, port as u8, device as u8 + 1]);
    gid
}

/// `fd52:4e49:4300::<port>:<device + 1>`
pub(crate) fn global(device: usize, port: u32) -> Gid {
    Ipv6Addr::new(0xfd52, 0x4e49, 0x4300, 0, 0, 0, port as u16, device as u16 + 1).octets()
}

/// Whether the GID is that of every port that has one, which it makes of its GUID.
pub(crate) fn is_link_local(gid: &Gid) -> bool {
    gid[0] == 0xfe && gid[1] & 0xc0 == 0x80
}

/// The address of the same port in another network: `10.83.…` in place of `10.82.…`,
/// `fd52:4e49:4301:…` of `fd52:4e49:4300:…`.
pub(crate) fn renumbered(gid: Gid) -> Gid {
    let at = if is_mapped(&gid) { 13 } else { 5 };
    let mut other = gid;
    other[at] = gid[at].wrapping_add(1);
    other
}

/// Whether the GID is that of a group of ports.
pub(crate) fn is_multicast(gid: &Gid) -> bool {
    gid[0] == 0xff || is_mapped(gid) && gid[12] >> 4 == 0xe
}

/// Whether two IPv4 addresses differ in their first `bits` bits.
pub(crate) fn are_apart(one: &Gid, other: &Gid, bits: u32) -> bool {
    let address = |gid: &Gid| Ipv6Addr::from(*gid).to_ipv4_mapped().map(u32::from);
    let (Some(one), Some(other)) = (address(one), address(other)) else { return false };
    (one ^ other).leading_zeros() < bits
}

/// Whether the GID stands for an IPv4 address.
pub(crate) fn is_mapped(gid: &Gid) -> bool {
    Ipv6Addr::from(*gid).to_ipv4_mapped().is_some()
}

// Which of several equal ways a switch chooses for the packets of a queue pair: by a hash of the
// header fields in which queue pairs differ. Protocol and UDP destination port are the same in all
// RoCE v2 packets, and so not hashed here.

/// The UDP source port of the packets of a queue pair. It is made from a flow label of 20 bits: the
/// lower 14 bits and the upper 6 bits, one upon the other, in the range of dynamic ports. Where the
/// address vector has none (0), from one that is made from the numbers of both queue pairs.
pub(crate) fn udp_source_port(flow_label: u32, local: u32, remote: u32) -> u16 {
    let label = match flow_label & LABEL_MASK {
        0 => {
            let product = u64::from(local) * u64::from(remote);
            (product ^ product >> 20 ^ product >> 40) as u32 & LABEL_MASK
        }
        label => label,
    };
    (0xc000 | (label ^ label >> 14) & 0x3fff) as u16
}

const LABEL_MASK: u32 = 0xf_ffff;

/// Which of `paths`, of which there is one at least, packets with these addresses and UDP source
/// port take.
pub(crate) fn path(source: &Gid, target: &Gid, port: u16, paths: u32) -> u32 {
    let words = [source, target].into_iter().flat_map(|gid| gid.chunks_exact(8));
    let addresses =
        words.fold(0, |state, word| mix(state ^ word.try_into().map_or(0, u64::from_be_bytes)));
    (mix(addresses ^ u64::from(port)) % u64::from(paths.max(1))) as u32
}

/// The finaliser of splitmix64: a bijection in which each bit of the result depends on all bits of
/// `word`.
pub(crate) fn mix(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(kind: GidType, source: Gid, target: Gid) -> Described {
        Described {
            source: TypedGid { gid: source, kind },
            target,
            traffic_class: 7,
            flow_label: 0,
            hop_limit: 64,
        }
    }

    #[test]
    fn an_ipv4_header_is_at_the_end_and_has_its_checksum() {
        let bytes = described(GidType::RoceV2, mapped(0, 1), mapped(1, 1)).to_bytes(5, true);
        assert_eq!(bytes[..20], [0; 20]);
        // 20 + 8 + 12 + 8 + 4 + 5 rounded up to 8 + 4 bytes; from 10.82.1.1 to 10.82.1.2.
        assert_eq!(bytes[20..30], [0x45, 7, 0, 64, 0, 0, 0x40, 0, 64, 17]);
        assert_eq!(bytes[32..], [10, 82, 1, 1, 10, 82, 1, 2]);
        let sum = bytes[20..]
            .chunks_exact(2)
            .map(|p| u32::from(p[0]) << 8 | u32::from(p[1]))
            .sum::<u32>();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff);
    }

    #[test]
    fn what_is_written_is_read() {
        for (kind, source, target) in [
            (GidType::RoceV2, mapped(0, 1), mapped(1, 1)),
            (GidType::RoceV2, global(0, 1), global(1, 1)),
            (GidType::Plain, global(0, 1), global(1, 1)),
            (GidType::Plain, mapped(0, 1), mapped(1, 1)),
        ] {
            let written = described(kind, source, target);
            assert_eq!(Described::of_bytes(&written.to_bytes(100, false)), Some(written));
        }
        assert_eq!(Described::of_bytes(&[0; HEADER_BYTES]), None);
    }

    #[test]
    fn source_ports_come_from_the_flow_label_and_else_from_the_queue_pairs() {
        // 3 * 5 = 15; the upper bits of the label count too.
        let ports =
            [udp_source_port(0, 3, 5), udp_source_port(1, 3, 5), udp_source_port(1 << 14, 9, 9)];
        assert_eq!(ports, [0xc00f, 0xc001, 0xc001]);
        assert_eq!(udp_source_port(0xf_ffff, 0, 0), 0xffc0);
        assert_eq!(
            udp_source_port(0, 7, 100),
            udp_source_port(0, 100, 7),
            "both directions have the same"
        );
    }

    #[test]
    fn all_paths_are_taken_by_about_as_many_flow_labels() {
        let mut counts = [0; 4];
        for label in 1..=4000 {
            counts[path(&[1; 16], &[2; 16], udp_source_port(label, 1, 1), 4) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (880..1120).contains(count)), "{counts:?}");
        assert_eq!(path(&[1; 16], &[2; 16], 0xc000, 1), 0);
    }
}
