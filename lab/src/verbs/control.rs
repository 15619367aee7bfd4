//! The command line of the software device.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The command line of the software device whose library is in `folder`.
///
/// # Errors
/// [`Error::Io`] if it is not where it is built.
pub(crate) fn control_of(folder: &Path) -> Result<PathBuf> {
    let path = folder.join("../bin/softrnic");
    std::fs::canonicalize(&path).map_err(|source| {
        Error::io(
            format!("no command line of the software device at {} (scripts/build.sh makes it)", path.display()),
            source,
        )
    })
}
