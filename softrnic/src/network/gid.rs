//! GIDs: the addresses of ports.

use std::net::Ipv6Addr;

use crate::abi::types::Gid;

/// How packets from a GID look on the wire. [`GidSlot::kind`](crate::shm::slots::GidSlot) holds these numbers.
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

/// The GUID of port `port` of device `device`, network order in memory: an EUI-64 of a locally administered address.
/// Port 0 is the device itself.
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

/// The address of the same port in another network: `10.83.…` in place of `10.82.…`, `fd52:4e49:4301:…` of `fd52:4e49:4300:…`.
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
