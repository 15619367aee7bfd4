//! A fabric in use: its ports, devices and addresses, and changing them.

use std::net::Ipv6Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use crate::abi::consts::event;
use crate::control::error::Error;
use crate::control::names::{DeviceName, GidKind, PortName};
use crate::control::report::{self, Report};
use crate::network::gid::{GidType, TypedGid};
use crate::network::link::{self, STATE_ACTIVE, STATE_DOWN};
use crate::network::port_id::PortId;
use crate::process::event_log::PortEvent;
use crate::process::fabric::Fabric;
use crate::process::settings::Settings;
use crate::shm::file::{ControlLock, SharedFile};
use crate::shm::holders;
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
        let file = SharedFile::open_existing(&path).map_err(|what| Error::from_file(&path, what))?;
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
        let entries = std::fs::read_dir(dir).map_err(|error| Error::System(dir.to_owned(), error))?;
        let paths: Vec<PathBuf> =
            entries.flatten().map(|entry| entry.path()).filter(|p| SharedFile::is_used(p)).collect();
        let mut names: Vec<String> =
            paths.iter().filter_map(|path| Some(path.file_name()?.to_str()?.to_owned())).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Those of [`Self::names`] that are this user's and have a process in the session of this one: as a rule what was
    /// started from the same terminal. None if the session is one of another process id namespace. This process must not
    /// take part in one of them.
    pub fn names_in_session(dir: &Path) -> Result<Vec<String>, Error> {
        // SAFETY: no preconditions.
        let session_of = |pid: i32| unsafe { libc::getsid(pid) };
        let session = session_of(0);
        let is_ours = |pid: &i32| session > 0 && session_of(*pid) == session;
        let mut names = Self::names(dir)?;
        names.retain(|name| holders::pids(&dir.join(name)).is_ok_and(|pids| pids.iter().any(is_ours)));
        Ok(names)
    }

    /// Takes a port down or up. Down, nothing gets through it; queue pairs notice when their retries run out.
    pub fn set_port_state(&self, name: PortName, is_active: bool) -> Result<(), Error> {
        let (state, kind) = if is_active { (STATE_ACTIVE, event::PORT_ACTIVE) } else { (STATE_DOWN, event::PORT_ERR) };
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

    /// Sets the bandwidth of the modelled wire at this port, in bytes per second; `None` is as fast as it goes.
    pub fn set_bandwidth(&self, name: PortName, bytes_per_second: Option<u64>) -> Result<(), Error> {
        self.change(name, |slot, _| {
            let per_ms = bytes_per_second.map_or(0, |bytes| (bytes / 1000).max(1));
            slot.bytes_per_ms.store(per_ms, SeqCst);
            Ok(())
        })
    }

    /// The kind that entries of a port mostly have.
    pub fn gid_kind(&self, name: PortName) -> Result<GidKind, Error> {
        self.change(name, |slot, _| Ok(if slot.is_infiniband() { GidKind::InfiniBand } else { GidKind::RoceV2 }))
    }

    /// Puts a GID into an entry of the port's table, in place of what was there.
    pub fn set_gid(&self, name: PortName, index: usize, gid: Ipv6Addr, kind: GidKind) -> Result<(), Error> {
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
            slot.gids.get(index).ok_or_else(|| Error::value("the index", index, "0 to 15"))?.clear();
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
        let mut ports = (0..topology.devices()).flat_map(|d| (1..=topology.ports()).map(move |p| (d, p)));
        let is_taken = ports.any(|(d, p)| self.fabric.port(d, p).lid.load(SeqCst) == u32::from(lid));
        if !slot.is_infiniband() || is_taken || !(1..0xc000).contains(&lid) {
            return Err(Error::value("the LID", lid, "1 to 49151, unused so far, and of an InfiniBand port"));
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
        self.fabric.log_event(control, PortEvent { kind, port: PortId { device: name.device, port: name.port } });
    }
}

fn mtu_code(bytes: u32) -> Result<u32, Error> {
    link::mtu_code(bytes).ok_or_else(|| Error::value("the MTU", bytes, "256, 512, 1024, 2048 or 4096"))
}

/// In units of 100 Mb/s.
fn speed_code(gbps: u32) -> Result<u32, Error> {
    let speed = gbps.saturating_mul(10);
    let allowed = "5, 10, 20, 25, 40, 50, 56, 100, 200, 400 or 800";
    link::signalling(speed).map(|_| speed).ok_or_else(|| Error::value("the speed", gbps, allowed))
}
