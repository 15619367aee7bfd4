//! Where a process is called: one TCP port for all of its listeners.
//!
//! Anybody may come to the port. A caller is a stranger until it shows the token of a listener, and costs no more than a
//! socket until then; from then on it is a [`Line`]. The port is there as long as a listener or a line is.

use super::channel::Channel;
use super::connections::Connections;
use super::epoll::{Epoll, Trigger};
use super::fork::Unshared;
use super::line::{Line, tell};
use super::link::Link;
use super::roll::Roll;
use super::socket::{self, ControlSocket};
use super::stranger::{Stranger, Verdict, WRONG_TOKEN};
use crate::error::{Error, Result};
use crate::host::iface::Interface;
use crate::proto::frame::{Frame, Kind};
use crate::proto::handle::{Secret, Token};
use crate::proto::handshake::Resume;
use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The port, and who has come to it.
#[derive(Debug)]
pub struct Reception {
    // Declared first: it goes before the descriptor is closed.
    _unshared: Unshared,
    socket: TcpListener,
    address: SocketAddr,
    owner: u32,
    epoll: Epoll,
    door: Mutex<Door>,
    desk: Mutex<Desk>,
    connections: Mutex<Connections>,
    is_watched: AtomicBool,
}

/// Callers for each listener that have not been fetched.
type Desk = HashMap<Token, VecDeque<Channel>>;

#[derive(Debug)]
struct Door {
    /// The oldest first.
    strangers: Vec<Stranger>,
    next_stranger: u64,
    lines: Roll<Line>,
}

/// Strangers that are heard at once; one more, and the oldest has to go.
const MAX_STRANGERS: usize = 128;
/// What each has to say its first words, however many come after it; these wait in the system's queue until then.
const GRACE: Duration = Duration::from_millis(50);
/// Callers that one listener may leave waiting.
const MAX_WAITING: usize = 32;
/// Callers that may have queued up while nobody listened: about what the system keeps.
const MAX_QUEUE: usize = 4096;
/// Accepted at a time, so that a flood of callers cannot hold NCCL's thread.
const MAX_ACCEPTS: usize = 32;

const SOCKET: u64 = 0;
/// Keys with this bit are of lines, others of strangers.
const LINE: u64 = 1;

impl Reception {
    /// Opens a port on `interface`.
    ///
    /// # Errors
    /// No port can be had.
    pub fn open(interface: &Interface) -> Result<Arc<Self>> {
        let what = || format!("listening on {} ({})", interface.name, interface.address.ip());
        let socket = TcpListener::bind(interface.address).map_err(|e| Error::io(what(), &e))?;
        socket.set_nonblocking(true).map_err(|e| Error::io(what(), &e))?;
        socket::lengthen_queue(&socket);
        let mut address = socket.local_addr().map_err(|e| Error::io(what(), &e))?;
        address.set_ip(interface.address.ip());
        let epoll = Epoll::new()?;
        epoll.add(socket.as_raw_fd(), SOCKET, Trigger::Level)?;
        let door = Door { strangers: Vec::new(), next_stranger: 1, lines: Roll::new(0) };
        let owner = std::process::id();
        Ok(Arc::new(Self {
            _unshared: Unshared::new(socket.as_raw_fd()),
            socket,
            address,
            owner,
            epoll,
            door: Mutex::new(door),
            desk: Mutex::default(),
            connections: Mutex::default(),
            is_watched: AtomicBool::new(false),
        }))
    }

    /// A descriptor that is ready to read while [`Self::poll`] has something to do, but for deadlines.
    pub fn fd(&self) -> RawFd {
        self.epoll.fd()
    }

    /// Whether this is the first to watch it.
    pub fn begin_to_watch(&self) -> bool {
        !self.is_watched.swap(true, Ordering::Relaxed)
    }

    /// Whether somebody is there who has not said anything yet, and has a deadline.
    pub fn has_strangers(&self) -> bool {
        self.door.try_lock().map_or(true, |door| !door.strangers.is_empty())
    }

    /// It could not be watched: the next may try.
    pub fn is_not_watched(&self) {
        self.is_watched.store(false, Ordering::Relaxed);
    }

    /// From now on the connection of `link`, which the listener that knows `token` has made, may go on over another line for
    /// a peer that knows its secret.
    pub(in crate::net) fn remember(&self, secret: Secret, token: Token, link: &Arc<Link>) {
        self.connections().add(secret, token, link);
    }

    /// The connection that is to go on over another line, and the number of the attempt.
    ///
    /// # Errors
    /// There is none, for this reason.
    pub(in crate::net) fn recall(&self, frame: &Frame) -> std::result::Result<(Arc<Link>, u32), String> {
        let Resume { secret, attempt } = Resume::parse(&frame.body).map_err(|violation| violation.to_string())?;
        let link = self.connections().get(&secret, &frame.token).ok_or(NO_CONNECTION)?;
        Ok((link, attempt))
    }

    /// Where to call.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it belongs to the process that this one was forked from.
    pub fn is_inherited(&self) -> bool {
        self.owner != std::process::id()
    }

    /// Whether there is a listener that knows `token`.
    pub(in crate::net) fn knows(&self, token: &Token) -> bool {
        self.desk().contains_key(token)
    }

    /// From now on callers that show `token` are led to whoever fetches them with it.
    pub fn register(&self, token: Token) {
        let _door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        if self.desk().is_empty() {
            // Nobody can know this listener yet; who has queued up while there was none must not be in its peer's way.
            self.clear_queue(MAX_QUEUE);
        }
        self.desk().insert(token, VecDeque::new());
    }

    /// Nobody fetches callers for `token` any more. When nobody fetches any, strangers need not wait.
    pub fn deregister(&self, token: &Token) {
        // A forked child must not wait for a lock that its parent held.
        if self.is_inherited() {
            return;
        }
        let waiting = self.desk().remove(token);
        drop(waiting);
        let mut door = self.door.lock().unwrap_or_else(PoisonError::into_inner);
        if self.desk().is_empty() {
            let strangers = std::mem::take(&mut door.strangers);
            strangers.into_iter().for_each(|stranger| self.send_away(stranger));
            // Those who have not been let in are told as well.
            self.clear_queue(MAX_STRANGERS);
        }
    }

    /// Hangs up on as many as `most` of those who have not been let in.
    fn clear_queue(&self, most: usize) {
        let callers = std::iter::from_fn(|| self.socket.accept().ok());
        callers.take(most).for_each(|(stream, _)| drop(stream.shutdown(Shutdown::Both)));
    }

    /// The next caller for `token`.
    pub fn fetch(&self, token: &Token) -> Option<Channel> {
        self.desk().get_mut(token)?.pop_front()
    }

    /// Leads a caller to the listener that knows `token`.
    ///
    /// # Errors
    /// It cannot be led there, for this reason.
    pub(in crate::net) fn lead(
        &self,
        token: &Token,
        make: impl FnOnce() -> Channel,
    ) -> std::result::Result<(), &'static str> {
        match self.desk().get_mut(token) {
            None => Err(WRONG_TOKEN),
            Some(waiting) if waiting.len() >= MAX_WAITING => Err("too many callers wait for this listener"),
            Some(waiting) => {
                waiting.push_back(make());
                Ok(())
            }
        }
    }

    /// Hears whoever has something to say, and lets in who is at the door. If somebody else does that just now, nothing.
    /// `patience` is what strangers have to say their first words.
    ///
    /// # Errors
    /// No more callers can be accepted.
    pub fn poll(self: &Arc<Self>, patience: Duration) -> Result<()> {
        if self.is_inherited() {
            return Ok(());
        }
        let mut door = match self.door.try_lock() {
            Ok(door) => door,
            Err(TryLockError::Poisoned(e)) => e.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        let mut batch = Epoll::batch();
        let ready = self.epoll.wait(&mut batch, 0).map_err(|e| Error::os("epoll_wait", e))?;
        let mut is_called = false;
        for key in ready {
            match key {
                SOCKET => is_called = true,
                line if line & LINE != 0 => {
                    if let Some(line) = door.lines.get(line >> 1) {
                        line.read();
                    }
                }
                stranger => self.hear(&mut door, stranger),
            }
        }
        self.dismiss_late(&mut door);
        // Last: who has come before is heard before.
        if is_called { self.let_in(&mut door, patience) } else { Ok(()) }
    }

    fn let_in(self: &Arc<Self>, door: &mut Door, patience: Duration) -> Result<()> {
        for _ in 0..MAX_ACCEPTS {
            if !self.make_room(door) {
                return Ok(());
            }
            let (stream, peer) = match self.socket.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if is_of_this_process(&e) => {
                    return Err(Error::io(format_args!("accepting on {}", self.address), &e));
                }
                // That caller has gone again.
                Err(_) => continue,
            };
            let socket = match ControlSocket::accepted(stream, peer) {
                Ok(socket) => socket,
                Err(e) => {
                    log::info!("listener {}: dismissed {peer}: {e}", self.address);
                    continue;
                }
            };
            let (key, came) = (door.next_stranger << 1, Instant::now());
            door.next_stranger += 1;
            let mut stranger = Stranger { socket, key, came, deadline: came + patience };
            match stranger.judge(self) {
                // It is this one that cannot be heard, and not whoever's `accept` has come upon it.
                Verdict::Wait => match self.epoll.add(stranger.socket.fd(), key, Trigger::Level) {
                    Ok(()) => door.strangers.push(stranger),
                    Err(e) => self.settle(door, stranger, Verdict::Dismiss(e.to_string())),
                },
                verdict => self.settle(door, stranger, verdict),
            }
        }
        Ok(())
    }

    /// Whether there is room for one more stranger. The oldest one may have to go for it; it is heard once more before.
    fn make_room(self: &Arc<Self>, door: &mut Door) -> bool {
        let Some(oldest) = door.strangers.first().filter(|_| door.strangers.len() >= MAX_STRANGERS) else {
            return true;
        };
        if oldest.came.elapsed() < GRACE {
            return false;
        }
        let key = oldest.key;
        self.hear(door, key);
        if door.strangers.len() >= MAX_STRANGERS {
            let oldest = door.strangers.remove(0);
            self.say_dismissed(&oldest, "it stayed silent while others came");
            self.send_away(oldest);
        }
        true
    }

    fn hear(self: &Arc<Self>, door: &mut Door, key: u64) {
        let Some(index) = door.strangers.iter().position(|stranger| stranger.key == key) else { return };
        let verdict = door.strangers[index].judge(self);
        if matches!(verdict, Verdict::Wait) {
            return;
        }
        let stranger = door.strangers.remove(index);
        self.epoll.remove(stranger.socket.fd());
        self.settle(door, stranger, verdict);
    }

    /// What becomes of a stranger that has spoken.
    fn settle(self: &Arc<Self>, door: &mut Door, stranger: Stranger, verdict: Verdict) {
        match verdict {
            Verdict::Wait => {}
            Verdict::Dismiss(why) => {
                self.say_dismissed(&stranger, &why);
                stranger.socket.finish();
            }
            Verdict::Admit(words) => {
                self.admit(door, stranger, words);
            }
        }
    }

    /// A stranger that knows a token or a secret becomes a line.
    fn admit(self: &Arc<Self>, door: &mut Door, stranger: Stranger, words: Frame) {
        if let Err(e) = self.epoll.add(stranger.socket.fd(), door.lines.next() << 1 | LINE, Trigger::Level) {
            // It finds the connection closed and calls again.
            return self.settle(door, stranger, Verdict::Dismiss(e.to_string()));
        }
        let line = Arc::new(Line::accepted(stranger.socket, self));
        door.lines.add(&line);
        let mut news = Vec::new();
        match words.kind {
            Kind::Resume => line.resume(&mut line.lock(), &words, &mut news),
            // If the listener has just gone, so has the line.
            _ => line.introduce(&mut line.lock(), words),
        }
        tell(news);
    }

    fn dismiss_late(&self, door: &mut Door) {
        if door.strangers.is_empty() {
            return;
        }
        let now = Instant::now();
        for mut stranger in door.strangers.extract_if(.., |stranger| now >= stranger.deadline) {
            // Who has said nothing calls again; who cannot say more need not try.
            if stranger.socket.has_begun() {
                stranger.refuse(Token::default(), "the first message did not come to an end");
            }
            self.say_dismissed(&stranger, "it stayed silent");
            self.send_away(stranger);
        }
    }

    fn say_dismissed(&self, stranger: &Stranger, why: &str) {
        log::info!("listener {}: dismissed {}: {why}", self.address, stranger.socket.peer());
    }

    fn send_away(&self, stranger: Stranger) {
        self.epoll.remove(stranger.socket.fd());
        stranger.socket.finish();
    }

    /// A line has ended and is not listened to any more.
    pub(in crate::net) fn leave(&self, fd: RawFd) {
        self.epoll.remove(fd);
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Reception {
    /// A forked child may have the port as well: nobody is to call there in vain.
    fn drop(&mut self) {
        if !self.is_inherited() {
            socket::shut(&self.socket);
        }
    }
}

/// Whether an error of `accept` is no affair of the caller's, whose connection may have failed in many ways by then.
fn is_of_this_process(error: &std::io::Error) -> bool {
    let ours = [libc::EMFILE, libc::ENFILE, libc::ENOBUFS, libc::ENOMEM, libc::EBADF, libc::EINVAL, libc::ENOTSOCK];
    error.raw_os_error().is_none_or(|errno| ours.contains(&errno))
}

const NO_CONNECTION: &str = "no such connection: it has been closed, or is another process's";

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::TcpStream;

    /// The kernel has no memory for one stranger, and then for one that knows a token: each is sent away, and whoever polls
    /// for another listener is not bothered.
    #[test]
    fn a_caller_that_cannot_be_heard_is_its_own_affair() {
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let reception = Reception::open(&Interface { name: "lo".into(), address }).expect("a port");
        reception.register([1; 16]);
        let hello = Frame { kind: Kind::Hello, token: [1; 16], body: Vec::new() }.emit();
        for words in [&[] as &[u8], &hello] {
            let mut caller = TcpStream::connect(reception.address()).expect("it listens");
            caller.write_all(words).expect("sent");
            reception.epoll.refuses.store(1, Ordering::Relaxed);
            let start = Instant::now();
            while reception.epoll.refuses.load(Ordering::Relaxed) > 0 {
                reception.poll(Duration::from_secs(20)).expect("no error of this port's");
                assert!(start.elapsed() < Duration::from_secs(20), "nobody is let in");
            }
            caller.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
            // Closed or reset.
            assert_eq!(caller.read(&mut [0]).unwrap_or(0), 0);
            assert!(reception.fetch(&[1; 16]).is_none());
        }
        let mut caller = TcpStream::connect(reception.address()).expect("it listens");
        caller.write_all(&hello).expect("sent");
        let start = Instant::now();
        while reception.fetch(&[1; 16]).is_none() {
            reception.poll(Duration::from_secs(20)).expect("no error");
            assert!(start.elapsed() < Duration::from_secs(20), "the next one is served");
        }
    }
}
