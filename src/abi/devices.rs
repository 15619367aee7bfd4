//! The devices that one table shows, by number.
//!
//! Version 8 shows devices that the plugin has merged. Later versions show each port, and after them what NCCL has had merged
//! (`makeVDevice`). Two copies of NCCL may be in a process: if they take different tables, neither sees what the other one has merged.

use crate::error::{Error, Result};
use crate::net::device::nic::Nic;
use std::ffi::{CString, c_int};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Devices of a table that NCCL has had merged, at most.
const MAX_MERGED: usize = 64;

/// What an NCCL expects of `makeVDevice`, by the version of its table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Merging {
    /// NCCL 2.24 and 2.25: as [`Self::OfOneAsWell`]; and a refusal ends, or crashes, their `init` of a communicator (`ncclTopoAutoMerge` in
    /// graph/topo.cc). So each port becomes a device of its own where they cannot be one.
    NeverRefused,
    /// NCCL 2.26: as soon as there is one new device, only new ones are used, so each port that is not merged is asked for as a new device
    /// as well.
    OfOneAsWell,
    /// NCCL 2.27 and later: it is called for several ports, and may refuse.
    OfSeveral,
}

impl Merging {
    /// Of the NCCLs that take the table of `version`. Those that take version 10 are 2.26 and 2.27.
    pub(super) fn of_version(version: u32) -> Self {
        match version {
            ..=9 => Self::NeverRefused,
            10 => Self::OfOneAsWell,
            _ => Self::OfSeveral,
        }
    }
}

/// A device with its strings, to which NCCL keeps pointers.
#[derive(Debug)]
pub(super) struct Device {
    /// The device.
    pub(super) nic: Arc<Nic>,
    /// Its name.
    pub(super) name: CString,
    /// The path of its PCI function, if it has one.
    pub(super) pci_path: Option<CString>,
    /// The numbers of the devices that it has been merged of; of a port, its number.
    pub(super) members: Vec<c_int>,
}

/// The devices of one table.
#[derive(Debug)]
pub(super) struct Devices {
    /// How many there are without merged ones.
    first: usize,
    /// Whether NCCL merges devices as it likes, because the user has asked for that.
    any: bool,
    merging: Merging,
    listed: Mutex<Listed>,
    /// Whether NCCL has just loaded the plugin, so that it has forgotten the merged devices.
    reloaded: AtomicBool,
}

#[derive(Debug)]
struct Listed {
    /// By number.
    devices: Vec<Arc<Device>>,
    /// All that have ever been merged: NCCL may still have their names.
    merged: Vec<Arc<Device>>,
}

impl Devices {
    /// A table that shows `nics`. `any`: NCCL may merge also what the plugin would not.
    ///
    /// # Errors
    /// A name has a NUL in it.
    pub(super) fn new(nics: &[Arc<Nic>], any: bool, merging: Merging) -> Result<Self> {
        let own = |(number, nic): (usize, &Arc<Nic>)| Device::new(Arc::clone(nic), vec![number as c_int]).map(Arc::new);
        let devices = nics.iter().enumerate().map(own).collect::<Result<Vec<_>>>()?;
        let listed = Mutex::new(Listed { devices, merged: Vec::new() });
        Ok(Self { first: nics.len(), any, merging, listed, reloaded: AtomicBool::new(false) })
    }

    fn lock(&self) -> MutexGuard<'_, Listed> {
        self.listed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Their number.
    pub(super) fn count(&self) -> usize {
        let mut listed = self.lock();
        if self.reloaded.swap(false, Ordering::Relaxed) {
            listed.devices.truncate(self.first);
        }
        listed.devices.len()
    }

    /// NCCL begins with its first communicator, or with the first after the last one has ended. If it has loaded the plugin anew,
    /// it asks at once for the number of devices, and takes all of them for ports. Else it asks for something else before.
    pub(super) fn handle_first_communicator(&self) {
        self.reloaded.store(true, Ordering::Relaxed);
    }

    /// Device number `dev`.
    ///
    /// # Errors
    /// There is none.
    pub(super) fn get(&self, dev: c_int) -> Result<Arc<Device>> {
        self.reloaded.store(false, Ordering::Relaxed);
        self.lock().get(dev).map(Arc::clone)
    }

    /// The number of the device that consists of `members`. It is made unless there is one. Where they cannot be one device, and NCCL does not
    /// bear that, each becomes a device of its own: the number is that of the first.
    ///
    /// # Errors
    /// They cannot be one device, or there are too many devices.
    pub(super) fn merge(&self, members: &[c_int]) -> Result<c_int> {
        self.reloaded.store(false, Ordering::Relaxed);
        let mut listed = self.lock();
        let number = |place: usize| c_int::try_from(place).map_err(|_| Error::internal("too many devices"));
        // Where a port is asked for as a new device, that is not the port.
        let begin = if self.merging == Merging::OfSeveral { 0 } else { self.first };
        if let Some(place) = listed.devices.iter().skip(begin).position(|device| device.members == members) {
            return number(begin + place);
        }
        let made = match listed.made(members, self) {
            Err(e) if self.merging == Merging::NeverRefused && members.len() > 1 => {
                let of_one = |member: &c_int| listed.made(std::slice::from_ref(member), self);
                let devices = members.iter().map(of_one).collect::<Result<Vec<_>>>()?;
                log::info!("NCCL gets {} devices: {e}", devices.len());
                devices
            }
            made => vec![made?],
        };
        if listed.devices.len() + made.len() > self.first + MAX_MERGED {
            return Err(Error::usage(format!("there are {MAX_MERGED} merged devices at most")));
        }
        let first = listed.devices.len();
        listed.devices.extend(made);
        number(first)
    }
}

impl Listed {
    fn get(&self, dev: c_int) -> Result<&Arc<Device>> {
        let found = usize::try_from(dev).ok().and_then(|i| self.devices.get(i));
        found.ok_or_else(|| Error::argument(format!("device {dev}: there are {}", self.devices.len())))
    }

    /// The device of `members`, also one that NCCL has forgotten.
    fn made(&mut self, members: &[c_int], of: &Devices) -> Result<Arc<Device>> {
        if let Some(known) = self.merged.iter().find(|device| device.members == members) {
            return Ok(Arc::clone(known));
        }
        let port = |dev: &c_int| match self.get(*dev)? {
            device if device.members.as_slice() == [*dev] => Ok(Arc::clone(&device.nic)),
            _ => Err(Error::usage(format!("device {dev} is a merged one, which cannot be merged again"))),
        };
        let ports = members.iter().map(port).collect::<Result<Vec<_>>>()?;
        let nic = match ports.as_slice() {
            [port] => Arc::clone(port),
            _ => Arc::new(Nic::merge(&ports, of.any)?),
        };
        let device = Arc::new(Device::new(nic, members.to_vec())?);
        if ports.len() > 1 {
            log::info!("{} are one device to NCCL: {}", ports.len(), device.nic.name);
        }
        self.merged.push(Arc::clone(&device));
        Ok(device)
    }
}

impl Device {
    fn new(nic: Arc<Nic>, members: Vec<c_int>) -> Result<Self> {
        let string = |text: &str| CString::new(text).map_err(|_| Error::internal(format!("{text:?} has a NUL")));
        let (name, pci_path) = (string(&nic.name)?, nic.first().card.pci_path().map(string).transpose()?);
        Ok(Self { nic, name, pci_path, members })
    }
}
