//! A line: the one control connection from a process that connects to a process that listens. All connections between the
//! two share it; the listener's token, which every frame bears, tells whose a frame is.
//!
//! A line lives as long as this process has a [`Channel`] on it. Whoever polls a channel reads for all of them, and so do
//! the [reception](super::reception) and the [watcher](super::watcher).
//!
//! ## Order of locks
//!
//! The reception's door, or the list of lines; then a link's way; then a line; then the reception's desk and its connections,
//! or the reason of a link. What a line has to tell its links is told after it has been unlocked. None of them is held while
//! the verbs are called or a channel is dropped, and the data path takes none. The list of connectors and a listener's
//! candidates come before all of them; a watcher, which may hold the door, only tries the latter.

use super::channel::Channel;
use super::link::Link;
use super::reception::Reception;
use super::socket::{ControlSocket, Incoming};
use crate::error::Result;
use crate::proto::frame::{Frame, Kind};
use crate::proto::handle::Token;
use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A control connection between two processes.
#[derive(Debug)]
pub struct Line {
    peer: SocketAddr,
    since: Instant,
    /// The process that made it. A forked child has a copy, and must not touch what is its parent's.
    owner: u32,
    /// Where callers are led to, on the side that listens.
    reception: Option<Arc<Reception>>,
    is_watched: AtomicBool,
    wire: Mutex<Wire>,
}

/// What the lock of a line guards.
#[derive(Debug)]
pub(in crate::net) struct Wire {
    pub(in crate::net) socket: ControlSocket,
    pub(in crate::net) end: Option<End>,
    pub(in crate::net) routes: HashMap<u64, Route>,
    /// The routes on which something may still come.
    pub(in crate::net) open: HashMap<Token, u64>,
    /// Connections that need another line, since this one is lost and this side has dialled it.
    lost: Vec<Weak<Link>>,
    next: u64,
}

/// Where the frames of one connection go.
#[derive(Debug, Default)]
pub(in crate::net) struct Route {
    pub(in crate::net) inbox: VecDeque<Frame>,
    pub(in crate::net) link: Option<Weak<Link>>,
    /// Whether the peer knows of it and is to be told when it ends.
    pub(in crate::net) spoken: bool,
}

/// How a line has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// No TCP connection came about; the errno.
    Unreachable(i32),
    /// The peer's process has ended, or has closed the line.
    Closed,
    /// The network between the hosts has failed, for this reason. The peer may well live.
    Lost(String),
    /// What came is not Ferrite's, or not what a Ferrite says.
    Wrong(String),
    /// The listening process wants nothing of this one, for this reason.
    Refused(String),
}

/// What a line has to tell a link, or people.
#[derive(Debug)]
pub(in crate::net) enum News {
    Warning(String),
    Frame(Arc<Link>, Frame),
    /// The line at this address has ended.
    End(Arc<Link>, *const Line, End),
    /// The peer has said on this channel that the connection goes on there; the number of its attempt.
    Resume(Arc<Link>, Channel, u32),
}

/// Frames that wait on one route: a connection's set-up has at most two, and its end.
pub(in crate::net) const MAX_INBOX: usize = 4;
/// Frames that are read at a time, so that a flood cannot hold the thread that reads.
const MAX_READS: usize = 64;
/// Bytes that may wait to be sent before callers for nobody are no longer answered.
pub(in crate::net) const MAX_BACKLOG: usize = 16 << 10;

impl Line {
    /// Begins to connect to `address`.
    ///
    /// # Errors
    /// The attempt fails at once.
    pub fn dial(address: SocketAddr) -> Result<Self> {
        Ok(Self::with(ControlSocket::dial(address)?, None))
    }

    /// What a caller at `reception` becomes.
    pub fn accepted(socket: ControlSocket, reception: &Arc<Reception>) -> Self {
        Self::with(socket, Some(Arc::clone(reception)))
    }

    fn with(socket: ControlSocket, reception: Option<Arc<Reception>>) -> Self {
        let peer = socket.peer();
        let (routes, open, lost) = (HashMap::new(), HashMap::new(), Vec::new());
        let wire = Wire { socket, end: None, routes, open, lost, next: 0 };
        let (owner, is_watched) = (std::process::id(), AtomicBool::new(false));
        Self { peer, since: Instant::now(), owner, reception, is_watched, wire: Mutex::new(wire) }
    }

    /// The other end's address.
    pub fn peer(&self) -> SocketAddr {
        self.peer
    }

    /// The port that it was accepted at, on the side that listens.
    pub fn reception(&self) -> Option<&Arc<Reception>> {
        self.reception.as_ref()
    }

    /// Connections of a lost line that this side has to dial again for; each is told once.
    pub(in crate::net) fn take_lost(&self) -> Vec<Weak<Link>> {
        std::mem::take(&mut self.lock().lost)
    }

    /// The descriptor, for waiting on.
    pub fn fd(&self) -> RawFd {
        self.lock().socket.fd()
    }

    /// Whether this is the first to watch it.
    pub fn begin_to_watch(&self) -> bool {
        !self.is_watched.swap(true, Ordering::Relaxed)
    }

    /// It could not be watched: the next may try.
    pub fn is_not_watched(&self) {
        self.is_watched.store(false, Ordering::Relaxed);
    }

    /// Whether nothing comes of it any more.
    pub fn has_ended(&self) -> bool {
        self.lock().end.is_some()
    }

    /// Whether it belongs to the process that this one was forked from.
    pub fn is_inherited(&self) -> bool {
        self.owner != std::process::id()
    }

    /// A channel for the connection to the listener that knows `token`. `None`: the line has ended, is not this
    /// process's, or has that connection already.
    pub fn open(self: &Arc<Self>, token: Token) -> Option<Channel> {
        if self.is_inherited() {
            return None;
        }
        let mut wire = self.lock();
        if wire.end.is_some() || wire.open.contains_key(&token) {
            return None;
        }
        let id = wire.add(token, Route::default());
        Some(Channel::new(Arc::clone(self), token, id))
    }

    /// Reads what has come, and hands it out; whether there may be more. What could not be sent before is sent.
    pub fn read(self: &Arc<Self>) -> bool {
        if self.is_inherited() {
            return false;
        }
        let mut news = Vec::new();
        let more = self.read_into(&mut self.lock(), &mut news);
        tell(news);
        more
    }

    /// The same, with the lock held; what links have to be told after that is added to `news`.
    pub(in crate::net) fn read_into(self: &Arc<Self>, wire: &mut Wire, news: &mut Vec<News>) -> bool {
        // To read would take the error of an attempt to connect, which tells a closed port from a lost line.
        match wire.end.is_none().then(|| wire.socket.poll_connected()) {
            Some(Ok(true)) => {}
            Some(Err(errno)) => self.finish(wire, End::Unreachable(errno), news),
            None | Some(Ok(false)) => return false,
        }
        wire.flush();
        for _ in 0..MAX_READS {
            if wire.end.is_some() {
                return false;
            }
            let end = match wire.socket.poll_frame() {
                Ok(Incoming::Nothing) => return false,
                Ok(Incoming::Frame(frame)) => {
                    self.route(wire, frame, news);
                    continue;
                }
                Ok(Incoming::Closed) => End::Closed,
                Ok(Incoming::Lost(why)) => End::Lost(why),
                Err(violation) => End::Wrong(violation.to_string()),
            };
            self.finish(wire, end, news);
        }
        true
    }

    /// A frame has come.
    fn route(self: &Arc<Self>, wire: &mut Wire, frame: Frame, news: &mut Vec<News>) {
        if let Some(id) = wire.open.get(&frame.token).copied() {
            if let Err(end) = wire.deliver(id, frame, news) {
                self.finish(wire, end, news);
            }
            return;
        }
        match (&self.reception, frame.kind) {
            (Some(_), Kind::Hello) => self.introduce(wire, frame),
            (Some(_), Kind::Resume) => self.resume(wire, &frame, news),
            // That is for whoever calls, and not for one of its connections.
            (None, Kind::Refuse) if frame.token == Token::default() => {
                self.finish(wire, End::Refused(frame.body_text()), news);
            }
            // The last words on a connection that is no more.
            _ => log::debug!("{}: a {:?} for nobody", self.peer, frame.kind),
        }
    }

    /// A caller's first words: leads it to its listener.
    pub(in crate::net) fn introduce(self: &Arc<Self>, wire: &mut Wire, hello: Frame) {
        let Some(reception) = &self.reception else { return };
        let token = hello.token;
        let make = || {
            let id = wire.add(token, Route { inbox: VecDeque::from([hello]), link: None, spoken: true });
            Channel::new(Arc::clone(self), token, id)
        };
        let Err(why) = reception.lead(&token, make) else { return };
        wire.refuse(token, why);
    }

    /// A connection of another line goes on here, if the peer knows its secret.
    pub(in crate::net) fn resume(self: &Arc<Self>, wire: &mut Wire, frame: &Frame, news: &mut Vec<News>) {
        let Some(reception) = &self.reception else { return };
        match reception.recall(frame) {
            Ok((link, attempt)) => {
                let id = wire.add(frame.token, Route { spoken: true, ..Route::default() });
                news.push(News::Resume(link, Channel::new(Arc::clone(self), frame.token, id), attempt));
            }
            Err(why) => wire.refuse(frame.token, &why),
        }
    }

    /// The line has ended: so have its connections, as far as they had not before.
    pub(in crate::net) fn finish(&self, wire: &mut Wire, end: End, news: &mut Vec<News>) {
        if let End::Lost(why) = &end {
            let (peer, count) = (self.peer, wire.open.len());
            news.push(News::Warning(format!(
                "the control connection to {peer} is lost ({why}); data of {count} connection(s) goes on over RDMA, and \
                 the side that has dialled dials again"
            )));
        }
        let is_redialled = self.reception.is_none() && matches!(end, End::Lost(_));
        for (_, id) in wire.open.drain() {
            let link = wire.routes.get(&id).and_then(|route| route.link.as_ref()).and_then(Weak::upgrade);
            let Some(link) = link else { continue };
            if is_redialled {
                wire.lost.push(Arc::downgrade(&link));
            }
            news.push(News::End(link, self, end.clone()));
        }
        if let Some(reception) = &self.reception {
            reception.leave(wire.socket.fd());
        }
        wire.end = Some(end);
    }

    /// Whether [`Self::dial`] has come through.
    ///
    /// # Errors
    /// It has not, for this errno; `Ok(false)` while it is under way.
    pub(in crate::net) fn poll_connected(&self) -> std::result::Result<bool, i32> {
        let mut wire = self.lock();
        match wire.end {
            Some(End::Unreachable(errno)) => return Err(errno),
            Some(_) => return Ok(true),
            None => {}
        }
        // Nobody has a link yet who would have to be told.
        wire.socket
            .poll_connected()
            .inspect_err(|errno| self.finish(&mut wire, End::Unreachable(*errno), &mut Vec::new()))
    }

    /// A TCP connection that has not come about within `limit` never does.
    pub(in crate::net) fn give_up_dialling(&self, limit: Duration) {
        let mut wire = self.lock();
        if wire.end.is_none() && self.since.elapsed() > limit && matches!(wire.socket.poll_connected(), Ok(false)) {
            self.finish(&mut wire, End::Unreachable(libc::ETIMEDOUT), &mut Vec::new());
        }
    }

    /// A link comes when the line has ended.
    pub(in crate::net) fn handle_late(&self, wire: &mut Wire, link: &Arc<Link>, end: End) -> News {
        if self.reception.is_none() && matches!(end, End::Lost(_)) {
            wire.lost.push(Arc::downgrade(link));
        }
        News::End(Arc::clone(link), self, end)
    }

    pub(in crate::net) fn lock(&self) -> MutexGuard<'_, Wire> {
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wire {
    fn add(&mut self, token: Token, route: Route) -> u64 {
        let id = self.next;
        self.next += 1;
        self.routes.insert(id, route);
        self.open.insert(token, id);
        id
    }

    /// Nothing more comes on route `id`; whether something might have.
    pub(in crate::net) fn close(&mut self, token: Token, id: u64) -> bool {
        // After a goodbye the token may be in use again.
        let is_open = self.open.get(&token) == Some(&id);
        if is_open {
            self.open.remove(&token);
        }
        is_open
    }

    /// # Errors
    /// The peer says more than there is to say.
    fn deliver(&mut self, id: u64, frame: Frame, news: &mut Vec<News>) -> std::result::Result<(), End> {
        let Some(route) = self.routes.get_mut(&id) else { return Ok(()) };
        // A goodbye is the last word, and a link expects no other.
        if frame.kind == Kind::Goodbye || route.link.is_some() {
            self.open.remove(&frame.token);
        }
        match &route.link {
            Some(link) => news.extend(link.upgrade().map(|link| News::Frame(link, frame))),
            None if route.inbox.len() < MAX_INBOX => route.inbox.push_back(frame),
            None => return Err(End::Wrong(format!("more than {MAX_INBOX} control messages at once"))),
        }
        Ok(())
    }

    /// Tells a caller, unless too much waits to be sent.
    fn refuse(&mut self, token: Token, why: &str) {
        if self.socket.backlog() < MAX_BACKLOG {
            self.socket.send(&Frame::text(Kind::Refuse, token, why));
            self.flush();
        }
    }

    /// Hands over what is to be sent; whether all of it has gone. An end of the line is left to the reader, who has to see
    /// first what came before it.
    pub(in crate::net) fn flush(&mut self) -> bool {
        self.end.is_none() && self.socket.poll_sent().unwrap_or(false)
    }
}

/// Tells the links; no line may be locked.
pub(in crate::net) fn tell(news: Vec<News>) {
    for one in news {
        match one {
            News::Warning(text) => log::warn!("{text}"),
            News::Frame(link, frame) => link.handle_frame(&frame),
            News::End(link, line, end) => link.handle_end(line, &end),
            News::Resume(link, channel, attempt) => {
                link.resume(channel, attempt);
            }
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        let mut wire = self.lock();
        wire.flush();
        wire.socket.finish();
        // A socket that is closed with something to read is reset, and then what was said last is not sent again if it got lost.
        for _ in 0..MAX_READS {
            if !matches!(wire.socket.poll_frame(), Ok(Incoming::Frame(_))) {
                break;
            }
        }
        if let Some(reception) = self.reception.as_ref().filter(|_| wire.end.is_none()) {
            reception.leave(wire.socket.fd());
        }
    }
}
