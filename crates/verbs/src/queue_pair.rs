//! Reliable-connected queue pairs. Each state that Ferrite uses is a type: RESET, INIT and RTS.
//! Work requests are posted in [`super::work`] and [`super::prepared_write`].

#![deny(clippy::disallowed_methods)]

use super::completion_queue::{CompletionQueue, QueueHandle};
use super::create::{self, CreateError};
use super::memory::ProtectionDomain;
use super::qp_ex::{self, ExtendedQueuePair, Operations};
use super::recv_chain::RecvChain;
use super::sys;
use super::thread_domain::ThreadDomain;
use crate::error::{Error, Result};
use std::sync::Arc;

/// The most locked memory of work requests in bytes, for known drivers: of a send work request
/// without its inline data, and of a receive work request.
const SEND_BYTES: u64 = 256;
const RECEIVE_BYTES: u64 = 64;

/// Sizes of inline data to try in order, from the first one below the wanted size, while the device
/// refuses. A refusal does not show which size is too large, and drivers differ in its errno. One
/// family of devices has at most 96 bytes.
const INLINE_STEPS: [u32; 5] = [128, 96, 64, 32, 0];

/// Capacities of a queue pair, as in `struct ibv_qp_cap`.
#[derive(Debug, Clone, Copy)]
pub struct QpCaps {
    /// Work requests in the send queue.
    pub max_send_wr: u32,
    /// Work requests in the receive queue.
    pub max_recv_wr: u32,
    /// Wanted bytes of inline data. The device may grant fewer.
    pub max_inline_data: u32,
    /// The operations posted to the send queue. Some drivers size its entries accordingly.
    pub operations: Operations,
}

/// What the peer may do with this end's memory over a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteAccess {
    /// RDMA WRITE.
    Write,
    /// RDMA READ.
    Read,
}

impl RemoteAccess {
    fn flag(self) -> u32 {
        match self {
            Self::Write => sys::IBV_ACCESS_REMOTE_WRITE,
            Self::Read => sys::IBV_ACCESS_REMOTE_READ,
        }
    }
}

#[derive(Debug)]
pub(super) struct RawQueuePair {
    pub(super) raw: *mut sys::ibv_qp,
    /// In a thread domain: the queue pair with a function for each operation, if the driver has
    /// them.
    pub(super) extended: Option<ExtendedQueuePair>,
    // Held so that the queue pair is destroyed before them.
    pub(super) domain: Arc<ProtectionDomain>,
    _thread: Option<Arc<ThreadDomain>>,
    queue: Arc<QueueHandle>,
}

/// A queue pair in state RESET.
#[derive(Debug)]
pub struct ResetQueuePair {
    inner: RawQueuePair,
    inline_bytes: u32,
}

/// A queue pair in state INIT. It can only be connected.
#[derive(Debug)]
pub struct InitQueuePair {
    pub(super) inner: RawQueuePair,
    pub(super) port: u8,
    pub(super) inline_bytes: u32,
    /// Whether an attempt to connect it has moved it to state RTR.
    pub(super) is_in_rtr: bool,
}

/// A queue pair in state RTS: connected. Posting needs exclusive access.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) inner: RawQueuePair,
    /// Its device's `ibv_post_send`.
    pub(super) post_send: sys::PostSend,
    /// Its device's `ibv_post_recv`.
    pub(super) post_recv: sys::PostRecv,
    pub(super) inline_bytes: u32,
    pub(super) recv_chain: RecvChain,
}

// SAFETY: the raw pointers are owned; any thread may use libibverbs' queue pairs, one at a time.
unsafe impl Send for ResetQueuePair {}
// SAFETY: as above.
unsafe impl Send for InitQueuePair {}
// SAFETY: as above.
unsafe impl Send for QueuePair {}

impl ResetQueuePair {
    /// Creates a queue pair that completes into `queue`, with sends unsignalled by default. It has
    /// as much inline data as the device grants, up to the requested amount. It is in the
    /// protection domain `domain`, and in the thread domain `thread`, if any: then no two threads
    /// may post to any of its queue pairs at once.
    ///
    /// # Errors
    /// The device has no more queue pairs, or refuses these capacities.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        thread: Option<&Arc<ThreadDomain>>,
        queue: &CompletionQueue,
        caps: QpCaps,
    ) -> Result<Self> {
        let pd = thread.map_or_else(|| domain.raw(), |thread| thread.raw());
        let (raw, inline_bytes) = create_qp(domain, pd, queue, caps).map_err(|error| {
            let QpCaps { max_send_wr: send, max_recv_wr: recv, max_inline_data, .. } = caps;
            let name = domain.context.name();
            let bytes = u64::from(send) * (SEND_BYTES + u64::from(max_inline_data))
                + u64::from(recv) * RECEIVE_BYTES;
            error.explain(
                format_args!("ibv_create_qp({name}, {send} send and {recv} receive work requests)"),
                bytes,
            )
        })?;
        // SAFETY: it has just been created.
        let extended = thread.and_then(|_| unsafe { ExtendedQueuePair::of(domain, raw) });
        let inner = RawQueuePair {
            raw,
            extended,
            domain: Arc::clone(domain),
            _thread: thread.cloned(),
            queue: Arc::clone(&queue.handle),
        };
        Ok(Self { inner, inline_bytes })
    }

    /// Bytes of inline data that the device has granted.
    pub fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    /// Moves it to state INIT on `port`, in the partition of entry `pkey_index` of the port's
    /// partition key table.
    ///
    /// # Errors
    /// The device refuses, for example if there is no such entry.
    pub fn initialize(
        self,
        port: u8,
        pkey_index: u16,
        access: RemoteAccess,
    ) -> Result<InitQueuePair> {
        let Self { inner, inline_bytes } = self;
        let mut attr = zeroed_attributes();
        attr.qp_state = sys::IBV_QPS_INIT;
        attr.pkey_index = pkey_index;
        attr.port_num = port;
        attr.qp_access_flags = access.flag();
        let mask = sys::IBV_QP_STATE
            | sys::IBV_QP_PKEY_INDEX
            | sys::IBV_QP_PORT
            | sys::IBV_QP_ACCESS_FLAGS;
        inner.modify(&mut attr, mask, "INIT")?;
        Ok(InitQueuePair { inner, port, inline_bytes, is_in_rtr: false })
    }
}

impl InitQueuePair {
    /// Its number, for the peer.
    pub fn number(&self) -> u32 {
        self.inner.number()
    }
}

impl QueuePair {
    /// Its number.
    pub fn number(&self) -> u32 {
        self.inner.number()
    }

    /// Moves it to state ERROR: it executes nothing more, for either end, and all posted work
    /// requests complete. Those that were not executed have status 5 (flushed).
    ///
    /// # Errors
    /// The device refuses, for example because it has failed.
    pub fn fail(&self) -> Result<()> {
        let mut attr = zeroed_attributes();
        attr.qp_state = sys::IBV_QPS_ERR;
        self.inner.modify(&mut attr, sys::IBV_QP_STATE, "ERROR")
    }

    /// The most bytes of inline data of a work request.
    pub fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_qp {
        self.inner.raw
    }

    #[inline(always)]
    pub(super) fn extended(&self) -> Option<ExtendedQueuePair> {
        self.inner.extended
    }

    pub(super) fn recv_chain(&self) -> &RecvChain {
        &self.recv_chain
    }

    pub(super) fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.inner.domain
    }

    pub(super) fn device_name(&self) -> &str {
        self.inner.domain.context.name()
    }
}

impl RawQueuePair {
    fn number(&self) -> u32 {
        // SAFETY: the queue pair is live; its number never changes.
        unsafe { (*self.raw).qp_num }
    }

    /// Device and number, for messages.
    pub(super) fn name(&self) -> String {
        format!("{}, queue pair {}", self.domain.context.name(), self.number())
    }

    /// `ibv_modify_qp` to `state`, of the attributes in `mask` (`enum ibv_qp_attr_mask`).
    pub(super) fn modify(&self, attr: &mut sys::ibv_qp_attr, mask: i32, state: &str) -> Result<()> {
        // SAFETY: the queue pair is live and the attributes are a whole struct.
        let rc = unsafe { (self.domain.context.library.ibv_modify_qp)(self.raw, attr, mask) };
        match rc.abs() {
            0 => Ok(()),
            errno => Err(Error::of_device(
                format_args!("ibv_modify_qp({}) to {state}", self.name()),
                errno,
            )),
        }
    }
}

impl Drop for RawQueuePair {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once, before the queue and the domain it holds.
        let rc = unsafe { (self.domain.context.library.ibv_destroy_qp)(self.raw) };
        if rc != 0 {
            self.queue.mark_exhausted();
        }
        self.domain.context.handle_released("ibv_destroy_qp", rc);
    }
}

/// Creates a queue pair in `pd`, which is `domain` or a parent domain of it. Returns it with the
/// largest inline size that the device grants, up to the request. If the device refuses for another
/// reason, every step fails, and the last error is returned.
fn create_qp(
    domain: &ProtectionDomain,
    pd: *mut sys::ibv_pd,
    queue: &CompletionQueue,
    caps: QpCaps,
) -> std::result::Result<(*mut sys::ibv_qp, u32), CreateError> {
    let mut outcome = create_with(domain, pd, queue, caps);
    for max_inline_data in INLINE_STEPS.into_iter().filter(|step| *step < caps.max_inline_data) {
        if outcome.is_ok() {
            break;
        }
        outcome = create_with(domain, pd, queue, QpCaps { max_inline_data, ..caps });
    }
    outcome
        .map(|(raw, granted)| (raw, if takes_inline(domain, raw, granted) { granted } else { 0 }))
}

/// Whether the device really copies granted inline data during the post. The driver mana grants any
/// size, ignores `IBV_SEND_INLINE`, and reads the memory later, by the key. It is the only driver
/// of reliable connections without `ibv_query_qp` (rdma-core 65), which identifies it.
fn takes_inline(domain: &ProtectionDomain, raw: *mut sys::ibv_qp, granted: u32) -> bool {
    // SAFETY: the caller has just created the queue pair, in a domain of this context.
    granted != 0 && unsafe { domain.context.answers_queries(raw) }
}

fn create_with(
    domain: &ProtectionDomain,
    pd: *mut sys::ibv_pd,
    queue: &CompletionQueue,
    caps: QpCaps,
) -> std::result::Result<(*mut sys::ibv_qp, u32), CreateError> {
    let cap = sys::ibv_qp_cap {
        max_send_wr: caps.max_send_wr,
        max_recv_wr: caps.max_recv_wr,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline_data: caps.max_inline_data,
    };
    // Some drivers write back what they have granted, which may be less; many grant more.
    let granted = |raw, cap: sys::ibv_qp_cap| (raw, cap.max_inline_data.min(caps.max_inline_data));
    // If a driver refuses this for any reason, the older call is tried.
    if let Some((raw, cap)) = qp_ex::create(domain, pd, queue, cap, caps.operations) {
        return Ok(granted(raw, cap));
    }
    let mut attr = sys::ibv_qp_init_attr {
        qp_context: std::ptr::null_mut(),
        send_cq: queue.raw,
        recv_cq: queue.raw,
        srq: std::ptr::null_mut(),
        cap,
        qp_type: sys::IBV_QPT_RC,
        sq_sig_all: 0,
    };
    // SAFETY: the domain and the queue are live and of one context.
    let raw = create::try_create(|| unsafe {
        (domain.context.library.ibv_create_qp)(pd, &raw mut attr)
    })?;
    Ok(granted(raw, attr.cap))
}

pub(super) fn zeroed_attributes() -> sys::ibv_qp_attr {
    // SAFETY: a struct of numbers, for which zero is valid.
    unsafe { std::mem::zeroed() }
}
