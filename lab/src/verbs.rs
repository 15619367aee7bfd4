//! The RDMA side of a run.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::system::host::Maps;
use crate::transport::instance::Properties;

/// The command line of the software device whose library is in `folder`.
///
/// # Errors
/// [`Error::Io`] if it is not where it is built.
pub(crate) fn control_of(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("../bin/softrnic");
    std::fs::canonicalize(&path).map_err(|source| {
        Error::io(
            format!(
                "no command line of the software device at {} (scripts/build.sh makes it)",
                path.display()
            ),
            source,
        )
    })
}

/// The processes of a fabric hold record locks on its file from this offset on. The kernel drops
/// them with their process, and they are the same in every process id namespace.
const LOCKS: i64 = 1 << 40;

/// What every fabric begins with.
const MAGIC: [u8; 8] = *b"softrnic";

/// Removes the fabric in `path` if no process takes part in it. One that cannot be looked at stays.
/// This process must not take part in it: closing the file would release the process's own locks.
pub(crate) fn remove_unless_held(path: &Path) {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let Ok(file) = options.open(path) else { return };
    if !is_own_fabric(&file) {
        return;
    }
    // A process that opens the fabric now waits for the lock, and then finds that the name is no
    // longer this file's.
    if hold_all(&file) && is_named(&file, path) {
        std::fs::remove_file(path).unwrap_or_default();
    }
}

/// Whether it is a fabric of this user's, by what every fabric begins with.
fn is_own_fabric(file: &File) -> bool {
    let mut begin = [0; MAGIC.len()];
    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    file.metadata().is_ok_and(|metadata| metadata.uid() == user)
        && file.read_exact_at(&mut begin, 0).is_ok()
        && begin == MAGIC
}

/// Takes every lock that a process of a fabric can hold, until the file is closed; false if a
/// process has one.
fn hold_all(file: &File) -> bool {
    // SAFETY: all zeros is a valid flock.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    // A length of 0 is "without end".
    (range.l_type, range.l_whence, range.l_start) =
        (libc::F_WRLCK as i16, libc::SEEK_SET as i16, LOCKS);
    // SAFETY: an open file; `range` outlives the call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) == 0 }
}

/// Whether `path` still names `file`.
fn is_named(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), path.symlink_metadata()) else { return false };
    named.is_file() && (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// The library a transport opens at run time.
const LIBRARY: &str = "libibverbs.so.1";

/// The software device's variable for the name of its fabric, a file in shared memory.
const FABRIC: &str = "SOFTRNIC_FABRIC";

/// The libibverbs of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Verbs {
    /// Whatever the machine has; the loader path is left alone.
    System,
    /// The software RDMA device, private to each pair of processes.
    Softrnic {
        /// The folder that holds its libibverbs.so.1.
        folder: PathBuf,
    },
}

impl Verbs {
    /// The software device in `folder`.
    ///
    /// # Errors
    /// [`Error::Io`] if it is not there.
    pub fn softrnic(folder: &Path) -> Result<Self> {
        let library = folder.join(LIBRARY);
        std::fs::metadata(&library).map_err(|source| {
            Error::io(
                format!(
                    "no software RDMA device at {} (pass --softrnic DIR, or --verbs system)",
                    library.display()
                ),
                source,
            )
        })?;
        let folder = std::fs::canonicalize(folder)
            .map_err(|source| Error::io(format!("cannot open {}", folder.display()), source))?;
        Ok(Self::Softrnic { folder })
    }

    /// `softrnic` or `system`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Softrnic { .. } => "softrnic",
        }
    }

    /// The variables that both processes of every pair get, whatever they load. What the user has
    /// set stays, but for the loader path, which is put before it.
    pub fn settings(&self) -> Vec<(&'static str, OsString)> {
        let mut settings: Vec<(&str, OsString)> =
            vec![("NCCL_DEBUG", "INFO".into()), ("NCCL_IB_MERGE_NICS", "0".into())];
        if let Self::Softrnic { .. } = self {
            settings.extend([("NCCL_SOCKET_IFNAME", "lo".into()), ("SOFTRNIC_QUIET", "1".into())]);
        }
        settings.retain(|(name, _)| std::env::var_os(name).is_none());
        if let Self::Softrnic { folder } = self {
            let mut path = OsString::from(folder);
            if let Some(old) = std::env::var_os("LD_LIBRARY_PATH").filter(|old| !old.is_empty()) {
                path.push(":");
                path.push(old);
            }
            settings.push(("LD_LIBRARY_PATH", path));
        }
        settings
    }

    /// The same where the processes of a pair are on two hosts, which have no interface of one
    /// machine alone in common.
    pub(crate) fn settings_between_hosts(&self) -> Vec<(&'static str, OsString)> {
        self.settings().into_iter().filter(|(name, _)| *name != "NCCL_SOCKET_IFNAME").collect()
    }

    /// The environment of a process that works on `fabric`, all on this host.
    pub(crate) fn apply(&self, command: &mut Command, fabric: &str) {
        self.apply_with(self.settings(), command, fabric);
    }

    /// As [`Self::apply`], with these settings.
    pub(crate) fn apply_with(
        &self,
        settings: Vec<(&'static str, OsString)>,
        command: &mut Command,
        fabric: &str,
    ) {
        command.envs(settings);
        if let Self::Softrnic { .. } = self {
            command.env(FABRIC, fabric);
        }
    }

    /// Removes what processes that were killed left of their fabric: normally the last process to
    /// leave has done so.
    pub(crate) fn clean(&self, fabric: &str) {
        if let Self::Softrnic { .. } = self {
            std::fs::remove_file(shared_memory().join(fabric)).unwrap_or_default();
        }
    }

    /// Does the same for the fabrics of runs that were killed themselves. Those in which a process
    /// takes part stay, whatever its process id namespace.
    pub fn clean_stale(&self) {
        let Self::Softrnic { .. } = self else { return };
        let entries = std::fs::read_dir(shared_memory()).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(is_ours)) {
            remove_unless_held(&entry.path());
        }
    }

    /// Which libibverbs this process has mapped, after `init`; of the software device, by the name
    /// that every transport finds.
    ///
    /// # Errors
    /// [`Error::Refused`] if it should have been the software device and is not.
    pub fn prove(&self) -> Result<Vec<PathBuf>> {
        let maps = Maps::read()?;
        let mapped = maps.files_named("libibverbs.so");
        let Self::Softrnic { folder } = self else {
            return Ok(mapped);
        };
        let expected = std::fs::canonicalize(folder.join(LIBRARY))
            .map_err(|source| Error::io(format!("cannot open {}", folder.display()), source))?;
        if !mapped.is_empty() && mapped.iter().all(|path| is_same(path, &expected)) {
            return prove_fabric(&maps).map(|()| vec![expected]);
        }
        let mapped: Vec<String> = mapped.iter().map(|path| path.display().to_string()).collect();
        Err(Error::Refused(format!(
            "the transport should use {}, but this process has mapped {}",
            expected.display(),
            if mapped.is_empty() { "no libibverbs at all".into() } else { mapped.join(", ") }
        )))
    }
}

/// Whether two files are one, or copies: a wheel has no links, so that libibverbs.so there is a
/// copy of libibverbs.so.1.
fn is_same(one: &Path, other: &Path) -> bool {
    std::fs::canonicalize(one).is_ok_and(|path| path == other)
        || matches!((std::fs::read(one), std::fs::read(other)), (Ok(one), Ok(other)) if one == other)
}

/// Where the software device keeps its fabrics.
fn shared_memory() -> PathBuf {
    std::env::var_os("SOFTRNIC_SHM_DIR").map_or_else(|| "/dev/shm".into(), PathBuf::from)
}

/// Whether this is a name that [`new_fabric_name`] gives.
fn is_ours(fabric: &str) -> bool {
    let rest = fabric.strip_prefix("ferrite-").and_then(|rest| rest.split_once('-'));
    rest.is_some_and(|(pid, _)| pid.parse::<u32>().is_ok())
}

/// The software device keeps its state in a file that both processes map: this process has to be
/// on the fabric of its pair.
fn prove_fabric(maps: &Maps) -> Result<()> {
    let fabric = std::env::var(FABRIC).unwrap_or_default();
    if !fabric.is_empty() && !maps.files_named(&fabric).is_empty() {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "the software device is loaded, but this process has not joined the fabric {fabric:?}: the transport found its \
         device elsewhere"
    )))
}

/// A fabric name that no other pair on this machine has. Processes of two process id namespaces can
/// have one id: hence the random number.
pub(crate) fn new_fabric_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let random = RandomState::new().hash_one(number) as u32;
    format!("ferrite-{pid}-{number}-{random:08x}")
}

/// Counters of one port, or their growth. Only kernel devices have them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortCounters {
    /// The device's name.
    pub device: String,
    /// The counters that were read, and their values (`port_*_data` count 4-byte words).
    pub counters: Vec<(String, u64)>,
}

/// Counters of bytes or packets, by what drivers call them.
const NAMES: [&str; 4] = [
    "counters/port_xmit_data", "counters/port_rcv_data", "hw_counters/sent_pkts",
    "hw_counters/rcvd_pkts",
];

impl PortCounters {
    /// Reads the counters of the port; `None` where there are none.
    pub fn read(device: &Properties) -> Option<Self> {
        let port = Path::new("/sys/class/infiniband")
            .join(&device.name)
            .join("ports")
            .join(device.port.to_string());
        Self::read_from(&port, &device.name)
    }

    fn read_from(port: &Path, device: &str) -> Option<Self> {
        let value = |name: &&str| {
            let text = std::fs::read_to_string(port.join(name)).ok()?;
            Some(((*name).to_owned(), text.trim().parse().ok()?))
        };
        let counters: Vec<(String, u64)> = NAMES.iter().filter_map(value).collect();
        (!counters.is_empty()).then(|| Self { device: device.into(), counters })
    }

    /// How much they have grown since this reading.
    pub fn until_now(&self, device: &Properties) -> Option<Self> {
        let now = Self::read(device)?;
        let counters = self.counters.iter().zip(now.counters);
        Some(Self {
            device: now.device,
            counters: counters
                .map(|((name, before), (_, after))| (name.clone(), after.saturating_sub(*before)))
                .collect(),
        })
    }

    /// Whether any of them moved.
    pub fn moved(&self) -> bool {
        self.counters.iter().any(|(_, value)| *value > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

    const NAME: &str = "verbs::tests::a_fabric_with_a_process_in_another_namespace_stays";
    const PATH: &str = "FERRITE_TEST_HOLD";

    /// In a process of its own, below: holds what a process of a fabric holds until its input ends.
    fn hold(path: &Path) {
        let file = OpenOptions::new().read(true).write(true).open(path).expect("the fabric");
        // SAFETY: all zeros is a valid flock.
        let mut range: libc::flock = unsafe { std::mem::zeroed() };
        (range.l_type, range.l_start, range.l_len) = (libc::F_WRLCK as i16, LOCKS + 3, 1);
        // SAFETY: an open file; `range` outlives the call.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const range) }, 0);
        println!("\nholding");
        std::io::stdin().read_line(&mut String::new()).expect("the end");
    }

    /// The holder's process id means nothing here.
    #[test]
    fn a_fabric_with_a_process_in_another_namespace_stays() {
        if let Some(path) = std::env::var_os(PATH) {
            return hold(Path::new(&path));
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("fabric");
        // What does not begin like a fabric is none, whatever its name.
        std::fs::write(&path, "a file of somebody's").expect("a file");
        remove_unless_held(&path);
        assert!(path.exists(), "it is no fabric");
        std::fs::write(&path, MAGIC).expect("a file");
        let unshared = ["--pid", "--fork", "--kill-child", "--mount-proc"];
        let rootless = ["--user", "--map-root-user"];
        // SAFETY: no preconditions.
        let flags = if unsafe { libc::geteuid() } == 0 {
            unshared.to_vec()
        } else {
            [&rootless[..], &unshared].concat()
        };
        let may_unshare = Command::new("unshare")
            .args(&flags)
            .arg("true")
            .output()
            .is_ok_and(|o| o.status.success());
        let mut command = if may_unshare {
            let mut command = Command::new("unshare");
            command.args(&flags).arg(std::env::current_exe().expect("own path"));
            command
        } else {
            let _ =
                writeln!(std::io::stderr(), "skipped: process id namespaces; in this one instead");
            Command::new(std::env::current_exe().expect("own path"))
        };
        command.args([NAME, "--exact", "--nocapture"]).env(PATH, &path);
        let mut holder =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
        let mut lines = BufReader::new(holder.stdout.as_mut().expect("piped")).lines();
        while lines.next().expect("the line").expect("text") != "holding" {}
        remove_unless_held(&path);
        assert!(path.exists(), "a process takes part in it");
        drop(holder.stdin.take());
        assert!(holder.wait().expect("wait").success());
        remove_unless_held(&path);
        assert!(!path.exists(), "no process takes part in it any more");
    }

    #[test]
    fn two_hosts_do_not_meet_over_loopback() {
        let verbs = Verbs::Softrnic { folder: "x".into() };
        let has = |settings: Vec<(&str, OsString)>| {
            settings.iter().any(|(name, _)| *name == "NCCL_SOCKET_IFNAME")
        };
        assert!(has(verbs.settings()) || std::env::var_os("NCCL_SOCKET_IFNAME").is_some());
        assert!(!has(verbs.settings_between_hosts()));
    }

    #[test]
    fn fabrics_are_distinct_and_known_by_their_names() {
        let (one, two) = (new_fabric_name(), new_fabric_name());
        assert_ne!(one, two);
        assert!(is_ours(&one) && is_ours(&two));
        for other in ["ferrite-", "ferrite-x-1", "softrnic-0", "ferrite-7"] {
            assert!(!is_ours(other), "{other}");
        }
    }
}
