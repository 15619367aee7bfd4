//! The state of a fabric, in plain values.

use std::net::Ipv6Addr;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::abi::names::{qp_state, transport};
use crate::control::names::{DeviceName, GidKind, PortName};
use crate::control::work::{Capacities, Commands, Cq, Work};
use crate::limits::PROCS;
use crate::network::gid::{self, GidType};
use crate::network::link::{LINK_INFINIBAND, LINK_UNSPECIFIED, mtu_bytes};
use crate::network::port::set_up;
use crate::network::port_id::PortId;
use crate::network::topology::Topology;
use crate::process::fabric::Fabric;
use crate::process::reach::{DIRECT, STAGED};
use crate::shm::layout::Table;
use crate::shm::process_id::slot_of;
use crate::shm::slots::{self, ANY_PEER, GIDS, PathSlot, PortSlot, QpSlot};

/// A fabric.
#[derive(Clone, Debug)]
pub struct Report {
    /// Its name.
    pub fabric: String,
    /// All devices.
    pub devices: Vec<Device>,
    /// All processes that take part.
    pub processes: Vec<Process>,
}

/// A process.
#[derive(Clone, Copy, Debug)]
pub struct Process {
    /// Its process id.
    pub pid: i32,
    /// False: it has died, and what it left will be cleared up.
    pub is_alive: bool,
    /// It copies to and from others' memory itself.
    pub copies_directly: bool,
    /// It has others copy, through the fabric.
    pub copies_staged: bool,
    /// Why it cannot reach some directly, if it has tried: errno.
    pub obstacle: Option<i32>,
    /// Commands that it has had cards carry out.
    pub commands: Commands,
    /// Calls of `ibv_query_port`: with most drivers these are commands too, of which the card carries out each at once here.
    pub port_queries: u32,
}

/// A device.
#[derive(Clone, Debug)]
pub struct Device {
    /// Its name.
    pub name: DeviceName,
    /// Its node GUID, as the host's integer.
    pub guid: u64,
    /// Its system image GUID: that of the first device on the same card.
    pub card_guid: u64,
    /// It has failed, and is not back.
    pub has_failed: bool,
    /// It refuses commands, and is about to fail.
    pub is_refusing: bool,
    /// Its ports.
    pub ports: Vec<Port>,
    /// Its queue pairs, of all processes.
    pub queue_pairs: Vec<Qp>,
    /// Completion queues, of all processes.
    pub completion_queues: Vec<Cq>,
    /// Memory regions, of all processes.
    pub memory_regions: usize,
    /// Their bytes.
    pub registered_bytes: u64,
}

/// What packets look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkLayer {
    /// InfiniBand.
    InfiniBand,
    /// RoCE.
    Ethernet,
    /// Nothing is said; packets go as over Ethernet.
    Unspecified,
}

/// A port.
#[derive(Clone, Debug)]
pub struct Port {
    /// Its name.
    pub name: PortName,
    /// Up.
    pub is_active: bool,
    /// Its link layer.
    pub link_layer: LinkLayer,
    /// In bytes.
    pub mtu: u32,
    /// In Gb/s, as its attributes say.
    pub gbps: u32,
    /// 0 unless InfiniBand.
    pub lid: u16,
    /// Of the modelled wire.
    pub latency: Duration,
    /// Of the modelled wire, in bytes per second.
    pub bandwidth: Option<u64>,
    /// Entries of the GID table that are not empty.
    pub gids: Vec<Gid>,
    /// What was sent from here, in all.
    pub counters: Counters,
    /// What became of the packets from here that a rule has delayed.
    pub delayed: Delayed,
    /// The ways from here through the fabric; none if they are not modelled.
    pub paths: Vec<Path>,
}

/// One of several ways from a port through the fabric.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// One way.
    pub latency: Duration,
    /// In bytes per second.
    pub bandwidth: Option<u64>,
    /// What was posted to go this way, so far.
    pub bytes: u64,
}

/// An entry of a GID table.
#[derive(Clone, Copy, Debug)]
pub struct Gid {
    /// Its index.
    pub index: usize,
    /// The address.
    pub gid: Ipv6Addr,
    /// What packets from it look like.
    pub kind: GidKind,
}

/// A queue pair.
#[derive(Clone, Copy, Debug)]
pub struct Qp {
    /// Its number.
    pub number: u32,
    /// RC, UC or UD.
    pub transport: &'static str,
    /// As the verbs interface calls it: RESET, INIT, RTR, …
    pub state: &'static str,
    /// Its port.
    pub port: u32,
    /// The process it belongs to.
    pub pid: i32,
    /// The queue pair it is connected to: port, number.
    pub peer: Option<(PortName, u32)>,
    /// Which connection it is among those from its port to the peer's, from 0.
    pub flow: u32,
    /// Which of its port's paths it takes, from 0; `None`: there is but one way.
    pub path: Option<u32>,
    /// What it was asked to have.
    pub capacities: Capacities,
    /// What it has sent.
    pub counters: Counters,
    /// What its owner has posted.
    pub work: Work,
}

/// What requesters have done.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Messages acknowledged.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Transmissions that got no answer.
    pub losses: u64,
    /// Transmissions that found no receive.
    pub rnr_waits: u64,
    /// Faults injected.
    pub faults: u64,
}

impl Counters {
    fn of(slot: &slots::Counters) -> Self {
        Self {
            messages: slot.messages.load(SeqCst),
            bytes: slot.bytes.load(SeqCst),
            losses: slot.losses.load(SeqCst),
            rnr_waits: slot.rnr_waits.load(SeqCst),
            faults: slot.faults.load(SeqCst),
        }
    }

    fn add(&mut self, other: &Self) {
        self.messages += other.messages;
        self.bytes += other.bytes;
        self.losses += other.losses;
        self.rnr_waits += other.rnr_waits;
        self.faults += other.faults;
    }
}

/// Packets that a rule has delayed (`late`): they arrive, if at all, when their sender has taken them for lost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Delayed {
    /// On their way so far.
    pub launched: u64,
    /// Executed by the responder: the data is in its memory.
    pub landed: u64,
    /// Dropped: the queue pair is gone, or not connected to the sender any more.
    pub gone: u64,
    /// Dropped: the queue pair is in the error state.
    pub in_error: u64,
    /// Dropped: the queue pair expects another packet number.
    pub wrong_psn: u64,
    /// Dropped: the responder does not take it, because of its key, its access or a receive that is missing.
    pub refused: u64,
    /// Dropped: the responder's port is down.
    pub port_down: u64,
}

impl Delayed {
    fn of(slot: &slots::DelayedCounters) -> Self {
        Self {
            launched: slot.launched.load(SeqCst),
            landed: slot.landed.load(SeqCst),
            gone: slot.gone.load(SeqCst),
            in_error: slot.in_error.load(SeqCst),
            wrong_psn: slot.wrong_psn.load(SeqCst),
            refused: slot.refused.load(SeqCst),
            port_down: slot.port_down.load(SeqCst),
        }
    }
}

/// Looks at everything. Call under the control lock.
pub(crate) fn of(fabric: &Fabric) -> Report {
    let processes = (0..PROCS).filter(|&index| fabric.proc(index).id.load(SeqCst) != 0).map(|index| {
        let slot = fabric.proc(index);
        let (ways, obstacle) = (slot.ways.load(SeqCst), slot.obstacle.load(SeqCst) as i32);
        Process {
            copies_directly: ways & DIRECT != 0,
            copies_staged: ways & STAGED != 0,
            obstacle: (obstacle != 0).then_some(obstacle),
            commands: Commands::of(slot),
            port_queries: slot.port_queries.load(SeqCst),
            pid: slot.pid.load(SeqCst),
            is_alive: fabric.takes_part(index),
        }
    });
    Report {
        fabric: fabric.settings.fabric.clone(),
        processes: processes.collect(),
        devices: (0..fabric.topology.devices()).map(|device| device_of(fabric, device)).collect(),
    }
}

/// The devices that a fabric has whose first process has these settings.
pub(crate) fn devices_of(topology: &Topology) -> Vec<Device> {
    let port_of = |device: usize, port: u32| {
        // SAFETY: atomics that are all zeros, as in a new file.
        let slot: PortSlot = unsafe { std::mem::zeroed() };
        set_up(&slot, topology, device, port);
        port_of(&slot, PortName { device, port }, topology.paths())
    };
    let device_of = |device: usize| Device {
        name: DeviceName(device),
        guid: u64::from_be(gid::guid(device, 0)),
        card_guid: u64::from_be(gid::card_guid(topology.devices_on_card(), device)),
        has_failed: false,
        is_refusing: false,
        ports: (1..=topology.ports()).map(|port| port_of(device, port)).collect(),
        queue_pairs: Vec::new(),
        completion_queues: Vec::new(),
        memory_regions: 0,
        registered_bytes: 0,
    };
    (0..topology.devices()).map(device_of).collect()
}

fn device_of(fabric: &Fabric, device: usize) -> Device {
    let qps = fabric.entries(Table::Qp, device).map(|index| fabric.qp(device, index));
    let queue_pairs: Vec<Qp> = qps.filter(|qp| qp.owner.load(SeqCst) != 0).map(|qp| qp_of(fabric, qp)).collect();
    let cqs = fabric.entries(Table::Cq, device).map(|index| fabric.cq(device, index));
    let mrs = fabric.entries(Table::Mr, device).map(|index| fabric.mr(device, index));
    let mrs: Vec<_> = mrs.filter(|mr| mr.owner.load(SeqCst) != 0).collect();
    let ports = (1..=fabric.topology.ports()).map(|port| {
        let mut found = port_of(fabric.port(device, port), PortName { device, port }, fabric.topology.paths());
        queue_pairs.iter().filter(|qp| qp.port == port).for_each(|qp| found.counters.add(&qp.counters));
        found
    });
    Device {
        name: DeviceName(device),
        guid: u64::from_be(gid::guid(device, 0)),
        card_guid: u64::from_be(gid::card_guid(fabric.topology.devices_on_card(), device)),
        has_failed: fabric.is_failed(device),
        is_refusing: fabric.is_refusing(device),
        ports: ports.collect(),
        completion_queues: cqs.filter(|cq| cq.owner.load(SeqCst) != 0).map(|cq| Cq::of(fabric, cq)).collect(),
        memory_regions: mrs.len(),
        registered_bytes: mrs.iter().map(|mr| mr.length.load(SeqCst)).sum(),
        queue_pairs,
    }
}

fn link_layer_of(slot: &PortSlot) -> LinkLayer {
    match slot.link_layer.load(SeqCst) {
        LINK_INFINIBAND => LinkLayer::InfiniBand,
        LINK_UNSPECIFIED => LinkLayer::Unspecified,
        _ => LinkLayer::Ethernet,
    }
}

/// In bytes per second.
fn bandwidth_of(bytes_per_ms: &AtomicU64) -> Option<u64> {
    Some(bytes_per_ms.load(SeqCst)).filter(|&b| b != 0).map(|b| b * 1000)
}

fn path_of(slot: &PathSlot) -> Path {
    Path {
        latency: Duration::from_nanos(slot.latency_ns.load(SeqCst)),
        bandwidth: bandwidth_of(&slot.bytes_per_ms),
        bytes: slot.bytes.load(SeqCst),
    }
}

fn port_of(slot: &PortSlot, name: PortName, paths: u32) -> Port {
    let kind_of = |kind| match kind {
        GidType::RoceV2 => GidKind::RoceV2,
        GidType::Plain if slot.is_infiniband() => GidKind::InfiniBand,
        GidType::Plain => GidKind::RoceV1,
    };
    let gids = (0..GIDS).filter_map(|index| {
        let entry = slot.gid(index)?;
        Some(Gid { index, gid: entry.gid.into(), kind: kind_of(entry.kind) })
    });
    Port {
        name,
        is_active: slot.is_active(),
        link_layer: link_layer_of(slot),
        mtu: mtu_bytes(slot.mtu.load(SeqCst)),
        gbps: slot.speed.load(SeqCst) / 10,
        lid: slot.lid.load(SeqCst) as u16,
        latency: Duration::from_nanos(slot.latency_ns.load(SeqCst)),
        bandwidth: bandwidth_of(&slot.bytes_per_ms),
        gids: gids.collect(),
        counters: Counters::of(&slot.past),
        delayed: Delayed::of(&slot.delayed),
        paths: slot.paths.iter().take(paths as usize).map(path_of).collect(),
    }
}

fn qp_of(fabric: &Fabric, qp: &QpSlot) -> Qp {
    let peer = qp.peer.load(SeqCst);
    let port = PortId::of_name(peer);
    Qp {
        number: qp.qpn.load(SeqCst),
        transport: transport(qp.transport.load(SeqCst)),
        state: qp_state(qp.state.load(SeqCst)),
        port: qp.port.load(SeqCst),
        pid: fabric.proc(slot_of(qp.owner.load(SeqCst))).pid.load(SeqCst),
        peer: (peer < ANY_PEER).then_some((PortName { device: port.device, port: port.port }, peer as u32)),
        flow: qp.flow.load(SeqCst),
        path: qp.path.load(SeqCst).checked_sub(1),
        capacities: Capacities::of(qp),
        counters: Counters::of(&qp.sent),
        work: Work::of(qp),
    }
}
