//! The network header that a datagram's receive begins with: 40 bytes.
//!
//! RoCE v2 has an IPv6 header, or 20 bytes of nothing and an IPv4 header; RoCE v1 and InfiniBand have a GRH, which is laid out like the
//! header of IPv6.

use crate::abi::types::Gid;
use crate::network::gid::{GidType, TypedGid, is_mapped};

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

    /// What the completion of a datagram over RoCE has in place of a service level, as mlx5 says it: 8 for a UDP header, and the kind of the
    /// header in front of it: 0 a GRH, 1 of IPv6, 2 of IPv4.
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

    /// What the bytes in front of a datagram say; `None`: they are no network header. Without UDP it is RoCE v1 or InfiniBand.
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
            source: TypedGid { gid: gid(8), kind: if bytes[6] == UDP { GidType::RoceV2 } else { GidType::Plain } },
            target: gid(24),
            traffic_class: (first >> 20) as u8,
            flow_label: first & 0xf_ffff,
            hop_limit: bytes[7],
        })
    }
}

/// Of an IPv4 header: 0 if it holds the right one already.
fn checksum(header: &[u8]) -> u16 {
    let words = header.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::gid::{global, mapped};

    fn described(kind: GidType, source: Gid, target: Gid) -> Described {
        Described { source: TypedGid { gid: source, kind }, target, traffic_class: 7, flow_label: 0, hop_limit: 64 }
    }

    #[test]
    fn an_ipv4_header_is_at_the_end_and_has_its_checksum() {
        let bytes = described(GidType::RoceV2, mapped(0, 1), mapped(1, 1)).to_bytes(5, true);
        assert_eq!(bytes[..20], [0; 20]);
        // 20 + 8 + 12 + 8 + 4 + 5 rounded up to 8 + 4 bytes; from 10.82.1.1 to 10.82.1.2.
        assert_eq!(bytes[20..30], [0x45, 7, 0, 64, 0, 0, 0x40, 0, 64, 17]);
        assert_eq!(bytes[32..], [10, 82, 1, 1, 10, 82, 1, 2]);
        let sum = bytes[20..].chunks_exact(2).map(|p| u32::from(p[0]) << 8 | u32::from(p[1])).sum::<u32>();
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
}
