//! Ports: what they are called, what their attributes say, their addresses.

use std::sync::atomic::Ordering::SeqCst;

use crate::abi::types::{Gid, PortAttr};
use crate::device::MAX_MESSAGE;
use crate::fabric::Fabric;
use crate::fabric::layout::{DEVICES, PORTS};
use crate::fabric::slots::{GIDS, GidSlot, PortSlot};
use crate::gid::{self, Entry, Kind};
use crate::shape::Shape;

pub(crate) const STATE_DOWN: u32 = 1;
pub(crate) const STATE_ACTIVE: u32 = 4;
/// What devices say that are neither: `IBV_LINK_LAYER_UNSPECIFIED`. Here they are addressed like Ethernet.
pub(crate) const LINK_UNSPECIFIED: u32 = 0;
pub(crate) const LINK_INFINIBAND: u32 = 1;
pub(crate) const LINK_ETHERNET: u32 = 2;
/// 4096 bytes, as `ibv_mtu`.
pub(crate) const MTU_4096: u32 = 5;

const PHYS_DISABLED: u8 = 3;
const PHYS_LINK_UP: u8 = 5;
const GRH_REQUIRED: u8 = 1;
const SUBNET_TIMEOUT: u8 = 18;
/// Of the subnet manager, which is nobody.
const SM_LID: u16 = 1;
/// The highest code of the 8-bit attribute: 100 Gb/s a lane.
const SPEED_NDR: u32 = 128;

/// Speed (100 Mb/s), `active_width`, `active_speed`.
const SIGNALLING: [(u32, u8, u32); 11] = [
    (50, 1, 2),
    (100, 2, 1),
    (200, 2, 2),
    (250, 1, 32),
    (400, 2, 4),
    (500, 1, 64),
    (560, 2, 16),
    (1000, 2, 32),
    (2000, 2, 64),
    (4000, 2, SPEED_NDR),
    (8000, 2, 256),
];

/// Width and speed codes of a speed in units of 100 Mb/s.
pub(crate) fn signalling(speed: u32) -> Option<(u8, u32)> {
    SIGNALLING.iter().find(|s| s.0 == speed).map(|&(_, width, code)| (width, code))
}

/// `ibv_mtu` of a size in bytes.
pub(crate) fn mtu_code(bytes: u32) -> Option<u32> {
    (1..=MTU_4096).find(|&code| mtu_bytes(code) == bytes)
}

pub(crate) fn mtu_bytes(code: u32) -> u32 {
    128 << code
}

/// Device index and port that a name means: `softrnic1/2`, `rnic1/2` or `1/2`.
pub(crate) fn parse_name(name: &str) -> Option<(usize, u32)> {
    let (device, port) = name.split_once('/')?;
    let port = port.parse().ok().filter(|p| (1..=PORTS as u32).contains(p))?;
    Some((parse_device(device)?, port))
}

/// Device index that a name means: `softrnic1`, `rnic1` or `1`.
pub(crate) fn parse_device(name: &str) -> Option<usize> {
    let digits = ["softrnic", "rnic"].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name);
    digits.parse().ok().filter(|&d| d < DEVICES)
}

/// Gives the ports of a new fabric what its shape says.
pub(crate) fn furnish(fabric: &Fabric, shape: &Shape) {
    for device in 0..shape.devices() {
        for port in 1..=shape.ports() {
            furnish_one(fabric.port(device, port), shape, device, port);
        }
    }
}

/// Gives `slot` what the shape says about `port` of `device`.
pub(crate) fn furnish_one(slot: &PortSlot, shape: &Shape, device: usize, port: u32) {
    slot.mtu.store(shape.mtu(device, port), SeqCst);
    slot.link_layer.store(shape.link_layer(device, port), SeqCst);
    slot.speed.store(shape.speed(device, port), SeqCst);
    if slot.is_infiniband() {
        slot.lid.store(u32::from(SM_LID) + 1 + (device * PORTS) as u32 + port - 1, SeqCst);
    }
    for (entry, gid) in slot.gids.iter().zip(first_gids(shape, device, port)) {
        entry.set(&gid);
    }
    slot.state.store(STATE_ACTIVE, SeqCst);
}

/// The GID table of a port at the beginning.
fn first_gids(shape: &Shape, device: usize, port: u32) -> Vec<Entry> {
    let guid = gid::guid(device, port);
    if shape.link_layer(device, port) == LINK_INFINIBAND {
        return vec![Entry { gid: gid::subnet_local(guid), kind: Kind::Plain }];
    }
    let (local, mapped) = (gid::link_local(guid), gid::mapped(device, port));
    let v2 = |gid: Gid| Entry { gid, kind: Kind::RoceV2 };
    if !shape.has_rich_gids() {
        return vec![v2(local), v2(mapped)];
    }
    let both = |gid: Gid| [Entry { gid, kind: Kind::Plain }, v2(gid)];
    [local, mapped, gid::global(device, port)].into_iter().flat_map(both).collect()
}

impl GidSlot {
    /// `None`: the entry is empty.
    pub(crate) fn get(&self) -> Option<Entry> {
        let number = self.kind.load(SeqCst);
        let mut gid = [0; 16];
        for (bytes, word) in gid.chunks_mut(8).zip(&self.words) {
            bytes.copy_from_slice(&word.load(SeqCst).to_ne_bytes());
        }
        // It may be changing right now.
        let kind = Kind::from_slot(number).filter(|_| self.kind.load(SeqCst) == number)?;
        Some(Entry { gid, kind })
    }

    /// Call under the control lock.
    pub(crate) fn set(&self, entry: &Entry) {
        self.kind.store(0, SeqCst);
        for (word, bytes) in self.words.iter().zip(entry.gid.chunks_exact(8)) {
            word.store(bytes.try_into().map_or(0, u64::from_ne_bytes), SeqCst);
        }
        self.kind.store(entry.kind as u32, SeqCst);
    }

    /// Call under the control lock.
    pub(crate) fn clear(&self) {
        self.kind.store(0, SeqCst);
    }
}

impl PortSlot {
    pub(crate) fn is_active(&self) -> bool {
        self.state.load(SeqCst) == STATE_ACTIVE
    }

    pub(crate) fn is_infiniband(&self) -> bool {
        self.link_layer.load(SeqCst) == LINK_INFINIBAND
    }

    /// Entry `index` of the GID table; `None` if it is empty, or outside.
    pub(crate) fn gid(&self, index: usize) -> Option<Entry> {
        self.gids.get(index)?.get()
    }

    /// Whether the table has such an entry.
    pub(crate) fn answers_to(&self, entry: &Entry) -> bool {
        self.gids.iter().any(|slot| slot.get().as_ref() == Some(entry))
    }

    /// Whether the table has this GID, for whatever kind of packets.
    pub(crate) fn has_gid(&self, gid: &Gid) -> bool {
        self.gids.iter().filter_map(GidSlot::get).any(|entry| entry.gid == *gid)
    }

    /// What `ibv_query_port` says.
    pub(crate) fn attributes(&self) -> PortAttr {
        let (state, is_ib) = (self.state.load(SeqCst), self.is_infiniband());
        let (width, speed) = signalling(self.speed.load(SeqCst)).unwrap_or_default();
        PortAttr {
            state,
            max_mtu: MTU_4096,
            active_mtu: self.mtu.load(SeqCst),
            gid_tbl_len: GIDS as i32,
            max_msg_sz: MAX_MESSAGE,
            pkey_tbl_len: 1,
            lid: self.lid.load(SeqCst) as u16,
            sm_lid: if is_ib { SM_LID } else { 0 },
            max_vl_num: 1,
            subnet_timeout: if is_ib { SUBNET_TIMEOUT } else { 0 },
            active_width: width,
            // What does not fit is the fastest that does.
            active_speed: speed.min(SPEED_NDR) as u8,
            phys_state: if state == STATE_ACTIVE { PHYS_LINK_UP } else { PHYS_DISABLED },
            link_layer: self.link_layer.load(SeqCst) as u8,
            flags: if is_ib { 0 } else { GRH_REQUIRED },
            active_speed_ex: speed,
            ..PortAttr::default()
        }
    }
}
