//! The thread that looks at the sockets of listeners and connections.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::Duration;
use std::{mem, ptr, thread};

use crate::abi::rdma_cm::event;
use crate::host::{last_errno, lock};
use crate::verbs::cm::id::{Id, Stage, State, What};
use crate::verbs::cm::message::{Heard, Kind, Message, NOBODY_LISTENS, accept, hear, say};

/// What the thread looks at.
enum Watched {
    Listener(Weak<Id>),
    /// Accepted, and has not said yet what it wants of the listener.
    Stranger(Weak<Id>, OwnedFd),
    Connection(Weak<Id>),
}

struct Service {
    epoll: OwnedFd,
    /// The names that are in use, and the last one that was given.
    watched: Mutex<(HashMap<u64, Arc<Watched>>, u64)>,
}

static CURRENT: AtomicPtr<Service> = AtomicPtr::new(ptr::null_mut());
static STARTING: AtomicBool = AtomicBool::new(false);
static HANDLER: Once = Once::new();
/// The thread is in an identifier, or somebody forks: a child must not find an identifier locked by
/// a thread that it does not have.
static AT_WORK: AtomicBool = AtomicBool::new(false);

#[inline]
fn current() -> Option<&'static Service> {
    // SAFETY: set from a leaked box, or null.
    unsafe { CURRENT.load(SeqCst).as_ref() }
}

/// The thread of this process and what it looks at; started on first use.
fn service() -> Result<&'static Service, i32> {
    if let Some(service) = current() {
        return Ok(service);
    }
    while STARTING.swap(true, SeqCst) {
        thread::yield_now();
    }
    let result = current().map_or_else(begin, Ok);
    STARTING.store(false, SeqCst);
    result
}

fn begin() -> Result<&'static Service, i32> {
    // SAFETY: a new descriptor is ours.
    let epoll = unsafe {
        let fd = libc::epoll_create1(libc::EPOLL_CLOEXEC);
        if fd < 0 {
            return Err(last_errno());
        }
        OwnedFd::from_raw_fd(fd)
    };
    // SAFETY: a plain function of a library that is never unloaded (-z nodelete).
    HANDLER.call_once(|| unsafe {
        _ = libc::pthread_atfork(Some(enter), Some(leave), Some(in_child))
    });
    // A forked child has sockets that the process before it looks at: none has a name that is given
    // here.
    let first = u64::from(std::process::id()) << 32;
    let made =
        Box::into_raw(Box::new(Service { epoll, watched: Mutex::new((HashMap::new(), first)) }));
    // SAFETY: given to the thread for good, or taken back here.
    unsafe {
        start(&*made).inspect_err(|_| drop(Box::from_raw(made)))?;
        CURRENT.store(made, SeqCst);
        Ok(&*made)
    }
}

extern "C" fn enter() {
    while AT_WORK.swap(true, SeqCst) {
        thread::yield_now();
    }
}

extern "C" fn leave() {
    AT_WORK.store(false, SeqCst);
}

/// After fork, in the child: the thread is the parent's.
extern "C" fn in_child() {
    CURRENT.store(ptr::null_mut(), SeqCst);
    STARTING.store(false, SeqCst);
    leave();
}

/// Starts the thread, which runs no handler of the application's signals.
fn start(service: &'static Service) -> Result<(), i32> {
    // SAFETY: sets of signals may be all zeros; the calls write to the sets that they are given.
    let former = unsafe {
        let (mut all, mut former): (libc::sigset_t, libc::sigset_t) =
            (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut former);
        former
    };
    let spawned =
        thread::Builder::new().name("softrnic-cm".to_owned()).spawn(move || serve(service));
    // SAFETY: restores what was found.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const former, ptr::null_mut()) };
    spawned.map(drop).map_err(|e| e.raw_os_error().unwrap_or(libc::EAGAIN))
}

/// Until the process may have descriptors again.
const NO_DESCRIPTOR: Duration = Duration::from_millis(5);

fn serve(service: &'static Service) {
    loop {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        // SAFETY: room for one event.
        match unsafe { libc::epoll_wait(service.epoll.as_raw_fd(), &raw mut event, 1, -1) } {
            1 => {
                enter();
                service.look(event.u64);
                leave();
            }
            -1 if last_errno() != libc::EINTR => return,
            _ => {}
        }
    }
}

/// The thread looks at the listener's socket from now on.
pub(super) fn watch_listener(id: &Arc<Id>, state: &mut State) -> Result<(), i32> {
    watch(Watched::Listener(Arc::downgrade(id)), state)
}

/// The same, for the socket of a connection.
pub(super) fn watch_connection(id: &Arc<Id>, state: &mut State) -> Result<(), i32> {
    watch(Watched::Connection(Arc::downgrade(id)), state)
}

fn watch(what: Watched, state: &mut State) -> Result<(), i32> {
    let fd = state.socket.as_ref().ok_or(libc::EINVAL)?.as_raw_fd();
    state.watched = service()?.add(what, fd)?;
    Ok(())
}

/// Closes the socket of an identifier. A forked child may hold it as well: the peer learns of its
/// end nevertheless, and the thread looks no longer at it. What the child closes stays open in the
/// parent.
pub(super) fn close(state: &mut State) {
    if let (Some(service), Some(socket)) = (current(), &state.socket)
        && lock(&service.watched).0.remove(&state.watched).is_some()
    {
        service.ignore(socket.as_raw_fd());
        // SAFETY: no pointers.
        unsafe { libc::shutdown(socket.as_raw_fd(), libc::SHUT_RDWR) };
    }
    state.watched = 0;
    state.socket = None;
}

impl Service {
    fn add(&self, what: Watched, fd: RawFd) -> Result<u64, i32> {
        let name = {
            let mut watched = lock(&self.watched);
            watched.1 += 1;
            let name = watched.1;
            watched.0.insert(name, Arc::new(what));
            name
        };
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: name };
        // SAFETY: one event.
        if unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &raw mut event)
        } != 0
        {
            lock(&self.watched).0.remove(&name);
            return Err(last_errno());
        }
        Ok(name)
    }

    fn ignore(&self, fd: RawFd) {
        // SAFETY: no event is needed to take one away.
        unsafe {
            libc::epoll_ctl(self.epoll.as_raw_fd(), libc::EPOLL_CTL_DEL, fd, ptr::null_mut())
        };
    }

    fn look(&self, name: u64) {
        let Some(watched) = lock(&self.watched).0.get(&name).cloned() else { return };
        match &*watched {
            Watched::Listener(id) => {
                if let Some(id) = id.upgrade() {
                    self.accept(&id);
                }
            }
            Watched::Stranger(_, socket) => match hear(socket) {
                Heard::Nothing => {}
                heard => {
                    self.ignore(socket.as_raw_fd());
                    lock(&self.watched).0.remove(&name);
                    drop_or_ask(watched, heard);
                }
            },
            Watched::Connection(id) => {
                if let Some(id) = id.upgrade() {
                    self.hear(&id);
                }
            }
        }
    }

    fn accept(&self, listener: &Arc<Id>) {
        let (mut strangers, mut code) = (Vec::new(), libc::EAGAIN);
        if let Some(socket) = &lock(&listener.state).socket {
            loop {
                match accept(socket) {
                    Ok(stranger) => strangers.push(stranger),
                    Err(why) => break code = why,
                }
            }
        }
        for stranger in strangers {
            let fd = stranger.as_raw_fd();
            // A socket that cannot be looked at is closed.
            let _ = self.add(Watched::Stranger(Arc::downgrade(listener), stranger), fd);
        }
        // Who waits to be accepted is there at the next look as well.
        if matches!(code, libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM) {
            thread::sleep(NO_DESCRIPTOR);
        }
    }

    fn hear(&self, id: &Arc<Id>) {
        let mut state = lock(&id.state);
        while let Some(socket) = &state.socket {
            match hear(socket) {
                Heard::Nothing => return,
                Heard::Message(message) => take_message(id, &mut state, message),
                Heard::End => {
                    let fd = socket.as_raw_fd();
                    self.ignore(fd);
                    end_connection(id, &mut state);
                    return;
                }
            }
        }
    }
}

/// A stranger has said what it wants: the listener is asked for it, if that listens at the address.
fn drop_or_ask(watched: Arc<Watched>, heard: Heard) {
    let Some(Watched::Stranger(listener, socket)) = Arc::into_inner(watched) else { return };
    let (Some(listener), Heard::Message(message)) = (listener.upgrade(), heard) else { return };
    if message.kind != Kind::Req {
        return;
    }
    let state = lock(&listener.state);
    let listens = |at: SocketAddr| {
        let (bound, wanted) = (at.ip().to_canonical(), message.target.ip().to_canonical());
        bound.is_unspecified() || bound == wanted
    };
    if state.stage == Stage::Listening && state.source.is_some_and(listens) {
        listener.tell(&state, What::Request(socket, message));
    } else {
        say(&socket, &Message::refusal(NOBODY_LISTENS, Vec::new()));
    }
}

/// The peer has said something.
fn take_message(id: &Arc<Id>, state: &mut State, message: Box<Message>) {
    match (state.stage, message.kind) {
        (Stage::Connecting, Kind::Rep) => {
            state.stage = Stage::Answered;
            id.tell(state, What::Said(event::CONNECT_RESPONSE, 0, message));
        }
        (Stage::Connecting | Stage::Accepting, Kind::Rej) => {
            state.stage = Stage::Over;
            id.tell(state, What::Said(event::REJECTED, i32::from(message.reason), message));
        }
        (Stage::Accepting, Kind::Rtu) => {
            state.stage = Stage::Connected;
            id.tell(state, What::Plain(event::ESTABLISHED, 0));
        }
        (Stage::Connected | Stage::Answered | Stage::Accepting | Stage::Leaving, Kind::Dreq) => {
            if state.stage != Stage::Leaving
                && let Some(socket) = &state.socket
            {
                say(socket, &Message::bare(Kind::Dreq));
            }
            state.stage = Stage::Over;
            id.tell(state, What::Plain(event::DISCONNECTED, 0));
        }
        // What crosses with the end of a connection.
        _ => {}
    }
}

/// The peer has closed its socket, or is dead.
fn end_connection(id: &Arc<Id>, state: &mut State) {
    let what = match state.stage {
        Stage::Connecting | Stage::Accepting => What::Plain(event::UNREACHABLE, -libc::ETIMEDOUT),
        Stage::Connected | Stage::Answered | Stage::Leaving => What::Plain(event::DISCONNECTED, 0),
        _ => {
            state.stage = Stage::Over;
            return;
        }
    };
    state.stage = Stage::Over;
    id.tell(state, what);
}
