//! What lies where in the shared file.
//!
//! ```text
//! 0        Header
//! 4 KiB    PROCS x ProcSlot
//! 36 KiB   DEVICES x PORTS x PortSlot
//! 52 KiB   RULES x RuleSlot
//! 64 KiB   a bit for each page of the receive rings
//! 128 KiB  per device: QPS x QpSlot, MRS x MrSlot, CQS x CqSlot, SRQS x SrqSlot    (storage allocated chunk by chunk, on first use)
//! ...      receive rings                                           (storage allocated with the QP)
//! ...      JOBS x JobSlot, JOBS x bytes to stage copies in         (storage allocated when the first is needed)
//! ```

use std::mem::size_of;

use crate::limits::{CQS, DEVICES, JOBS, MRS, PORTS, PROCS, QPS, RULES, SRQS};
use crate::shm::job::JobSlot;
use crate::shm::slots::{CqSlot, Header, MrSlot, PortSlot, ProcSlot, QpSlot, RuleSlot};
use crate::shm::srq_slot::SrqSlot;

/// First word of the file: the text "softrnic".
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"softrnic");
/// Change it with every change in this file.
pub(crate) const VERSION: u64 = 16;

pub(crate) const PAGE: usize = 4096;
/// Storage of the tables grows by this much.
pub(crate) const CHUNK: usize = 64 << 10;
pub(crate) const PROCS_AT: usize = PAGE;
pub(crate) const PORTS_AT: usize = PROCS_AT + PROCS * size_of::<ProcSlot>();
pub(crate) const RULES_AT: usize = PORTS_AT + DEVICES * PORTS * size_of::<PortSlot>();
pub(crate) const RING_PAGES_AT: usize = CHUNK;
pub(crate) const TABLES_AT: usize = 2 * CHUNK;
const QP_TABLE: usize = QPS as usize * size_of::<QpSlot>();
const MR_TABLE: usize = MRS as usize * size_of::<MrSlot>();
const CQ_TABLE: usize = CQS as usize * size_of::<CqSlot>();
const SRQ_TABLE: usize = SRQS as usize * size_of::<SrqSlot>();
const DEVICE_TABLES: usize = QP_TABLE + MR_TABLE + CQ_TABLE + SRQ_TABLE;
pub(crate) const RINGS_AT: usize = TABLES_AT + DEVICES * DEVICE_TABLES;
/// Bound of all receive rings together.
pub(crate) const RINGS_BYTES: usize = 128 << 20;
/// Most bytes of one staged copy.
pub(crate) const STAGE_BYTES: usize = 512 << 10;
pub(crate) const JOBS_AT: usize = RINGS_AT + RINGS_BYTES;
pub(crate) const STAGE_AT: usize = JOBS_AT + PAGE;
pub(crate) const FILE_BYTES: usize = STAGE_AT + JOBS * STAGE_BYTES;

/// The tables of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Qp = 0,
    Mr = 1,
    Cq = 2,
    Srq = 3,
}

impl Table {
    /// Where entry `index` of this table of `device` begins.
    pub(crate) fn at(self, device: usize, index: u32) -> usize {
        let base = TABLES_AT + device * DEVICE_TABLES;
        let index = index as usize;
        match self {
            Self::Qp => base + index * size_of::<QpSlot>(),
            Self::Mr => base + QP_TABLE + index * size_of::<MrSlot>(),
            Self::Cq => base + QP_TABLE + MR_TABLE + index * size_of::<CqSlot>(),
            Self::Srq => base + QP_TABLE + MR_TABLE + CQ_TABLE + index * size_of::<SrqSlot>(),
        }
    }

    /// Entries in the table.
    pub(crate) fn capacity(self) -> u32 {
        match self {
            Self::Qp => QPS,
            Self::Mr => MRS,
            Self::Cq => CQS,
            Self::Srq => SRQS,
        }
    }

    /// Entries in one chunk of storage.
    pub(crate) fn per_chunk(self) -> u32 {
        let entry = match self {
            Self::Qp => size_of::<QpSlot>(),
            Self::Mr => size_of::<MrSlot>(),
            Self::Cq => size_of::<CqSlot>(),
            Self::Srq => size_of::<SrqSlot>(),
        };
        (CHUNK / entry) as u32
    }
}

const _: () = {
    assert!(size_of::<Header>() <= PAGE);
    assert!(JOBS * size_of::<JobSlot>() <= PAGE && STAGE_AT.is_multiple_of(PAGE));
    assert!(RULES_AT + RULES * size_of::<RuleSlot>() <= RING_PAGES_AT);
    assert!(RING_PAGES_AT + RINGS_BYTES / PAGE / 8 <= TABLES_AT);
    assert!(QP_TABLE.is_multiple_of(CHUNK) && MR_TABLE.is_multiple_of(CHUNK) && CQ_TABLE.is_multiple_of(CHUNK));
    assert!(SRQ_TABLE.is_multiple_of(CHUNK));
};
