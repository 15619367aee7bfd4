//! What `scripts/build.sh` has built.

use crate::skip::Missing;
use std::path::{Path, PathBuf};

/// The folder that `scripts/build.sh` fills; `FERRITE_DIST` names another.
#[must_use]
pub fn dist() -> PathBuf {
    let named = std::env::var_os("FERRITE_DIST").map(PathBuf::from);
    named.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist"))
}

/// A file of that folder.
pub fn built(part: &str) -> Result<PathBuf, Missing> {
    existing(&dist(), part)
}

/// The plugin.
pub fn plugin() -> Result<PathBuf, Missing> {
    built("lib/libnccl-net.so")
}

/// The folder with the software device's libibverbs.
pub fn softrnic_library_folder() -> Result<PathBuf, Missing> {
    let library = built("softrnic/libibverbs.so.1")?;
    Ok(library.parent().expect("it is a file in a folder").to_owned())
}

/// The command of the software device.
pub fn softrnic_program() -> Result<PathBuf, Missing> {
    built("bin/softrnic")
}

fn existing(folder: &Path, part: &str) -> Result<PathBuf, Missing> {
    let path = folder.join(part);
    if path.exists() {
        return Ok(path);
    }
    Err(Missing(format!("{} is missing (scripts/build.sh makes it)", path.display())))
}
