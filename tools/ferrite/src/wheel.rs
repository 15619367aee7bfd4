//! The stock library to compare against: libnccl.so.2 out of the public wheel, kept in a cache
//! outside the build tree.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::elf;
use crate::error::{Error, Result};
use crate::library::{Object, STOCK_SYMBOL};

/// The version that is compared against, as `ncclGetVersion` reports it.
pub const VERSION: i32 = 22105;
/// The same, as people write it.
pub const VERSION_TEXT: &str = "2.21.5";
/// The name of the library.
const FILE: &str = "libnccl.so.2";
/// The package, for the package index.
const PACKAGE: &str = "nvidia-nccl-cu12==2.21.5";
/// Where the library lies inside the wheel.
const INSIDE: &str = "nvidia/nccl/lib/libnccl.so.2";

/// `found` if it is [`VERSION`].
pub(crate) fn require_version(path: &Path, found: i32) -> Result<i32> {
    if found == VERSION {
        return Ok(found);
    }
    Err(Error::Refused(format!("{} is NCCL {}, not {VERSION_TEXT}", path.display(), version_text(found))))
}

/// `22105` as `2.21.5`.
pub fn version_text(version: i32) -> String {
    let (major, rest) =
        if version < 10_000 { (version / 1000, version % 1000) } else { (version / 10_000, version % 10_000) };
    format!("{major}.{}.{}", rest / 100, rest % 100)
}

/// Finds the stock library: `given`, else `$FERRITE_NCCL`, else the cache, else fetches it into
/// the cache with pip. Whatever is found is verified.
///
/// # Errors
/// [`Error::Io`], [`Error::Load`], [`Error::Symbol`] or [`Error::Refused`] if the file is not the
/// right library; [`Error::Fetch`] if it could not be fetched, with pip's last words and the way
/// to provide it by hand.
pub fn find(given: Option<&Path>) -> Result<PathBuf> {
    let named = given
        .map(Path::to_path_buf)
        .or_else(|| std::env::var_os("FERRITE_NCCL").filter(|value| !value.is_empty()).map(PathBuf::from));
    if let Some(path) = named {
        verify(&path)?;
        return Ok(path);
    }
    let cached = cache_folder()?.join(FILE);
    if cached.exists() {
        verify(&cached).map_err(|problem| {
            Error::Refused(format!(
                "the cached {} is not usable ({problem}); delete it to have it fetched again",
                cached.display()
            ))
        })?;
    } else {
        fetch(&cached)?;
    }
    Ok(cached)
}

/// Checks that the file is NCCL [`VERSION`] with the built-in IB transport's symbol in it.
///
/// # Errors
/// As [`find`], without the fetching.
pub fn verify(path: &Path) -> Result<()> {
    let path =
        std::fs::canonicalize(path).map_err(|source| Error::io(format!("cannot open {}", path.display()), source))?;
    elf::local_symbol(&path, STOCK_SYMBOL)?;
    require_version(&path, Object::open(&path)?.nccl_version()?)?;
    Ok(())
}

/// `${XDG_CACHE_HOME:-~/.cache}/ferrite/nccl-2.21.5`
fn cache_folder() -> Result<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let base = set("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| set("HOME").map(|home| Path::new(&home).join(".cache")))
        .ok_or_else(|| {
            Error::Fetch(format!("no place to keep {FILE}: neither XDG_CACHE_HOME nor HOME is set; {}", by_hand()))
        })?;
    Ok(base.join("ferrite").join(format!("nccl-{VERSION_TEXT}")))
}

fn by_hand() -> String {
    format!(
        "to provide it by hand, take {INSIDE} out of the wheel of {PACKAGE} and pass --nccl PATH, \
         set FERRITE_NCCL=PATH, or put it at ~/.cache/ferrite/nccl-{VERSION_TEXT}/{FILE}"
    )
}

/// Downloads the wheel beside its final place and renames the verified library into it, so that a
/// half-fetched file is never seen.
fn fetch(target: &Path) -> Result<()> {
    let Some(folder) = target.parent() else {
        return Err(Error::Misuse("the cache is a folder"));
    };
    let scratch = folder.join(format!("fetch-{}", std::process::id()));
    std::fs::create_dir_all(&scratch)
        .map_err(|source| Error::io(format!("cannot create {}", scratch.display()), source))?;
    log::info!("fetching {PACKAGE} (190 MB, once) into {}", folder.display());
    let outcome = fetch_into(&scratch, target);
    if let Err(problem) = std::fs::remove_dir_all(&scratch) {
        log::warn!("cannot remove {}: {problem}", scratch.display());
    }
    outcome
}

fn fetch_into(scratch: &Path, target: &Path) -> Result<()> {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--disable-pip-version-check"])
        .args(["--no-input", "--no-deps", "--only-binary", ":all:"])
        .args(["--progress-bar", "off", "--dest"])
        .arg(scratch)
        .arg(PACKAGE);
    run(&mut pip, "pip could not download it")?;
    let wheel = std::fs::read_dir(scratch)
        .map_err(|source| Error::io(format!("cannot read {}", scratch.display()), source))?
        .filter_map(|entry| entry.ok().map(|entry| entry.path()))
        .find(|path| path.extension().is_some_and(|ext| ext == "whl"))
        .ok_or_else(|| cannot("pip said it succeeded but left no wheel"))?;
    let mut unpack = Command::new("python3");
    unpack.args(["-m", "zipfile", "-e"]).arg(&wheel).arg(scratch);
    run(&mut unpack, "the wheel could not be unpacked")?;
    let library = scratch.join(INSIDE);
    verify(&library)?;
    std::fs::rename(&library, target)
        .map_err(|source| Error::io(format!("cannot move it to {}", target.display()), source))
}

fn run(command: &mut Command, failure: &str) -> Result<()> {
    let output =
        command.stdin(Stdio::null()).output().map_err(|source| cannot(&format!("python3 did not start: {source}")))?;
    if output.status.success() {
        return Ok(());
    }
    Err(cannot(&format!("{failure}:{}", last_lines(&output))))
}

fn cannot(why: &str) -> Error {
    Error::Fetch(format!("could not fetch {FILE} of NCCL {VERSION_TEXT} ({PACKAGE}): {why}\n{}", by_hand()))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_in_words() {
        assert_eq!(version_text(22105), "2.21.5");
        assert_eq!(version_text(22809), "2.28.9");
        assert_eq!(version_text(2708), "2.7.8");
    }
}
