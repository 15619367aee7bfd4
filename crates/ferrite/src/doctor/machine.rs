//! What the rows look at: the files of the machine, the environment of the job, and what was found
//! out by trial. Trials are made when a row asks for them first, and once.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lab::error::{Error, Result};
use lab::measure::plan;
use lab::nccl::library::Source;
use lab::nccl::plugin_search::{DynamicLoader, NcclFile, Version};
use lab::nccl::{debug_log, plugin_search};
use lab::system::dist::Root;
use lab::system::host::Maps;
use lab::system::{host, output, subprocess};
use lab::transport::buffer::Buffer;
use lab::transport::deadline::{Deadline, posted};
use lab::transport::instance::Transport;
use lab::transport::listener::LocalConn;
use nccl_net::inspect::caps;
use nccl_net::inspect::card_port::{CardPort, partition_index};
use nccl_net::inspect::completion_queue::CompletionQueue;
use nccl_net::inspect::conf_file::lines;
use nccl_net::inspect::config::Config;
use nccl_net::inspect::context::{Context, LinkLayer};
use nccl_net::inspect::gdr::Gdr;
use nccl_net::inspect::library::Library;
use nccl_net::inspect::memory::{MemoryRegion, ProtectionDomain};
use nccl_net::inspect::queue_pair::{RemoteAccess, ResetQueuePair};
use serde::{Deserialize, Serialize};

/// The hidden subcommands of the trials.
pub(crate) const VERBS_WORKER: &str = "doctor-verbs";
pub(crate) const LOOPBACK_WORKER: &str = "doctor-loopback";

/// A trial that prints nothing for so long is ended.
const SILENCE: Duration = Duration::from_secs(45);

/// The machine, the environment of the job, and the plugin.
#[derive(Debug)]
pub(crate) struct Machine {
    pub(crate) root: Root,
    /// The environment of the job: that of the doctor, and what NCCL adds from its configuration
    /// files.
    pub(crate) env: BTreeMap<String, String>,
    /// That of the doctor.
    pub(crate) own_env: BTreeMap<String, String>,
    /// What NCCL adds.
    pub(crate) added: Added,
    /// The plugin's file, or why there is none.
    pub(crate) plugin: Result<PathBuf, String>,
    /// Processes of the job on this host.
    pub(crate) ranks: u32,
    /// The working directory.
    folder: PathBuf,
    verbs: OnceCell<Result<VerbsFacts, String>>,
    loopback: OnceCell<Vec<LoopbackFacts>>,
    nccl_files: OnceCell<Vec<NcclFile>>,
}

impl Machine {
    pub(crate) fn new(
        root: Root,
        env: BTreeMap<String, String>,
        plugin: Result<PathBuf, String>,
        ranks: u32,
    ) -> Self {
        let folder = std::env::current_dir().unwrap_or_else(|_| "/".into());
        let (verbs, loopback, nccl_files) = (OnceCell::new(), OnceCell::new(), OnceCell::new());
        let (own_env, added) = (env.clone(), Added::new());
        let mut machine =
            Self { root, env, own_env, added, plugin, ranks, folder, verbs, loopback, nccl_files };
        if is_there(&machine.root, &machine.env) {
            machine.added =
                added_by_files(&machine.root, &machine.env, Reading::of(machine.nccl()));
            machine.env.extend(
                machine.added.iter().map(|(name, (value, _))| (name.clone(), value.clone())),
            );
        }
        machine
    }

    /// The release of NCCL that a job takes: PyTorch's, else the one that the loader or Python
    /// finds first. `None`: it is not known.
    pub(crate) fn nccl(&self) -> Option<Version> {
        let files = self.nccl_files();
        files.iter().find(|file| file.is_of_pytorch).or_else(|| files.first())?.version
    }

    /// The dynamic loader of the job.
    pub(crate) fn loader(&self) -> DynamicLoader<'_> {
        DynamicLoader { root: &self.root, env: &self.env, folder: &self.folder }
    }

    /// The value of a variable that is set and not empty.
    pub(crate) fn var(&self, name: &str) -> Option<&str> {
        self.env.get(name).map(|value| value.trim()).filter(|value| !value.is_empty())
    }

    /// The files libnccl.so.2.
    pub(crate) fn nccl_files(&self) -> &[NcclFile] {
        self.nccl_files.get_or_init(|| plugin_search::find(self.loader()))
    }

    /// The kernel's log, where it may be read; below another root, its file `/var/log/dmesg`.
    pub(crate) fn kernel_log(&self) -> Option<String> {
        if self.root.is_real() { host::kernel_log() } else { self.root.text("/var/log/dmesg") }
    }

    /// What libibverbs reports; else why there is no libibverbs.
    pub(crate) fn verbs(&self) -> Result<&VerbsFacts, &str> {
        let found = self.verbs.get_or_init(|| {
            let printed = subprocess::run(&[VERBS_WORKER.to_owned()], &self.env, SILENCE);
            let facts = printed.lines.last().and_then(|line| serde_json::from_str(line).ok());
            facts.unwrap_or_else(|| {
                Err(format!("looking at the devices failed: {}", printed.words()))
            })
        });
        found.as_ref().map_err(String::as_str)
    }

    /// How the message of each device to itself went.
    pub(crate) fn loopback(&self) -> &[LoopbackFacts] {
        self.loopback.get_or_init(|| {
            self.plugin.as_ref().map_or_else(|_| Vec::new(), |plugin| self.try_loopback(plugin))
        })
    }

    fn try_loopback(&self, plugin: &Path) -> Vec<LoopbackFacts> {
        let mut env = self.env.clone();
        env.extend(SETTINGS.map(|(name, value)| (name.to_owned(), value.to_owned())));
        let words = [LOOPBACK_WORKER.to_owned(), plugin.display().to_string()];
        let printed = subprocess::run(&words, &env, SILENCE);
        let mut facts: Vec<LoopbackFacts> =
            printed.lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        if printed.failure.is_some() {
            facts.push(LoopbackFacts { device: String::new(), result: Err(printed.words()) });
        }
        facts
    }
}

/// Does the work of a hidden subcommand; the exit code.
pub(crate) fn verbs_worker() -> i32 {
    probe_main()
}

/// As [`verbs_worker`].
pub(crate) fn loopback_worker(plugin: &Path) -> i32 {
    loopback_main(plugin)
}

#[cfg(test)]
impl Machine {
    /// A machine whose trials have been made, with these files.
    pub(crate) fn made_up(root: &Path, env: &[(&str, &str)], verbs: VerbsFacts) -> Self {
        let env =
            env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let machine = Self::new(Root::new(root), env, Err("none".into()), 8);
        machine.verbs.set(Ok(verbs)).expect("it was not set");
        machine
    }
}

// What NCCL's configuration files add to the environment: `~/.nccl.conf` (or the one that
// `NCCL_CONF_FILE` names), `/etc/nccl.conf`. What is set already stays. A test holds this against
// stock NCCL (`tests/doctor/conf_files.rs`); other releases were tried by hand.

/// How the releases from one on read the files.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    since: (u32, u32),
    /// They know `NCCL_CONF_FILE`.
    knows_named: bool,
    has_comments: bool,
    /// `~` is `$HOME`, and not the home that `/etc/passwd` tells; a line may end in a carriage
    /// return.
    is_of_2_30: bool,
}

const fn since(minor: u32, knows_named: bool, has_comments: bool, is_of_2_30: bool) -> Reading {
    Reading { since: (2, minor), knows_named, has_comments, is_of_2_30 }
}

const READINGS: [Reading; 4] = [
    since(0, false, false, false),
    since(23, true, false, false),
    since(26, true, true, false),
    since(30, true, true, true),
];

impl Reading {
    /// That of a release; of the newest where it is not known.
    pub(crate) fn of(version: Option<Version>) -> &'static Self {
        let is_known = |reading: &&Self| {
            version.is_none_or(|(major, minor, _)| reading.since <= (major, minor))
        };
        let known = READINGS.iter().rev().find(is_known);
        known.unwrap_or(&READINGS[0])
    }
}

/// Where a file sets a variable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    file: PathBuf,
    line: usize,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, line {}", self.file.display(), self.line)
    }
}

/// What files add to the environment: names, values, places.
pub(crate) type Added = BTreeMap<String, (String, Place)>;

/// The files that NCCL reads, in its order: the first that sets a variable wins.
fn files(root: &Root, env: &BTreeMap<String, String>, reading: &Reading) -> Vec<PathBuf> {
    let named = env
        .get("NCCL_CONF_FILE")
        .filter(|path| reading.knows_named && !path.is_empty())
        .map(PathBuf::from);
    let home =
        if reading.is_of_2_30 { env.get("HOME").map(PathBuf::from) } else { home_of_passwd(root) };
    let own = named.or_else(|| home.map(|home| home.join(".nccl.conf")));
    own.into_iter().chain([PathBuf::from("/etc/nccl.conf")]).collect()
}

fn home_of_passwd(root: &Root) -> Option<PathBuf> {
    let (user, text) = (host::user_id().to_string(), root.text("/etc/passwd")?);
    let mut users = text.lines().map(|line| line.split(':').collect::<Vec<_>>());
    users.find(|fields| fields.get(2) == Some(&user.as_str()))?.get(5).map(PathBuf::from)
}

/// Whether there is a file that a release reads.
pub(crate) fn is_there(root: &Root, env: &BTreeMap<String, String>) -> bool {
    READINGS.iter().flat_map(|reading| files(root, env, reading)).any(|file| root.exists(file))
}

/// What the files add to the environment.
pub(crate) fn added_by_files(
    root: &Root,
    env: &BTreeMap<String, String>,
    reading: &Reading,
) -> Added {
    let mut added = Added::new();
    for file in files(root, env, reading) {
        let text = std::fs::read(root.path(&file)).unwrap_or_default();
        for line in lines(&String::from_utf8_lossy(&text), reading.has_comments, reading.is_of_2_30)
        {
            if !env.contains_key(&line.name) {
                let place = Place { file: file.clone(), line: line.number };
                added.entry(line.name).or_insert((line.value, place));
            }
        }
    }
    added
}

/// A PCI function that the rows look at.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PciFunction {
    /// What the lines call it: the RDMA device's name, or `GPU 0000:17:00.0`.
    pub(crate) name: String,
    /// Its folder in /sys/devices, which shows the bridges above it.
    pub(crate) path: PathBuf,
}

const NVIDIA: &str = "0x10de";

/// The functions of RDMA devices.
pub(crate) fn nics(root: &Root) -> Vec<PciFunction> {
    let class = Path::new("/sys/class/infiniband");
    let path = |name: &String| root.resolved(class.join(name).join("device"));
    root.names(class)
        .into_iter()
        .filter_map(|name| Some(PciFunction { path: path(&name)?, name }))
        .collect()
}

/// NVIDIA's GPUs.
pub(crate) fn gpus(root: &Root) -> Vec<PciFunction> {
    let bus = Path::new("/sys/bus/pci/devices");
    let is_gpu = |name: &String| {
        // Display controllers: VGA, or 3D.
        let class = root.text(bus.join(name).join("class")).unwrap_or_default();
        class.starts_with("0x03")
            && root.text(bus.join(name).join("vendor")).as_deref() == Some(NVIDIA)
    };
    let gpus = root.names(bus).into_iter().filter(is_gpu);
    gpus.filter_map(|name| {
        Some(PciFunction { path: root.resolved(bus.join(&name))?, name: format!("GPU {name}") })
    })
    .collect()
}

impl PciFunction {
    /// The bridges above it, from the root port down, as paths.
    pub(crate) fn bridges(&self) -> Vec<PathBuf> {
        let above = self.path.ancestors().skip(1);
        let mut bridges: Vec<PathBuf> =
            above.take_while(|path| is_function(path)).map(Path::to_path_buf).collect();
        bridges.reverse();
        bridges
    }

    /// The NUMA node, if the firmware tells it.
    pub(crate) fn numa_node(&self, root: &Root) -> Option<i64> {
        root.number(self.path.join("numa_node")).filter(|node| *node >= 0)
    }
}

/// Whether the last part of a path is `dddd:bb:dd.f`.
fn is_function(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    name.matches(':').count() == 2 && name.contains('.')
}

/// The control register of an extended capability in a function's configuration space, `offset`
/// bytes behind the capability's start.
///
/// # Errors
/// The configuration space is not shown in whole; only root sees more than its beginning.
pub(crate) fn capability(
    root: &Root,
    function: &Path,
    wanted: u16,
    offset: usize,
) -> Result<Option<u16>, &'static str> {
    const EXTENDED: usize = 0x100;
    let bytes = std::fs::read(root.path(function.join("config")))
        .map_err(|_| "its configuration space cannot be read")?;
    if bytes.len() <= EXTENDED {
        return Err("only root sees its configuration space in whole");
    }
    let word = |at: usize| bytes.get(at..at + 2).map(|two| u16::from_le_bytes([two[0], two[1]]));
    let mut at = EXTENDED;
    // A list in 4 KiB of entries of 4 bytes or more: it ends, also where it is damaged.
    for _ in 0..1024 {
        let (Some(id), Some(next)) = (word(at), word(at + 2)) else { return Ok(None) };
        if id == wanted {
            return Ok(word(at + offset));
        }
        at = usize::from(next >> 4);
        if at < EXTENDED {
            return Ok(None);
        }
    }
    Ok(None)
}

// Each device of the plugin sends a message to itself, through the plugin's own table of functions:
// listen, connect, accept, one message of 1 MiB whose bytes are checked. In a process of its own.

/// Bytes of the message.
const BYTES: usize = 1 << 20;
/// Each step may take so long.
const STEP: Duration = Duration::from_secs(10);

/// The settings under which the plugin is tried. A device that does not answer fails soon, and by
/// itself: each port is a device of its own, nothing is recovered, and no file of statistics or
/// reports is made.
pub(crate) const SETTINGS: [(&str, &str); 7] = [
    ("NCCL_DEBUG", "WARN"),
    ("NCCL_IB_MERGE_NICS", "0"),
    ("NCCL_IB_TIMEOUT", "14"),
    ("NCCL_IB_RETRY_CNT", "5"),
    ("FERRITE_FAILOVER", "0"),
    ("FERRITE_STATS", "0"),
    ("FERRITE_HANG_SECONDS", "0"),
];

/// How it went on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct LoopbackFacts {
    /// The device's name; empty where the plugin could not be started.
    pub(crate) device: String,
    /// What connecting took, in milliseconds; or the error, with the plugin's own last warning.
    pub(crate) result: std::result::Result<f64, String>,
}

/// What the hidden subcommand does: prints a line of JSON for each device of the plugin at `path`.
pub(crate) fn loopback_main(path: &Path) -> i32 {
    let transport = Transport::open(&Source::plugin(path));
    let devices =
        transport.and_then(|transport| transport.devices().map(|count| (transport, count)));
    match devices {
        Err(problem) => print(String::new(), Err(debug_log::with_warnings(&problem))),
        Ok((transport, count)) => {
            let mut code = 0;
            for device in 0..count {
                let name = transport
                    .properties(device)
                    // A device of one port has no number in its name; NCCL's number of the port
                    // counts across the card's functions.
                    .map_or_else(
                        |_| device.to_string(),
                        |p| if p.name.contains(':') { p.name } else { p.name + ":1" },
                    );
                let result = try_device(&transport, device)
                    .map_err(|problem| debug_log::with_warnings(&problem));
                code = code.max(print(name, result));
            }
            code
        }
    }
}

fn print(device: String, result: std::result::Result<f64, String>) -> i32 {
    let line = serde_json::to_string(&LoopbackFacts { device, result }).unwrap_or_default();
    i32::from(output::write_stdout(&format!("{line}\n")).is_err())
}

/// Milliseconds that connecting took.
fn try_device(transport: &Transport, device: usize) -> Result<f64> {
    let start = Instant::now();
    let LocalConn { send, recv } = LocalConn::open(
        transport,
        device,
        device,
        &mut Deadline::new("connecting the device to itself", STEP),
    )?;
    let connected = start.elapsed().as_secs_f64() * 1e3;
    let [out, into] = [Arc::new(Buffer::new(BYTES)?), Arc::new(Buffer::new(BYTES)?)];
    let seed = plan::seed(0, 0, device as u64);
    plan::fill(&out, 0, BYTES, seed)?;
    let (from, to) = (send.register(&out)?, recv.register(&into)?);
    let mut deadline = Deadline::new("a message of 1 MiB to itself", STEP);
    let mut received = posted(&mut deadline, || recv.receive(&to, 0, BYTES, 0))?;
    let (mut sent, mut is_sent, mut has_arrived, mut sizes) = (None, false, false, [0; 1]);
    // Both ends in turn: the receiver's failure shows in its own request, while the sender has
    // nothing to send to.
    while !(is_sent && has_arrived) {
        has_arrived = has_arrived || received.test(&mut sizes)?;
        match sent.as_mut() {
            None => sent = send.send(&from, 0, BYTES, 0)?,
            Some(_) if is_sent => {}
            Some(request) => is_sent = request.test(&mut sizes)?,
        }
        deadline.idle()?;
    }
    drop((sent, received));
    if let Some(at) = plan::check(&into, 0, BYTES, seed)? {
        return Err(Error::Data(format!("byte {} of 1 MiB is wrong", at.offset)));
    }
    drop((from, to));
    LocalConn { send, recv }.close()?;
    Ok(connected)
}

/// Everything that was found out with libibverbs.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct VerbsFacts {
    pub(crate) library: LibraryFacts,
    /// Why libibverbs gives no list of devices.
    pub(crate) no_list: Option<String>,
    pub(crate) devices: Vec<DeviceFacts>,
    /// Why devices of libibverbs' list cannot be opened; each names its device.
    pub(crate) unopened: Vec<String>,
    /// The ports that the plugin would use.
    pub(crate) rails: Vec<RailFacts>,
    /// The traffic class that the settings give to packets.
    pub(crate) traffic_class: u8,
}

/// The libibverbs that is loaded.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct LibraryFacts {
    /// Its file.
    pub(crate) path: String,
    /// Other files of libibverbs in the same process.
    #[serde(default)]
    pub(crate) others: Vec<String>,
    /// The optional functions that it lacks, each with the version that brought it.
    pub(crate) missing: Vec<(String, String)>,
}

/// A device that was opened.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct DeviceFacts {
    pub(crate) name: String,
    pub(crate) firmware: String,
    pub(crate) max_queue_pairs: i64,
    pub(crate) max_memory_regions: i64,
    pub(crate) ports: Vec<PortFacts>,
    /// Whether it registers dma-bufs.
    pub(crate) takes_dmabuf: bool,
    /// The trial registration of host memory: bytes, or the error.
    pub(crate) registration: Option<Result<u64, String>>,
    /// The trial queue pair: bytes of inline data that were granted, or the error.
    pub(crate) queue_pair: Option<Result<u32, String>>,
}

/// A port, as `ibv_query_port` reports it.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct PortFacts {
    pub(crate) port: u8,
    /// The query failed for this reason; the rest is not filled in.
    pub(crate) error: Option<String>,
    pub(crate) active: bool,
    /// `InfiniBand`, `Ethernet`, or the number of another one.
    pub(crate) link_layer: String,
    pub(crate) lid: u16,
    pub(crate) sm_lid: u16,
    /// Bytes.
    pub(crate) mtu: u32,
    /// Bytes.
    pub(crate) max_mtu: u32,
    pub(crate) pkey_count: u16,
    /// The entry of the partition key table that the settings name could be used for a queue pair;
    /// or the error.
    pub(crate) pkey: Option<Result<u16, String>>,
}

/// A port that the plugin would use, and how.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct RailFacts {
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) speed_mbps: u32,
    pub(crate) infiniband: bool,
    /// How the plugin describes it: its GID with the reason of the choice, or the LID.
    pub(crate) description: String,
    /// The GID that it uses, or why there is none.
    pub(crate) gid: Option<Result<GidFacts, String>>,
}

/// An entry of a GID table.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct GidFacts {
    pub(crate) index: u8,
    pub(crate) address: String,
    pub(crate) roce_version: Option<u8>,
    pub(crate) link_local: bool,
    /// `NCCL_IB_ADDR_RANGE` asks for another one.
    pub(crate) is_outside_range: bool,
}

impl PortFacts {
    pub(crate) fn is_ethernet(&self) -> bool {
        self.link_layer == "Ethernet"
    }

    pub(crate) fn is_infiniband(&self) -> bool {
        self.link_layer == "InfiniBand"
    }
}

impl RailFacts {
    /// `mlx5_0:1`.
    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.device, self.port)
    }
}

impl VerbsFacts {
    /// Each port that could be queried, with its name, such as `mlx5_0:1`.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (String, &DeviceFacts, &PortFacts)> {
        let ports = self
            .devices
            .iter()
            .flat_map(|device| device.ports.iter().map(move |port| (device, port)));
        ports
            .filter(|(_, port)| port.error.is_none())
            .map(|(device, port)| (format!("{}:{}", device.name, port.port), device, port))
    }

    /// Whether the plugin uses this port.
    pub(crate) fn is_used(&self, device: &DeviceFacts, port: &PortFacts) -> bool {
        self.rails.iter().any(|rail| rail.device == device.name && rail.port == port.port)
    }
}

// Finds the [`VerbsFacts`], in a process of its own: a driver's library may crash or wait for ever.
// It uses the plugin's own code, so that the facts are what the plugin would see.

/// Bytes of the trial registration, where the machine has so much memory to spare.
const TRIAL_BYTES: u64 = 256 << 20;
/// Completions of the trial completion queue.
const TRIAL_COMPLETIONS: u32 = 512;

/// What the hidden subcommand does: prints the facts as one line of JSON, or the reason why there
/// is no libibverbs.
pub(crate) fn probe_main() -> i32 {
    let text = serde_json::to_string(&facts()).unwrap_or_default();
    i32::from(output::write_stdout(&format!("{text}\n")).is_err())
}

fn facts() -> std::result::Result<VerbsFacts, String> {
    // A setting that is out of range has a row of its own; the others are looked at with the
    // defaults.
    let config = Config::from_env().or_else(|_| Config::parse(|_| None)).map_err(words)?;
    let config = Arc::new(config);
    let library = Arc::new(Library::load(config.verbs_library.as_deref()).map_err(words)?);
    let mut facts = VerbsFacts {
        library: library_facts(&library),
        traffic_class: config.traffic_class.unwrap_or(0),
        ..VerbsFacts::default()
    };
    match Context::open_all(&library) {
        Ok((contexts, failures)) => {
            facts.unopened = failures.into_iter().map(|failure| words(failure.error)).collect();
            facts.devices = contexts.iter().map(|context| device(context, &config)).collect();
            let rails = CardPort::discover(&contexts, &config, &Gdr::detect(), &mut Vec::new());
            facts.rails = rails.iter().map(|rail| rail_facts(rail)).collect();
        }
        Err(error) => facts.no_list = Some(words(error)),
    }
    Ok(facts)
}

fn words(error: impl fmt::Display) -> String {
    error.to_string()
}

fn library_facts(library: &Library) -> LibraryFacts {
    let path = library.path().unwrap_or_default();
    let mapped = Maps::read().map(|maps| maps.files_named("libibverbs.so")).unwrap_or_default();
    let own = std::fs::canonicalize(&path).unwrap_or_else(|_| path.clone());
    let owned = |(name, version): (&str, &str)| (name.to_owned(), version.to_owned());
    LibraryFacts {
        path: path.display().to_string(),
        others: mapped
            .iter()
            .filter(|other| **other != own)
            .map(|other| other.display().to_string())
            .collect(),
        missing: library.missing().into_iter().map(owned).collect(),
    }
}

fn device(context: &Arc<Context>, config: &Config) -> DeviceFacts {
    let mut facts = DeviceFacts { name: context.name().to_owned(), ..DeviceFacts::default() };
    let Ok(attributes) = context.attributes() else { return facts };
    facts.firmware = attributes
        .firmware
        .iter()
        .take_while(|byte| **byte != 0)
        .map(|byte| char::from(*byte))
        .collect();
    facts.max_queue_pairs = attributes.max_queue_pairs.into();
    facts.max_memory_regions = attributes.max_memory_regions.into();
    let domain = ProtectionDomain::new(context);
    facts.takes_dmabuf = domain.as_ref().is_ok_and(|domain| domain.supports_dmabuf());
    facts.ports = (1..=attributes.port_count)
        .map(|number| port(context, domain.as_ref().ok(), number, config))
        .collect();
    facts.registration = Some(domain.as_ref().map_err(|e| words(e.clone())).and_then(register));
    facts.queue_pair = Some(
        domain.map_err(words).and_then(|domain| queue_pair(context, &domain).map(|pair| pair.1)),
    );
    facts
}

fn port(
    context: &Arc<Context>,
    domain: Option<&Arc<ProtectionDomain>>,
    number: u8,
    config: &Config,
) -> PortFacts {
    let attributes = match context.port(number) {
        Ok(attributes) => attributes,
        Err(error) => {
            return PortFacts { port: number, error: Some(words(error)), ..PortFacts::default() };
        }
    };
    let bytes = |code: u8| if (1..=5).contains(&code) { 128 << code } else { 0 };
    // The step to INIT is the first at which a device looks at the index.
    let pkey = domain.map(|domain| {
        let (pair, _) = queue_pair(context, domain)?;
        let index = partition_index(context, number, config).map_err(words)?;
        pair.initialize(number, index, RemoteAccess::Write).map(|_| index).map_err(words)
    });
    PortFacts {
        port: number,
        error: None,
        active: attributes.active,
        link_layer: match attributes.link_layer {
            LinkLayer::InfiniBand => "InfiniBand".into(),
            LinkLayer::Ethernet => "Ethernet".into(),
            LinkLayer::Other(number) => number.to_string(),
        },
        lid: attributes.lid,
        sm_lid: attributes.sm_lid,
        mtu: bytes(attributes.mtu),
        max_mtu: bytes(attributes.max_mtu),
        pkey_count: attributes.pkey_count,
        pkey,
    }
}

/// Registers as much host memory as a job might at once, and deregisters it.
fn register(domain: &Arc<ProtectionDomain>) -> std::result::Result<u64, String> {
    let bytes = TRIAL_BYTES.min(free_memory() / 4).max(1 << 20);
    let memory: Result<Buffer> = Buffer::unused(bytes as usize);
    let memory = memory.map_err(|problem| problem.to_string())?;
    let address = memory.address(0, memory.len()).map_err(|problem| problem.to_string())? as u64;
    // SAFETY: the region is dropped in this statement, the memory after it.
    unsafe {
        MemoryRegion::register(
            domain,
            address,
            memory.len(),
            nccl_net::inspect::memory::Source::Address,
            true,
        )
    }
    .map_err(words)?;
    Ok(memory.len() as u64)
}

/// Bytes that the kernel could give.
fn free_memory() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok())
        .map_or(u64::MAX, |kib| kib * 1024)
}

/// A queue pair as a receiver has it, with the inline data that was granted.
fn queue_pair(
    context: &Arc<Context>,
    domain: &Arc<ProtectionDomain>,
) -> std::result::Result<(ResetQueuePair, u32), String> {
    let queue = CompletionQueue::new(context, TRIAL_COMPLETIONS).map_err(words)?;
    let pair = ResetQueuePair::new(domain, None, &queue, caps::RECEIVER_QP_CAPS).map_err(words)?;
    let granted = pair.inline_bytes();
    Ok((pair, granted))
}

fn rail_facts(rail: &CardPort) -> RailFacts {
    let range =
        rail.config.gid_range.filter(|_| rail.config.gid_index.is_none() && !rail.infiniband);
    let gid = rail.local_address().map_err(words).map(|address| {
        let gid = address.gid;
        GidFacts {
            index: gid.index,
            address: gid.address().to_string(),
            roce_version: gid.roce_version,
            link_local: gid.is_link_local(),
            is_outside_range: range.is_some_and(|range| !range.contains(gid.address())),
        }
    });
    RailFacts {
        device: rail.card.name.clone(),
        port: rail.number,
        speed_mbps: rail.speed_mbps,
        infiniband: rail.infiniband,
        description: rail.describe().trim_start_matches(&rail.name).trim_start().to_owned(),
        gid: Some(gid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_precedes_the_files_and_the_users_file_precedes_the_machines() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(folder.path().join("etc")).expect("made");
        std::fs::create_dir_all(folder.path().join("home/u")).expect("made");
        std::fs::write(folder.path().join("etc/nccl.conf"), "A=1\n# B=2\nC=3\nD = 4\n")
            .expect("written");
        std::fs::write(folder.path().join("home/u/.nccl.conf"), "C=5\n").expect("written");
        let set = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let env = [set("HOME", "/home/u"), set("A", "0")].into();
        let added = added_by_files(&Root::new(folder.path()), &env, Reading::of(None));
        let told: Vec<_> =
            added.iter().map(|(name, (value, place))| format!("{name}={value} {place}")).collect();
        assert_eq!(told, ["C=5 /home/u/.nccl.conf, line 1", "D = 4 /etc/nccl.conf, line 4"]);
    }

    #[test]
    fn bridges_are_the_functions_above() {
        let path = "/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0".into();
        let nic = PciFunction { name: "x".into(), path };
        let root_port = PathBuf::from("/sys/devices/pci0000:16/0000:16:01.0");
        assert_eq!(nic.bridges(), [root_port.clone(), root_port.join("0000:17:00.0")]);
    }
}
