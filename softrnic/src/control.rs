//! Control of a fabric from outside: takes ports down and up, changes their addresses and limits,
//! fails devices, and reports. What it changes is at once true for all processes of the fabric;
//! events reach them shortly afterwards.
//!
//! A controlling process takes no process slot in the fabric. It must not use the devices of the
//! same fabric itself: record locks are per process.

use std::net::Ipv6Addr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;
use std::{fmt, io, path};

use crate::abi::names::{qp_state, transport};
use crate::abi::types::{event, qp_state};
use crate::host::now_ns;
use crate::limits::PROCS;
use crate::network::header::{GidType, TypedGid};
use crate::network::topology::{
    LINK_INFINIBAND, LINK_UNSPECIFIED, PortId, STATE_ACTIVE, STATE_DOWN, Topology, mtu_bytes,
    set_up,
};
use crate::network::{header, topology};
use crate::process::fabric::{DIRECT, Fabric, PortEvent, STAGED};
use crate::process::settings::Settings;
use crate::rules;
use crate::rules::GidChange;
use crate::shm::file::{ControlLock, Remains, SharedFile, Table, Unusable, slot_of};
use crate::shm::slots::{ANY_PEER, CqSlot, GIDS, PathSlot, PortSlot, ProcSlot, QpSlot};
use crate::shm::{file, slots};

/// The process that copies GPU memory for another one.
pub mod gpu_helper {
    pub use crate::copy::gpu::helper::{Stage, serve};
}

/// A fabric in use.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    pub(crate) fabric: &'static Fabric,
}

impl Network {
    /// The fabric `name` in the folder `dir`. It stays mapped until the process ends.
    pub fn open(dir: &path::Path, name: &str) -> Result<Self, Error> {
        let path = dir.join(name);
        let file =
            SharedFile::open_existing(&path).map_err(|what| Error::from_file(&path, what))?;
        let fabric = Fabric::observe(file, Settings::of_observer(dir, name));
        fabric.map(|fabric| Self { fabric }).ok_or(Error::OtherVersion(path))
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.fabric.settings.fabric
    }

    /// The fabric that this process takes part in.
    pub(crate) fn of(fabric: &'static Fabric) -> Self {
        Self { fabric }
    }

    /// Names of the fabrics in the folder `dir` that processes use and that this user may control.
    pub fn names(dir: &path::Path) -> Result<Vec<String>, Error> {
        let entries =
            std::fs::read_dir(dir).map_err(|error| Error::System(dir.to_owned(), error))?;
        let paths: Vec<PathBuf> = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|p| SharedFile::is_used(p))
            .collect();
        let mut names: Vec<String> =
            paths.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Those of [`Self::names`] that are this user's and have a process in the session of this one:
    /// as a rule what was started from the same terminal. None if the session is one of another
    /// process id namespace. This process must not take part in one of them.
    pub fn names_in_session(dir: &path::Path) -> Result<Vec<String>, Error> {
        // SAFETY: no preconditions.
        let session_of = |pid: i32| unsafe { libc::getsid(pid) };
        let session = session_of(0);
        let is_ours = |pid: &i32| session > 0 && session_of(*pid) == session;
        let mut names = Self::names(dir)?;
        names.retain(|name| file::pids(&dir.join(name)).is_ok_and(|pids| pids.iter().any(is_ours)));
        Ok(names)
    }

    /// Takes a port down or up. Down, nothing gets through it; queue pairs notice when their
    /// retries run out.
    pub fn set_port_state(&self, name: PortName, is_active: bool) -> Result<(), Error> {
        let (state, kind) = if is_active {
            (STATE_ACTIVE, event::PORT_ACTIVE)
        } else {
            (STATE_DOWN, event::PORT_ERR)
        };
        self.change(name, |slot, control| {
            if is_active && self.fabric.is_failed(name.device) {
                return Err(Error::Failed(DeviceName(name.device)));
            }
            if slot.state.swap(state, SeqCst) != state {
                self.announce(control, kind, name);
            }
            Ok(())
        })
    }

    /// Whether all of this could be set at a port; nothing is changed.
    pub fn check_port(
        &self,
        name: PortName,
        mtu: Option<u32>,
        gbps: Option<u32>,
        lid: Option<u16>,
    ) -> Result<(), Error> {
        mtu.map_or(Ok(0), mtu_code)?;
        gbps.map_or(Ok(0), speed_code)?;
        self.change(name, |slot, _| lid.map_or(Ok(()), |lid| self.require_lid(slot, lid)))
    }

    /// Sets the MTU in bytes. Larger packets vanish from then on.
    pub fn set_mtu(&self, name: PortName, bytes: u32) -> Result<(), Error> {
        let code = mtu_code(bytes)?;
        self.change(name, |slot, control| {
            slot.mtu.store(code, SeqCst);
            self.fabric.note_change(control);
            Ok(())
        })
    }

    /// Sets the speed, in Gb/s, that the port's attributes report.
    pub fn set_speed(&self, name: PortName, gbps: u32) -> Result<(), Error> {
        let speed = speed_code(gbps)?;
        self.change(name, |slot, _| {
            slot.speed.store(speed, SeqCst);
            Ok(())
        })
    }

    /// Sets the latency of the modelled wire at this port.
    pub fn set_latency(&self, name: PortName, latency: Duration) -> Result<(), Error> {
        self.change(name, |slot, _| {
            slot.latency_ns.store(latency.as_nanos() as u64, SeqCst);
            Ok(())
        })
    }

    /// Sets the bandwidth of the modelled wire at this port, in bytes per second; `None` is as fast
    /// as it goes.
    pub fn set_bandwidth(
        &self,
        name: PortName,
        bytes_per_second: Option<u64>,
    ) -> Result<(), Error> {
        self.change(name, |slot, _| {
            let per_ms = bytes_per_second.map_or(0, |bytes| (bytes / 1000).max(1));
            slot.bytes_per_ms.store(per_ms, SeqCst);
            Ok(())
        })
    }

    /// The kind that entries of a port mostly have.
    pub fn gid_kind(&self, name: PortName) -> Result<GidKind, Error> {
        self.change(name, |slot, _| {
            Ok(if slot.is_infiniband() { GidKind::InfiniBand } else { GidKind::RoceV2 })
        })
    }

    /// Puts a GID into an entry of the port's table, in place of what was there.
    pub fn set_gid(
        &self,
        name: PortName,
        index: usize,
        gid: Ipv6Addr,
        kind: GidKind,
    ) -> Result<(), Error> {
        self.change(name, |slot, control| {
            let entry = slot
                .gids
                .get(index)
                .filter(|_| index < GIDS)
                .ok_or_else(|| Error::value("the index", index, "0 to 15"))?;
            if slot.is_infiniband() != (kind == GidKind::InfiniBand) {
                return Err(Error::GidKind(name));
            }
            let kind = if kind == GidKind::RoceV2 { GidType::RoceV2 } else { GidType::Plain };
            entry.set(&TypedGid { gid: gid.octets(), kind });
            self.announce(control, event::GID_CHANGE, name);
            Ok(())
        })
    }

    /// Empties an entry of the port's GID table. Packets from and to it vanish.
    pub fn remove_gid(&self, name: PortName, index: usize) -> Result<(), Error> {
        self.change(name, |slot, control| {
            slot.gids
                .get(index)
                .ok_or_else(|| Error::value("the index", index, "0 to 15"))?
                .clear();
            self.announce(control, event::GID_CHANGE, name);
            Ok(())
        })
    }

    /// Gives an InfiniBand port another LID.
    pub fn set_lid(&self, name: PortName, lid: u16) -> Result<(), Error> {
        self.change(name, |slot, control| {
            self.require_lid(slot, lid)?;
            slot.lid.store(u32::from(lid), SeqCst);
            self.announce(control, event::LID_CHANGE, name);
            Ok(())
        })
    }

    fn require_lid(&self, slot: &PortSlot, lid: u16) -> Result<(), Error> {
        let topology = &self.fabric.topology;
        let mut ports =
            (0..topology.devices()).flat_map(|d| (1..=topology.ports()).map(move |p| (d, p)));
        let is_taken =
            ports.any(|(d, p)| self.fabric.port(d, p).lid.load(SeqCst) == u32::from(lid));
        if !slot.is_infiniband() || is_taken || !(1..0xc000).contains(&lid) {
            return Err(Error::value(
                "the LID",
                lid,
                "1 to 49151, unused so far, and of an InfiniBand port",
            ));
        }
        Ok(())
    }

    /// Everything there is to see.
    pub fn report(&self) -> Report {
        let _control = self.fabric.file.control();
        report_of(self.fabric)
    }

    pub(crate) fn change<R>(
        &self,
        name: PortName,
        work: impl FnOnce(&PortSlot, &ControlLock<'_>) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let topology = &self.fabric.topology;
        if name.device >= topology.devices() || !(1..=topology.ports()).contains(&name.port) {
            return Err(Error::NoPort(name, topology.devices(), topology.ports()));
        }
        let control = self.fabric.file.control();
        work(self.fabric.port(name.device, name.port), &control)
    }

    /// Has every route checked anew, and tells of the event.
    pub(crate) fn announce(&self, control: &ControlLock<'_>, kind: u32, name: PortName) {
        self.fabric.note_change(control);
        self.fabric.log_event(
            control,
            PortEvent { kind, port: PortId { device: name.device, port: name.port } },
        );
    }
}

fn mtu_code(bytes: u32) -> Result<u32, Error> {
    topology::mtu_code(bytes)
        .ok_or_else(|| Error::value("the MTU", bytes, "256, 512, 1024, 2048 or 4096"))
}

/// In units of 100 Mb/s.
fn speed_code(gbps: u32) -> Result<u32, Error> {
    let speed = gbps.saturating_mul(10);
    let allowed = "5, 10, 20, 25, 40, 50, 56, 100, 200, 400 or 800";
    topology::signalling(speed)
        .map(|_| speed)
        .ok_or_else(|| Error::value("the speed", gbps, allowed))
}

/// An entry that was taken out of a GID table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TakenGid {
    index: usize,
    entry: TypedGid,
}

impl Network {
    /// Takes all GIDs out of the port's table that are no link-local ones; a `GID_CHANGE` each.
    pub(crate) fn take_gids(&self, name: PortName) -> Vec<TakenGid> {
        let taken = self.change(name, |slot, control| {
            let entries = (0..slot.gids.len())
                .filter_map(|index| Some(TakenGid { index, entry: slot.gid(index)? }));
            let taken: Vec<_> =
                entries.filter(|one| !header::is_link_local(&one.entry.gid)).collect();
            for one in &taken {
                slot.gids[one.index].clear();
                self.announce(control, event::GID_CHANGE, name);
            }
            Ok(taken)
        });
        taken.unwrap_or_default()
    }

    /// Puts them back, or what is there in their place by `change`; a `GID_CHANGE` each.
    pub(crate) fn return_gids(&self, name: PortName, taken: &[TakenGid], change: GidChange) {
        let _ = self.change(name, |slot, control| {
            for one in taken {
                let (index, entry) = replacement(slot, taken, *one, change);
                slot.gids[index].set(&entry);
                self.announce(control, event::GID_CHANGE, name);
            }
            Ok(())
        });
    }
}

/// The entry that stands for `one`, and its index. A table that has no other empty entry keeps the
/// old one.
fn replacement(
    slot: &PortSlot,
    taken: &[TakenGid],
    one: TakenGid,
    change: GidChange,
) -> (usize, TypedGid) {
    match change {
        GidChange::Same => (one.index, one.entry),
        GidChange::Other => {
            (one.index, TypedGid { gid: header::renumbered(one.entry.gid), ..one.entry })
        }
        GidChange::Moved => {
            let is_new = |index: &usize| {
                slot.gid(*index).is_none() && taken.iter().all(|old| old.index != *index)
            };
            (1..slot.gids.len())
                .find(is_new)
                .map_or((one.index, one.entry), |index| (index, one.entry))
        }
    }
}

/// A rule in force.
#[derive(Clone, Debug)]
pub struct InForce {
    /// By which it can be removed.
    pub number: u32,
    /// As text, which [`Network::inject`] understands.
    pub rule: String,
    /// How often it has been applied. A rule for calls: how often it was asked.
    pub hits: u64,
}

impl Network {
    /// Puts rules into force, behind those that are; returns their numbers. `text`:
    /// `ACTION[=VALUE] [key=value …]`, rules separated by `;` or line ends.
    pub fn inject(&self, text: &str) -> Result<Vec<u32>, Error> {
        let rules = rules::parse(text).map_err(Error::Rule)?;
        rules::require(&self.fabric.topology, &rules).map_err(Error::Rule)?;
        let control = self.fabric.file.control();
        rules::install(self.fabric, &control, &rules).map_err(Error::Rule)
    }

    /// The rules in force, in their order.
    pub fn rules(&self) -> Vec<InForce> {
        let rules = rules::list_rules(self.fabric).into_iter();
        rules.map(|(number, rule, hits)| InForce { number, rule: rule.to_string(), hits }).collect()
    }

    /// Removes rule `number`.
    pub fn remove_rule(&self, number: u32) -> Result<(), Error> {
        let control = self.fabric.file.control();
        if rules::remove(self.fabric, &control, number) {
            Ok(())
        } else {
            Err(Error::NoRule(number))
        }
    }

    /// Removes all rules.
    pub fn clear_rules(&self) {
        let control = self.fabric.file.control();
        rules::clear(self.fabric, &control);
    }

    /// Sets the seed of all random decisions from now on.
    pub fn set_seed(&self, seed: u64) {
        self.fabric.header().seed.store(seed, SeqCst);
    }
}

/// The number by which the maker of the cards that this environment asks for names them.
pub fn planned_part() -> Result<u32, String> {
    Ok(Settings::from_env()?.driver.vendor_part_id)
}

/// The devices that a fabric will have whose first process starts with this environment. The error
/// is a sentence.
pub fn planned() -> Result<Vec<Device>, String> {
    let settings = Settings::from_env()?;
    let topology = Topology::decide(&settings.requested)?;
    settings.faults.map_or(Ok(Vec::new()), |rules| rules::parse_environment(&topology, &rules))?;
    Ok(devices_of(&topology))
}

impl FromStr for PortName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let (device, port) = topology::parse_name(name)
            .ok_or_else(|| Error::Name(name.to_owned(), "softrnic0/1"))?;
        Ok(Self { device, port })
    }
}

impl FromStr for DeviceName {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        topology::parse_device(name)
            .map(Self)
            .ok_or_else(|| Error::Name(name.to_owned(), "softrnic0"))
    }
}

/// The file of a fabric.
#[derive(Debug)]
pub struct Found {
    /// Name of the fabric.
    pub name: String,
    /// What became of it.
    pub fate: Fate,
}

/// What [`clean`] did with a fabric.
#[derive(Debug)]
pub enum Fate {
    /// It has no process, and [`remains`] leaves it there; how many bytes of storage it has.
    Dead(u64),
    /// It had no process, and is gone; how many bytes of storage it had.
    Removed(u64),
    /// Some process takes part in it. It is as it was.
    InUse,
    /// It could not be looked at or removed.
    Failed(io::Error),
}

/// Removes the fabrics in the folder `dir` that are this user's, whose names are `wanted` and in
/// which no process takes part, whatever its process id namespace. Returns all that there were, by
/// name. This process must not take part in one of them.
pub fn clean(dir: &path::Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<Found>, Error> {
    each(dir, wanted, true)
}

/// The same without removing anything: what [`clean`] would remove has [`Fate::Dead`].
pub fn remains(dir: &path::Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<Found>, Error> {
    each(dir, wanted, false)
}

fn each(
    dir: &path::Path,
    wanted: impl Fn(&str) -> bool,
    is_removed: bool,
) -> Result<Vec<Found>, Error> {
    let entries = std::fs::read_dir(dir).map_err(|error| Error::System(dir.to_owned(), error))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| wanted(name)).collect();
    names.sort_unstable();
    Ok(names.into_iter().filter_map(|name| one(dir, name, is_removed)).collect())
}

fn one(dir: &path::Path, name: String, is_removed: bool) -> Option<Found> {
    let fate = match file::look(&dir.join(&name), is_removed) {
        Ok(Remains::NotOurs) => return None,
        Ok(Remains::Held) => Fate::InUse,
        Ok(Remains::Dead(bytes)) => Fate::Dead(bytes),
        Ok(Remains::Removed(bytes)) => Fate::Removed(bytes),
        Err(error) => Fate::Failed(error),
    };
    Some(Found { name, fate })
}

/// Why nothing was changed.
#[derive(Debug)]
pub enum Error {
    /// No process uses a fabric of that name.
    NoFabric(PathBuf),
    /// Those who use it have another version of softrnic, or the file is something else.
    OtherVersion(PathBuf),
    /// The operating system says no.
    System(PathBuf, io::Error),
    /// Not the name of a port or device; an example.
    Name(String, &'static str),
    /// The fabric has no such port; devices, and ports of each.
    NoPort(PortName, usize, u32),
    /// The fabric has no such device; how many it has.
    NoDevice(DeviceName, usize),
    /// The device has failed, and is not back.
    Failed(DeviceName),
    /// RoCE entries are of version 1 or 2, InfiniBand entries of neither.
    GidKind(PortName),
    /// Rules that are not well-formed or do not fit: a sentence.
    Rule(String),
    /// There is no rule of that number.
    NoRule(u32),
    /// What, its value, and what is allowed.
    Value(&'static str, String, &'static str),
}

impl std::error::Error for Error {}

impl Error {
    pub(crate) fn value(
        what: &'static str,
        value: impl fmt::Display,
        allowed: &'static str,
    ) -> Self {
        Self::Value(what, value.to_string(), allowed)
    }

    pub(crate) fn from_file(path: &path::Path, what: Unusable) -> Self {
        let path = path.to_owned();
        match what {
            Unusable::Unused => Self::NoFabric(path),
            Unusable::OtherLayout => Self::OtherVersion(path),
            Unusable::System(code) => Self::System(path, io::Error::from_raw_os_error(code)),
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFabric(path) => write!(f, "no process uses a fabric {}", path.display()),
            Self::OtherVersion(path) => {
                write!(
                    f,
                    "{} is in use by another version of softrnic (or is no fabric at all)",
                    path.display()
                )
            }
            Self::System(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Name(name, example) => write!(f, "{name:?}: must be a name such as {example}"),
            Self::NoPort(name, devices, ports) => {
                write!(f, "there is no {name} among {devices} device(s) with {ports} port(s) each")
            }
            Self::Rule(what) => f.write_str(what),
            Self::NoRule(number) => write!(f, "no rule in force has the number {number}"),
            Self::NoDevice(name, devices) => {
                write!(f, "there is no {name} among {devices} device(s)")
            }
            Self::Failed(name) => write!(f, "{name} has failed"),
            Self::GidKind(name) => {
                write!(
                    f,
                    "{name}: entries of a RoCE port are v1 or v2, those of an InfiniBand port neither"
                )
            }
            Self::Value(what, value, allowed) => {
                write!(f, "{what} must be {allowed}; {value} is not")
            }
        }
    }
}

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
fn report_of(fabric: &Fabric) -> Report {
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
fn devices_of(topology: &Topology) -> Vec<Device> {
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
