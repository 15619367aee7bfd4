//! An open device.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU64};

use crate::abi::consts::event;
use crate::abi::types::{
    self, LEAD_ALLOC_PARENT_DOMAIN, LEAD_ALLOC_TD, LEAD_CREATE_CQ_EX, LEAD_CREATE_QP_EX, LEAD_DEALLOC_TD,
    LEAD_QUERY_DEVICE_EX, LEAD_QUERY_PORT, LEAD_SIZE, VerbsContext, op_slot,
};
use crate::host::fd_queue::FdQueue;
use crate::objects::device::Device;
use crate::process::fabric::Fabric;
use crate::shm::slots::PortSlot;

/// An asynchronous event on its way to the application.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    /// The application's `ibv_qp*`, `ibv_cq*` or `ibv_srq*`, or the number of a port.
    pub(crate) element: usize,
    pub(crate) kind: u32,
}

/// What the application holds as `ibv_context*` is `verbs.context`.
#[repr(C)]
pub(crate) struct Context {
    verbs: VerbsContext,
    pub(crate) fabric: &'static Fabric,
    pub(crate) device: &'static Device,
    pub(crate) events: FdQueue<Event>,
    /// Logged events up to this number have been passed on.
    delivered: AtomicU64,
    /// How often the device had failed when it was opened.
    failures: u32,
    /// The application has been told that the device has failed: nothing happens to it any more.
    is_told: AtomicBool,
    /// What programs may duplicate that pass a context on to others, who are refused then.
    _command: File,
}

// SAFETY: the raw pointers inside are to statics; the rest synchronises itself.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// The functions that inlined wrappers reach through the context.
pub(crate) struct Ops {
    pub(crate) poll_cq: usize,
    pub(crate) req_notify_cq: usize,
    pub(crate) post_send: usize,
    pub(crate) post_recv: usize,
    pub(crate) post_srq_recv: usize,
    pub(crate) query_port: usize,
    pub(crate) query_device: usize,
    pub(crate) create_cq_ex: usize,
    pub(crate) create_qp_ex: usize,
    pub(crate) alloc_td: usize,
    pub(crate) dealloc_td: usize,
    pub(crate) alloc_parent_domain: usize,
}

/// A descriptor in place of the one by which drivers give commands to the kernel.
fn no_commands() -> Result<File, i32> {
    let opened = File::options().read(true).write(true).open("/dev/null");
    opened.map_err(|e| e.raw_os_error().unwrap_or(libc::EIO))
}

impl Context {
    pub(crate) fn open(fabric: &'static Fabric, device: &'static Device, ops: &Ops) -> Result<Arc<Self>, i32> {
        let failures = fabric.header().failures[device.index].load(SeqCst);
        if fabric.is_failed(device.index) || fabric.is_refusing(device.index) {
            return Err(libc::EIO);
        }
        let events = FdQueue::new()?;
        let command = no_commands()?;
        let mut table = [0; 32];
        table[op_slot::POLL_CQ] = ops.poll_cq;
        table[op_slot::REQ_NOTIFY_CQ] = ops.req_notify_cq;
        table[op_slot::POST_SEND] = ops.post_send;
        table[op_slot::POST_RECV] = ops.post_recv;
        table[op_slot::POST_SRQ_RECV] = ops.post_srq_recv;
        let context = types::Context {
            device: device.as_abi(),
            ops: table,
            cmd_fd: command.as_raw_fd(),
            async_fd: events.fd(),
            num_comp_vectors: 1,
            mutex: [0; 5],
            // "This is a verbs_context".
            abi_compat: usize::MAX,
        };
        let mut verbs = VerbsContext { lead: [0; LEAD_SIZE + 1], context };
        verbs.lead[LEAD_SIZE] = size_of::<VerbsContext>();
        verbs.lead[LEAD_QUERY_PORT] = ops.query_port;
        verbs.lead[LEAD_QUERY_DEVICE_EX] = ops.query_device;
        verbs.lead[LEAD_CREATE_CQ_EX] = ops.create_cq_ex;
        verbs.lead[LEAD_CREATE_QP_EX] = ops.create_qp_ex;
        verbs.lead[LEAD_ALLOC_TD] = ops.alloc_td;
        verbs.lead[LEAD_DEALLOC_TD] = ops.dealloc_td;
        verbs.lead[LEAD_ALLOC_PARENT_DOMAIN] = ops.alloc_parent_domain;
        let delivered = AtomicU64::new(fabric.header().event_count.load(SeqCst));
        let is_told = AtomicBool::new(false);
        Ok(Arc::new(Self { verbs, fabric, device, events, delivered, failures, is_told, _command: command }))
    }

    /// For the service thread: passes on the events of this device.
    pub(crate) fn deliver(&self) {
        let (logged, count) = self.fabric.events_since(self.delivered.load(SeqCst));
        self.delivered.store(count, SeqCst);
        for one in logged.iter().filter(|one| one.port.device == self.device.index) {
            if self.is_told.load(SeqCst) {
                return;
            }
            self.is_told.store(one.kind == event::DEVICE_FATAL, SeqCst);
            self.events.push(Event { element: one.port.port as usize, kind: one.kind });
        }
    }

    /// Whether the device has failed since it was opened: this context stays dead, also if another device is in its place.
    pub(crate) fn is_dead(&self) -> bool {
        self.fabric.header().failures[self.device.index].load(SeqCst) != self.failures
    }

    /// Whether the device carries out no commands, though it has not failed yet. What is destroyed meanwhile stays as it is in the
    /// device, as long as the process lives.
    pub(crate) fn is_refusing(&self) -> bool {
        self.fabric.is_refusing(self.device.index) && !self.is_dead()
    }

    /// EIO if nothing can be made here any more.
    pub(crate) fn require_alive(&self) -> Result<(), i32> {
        if self.is_dead() || self.is_refusing() { Err(libc::EIO) } else { Ok(()) }
    }

    /// Port `port` of the device; EINVAL if it has none of that number.
    pub(crate) fn port(&self, port: u32) -> Result<&'static PortSlot, i32> {
        let exists = (1..=self.fabric.topology.ports()).contains(&port);
        if exists { Ok(self.fabric.port(self.device.index, port)) } else { Err(libc::EINVAL) }
    }

    pub(crate) fn as_abi(&self) -> *mut types::Context {
        (&raw const self.verbs.context).cast_mut()
    }

    /// The start of the object that holds the application's context.
    pub(crate) fn container(context: *const types::Context) -> *const Self {
        context.cast::<u8>().wrapping_sub(std::mem::offset_of!(VerbsContext, context)).cast()
    }
}
