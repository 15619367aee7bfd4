//! All devices of the process, and what their connections share.

use super::background::notices::INIT;
use super::background::periodic::PeriodicTask;
use super::control::driver::ControlDriver;
use super::data::send::SendComm;
use super::data::sync::start_enabling_barrier;
use super::device::card_port::CardPort;
use super::device::networks::Networks;
use super::device::nic::Nic;
use super::setup::connect::Connector;
use super::setup::connectors::Connectors;
use super::setup::listen::Listener;
use super::setup::nccl_comm::NcclComm;
use crate::error::{Error, Result};
use crate::host::conf_file;
use crate::host::config::Config;
use crate::host::iface::{self, Interface};
use crate::host::name_list::NoEffect;
use crate::host::variables::Reason;
use crate::host::{launcher, random, sysfs};
use crate::proto::handle::{self, HANDLE_BYTES, Handle};
use crate::stats::{self, process};
use crate::verbs::context::{Context, NotOpened};
use crate::verbs::error::Error as VerbsError;
use crate::verbs::library::Library;
use crate::version;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The devices of the process, and what their connections share. There is one, which is built from
/// the environment.
#[derive(Debug)]
pub struct Network {
    devices: Vec<Arc<Nic>>,
    /// Present if connections may be moved to devices in the peer's network.
    networks: Option<Arc<Networks>>,
    merges_any_ports: bool,
    names_operations: bool,
    other_profiler: Option<String>,
    connects_early: bool,
    interface: Option<Interface>,
    connectors: Arc<Connectors>,
    /// The time limit for a client's first frame.
    first_frame_limit: Duration,
    /// The control connections of this process; a forked child has its own.
    control: Mutex<Option<Arc<ControlDriver>>>,
}

impl Network {
    /// Reads the settings through `lookup` and finds the devices. Without libibverbs there is no
    /// device, which is no error. If `nccl_sorts`, NCCL's own devices are in the order of their PCI
    /// addresses, otherwise in that of libibverbs; this network uses the same order.
    ///
    /// # Errors
    /// A setting is out of range, or no network interface matches the settings.
    pub fn new(lookup: impl Fn(&str) -> Option<String>, nccl_sorts: bool) -> Result<Self> {
        let config = Arc::new(Config::parse(&lookup).map_err(with_source)?);
        let mut missing = Vec::new();
        let (devices, verbs) = find_devices(&config, nccl_sorts && config.pci_order, &mut missing);
        let interface = match devices.is_empty() {
            true => None,
            false => Some(iface::choose(&config.interfaces)?),
        };
        let first_frame_limit = Duration::from_secs(config.handshake_timeout_s);
        if !devices.is_empty() {
            open_stats(&config);
            start_enabling_barrier();
        }
        let merges_any_ports = config.merge_any;
        let networks = config.subnet_aware.then(|| Arc::new(Networks::of(&devices)));
        let (connectors, control) = (Arc::default(), Mutex::default());
        let net = Self {
            devices,
            networks,
            merges_any_ports,
            names_operations: config.profiler,
            other_profiler: config.other_profiler.clone(),
            connects_early: config.connects_early,
            interface,
            connectors,
            first_frame_limit,
            control,
        };
        net.log_devices(&config, &verbs, &Config::ignored(lookup), &missing);
        Ok(net)
    }

    /// The devices.
    pub fn devices(&self) -> &[Arc<Nic>] {
        &self.devices
    }

    /// A device for each port of the devices, in order.
    pub fn ports(&self) -> Vec<Arc<Nic>> {
        self.devices.iter().flat_map(Nic::split).collect()
    }

    /// Whether the user has asked NCCL to merge ports even where [`Nic::merge`] would not.
    pub fn merges_any_ports(&self) -> bool {
        self.merges_any_ports
    }

    /// Whether NCCL should report its operations, if there are devices to use.
    pub fn names_operations(&self) -> bool {
        self.names_operations && !self.devices.is_empty()
    }

    /// The profiler that the user has configured in NCCL.
    pub fn other_profiler(&self) -> Option<&str> {
        self.other_profiler.as_deref()
    }

    /// Whether NCCL may connect before it has loaded a profiler.
    pub fn connects_early(&self) -> bool {
        self.connects_early
    }

    /// A listener on `device`, for NCCL's communicator `of`.
    ///
    /// # Errors
    /// No TCP port is available.
    pub fn listen(&self, device: &Arc<Nic>, of: NcclComm) -> Result<Listener> {
        self.connectors.sweep();
        let interface = self
            .interface
            .as_ref()
            .ok_or_else(|| Error::internal("there are devices but no interface"))?;
        Listener::new(Arc::clone(device), self.networks.clone(), self.control()?, interface, of)
    }

    fn control(&self) -> Result<Arc<ControlDriver>> {
        let mut known = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(driver) = known.as_ref().filter(|driver| !driver.is_inherited()) {
            return Ok(Arc::clone(driver));
        }
        // The first connection of this process, which may have been forked before its parent's
        // thread had the answer.
        start_enabling_barrier();
        let driver = ControlDriver::new(self.first_frame_limit, self.interface.clone())?;
        Ok(Arc::clone(known.insert(driver)))
    }

    /// Connects `device`, for NCCL's communicator `of`, to the listener whose handle is `bytes`,
    /// over as many calls as needed. Between calls the handle keeps the number of the unfinished
    /// connection.
    ///
    /// # Errors
    /// The handle is not Ferrite's, or the connection fails.
    pub fn connect(
        &self,
        device: &Arc<Nic>,
        of: NcclComm,
        bytes: &mut [u8; HANDLE_BYTES],
    ) -> Result<Option<SendComm>> {
        let handle = Handle::parse(bytes).map_err(|v| Error::usage(v.text()))?;
        let cookie = handle::cookie(bytes);
        let known = self.connectors.take(cookie).filter(|c| c.leads_to(&handle));
        let is_new = known.is_none();
        let (cookie, mut connector) = match known {
            Some(connector) => (cookie, connector),
            None => {
                self.connectors.sweep();
                let cookie = u64::from_le_bytes(random::bytes()?).max(1);
                let towards = |networks: &Arc<Networks>| {
                    networks.device_towards(device, &handle.known_gids(0))
                };
                let device = self.networks.as_ref().map_or_else(|| Arc::clone(device), towards);
                (cookie, Connector::new(device, handle, self.control()?, of))
            }
        };
        // No lock is held here: creating queue pairs takes time.
        let done = connector.advance();
        handle::set_cookie(bytes, 0);
        if let Ok(None) = done {
            handle::set_cookie(bytes, cookie);
            let (wait, control) = (Arc::clone(&connector.wait), self.control()?);
            self.connectors.put(cookie, connector);
            let task: Arc<dyn PeriodicTask> = Arc::clone(&self.connectors) as _;
            device.watch_set_up(&control, Some(&task))?;
            if is_new {
                device.explain_set_up(&wait, &control)?;
            }
        }
        done
    }

    /// Logs the version, the devices, the location of libibverbs (`verbs`), what is `missing`, and
    /// the `ignored` settings with the reasons.
    fn log_devices(
        &self,
        config: &Config,
        verbs: &str,
        ignored: &BTreeMap<String, Reason>,
        missing: &[String],
    ) {
        let Some(interface) = &self.interface else {
            missing.iter().for_each(|trouble| log::info!(target: INIT, "Ferrite: {trouble}"));
            return;
        };
        log::info!(
            target: INIT,
            "Ferrite {}: {} device(s); set-up of connections over {} ({}); {} queue pair(s) per connection and rail; {verbs}",
            version::text(),
            self.devices.len(),
            interface.name,
            interface.address.ip(),
            config.queue_pairs,
        );
        // A line for each, as NCCL cuts long ones.
        for device in &self.devices {
            log::info!(target: INIT, "Ferrite device: {}", device.describe());
        }
        for merged in self.devices.iter().filter(|device| device.ports.len() > 1) {
            let (rails, speed) = (merged.ports.len(), merged.speed_mbps() / 1000);
            let ports = "are ports of one card and one device to NCCL";
            log::info!(target: INIT, "Ferrite: the {rails} rails of {} {ports}, {speed} Gb/s (NCCL_IB_MERGE_NICS=0 keeps them apart)", merged.name);
        }
        let ports: Vec<&Arc<CardPort>> =
            self.devices.iter().flat_map(|device| &device.ports).collect();
        // Ranks whose devices differ or are unreachable fail later and elsewhere. So all of this is
        // a warning, once.
        let troubles = ports.iter().filter_map(|port| port.address_trouble());
        for trouble in missing.iter().cloned().chain(troubles) {
            log::warn!(target: INIT, "Ferrite: {trouble}");
        }
        if let Some(range) = config.gid_range.filter(|_| config.gid_index.is_none()) {
            let roce = ports
                .iter()
                .flat_map(|port| port.local_address())
                .filter(|address| !address.port.is_infiniband());
            let used: Vec<_> = roce.map(|address| address.gid.address()).collect();
            if !used.is_empty() && !used.iter().any(|address| range.contains(*address)) {
                let used = used.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                log::warn!(target: INIT, "Ferrite: NCCL_IB_ADDR_RANGE={range}: no port has a GID in it; the ports use {used}");
            }
        }
        for (name, Reason { text, is_loss }) in ignored {
            let level = if *is_loss { log::Level::Warn } else { log::Level::Info };
            log::log!(target: INIT, level, "Ferrite ignores {name}: {text}");
        }
    }
}

/// The devices, and the location of libibverbs. Problems that the user should know go into
/// `missing`.
fn find_devices(
    config: &Arc<Config>,
    by_address: bool,
    missing: &mut Vec<String>,
) -> (Vec<Arc<Nic>>, String) {
    let none = |why: &str, is_mistake: bool| {
        let next = if config.required {
            ""
        } else {
            ". NCCL will use another network (NCCL_NET=Ferrite makes this an error)"
        };
        let level = if config.required || is_mistake { log::Level::Warn } else { log::Level::Info };
        log::log!(target: INIT, level, "Ferrite has no device: {why}{next}");
        (Vec::new(), String::new())
    };
    if config.disabled {
        return none("NCCL_IB_DISABLE=1", false);
    }
    let library = match Library::load(config.verbs_library.as_deref()) {
        Ok(library) => Arc::new(library),
        Err(e) => return none(&e.text(), false),
    };
    let place = place_of(&library);
    let (mut contexts, failures) = match Context::open_all(&library) {
        Ok(opened) => opened,
        Err(e) => return none(&format!("{e} ({place})"), false),
    };
    report_not_opened(config, &failures, missing);
    if by_address {
        // Those without an address come last, as in NCCL.
        contexts
            .sort_by_cached_key(|context| sysfs::pci_address(context.name()).unwrap_or(u64::MAX));
    }
    let devices = Nic::discover(&contexts, config, missing);
    if !devices.is_empty() {
        log_names(config, &contexts);
        return (devices, place);
    }
    let (opened, failed) = (contexts.len(), failures.len());
    match failures.first() {
        _ if opened > 0 => {
            let reasons = why_no_port(config, &contexts);
            let is_mistake =
                ports_of(&contexts).iter().all(|(name, port)| !config.hca.admits(name, *port));
            none(
                &format!(
                    "{opened} RDMA device(s) are open, but none of their ports can be used: {reasons} ({place})"
                ),
                is_mistake,
            )
        }
        Some(NotOpened { error, .. }) => none(
            &format!(
                "{failed} RDMA device(s) found, none of which could be opened: {error} ({place})"
            ),
            false,
        ),
        None => none(
            &format!(
                "libibverbs finds no RDMA device. In a container, pass in /dev/infiniband ({place})"
            ),
            false,
        ),
    }
}

/// Puts the devices that could not be opened into `missing`, or into the log if the settings exclude
/// them.
fn report_not_opened(config: &Config, failures: &[NotOpened], missing: &mut Vec<String>) {
    for NotOpened { name, error } in failures {
        let text = not_opened(name, error);
        if config.hca.admits_some_of(name) {
            missing.push(text);
        } else {
            log::info!(target: INIT, "Ferrite: {text}");
        }
    }
}

/// Why no port of `contexts` is used.
fn why_no_port(config: &Config, contexts: &[Arc<Context>]) -> String {
    let passed_over = CardPort::passed_over(contexts, config).into_iter();
    let passed_over = passed_over.map(|(why, ports)| format!("{}: {why}", ports.join(", ")));
    let without_effect = names_without_effect(config, contexts).into_iter().map(|entry| entry.why);
    passed_over.chain(without_effect).collect::<Vec<_>>().join("; ")
}

/// The file that libibverbs was loaded from, and others of that name in the process.
fn place_of(library: &Library) -> String {
    let Some(path) = library.path() else { return "libibverbs".into() };
    let others = sysfs::other_mapped_files("libibverbs.so", &path);
    let others: Vec<String> = others.iter().map(|other| other.display().to_string()).collect();
    let also = if others.is_empty() {
        String::new()
    } else {
        format!(", and {} is loaded too", others.join(", "))
    };
    format!("libibverbs is {}{also}", path.display())
}

fn ports_of(contexts: &[Arc<Context>]) -> Vec<(&str, u8)> {
    let ports =
        |context: &Arc<Context>| context.attributes().map_or(1, |attributes| attributes.port_count);
    contexts
        .iter()
        .flat_map(|context| (1..=ports(context)).map(|port| (context.name(), port)))
        .collect()
}

/// Entries of `NCCL_IB_HCA` that match no port, and why.
fn names_without_effect(config: &Config, contexts: &[Arc<Context>]) -> Vec<NoEffect> {
    config.hca.without_effect(&ports_of(contexts))
}

/// Logs entries in lists of names that have no effect, or another one than in NCCL's built-in
/// transport.
fn log_names(config: &Config, contexts: &[Arc<Context>]) {
    for NoEffect { why, is_mistake } in names_without_effect(config, contexts) {
        let level = if is_mistake { log::Level::Warn } else { log::Level::Info };
        log::log!(target: INIT, level, "Ferrite: NCCL_IB_HCA={}: {why}", config.hca.text());
    }
    for why in config.hca.differences() {
        log::info!(target: INIT, "Ferrite: NCCL_IB_HCA={}: {why}", config.hca.text());
    }
    for NoEffect { why, .. } in config.interfaces.without_effect() {
        log::info!(target: INIT, "Ferrite: NCCL_SOCKET_IFNAME={}: {why}", config.interfaces.text());
    }
}

/// Describes that the device `name` cannot be opened because of `failure`, with advice.
fn not_opened(name: &str, failure: &VerbsError) -> String {
    let cure = match failure.errno {
        Some(libc::EPERM | libc::EACCES) => {
            "no permission: check the mode of its file in /dev/infiniband; in a container, docker run --device=/dev/infiniband"
        }
        Some(libc::ENOENT | libc::ENXIO | libc::ENODEV) => {
            "its file in /dev/infiniband is missing: pass the whole folder into the container"
        }
        _ => "see dmesg and `ferrite doctor`",
    };
    format!(
        "{name} is not used: {failure} ({cure}). Or exclude it on every host: NCCL_IB_HCA=^={name}"
    )
}

/// Creates the statistics file, unless the settings disable it.
fn open_stats(config: &Config) {
    if !config.stats {
        return;
    }
    let of = stats::ProcessInfo {
        start_ticks: sysfs::start_ticks().unwrap_or_default(),
        pid_namespace: sysfs::pid_namespace().unwrap_or_default(),
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

/// Adds the NCCL configuration file of a setting to its error, if known.
fn with_source(error: Error) -> Error {
    let text = error.text();
    let set = text.split_once('=').and_then(|(name, rest)| Some((name, rest.split_once(": ")?.0)));
    match set.and_then(|(name, value)| conf_file::source(name, value)) {
        Some((file, line)) => {
            error.context(format_args!("it is set by {}, line {line}", file.display()))
        }
        None => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::data::sync::{has_barrier, heavy_barrier};

    #[test]
    fn a_device_that_cannot_be_opened_is_named_with_the_error_and_the_cure() {
        for (errno, cure) in [
            (libc::EPERM, "--device=/dev/infiniband"),
            (libc::ENOENT, "is missing"),
            (libc::EIO, "dmesg"),
        ] {
            let failure = VerbsError::of_device("ibv_open_device(mlx5_3)", errno);
            let text = not_opened("mlx5_3", &failure);
            let error = std::io::Error::from_raw_os_error(errno).to_string();
            for words in ["mlx5_3 is not used", &error, cure, "NCCL_IB_HCA=^=mlx5_3"] {
                assert!(text.contains(words), "{words:?} is not in {text}");
            }
        }
    }

    /// As in one that is forked before its parent's thread has the answer.
    #[test]
    fn the_first_connection_of_a_process_asks_for_the_barrier() {
        if heavy_barrier().is_err() {
            println!("skipped: the kernel refuses membarrier");
            return;
        }
        let disabled = |name: &str| (name == "NCCL_IB_DISABLE").then(|| "1".to_owned());
        let net = Network::new(disabled, false).expect("valid settings");
        let _driver = net.control().expect("descriptors");
        testkit::wait_until("the kernel's answer", has_barrier);
    }
}
