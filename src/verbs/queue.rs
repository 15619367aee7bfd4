//! Completion queues and reliable-connected queue pairs.

use super::context::Context;
use super::create::{self, CreateError};
use super::memory::ProtectionDomain;
use super::sys;
use super::work::RecvChain;
use crate::error::{Error, Result};
use std::sync::Arc;

pub use super::path::Path;

/// A device's `ibv_poll_cq`.
pub(super) type PollCq = unsafe extern "C" fn(*mut sys::ibv_cq, i32, *mut sys::ibv_wc) -> i32;
/// A device's `ibv_post_send`.
pub(super) type PostSend =
    unsafe extern "C" fn(*mut sys::ibv_qp, *mut sys::ibv_send_wr, *mut *mut sys::ibv_send_wr) -> i32;

/// A completion queue, polled.
#[derive(Debug)]
pub struct CompletionQueue {
    pub(super) raw: *mut sys::ibv_cq,
    /// Its device's `ibv_poll_cq`.
    pub(super) poll: PollCq,
    context: Arc<Context>,
}

// SAFETY: libibverbs locks inside; a completion queue may be used by any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue with room for at least `entries` completions.
    ///
    /// # Errors
    /// The device has no more of them, or none so large.
    pub fn new(context: &Arc<Context>, entries: u32) -> Result<Arc<Self>> {
        // SAFETY: the context is open, and its device filled the table in when it was.
        let poll = unsafe { (*context.raw()).ops.poll_cq };
        let Some(poll) = poll else {
            return Err(Error::internal(format!("{} has no ibv_poll_cq", context.name())));
        };
        let null = std::ptr::null_mut();
        let operation = format_args!("ibv_create_cq({}, {entries} entries)", context.name());
        let raw = create::made(operation, u64::from(entries) * COMPLETION_BYTES, || {
            // SAFETY: the context is open; no channel is asked for.
            unsafe { (context.library.ibv_create_cq)(context.raw(), entries as i32, null, std::ptr::null_mut(), 0) }
        })?;
        Ok(Arc::new(Self { raw, poll, context: Arc::clone(context) }))
    }
}

impl CompletionQueue {
    /// What events of the device name it by; another queue may have the same once this one has gone.
    pub fn id(&self) -> u64 {
        self.raw as u64
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once; the queue pairs that use it hold an Arc and are gone.
        let rc = unsafe { (self.context.library.ibv_destroy_cq)(self.raw) };
        if rc != 0 {
            log::warn!("ibv_destroy_cq({}) returned {rc}", self.context.name());
        }
    }
}

/// What an entry of a queue may take of locked memory, by what drivers are known to make of it: a completion, a send work
/// request beside its inline data, a receive work request.
const COMPLETION_BYTES: u64 = 128;
const SEND_BYTES: u64 = 256;
const RECEIVE_BYTES: u64 = 64;

/// Inline sizes that are tried, from the first below what is asked for, while a device refuses. Which size is too much is not
/// told, and drivers differ in what they say of it, down to nothing at all. 96 is the most of one family of devices.
const INLINE_STEPS: [u32; 5] = [128, 96, 64, 32, 0];

/// Sizes of a queue pair's queues.
#[derive(Debug, Clone, Copy)]
pub struct QpCaps {
    /// Send work requests.
    pub send: u32,
    /// Receive work requests.
    pub recv: u32,
    /// Bytes of inline data to try for; fewer are accepted.
    pub inline_bytes: u32,
}

#[derive(Debug)]
pub(super) struct RawQueuePair {
    pub(super) raw: *mut sys::ibv_qp,
    // Kept so that both outlive the queue pair.
    pub(super) domain: Arc<ProtectionDomain>,
    _queue: Arc<CompletionQueue>,
}

/// A queue pair in state INIT: it can be told its peer, and nothing else.
#[derive(Debug)]
pub struct InitQueuePair {
    pub(super) inner: RawQueuePair,
    pub(super) port: u8,
    pub(super) inline_bytes: u32,
    /// Already in state RTR: an attempt to connect it got this far.
    pub(super) ready_to_receive: bool,
}

/// A connected queue pair. Posting needs exclusive access.
#[derive(Debug)]
pub struct QueuePair {
    pub(super) inner: RawQueuePair,
    /// Its device's `ibv_post_send`.
    pub(super) post_send: PostSend,
    pub(super) inline_bytes: u32,
    pub(super) recv_chain: RecvChain,
}

// SAFETY: the raw pointers are owned; libibverbs' queue pairs may be used by any thread, one at a time.
unsafe impl Send for InitQueuePair {}
// SAFETY: as above.
unsafe impl Send for QueuePair {}

/// What the other end of a queue pair may do with this end's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RemoteAccess {
    /// Write to what is registered.
    Write,
    /// Read from it.
    Read,
}

impl RemoteAccess {
    fn flag(self) -> u32 {
        match self {
            Self::Write => sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
            Self::Read => sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
        }
    }
}

impl InitQueuePair {
    /// A new queue pair on `port`, completing into `queue`, whose sends complete only when asked to.
    /// Takes the most inline data, up to what is asked for, that the device grants.
    ///
    /// # Errors
    /// The device has no more of them, or refuses these sizes.
    pub fn new(
        domain: &Arc<ProtectionDomain>,
        queue: &Arc<CompletionQueue>,
        port: u8,
        pkey_index: u16,
        depths: QpCaps,
        access: RemoteAccess,
    ) -> Result<Self> {
        let Created { raw, inline_bytes } = create(domain, queue, depths).map_err(|refusal| {
            let QpCaps { send, recv, inline_bytes } = depths;
            let name = domain.context.name();
            let bytes = u64::from(send) * (SEND_BYTES + u64::from(inline_bytes)) + u64::from(recv) * RECEIVE_BYTES;
            refusal.explain(format_args!("ibv_create_qp({name}, {send} send and {recv} receive work requests)"), bytes)
        })?;
        let inner = RawQueuePair { raw, domain: Arc::clone(domain), _queue: Arc::clone(queue) };
        let idle = Self { inner, port, inline_bytes, ready_to_receive: false };
        idle.initialise(pkey_index, access)?;
        Ok(idle)
    }

    fn initialise(&self, pkey_index: u16, access: RemoteAccess) -> Result<()> {
        let mut attr = zeroed_attributes();
        attr.qp_state = sys::ibv_qp_state::IBV_QPS_INIT;
        attr.pkey_index = pkey_index;
        attr.port_num = self.port;
        attr.qp_access_flags = access.flag();
        let given = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS_FLAGS;
        self.inner.modify(&mut attr, given, "INIT").map_err(|(errno, mut error)| {
            let keys = self.inner.domain.context.port(self.port).map_or(0, |port| port.pkey_count);
            if errno == libc::EINVAL && keys <= pkey_index {
                error.text += &format!(" (NCCL_IB_PKEY={pkey_index}: the port has {keys} partition key(s), from 0)");
            }
            error
        })
    }

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

    /// Bytes that one work request may carry inline.
    pub fn inline_bytes(&self) -> u32 {
        self.inline_bytes
    }

    pub(super) fn raw(&self) -> *mut sys::ibv_qp {
        self.inner.raw
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

    /// For messages.
    pub(super) fn name(&self) -> String {
        format!("{}, queue pair {}", self.domain.context.name(), self.number())
    }

    pub(super) fn modify(
        &self,
        attr: &mut sys::ibv_qp_attr,
        mask: i32,
        state: &str,
    ) -> std::result::Result<(), (i32, Error)> {
        // SAFETY: the queue pair is live and the attributes are a whole struct.
        let rc = unsafe { (self.domain.context.library.ibv_modify_qp)(self.raw, attr, mask) };
        if rc == 0 {
            return Ok(());
        }
        let mut error = Error::os(format_args!("ibv_modify_qp({}) to {state}", self.name()), rc.abs());
        let hint = match (rc.abs(), state) {
            (libc::EINVAL | libc::ENODATA, "RTR") => " (is the GID index right? NCCL_IB_GID_INDEX chooses it)",
            (libc::ETIMEDOUT, _) => " (the peer's address cannot be resolved: are both ports in one network?)",
            _ => "",
        };
        error.text += hint;
        Err((rc.abs(), error))
    }
}

impl Drop for RawQueuePair {
    fn drop(&mut self) {
        // SAFETY: created by us, destroyed once, before the queue and the domain it holds.
        let rc = unsafe { (self.domain.context.library.ibv_destroy_qp)(self.raw) };
        if rc != 0 {
            log::warn!("ibv_destroy_qp({}) returned {rc}", self.domain.context.name());
        }
    }
}

/// A queue pair in state RESET.
struct Created {
    raw: *mut sys::ibv_qp,
    /// Bytes of inline data that it may be given.
    inline_bytes: u32,
}

/// A queue pair with the most inline data, up to what is asked for, with which the device makes one; the last refusal, if it makes
/// none at all. A refusal that has nothing to do with inline data costs so many attempts as there are steps.
fn create(
    domain: &ProtectionDomain,
    queue: &CompletionQueue,
    depths: QpCaps,
) -> std::result::Result<Created, CreateError> {
    let mut outcome = create_with(domain, queue, depths);
    for inline_bytes in INLINE_STEPS.into_iter().filter(|step| *step < depths.inline_bytes) {
        if outcome.is_ok() {
            break;
        }
        outcome = create_with(domain, queue, QpCaps { inline_bytes, ..depths });
    }
    outcome
}

fn create_with(
    domain: &ProtectionDomain,
    queue: &CompletionQueue,
    depths: QpCaps,
) -> std::result::Result<Created, CreateError> {
    let mut attr = sys::ibv_qp_init_attr {
        qp_context: std::ptr::null_mut(),
        send_cq: queue.raw,
        recv_cq: queue.raw,
        srq: std::ptr::null_mut(),
        cap: sys::ibv_qp_cap {
            max_send_wr: depths.send,
            max_recv_wr: depths.recv,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: depths.inline_bytes,
        },
        qp_type: sys::ibv_qp_type::IBV_QPT_RC,
        sq_sig_all: 0,
    };
    // SAFETY: the domain and the queue are live and of one context.
    let raw = create::attempt(|| unsafe { (domain.context.library.ibv_create_qp)(domain.raw(), &raw mut attr) })?;
    // Some drivers write back what they have granted, which may be less; many grant more.
    Ok(Created { raw, inline_bytes: attr.cap.max_inline_data.min(depths.inline_bytes) })
}

pub(super) fn zeroed_attributes() -> sys::ibv_qp_attr {
    // SAFETY: a struct of numbers, for which zero is valid.
    unsafe { std::mem::zeroed() }
}

/// Bits of `enum ibv_qp_attr_mask`, as `ibv_modify_qp` takes them.
pub(super) mod mask {
    use super::sys::ibv_qp_attr_mask as bits;

    pub(in crate::verbs) const STATE: i32 = bits::IBV_QP_STATE.0 as i32;
    pub(in crate::verbs) const ACCESS_FLAGS: i32 = bits::IBV_QP_ACCESS_FLAGS.0 as i32;
    pub(in crate::verbs) const PKEY_INDEX: i32 = bits::IBV_QP_PKEY_INDEX.0 as i32;
    pub(in crate::verbs) const PORT: i32 = bits::IBV_QP_PORT.0 as i32;
    pub(in crate::verbs) const AV: i32 = bits::IBV_QP_AV.0 as i32;
    pub(in crate::verbs) const PATH_MTU: i32 = bits::IBV_QP_PATH_MTU.0 as i32;
    pub(in crate::verbs) const TIMEOUT: i32 = bits::IBV_QP_TIMEOUT.0 as i32;
    pub(in crate::verbs) const RETRY: i32 = bits::IBV_QP_RETRY_CNT.0 as i32;
    pub(in crate::verbs) const RNR_RETRY: i32 = bits::IBV_QP_RNR_RETRY.0 as i32;
    pub(in crate::verbs) const RQ_PSN: i32 = bits::IBV_QP_RQ_PSN.0 as i32;
    pub(in crate::verbs) const MAX_RD: i32 = bits::IBV_QP_MAX_QP_RD_ATOMIC.0 as i32;
    pub(in crate::verbs) const MIN_RNR: i32 = bits::IBV_QP_MIN_RNR_TIMER.0 as i32;
    pub(in crate::verbs) const SQ_PSN: i32 = bits::IBV_QP_SQ_PSN.0 as i32;
    pub(in crate::verbs) const MAX_DEST_RD: i32 = bits::IBV_QP_MAX_DEST_RD_ATOMIC.0 as i32;
    pub(in crate::verbs) const DEST_QPN: i32 = bits::IBV_QP_DEST_QPN.0 as i32;
}
