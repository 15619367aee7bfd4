//! The command line, as users run it.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use super::verbs::library_path;

/// `softrnic` with these arguments; it finds the fabric by the environment of the test.
pub fn softrnic(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_softrnic")).args(args).output().expect("softrnic runs")
}

/// As [`softrnic`]; it must succeed. What it prints.
pub fn control(args: &[&str]) -> String {
    let output = softrnic(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// As [`softrnic`]; it must fail. What it says.
pub fn refused(args: &[&str]) -> String {
    let output = softrnic(args);
    assert!(!output.status.success(), "{args:?} succeeded");
    String::from_utf8(output.stderr).expect("UTF-8")
}

/// A folder with the library under its installed name; goes when dropped.
pub struct LibraryDir(PathBuf);

impl LibraryDir {
    pub fn new(test: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("softrnic-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        symlink(library_path(), dir.join("libibverbs.so.1")).expect("a link");
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LibraryDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
