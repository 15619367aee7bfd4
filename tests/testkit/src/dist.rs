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
///
/// # Errors
/// It has not been built.
pub fn built(part: &str) -> Result<PathBuf, Missing> {
    existing(&dist(), part)
}

/// The plugin.
///
/// # Errors
/// It has not been built.
pub fn plugin() -> Result<PathBuf, Missing> {
    built("lib/libnccl-net.so")
}

/// The folder with the software device's libibverbs.
///
/// # Errors
/// It has not been built.
pub fn softrnic_library_folder() -> Result<PathBuf, Missing> {
    let library = built("softrnic/libibverbs.so.1")?;
    Ok(library.parent().expect("it is a file in a folder").to_owned())
}

/// The command of the software device.
///
/// # Errors
/// It has not been built.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn a_part_that_is_not_there_is_missing_by_its_whole_path() {
        let folder = Scratch::new();
        let path = folder.write("part", "");
        assert_eq!(existing(&folder, "part"), Ok(path));
        let missing = existing(&folder, "other").expect_err("it is not there");
        let words = format!("{}/other is missing (scripts/build.sh makes it)", folder.display());
        assert_eq!(missing.0, words);
    }
}
