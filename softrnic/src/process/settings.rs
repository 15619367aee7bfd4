//! What the environment may say. Read once, when the process first touches the device list.

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::drivers;
use crate::drivers::table::{Driver, Library};
use crate::host;
use crate::limits::{CQS, MAX_INLINE, MAX_QP_WR, MRS, QPS};
use crate::network::topology::Requested;

/// Validated settings.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) shm_dir: PathBuf,
    pub(crate) fabric: String,
    pub(crate) requested: Requested,
    /// Whose devices it does like.
    pub(crate) driver: &'static Driver,
    pub(crate) library: &'static Library,
    pub(crate) quiet: bool,
    pub(crate) strict: bool,
    /// The fabric spreads the packets of every queue pair over all paths.
    pub(crate) spray: bool,
    pub(crate) stat: bool,
    /// How GPU memory can be registered.
    pub(crate) gpu: GpuAccess,
    /// The program that copies GPU memory in a process of its own; `None`: this process copies.
    pub(crate) gpu_helper: Option<PathBuf>,
    /// Options of enhanced connection establishment that the devices have; 0: they know nothing of
    /// it.
    pub(crate) ece: u32,
    /// Ports tell their speed in the attribute of 8 bits alone, as with an old libibverbs.
    pub(crate) old_speed: bool,
    /// A queue pair has the number of the one that had its place before.
    pub(crate) qpn_reuse: bool,
    /// What becomes of packets to the same queue pair while their port is down.
    pub(crate) loopback_down: LoopbackDown,
    /// Copies are staged even where they could go directly.
    pub(crate) staged: bool,
    /// All devices have the node GUID of the first one.
    pub(crate) same_guid: bool,
    /// Nothing completes any more on a device that has failed.
    pub(crate) silent_failure: bool,
    /// A queue pair that is put into the error state reports what it has received, and nobody has
    /// polled, as flushed.
    pub(crate) error_drops: bool,
    /// Leading bits in which IPv4 addresses of one network agree; another network is not reached.
    /// 0: all are.
    pub(crate) network_bits: u32,
    /// WRITEs and READs of no bytes need a key and an address as others do.
    pub(crate) zero_keys: bool,
    /// A write with immediate data that meets no receive is placed but for its last packet.
    pub(crate) rnr_places: bool,
    /// What a queue pair has completed, and nobody has polled, outlives its destruction and its
    /// reset.
    pub(crate) stale_completions: bool,
    /// How long address resolution tries, in milliseconds.
    pub(crate) resolve_ms: u64,
    /// 7 retries are endless.
    pub(crate) endless_retries: bool,
    /// What becomes of a queue pair that sends while its own port is down.
    pub(crate) own_port_down: OwnPortDown,
    /// What the requester's own device finds wrong is reported as flushed.
    pub(crate) flush_only: bool,
    /// Queue pairs get more of everything than they ask for.
    pub(crate) grant_more: bool,
    /// Writes to memory with relaxed ordering land in no order.
    pub(crate) chaos: bool,
    /// The last word of each aligned line of 128 bytes is written after all that precedes it in its
    /// message.
    pub(crate) lines: bool,
    /// File for a line on each fault that is injected.
    pub(crate) trace: Option<PathBuf>,
    /// Fault rules that the fabric shall have, as text.
    pub(crate) faults: Option<String>,
    /// Seed of random decisions, if this process sets one.
    pub(crate) seed: Option<u64>,
    pub(crate) time_scale: f64,
    /// How long a command to a card takes at least, in microseconds.
    pub(crate) command_us: u64,
    pub(crate) max_qp: u32,
    pub(crate) max_cq: u32,
    pub(crate) max_mr: u32,
    pub(crate) max_qp_wr: u32,
    /// Most inline bytes of a work request.
    pub(crate) max_inline: u32,
    /// What becomes of a queue pair that is to have more.
    pub(crate) inline_excess: InlineExcess,
    /// What becomes of who asks for a thread domain, a parent domain or a completion queue for one
    /// thread.
    pub(crate) thread_domains: ThreadDomains,
}

/// How GPU memory can be registered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GpuAccess {
    /// By its address, as the nvidia-peermem module allows.
    pub(crate) by_address: bool,
    /// By a dma-buf.
    pub(crate) by_dmabuf: bool,
}

/// What `ibv_create_qp` does when it is asked for more inline data than there can be. Drivers
/// differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum InlineExcess {
    /// Refuses with `EINVAL`.
    #[default]
    Refuse,
    /// Refuses and leaves errno as it was.
    RefuseSilently,
    /// Makes the queue pair and grants as much as there can be.
    Grant,
}

/// What becomes of who asks for a thread domain, a parent domain or a completion queue for one
/// thread. Devices differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ThreadDomains {
    /// Gets it.
    #[default]
    Granted,
    /// The driver knows nothing of it: `EOPNOTSUPP`.
    Absent,
    /// The device has no more of it: `ENOMEM`.
    Exhausted,
}

/// What becomes of the packets of a queue pair that is connected with itself, while its port is
/// down. Devices differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LoopbackDown {
    /// They arrive.
    #[default]
    Answered,
    /// They vanish.
    Lost,
}

/// What becomes of a queue pair that sends while its own port is down, or has lost the address that
/// it sends from. Devices differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OwnPortDown {
    /// It sends again, as if the packets were lost on the way.
    #[default]
    Retried,
    /// It fails at once.
    Fails,
}

impl Settings {
    /// For looking at a fabric from outside: nothing but where it is matters.
    pub(crate) fn of_observer(shm_dir: &Path, fabric: &str) -> Self {
        Self {
            shm_dir: shm_dir.to_owned(),
            fabric: fabric.to_owned(),
            requested: Requested::default(),
            driver: drivers::own(),
            library: drivers::own().library(),
            quiet: true,
            strict: false,
            spray: false,
            stat: false,
            gpu: GpuAccess::default(),
            gpu_helper: None,
            ece: 0,
            loopback_down: LoopbackDown::default(),
            old_speed: false,
            qpn_reuse: false,
            same_guid: false,
            silent_failure: false,
            error_drops: false,
            network_bits: 0,
            zero_keys: false,
            rnr_places: false,
            stale_completions: false,
            resolve_ms: 0,
            endless_retries: false,
            own_port_down: OwnPortDown::default(),
            flush_only: false,
            grant_more: false,
            staged: false,
            chaos: false,
            lines: false,
            trace: None,
            faults: None,
            seed: None,
            time_scale: 1.0,
            command_us: 0,
            max_qp: QPS,
            max_cq: CQS,
            max_mr: MRS,
            max_qp_wr: MAX_QP_WR,
            max_inline: MAX_INLINE,
            inline_excess: InlineExcess::default(),
            thread_domains: ThreadDomains::default(),
        }
    }

    /// Variables of the environment that begin like ours but are none: most likely misspelt.
    pub(crate) fn unknown_variables() -> Vec<String> {
        let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        // Tests of softrnic mark their processes in the same style.
        let is_ours = |name: &String| {
            name.strip_prefix("SOFTRNIC_").is_some_and(|rest| !rest.starts_with("TEST_"))
        };
        names.filter(is_ours).filter(|name| !host::KNOWN.contains(&name.as_str())).collect()
    }

    /// Reads the environment; the error is a sentence that names the variable, its value and what
    /// is allowed.
    pub(crate) fn from_env() -> Result<Self, String> {
        let driver = drivers::from_env()?;
        // SAFETY: geteuid has no preconditions.
        let uid = unsafe { libc::geteuid() };
        let shm_dir = driver.text("SOFTRNIC_SHM_DIR")?.unwrap_or_else(|| "/dev/shm".to_owned());
        if !shm_dir.starts_with('/') {
            return Err(format!("SOFTRNIC_SHM_DIR={shm_dir}: must be an absolute path"));
        }
        let fabric = driver.text("SOFTRNIC_FABRIC")?.unwrap_or_else(|| format!("softrnic-{uid}"));
        if !is_plain_name(&fabric) {
            return Err(format!(
                "SOFTRNIC_FABRIC={fabric:?}: must be 1 to 64 of A-Z a-z 0-9 _ . - and neither \".\" nor \"..\""
            ));
        }
        let time_scale = number(driver, "SOFTRNIC_TIME_SCALE", 1.0, 1e-6, 1e3)?;
        Ok(Self {
            shm_dir: shm_dir.into(),
            fabric,
            requested: Requested::from_env(driver)?,
            driver,
            library: driver.library(),
            quiet: switch(driver, "SOFTRNIC_QUIET")?,
            strict: switch(driver, "SOFTRNIC_STRICT")?,
            spray: switch(driver, "SOFTRNIC_SPRAY")?,
            stat: switch(driver, "SOFTRNIC_STAT")?,
            gpu: gpu(driver)?,
            gpu_helper: gpu_helper(driver)?,
            ece: number(driver, "SOFTRNIC_ECE", 0, 0, u32::MAX)?,
            loopback_down: loopback_down(driver)?,
            old_speed: switch(driver, "SOFTRNIC_OLD_SPEED")?,
            qpn_reuse: switch(driver, "SOFTRNIC_QPN_REUSE")?,
            same_guid: switch(driver, "SOFTRNIC_SAME_GUID")?,
            silent_failure: switch(driver, "SOFTRNIC_SILENT_FAILURE")?,
            // Beneath a provider its library does that.
            error_drops: driver.library().refusals.is_some()
                && switch(driver, "SOFTRNIC_ERROR_DROPS")?,
            network_bits: number(driver, "SOFTRNIC_NETWORK_BITS", 0, 0, 32)?,
            zero_keys: switch(driver, "SOFTRNIC_ZERO_KEYS")?,
            rnr_places: switch(driver, "SOFTRNIC_RNR_PLACES")?,
            stale_completions: switch(driver, "SOFTRNIC_STALE_COMPLETIONS")?,
            resolve_ms: number(driver, "SOFTRNIC_RESOLVE_MS", 0, 0, 10_000)?,
            endless_retries: switch(driver, "SOFTRNIC_ENDLESS_RETRIES")?,
            own_port_down: own_port_down(driver)?,
            flush_only: switch(driver, "SOFTRNIC_FLUSH_ONLY")?,
            grant_more: switch(driver, "SOFTRNIC_GRANT_MORE")?,
            staged: switch(driver, "SOFTRNIC_STAGED")?,
            chaos: switch(driver, "SOFTRNIC_CHAOS")?,
            lines: switch(driver, "SOFTRNIC_LINES")?,
            trace: driver.text("SOFTRNIC_TRACE")?.map(Into::into),
            faults: faults(driver)?,
            seed: driver
                .text("SOFTRNIC_SEED")?
                .map(|_| number(driver, "SOFTRNIC_SEED", 0, 0, u64::MAX))
                .transpose()?,
            time_scale,
            command_us: number(driver, "SOFTRNIC_COMMAND_US", 0, 0, 100_000)?,
            max_qp: number(driver, "SOFTRNIC_MAX_QP", QPS, 1, QPS)?,
            max_cq: number(driver, "SOFTRNIC_MAX_CQ", CQS, 1, CQS)?,
            max_mr: number(driver, "SOFTRNIC_MAX_MR", MRS, 1, MRS)?,
            max_qp_wr: number(driver, "SOFTRNIC_MAX_QP_WR", MAX_QP_WR, 1, MAX_QP_WR)?,
            max_inline: number(driver, "SOFTRNIC_MAX_INLINE", MAX_INLINE, 0, MAX_INLINE)?,
            inline_excess: inline_excess(driver)?,
            thread_domains: thread_domains(driver)?,
        })
    }

    /// The errno value of a refusal of thread domains, parent domains and completion queues for one
    /// thread.
    pub(crate) fn require_thread_domains(&self) -> Result<(), i32> {
        match self.thread_domains {
            ThreadDomains::Granted => Ok(()),
            ThreadDomains::Absent => Err(libc::EOPNOTSUPP),
            ThreadDomains::Exhausted => Err(libc::ENOMEM),
        }
    }
}

fn number<T: FromStr + PartialOrd + Display>(
    driver: &Driver,
    name: &str,
    default: T,
    low: T,
    high: T,
) -> Result<T, String> {
    let Some(value) = driver.text(name)? else { return Ok(default) };
    match value.parse::<T>() {
        Ok(parsed) if parsed >= low && parsed <= high => Ok(parsed),
        _ => Err(format!("{name}={value:?}: must be a number from {low} to {high}")),
    }
}

/// `SOFTRNIC_FAULTS`: rules, or `@` and the path of a file with rules.
fn faults(driver: &Driver) -> Result<Option<String>, String> {
    let Some(value) = driver.text("SOFTRNIC_FAULTS")? else { return Ok(None) };
    let rules = match value.strip_prefix('@') {
        None => value,
        Some(path) => {
            std::fs::read_to_string(path).map_err(|e| format!("SOFTRNIC_FAULTS={value}: {e}"))?
        }
    };
    crate::rules::parse(&rules).map_err(|e| format!("SOFTRNIC_FAULTS: {e}"))?;
    Ok(Some(rules))
}

/// `SOFTRNIC_GPU`.
fn gpu(driver: &Driver) -> Result<GpuAccess, String> {
    let (by_address, by_dmabuf) = match driver.text("SOFTRNIC_GPU")?.as_deref() {
        None | Some("none") => (false, false),
        Some("peermem") => (true, false),
        Some("dmabuf") => (false, true),
        Some("both") => (true, true),
        Some(value) => {
            return Err(format!("SOFTRNIC_GPU={value:?}: must be none, peermem, dmabuf or both"));
        }
    };
    Ok(GpuAccess { by_address, by_dmabuf })
}

/// `SOFTRNIC_GPU_HELPER`.
fn gpu_helper(driver: &Driver) -> Result<Option<PathBuf>, String> {
    let Some(program) = driver.text("SOFTRNIC_GPU_HELPER")?.filter(|program| !program.is_empty())
    else {
        return Ok(None);
    };
    if !Path::new(&program).is_file() || !program.starts_with('/') {
        return Err(format!(
            "SOFTRNIC_GPU_HELPER={program}: must be the absolute path of the program `softrnic`"
        ));
    }
    Ok(Some(program.into()))
}

/// `SOFTRNIC_INLINE_EXCESS`.
fn inline_excess(driver: &Driver) -> Result<InlineExcess, String> {
    match driver.text("SOFTRNIC_INLINE_EXCESS")?.as_deref() {
        None | Some("refuse") => Ok(InlineExcess::Refuse),
        Some("silent") => Ok(InlineExcess::RefuseSilently),
        Some("grant") => Ok(InlineExcess::Grant),
        Some(value) => {
            Err(format!("SOFTRNIC_INLINE_EXCESS={value:?}: must be refuse, silent or grant"))
        }
    }
}

/// `SOFTRNIC_LOOPBACK_DOWN`.
fn loopback_down(driver: &Driver) -> Result<LoopbackDown, String> {
    match driver.text("SOFTRNIC_LOOPBACK_DOWN")?.as_deref() {
        None | Some("answered") => Ok(LoopbackDown::Answered),
        Some("lost") => Ok(LoopbackDown::Lost),
        Some(value) => Err(format!("SOFTRNIC_LOOPBACK_DOWN={value:?}: must be answered or lost")),
    }
}

/// `SOFTRNIC_OWN_PORT_DOWN`.
fn own_port_down(driver: &Driver) -> Result<OwnPortDown, String> {
    match driver.text("SOFTRNIC_OWN_PORT_DOWN")?.as_deref() {
        None | Some("retried") => Ok(OwnPortDown::Retried),
        Some("fails") => Ok(OwnPortDown::Fails),
        Some(value) => Err(format!("SOFTRNIC_OWN_PORT_DOWN={value:?}: must be retried or fails")),
    }
}

/// `SOFTRNIC_THREAD_DOMAINS`.
fn thread_domains(driver: &Driver) -> Result<ThreadDomains, String> {
    match driver.text("SOFTRNIC_THREAD_DOMAINS")?.as_deref() {
        None | Some("granted") => Ok(ThreadDomains::Granted),
        Some("absent") => Ok(ThreadDomains::Absent),
        Some("exhausted") => Ok(ThreadDomains::Exhausted),
        Some(value) => {
            Err(format!("SOFTRNIC_THREAD_DOMAINS={value:?}: must be granted, absent or exhausted"))
        }
    }
}

fn switch(driver: &Driver, name: &str) -> Result<bool, String> {
    match driver.text(name)?.as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(value) => Err(format!("{name}={value:?}: must be 0 or 1")),
    }
}

fn is_plain_name(name: &str) -> bool {
    (1..=64).contains(&name.len())
        && name != "."
        && name != ".."
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'))
}
