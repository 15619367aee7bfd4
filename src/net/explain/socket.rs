//! The Unix socket through which `ferrite hang` asks a process what it waits for.

use crate::error::{Error, Result};
use crate::net::control::fork::CloseOnFork;
use crate::proto::control::Time;
use rustix::fs::Mode;
use rustix::net::SendFlags;
use socket2::{Domain, SockAddr, Socket, Type};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The most pending connections.
const BACKLOG: i32 = 8;
/// How long all clients together may take to read the answer.
const WRITE_LIMIT: Duration = Duration::from_secs(2);
/// Interval between attempts to write.
const PAUSE: Duration = Duration::from_millis(10);
/// A process that has had connections for this long has a socket. It is less than three seconds, as
/// the ends are checked about once a second.
const OPEN_AFTER: Duration = Duration::from_millis(2500);

/// Whether to open the socket. A short-lived process has none.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Opening {
    /// There are no ends.
    #[default]
    WithoutEnds,
    /// At this time, if there still are ends.
    At(Time),
    /// Now.
    Due,
    /// It has been tried.
    Tried,
}

impl Opening {
    /// Handles time `now`. Returns whether the socket is due from now on.
    pub fn handle_time(&mut self, now: Time, has_ends: bool) -> bool {
        match *self {
            _ if !has_ends => *self = Self::WithoutEnds,
            Self::WithoutEnds => *self = Self::At(now + OPEN_AFTER),
            Self::At(time) if now >= time => {
                *self = Self::Due;
                return true;
            }
            Self::At(_) | Self::Due | Self::Tried => {}
        }
        false
    }

    /// Whether to open the socket now; true once.
    pub fn take(&mut self) -> bool {
        let is_due = *self == Self::Due;
        if is_due {
            *self = Self::Tried;
        }
        is_due
    }
}

/// A socket for this user and root.
#[derive(Debug)]
pub struct ReportSocket {
    // Declared first, to be dropped before the descriptor is closed.
    _unshared: CloseOnFork,
    listener: UnixListener,
    path: PathBuf,
    /// The process that made it.
    owner: u32,
}

impl ReportSocket {
    /// Opens `ferrite.PID.sock` in `folder`. Only this user and root can connect to it.
    ///
    /// # Errors
    /// The system refuses.
    pub fn open(folder: &str) -> Result<Self> {
        let owner = std::process::id();
        let path = PathBuf::from(folder).join(format!("ferrite.{owner}.sock"));
        let what = || format!("opening {}", path.display());
        remove_dead(folder);
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)
            .map_err(|e| Error::io(what(), &e))?;
        // Before binding, so that others can never connect.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)
            .map_err(|e| Error::os(what(), e.raw_os_error()))?;
        let new = PathBuf::from(folder).join(format!("ferrite.{owner}.sock.new"));
        let address = SockAddr::unix(&new).map_err(|e| Error::io(what(), &e))?;
        // Under another name until it listens: others assume that a socket without a listener
        // belongs to a dead process.
        let _ = fs::remove_file(&new);
        let bound = socket.bind(&address).and_then(|()| socket.listen(BACKLOG));
        // Unlike renaming, linking replaces nothing: a process of another container may have this
        // process id and this folder.
        let named = bound.and_then(|()| fs::hard_link(&new, &path));
        let _ = fs::remove_file(&new);
        named.map_err(|e| Error::io(what(), &e))?;
        let _unshared = CloseOnFork::new(socket.as_raw_fd());
        Ok(Self {
            _unshared,
            listener: UnixListener::from(std::os::fd::OwnedFd::from(socket)),
            path,
            owner,
        })
    }

    /// The clients since the last call.
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

/// Removes the sockets of this user's processes that ended without doing so.
fn remove_dead(folder: &str) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let process = name
            .strip_prefix("ferrite.")
            .and_then(|name| name.strip_suffix(".sock")?.parse::<u32>().ok());
        // Connecting to a living process would request a report. This process does not have its own
        // name yet.
        let may_be_dead =
            |pid: u32| pid == std::process::id() || !Path::new(&format!("/proc/{pid}")).exists();
        if process.is_some_and(may_be_dead) && is_own(&path) && is_refused(&path) {
            let _ = fs::remove_file(&path);
        }
    }
}

/// Whether `path` is a socket of this user.
fn is_own(path: &Path) -> bool {
    let own = rustix::process::geteuid().as_raw();
    fs::symlink_metadata(path)
        .is_ok_and(|found| found.file_type().is_socket() && found.uid() == own)
}

/// Whether no process listens at `path`. Only that shows that the process has ended, since it may
/// be in another PID namespace. Does not wait for a process that listens but does not accept.
fn is_refused(path: &Path) -> bool {
    let connect = || {
        Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?.connect(&SockAddr::unix(path)?)
    };
    connect().is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused)
}

/// Whether the process at the other end belongs to this user or root.
fn is_allowed(stream: &UnixStream) -> bool {
    let own = rustix::process::geteuid();
    rustix::net::sockopt::socket_peercred(stream)
        .is_ok_and(|peer| peer.uid == own || peer.uid.is_root())
}

/// Writes `answer` to all of `streams` and closes them. Drops those that have not read it after
/// [`WRITE_LIMIT`].
pub fn answer(streams: Vec<UnixStream>, answer: &str) {
    let until = Instant::now() + WRITE_LIMIT;
    let mut left: Vec<_> = streams.into_iter().map(|stream| (stream, answer.as_bytes())).collect();
    loop {
        left.retain_mut(|(stream, rest)| match write(stream, rest) {
            Ok(()) => !rest.is_empty(),
            Err(e) => {
                log::debug!("a program has not read its report: {e}");
                false
            }
        });
        if left.is_empty() || Instant::now() >= until {
            break;
        }
        std::thread::sleep(PAUSE);
    }
    if !left.is_empty() {
        log::debug!("{} program(s) have not read their report", left.len());
    }
}

/// Writes as much of `rest` as the kernel accepts now, and keeps the remainder in it.
fn write(stream: &UnixStream, rest: &mut &[u8]) -> io::Result<()> {
    while !rest.is_empty() {
        // A closed reader is an error here, not a signal that ends the program.
        match rustix::net::send(stream, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(written) => *rest = rest.get(written..).unwrap_or_default(),
            Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => break,
            Err(e) => return Err(e.into()),
        }
    }
    Ok(())
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
        answer(std::mem::take(&mut asked), "{}");
        let mut text = String::new();
        asking.read_to_string(&mut text).expect("an answer");
        assert_eq!(text, "{}");
        let files = || fs::read_dir(folder.path()).expect("a folder").count();
        assert_eq!(files(), 1, "the name that it had at first is gone");
        drop(socket);
        assert_eq!(files(), 0);
    }

    #[test]
    fn it_takes_the_place_of_one_that_nobody_listens_at_and_not_of_one_that_lives() {
        let folder = testkit::Scratch::new();
        let path = folder.path().join(format!("ferrite.{}.sock", std::process::id()));
        let open = || ReportSocket::open(&folder.path().display().to_string());
        drop(UnixListener::bind(&path).expect("a socket"));
        let _socket = open().expect("nobody listens");
        assert!(open().is_err());
        UnixStream::connect(&path).expect("the first one listens still");
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 1);
    }

    /// No process has such an id.
    const NOBODY: u32 = (1 << 22) + 1;

    #[test]
    fn only_a_socket_where_nobody_listens_and_whose_process_has_ended_is_removed() {
        let folder = testkit::Scratch::new();
        let path = |name: &str| folder.path().join(name);
        let [dead, file, link] =
            [0, 1, 2].map(|number| path(&format!("ferrite.{}.sock", NOBODY + number)));
        let [init, listens, other] =
            ["ferrite.1.sock", &format!("ferrite.{}.sock", NOBODY + 3), "other.sock"].map(path);
        drop([&dead, &init, &other].map(|path| UnixListener::bind(path).expect("a socket")));
        let _listener = UnixListener::bind(&listens).expect("a socket");
        fs::write(&file, "").expect("a file");
        std::os::unix::fs::symlink(&other, &link).expect("a link");
        remove_dead(&folder.path().display().to_string());
        let is_there = |path: &PathBuf| fs::symlink_metadata(path).is_ok();
        assert_eq!(
            [&dead, &init, &listens, &other, &file, &link].map(is_there),
            [false, true, true, true, true, true]
        );
    }

    #[test]
    fn one_that_accepts_nobody_is_not_waited_for() {
        let folder = testkit::Scratch::new();
        let path = folder.path().join(format!("ferrite.{NOBODY}.sock"));
        let new = || Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None).expect("a socket");
        let address = SockAddr::unix(&path).expect("a path");
        let listener = new();
        listener.bind(&address).and_then(|()| listener.listen(0)).expect("it listens");
        let waiting: Vec<_> = std::iter::repeat_with(new)
            .take_while(|socket| socket.connect(&address).is_ok())
            .collect();
        assert!(!waiting.is_empty());
        remove_dead(&folder.path().display().to_string());
        assert!(path.exists());
    }

    #[test]
    fn a_program_that_does_not_read_keeps_no_answer_from_others() {
        let text = "x".repeat(4 << 20);
        let [(_silent, first), (gone, second), (mut reads, third)] =
            [(); 3].map(|()| UnixStream::pair().expect("sockets"));
        drop(gone);
        let mut read = String::new();
        std::thread::scope(|scope| {
            scope.spawn(|| answer(vec![first, second, third], &text));
            reads.read_to_string(&mut read).expect("an answer");
        });
        assert_eq!(read.len(), text.len());
    }

    #[test]
    fn the_socket_is_due_once_when_there_have_been_ends_for_so_long() {
        let (mut opening, second) = (Opening::default(), Duration::from_secs(1));
        // As from the watchers of several cards: at any time, and several times a second.
        let due: Vec<u32> =
            (0..20).filter(|tick| opening.handle_time(*tick * second / 3, true)).collect();
        assert_eq!(due, [8]);
        assert!(opening.take());
        assert!(!opening.take() && !opening.handle_time(10 * second, true));
        assert!(
            !opening.handle_time(11 * second, false) && !opening.handle_time(20 * second, true)
        );
        assert!(opening.handle_time(23 * second, true));
    }
}
