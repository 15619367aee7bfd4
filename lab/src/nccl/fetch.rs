//! Downloads a release of NCCL with pip.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::error::{Error, Result};
use crate::nccl::release::NcclRelease;
use crate::nccl::stock_library::{FILE, INSIDE, by_hand, verify_as};

/// Downloads the wheel beside its final place and renames the verified library into it, so that an incomplete file is
/// never used.
pub(super) fn fetch(target: &Path, release: NcclRelease) -> Result<()> {
    let Some(folder) = target.parent() else {
        return Err(Error::Misuse("the cache is a folder"));
    };
    let failed = |source| {
        let what = format!("cannot create a folder in {}; XDG_CACHE_HOME names another cache", folder.display());
        Error::io(what, source)
    };
    std::fs::create_dir_all(folder).map_err(failed)?;
    let scratch = tempfile::Builder::new().prefix("fetch-").tempdir_in(folder).map_err(failed)?;
    log::info!("fetching {} ({} MB, once) into {}", release.package(), release.megabytes, folder.display());
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
