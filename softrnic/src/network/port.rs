//! Ports: what a new one is like, its GID table, what its attributes say.

use std::sync::atomic::Ordering::SeqCst;

use crate::abi::types::{Gid, PortAttr};
use crate::limits::{MAX_MESSAGE, PORTS};
use crate::network::gid::{self, GidType, TypedGid};
use crate::network::link::{LINK_INFINIBAND, MTU_4096, SPEED_NDR, STATE_ACTIVE, signalling};
use crate::network::topology::Topology;
use crate::shm::file::SharedFile;
use crate::shm::slots::{GIDS, GidSlot, PortSlot};

const PHYS_DISABLED: u8 = 3;
const PHYS_LINK_UP: u8 = 5;
const GRH_REQUIRED: u8 = 1;
const SUBNET_TIMEOUT: u8 = 18;
/// Of the subnet manager, which is nobody.
const SM_LID: u16 = 1;
/// Sets up the ports of a new fabric.
pub(crate) fn set_up_all(file: &SharedFile, topology: &Topology) {
    for device in 0..topology.devices() {
        for port in 1..=topology.ports() {
            set_up(file.port(device, port), topology, device, port);
        }
    }
}

/// Gives `slot` what the topology says about `port` of `device`.
pub(crate) fn set_up(slot: &PortSlot, topology: &Topology, device: usize, port: u32) {
    slot.mtu.store(topology.mtu(device, port), SeqCst);
    slot.link_layer.store(topology.link_layer(device, port), SeqCst);
    slot.speed.store(topology.speed(device, port), SeqCst);
    if slot.is_infiniband() {
        slot.lid.store(u32::from(SM_LID) + 1 + (device * PORTS) as u32 + port - 1, SeqCst);
    }
    for (entry, gid) in slot.gids.iter().zip(first_gids(topology, device, port)) {
        entry.set(&gid);
    }
    let (pace, latency) = topology.path_pace_and_latency();
    for path in &slot.paths {
        path.bytes_per_ms.store(pace, SeqCst);
        path.latency_ns.store(latency, SeqCst);
    }
    slot.state.store(STATE_ACTIVE, SeqCst);
}

/// The GID table of a port at the beginning.
fn first_gids(topology: &Topology, device: usize, port: u32) -> Vec<TypedGid> {
    let guid = gid::guid(device, port);
    if topology.link_layer(device, port) == LINK_INFINIBAND {
        return vec![TypedGid { gid: gid::subnet_local(guid), kind: GidType::Plain }];
    }
    let (local, mapped) = (gid::link_local(guid), gid::mapped(device, port));
    let v2 = |gid: Gid| TypedGid { gid, kind: GidType::RoceV2 };
    if topology.has_vlan_gids() {
        // Both interfaces have one MAC address, and so the same link-local address.
        return [local, mapped, local, gid::mapped_of_vlan(device, port)].map(v2).into();
    }
    if !topology.has_rich_gids() {
        return vec![v2(local), v2(mapped)];
    }
    let both = |gid: Gid| [TypedGid { gid, kind: GidType::Plain }, v2(gid)];
    [local, mapped, gid::global(device, port)].into_iter().flat_map(both).collect()
}

impl GidSlot {
    /// `None`: the entry is empty.
    pub(crate) fn get(&self) -> Option<TypedGid> {
        let number = self.kind.load(SeqCst);
        let mut gid = [0; 16];
        for (bytes, word) in gid.chunks_mut(8).zip(&self.words) {
            bytes.copy_from_slice(&word.load(SeqCst).to_ne_bytes());
        }
        // It may be changing right now.
        let kind = GidType::from_slot(number).filter(|_| self.kind.load(SeqCst) == number)?;
        Some(TypedGid { gid, kind })
    }

    /// Call under the control lock.
    pub(crate) fn set(&self, entry: &TypedGid) {
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

    /// TypedGid `index` of the GID table; `None` if it is empty, or outside.
    pub(crate) fn gid(&self, index: usize) -> Option<TypedGid> {
        self.gids.get(index)?.get()
    }

    /// Whether the table has such an entry.
    pub(crate) fn answers_to(&self, entry: &TypedGid) -> bool {
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
            qkey_viol_cntr: self.qkey_violations.load(SeqCst),
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
