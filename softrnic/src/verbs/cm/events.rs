//! Events of identifiers: what the application gets for what has happened, and calls that wait.

use std::ffi::{c_char, c_int};
use std::os::fd::OwnedFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::export::export;
use crate::abi::rdma_cm::{CmEvent, CmId, ConnParam, EventChannel, event};
use crate::host::{lock, set_errno};
use crate::verbs::cm::id::{Events, Happened, Id, Stage, State, What, settle, show};
use crate::verbs::cm::message::{Kind, Message, PRIVATE_OF_REJ, PRIVATE_OF_REP, PRIVATE_OF_REQ};
use crate::verbs::cm::place::place_of;
use crate::verbs::cm::{message, queue_pair, service};
use crate::verbs::engine::engine;
use crate::verbs::{minus_one, object, pointer, shared};

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
    service::watch_connection(&child, &mut state)?;
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
                service::close(&mut state);
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
        // If the peer has gone, the thread reports it.
        message::say(socket, &Message::bare(Kind::Rtu));
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
