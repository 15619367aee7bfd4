//! All devices of the process, and what their connections share.

use super::control::driver::ControlDriver;
use super::control::notices::INIT;
use super::control::periodic::PeriodicTask;
use super::data::sender::SendComm;
use super::device::nic::Nic;
use super::setup::connect::Connector;
use super::setup::connectors::Connectors;
use super::setup::listen::Listener;
use super::setup::nccl_comm::NcclComm;
use crate::error::{Error, Result};
use crate::host::conf_file;
use crate::host::config::Config;
use crate::host::iface::{self, Interface};
use crate::host::{launcher, random, sysfs};
use crate::proto::handle::{self, HANDLE_BYTES, Handle};
use crate::stats::{self, process};
use crate::verbs::context::Context;
use crate::verbs::library::Library;
use crate::version;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The devices of the process, and what their connections share. There is one, which is built from the environment.
#[derive(Debug)]
pub struct Network {
    devices: Vec<Arc<Nic>>,
    merges_any_ports: bool,
    names_operations: bool,
    other_profiler: Option<String>,
    connects_early: bool,
    interface: Option<Interface>,
    connectors: Arc<Connectors>,
    /// The time that a client has for its first frame.
    first_frame_limit: Duration,
    /// The control connections of this process; a forked child has others than its parent.
    control: Mutex<Option<Arc<ControlDriver>>>,
}

impl Network {
    /// Reads the settings through `lookup` and finds the devices. Without libibverbs there is no device, which is no error.
    ///
    /// # Errors
    /// A setting is out of range, or no network interface fits the settings.
    pub fn new(lookup: impl Fn(&str) -> Option<String>) -> Result<Self> {
        let config = Arc::new(Config::parse(&lookup).map_err(with_source)?);
        let devices = find_devices(&config);
        let interface = match devices.is_empty() {
            true => None,
            false => Some(iface::choose(&config.interfaces)?),
        };
        let first_frame_limit = Duration::from_secs(config.handshake_timeout_s);
        if !devices.is_empty() {
            open_stats(&config);
        }
        let merges_any_ports = config.merge_any;
        let (connectors, control) = (Arc::default(), Mutex::default());
        let net = Self {
            devices,
            merges_any_ports,
            names_operations: config.profiler,
            other_profiler: config.other_profiler.clone(),
            connects_early: config.connects_early,
            interface,
            connectors,
            first_frame_limit,
            control,
        };
        net.log_devices(&config, &Config::ignored(lookup));
        Ok(net)
    }

    /// The devices.
    pub fn devices(&self) -> &[Arc<Nic>] {
        &self.devices
    }

    /// A device for each port of the devices, in their order.
    pub fn ports(&self) -> Vec<Arc<Nic>> {
        self.devices.iter().flat_map(Nic::split).collect()
    }

    /// Whether the user has asked NCCL to merge ports also where [`Nic::merge`] would not.
    pub fn merges_any_ports(&self) -> bool {
        self.merges_any_ports
    }

    /// Whether NCCL is to tell of its operations, if there are devices to send them over.
    pub fn names_operations(&self) -> bool {
        self.names_operations && !self.devices.is_empty()
    }

    /// The profiler that the user has named to NCCL.
    pub fn other_profiler(&self) -> Option<&str> {
        self.other_profiler.as_deref()
    }

    /// Whether NCCL may connect before it has taken a profiler.
    pub fn connects_early(&self) -> bool {
        self.connects_early
    }

    /// A listener on `device`, for NCCL's communicator `of`.
    ///
    /// # Errors
    /// No TCP port is free.
    pub fn listen(&self, device: &Arc<Nic>, of: NcclComm) -> Result<Listener> {
        self.connectors.sweep();
        let interface = self.interface.as_ref().ok_or_else(|| Error::internal("there are devices but no interface"))?;
        Listener::new(Arc::clone(device), self.control()?, interface, of)
    }

    fn control(&self) -> Result<Arc<ControlDriver>> {
        let mut known = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = known.as_ref().filter(|driver| !driver.is_inherited()) {
            return Ok(Arc::clone(driver));
        }
        let driver = ControlDriver::new(self.first_frame_limit)?;
        Ok(Arc::clone(known.insert(driver)))
    }

    /// Connects `device`, for NCCL's communicator `of`, to the listener whose handle is `bytes`, in as many calls as it takes. From one
    /// call to the next, the handle keeps the number of the unfinished connection.
    ///
    /// # Errors
    /// The handle is not Ferrite's, or the connection fails.
    pub fn connect(&self, device: &Arc<Nic>, of: NcclComm, bytes: &mut [u8; HANDLE_BYTES]) -> Result<Option<SendComm>> {
        let handle = Handle::parse(bytes).map_err(|v| Error::usage(v.text()))?;
        let cookie = handle::cookie(bytes);
        let known = self.connectors.take(cookie).filter(|c| c.leads_to(&handle));
        // After `take`, so that this one is not dropped as abandoned.
        self.connectors.sweep();
        let (cookie, mut connector) = match known {
            Some(connector) => (cookie, connector),
            None => {
                let cookie = u64::from_le_bytes(random::bytes()?).max(1);
                (cookie, Connector::new(Arc::clone(device), handle, self.control()?, of))
            }
        };
        // No lock is held here: creating queue pairs takes time.
        let done = connector.advance();
        handle::set_cookie(bytes, 0);
        if let Ok(None) = done {
            handle::set_cookie(bytes, cookie);
            self.connectors.put(cookie, connector);
            let task: Arc<dyn PeriodicTask> = Arc::clone(&self.connectors) as _;
            device.watch_set_up(&self.control()?, Some(&task))?;
        }
        done
    }

    /// Logs the version, the devices and the `ignored` settings with the reasons.
    fn log_devices(&self, config: &Config, ignored: &BTreeMap<String, &'static str>) {
        let Some(interface) = &self.interface else { return };
        let devices: Vec<_> = self.devices.iter().map(|d| d.describe()).collect();
        log::info!(
            target: INIT,
            "Ferrite {}: {} device(s): {}; connection set-up over {} ({}); {} queue pair(s) per connection and rail",
            version::text(),
            devices.len(),
            devices.join(", "),
            interface.name,
            interface.address.ip(),
            self.devices.iter().map(|device| device.plan.first).max().unwrap_or(1),
        );
        let mut choices: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for device in &self.devices {
            device
                .plan
                .choice(config)
                .into_iter()
                .for_each(|choice| choices.entry(choice).or_default().push(&device.name));
        }
        for (choice, devices) in choices {
            log::info!(target: INIT, "Ferrite: {}: {choice}", devices.join(", "));
        }
        for merged in self.devices.iter().filter(|device| device.rails.len() > 1) {
            let (rails, speed) = (merged.rails.len(), merged.speed_mbps() / 1000);
            let ports = "are ports of one card and one device to NCCL";
            log::info!(target: INIT, "Ferrite: the {rails} rails of {} {ports}, {speed} Gb/s (NCCL_IB_MERGE_NICS=0 keeps them apart)", merged.name);
        }
        for error in self.devices.iter().flat_map(|d| &d.rails).filter_map(|rail| rail.local_address().err()) {
            log::warn!(target: INIT, "{error}");
        }
        for (name, why) in ignored {
            log::info!(target: INIT, "Ferrite does not honour {name}: {why}");
        }
    }
}

fn find_devices(config: &Arc<Config>) -> Vec<Arc<Nic>> {
    let none = |why: String| {
        let next = "NCCL will use another network";
        if config.required {
            log::warn!(target: INIT, "Ferrite has no device: {why}");
        } else {
            log::info!(target: INIT, "Ferrite has no device: {why}; {next} (NCCL_NET=Ferrite makes this an error)");
        }
        Vec::new()
    };
    if config.disabled {
        return none("NCCL_IB_DISABLE=1".into());
    }
    let library = match Library::load(config.verbs_library.as_deref()) {
        Ok(library) => Arc::new(library),
        Err(e) => return none(e.text()),
    };
    let (contexts, failures) = match Context::open_all(&library) {
        Ok(opened) => opened,
        Err(e) => return none(e.text()),
    };
    for failure in &failures {
        log::info!(target: INIT, "Ferrite: {failure} (in a container: is /dev/infiniband passed in?)");
    }
    let devices = Nic::discover(&contexts, config);
    if devices.is_empty() {
        let opened = contexts.len();
        let (found, failed) = (opened + failures.len(), failures.len());
        return none(match found {
            0 => "libibverbs knows no RDMA device (in a container: is /dev/infiniband passed in?)".into(),
            _ if opened == 0 => {
                format!("{failed} RDMA device(s) found, none of which could be opened: {}", failures[0])
            }
            _ => format!(
                "{opened} RDMA device(s) opened, but no port is active, of InfiniBand or Ethernet, and admitted by NCCL_IB_HCA"
            ),
        });
    }
    devices
}

/// Makes the file of statistics, unless the settings say otherwise.
fn open_stats(config: &Config) {
    if !config.stats {
        return;
    }
    let of = stats::Process {
        start_ticks: sysfs::start_ticks().unwrap_or_default(),
        host: sysfs::host_name().to_owned(),
        program: std::env::current_exe().map(|path| path.display().to_string()).unwrap_or_default(),
        label: launcher::rank(),
        sample: config.stats_sample,
        boot: sysfs::boot_id().map_or([0; 2], |id| [(id >> 64) as u64, id as u64]),
    };
    let folder = config.stats_folder.as_deref().unwrap_or(process::DEFAULT_FOLDER);
    if let Err(why) = process::open_file(folder, &of) {
        log::info!(target: INIT, "Ferrite: no statistics for `ferrite top`: {why} (FERRITE_STATS_DIR={folder})");
    }
}

/// The error of a setting with the file of NCCL's that has set it, as far as that can be told.
fn with_source(error: Error) -> Error {
    let text = error.text();
    let set = text.split_once('=').and_then(|(name, rest)| Some((name, rest.split_once(": ")?.0)));
    match set.and_then(|(name, value)| conf_file::source(name, value)) {
        Some((file, line)) => error.context(format_args!("it is set by {}, line {line}", file.display())),
        None => error,
    }
}
