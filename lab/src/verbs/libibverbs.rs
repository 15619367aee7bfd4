//! Which libibverbs the transports get, and the settings that both sides get alike.

use std::ffi::OsString;
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::system::maps::Maps;
use crate::verbs::fabric;

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
                format!("no software RDMA device at {} (pass --softrnic DIR, or --verbs system)", library.display()),
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

    /// The same where the processes of a pair are on two hosts, which have no interface of one machine alone in common.
    pub(crate) fn settings_between_hosts(&self) -> Vec<(&'static str, OsString)> {
        self.settings().into_iter().filter(|(name, _)| *name != "NCCL_SOCKET_IFNAME").collect()
    }

    /// The environment of a process that works on `fabric`, all on this host.
    pub(crate) fn apply(&self, command: &mut Command, fabric: &str) {
        self.apply_with(self.settings(), command, fabric);
    }

    /// As [`Self::apply`], with these settings.
    pub(crate) fn apply_with(&self, settings: Vec<(&'static str, OsString)>, command: &mut Command, fabric: &str) {
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

    /// Does the same for the fabrics of runs that were killed themselves. Those in which a process takes part stay,
    /// whatever its process id namespace.
    pub fn clean_stale(&self) {
        let Self::Softrnic { .. } = self else { return };
        let entries = std::fs::read_dir(shared_memory()).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(is_ours)) {
            fabric::remove_unless_held(&entry.path());
        }
    }

    /// Which libibverbs this process has mapped, after `init`; of the software device, by the name that every transport finds.
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

/// Whether two files are one, or copies: a wheel has no links, so that libibverbs.so there is a copy of libibverbs.so.1.
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

/// A fabric name that no other pair on this machine has. Processes of two process id namespaces can have one id: hence
/// the random number.
pub(crate) fn new_fabric_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (pid, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let random = RandomState::new().hash_one(number) as u32;
    format!("ferrite-{pid}-{number}-{random:08x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hosts_do_not_meet_over_loopback() {
        let verbs = Verbs::Softrnic { folder: "x".into() };
        let has = |settings: Vec<(&str, OsString)>| settings.iter().any(|(name, _)| *name == "NCCL_SOCKET_IFNAME");
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
