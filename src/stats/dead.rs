//! Statistics files of killed processes. They stay so that outstanding operations can be read. The
//! newest are kept while they leave most of the file system free.

use super::layout::FILE_PREFIX;
use super::lock;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The most files of dead processes that are kept, the most bytes of them, and the largest part of
/// the file system that they may take.
const KEPT: usize = 64;
const KEPT_BYTES: u64 = 16 << 20;
const KEPT_PART: u64 = 8;

/// Removes this user's files in `folder` whose processes are dead, except the newest. Does not open
/// `own`: closing it again would release its lock.
pub(super) fn sweep(folder: &Path, own: &Path) {
    let total = rustix::fs::statvfs(folder)
        .map_or(0, |system| system.f_blocks.saturating_mul(system.f_frsize));
    let most = if total == 0 { KEPT_BYTES } else { KEPT_BYTES.min(total / KEPT_PART) };
    sweep_except(folder, own, most);
}

fn sweep_except(folder: &Path, own: &Path, most: u64) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    let is_ours = |path: &PathBuf| {
        path != own
            && path
                .file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.starts_with(FILE_PREFIX))
    };
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path()).filter(is_ours);
    let mut dead: Vec<_> = paths.filter_map(|path| Some((died(&path)?, path))).collect();
    dead.sort();
    let mut kept = 0;
    for (number, ((_, bytes), path)) in dead.iter().rev().enumerate() {
        kept += bytes;
        if number >= KEPT || kept > most {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// When the file of a dead process of this user was created or last changed, and its size in bytes.
/// `None`: another user owns it, or its process is alive.
fn died(path: &Path) -> Option<(SystemTime, u64)> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = File::options().read(true).custom_flags(flags).open(path).ok()?;
    let about = file.metadata().ok()?;
    let is_own = about.is_file() && about.uid() == rustix::process::geteuid().as_raw();
    let is_dead = is_own && lock::holder(file.as_fd()).is_none();
    Some((about.modified().ok().filter(|_| is_dead)?, about.blocks() * 512))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;
    use testkit::Scratch;

    /// A child process that holds the lock of `path` until it is killed.
    fn holder(path: &Path) -> libc::pid_t {
        let file = File::options().read(true).write(true).open(path).expect("it is there");
        let (mut ready, child_end) = UnixStream::pair().expect("a pair");
        // SAFETY: the child continues alone with this one thread, calls nothing but the system, and
        // waits to be killed.
        let child = unsafe { libc::fork() };
        if child == 0 {
            lock::take(file.as_fd());
            // SAFETY: a valid buffer of one byte; then plain numbers.
            unsafe { libc::write(child_end.as_raw_fd(), c"x".as_ptr().cast(), 1) };
            loop {
                // SAFETY: plain numbers.
                unsafe { libc::pause() };
            }
        }
        ready.read_exact(&mut [0]).expect("the child has the lock");
        child
    }

    #[test]
    fn the_newest_files_of_dead_processes_are_kept_and_those_of_living_ones() {
        let folder = Scratch::new();
        let name = |n: usize| format!("{FILE_PREFIX}{n}.1");
        let start = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        for n in 0..KEPT + 4 {
            let path = folder.write(&name(n), "");
            let changed = start + std::time::Duration::from_secs(n as u64);
            File::options()
                .write(true)
                .open(path)
                .expect("it is there")
                .set_modified(changed)
                .expect("a time");
        }
        folder.write("another-file", "");
        let (own, alive) = (folder.path().join(name(0)), folder.path().join(name(1)));
        let child = holder(&alive);
        sweep_except(folder.path(), &own, KEPT_BYTES);
        // SAFETY: our own child, which is waited for once.
        unsafe {
            (libc::kill(child, libc::SIGKILL), libc::waitpid(child, std::ptr::null_mut(), 0))
        };
        let is_left = |n: usize| folder.path().join(name(n)).exists();
        let gone: Vec<_> = (0..KEPT + 4).filter(|n| !is_left(*n)).collect();
        assert_eq!(gone, [2, 3], "the oldest of the dead");
        assert!(folder.path().join("another-file").exists());
    }

    #[test]
    fn files_of_dead_processes_take_no_more_bytes_than_they_may_and_the_newest_are_kept() {
        let folder = Scratch::new();
        let start = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000);
        let name = |n: u64| format!("{FILE_PREFIX}{n}.1");
        for n in 0..5 {
            let path = folder.write(&name(n), "x".repeat(1 << 16));
            let file = File::options().write(true).open(path).expect("it is there");
            file.set_modified(start + std::time::Duration::from_secs(n)).expect("a time");
        }
        sweep_except(folder.path(), Path::new("none"), 3 << 16);
        let left: Vec<_> = (0..5).filter(|n| folder.path().join(name(*n)).exists()).collect();
        assert_eq!(left, [2, 3, 4]);
    }
}
