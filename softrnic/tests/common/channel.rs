//! A completion channel: a descriptor to wait on.

use std::mem::transmute;
use std::ptr;

use super::verbs::*;

type Create = unsafe extern "C" fn(Ptr) -> Ptr;
type Destroy = unsafe extern "C" fn(Ptr) -> i32;
type GetEvent = unsafe extern "C" fn(Ptr, *mut *mut Cq, *mut Ptr) -> i32;
type Ack = unsafe extern "C" fn(*mut Cq, u32);
type Arm = unsafe extern "C" fn(*mut Cq, i32) -> i32;

#[derive(Clone, Copy)]
pub struct Channel {
    pub handle: Ptr,
    pub fd: i32,
}

impl Channel {
    /// Of an open device.
    pub fn new(context: Ptr) -> Self {
        // SAFETY: the function's type in the verbs interface; the descriptor lies at byte 8.
        unsafe {
            let handle =
                transmute::<Ptr, Create>(symbol("ibv_create_comp_channel", "IBVERBS_1.0"))(context);
            assert!(!handle.is_null());
            Self { handle, fd: *handle.cast::<u8>().add(8).cast::<i32>() }
        }
    }

    /// The next completion of `cq` raises an event of its channel.
    pub fn arm(cq: *mut Cq) {
        // SAFETY: slot 12 of the table is `req_notify_cq`.
        unsafe { assert_eq!(transmute::<Ptr, Arm>(op((*cq).context, 12))(cq, 0), 0) };
    }

    /// Whether an event comes within `wait_ms`.
    pub fn has_event(&self, wait_ms: i32) -> bool {
        let mut poll = libc::pollfd { fd: self.fd, events: libc::POLLIN, revents: 0 };
        // SAFETY: one pollfd.
        unsafe { libc::poll(&raw mut poll, 1, wait_ms) == 1 }
    }

    /// Takes and acknowledges the next event.
    pub fn take_event(&self) {
        let (mut cq, mut user) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the functions' types in the verbs interface.
        unsafe {
            let get = transmute::<Ptr, GetEvent>(symbol("ibv_get_cq_event", "IBVERBS_1.1"));
            let ack = transmute::<Ptr, Ack>(symbol("ibv_ack_cq_events", "IBVERBS_1.1"));
            assert_eq!(get(self.handle, &raw mut cq, &raw mut user), 0);
            ack(cq, 1);
        }
    }

    pub fn close(self) {
        // SAFETY: as above; its CQs are gone.
        unsafe {
            let destroy =
                transmute::<Ptr, Destroy>(symbol("ibv_destroy_comp_channel", "IBVERBS_1.0"));
            assert_eq!(destroy(self.handle), 0);
        }
    }
}
