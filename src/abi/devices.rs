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

/// A device with its strings, to which NCCL keeps pointers.
#[derive(Debug)]
pub(super) struct Device {
    /// The device.
    pub(super) nic: Arc<Nic>,
    /// Its name.
    pub(super) name: CString,
    /// The path of its PCI function, if it has one.
    pub(super) pci_path: Option<CString>,
    /// The numbers of the devices that it has been merged of; its own if it has not been merged.
    pub(super) members: Vec<c_int>,
}

/// The devices of one table.
#[derive(Debug)]
pub(super) struct Devices {
    /// How many there are without merged ones.
    first: usize,
    /// Whether NCCL merges devices as it likes, because the user has asked for that.
    any: bool,
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
    pub(super) fn new(nics: &[Arc<Nic>], any: bool) -> Result<Self> {
        let own = |(number, nic): (usize, &Arc<Nic>)| Device::new(Arc::clone(nic), vec![number as c_int]).map(Arc::new);
        let devices = nics.iter().enumerate().map(own).collect::<Result<Vec<_>>>()?;
        let listed = Mutex::new(Listed { devices, merged: Vec::new() });
        Ok(Self { first: nics.len(), any, listed, reloaded: AtomicBool::new(false) })
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

    /// The number of the device that consists of `members`. It is made unless there is one.
    ///
    /// # Errors
    /// They cannot be one device, or there are too many devices.
    pub(super) fn merge(&self, members: &[c_int]) -> Result<c_int> {
        self.reloaded.store(false, Ordering::Relaxed);
        let mut listed = self.lock();
        let number = |place: usize| c_int::try_from(place).map_err(|_| Error::internal("too many devices"));
        if let Some(place) = listed.devices.iter().position(|device| device.members == members) {
            return number(place);
        }
        if listed.devices.len() >= self.first + MAX_MERGED {
            return Err(Error::usage(format!("there are {MAX_MERGED} merged devices already")));
        }
        let device = listed.made(members, self)?;
        listed.devices.push(device);
        number(listed.devices.len() - 1)
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
        let device = Arc::new(Device::new(Arc::new(Nic::merge(&ports, of.any)?), members.to_vec())?);
        log::info!("{} are one device to NCCL: {}", ports.len(), device.nic.name);
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
