//! The state of a fabric, in plain values.

use std::fmt;
use std::net::Ipv6Addr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

use crate::abi::names::{qp_state, transport};
use crate::abi::types::{event, qp_state};
use crate::control::network::{Error, Network};
use crate::host::now_ns;
use crate::limits::PROCS;
use crate::network::header;
use crate::network::header::GidType;
use crate::network::topology::{
    LINK_INFINIBAND, LINK_UNSPECIFIED, PortId, STATE_ACTIVE, STATE_DOWN, Topology, mtu_bytes,
    set_up,
};
use crate::process::fabric::{DIRECT, Fabric, PortEvent, STAGED};
use crate::shm::file::{Table, slot_of};
use crate::shm::slots;
use crate::shm::slots::{ANY_PEER, CqSlot, GIDS, PathSlot, PortSlot, ProcSlot, QpSlot};

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
    /// Calls of `ibv_query_port`: with most drivers these are commands too, of which the card
    /// carries out each at once here.
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

/// Packets that a rule has delayed (`late`): they arrive, if at all, when their sender has taken
/// them for lost.
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
    /// Dropped: the responder does not take it, because of its key, its access or a receive that is
    /// missing.
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
    let processes =
        (0..PROCS).filter(|&index| fabric.proc(index).id.load(SeqCst) != 0).map(|index| {
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
        guid: u64::from_be(header::guid(device, 0)),
        card_guid: u64::from_be(header::card_guid(topology.devices_on_card(), device)),
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
    let queue_pairs: Vec<Qp> =
        qps.filter(|qp| qp.owner.load(SeqCst) != 0).map(|qp| qp_of(fabric, qp)).collect();
    let cqs = fabric.entries(Table::Cq, device).map(|index| fabric.cq(device, index));
    let mrs = fabric.entries(Table::Mr, device).map(|index| fabric.mr(device, index));
    let mrs: Vec<_> = mrs.filter(|mr| mr.owner.load(SeqCst) != 0).collect();
    let ports = (1..=fabric.topology.ports()).map(|port| {
        let mut found =
            port_of(fabric.port(device, port), PortName { device, port }, fabric.topology.paths());
        queue_pairs
            .iter()
            .filter(|qp| qp.port == port)
            .for_each(|qp| found.counters.add(&qp.counters));
        found
    });
    Device {
        name: DeviceName(device),
        guid: u64::from_be(header::guid(device, 0)),
        card_guid: u64::from_be(header::card_guid(fabric.topology.devices_on_card(), device)),
        has_failed: fabric.is_failed(device),
        is_refusing: fabric.is_refusing(device),
        ports: ports.collect(),
        completion_queues: cqs
            .filter(|cq| cq.owner.load(SeqCst) != 0)
            .map(|cq| Cq::of(fabric, cq))
            .collect(),
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
        peer: (peer < ANY_PEER)
            .then_some((PortName { device: port.device, port: port.port }, peer as u32)),
        flow: qp.flow.load(SeqCst),
        path: qp.path.load(SeqCst).checked_sub(1),
        capacities: Capacities::of(qp),
        counters: Counters::of(&qp.sent),
        work: Work::of(qp),
    }
}

/// A port of a device: `softrnic1/2`. `rnic1/2` and `1/2` are understood as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortName {
    /// Index of the device.
    pub device: usize,
    /// 1 or 2.
    pub port: u32,
}

impl fmt::Display for PortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "softrnic{}/{}", self.device, self.port)
    }
}

/// A device: `softrnic1`. `rnic1` and `1` are understood as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceName(
    /// Its index.
    pub usize,
);

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "softrnic{}", self.0)
    }
}

/// What packets from a GID look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GidKind {
    /// The only kind of an InfiniBand port.
    InfiniBand,
    /// RoCE v1.
    RoceV1,
    /// RoCE v2.
    RoceV2,
}

/// When a device returns that has failed for good.
const NEVER: u64 = u64::MAX;

impl Network {
    /// Fails a device for good: its queue pairs go into the error state, calls answer `EIO`, peers
    /// get no answer.
    pub(crate) fn fail_device(&self, name: DeviceName) -> Result<(), Error> {
        self.fail_device_until(name, NEVER)
    }

    /// As `fail_device`, after the device has refused all commands for so long: queue pairs that
    /// exist work on meanwhile, also those that their process destroys. If `lasts` is given, the
    /// device can be opened anew so long after that. Returns when it has failed, or is back.
    pub fn fail_device_after(
        &self,
        name: DeviceName,
        refuses: Duration,
        lasts: Option<Duration>,
    ) -> Result<(), Error> {
        if !refuses.is_zero() {
            self.refuse_commands(name)?;
            std::thread::sleep(refuses);
        }
        let returns_at =
            lasts.map_or(NEVER, |lasts| now_ns().saturating_add(lasts.as_nanos() as u64));
        self.fail_device_until(name, returns_at)?;
        if let Some(lasts) = lasts {
            std::thread::sleep(lasts);
            // Looking at it is enough.
            self.is_absent(name.0);
        }
        Ok(())
    }

    /// Has a device refuse all commands (`EIO`) until it fails.
    pub(crate) fn refuse_commands(&self, name: DeviceName) -> Result<(), Error> {
        let devices = self.fabric.topology.devices();
        if name.0 >= devices {
            return Err(Error::NoDevice(name, devices));
        }
        let control = self.fabric.file.control();
        if !self.fabric.is_failed(name.0) {
            self.fabric.header().refusing[name.0].store(1, SeqCst);
        }
        drop(control);
        Ok(())
    }

    /// As [`Self::fail_device`], but at `returns_at` (monotonic ns) it can be opened anew; until
    /// then it is not in the list. What is open stays dead.
    pub(crate) fn fail_device_until(&self, name: DeviceName, returns_at: u64) -> Result<(), Error> {
        let device = name.0;
        let (topology, header) = (&self.fabric.topology, self.fabric.header());
        if device >= topology.devices() {
            return Err(Error::NoDevice(name, topology.devices()));
        }
        let control = self.fabric.file.control();
        if self.fabric.is_failed(device) {
            header.returns_at[device].fetch_max(returns_at, SeqCst);
            return Ok(());
        }
        header.returns_at[device].store(returns_at, SeqCst);
        header.failures[device].fetch_add(1, SeqCst);
        header.refusing[device].store(0, SeqCst);
        self.set_states(device, STATE_DOWN);
        self.fabric.note_change(&control);
        for index in self.fabric.entries(Table::Qp, device) {
            self.fail_qp(device, self.fabric.qp(device, index));
        }
        self.fabric.log_event(
            &control,
            PortEvent { kind: event::DEVICE_FATAL, port: PortId { device, port: 0 } },
        );
        Ok(())
    }

    fn fail_qp(&self, device: usize, qp: &QpSlot) {
        let state = qp.state.fetch_update(SeqCst, SeqCst, |s| {
            let is_alive = s != qp_state::RESET && s != qp_state::ERR;
            is_alive.then_some(qp_state::ERR)
        });
        if qp.owner.load(SeqCst) == 0 || state.is_err() {
            return;
        }
        // The next poll of its CQs flushes it.
        for (cq, bit) in [(&qp.send_cq, &qp.send_bit), (&qp.recv_cq, &qp.recv_bit)] {
            self.fabric
                .cq(device, cq.load(SeqCst))
                .bell
                .fetch_or(1 << (bit.load(SeqCst) % 64), SeqCst);
        }
    }

    fn set_states(&self, device: usize, state: u32) {
        (1..=self.fabric.topology.ports())
            .for_each(|port| self.fabric.port(device, port).state.store(state, SeqCst));
    }

    /// Whether the device is not in the list: it has failed, and will be back. One whose time has
    /// come is back then.
    pub(crate) fn is_absent(&self, device: usize) -> bool {
        let returns_at = &self.fabric.header().returns_at[device];
        if !matches!(returns_at.load(SeqCst), 0 | NEVER) {
            let control = self.fabric.file.control();
            let at = returns_at.load(SeqCst);
            if at != 0 && at <= now_ns() {
                self.set_states(device, STATE_ACTIVE);
                returns_at.store(0, SeqCst);
                self.fabric.note_change(&control);
            }
        }
        !matches!(returns_at.load(SeqCst), 0 | NEVER)
    }
}

/// What a queue pair was asked to have.
#[derive(Clone, Copy, Debug)]
pub struct Capacities {
    /// Send work requests.
    pub sends: u32,
    /// Receive work requests.
    pub receives: u32,
    /// Elements of memory of a send work request.
    pub send_elements: u32,
    /// Elements of memory of a receive work request.
    pub receive_elements: u32,
    /// Bytes of inline data.
    pub inline: u32,
    /// The operations that it was made for (`ibv_create_qp_ex`): bit n is `ibv_wr_opcode` n.
    pub operations: Option<u32>,
    /// It is in a parent domain with a thread domain: one thread at a time posts to it.
    pub thread_domain: bool,
}

impl Capacities {
    pub(crate) fn of(slot: &QpSlot) -> Self {
        let cap = slot.capacities.get();
        Self {
            sends: cap.max_send_wr,
            receives: cap.max_recv_wr,
            send_elements: cap.max_send_sge,
            receive_elements: cap.max_recv_sge,
            inline: cap.max_inline_data,
            operations: slot.capacities.operations(),
            thread_domain: slot.capacities.has_thread(),
        }
    }
}

/// What a queue pair's owner has posted, and what a card of mlx5 would have to do for it. A request
/// that is posted alone and takes 256 bytes at most is pushed: the driver writes it to the card.
/// The card fetches the others from the queue.
#[derive(Clone, Copy, Debug, Default)]
pub struct Work {
    /// Send work requests.
    pub requests: u64,
    /// Calls that posted some.
    pub doorbells: u64,
    /// Requests with inline data.
    pub inline: u64,
    /// Requests whose data the card reads from memory.
    pub gathered: u64,
    /// These bytes.
    pub gathered_bytes: u64,
    /// Requests that the card fetches.
    pub fetched: u64,
    /// Their bytes.
    pub fetched_bytes: u64,
    /// Bytes of the requests that are pushed.
    pub pushed_bytes: u64,
    /// Messages with immediate data that were acknowledged.
    pub immediates: u64,
    /// Packets of messages that were acknowledged.
    pub packets: u64,
    /// Receive work requests.
    pub receives: u64,
    /// Calls that posted some.
    pub receive_posts: u64,
    /// Calls that posted, and for which mlx5 takes a lock: none in a thread domain, else all.
    pub locks: u64,
}

impl Work {
    pub(crate) fn of(qp: &QpSlot) -> Self {
        let slot = &qp.work;
        let count = |counter: &AtomicU64| counter.load(SeqCst);
        let posts = count(&slot.doorbells) + count(&slot.receive_posts);
        Self {
            requests: count(&slot.requests),
            doorbells: count(&slot.doorbells),
            inline: count(&slot.inline),
            gathered: count(&slot.gathered),
            gathered_bytes: count(&slot.gathered_bytes),
            fetched: count(&slot.fetched),
            fetched_bytes: count(&slot.fetched_bytes),
            pushed_bytes: count(&slot.pushed_bytes),
            immediates: count(&slot.immediates),
            packets: count(&slot.packets),
            receives: count(&slot.receives),
            receive_posts: count(&slot.receive_posts),
            locks: if qp.capacities.has_thread() { 0 } else { posts },
        }
    }
}

/// Commands that a process has had cards carry out. Each takes the time of the card's firmware,
/// while the caller waits.
#[derive(Clone, Copy, Debug, Default)]
pub struct Commands {
    /// `ibv_create_qp`.
    pub create_qp: u32,
    /// `ibv_modify_qp`.
    pub modify_qp: u32,
    /// `ibv_destroy_qp`.
    pub destroy_qp: u32,
    /// `ibv_create_cq`.
    pub create_cq: u32,
    /// `ibv_destroy_cq`.
    pub destroy_cq: u32,
    /// `ibv_reg_mr` and its like.
    pub register_mr: u32,
    /// `ibv_dereg_mr`.
    pub deregister_mr: u32,
    /// `ibv_alloc_pd`.
    pub alloc_pd: u32,
    /// `ibv_alloc_td`: mlx5 has the card allocate a doorbell page for two of them.
    pub alloc_td: u32,
}

impl Commands {
    pub(crate) fn of(slot: &ProcSlot) -> Self {
        let [
            create_qp,
            modify_qp,
            destroy_qp,
            create_cq,
            destroy_cq,
            register_mr,
            deregister_mr,
            alloc_pd,
            alloc_td,
        ] = std::array::from_fn(|kind| {
            let count: &AtomicU32 = &slot.commands[kind];
            count.load(SeqCst)
        });
        Self {
            create_qp,
            modify_qp,
            destroy_qp,
            create_cq,
            destroy_cq,
            register_mr,
            deregister_mr,
            alloc_pd,
            alloc_td,
        }
    }
}

/// A completion queue.
#[derive(Clone, Copy, Debug)]
pub struct Cq {
    /// The process it belongs to.
    pub pid: i32,
    /// Completions that it was asked to have room for.
    pub entries: u32,
    /// Calls of `ibv_poll_cq` and of `ibv_start_poll`.
    pub polls: u64,
    /// Those that found something.
    pub fruitful_polls: u64,
    /// Completions that were taken.
    pub completions: u64,
    /// Polls for which mlx5 takes a lock: all but `ibv_start_poll` on a queue for a single thread.
    pub locks: u64,
    /// It was created for a single thread.
    pub single_threaded: bool,
}

impl Cq {
    pub(crate) fn of(fabric: &Fabric, slot: &CqSlot) -> Self {
        Self {
            pid: fabric.proc(slot_of(slot.owner.load(SeqCst))).pid.load(SeqCst),
            entries: slot.requested.load(SeqCst),
            polls: slot.polls.load(SeqCst),
            fruitful_polls: slot.fruitful_polls.load(SeqCst),
            completions: slot.polled.load(SeqCst),
            locks: slot.locks.load(SeqCst),
            single_threaded: slot.single_threaded.load(SeqCst) != 0,
        }
    }
}
