//! The Unix socket where `ferrite hang` asks a process what it waits for.

use crate::error::{Error, Result};
use crate::net::control::fork::Unshared;
use rustix::fs::Mode;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Duration;

/// Questions that may wait.
const BACKLOG: i32 = 8;
/// How long the one that asks may take to read the answer.
const WRITE_LIMIT: Duration = Duration::from_secs(2);

/// A socket for this user and root.
#[derive(Debug)]
pub struct ReportSocket {
    // Declared first: it goes before the descriptor is closed.
    _unshared: Unshared,
    listener: UnixListener,
    path: PathBuf,
    /// The process that made it.
    owner: u32,
}

impl ReportSocket {
    /// Makes `ferrite.PID.sock` in `folder`, which nobody but this user and root can connect to.
    ///
    /// # Errors
    /// The system refuses.
    pub fn open(folder: &str) -> Result<Self> {
        let owner = std::process::id();
        let path = PathBuf::from(folder).join(format!("ferrite.{owner}.sock"));
        let what = || format!("opening {}", path.display());
        remove_dead(folder);
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).map_err(|e| Error::io(what(), &e))?;
        // Before it is bound: there is no moment in which others may connect.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR).map_err(|e| Error::os(what(), e.raw_os_error()))?;
        let address = SockAddr::unix(&path).map_err(|e| Error::io(what(), &e))?;
        socket.bind(&address).and_then(|()| socket.listen(BACKLOG)).map_err(|e| Error::io(what(), &e))?;
        let _unshared = Unshared::new(socket.as_raw_fd());
        Ok(Self { _unshared, listener: UnixListener::from(std::os::fd::OwnedFd::from(socket)), path, owner })
    }

    /// Those that have asked since this was called last.
    pub fn accept(&self) -> Vec<UnixStream> {
        let streams = std::iter::from_fn(|| self.listener.accept().ok());
        streams.take(BACKLOG as usize).map(|(stream, _)| stream).filter(is_allowed).collect()
    }
}

impl Drop for ReportSocket {
    fn drop(&mut self) {
        if self.owner == std::process::id() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Removes the sockets of processes that have ended without doing so. Those of other users stay: this process may not remove them.
fn remove_dead(folder: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let is_one = name.starts_with("ferrite.") && name.ends_with(".sock");
        // It may be of another process id namespace: only that nobody listens shows that its process has ended.
        let is_dead = || UnixStream::connect(&path).is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused);
        if is_one && is_dead() {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Whether the process at the other end is of this user or of root.
fn is_allowed(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream).is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

/// Writes `answer`, and closes.
pub fn answer(mut stream: UnixStream, answer: &str) {
    let written = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_write_timeout(Some(WRITE_LIMIT)))
        .and_then(|()| stream.write_all(answer.as_bytes()));
    if let Err(e) = written {
        log::debug!("a report that nobody has read: {e}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn this_user_can_ask_and_the_socket_goes_with_its_owner() {
        let folder = testkit::Scratch::new();
        let socket = ReportSocket::open(&folder.path().display().to_string()).expect("a socket");
        let path = folder.path().join(format!("ferrite.{}.sock", std::process::id()));
        let mode = fs::metadata(&path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(socket.accept().is_empty());
        let mut asking = UnixStream::connect(&path).expect("it listens");
        let mut asked = socket.accept();
        answer(asked.pop().expect("one"), "{}");
        let mut text = String::new();
        asking.read_to_string(&mut text).expect("an answer");
        assert_eq!(text, "{}");
        drop(socket);
        assert!(!path.exists());
    }

    #[test]
    fn a_socket_of_a_process_that_has_ended_is_removed_and_another_one_stays() {
        let folder = testkit::Scratch::new();
        let [dead, living, other] =
            ["ferrite.1.sock", "ferrite.2.sock", "other.sock"].map(|name| folder.path().join(name));
        drop([&dead, &other].map(|path| UnixListener::bind(path).expect("a socket")));
        let _listener = UnixListener::bind(&living).expect("a socket");
        remove_dead(&folder.path().display().to_string());
        assert_eq!([dead.exists(), living.exists(), other.exists()], [false, true, true]);
    }
}
