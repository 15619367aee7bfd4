//! Files of processes that have been killed. They stay so that what was outstanding can be read; the newest ones are kept.

use super::layout::FILE_PREFIX;
use super::lock;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// Files of dead processes that are kept.
pub(super) const KEPT: usize = 64;

/// Removes this user's files in `folder` whose processes are dead, but for the newest [`KEPT`]. `own` is not opened: to close it
/// again would give its lock up.
pub(super) fn sweep(folder: &Path, own: &Path) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let is_ours = |path: &PathBuf| {
        path != own && path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(FILE_PREFIX))
    };
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path()).filter(is_ours);
    let mut dead: Vec<_> = paths.filter_map(|path| Some((died(&path)?, path))).collect();
    dead.sort();
    for (_, path) in &dead[..dead.len().saturating_sub(KEPT)] {
        let _ = std::fs::remove_file(path);
    }
}

/// When the file of a dead process of this user was made or last changed. `None`: it is another's, or its process is alive.
fn died(path: &Path) -> Option<SystemTime> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let about = file.metadata().ok()?;
    let is_own = about.is_file() && about.uid() == rustix::process::geteuid().as_raw();
    (is_own && !lock::is_taken(file.as_fd())).then(|| about.modified().ok())?
}
