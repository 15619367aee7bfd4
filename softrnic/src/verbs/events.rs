//! Asynchronous events, completion channels.

use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::SeqCst;

use crate::abi::consts::event;
use crate::abi::export::export;
use crate::abi::types::{self, AsyncEvent};
use crate::objects::channel::Channel;
use crate::objects::cq::Cq;
use crate::objects::qp::Qp;
use crate::objects::srq::Srq;
use crate::verbs::{code, context, minus_one, object, pointer};

/// Whether an event concerns a QP, which then waits for the acknowledgement.
fn is_of_qp(kind: u32) -> bool {
    (event::QP_FATAL..=event::SQ_DRAINED).contains(&kind) || kind == event::QP_LAST_WQE_REACHED
}

unsafe extern "C" fn get_async_event(handle: *mut types::Context, out: *mut AsyncEvent) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        let context = unsafe { context(handle) }?;
        let taken = context.events.pop(|e| match e.kind {
            event::CQ_ERR => {
                // SAFETY: events of a CQ that is gone have been purged; this one still exists.
                let cq: &Cq = unsafe { object(e.element as *const types::Cq) };
                cq.async_events.fetch_add(1, SeqCst);
            }
            event::SRQ_LIMIT_REACHED => {
                // SAFETY: as above, for SRQs.
                let srq: &Srq = unsafe { object(e.element as *const types::Srq) };
                srq.async_events.fetch_add(1, SeqCst);
            }
            kind if is_of_qp(kind) => {
                // SAFETY: as above, for QPs.
                let qp: &Qp = unsafe { object(e.element as *const types::Qp) };
                qp.async_events.fetch_add(1, SeqCst);
            }
            // A port or a device.
            _ => {}
        })?;
        // SAFETY: the caller's structure.
        unsafe { out.write(AsyncEvent { element: taken.element, event_type: taken.kind }) };
        Ok(())
    })
}
export!("ibv_get_async_event", "IBVERBS_1.1", get_async_event);

unsafe extern "C" fn ack_async_event(given: *mut AsyncEvent) {
    code(|| {
        // SAFETY: the caller's structure.
        let event = unsafe { &*given };
        match event.event_type {
            // SAFETY: the object waits for this acknowledgement before it goes.
            event::CQ_ERR => unsafe { object::<Cq, _>(event.element as *const types::Cq) }.ack_async_event(),
            event::SRQ_LIMIT_REACHED => {
                // SAFETY: as above.
                unsafe { object::<Srq, _>(event.element as *const types::Srq) }.ack_async_event()
            }
            kind if is_of_qp(kind) => {
                // SAFETY: as above.
                unsafe { object::<Qp, _>(event.element as *const types::Qp) }.ack_async_event();
            }
            _ => {}
        }
        Ok(())
    });
}
export!("ibv_ack_async_event", "IBVERBS_1.1", ack_async_event);

pub(super) unsafe extern "C" fn create_comp_channel(handle: *mut types::Context) -> *mut types::CompChannel {
    pointer(|| {
        // SAFETY: the caller's handle.
        let channel = Channel::new(unsafe { context(handle) }?)?;
        // Given back by `destroy_comp_channel`.
        Ok(Box::leak(channel).as_abi())
    })
}
export!("ibv_create_comp_channel", "IBVERBS_1.0", create_comp_channel);

pub(super) unsafe extern "C" fn destroy_comp_channel(handle: *mut types::CompChannel) -> c_int {
    code(|| {
        // SAFETY: the caller's handle.
        let channel: &Channel = unsafe { object(handle) };
        if channel.context.fabric.is_gone() {
            return Ok(());
        }
        if channel.users.load(SeqCst) != 0 {
            return Err(libc::EBUSY);
        }
        // SAFETY: takes back what `create_comp_channel` leaked; no CQ refers to it.
        drop(unsafe { Box::from_raw(handle.cast::<Channel>()) });
        Ok(())
    })
}
export!("ibv_destroy_comp_channel", "IBVERBS_1.0", destroy_comp_channel);

/// Reached through the context's table.
pub(crate) unsafe extern "C" fn req_notify_cq(handle: *mut types::Cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's handle.
    let cq: &Cq = unsafe { object(handle) };
    if !cq.context.fabric.is_gone() {
        cq.arm(solicited_only == 0);
    }
    0
}

unsafe extern "C" fn get_cq_event(
    handle: *mut types::CompChannel,
    cq_out: *mut *mut types::Cq,
    context_out: *mut *mut c_void,
) -> c_int {
    minus_one(|| {
        // SAFETY: the caller's handle.
        let channel: &Channel = unsafe { object(handle) };
        let taken = channel.tokens.pop(|&token| {
            // SAFETY: tokens of a CQ that is gone have been purged; this one still exists.
            let cq: &Cq = unsafe { object(token as *const types::Cq) };
            cq.comp_events.fetch_add(1, SeqCst);
        })?;
        let cq = taken as *mut types::Cq;
        // SAFETY: the caller's structures; the CQ waits for the acknowledgement before it goes.
        unsafe {
            cq_out.write(cq);
            context_out.write((*cq).cq_context);
        }
        Ok(())
    })
}
export!("ibv_get_cq_event", "IBVERBS_1.1", get_cq_event);

unsafe extern "C" fn ack_cq_events(handle: *mut types::Cq, count: u32) {
    code(|| {
        // SAFETY: the caller's handle.
        unsafe { object::<Cq, _>(handle) }.ack_comp_events(count);
        Ok(())
    });
}
export!("ibv_ack_cq_events", "IBVERBS_1.1", ack_cq_events);
