//! What exists once in the process: the logger and the network, made by NCCL's `init`.

use super::{logger, nccl};
use crate::error::{Error, Result};
use crate::net::device::nic::Nic;
use crate::net::network::Network;
use once_cell::sync::OnceCell;
use std::ffi::{CStr, CString, c_int};
use std::sync::Arc;

/// The plugin's name: `NCCL_NET=Ferrite` asks for it.
pub const NAME: &CStr = c"Ferrite";

/// The network, and the strings that `getProperties` gives out.
#[derive(Debug)]
pub struct Process {
    /// The network.
    pub network: Network,
    /// For each device its name and its PCI path.
    strings: Vec<(CString, Option<CString>)>,
}

static PROCESS: OnceCell<Process> = OnceCell::new();

impl Process {
    /// Sends log messages to `log_function` from now on, and makes the network, if that has not been done before.
    ///
    /// # Errors
    /// A setting is wrong, or no network interface fits.
    pub fn init(log_function: nccl::ncclDebugLogger_t) -> Result<()> {
        logger::install(log_function);
        PROCESS.get_or_try_init(Self::new).map(|_| ())
    }

    /// The process's network and strings.
    ///
    /// # Errors
    /// [`Self::init`] has not succeeded yet.
    pub fn get() -> Result<&'static Self> {
        PROCESS.get().ok_or_else(|| Error::internal("called before init succeeded"))
    }

    fn new() -> Result<Self> {
        let network = Network::from_env()?;
        let string = |text: &str| CString::new(text).map_err(|_| Error::internal(format!("{text:?} has a NUL")));
        let strings = network.devices().iter().map(|device| {
            let path = device.first().card.pci_path().map(string).transpose()?;
            Ok((string(&device.name)?, path))
        });
        let strings = strings.collect::<Result<_>>()?;
        Ok(Self { network, strings })
    }

    /// Device number `dev`, its name and its PCI path.
    ///
    /// # Errors
    /// There is no such device.
    pub fn device(&self, dev: c_int) -> Result<(&Arc<Nic>, &CStr, Option<&CStr>)> {
        let device = self.network.device(dev)?;
        let strings = usize::try_from(dev).ok().and_then(|i| self.strings.get(i));
        let (name, path) = strings.ok_or_else(|| Error::internal(format!("device {dev} has no name")))?;
        Ok((device, name, path.as_deref()))
    }
}
