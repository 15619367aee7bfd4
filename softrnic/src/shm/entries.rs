//! The entries of the shared file, by number.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::limits::{DEVICES, JOBS, PORTS, PROCS, QPS, RULES};
use crate::shm::file::SharedFile;
use crate::shm::job::JobSlot;
use crate::shm::layout::{self, JOBS_AT, PORTS_AT, PROCS_AT, RING_PAGES_AT, RULES_AT, STAGE_AT, STAGE_BYTES, Table};
use crate::shm::ring_pages::RingPages;
use crate::shm::slots::{CqSlot, MrSlot, PortSlot, ProcSlot, QpSlot, RuleSlot};
use crate::shm::srq_slot::SrqSlot;

impl SharedFile {
    /// Whether `device` refuses commands, and is about to fail.
    pub(crate) fn is_refusing(&self, device: usize) -> bool {
        self.header().refusing[device].load(SeqCst) != 0
    }

    /// Whether `device` has failed and is not back.
    #[inline]
    pub(crate) fn is_failed(&self, device: usize) -> bool {
        self.header().returns_at[device].load(SeqCst) != 0
    }

    #[inline]
    pub(crate) fn proc(&self, index: usize) -> &'static ProcSlot {
        assert!(index < PROCS);
        // SAFETY: inside the process table (checked), which has storage and consists of atomics.
        unsafe { &*self.base().add(PROCS_AT).cast::<ProcSlot>().add(index) }
    }

    /// Port `port` (1 or 2) of `device`.
    #[inline]
    pub(crate) fn port(&self, device: usize, port: u32) -> &'static PortSlot {
        let port = port as usize;
        assert!(device < DEVICES && (1..=PORTS).contains(&port));
        // SAFETY: inside the port table (checked), which has storage and consists of atomics.
        unsafe { &*self.base().add(PORTS_AT).cast::<PortSlot>().add(device * PORTS + port - 1) }
    }

    /// All places for fault rules.
    pub(crate) fn rules(&self) -> &'static [RuleSlot; RULES] {
        // SAFETY: the rule table has storage and consists of atomics.
        unsafe { &*self.base().add(RULES_AT).cast() }
    }

    /// Which pages of the receive rings are in use.
    pub(crate) fn ring_pages(&self) -> &'static RingPages {
        // SAFETY: the bits have storage and consist of atomics.
        unsafe { &*self.base().add(RING_PAGES_AT).cast() }
    }

    #[inline]
    fn entry<T>(&self, table: Table, device: usize, index: u32) -> &'static T {
        assert!(device < DEVICES && index < self.header().grown[device][table as usize].load(Relaxed));
        // SAFETY: inside the part of the table that has storage (checked); `T` is the atomics-only slot type of that
        // table, by the callers below.
        unsafe { &*self.base().add(table.at(device, index)).cast::<T>() }
    }

    #[inline]
    pub(crate) fn qp(&self, device: usize, index: u32) -> &'static QpSlot {
        self.entry(Table::Qp, device, index)
    }

    #[inline]
    pub(crate) fn mr(&self, device: usize, index: u32) -> &'static MrSlot {
        self.entry(Table::Mr, device, index)
    }

    #[inline]
    pub(crate) fn cq(&self, device: usize, index: u32) -> &'static CqSlot {
        self.entry(Table::Cq, device, index)
    }

    #[inline]
    pub(crate) fn srq(&self, device: usize, index: u32) -> &'static SrqSlot {
        self.entry(Table::Srq, device, index)
    }

    /// The QP entry that `qpn` names on `device`, if that part of the table exists.
    #[inline]
    pub(crate) fn find_qp(&self, device: usize, qpn: u32) -> Option<&'static QpSlot> {
        let index = qpn % QPS;
        (index < self.header().grown[device][Table::Qp as usize].load(Relaxed)).then(|| self.qp(device, index))
    }

    /// The MR entry that `key` names on `device`, if it is valid there.
    #[inline]
    pub(crate) fn find_mr(&self, device: usize, key: u32) -> Option<&'static MrSlot> {
        let index = key >> 8;
        if index >= self.header().grown[device][Table::Mr as usize].load(Relaxed) || key == 0 {
            return None;
        }
        let mr = self.mr(device, index);
        (mr.key.load(SeqCst) == key).then_some(mr)
    }

    /// The words `[at, at + bytes)` of the ring area.
    pub(crate) fn ring_words(&self, at: u64, bytes: usize) -> Option<&'static [AtomicU64]> {
        let at = usize::try_from(at).ok()?;
        let fits = at >= layout::RINGS_AT && at.is_multiple_of(8) && at.checked_add(bytes)? <= JOBS_AT;
        // SAFETY: inside the mapping and aligned (checked); the owner allocated storage before publishing the ring.
        fits.then(|| unsafe { std::slice::from_raw_parts(self.base().add(at).cast(), bytes / 8) })
    }

    /// Indices of `table` that have storage.
    pub(crate) fn entries(&self, table: Table, device: usize) -> std::ops::Range<u32> {
        0..self.header().grown[device][table as usize].load(Acquire)
    }

    /// Whether copies may be staged in this fabric.
    #[inline]
    pub(crate) fn has_stage(&self) -> bool {
        self.header().is_staging.load(Acquire) != 0
    }

    /// All slots. Only while [`Self::has_stage`].
    pub(crate) fn jobs(&self) -> &'static [JobSlot; JOBS] {
        // SAFETY: inside the mapping; the slots have storage (the caller has looked) and consist of atomics.
        unsafe { &*self.base().add(JOBS_AT).cast() }
    }

    /// The bytes of slot `index`: [`STAGE_BYTES`] of them.
    pub(crate) fn stage(&self, index: usize) -> *mut u8 {
        assert!(index < JOBS);
        // SAFETY: inside the mapping (checked).
        unsafe { self.base().add(STAGE_AT + index * STAGE_BYTES) }
    }

    /// Where all staging bytes begin.
    pub(crate) fn whole_stage(&self) -> (*mut u8, usize) {
        (self.stage(0), JOBS * STAGE_BYTES)
    }
}
