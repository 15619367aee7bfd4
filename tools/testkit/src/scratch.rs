//! Folders of a test's own.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A fresh empty folder that nobody else uses. It goes, with all that is in it, when this is dropped.
#[derive(Debug)]
pub struct Scratch(TempDir);

impl Scratch {
    /// Makes one below the system's folder for temporary files.
    ///
    /// # Panics
    /// If that takes no folder.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("ferrite-test-").tempdir();
        Self(folder.expect("the system's folder for temporary files takes a folder"))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file in it; its path.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, contents).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }
}

impl Default for Scratch {
    fn default() -> Self {
        Self::new()
    }
}

impl Deref for Scratch {
    type Target = Path;
    fn deref(&self) -> &Path {
        self.path()
    }
}

impl AsRef<Path> for Scratch {
    fn as_ref(&self) -> &Path {
        self.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_folders_are_distinct_and_go_with_all_that_is_in_them() {
        let (one, two) = (Scratch::new(), Scratch::new());
        assert_ne!(one.path(), two.path());
        let (path, file) = (one.to_path_buf(), one.write("file", "text"));
        assert_eq!(std::fs::read(&file).expect("it was written"), b"text");
        drop(one);
        assert!(!path.exists() && two.exists());
    }
}
