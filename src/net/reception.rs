//! Where a process is called: one TCP port for all of its listeners.
//!
//! Anybody may come to the port. A caller is a stranger until it shows the token of a listener, and costs no more than a
//! socket until then; from then on it is a [`Line`]. The port is there as long as a listener or a line is.

use super::channel::Channel;
use super::epoll::{Epoll, Trigger};
use super::line::Line;
use super::roll::Roll;
use super::socket::{self, ControlSocket, Incoming};
use crate::error::{Error, Result};
use crate::host::iface::Interface;
use crate::proto::frame::{Frame, Kind};
use crate::proto::handle::Token;
use std::collections::{HashMap, VecDeque};
use std::io::ErrorKind;
use std::net::{Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// The port, and who has come to it.
#[derive(Debug)]
pub struct Reception {
    socket: TcpListener,
    address: SocketAddr,
    owner: u32,
    epoll: Epoll,
    door: Mutex<Door>,
    desk: Mutex<Desk>,
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

#[derive(Debug)]
struct Stranger {
    socket: ControlSocket,
    key: u64,
    came: Instant,
    deadline: Instant,
}

enum Verdict {
    Wait,
    Admit(Frame),
    Dismiss(String),
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
        Ok(Arc::new(Self { socket, address, owner, epoll, door: Mutex::new(door), desk: Mutex::default() }))
    }

    /// Where to call.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Whether it belongs to the process that this one was forked from.
    pub fn is_inherited(&self) -> bool {
        self.owner != std::process::id()
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
    pub(super) fn lead(&self, token: &Token, make: impl FnOnce() -> Channel) -> std::result::Result<(), &'static str> {
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
                stranger => self.hear(&mut door, stranger)?,
            }
        }
        self.dismiss_late(&mut door);
        // Last: who has come before is heard before.
        if is_called { self.let_in(&mut door, patience) } else { Ok(()) }
    }

    fn let_in(self: &Arc<Self>, door: &mut Door, patience: Duration) -> Result<()> {
        for _ in 0..MAX_ACCEPTS {
            if !self.make_room(door)? {
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
            let socket = ControlSocket::accepted(stream, peer)?;
            let (key, came) = (door.next_stranger << 1, Instant::now());
            door.next_stranger += 1;
            let mut stranger = Stranger { socket, key, came, deadline: came + patience };
            match self.judge(&mut stranger) {
                Verdict::Wait => {
                    self.epoll.add(stranger.socket.fd(), key, Trigger::Level)?;
                    door.strangers.push(stranger);
                }
                verdict => self.settle(door, stranger, verdict)?,
            }
        }
        Ok(())
    }

    /// Whether there is room for one more stranger. The oldest one may have to go for it; it is heard once more before.
    fn make_room(self: &Arc<Self>, door: &mut Door) -> Result<bool> {
        let Some(oldest) = door.strangers.first().filter(|_| door.strangers.len() >= MAX_STRANGERS) else {
            return Ok(true);
        };
        if oldest.came.elapsed() < GRACE {
            return Ok(false);
        }
        let key = oldest.key;
        self.hear(door, key)?;
        if door.strangers.len() >= MAX_STRANGERS {
            let oldest = door.strangers.remove(0);
            self.say_dismissed(&oldest, "it stayed silent while others came");
            self.send_away(oldest);
        }
        Ok(true)
    }

    fn hear(self: &Arc<Self>, door: &mut Door, key: u64) -> Result<()> {
        let Some(index) = door.strangers.iter().position(|stranger| stranger.key == key) else { return Ok(()) };
        let verdict = self.judge(&mut door.strangers[index]);
        if matches!(verdict, Verdict::Wait) {
            return Ok(());
        }
        let stranger = door.strangers.remove(index);
        self.epoll.remove(stranger.socket.fd());
        self.settle(door, stranger, verdict)
    }

    /// What becomes of a stranger that has spoken.
    fn settle(self: &Arc<Self>, door: &mut Door, stranger: Stranger, verdict: Verdict) -> Result<()> {
        match verdict {
            Verdict::Wait => {}
            Verdict::Dismiss(why) => {
                self.say_dismissed(&stranger, &why);
                stranger.socket.finish();
            }
            Verdict::Admit(hello) => {
                let line = Arc::new(Line::accepted(stranger.socket, self));
                self.epoll.add(line.fd(), door.lines.add(&line) << 1 | LINE, Trigger::Level)?;
                // If the listener has just gone, so has the line.
                line.introduce(&mut line.lock(), hello);
            }
        }
        Ok(())
    }

    fn judge(&self, stranger: &mut Stranger) -> Verdict {
        let frame = match stranger.socket.poll_frame() {
            Ok(Incoming::Frame(frame)) => frame,
            Ok(Incoming::Nothing) => return Verdict::Wait,
            Ok(Incoming::Closed) => return Verdict::Dismiss("it closed the connection".into()),
            Ok(Incoming::Lost(why)) => return Verdict::Dismiss(format!("its connection was lost: {why}")),
            Err(violation) => {
                stranger.refuse(Token::default(), violation.text());
                return Verdict::Dismiss(violation.to_string());
            }
        };
        if !self.desk().contains_key(&frame.token) {
            // Only this: connections to other listeners may be next on that line, and call again when it ends.
            stranger.refuse(frame.token, WRONG_TOKEN);
            return Verdict::Dismiss("it does not know this listener's token: another job, or a port scan".into());
        }
        if frame.kind != Kind::Hello {
            stranger.refuse(frame.token, &format!("an unexpected {:?}", frame.kind));
            return Verdict::Dismiss(format!("it sent an unexpected {:?}", frame.kind));
        }
        Verdict::Admit(frame)
    }

    fn dismiss_late(&self, door: &mut Door) {
        if door.strangers.is_empty() {
            return;
        }
        let now = Instant::now();
        for stranger in door.strangers.extract_if(.., |stranger| now >= stranger.deadline) {
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
    pub(super) fn leave(&self, fd: RawFd) {
        self.epoll.remove(fd);
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

const WRONG_TOKEN: &str = "no such listener: it has closed, or is another job's (wrong token)";

impl Stranger {
    /// `token` is what it has said itself; the default one is for all of its connections.
    fn refuse(&mut self, token: Token, why: &str) {
        self.socket.send(&Frame::text(Kind::Refuse, token, why));
        let _ = self.socket.poll_sent();
    }
}
