//! Listeners and connections.

use std::ffi::{c_int, c_void};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use std::{ptr, slice, thread};

use crate::abi::export::export;
use crate::abi::rdma_cm::{AS_MUCH_AS_THERE_IS, CmId, ConnParam, event};
use crate::host::{lock, now_ns};
use crate::limits::MAX_READS;
use crate::process::fabric::Fabric;
use crate::verbs::cm::events::{complete, establish, let_go};
use crate::verbs::cm::id::{Id, Stage, State, What};
use crate::verbs::cm::message::{
    Kind, Message, NOBODY_LISTENS, PRIVATE_OF_REJ, PRIVATE_OF_REP, PRIVATE_OF_REQ, connect, listen,
    say,
};
use crate::verbs::cm::queue_pair;
use crate::verbs::cm::service::{close, watch_connection, watch_listener};
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
