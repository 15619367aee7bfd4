//! Making, changing and giving back identifiers.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::export::export;
use crate::abi::rdma_cm::{AddrInfo, CmEvent, CmId, EventChannel, event, port_space, rai};
use crate::abi::types::{Pd, QpInitAttr};
use crate::host::{lock, set_errno};
use crate::verbs::cm::connect::end;
use crate::verbs::cm::events::{let_go, rdma_ack_cm_event, rdma_get_cm_event};
use crate::verbs::cm::id::{Events, Id};
use crate::verbs::cm::queue_pair;
use crate::verbs::cm::queue_pair::rdma_create_qp;
use crate::verbs::cm::resolve::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use crate::verbs::engine::engine;
use crate::verbs::{minus_one, object, shared};

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
