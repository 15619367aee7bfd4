//! Identifiers: an end of a connection, or a listener.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int, c_void};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::abi::export::export;
use crate::abi::rdma_cm::{
    AddrInfo, CmEvent, CmId, ConnParam, EventChannel, PathRec, Route, event, port_space, rai,
};
use crate::abi::types::{Pd, QpInitAttr, qp_type};
use crate::host::{FdQueue, lock, set_errno};
use crate::verbs::cm::connect::{
    Kind, Message, PRIVATE_OF_REJ, PRIVATE_OF_REP, PRIVATE_OF_REQ, end,
};
use crate::verbs::cm::queue_pair::rdma_create_qp;
use crate::verbs::cm::resolve::{
    Place, gid, place_of, rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route, storage,
};
use crate::verbs::cm::{connect, queue_pair, resolve};
use crate::verbs::engine::engine;
use crate::verbs::{minus_one, object, pointer, shared};

/// Something that has happened to an identifier, and waits to be fetched.
pub(super) struct Happened {
    pub(super) id: Arc<Id>,
    pub(super) what: What,
}

pub(super) enum What {
    /// An event (`rdma_cm_event_type`) with its status.
    Plain(u32, i32),
    /// The same, by a message of the peer.
    Said(u32, i32, Box<Message>),
    /// Somebody asks a listener for a connection, and waits at this socket.
    Request(OwnedFd, Box<Message>),
}

pub(super) type Events = Channel<Happened>;

/// How far an identifier has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    Bound,
    AddressKnown,
    RouteKnown,
    Listening,
    /// REQ is sent.
    Connecting,
    /// REP has come.
    Answered,
    /// REQ has come.
    Requested,
    /// REP is sent.
    Accepting,
    Connected,
    /// DREQ is sent.
    Leaving,
    /// Disconnected, refused, or the peer is gone.
    Over,
}

/// What both ends of a connection have agreed on, as this end has it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Terms {
    pub(super) psn: u32,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
}

pub(super) struct State {
    pub(super) channel: Arc<Events>,
    pub(super) stage: Stage,
    pub(super) source: Option<SocketAddr>,
    pub(super) target: Option<SocketAddr>,
    pub(super) place: Option<Place>,
    /// Of a listener, or of the connection.
    pub(super) socket: Option<OwnedFd>,
    /// Name of the socket for the thread that looks at it; 0: it does not.
    pub(super) watched: u64,
    pub(super) terms: Terms,
    /// `timeout` of the queue pair.
    pub(super) timeout: u8,
    /// REQ or REP of the peer.
    pub(super) peer: Option<Box<Message>>,
    /// Of a listener whose calls wait: what the queue pairs of its connections are to have.
    pub(super) children: Option<QpInitAttr>,
}

/// What the application holds as `rdma_cm_id*` is its first field.
#[repr(C)]
pub(super) struct Id {
    abi: UnsafeCell<CmId>,
    pub(super) state: Mutex<State>,
    /// Calls wait for what they begin.
    pub(super) is_sync: AtomicBool,
    path: UnsafeCell<PathRec>,
    /// Events that were fetched and are not acknowledged.
    unacknowledged: (Mutex<u32>, Condvar),
}

// SAFETY: `abi` and `path` are written by calls of the application with this identifier, and
// nowhere else; the rest synchronises itself.
unsafe impl Send for Id {}
// SAFETY: as above.
unsafe impl Sync for Id {}

/// 4.096 us * 2^17: what the kernel takes for RoCE.
const TIMEOUT: u8 = 17;

impl Id {
    pub(super) fn new(
        channel: Arc<Events>,
        context: *mut c_void,
        ps: i32,
        is_sync: bool,
    ) -> Arc<Self> {
        let route = Route {
            source: [0; 16],
            target: [0; 16],
            sgid: [0; 16],
            dgid: [0; 16],
            pkey: 0,
            path_rec: ptr::null_mut(),
            num_paths: 0,
        };
        let abi = CmId {
            verbs: ptr::null_mut(),
            channel: channel.as_abi(),
            context,
            qp: ptr::null_mut(),
            route,
            ps,
            port_num: 0,
            event: ptr::null_mut(),
            send_cq_channel: ptr::null_mut(),
            send_cq: ptr::null_mut(),
            recv_cq_channel: ptr::null_mut(),
            recv_cq: ptr::null_mut(),
            srq: ptr::null_mut(),
            pd: ptr::null_mut(),
            qp_type: qp_type::RC,
        };
        let state = State {
            channel,
            stage: Stage::Idle,
            source: None,
            target: None,
            place: None,
            socket: None,
            watched: 0,
            terms: Terms::default(),
            timeout: TIMEOUT,
            peer: None,
            children: None,
        };
        Arc::new(Self {
            abi: UnsafeCell::new(abi),
            state: Mutex::new(state),
            is_sync: AtomicBool::new(is_sync),
            path: UnsafeCell::default(),
            unacknowledged: Default::default(),
        })
    }

    pub(super) fn as_abi(&self) -> *mut CmId {
        self.abi.get()
    }

    pub(super) fn path(&self) -> *mut PathRec {
        self.path.get()
    }

    /// Leaves an event for the application.
    pub(super) fn tell(self: &Arc<Self>, state: &State, what: What) {
        state.channel.queue.push(Happened { id: Arc::clone(self), what });
    }

    /// An event has been fetched.
    pub(super) fn give(&self) {
        *lock(&self.unacknowledged.0) += 1;
    }

    pub(super) fn acknowledge(&self) {
        *lock(&self.unacknowledged.0) -= 1;
        self.unacknowledged.1.notify_all();
    }

    /// Waits until all events that were fetched have been acknowledged.
    pub(super) fn await_acknowledgements(&self) {
        let mut open = lock(&self.unacknowledged.0);
        while *open != 0 {
            open = self.unacknowledged.1.wait(open).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Throws away what has not been fetched.
    pub(super) fn forget_events(&self, channel: &Events) {
        channel.queue.purge(|happened| ptr::eq(&raw const *happened.id, self));
    }
}

unsafe extern "C" fn rdma_create_id(
    channel: *mut EventChannel,
    out: *mut *mut CmId,
    context: *mut c_void,
    ps: c_int,
) -> c_int {
    minus_one(|| {
        engine()?;
        // Connections of datagrams, and those by numbers of services, are not there.
        if ps != port_space::TCP {
            let is_known = [port_space::UDP, port_space::IB].contains(&ps);
            return Err(if is_known { libc::EPROTONOSUPPORT } else { libc::EINVAL });
        }
        let is_sync = channel.is_null();
        // SAFETY: the caller's handle.
        let channel = if is_sync { Events::new()? } else { unsafe { shared(channel) } };
        let id = Id::new(channel, context, ps, is_sync);
        // SAFETY: the caller's structure. Given back by `end`.
        unsafe { out.write(id.as_abi()) };
        let _ = Arc::into_raw(id);
        Ok(())
    })
}
export!("rdma_create_id", "RDMACM_1.0", rdma_create_id);

unsafe extern "C" fn rdma_destroy_id(abi: *mut CmId) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        unsafe { end(abi) };
        Ok(())
    })
}
export!("rdma_destroy_id", "RDMACM_1.0", rdma_destroy_id);

/// To a channel of the application, or with NULL back to calls that wait.
unsafe extern "C" fn rdma_migrate_id(abi: *mut CmId, channel: *mut EventChannel) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        let id: Arc<Id> = unsafe { shared(abi) };
        let (was_sync, is_sync) = (id.is_sync.load(SeqCst), channel.is_null());
        if was_sync && is_sync {
            return Err(libc::EINVAL);
        }
        // SAFETY: the caller's handle.
        let next: Arc<Events> = if is_sync { Events::new()? } else { unsafe { shared(channel) } };
        {
            let mut state = lock(&id.state);
            let former = std::mem::replace(&mut state.channel, Arc::clone(&next));
            former.queue.pass_on(&next.queue, |happened| Arc::ptr_eq(&happened.id, &id));
            id.is_sync.store(is_sync, SeqCst);
            // SAFETY: as above.
            unsafe { (*abi).channel = next.as_abi() };
        }
        if was_sync {
            // SAFETY: as above.
            unsafe { let_go(abi) };
        }
        id.await_acknowledgements();
        Ok(())
    })
}
export!("rdma_migrate_id", "RDMACM_1.0", rdma_migrate_id);

/// `RDMA_OPTION_ID`, and `RDMA_OPTION_ID_ACK_TIMEOUT` of it.
const OF_ID: c_int = 0;
const ACK_TIMEOUT: c_int = 3;

/// Type of service, reuse of addresses, IPv6 alone: taken, and change nothing.
unsafe extern "C" fn rdma_set_option(
    abi: *mut CmId,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: usize,
) -> c_int {
    minus_one(|| {
        if level != OF_ID || !(0..=ACK_TIMEOUT).contains(&option) {
            return Err(libc::ENOSYS);
        }
        if option == ACK_TIMEOUT {
            let timeout = if length == 1 {
                // SAFETY: the caller's byte.
                unsafe { *value.cast::<u8>() }
            } else {
                return Err(libc::EINVAL);
            };
            // SAFETY: the caller's handle.
            let id: &Id = unsafe { object(abi) };
            lock(&id.state).timeout = timeout.min(31);
        }
        Ok(())
    })
}
export!("rdma_set_option", "RDMACM_1.0", rdma_set_option);

unsafe extern "C" fn src_port(abi: *mut CmId) -> u16 {
    // SAFETY: the caller's handle.
    let id: &Id = unsafe { object(abi) };
    lock(&id.state).source.map_or(0, |source| source.port().to_be())
}
export!("rdma_get_src_port", "RDMACM_1.0", src_port);

unsafe extern "C" fn dst_port(abi: *mut CmId) -> u16 {
    // SAFETY: the caller's handle.
    let id: &Id = unsafe { object(abi) };
    lock(&id.state).target.map_or(0, |target| target.port().to_be())
}
export!("rdma_get_dst_port", "RDMACM_1.0", dst_port);

/// An identifier whose calls wait; a listener keeps what the queue pairs of its connections are to
/// have.
unsafe extern "C" fn rdma_create_ep(
    out: *mut *mut CmId,
    info: *const AddrInfo,
    pd: *mut Pd,
    init: *mut QpInitAttr,
) -> c_int {
    // SAFETY: the caller's structures and handles.
    unsafe {
        let info = &*info;
        let mut abi = ptr::null_mut();
        if rdma_create_id(ptr::null_mut(), &raw mut abi, ptr::null_mut(), info.ai_port_space) != 0 {
            return -1;
        }
        let is_passive = info.ai_flags & rai::PASSIVE != 0;
        let rc = if is_passive {
            rdma_bind_addr(abi, info.ai_src_addr)
        } else if rdma_resolve_addr(abi, info.ai_src_addr, info.ai_dst_addr, 0) != 0 {
            -1
        } else {
            rdma_resolve_route(abi, 0)
        };
        if let Some(init) = init.as_mut() {
            init.qp_type = info.ai_qp_type;
        }
        let rc = match init.as_mut() {
            Some(init) if rc == 0 && is_passive => {
                if !pd.is_null() {
                    (*abi).pd = pd;
                }
                let id: &Id = object(abi);
                lock(&id.state).children = Some(*init);
                0
            }
            Some(init) if rc == 0 => rdma_create_qp(abi, pd, init),
            _ => rc,
        };
        if rc == 0 {
            out.write(abi);
        } else {
            let code = crate::host::last_errno();
            rdma_destroy_ep(abi);
            set_errno(code);
        }
        rc
    }
}
export!("rdma_create_ep", "RDMACM_1.0", rdma_create_ep);

unsafe extern "C" fn rdma_destroy_ep(abi: *mut CmId) {
    // SAFETY: the caller's handle.
    unsafe {
        queue_pair::destroy(abi);
        end(abi);
    }
}
export!("rdma_destroy_ep", "RDMACM_1.0", rdma_destroy_ep);

/// Waits for a request at a listener whose calls wait.
unsafe extern "C" fn rdma_get_request(listener: *mut CmId, out: *mut *mut CmId) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handles and structures.
        unsafe {
            let id: &Id = object(listener);
            if !id.is_sync.load(SeqCst) {
                return Err(libc::EINVAL);
            }
            let_go(listener);
            let mut given: *mut CmEvent = ptr::null_mut();
            if rdma_get_cm_event((*listener).channel, &raw mut given) != 0 {
                return Err(crate::host::last_errno());
            }
            if (*given).event != event::CONNECT_REQUEST {
                rdma_ack_cm_event(given);
                return Err(libc::EINVAL);
            }
            let child = (*given).id;
            let children = lock(&id.state).children;
            if let Some(mut init) = children
                && rdma_create_qp(child, (*listener).pd, &raw mut init) != 0
            {
                let code = crate::host::last_errno();
                rdma_ack_cm_event(given);
                end(child);
                return Err(code);
            }
            (*child).event = given;
            out.write(child);
        }
        Ok(())
    })
}
export!("rdma_get_request", "RDMACM_1.0", rdma_get_request);

/// The default partition.
pub(super) const PKEY: u16 = 0xffff;

/// The identifier is at this port of a device: it has its context and a protection domain.
///
/// # Safety
/// `id` is held by the application, in a call of its own.
pub(super) unsafe fn settle(id: &Id, state: &mut State, place: Place) -> Result<(), i32> {
    let (context, pd) = resolve::open(place.device)?;
    let fabric = engine()?.fabric;
    let abi = id.as_abi();
    // SAFETY: by the caller.
    unsafe {
        (*abi).verbs = context;
        if (*abi).pd.is_null() {
            (*abi).pd = pd;
        }
        (*abi).port_num = place.port as u8;
        (*abi).route.pkey = PKEY;
        (*abi).route.sgid = gid(fabric, place).ok_or(libc::ENODATA)?.1;
    }
    state.place = Some(place);
    Ok(())
}

/// The addresses of the identifier are these, where they are known.
///
/// # Safety
/// As for [`settle`].
pub(super) unsafe fn show(id: &Id, state: &State) {
    // SAFETY: by the caller.
    let route = unsafe { &mut (*id.as_abi()).route };
    if let Some(source) = state.source {
        route.source = storage(source);
    }
    if let Some(target) = state.target {
        route.target = storage(target);
    }
}

/// What the application holds as `rdma_event_channel*` is its first field.
#[repr(C)]
pub(super) struct Channel<T> {
    abi: EventChannel,
    pub(super) queue: FdQueue<T>,
}

impl<T> Channel<T> {
    pub(super) fn new() -> Result<Arc<Self>, i32> {
        let queue = FdQueue::new()?;
        Ok(Arc::new(Self { abi: EventChannel { fd: queue.fd() }, queue }))
    }

    pub(super) fn as_abi(&self) -> *mut EventChannel {
        (&raw const self.abi).cast_mut()
    }
}

/// What the application holds as `rdma_cm_event*` is its first field.
#[repr(C)]
struct Given {
    abi: CmEvent,
    /// Waits for the acknowledgement.
    id: Arc<Id>,
    private: [u8; 256],
}

const NO_PARAMETERS: ConnParam = ConnParam {
    private_data: ptr::null(),
    private_data_len: 0,
    responder_resources: 0,
    initiator_depth: 0,
    flow_control: 0,
    retry_count: 0,
    rnr_retry_count: 0,
    srq: 0,
    qp_num: 0,
};

unsafe extern "C" fn create_event_channel() -> *mut EventChannel {
    pointer(|| {
        // Without devices there are no channels.
        engine()?;
        let channel = Events::new()?;
        let handle = channel.as_abi();
        // Given back by `destroy_event_channel`.
        let _ = Arc::into_raw(channel);
        Ok(handle)
    })
}
export!("rdma_create_event_channel", "RDMACM_1.0", create_event_channel);

unsafe extern "C" fn destroy_event_channel(handle: *mut EventChannel) {
    // SAFETY: takes back what `create_event_channel` leaked. Requests that nobody has fetched go
    // with it.
    unsafe { Arc::from_raw(handle.cast::<Events>()) }.queue.purge(|_| true);
}
export!("rdma_destroy_event_channel", "RDMACM_1.0", destroy_event_channel);

/// The parameters of an event that a message of the peer has brought, whose private data has so
/// many bytes.
fn parameters(message: &Message, room: usize, private: &mut [u8; 256]) -> ConnParam {
    let length = message.private.len().min(room);
    private[..length].copy_from_slice(&message.private[..length]);
    // What the peer may ask of us is what we may be asked for.
    let [initiator_depth, responder_resources, flow_control, retry_count, rnr_retry_count, srq] =
        message.terms;
    ConnParam {
        private_data: private.as_ptr().cast(),
        private_data_len: room as u8,
        responder_resources,
        initiator_depth,
        flow_control,
        retry_count,
        rnr_retry_count,
        srq,
        qp_num: message.qp_num,
    }
}

/// A new identifier for a connection that a listener is asked for.
///
/// # Safety
/// `listener` is held by the application.
unsafe fn child_of(listener: &Id, socket: OwnedFd, message: &Message) -> Result<Arc<Id>, i32> {
    let fabric = engine()?.fabric;
    let is_sync = listener.is_sync.load(SeqCst);
    let (channel, place) = {
        let state = lock(&listener.state);
        // Calls that wait take the next event of their channel: it must be the identifier's own.
        (if is_sync { Events::new()? } else { Arc::clone(&state.channel) }, state.place)
    };
    let place = place_of(fabric, message.target.ip()).or(place).ok_or(libc::ENODEV)?;
    // SAFETY: by the caller.
    let (context, ps, pd) =
        unsafe { ((*listener.as_abi()).context, (*listener.as_abi()).ps, (*listener.as_abi()).pd) };
    let child = Id::new(channel, context, ps, is_sync);
    let mut state = lock(&child.state);
    (state.source, state.target) = (Some(message.target), Some(message.source));
    (state.stage, state.socket) = (Stage::Requested, Some(socket));
    state.peer = Some(Box::new(message.clone()));
    let [initiator_depth, responder_resources, _, retry_count, rnr_retry_count, _] = message.terms;
    state.terms.responder_resources = responder_resources;
    state.terms.initiator_depth = initiator_depth;
    (state.terms.retry_count, state.terms.rnr_retry_count) = (retry_count, rnr_retry_count);
    // SAFETY: nobody else has it yet.
    unsafe {
        settle(&child, &mut state, place)?;
        if !pd.is_null() && (*pd).context == (*child.as_abi()).verbs {
            (*child.as_abi()).pd = pd;
        }
        (*child.as_abi()).route.dgid = message.gid;
        show(&child, &state);
    }
    connect::watch_connection(&child, &mut state)?;
    drop(state);
    Ok(child)
}

/// What the application gets for what has happened; `None`: nothing.
///
/// # Safety
/// The application holds the identifier.
unsafe fn given(Happened { id, what }: Happened) -> Option<Box<Given>> {
    let abi = CmEvent {
        id: id.as_abi(),
        listen_id: ptr::null_mut(),
        event: 0,
        status: 0,
        param: NO_PARAMETERS,
        rest: [0; 4],
    };
    let mut out = Box::new(Given { abi, id, private: [0; 256] });
    match what {
        What::Plain(kind, status) => (out.abi.event, out.abi.status) = (kind, status),
        What::Said(kind, status, message) => {
            let room = if message.kind == Kind::Rej { PRIVATE_OF_REJ } else { PRIVATE_OF_REP };
            out.abi.param = parameters(&message, room, &mut out.private);
            (out.abi.event, out.abi.status) = (kind, status);
            // SAFETY: by the caller.
            unsafe {
                match kind {
                    event::CONNECT_RESPONSE => {
                        (out.abi.event, out.abi.status) = answered(&out.id, message)
                    }
                    event::REJECTED => queue_pair::fail(out.abi.id),
                    _ => {}
                }
            }
        }
        What::Request(socket, message) => {
            out.abi.param = parameters(&message, PRIVATE_OF_REQ, &mut out.private);
            // SAFETY: by the caller.
            let Ok(child) = (unsafe { child_of(&out.id, socket, &message) }) else {
                out.id.acknowledge();
                return None;
            };
            (out.abi.event, out.abi.listen_id) = (event::CONNECT_REQUEST, out.abi.id);
            // Given back by `destroy_id`.
            out.abi.id = child.as_abi();
            let _ = Arc::into_raw(child);
        }
    }
    Some(out)
}

/// The peer has accepted: the event and its status. An identifier with a queue pair is connected
/// then.
///
/// # Safety
/// As for [`given`].
unsafe fn answered(id: &Arc<Id>, message: Box<Message>) -> (u32, i32) {
    let mut state = lock(&id.state);
    let [initiator_depth, responder_resources, ..] = message.terms;
    (state.terms.responder_resources, state.terms.initiator_depth) =
        (responder_resources, initiator_depth);
    state.peer = Some(message);
    // SAFETY: by the caller.
    unsafe {
        if (*id.as_abi()).qp.is_null() {
            return (event::CONNECT_RESPONSE, 0);
        }
        match queue_pair::connect(id.as_abi(), &state) {
            Ok(()) => {
                establish(&mut state);
                (event::ESTABLISHED, 0)
            }
            Err(code) => {
                queue_pair::fail(id.as_abi());
                connect::close(&mut state);
                state.stage = Stage::Over;
                (event::CONNECT_ERROR, -code)
            }
        }
    }
}

/// Tells the peer that this end is ready.
pub(super) fn establish(state: &mut State) {
    if state.stage == Stage::Answered
        && let Some(socket) = &state.socket
    {
        // A peer that is gone is told by the thread.
        connect::say(socket, &Message::bare(Kind::Rtu));
        state.stage = Stage::Connected;
    }
}

pub(super) unsafe extern "C" fn rdma_get_cm_event(
    handle: *mut EventChannel,
    out: *mut *mut CmEvent,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        let channel: Arc<Events> = unsafe { shared(handle) };
        loop {
            let happened = channel.queue.pop(|happened| happened.id.give())?;
            // SAFETY: events of identifiers that are gone have been thrown away.
            if let Some(given) = unsafe { given(happened) } {
                // SAFETY: the caller's structure. Given back by `rdma_ack_cm_event`.
                unsafe { out.write(Box::into_raw(given).cast()) };
                return Ok(());
            }
        }
    })
}
export!("rdma_get_cm_event", "RDMACM_1.0", rdma_get_cm_event);

pub(super) unsafe extern "C" fn rdma_ack_cm_event(event: *mut CmEvent) -> c_int {
    minus_one(|| {
        if event.is_null() {
            return Err(libc::EINVAL);
        }
        // SAFETY: takes back what `rdma_get_cm_event` leaked.
        unsafe { Box::from_raw(event.cast::<Given>()) }.id.acknowledge();
        Ok(())
    })
}
export!("rdma_ack_cm_event", "RDMACM_1.0", rdma_ack_cm_event);

/// Acknowledges the event that the identifier keeps.
///
/// # Safety
/// `abi` is the caller's handle.
pub(super) unsafe fn let_go(abi: *mut CmId) {
    // SAFETY: by the caller.
    unsafe {
        if !(*abi).event.is_null() {
            rdma_ack_cm_event((*abi).event);
            (*abi).event = ptr::null_mut();
        }
    }
}

/// A call has begun something: waits for its end, if the identifier's calls do. The identifier
/// keeps the event.
///
/// # Safety
/// As for [`let_go`].
pub(super) unsafe fn complete(abi: *mut CmId) -> c_int {
    // SAFETY: by the caller.
    unsafe {
        let id: &Id = object(abi);
        if !id.is_sync.load(SeqCst) {
            return 0;
        }
        let_go(abi);
        if rdma_get_cm_event((*abi).channel, &raw mut (*abi).event) != 0 {
            return -1;
        }
        let CmEvent { event, status, .. } = *(*abi).event;
        if status == 0 {
            return 0;
        }
        set_errno(if event == event::REJECTED { libc::ECONNREFUSED } else { status.abs() });
        -1
    }
}

unsafe extern "C" fn event_str(kind: u32) -> *const c_char {
    let name = match kind {
        0 => c"RDMA_CM_EVENT_ADDR_RESOLVED",
        1 => c"RDMA_CM_EVENT_ADDR_ERROR",
        2 => c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        3 => c"RDMA_CM_EVENT_ROUTE_ERROR",
        4 => c"RDMA_CM_EVENT_CONNECT_REQUEST",
        5 => c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        6 => c"RDMA_CM_EVENT_CONNECT_ERROR",
        7 => c"RDMA_CM_EVENT_UNREACHABLE",
        8 => c"RDMA_CM_EVENT_REJECTED",
        9 => c"RDMA_CM_EVENT_ESTABLISHED",
        10 => c"RDMA_CM_EVENT_DISCONNECTED",
        11 => c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        12 => c"RDMA_CM_EVENT_MULTICAST_JOIN",
        13 => c"RDMA_CM_EVENT_MULTICAST_ERROR",
        14 => c"RDMA_CM_EVENT_ADDR_CHANGE",
        15 => c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
        _ => c"UNKNOWN EVENT",
    };
    name.as_ptr()
}
export!("rdma_event_str", "RDMACM_1.0", event_str);
