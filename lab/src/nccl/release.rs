//! The releases of NCCL whose built-in transport this program can call.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::error::{Error, Result};
use crate::nccl::shared_object::{SharedObject, local_symbol};

/// The built-in IB transport's vtable, a local data symbol of libnccl.
pub const STOCK_SYMBOL: &str = "ncclNetIb";

/// A release of NCCL whose built-in transport this program can call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NcclRelease {
    /// As `ncclGetVersion` reports it.
    pub version: i32,
    /// As people write it.
    pub text: &'static str,
    /// The version of the vtable of its built-in transports.
    pub interface: u32,
    /// The size of the wheel; MB.
    pub(super) megabytes: u32,
}

/// All of them, oldest first.
pub const RELEASES: [NcclRelease; 9] = [
    NcclRelease { version: 22005, text: "2.20.5", interface: 8, megabytes: 176 },
    NcclRelease { version: 22105, text: "2.21.5", interface: 8, megabytes: 189 },
    NcclRelease { version: 22501, text: "2.25.1", interface: 9, megabytes: 201 },
    NcclRelease { version: 22705, text: "2.27.5", interface: 10, megabytes: 322 },
    NcclRelease { version: 22809, text: "2.28.9", interface: 11, megabytes: 297 },
    NcclRelease { version: 22907, text: "2.29.7", interface: 11, megabytes: 294 },
    NcclRelease { version: 23007, text: "2.30.7", interface: 12, megabytes: 303 },
    NcclRelease { version: 23102, text: "2.31.2", interface: 12, megabytes: 342 },
    NcclRelease { version: 23203, text: "2.32.3", interface: 12, megabytes: 352 },
];

impl NcclRelease {
    /// The one that plugins are compared with.
    pub const DEFAULT: Self = RELEASES[1];

    /// The release that people call `text`.
    ///
    /// # Errors
    /// [`Error::Usage`] for one that is not known.
    pub fn named(text: &str) -> Result<Self> {
        RELEASES.into_iter().find(|release| release.text == text).ok_or_else(|| {
            Error::Usage(format!("NCCL {text} is not known here; known are {}", known()))
        })
    }

    /// The known release that the loaded library is.
    ///
    /// # Errors
    /// [`Error::Symbol`] if it is no NCCL, [`Error::Refused`] if it is another release.
    pub(crate) fn of(library: &SharedObject) -> Result<Self> {
        let found = library.nccl_version()?;
        RELEASES.into_iter().find(|release| release.version == found).ok_or_else(|| {
            Error::Refused(format!(
                "{} is NCCL {}; known are {}",
                library.path.display(),
                version_text(found),
                known()
            ))
        })
    }

    /// The version of the table of its one-sided operations; `None`: it has none.
    pub(crate) fn one_sided(self) -> Option<u32> {
        match self.version {
            ..22900 => None,
            22900..23000 => Some(12),
            23000..23100 => Some(14),
            23100..23200 => Some(15),
            _ => Some(16),
        }
    }

    /// The package, for the package index.
    pub(super) fn package(self) -> String {
        format!("nvidia-nccl-cu12=={}", self.text)
    }
}

impl fmt::Display for NcclRelease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

fn known() -> String {
    RELEASES.map(|release| release.text).join(", ")
}

/// `22105` as `2.21.5`.
pub fn version_text(version: i32) -> String {
    let (major, rest) = if version < 10_000 {
        (version / 1000, version % 1000)
    } else {
        (version / 10_000, version % 10_000)
    };
    format!("{major}.{}.{}", rest / 100, rest % 100)
}

/// Finds the stock library to compare with: `given`, else `$FERRITE_NCCL`, else as [`fetched`] for
/// [`NcclRelease::DEFAULT`]. Whatever is found is verified.
///
/// # Errors
/// [`Error::Io`], [`Error::Load`], [`Error::Symbol`] or [`Error::Refused`] if the file is none of
/// [`RELEASES`]; else as [`fetched`].
pub fn find(given: Option<&Path>) -> Result<PathBuf> {
    let named = given.map(Path::to_path_buf).or_else(|| {
        std::env::var_os("FERRITE_NCCL").filter(|value| !value.is_empty()).map(PathBuf::from)
    });
    match named {
        Some(path) => verify(&path).map(|_| path),
        None => fetched(NcclRelease::DEFAULT),
    }
}

/// The library of `release` in the cache; fetches it with pip if it is not there.
///
/// # Errors
/// [`Error::Refused`] if the cached file is not usable; [`Error::Fetch`] if it could not be
/// fetched, with pip's last words and the way to provide it by hand.
pub fn fetched(release: NcclRelease) -> Result<PathBuf> {
    let cached = cached(release)?;
    if cached.exists() {
        verify_as(&cached, release).map_err(|problem| {
            Error::Refused(format!(
                "the cached {} is not usable ({problem}); delete it to have it fetched again",
                cached.display()
            ))
        })?;
    } else {
        fetch(&cached, release)?;
    }
    Ok(cached)
}

/// Where the library of `release` is kept:
/// `${XDG_CACHE_HOME:-~/.cache}/ferrite/nccl-2.21.5/libnccl.so.2`.
///
/// # Errors
/// [`Error::Fetch`] if there is no place for a cache.
pub fn cached(release: NcclRelease) -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")))
        .ok_or_else(|| {
            Error::Fetch(format!(
                "no place to keep {FILE}: neither XDG_CACHE_HOME nor HOME is set; {}",
                by_hand(release)
            ))
        })?;
    Ok(base.join("ferrite").join(format!("nccl-{release}")).join(FILE))
}

/// Downloads the wheel beside its final place and renames the verified library into it, so that an
/// incomplete file is never used.
pub(super) fn fetch(target: &Path, release: NcclRelease) -> Result<()> {
    let Some(folder) = target.parent() else {
        return Err(Error::Misuse("the cache is a folder"));
    };
    let failed = |source| {
        let what = format!(
            "cannot create a folder in {}; XDG_CACHE_HOME names another cache",
            folder.display()
        );
        Error::io(what, source)
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    let scratch = tempfile::Builder::new().prefix("fetch-").tempdir_in(folder).map_err(failed)?;
    log::info!(
        "fetching {} ({} MB, once) into {}",
        release.package(),
        release.megabytes,
        folder.display()
    );
    fetch_into(scratch.path(), target, release)
}

fn fetch_into(scratch: &Path, target: &Path, release: NcclRelease) -> Result<()> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--disable-pip-version-check"])
        .args(["--no-input", "--no-deps", "--only-binary", ":all:"])
        .args(["--progress-bar", "off", "--dest"])
        .arg(scratch)
        .arg(release.package());
    run(&mut pip, release, "pip could not download it")?;
    let wheel = std::fs::read_dir(scratch)
        .map_err(|source| Error::io(format!("cannot read {}", scratch.display()), source))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "whl"))
        .ok_or_else(|| cannot(release, "pip said it succeeded but left no wheel"))?;
    let mut unpack = Command::new("python3");
    unpack.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(scratch);
    run(&mut unpack, release, "the wheel could not be unpacked")?;
    let library = scratch.join(INSIDE);
    verify_as(&library, release)?;
    std::fs::rename(&library, target)
        .map_err(|source| Error::io(format!("cannot move it to {}", target.display()), source))
}

fn run(command: &mut Command, release: NcclRelease, failure: &str) -> Result<()> {
    let output = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| cannot(release, &format!("python3 did not start: {source}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(cannot(release, &format!("{failure}:{}", last_lines(&output))))
}

fn cannot(release: NcclRelease, why: &str) -> Error {
    Error::Fetch(format!(
        "could not fetch {FILE} of NCCL {release} ({}): {why}\n{}",
        release.package(),
        by_hand(release)
    ))
}

/// The last lines that a failed command printed, indented.
fn last_lines(output: &Output) -> String {
    const SHOWN: usize = 6;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.push('\n');
    text.push_str(&String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let start = lines.len().saturating_sub(SHOWN);
    lines[start..].iter().map(|line| format!("\n    {line}")).collect()
}

/// The name of the library.
pub(super) const FILE: &str = "libnccl.so.2";
/// Where the library lies inside the wheel.
pub(super) const INSIDE: &str = "nvidia/nccl/lib/libnccl.so.2";

/// Checks that the file is one of [`RELEASES`] with the built-in IB transport's symbol in it, and
/// says which.
///
/// # Errors
/// [`Error::Io`], [`Error::Load`], [`Error::Symbol`] or [`Error::Refused`] if it is none of them.
pub fn verify(path: &Path) -> Result<NcclRelease> {
    let path = std::fs::canonicalize(path)
        .map_err(|source| Error::io(format!("cannot open {}", path.display()), source))?;
    local_symbol(&path, STOCK_SYMBOL)?;
    NcclRelease::of(&SharedObject::open(&path)?)
}

/// As [`verify`]; an error unless it is `release`.
pub(super) fn verify_as(path: &Path, release: NcclRelease) -> Result<()> {
    let found = verify(path)?;
    if found == release {
        return Ok(());
    }
    Err(Error::Refused(format!("{} is NCCL {found}, not {release}", path.display())))
}

/// How a user provides the library of `release` without pip.
pub(super) fn by_hand(release: NcclRelease) -> String {
    let option = if release == NcclRelease::DEFAULT {
        "pass --nccl PATH, set FERRITE_NCCL=PATH"
    } else {
        "pass its path"
    };
    format!(
        "to provide it by hand, take {INSIDE} out of the wheel of {} and {option}, or put it at \
         ~/.cache/ferrite/nccl-{release}/{FILE}",
        release.package()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_known_by_name() {
        for release in RELEASES {
            assert_eq!(version_text(release.version), release.text);
            assert!(NcclRelease::named(release.text).is_ok_and(|found| found == release));
        }
        let words = NcclRelease::named("2.19.3").map_err(|problem| problem.to_string());
        assert_eq!(
            words,
            Err("NCCL 2.19.3 is not known here; known are 2.20.5, 2.21.5, 2.25.1, 2.27.5, 2.28.9, 2.29.7, 2.30.7, 2.31.2, 2.32.3"
                .into())
        );
    }

    #[test]
    fn versions_in_words() {
        assert_eq!(version_text(22105), "2.21.5");
        assert_eq!(version_text(22809), "2.28.9");
        assert_eq!(version_text(2708), "2.7.8");
    }
}
