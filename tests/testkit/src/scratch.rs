//! Folders of a test's own.

use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, Once, PoisonError};
use tempfile::TempDir;

/// A fresh empty folder that nobody else uses. It goes, with all that is in it, when this is
/// dropped, or when `exit` ends the process.
#[derive(Debug)]
pub struct Scratch(TempDir);

/// The folders that are there, each with the process that made it: `exit`, by which the processes
/// of a pair end, drops nothing.
static THERE: Mutex<Vec<(u32, PathBuf)>> = Mutex::new(Vec::new());

extern "C" fn remove_those_left() {
    let left = std::mem::take(&mut *THERE.lock().unwrap_or_else(PoisonError::into_inner));
    // A forked child has its parent's list.
    for (_, path) in left.iter().filter(|(maker, _)| *maker == std::process::id()) {
        let _ = std::fs::remove_dir_all(path);
    }
}

impl Scratch {
    /// Makes one below the system's folder for temporary files.
    #[must_use]
    pub fn new() -> Self {
        let folder = tempfile::Builder::new().prefix("ferrite-test-").tempdir();
        let folder = folder.expect("the system's folder for temporary files takes a folder");
        static REMOVES_THEM: Once = Once::new();
        // SAFETY: the function is there until the process ends.
        REMOVES_THEM.call_once(|| assert_eq!(unsafe { libc::atexit(remove_those_left) }, 0));
        let entry = (std::process::id(), folder.path().to_owned());
        THERE.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
        Self(folder)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Writes a file in it; its path.
    pub fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path().join(name);
        std::fs::write(&path, contents).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        THERE
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .retain(|(_, path)| path != self.path());
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
    fn a_folder_goes_when_its_process_exits_and_its_forked_child_leaves_it() {
        const IS_CHILD: &str = "SCRATCH_OF_A_CHILD";
        if std::env::var_os(IS_CHILD).is_some() {
            let folder = Scratch::new();
            // SAFETY: the child does nothing but exit, which is what is tested.
            let child = unsafe { libc::fork() };
            if child == 0 {
                std::process::exit(0);
            }
            // SAFETY: the child of this process.
            assert_eq!(unsafe { libc::waitpid(child, std::ptr::null_mut(), 0) }, child);
            assert!(folder.exists(), "the child has removed it");
            std::fs::write(
                std::env::var_os(IS_CHILD).expect("a file"),
                folder.as_os_str().as_encoded_bytes(),
            )
            .expect("written");
            std::process::exit(3);
        }
        let folder = Scratch::new();
        let told = folder.join("path");
        let test =
            "scratch::tests::a_folder_goes_when_its_process_exits_and_its_forked_child_leaves_it";
        let program = std::env::current_exe().expect("this program");
        let output = std::process::Command::new(program)
            .args(["--exact", test])
            .env(IS_CHILD, &told)
            .output();
        let output = output.expect("it is started");
        assert_eq!(output.status.code(), Some(3), "{output:?}");
        let path = std::fs::read_to_string(&told).expect("the path");
        assert!(path.contains("ferrite-test-") && !Path::new(&path).exists(), "{path}");
    }
}
