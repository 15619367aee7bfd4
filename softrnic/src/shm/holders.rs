//! Who holds a fabric's file, asked from outside by its record locks: they are the same in every process id namespace.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::limits::PROCS;
use crate::shm::layout::MAGIC;
use crate::shm::record_lock::{CONTROL, lock_range, pid_lock};

/// What became of a file that was to be removed unless a process holds it.
#[derive(Debug)]
pub(crate) enum Remains {
    /// It is no fabric, it is another user's, or it has gone meanwhile.
    NotOurs,
    /// A process takes part in it, or is just about to.
    Held,
    /// No process takes part in it any more; the bytes of storage that it has.
    Dead(u64),
    /// It is gone; the bytes of storage that it had.
    Removed(u64),
}

/// What is left of the fabric `path`, which is removed, if it is to be, where no process has it.
pub(crate) fn look(path: &Path, is_removed: bool) -> io::Result<Remains> {
    let Some((file, bytes)) = open(path)? else { return Ok(Remains::NotOurs) };
    if !hold_all(&file)? {
        return Ok(Remains::Held);
    }
    // A process that comes now waits for the lock, and then finds that the name is another file's or is gone.
    if !is_named(&file, path)? {
        return Ok(Remains::NotOurs);
    }
    if !is_removed {
        return Ok(Remains::Dead(bytes));
    }
    std::fs::remove_file(path)?;
    Ok(Remains::Removed(bytes))
}

/// The processes that take part in the fabric `path` of this user, as far as they are in this process id namespace.
/// Empty if it is no fabric. Not for a process that takes part in it itself: closing the file drops the lock that tells its number.
pub(crate) fn pids(path: &Path) -> io::Result<Vec<i32>> {
    let Some((file, _)) = open(path)? else { return Ok(Vec::new()) };
    let holders = (0..PROCS).filter_map(|index| {
        let mut range = lock_range(libc::F_WRLCK, pid_lock(index), 1);
        // SAFETY: an open file; `range` outlives the call.
        let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut range) };
        // 0: a process of another namespace.
        (rc == 0 && i32::from(range.l_type) != libc::F_UNLCK && range.l_pid > 0).then_some(range.l_pid)
    });
    Ok(holders.collect())
}

/// A fabric of this user, opened, and how many bytes of storage it has. `None`: it is another user's, no fabric, or gone.
fn open(path: &Path) -> io::Result<Option<(File, u64)>> {
    // SAFETY: geteuid has no preconditions.
    let me = unsafe { libc::geteuid() };
    let is_ours = |found: Metadata| found.is_file() && found.uid() == me;
    // Before it is opened: what is no plain file, or another user's, is left alone.
    if !path.symlink_metadata().is_ok_and(is_ours) {
        return Ok(None);
    }
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = file.metadata()?;
    let mut magic = [0; 8];
    let is_fabric = file.read_at(&mut magic, 0)? == magic.len() && magic == MAGIC.to_ne_bytes();
    let bytes = found.blocks() * 512;
    Ok((is_fabric && is_ours(found)).then_some((file, bytes)))
}

/// Takes every lock that a process of a fabric can hold, without waiting. Only closing `file` gives them back. False:
/// another process has one.
fn hold_all(file: &File) -> io::Result<bool> {
    // A length of 0 is "without end".
    let range = lock_range(libc::F_WRLCK, CONTROL, 0);
    // SAFETY: an open file; `range` outlives the call.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) } == 0 {
        return Ok(true);
    }
    let error = io::Error::last_os_error();
    if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) { Ok(false) } else { Err(error) }
}

/// Whether `path` still names `file`.
fn is_named(file: &File, path: &Path) -> io::Result<bool> {
    let open = file.metadata()?;
    match path.symlink_metadata() {
        Ok(named) => Ok((open.dev(), open.ino()) == (named.dev(), named.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
