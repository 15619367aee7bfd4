//! Listeners and connections.

use std::collections::HashMap;
use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::sync::{Arc, Mutex, Once, Weak};
use std::time::{Duration, Instant};
use std::{mem, ptr, slice, thread};

use crate::abi::export::export;
use crate::abi::rdma_cm::{AS_MUCH_AS_THERE_IS, CmId, ConnParam, event};
use crate::abi::types::Gid;
use crate::host::{last_errno, lock, now_ns};
use crate::limits::MAX_READS;
use crate::process::fabric::Fabric;
use crate::verbs::cm::id::{Id, Stage, State, What, complete, establish, let_go};
use crate::verbs::cm::queue_pair;
use crate::verbs::engine::engine;
use crate::verbs::{minus_one, object, shared};

/// `IB_CM_REJ_CONSUMER_DEFINED`.
const REFUSED_BY_APPLICATION: u8 = 28;
/// Where the application says nothing: retries without end, as librdmacm has it.
const MOST_RETRIES: u8 = 7;

unsafe extern "C" fn rdma_listen(abi: *mut CmId, _backlog: c_int) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        let id: Arc<Id> = unsafe { shared(abi) };
        let mut state = lock(&id.state);
        if state.stage != Stage::Bound {
            return Err(libc::EINVAL);
        }
        listen(state.socket.as_ref().ok_or(libc::EINVAL)?)?;
        state.stage = Stage::Listening;
        watch_listener(&id, &mut state)
    })
}
export!("rdma_listen", "RDMACM_1.0", rdma_listen);

/// The private data that the application gives along; EINVAL if it is more than `most`.
///
/// # Safety
/// As many bytes as it says are there.
unsafe fn private(data: *const c_void, length: u8, most: usize) -> Result<Vec<u8>, i32> {
    match usize::from(length) {
        0 => Ok(Vec::new()),
        length if length > most || data.is_null() => Err(libc::EINVAL),
        // SAFETY: by the caller.
        length => Ok(unsafe { slice::from_raw_parts(data.cast(), length) }.to_vec()),
    }
}

/// What the application wants of a connection; NULL: as much as there is.
///
/// # Safety
/// `param` is the caller's structure, or NULL.
unsafe fn wanted(param: *const ConnParam) -> Result<ConnParam, i32> {
    let all = ConnParam {
        private_data: ptr::null(),
        private_data_len: 0,
        responder_resources: AS_MUCH_AS_THERE_IS,
        initiator_depth: AS_MUCH_AS_THERE_IS,
        flow_control: 1,
        retry_count: MOST_RETRIES,
        rnr_retry_count: MOST_RETRIES,
        srq: 0,
        qp_num: 0,
    };
    // SAFETY: by the caller.
    let param = unsafe { param.as_ref() }.copied().unwrap_or(all);
    let is_fine = |depth: u8| depth <= MAX_READS || depth == AS_MUCH_AS_THERE_IS;
    let are_fine = is_fine(param.responder_resources) && is_fine(param.initiator_depth);
    if are_fine { Ok(param) } else { Err(libc::EINVAL) }
}

/// The number that packets begin with: any.
fn new_psn(id: &Id) -> u32 {
    let mixed = (now_ns() ^ (id.as_abi() as u64) << 20).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 40) as u32
}

/// What this end says of itself, in a REQ or REP.
///
/// # Safety
/// `id` is held by the application, in a call of its own.
unsafe fn introduction(
    kind: Kind,
    id: &Id,
    state: &State,
    param: &ConnParam,
) -> Result<Message, i32> {
    let place = state.place.ok_or(libc::EINVAL)?;
    let slot = engine()?.fabric.port(place.device, place.port);
    // SAFETY: by the caller; a live queue pair.
    let (gid, qp_num, srq) = unsafe {
        let abi = id.as_abi();
        let own = (*abi).qp.as_ref();
        (
            (*abi).route.sgid,
            own.map_or(param.qp_num, |qp| qp.qp_num),
            own.map_or(param.srq, |qp| u8::from(!qp.srq.is_null())),
        )
    };
    let terms = &state.terms;
    Ok(Message {
        terms: [
            terms.responder_resources,
            terms.initiator_depth,
            param.flow_control,
            terms.retry_count,
            param.rnr_retry_count.min(MOST_RETRIES),
            srq,
        ],
        mtu: slot.mtu.load(SeqCst) as u8,
        lid: slot.lid.load(SeqCst) as u16,
        qp_num,
        psn: terms.psn,
        gid,
        ..Message::bare(kind)
    })
}

/// How long a listener is waited for. Some programs tell their client to connect just before they
/// listen (perftest), and do not survive the refusal; a connection manager in the kernel takes
/// longer to ask than they take to listen.
const LATE: Duration = Duration::from_millis(500);

/// A socket to who listens at `port`; `None`: nobody does, or so many wait for it that there is no
/// room.
fn reach(fabric: &Fabric, port: u16) -> Result<Option<OwnedFd>, i32> {
    let end = Instant::now() + LATE;
    loop {
        match connect(fabric, port) {
            Ok(socket) => return Ok(Some(socket)),
            Err(libc::ECONNREFUSED | libc::EAGAIN) if Instant::now() >= end => return Ok(None),
            Err(libc::ECONNREFUSED | libc::EAGAIN) => thread::sleep(Duration::from_millis(1)),
            Err(code) => return Err(code),
        }
    }
}

unsafe extern "C" fn rdma_connect(abi: *mut CmId, param: *const ConnParam) -> c_int {
    let begun = minus_one(|| {
        // SAFETY: the caller's handle and structure.
        unsafe {
            let id: Arc<Id> = shared(abi);
            let param = wanted(param)?;
            let data = private(param.private_data, param.private_data_len, PRIVATE_OF_REQ)?;
            let mut state = lock(&id.state);
            let (source, target) = state.source.zip(state.target).ok_or(libc::EINVAL)?;
            if state.stage != Stage::RouteKnown {
                return Err(libc::EINVAL);
            }
            state.terms.psn = new_psn(&id);
            state.terms.responder_resources = param.responder_resources.min(MAX_READS);
            state.terms.initiator_depth = param.initiator_depth.min(MAX_READS);
            state.terms.retry_count = param.retry_count.min(MOST_RETRIES);
            state.terms.rnr_retry_count = param.rnr_retry_count.min(MOST_RETRIES);
            let said = introduction(Kind::Req, &id, &state, &param)?;
            let said = Message { source, target, private: data, ..said };
            let Some(socket) = reach(engine()?.fabric, target.port())? else {
                let refusal = Message::refusal(NOBODY_LISTENS, Vec::new());
                state.stage = Stage::Over;
                let status = i32::from(NOBODY_LISTENS);
                id.tell(&state, What::Said(event::REJECTED, status, Box::new(refusal)));
                return Ok(());
            };
            // The name of the source is given back.
            close(&mut state);
            state.stage = Stage::Connecting;
            say(&socket, &said);
            state.socket = Some(socket);
            watch_connection(&id, &mut state)
        }
    });
    // SAFETY: the caller's handle.
    if begun == 0 { unsafe { complete(abi) } } else { begun }
}
export!("rdma_connect", "RDMACM_1.0", rdma_connect);

unsafe extern "C" fn rdma_accept(abi: *mut CmId, param: *const ConnParam) -> c_int {
    let begun = minus_one(|| {
        // SAFETY: the caller's handle and structure.
        unsafe {
            let id: Arc<Id> = shared(abi);
            let param = wanted(param)?;
            let data = private(param.private_data, param.private_data_len, PRIVATE_OF_REP)?;
            let mut state = lock(&id.state);
            if !matches!(state.stage, Stage::Requested | Stage::Over) || state.peer.is_none() {
                return Err(libc::EINVAL);
            }
            let agreed = |wanted: u8, offered: u8| {
                if wanted == AS_MUCH_AS_THERE_IS { offered.min(MAX_READS) } else { wanted }
            };
            state.terms.psn = new_psn(&id);
            state.terms.responder_resources =
                agreed(param.responder_resources, state.terms.responder_resources);
            state.terms.initiator_depth =
                agreed(param.initiator_depth, state.terms.initiator_depth);
            queue_pair::connect(abi, &state)?;
            let said = Message { private: data, ..introduction(Kind::Rep, &id, &state, &param)? };
            let is_heard = state.stage == Stage::Requested
                && state.socket.as_ref().is_some_and(|it| say(it, &said));
            if is_heard {
                state.stage = Stage::Accepting;
            } else {
                state.stage = Stage::Over;
                id.tell(&state, What::Plain(event::UNREACHABLE, -libc::ETIMEDOUT));
            }
            Ok(())
        }
    });
    // SAFETY: the caller's handle.
    if begun == 0 { unsafe { complete(abi) } } else { begun }
}
export!("rdma_accept", "RDMACM_1.0", rdma_accept);

unsafe extern "C" fn rdma_reject(abi: *mut CmId, data: *const c_void, length: u8) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle and data.
        let (id, data) = unsafe { (shared::<Id, _>(abi), private(data, length, PRIVATE_OF_REJ)?) };
        let mut state = lock(&id.state);
        if state.stage != Stage::Requested {
            return Err(libc::EINVAL);
        }
        refuse(&mut state, data);
        Ok(())
    })
}
export!("rdma_reject", "RDMACM_1.0", rdma_reject);
export!("rdma_reject_ece", "RDMACM_1.3", rdma_reject);

fn refuse(state: &mut State, data: Vec<u8>) {
    if let Some(socket) = &state.socket {
        say(socket, &Message::refusal(REFUSED_BY_APPLICATION, data));
    }
    close(state);
    state.stage = Stage::Over;
}

/// For applications that bring their queue pair to its states themselves.
unsafe extern "C" fn rdma_establish(abi: *mut CmId) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        let id: &Id = unsafe { object(abi) };
        let mut state = lock(&id.state);
        // SAFETY: as above.
        if !unsafe { (*abi).qp.is_null() } || state.stage != Stage::Answered {
            return Err(libc::EINVAL);
        }
        establish(&mut state);
        Ok(())
    })
}
export!("rdma_establish", "RDMACM_1.2", rdma_establish);

unsafe extern "C" fn rdma_disconnect(abi: *mut CmId) -> c_int {
    let begun = minus_one(|| {
        // SAFETY: the caller's handle.
        let id: &Id = unsafe { object(abi) };
        let mut state = lock(&id.state);
        match state.stage {
            Stage::Connected | Stage::Answered | Stage::Accepting => {
                state.stage = Stage::Leaving;
                if let Some(socket) = &state.socket {
                    say(socket, &Message::bare(Kind::Dreq));
                }
            }
            Stage::Leaving | Stage::Over => {}
            _ => return Err(libc::EINVAL),
        }
        // SAFETY: as above.
        unsafe { queue_pair::fail(abi) };
        // No event will come any more: a call that waits would wait without end.
        let is_settled = state.stage == Stage::Over && state.channel.queue.is_empty();
        if is_settled && id.is_sync.load(SeqCst) { Err(libc::EINVAL) } else { Ok(()) }
    });
    // SAFETY: the caller's handle.
    if begun == 0 { unsafe { complete(abi) } } else { begun }
}
export!("rdma_disconnect", "RDMACM_1.0", rdma_disconnect);

/// Ends what the identifier has begun, and gives it back.
///
/// # Safety
/// `abi` is the caller's handle.
pub(super) unsafe fn end(abi: *mut CmId) {
    // SAFETY: by the caller, who gives up the handle.
    unsafe {
        let id: Arc<Id> = shared(abi);
        let channel = {
            let mut state = lock(&id.state);
            if state.stage == Stage::Requested {
                refuse(&mut state, Vec::new());
            }
            close(&mut state);
            state.stage = Stage::Over;
            Arc::clone(&state.channel)
        };
        id.forget_events(&channel);
        let_go(abi);
        id.await_acknowledgements();
        drop(Arc::from_raw(abi.cast::<Id>()));
    }
}

/// Kinds of messages, by the names of the InfiniBand connection manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Asks for a connection.
    Req = 1,
    /// Accepts it.
    Rep = 2,
    /// Ready to use.
    Rtu = 3,
    /// Refuses it.
    Rej = 4,
    /// Ends it, and answers that.
    Dreq = 5,
}

/// Most private data of each kind over RDMA_PS_TCP; events have so many bytes of them, filled up
/// with zeros.
pub(super) const PRIVATE_OF_REQ: usize = 56;
pub(super) const PRIVATE_OF_REP: usize = 196;
pub(super) const PRIVATE_OF_REJ: usize = 148;

/// Changes with the layout of messages.
const VERSION: u8 = 1;

/// One message.
#[derive(Clone, Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    /// Of a REJ: why (`ib_cm_rej_reason`).
    pub(super) reason: u8,
    /// Responder resources, initiator depth, flow control, retry count, RNR retry count, SRQ; as
    /// the application says it.
    pub(super) terms: [u8; 6],
    /// `ibv_mtu` of the port.
    pub(super) mtu: u8,
    pub(super) lid: u16,
    pub(super) qp_num: u32,
    pub(super) psn: u32,
    pub(super) gid: Gid,
    pub(super) source: SocketAddr,
    pub(super) target: SocketAddr,
    pub(super) private: Vec<u8>,
}

fn address_bytes(address: SocketAddr) -> [u8; 19] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut bytes = [0; 19];
    bytes[0] = u8::from(address.is_ipv4());
    bytes[1..17].copy_from_slice(&ip.octets());
    bytes[17..].copy_from_slice(&address.port().to_be_bytes());
    bytes
}

fn address_of(bytes: [u8; 19]) -> SocketAddr {
    let mut octets = [0; 16];
    octets.copy_from_slice(&bytes[1..17]);
    let ip = Ipv6Addr::from(octets);
    let port = u16::from_be_bytes([bytes[17], bytes[18]]);
    let mapped = ip.to_ipv4_mapped().filter(|_| bytes[0] == 1);
    SocketAddr::new(mapped.map_or(IpAddr::V6(ip), IpAddr::V4), port)
}

impl Message {
    /// One that says nothing but its kind.
    pub(super) fn bare(kind: Kind) -> Self {
        let nowhere = SocketAddr::from(([0; 4], 0));
        Self {
            kind,
            reason: 0,
            terms: [0; 6],
            mtu: 0,
            lid: 0,
            qp_num: 0,
            psn: 0,
            gid: [0; 16],
            source: nowhere,
            target: nowhere,
            private: Vec::new(),
        }
    }

    /// A refusal.
    pub(super) fn refusal(reason: u8, private: Vec<u8>) -> Self {
        Self { reason, private, ..Self::bare(Kind::Rej) }
    }

    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION, self.kind as u8, self.reason, self.mtu];
        bytes.extend(self.terms);
        bytes.extend(self.lid.to_be_bytes());
        bytes.extend(self.qp_num.to_be_bytes());
        bytes.extend(self.psn.to_be_bytes());
        bytes.extend(self.gid);
        bytes.extend(address_bytes(self.source));
        bytes.extend(address_bytes(self.target));
        bytes.extend(&self.private);
        bytes
    }

    /// `None`: it is none of this version.
    pub(super) fn of_bytes(mut bytes: &[u8]) -> Option<Self> {
        let [version, kind, reason, mtu] = take(&mut bytes)?;
        let known = [Kind::Req, Kind::Rep, Kind::Rtu, Kind::Rej, Kind::Dreq];
        let kind = known.into_iter().find(|one| *one as u8 == kind && version == VERSION)?;
        Some(Self {
            kind,
            reason,
            mtu,
            terms: take(&mut bytes)?,
            lid: u16::from_be_bytes(take(&mut bytes)?),
            qp_num: u32::from_be_bytes(take(&mut bytes)?),
            psn: u32::from_be_bytes(take(&mut bytes)?),
            gid: take(&mut bytes)?,
            source: address_of(take(&mut bytes)?),
            target: address_of(take(&mut bytes)?),
            private: bytes.to_vec(),
        })
    }
}

fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*head)
}

/// More than any message has.
const ROOM: usize = 1024;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// What came of a look at a socket.
pub(super) enum Heard {
    Message(Box<Message>),
    /// Nothing yet.
    Nothing,
    /// The other end has closed it, or says what is no message.
    End,
}

fn new() -> Result<OwnedFd, i32> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no pointers; a new descriptor is ours.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, kind, 0);
        if fd < 0 { Err(last_errno()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}

/// The abstract name of `port` on this fabric.
fn name(fabric: &Fabric, port: u16) -> (libc::sockaddr_un, u32) {
    let text = format!("softrnic-cm/{}/{port}", fabric.settings.fabric);
    // SAFETY: all zeros are valid.
    let mut name: libc::sockaddr_un = unsafe { mem::zeroed() };
    name.sun_family = libc::AF_UNIX as u16;
    // It fits: names of fabrics have 64 letters at most. The first byte stays 0.
    for (to, from) in name.sun_path[1..].iter_mut().zip(text.bytes()) {
        *to = from as libc::c_char;
    }
    (name, (size_of::<u16>() + 1 + text.len()) as u32)
}

/// A socket that has the name of `port`; EADDRINUSE if another has it.
pub(super) fn bind(fabric: &Fabric, port: u16) -> Result<OwnedFd, i32> {
    let (socket, (name, length)) = (new()?, name(fabric, port));
    // SAFETY: a name of that length.
    let rc = unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), length) };
    if rc == 0 { Ok(socket) } else { Err(last_errno()) }
}

pub(super) fn listen(socket: &OwnedFd) -> Result<(), i32> {
    // SAFETY: no pointers.
    if unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) } == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// A connection to who listens at `port`; ECONNREFUSED if nobody does.
pub(super) fn connect(fabric: &Fabric, port: u16) -> Result<OwnedFd, i32> {
    let (socket, (name, length)) = (new()?, name(fabric, port));
    // SAFETY: a name of that length.
    let rc = unsafe { libc::connect(socket.as_raw_fd(), (&raw const name).cast(), length) };
    if rc == 0 { Ok(socket) } else { Err(last_errno()) }
}

/// The next connection to a listener, of a process of the same user; EAGAIN: there is none.
pub(super) fn accept(listener: &OwnedFd) -> Result<OwnedFd, i32> {
    loop {
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: who it is, is asked below; a new descriptor is ours.
        let socket = unsafe {
            let fd = libc::accept4(listener.as_raw_fd(), ptr::null_mut(), ptr::null_mut(), flags);
            if fd < 0 {
                return Err(last_errno());
            }
            OwnedFd::from_raw_fd(fd)
        };
        if is_of_same_user(&socket) {
            return Ok(socket);
        }
    }
}

fn is_of_same_user(socket: &OwnedFd) -> bool {
    let mut who = libc::ucred { pid: 0, uid: u32::MAX, gid: 0 };
    let mut length = size_of::<libc::ucred>() as u32;
    // SAFETY: a structure of that length; geteuid has no preconditions.
    unsafe {
        let (level, option) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
        let rc = libc::getsockopt(
            socket.as_raw_fd(),
            level,
            option,
            (&raw mut who).cast(),
            &raw mut length,
        );
        rc == 0 && who.uid == libc::geteuid()
    }
}

/// False: the other end is gone.
pub(super) fn say(socket: &OwnedFd, message: &Message) -> bool {
    let bytes = message.to_bytes();
    // SAFETY: as many bytes as it says.
    let sent = unsafe {
        libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL)
    };
    sent == bytes.len() as isize
}

pub(super) fn hear(socket: &OwnedFd) -> Heard {
    let mut bytes = [0u8; ROOM];
    // SAFETY: room for as many bytes as it says.
    let got = unsafe { libc::recv(socket.as_raw_fd(), bytes.as_mut_ptr().cast(), ROOM, 0) };
    match usize::try_from(got) {
        Err(_) if matches!(last_errno(), libc::EAGAIN | libc::EINTR) => Heard::Nothing,
        Ok(length @ 1..) => Message::of_bytes(&bytes[..length])
            .map_or(Heard::End, |it| Heard::Message(Box::new(it))),
        _ => Heard::End,
    }
}

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

/// `IB_CM_REJ_INVALID_SERVICE_ID`.
pub(super) const NOBODY_LISTENS: u8 = 8;

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_heard() {
        let said = Message {
            reason: 28,
            terms: [1, 2, 3, 4, 5, 6],
            mtu: 5,
            lid: 7,
            qp_num: 0x12_3456,
            psn: 0x65_4321,
            gid: [9; 16],
            source: "127.0.0.1:7174".parse().expect("an address"),
            target: "[fe80::1]:80".parse().expect("an address"),
            private: vec![1, 2, 3],
            ..Message::bare(Kind::Rej)
        };
        let heard = Message::of_bytes(&said.to_bytes()).expect("it is understood");
        assert_eq!(format!("{heard:?}"), format!("{said:?}"));
        assert!(Message::of_bytes(&said.to_bytes()[..60]).is_none(), "a part");
        assert!(Message::of_bytes(&[VERSION + 1; 100]).is_none(), "of another version");
    }

    /// Each beginning of a message, and each with one byte changed: it is none, or one that can be
    /// said as it was heard.
    #[test]
    fn any_bytes_are_a_message_or_none() {
        let source = "[::ffff:10.0.0.1]:7".parse().expect("an address");
        let good =
            Message { source, private: vec![1, 2, 3], ..Message::bare(Kind::Req) }.to_bytes();
        let check = |bytes: &[u8]| {
            let Some(heard) = Message::of_bytes(bytes) else { return false };
            let again = Message::of_bytes(&heard.to_bytes()).expect("it is understood");
            assert_eq!(format!("{again:?}"), format!("{heard:?}"));
            assert!(heard.private.len() < bytes.len());
            true
        };
        let lengths: Vec<usize> =
            (0..=good.len()).filter(|length| check(&good[..*length])).collect();
        assert_eq!(
            lengths,
            [good.len() - 3, good.len() - 2, good.len() - 1, good.len()],
            "all but private data"
        );
        for at in 0..good.len() {
            for byte in 0..=u8::MAX {
                let mut bytes = good.clone();
                bytes[at] = byte;
                check(&bytes);
            }
        }
    }
}
