//! Where the project's built files lie, next to this program or where `$FERRITE_DIST` says.

use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The folder with `bin/`, `lib/` and `softrnic/`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dist(PathBuf);

impl Dist {
    /// `$FERRITE_DIST`, else the folder above the one of this program.
    ///
    /// # Errors
    /// [`Error::Io`] if the system does not say where this program is.
    pub fn find() -> Result<Self> {
        if let Some(folder) = std::env::var_os("FERRITE_DIST").filter(|value| !value.is_empty()) {
            return Ok(Self(folder.into()));
        }
        let program = std::env::current_exe().map_err(|e| Error::io("no own program", e))?;
        let folder = program.parent().and_then(Path::parent);
        Ok(Self(folder.unwrap_or_else(|| Path::new("/")).into()))
    }

    /// The folder of the software device's libibverbs.so.1.
    pub fn softrnic(&self) -> PathBuf {
        self.0.join("softrnic")
    }

    /// The plugin.
    ///
    /// # Errors
    /// [`Error::Io`] if it is not there.
    pub fn plugin(&self) -> Result<PathBuf> {
        let path = self.0.join("lib/libnccl-net.so");
        match std::fs::metadata(&path) {
            Ok(_) => Ok(path),
            Err(source) => Err(Error::io(format!("no plugin at {} (pass --plugin PATH)", path.display()), source)),
        }
    }
}
