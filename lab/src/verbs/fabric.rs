//! The file of a fabric of the software device, seen from outside.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

/// The processes of a fabric hold record locks on its file from this offset on. The kernel drops them with their process,
/// and they are the same in every process id namespace.
const LOCKS: i64 = 1 << 40;

/// What every fabric begins with.
const MAGIC: [u8; 8] = *b"softrnic";

/// Removes the fabric in `path` if no process takes part in it. One that cannot be looked at stays. This process must not
/// take part in it: closing the file would release the process's own locks.
pub(crate) fn remove_unless_held(path: &Path) {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK);
    let Ok(file) = options.open(path) else { return };
    if !is_own_fabric(&file) {
        return;
    }
    // A process that opens the fabric now waits for the lock, and then finds that the name is no longer this file's.
    if hold_all(&file) && is_named(&file, path) {
        std::fs::remove_file(path).unwrap_or_default();
    }
}

/// Whether it is a fabric of this user's, by what every fabric begins with.
fn is_own_fabric(file: &File) -> bool {
    let mut begin = [0; MAGIC.len()];
    // SAFETY: no preconditions.
    let user = unsafe { libc::geteuid() };
    file.metadata().is_ok_and(|metadata| metadata.uid() == user)
        && file.read_exact_at(&mut begin, 0).is_ok()
        && begin == MAGIC
}

/// Takes every lock that a process of a fabric can hold, until the file is closed; false if a process has one.
fn hold_all(file: &File) -> bool {
    // SAFETY: all zeros is a valid flock.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    // A length of 0 is "without end".
    (range.l_type, range.l_whence, range.l_start) = (libc::F_WRLCK as i16, libc::SEEK_SET as i16, LOCKS);
    // SAFETY: an open file; `range` outlives the call.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const range) == 0 }
}

/// Whether `path` still names `file`.
fn is_named(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), path.symlink_metadata()) else { return false };
    named.is_file() && (open.dev(), open.ino()) == (named.dev(), named.ino())
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Command, Stdio};

    use super::*;

    const NAME: &str = "verbs::fabric::tests::a_fabric_with_a_process_in_another_namespace_stays";
    const PATH: &str = "FERRITE_TEST_HOLD";

    /// In a process of its own, below: holds what a process of a fabric holds until its input ends.
    fn hold(path: &Path) {
        let file = OpenOptions::new().read(true).write(true).open(path).expect("the fabric");
        // SAFETY: all zeros is a valid flock.
        let mut range: libc::flock = unsafe { std::mem::zeroed() };
        (range.l_type, range.l_start, range.l_len) = (libc::F_WRLCK as i16, LOCKS + 3, 1);
        // SAFETY: an open file; `range` outlives the call.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const range) }, 0);
        println!("\nholding");
        std::io::stdin().read_line(&mut String::new()).expect("the end");
    }

    /// The holder's process id means nothing here.
    #[test]
    fn a_fabric_with_a_process_in_another_namespace_stays() {
        if let Some(path) = std::env::var_os(PATH) {
            return hold(Path::new(&path));
        }
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("fabric");
        // What does not begin like a fabric is none, whatever its name.
        std::fs::write(&path, "a file of somebody's").expect("a file");
        remove_unless_held(&path);
        assert!(path.exists(), "it is no fabric");
        std::fs::write(&path, MAGIC).expect("a file");
        let unshared = ["--pid", "--fork", "--kill-child", "--mount-proc"];
        let rootless = ["--user", "--map-root-user"];
        // SAFETY: no preconditions.
        let flags =
            if unsafe { libc::geteuid() } == 0 { unshared.to_vec() } else { [&rootless[..], &unshared].concat() };
        let may_unshare = Command::new("unshare").args(&flags).arg("true").output().is_ok_and(|o| o.status.success());
        let mut command = if may_unshare {
            let mut command = Command::new("unshare");
            command.args(&flags).arg(std::env::current_exe().expect("own path"));
            command
        } else {
            let _ = writeln!(std::io::stderr(), "skipped: process id namespaces; in this one instead");
            Command::new(std::env::current_exe().expect("own path"))
        };
        command.args([NAME, "--exact", "--nocapture"]).env(PATH, &path);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
        let mut lines = BufReader::new(holder.stdout.as_mut().expect("piped")).lines();
        while lines.next().expect("the line").expect("text") != "holding" {}
        remove_unless_held(&path);
        assert!(path.exists(), "a process takes part in it");
        drop(holder.stdin.take());
        assert!(holder.wait().expect("wait").success());
        remove_unless_held(&path);
        assert!(!path.exists(), "no process takes part in it any more");
    }
}
