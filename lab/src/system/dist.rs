//! Where the project's built files lie, next to this program or where `$FERRITE_DIST` says.

use std::fs;
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
        match fs::metadata(&path) {
            Ok(_) => Ok(path),
            Err(source) => Err(Error::io(
                format!("no plugin at {} (pass --plugin PATH)", path.display()),
                source,
            )),
        }
    }
}

/// The folder that stands for `/`.
#[derive(Debug, Clone)]
pub struct Root(PathBuf);

impl Root {
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// Whether it is the machine's own `/`.
    pub fn is_real(&self) -> bool {
        self.0 == Path::new("/")
    }

    /// Where the absolute `path` lies.
    pub fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file without white space around it; `None` if it is missing or unreadable.
    pub fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read(self.path(path))
            .ok()
            .map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The number in a file.
    pub fn number(&self, path: impl AsRef<Path>) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    /// The names in a folder, in order; none if it is missing.
    pub fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        names
    }

    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.path(path).exists()
    }

    /// The last part of what a symbolic link points to.
    pub fn link_name(&self, path: impl AsRef<Path>) -> Option<String> {
        let target = fs::read_link(self.path(path)).ok()?;
        Some(target.file_name()?.to_string_lossy().into_owned())
    }

    /// The path below this root, as an absolute one, with all symbolic links followed.
    pub fn resolved(&self, path: impl AsRef<Path>) -> Option<PathBuf> {
        let whole = fs::canonicalize(self.path(path)).ok()?;
        let root = fs::canonicalize(&self.0).ok()?;
        Some(Path::new("/").join(whole.strip_prefix(root).ok()?))
    }
}
