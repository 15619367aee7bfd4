//! A fabric in use: its ports, devices and addresses, and changing them.

use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use std::{fmt, io};

use crate::abi::types::event;
use crate::control::report;
use crate::control::report::{Device, DeviceName, GidKind, PortName, Report, devices_of};
use crate::network::header::{GidType, TypedGid};
use crate::network::topology::{PortId, STATE_ACTIVE, STATE_DOWN, Topology};
use crate::network::{header, topology};
use crate::process::fabric::{Fabric, PortEvent};
use crate::process::settings::Settings;
use crate::rules;
use crate::rules::GidChange;
use crate::shm::file;
use crate::shm::file::{ControlLock, Remains, SharedFile, Unusable};
use crate::shm::slots::{GIDS, PortSlot};

/// A fabric in use.
#[derive(Clone, Copy, Debug)]
pub struct Network {
    pub(crate) fabric: &'static Fabric,
}

impl Network {
    /// The fabric `name` in the folder `dir`. It stays mapped until the process ends.
    pub fn open(dir: &Path, name: &str) -> Result<Self, Error> {
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
    pub fn names(dir: &Path) -> Result<Vec<String>, Error> {
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
    pub fn names_in_session(dir: &Path) -> Result<Vec<String>, Error> {
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
        report::of(self.fabric)
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
pub fn clean(dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<Found>, Error> {
    each(dir, wanted, true)
}

/// The same without removing anything: what [`clean`] would remove has [`Fate::Dead`].
pub fn remains(dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<Found>, Error> {
    each(dir, wanted, false)
}

fn each(dir: &Path, wanted: impl Fn(&str) -> bool, is_removed: bool) -> Result<Vec<Found>, Error> {
    let entries = std::fs::read_dir(dir).map_err(|error| Error::System(dir.to_owned(), error))?;
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut names: Vec<String> = names.filter(|name| wanted(name)).collect();
    names.sort_unstable();
    Ok(names.into_iter().filter_map(|name| one(dir, name, is_removed)).collect())
}

fn one(dir: &Path, name: String, is_removed: bool) -> Option<Found> {
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

    pub(crate) fn from_file(path: &Path, what: Unusable) -> Self {
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
