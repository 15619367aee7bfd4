//! A folder that hides libibverbs from the loader.

use tempfile::TempDir;

use crate::error::{Error, Result};

/// Makes a folder with files of libibverbs's names that are no libraries, to be put before the system's own. It is removed
/// when the value is dropped.
pub(super) fn folder() -> Result<TempDir> {
    let failed = |source| Error::io("cannot make a folder without libibverbs", source);
    let folder = tempfile::Builder::new().prefix("ferrite-no-verbs-").tempdir().map_err(failed)?;
    for name in ["libibverbs.so", "libibverbs.so.1"] {
        std::fs::write(folder.path().join(name), "no library").map_err(failed)?;
    }
    Ok(folder)
}
