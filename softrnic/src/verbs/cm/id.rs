//! Identifiers: an end of a connection, or a listener.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::abi::rdma_cm::{CmId, EventChannel, PathRec, Route};
use crate::abi::types::{QpInitAttr, qp_type};
use crate::host::{FdQueue, lock};
use crate::verbs::cm::message::Message;
use crate::verbs::cm::place;
use crate::verbs::cm::place::{Place, gid, storage};
use crate::verbs::engine::engine;

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

/// The default partition.
pub(super) const PKEY: u16 = 0xffff;

/// The identifier is at this port of a device: it has its context and a protection domain.
///
/// # Safety
/// `id` is held by the application, in a call of its own.
pub(super) unsafe fn settle(id: &Id, state: &mut State, place: Place) -> Result<(), i32> {
    let (context, pd) = place::open(place.device)?;
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
