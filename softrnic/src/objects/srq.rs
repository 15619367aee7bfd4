//! Shared receive queues.

use std::ffi::c_void;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex};

use crate::abi::types;
use crate::abi::types::{Sge, SrqAttr, event};
use crate::drivers::table::Verb;
use crate::host::{InUse, lock};
use crate::limits::SRQS;
use crate::objects::context::{Event, Pd};
use crate::objects::cq::Acks;
use crate::shm::file::Table;
use crate::shm::recv_ring::SrqRing;
use crate::shm::slots::{LIMIT_REACHED, SrqSlot};

/// What the application holds as `ibv_srq*` is its first field.
#[repr(C)]
pub(crate) struct Srq {
    abi: types::Srq,
    pub(crate) pd: Arc<Pd>,
    pub(crate) slot: &'static SrqSlot,
    pub(crate) index: u32,
    pub(crate) ring: SrqRing,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// Serialises posting.
    post: Mutex<()>,
    /// Those who post.
    pub(crate) posting: InUse,
    /// Receives whose completions were polled or thrown away.
    freed: AtomicU64,
    /// Queue pairs that receive from it.
    pub(crate) users: AtomicU32,
    /// Asynchronous events given to the application, to be acknowledged before the SRQ goes.
    pub(crate) async_events: AtomicU32,
    acks: Acks,
}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Srq").field("index", &self.index).finish_non_exhaustive()
    }
}

// SAFETY: `abi` is written once but for its atomic; the rest synchronises itself.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    pub(crate) fn create(
        pd: &Arc<Pd>,
        srq_context: *mut c_void,
        wanted: SrqAttr,
    ) -> Result<Arc<Self>, i32> {
        pd.context.require_alive()?;
        let (fabric, device) = (pd.context.fabric, pd.context.device.index);
        let SrqAttr { max_wr, max_sge, .. } = wanted;
        let driver = fabric.settings.driver;
        driver.require(Verb::CreateSrq)?;
        if !(1..=fabric.settings.max_qp_wr).contains(&max_wr) || max_sge > driver.max_sge.1 {
            return Err(libc::EINVAL);
        }
        let (mask, stride, bytes) = SrqRing::layout(max_wr, max_sge);
        let control = fabric.file.control();
        let index = fabric.claim(&control, Table::Srq, device, SRQS)?;
        let slot = fabric.srq(device, index);
        // What a former owner left must not pass for ours.
        slot.ring_bytes.store(0, SeqCst);
        let ring_at = fabric
            .claim_ring(&control, bytes)
            .inspect_err(|_| fabric.free(&control, Table::Srq, device, index))?;
        slot.ring_at.store(ring_at, SeqCst);
        slot.ring_bytes.store(bytes as u32, SeqCst);
        slot.ring_mask.store(mask, SeqCst);
        slot.ring_stride.store(stride, SeqCst);
        slot.pd.store(pd.id, SeqCst);
        slot.limit.store(0, SeqCst);
        slot.head.store(0, SeqCst);
        slot.posted.store(0, SeqCst);
        let Some(ring) = SrqRing::of(fabric, slot) else { return Err(libc::EIO) };
        drop(control);
        let protection = Pd::protection(pd);
        protection.users.fetch_add(1, SeqCst);
        let abi = types::Srq {
            context: pd.context.as_abi(),
            srq_context,
            pd: pd.as_abi(),
            handle: index,
            mutex: [0; 5],
            cond: [0; 6],
            events_completed: AtomicU32::new(0),
        };
        Ok(Arc::new(Self {
            abi,
            pd: Arc::clone(protection),
            slot,
            index,
            ring,
            max_wr,
            max_sge,
            post: Mutex::default(),
            posting: InUse::new(pd.has_thread()),
            freed: AtomicU64::new(0),
            users: AtomicU32::new(0),
            async_events: AtomicU32::new(0),
            acks: Acks::default(),
        }))
    }

    pub(crate) fn as_abi(&self) -> *mut types::Srq {
        (&raw const self.abi).cast_mut()
    }

    /// Posts one receive.
    pub(crate) fn post(&self, wr_id: u64, sges: &[Sge]) -> Result<(), i32> {
        if sges.len() > self.max_sge as usize {
            return Err(libc::EINVAL);
        }
        let _guard = lock(&self.post);
        if self.slot.posted.load(Relaxed) - self.freed.load(SeqCst) >= u64::from(self.max_wr) {
            return Err(libc::ENOMEM);
        }
        self.ring.post(self.slot, wr_id, sges);
        Ok(())
    }

    /// So many receives are over.
    pub(crate) fn give_back(&self, count: u64) {
        self.freed.fetch_add(count, SeqCst);
    }

    /// The event is raised when fewer than `limit` receives are left, at once if that is so
    /// already.
    pub(crate) fn arm(&self, limit: u32) -> Result<(), i32> {
        if limit > self.max_wr {
            return Err(libc::EINVAL);
        }
        if self.slot.limit.swap(limit, SeqCst) & LIMIT_REACHED != 0 {
            // Reached before, and not passed on yet.
            self.tell_limit();
        }
        if self.slot.reaches_limit() {
            self.pd.context.fabric.wake(self.pd.context.fabric.me);
        }
        Ok(())
    }

    pub(crate) fn attributes(&self) -> SrqAttr {
        let srq_limit = self.slot.limit.load(SeqCst) & !LIMIT_REACHED;
        SrqAttr { max_wr: self.max_wr, max_sge: self.max_sge, srq_limit }
    }

    /// For the service thread: passes on the event that a taker asked for.
    pub(crate) fn deliver(&self) {
        if self.slot.limit.fetch_and(!LIMIT_REACHED, SeqCst) & LIMIT_REACHED != 0 {
            self.tell_limit();
        }
    }

    fn tell_limit(&self) {
        self.pd
            .context
            .events
            .push(Event { element: self.as_abi() as usize, kind: event::SRQ_LIMIT_REACHED });
    }

    /// Takes it out of the fabric. It has no queue pairs, and the service thread does not know it
    /// any more.
    pub(crate) fn destroy(&self) {
        let me = self.as_abi() as usize;
        self.pd.context.events.purge(|e| e.element == me);
        self.acks.wait(&[(&self.async_events, &self.abi.events_completed)]);
        let fabric = self.pd.context.fabric;
        let control = fabric.file.control();
        fabric.free_srq(&control, self.pd.context.device.index, self.index);
        self.pd.users.fetch_sub(1, SeqCst);
    }

    pub(crate) fn ack_async_event(&self) {
        self.acks.add(&self.abi.events_completed, 1);
    }
}
