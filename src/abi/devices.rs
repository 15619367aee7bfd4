//! The devices of one table, by number.
//!
//! Version 8 shows devices that the plugin has merged. Later versions show each port, and then the
//! devices that NCCL has merged (`makeVDevice`). If two copies of NCCL in a process use different
//! tables, neither sees the other's merged devices.
//!
//! When NCCL loads the plugin, it asks for the number of devices right after `init`, and takes all
//! of them for ports. NCCL 2.28.3 does that for each communicator. So the answer then counts ports
//! only. Once NCCL has merged some, it asks again, and the answer counts all devices.

use crate::error::{Error, Result};
use crate::net::device::nic::Nic;
use std::cell::Cell;
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most devices of a table that NCCL has merged.
const MAX_MERGED: usize = 64;

/// The last interface version whose NCCLs get a new device for each unmerged port. NCCL 2.24 to
/// 2.26 use only new devices as soon as there is one, and also ask for devices of a single port.
/// They do not survive a refusal: 2.24 and 2.25 abandon the communicator, and 2.26 may forget a
/// port (`ncclTopoAutoMerge` and `ncclTopoProcessNet` in graph/topo.cc). So ports that cannot be
/// one device become one device each. NCCL 2.27, which also uses version 10, copes with both.
const LAST_WITH_SINGLES: u32 = 10;

/// A device with its strings; NCCL keeps pointers to these.
#[derive(Debug)]
pub(super) struct Device {
    /// The device.
    pub(super) nic: Arc<Nic>,
    /// Its name to NCCL: that of the network, with `mlx5_0/2` instead of `mlx5_0:2`. In
    /// `NCCL_NET_FORCE_MERGE` a colon ends the name. No name in sysfs has a slash, so names differ.
    pub(super) name: CString,
    /// The path of its PCI function, if it has one.
    pub(super) pci_path: Option<CString>,
    /// The numbers of the ports that it consists of; its own number for a port.
    pub(super) members: Vec<c_int>,
}

/// The devices of one table.
#[derive(Debug)]
pub(super) struct Devices {
    /// The number of unmerged devices.
    first: usize,
    /// Whether NCCL may merge any devices, because the user has asked for that.
    any: bool,
    /// Whether an unmerged port needs a new device, see [`LAST_WITH_SINGLES`].
    with_singles: bool,
    listed: Mutex<Listed>,
    /// Whether NCCL has just loaded the plugin, and so has forgotten the merged devices.
    reloaded: AtomicBool,
}

thread_local! {
    /// Whether `init` was the last device-related call on this thread.
    static BEGINS: Cell<bool> = const { Cell::new(false) };
}

#[derive(Debug)]
struct Listed {
    /// By number.
    devices: Vec<Arc<Device>>,
    /// How many of them NCCL knows. It has forgotten the others, but older communicators may still
    /// use them.
    known: usize,
    /// All devices that were ever merged: NCCL may still hold their names.
    merged: Vec<Arc<Device>>,
}

impl Devices {
    /// The table of `version`, which shows `nics`. With `any`, NCCL may also merge ports that the
    /// plugin would not.
    ///
    /// # Errors
    /// A name contains a NUL.
    pub(super) fn new(version: u32, nics: &[Arc<Nic>], any: bool) -> Result<Self> {
        let own = |(number, nic): (usize, &Arc<Nic>)| {
            Device::new(Arc::clone(nic), vec![number as c_int]).map(Arc::new)
        };
        let devices = nics.iter().enumerate().map(own).collect::<Result<Vec<_>>>()?;
        let listed = Mutex::new(Listed { devices, known: nics.len(), merged: Vec::new() });
        let with_singles = version <= LAST_WITH_SINGLES;
        Ok(Self { first: nics.len(), any, with_singles, listed, reloaded: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of devices.
    pub(super) fn count(&self) -> usize {
        let mut listed = self.lock();
        let is_for_ports = BEGINS.take();
        if self.reloaded.swap(false, Ordering::Relaxed) {
            listed.known = self.first;
        }
        if is_for_ports { self.first } else { listed.known }
    }

    /// NCCL begins a communicator. `is_first`: no other one exists. If NCCL has reloaded the
    /// plugin, it asks for the number of devices next; otherwise it calls something else first.
    pub(super) fn handle_communicator(&self, is_first: bool) {
        BEGINS.set(true);
        if is_first {
            self.reloaded.store(true, Ordering::Relaxed);
        }
    }

    /// NCCL calls something other than the number of devices.
    fn handle_use(&self) {
        BEGINS.set(false);
        self.reloaded.store(false, Ordering::Relaxed);
    }

    /// Device number `dev`.
    ///
    /// # Errors
    /// There is no such device.
    pub(super) fn get(&self, dev: c_int) -> Result<Arc<Device>> {
        self.handle_use();
        self.lock().get(dev).map(Arc::clone)
    }

    /// The number of the device that consists of `members`, which is created if missing. With
    /// [`LAST_WITH_SINGLES`], members that cannot be one device become one each; the number is that
    /// of the first.
    ///
    /// # Errors
    /// They cannot be one device, or there are too many devices.
    pub(super) fn merge(&self, members: &[c_int]) -> Result<c_int> {
        self.handle_use();
        let mut listed = self.lock();
        let ports = members.iter().map(|dev| listed.port_of(*dev)).collect::<Result<Vec<_>>>()?;
        let made = match (listed.find_or_make(&ports, self), ports.as_slice()) {
            (Err(e), [first, others @ ..]) if self.with_singles && !others.is_empty() => {
                let level = if self.any { log::Level::Warn } else { log::Level::Info };
                log::log!(level, "NCCL uses one device per port: {e}");
                let made = listed.find_or_make(&[*first], self)?;
                others.iter().try_for_each(|port| listed.find_or_make(&[*port], self).map(drop))?;
                made
            }
            (made, _) => made?,
        };
        c_int::try_from(made).map_err(|_| Error::internal("too many devices"))
    }
}

impl Listed {
    fn get(&self, dev: c_int) -> Result<&Arc<Device>> {
        let found = usize::try_from(dev).ok().and_then(|i| self.devices.get(i));
        found.ok_or_else(|| {
            Error::argument(format!("device {dev}: there are {}", self.devices.len()))
        })
    }

    /// The number of the port that device `dev` is.
    ///
    /// # Errors
    /// There is no such device, or it has several ports.
    fn port_of(&self, dev: c_int) -> Result<c_int> {
        match self.get(dev)?.members.as_slice() {
            [port] => Ok(*port),
            _ => Err(Error::usage(format!(
                "device {dev} is merged already and cannot be merged again"
            ))),
        }
    }

    /// The position of the device of `ports`, which is created if missing. A single port may need a
    /// new device.
    fn find_or_make(&mut self, ports: &[c_int], of: &Devices) -> Result<usize> {
        let begin = if of.with_singles { of.first } else { 0 };
        if let Some(place) =
            self.devices[begin..self.known].iter().position(|device| device.members == ports)
        {
            return Ok(begin + place);
        }
        if self.known >= of.first + MAX_MERGED {
            return match ports {
                [port] => Ok(*port as usize),
                _ => Err(Error::usage(format!(
                    "there are {MAX_MERGED} merged devices already, the maximum"
                ))),
            };
        }
        let device = self.made(ports, of)?;
        match self.devices.get_mut(self.known) {
            Some(forgotten) => *forgotten = device,
            None => self.devices.push(device),
        }
        self.known += 1;
        Ok(self.known - 1)
    }

    /// The device of `ports`, even if NCCL has forgotten it.
    fn made(&mut self, ports: &[c_int], of: &Devices) -> Result<Arc<Device>> {
        if let Some(known) = self.merged.iter().find(|device| device.members == ports) {
            return Ok(Arc::clone(known));
        }
        let nics = ports
            .iter()
            .map(|port| Ok(Arc::clone(&self.get(*port)?.nic)))
            .collect::<Result<Vec<_>>>()?;
        let device = match nics.as_slice() {
            [nic] => Device::new(Arc::clone(nic), ports.to_vec())?,
            _ => Device::new(Arc::new(Nic::merge(&nics, of.any)?), ports.to_vec())?,
        };
        if nics.len() > 1 {
            log::info!("{} are one device to NCCL: {}", nics.len(), device.nic.name);
        }
        let device = Arc::new(device);
        self.merged.push(Arc::clone(&device));
        Ok(device)
    }
}

impl Device {
    fn new(nic: Arc<Nic>, members: Vec<c_int>) -> Result<Self> {
        let string = |text: &str| {
            CString::new(text).map_err(|_| Error::internal(format!("{text:?} has a NUL")))
        };
        let (name, pci_path) = (
            string(&nic.name.replace(':', "/"))?,
            nic.first().card.pci_path().map(string).transpose()?,
        );
        Ok(Self { nic, name, pci_path, members })
    }
}
