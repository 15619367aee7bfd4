//! The files of a machine, below `/` or below a folder that stands for it.

use std::fs;
use std::path::{Path, PathBuf};

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
        fs::read(self.path(path)).ok().map(|bytes| String::from_utf8_lossy(&bytes).trim().to_owned())
    }

    /// The number in a file.
    pub fn number(&self, path: impl AsRef<Path>) -> Option<i64> {
        self.text(path)?.parse().ok()
    }

    /// The names in a folder, in order; none if it is missing.
    pub fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
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
