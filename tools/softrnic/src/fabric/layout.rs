//! What lies where in the shared file. Every shared word is an atomic, so that no interleaving of processes, and
//! no death of one, is a data race; the comments say who writes.
//!
//! ```text
//! 0        Header
//! 4 KiB    PROCS x ProcSlot
//! 64 KiB   per device: QPS x QpSlot, MRS x MrSlot, CQS x CqSlot    (storage allocated chunk by chunk, on first use)
//! ...      receive rings                                           (storage allocated with the QP)
//! ```

use std::mem::size_of;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize};

use crate::abi::consts::qp_state;

/// First word of the file: the text "softrnic".
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"softrnic");
/// Change it with every change in this file.
pub(crate) const VERSION: u64 = 1;

pub(crate) const DEVICES: usize = 8;
pub(crate) const PROCS: usize = 256;
pub(crate) const QPS: u32 = 4096;
pub(crate) const MRS: u32 = 16384;
pub(crate) const CQS: u32 = 4096;

pub(crate) const PAGE: usize = 4096;
/// Storage of the tables grows by this much.
pub(crate) const CHUNK: usize = 64 << 10;
pub(crate) const PROCS_AT: usize = PAGE;
pub(crate) const TABLES_AT: usize = CHUNK;
const QP_TABLE: usize = QPS as usize * size_of::<QpSlot>();
const MR_TABLE: usize = MRS as usize * size_of::<MrSlot>();
const CQ_TABLE: usize = CQS as usize * size_of::<CqSlot>();
const DEVICE_TABLES: usize = QP_TABLE + MR_TABLE + CQ_TABLE;
pub(crate) const RINGS_AT: usize = TABLES_AT + DEVICES * DEVICE_TABLES;
/// Bound of all receive rings together.
pub(crate) const RINGS_BYTES: usize = 64 << 20;
pub(crate) const FILE_BYTES: usize = RINGS_AT + RINGS_BYTES;

/// The three tables of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    Qp = 0,
    Mr = 1,
    Cq = 2,
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
        }
    }

    /// Entries in the table.
    pub(crate) fn capacity(self) -> u32 {
        match self {
            Self::Qp => QPS,
            Self::Mr => MRS,
            Self::Cq => CQS,
        }
    }

    /// Entries in one chunk of storage.
    pub(crate) fn per_chunk(self) -> u32 {
        let entry = match self {
            Self::Qp => size_of::<QpSlot>(),
            Self::Mr => size_of::<MrSlot>(),
            Self::Cq => size_of::<CqSlot>(),
        };
        (CHUNK / entry) as u32
    }
}

/// Start of the file.
#[repr(C)]
pub(crate) struct Header {
    pub(crate) magic: AtomicU64,
    pub(crate) version: AtomicU64,
    pub(crate) file_bytes: AtomicU64,
    /// Protection domains are numbered over the whole fabric, 0 is none.
    pub(crate) next_pd: AtomicU32,
    /// Entries of each table that have storage. Written under the control lock.
    pub(crate) grown: [[AtomicU32; 3]; DEVICES],
    /// Where to look for a free entry first; only a hint. Written under the control lock.
    pub(crate) hint: [[AtomicU32; 3]; DEVICES],
}

/// [`ProcSlot::state`]: takes part.
pub(crate) const PROC_ALIVE: u32 = 1;
/// [`ProcSlot::state`]: in its exit handlers, takes part no more.
pub(crate) const PROC_EXITING: u32 = 2;

/// One process. Written by it alone, but for `bell` (anyone) and `life` (the kernel, when it dies).
#[repr(C, align(128))]
pub(crate) struct ProcSlot {
    /// Generation and slot number; 0 is free.
    pub(crate) id: AtomicU32,
    pub(crate) pid: AtomicI32,
    pub(crate) state: AtomicU32,
    /// Futex that wakes the service thread.
    pub(crate) bell: AtomicU32,
    /// Link of the service thread's robust list; points into that process.
    pub(crate) robust_next: AtomicUsize,
    /// Robust futex word: the service thread's id, to which the kernel adds `FUTEX_OWNER_DIED` at its death.
    pub(crate) life: AtomicU32,
    pub(crate) generation: AtomicU32,
}

/// [`QpSlot::peer`] of a QP that is connected to nobody.
pub(crate) const NO_PEER: u64 = u64::MAX;

/// The part of a QP that its peer sees.
#[repr(C, align(64))]
pub(crate) struct QpSlot {
    // Identity and connection: written by the owner; `state` also RTR|RTS -> ERR by the visiting peer.
    /// [`ProcSlot::id`] of the owner; 0 is free.
    pub(crate) owner: AtomicU32,
    pub(crate) qpn: AtomicU32,
    pub(crate) state: AtomicU32,
    pub(crate) generation: AtomicU32,
    /// Device index << 32 | QPN.
    pub(crate) peer: AtomicU64,
    pub(crate) pd: AtomicU32,
    pub(crate) access: AtomicU32,
    pub(crate) send_cq: AtomicU32,
    pub(crate) recv_cq: AtomicU32,
    pub(crate) send_bit: AtomicU32,
    pub(crate) recv_bit: AtomicU32,
    pub(crate) rnr_timer: AtomicU32,
    pub(crate) read_depth: AtomicU32,
    pub(crate) ring_at: AtomicU64,

    pub(crate) ring_bytes: AtomicU32,
    /// Entries - 1.
    pub(crate) ring_mask: AtomicU32,
    /// 8-byte words per entry.
    pub(crate) ring_stride: AtomicU32,
    pub(crate) is_uc: AtomicU32,
    _pad0: [u64; 6],

    // Written by the visitor (the connected peer while it holds `busy`), and by the owner when it may not be visited.
    /// 0, or serial << 32 | process id of whoever executes against this QP right now.
    pub(crate) busy: AtomicU64,
    /// Receives completed.
    pub(crate) done: AtomicU64,
    pub(crate) expected_psn: AtomicU32,
    /// Bit n: async event n is to be delivered. Cleared by the owner's service thread.
    pub(crate) events: AtomicU32,
    _pad1: [u64; 5],

    // Written by the owner.
    /// Receives posted.
    pub(crate) posted: AtomicU64,
    _pad2: [u64; 7],
}

impl QpSlot {
    /// A connected QP goes into the error state; one that its owner has moved on meanwhile stays as it is.
    pub(crate) fn fail(&self) {
        for connected in [qp_state::RTS, qp_state::RTR] {
            let _ = self.state.compare_exchange(connected, qp_state::ERR, SeqCst, SeqCst);
        }
    }
}

/// A memory region. Written by its owner.
#[repr(C, align(64))]
pub(crate) struct MrSlot {
    pub(crate) owner: AtomicU32,
    /// Index << 8 | generation; 0 while not valid.
    pub(crate) key: AtomicU32,
    pub(crate) pd: AtomicU32,
    pub(crate) access: AtomicU32,
    pub(crate) iova: AtomicU64,
    pub(crate) addr: AtomicU64,
    pub(crate) length: AtomicU64,
    pub(crate) generation: AtomicU32,
}

/// The part of a CQ that producers in other processes see.
#[repr(C, align(64))]
pub(crate) struct CqSlot {
    pub(crate) owner: AtomicU32,
    pub(crate) capacity: AtomicU32,
    /// Bit n: some QP whose number in this CQ is n modulo 64 has something new. Set by producers.
    pub(crate) bell: AtomicU64,
    /// Completions added, by producers.
    pub(crate) pushed: AtomicU64,
    /// Completions taken, by the owner.
    pub(crate) polled: AtomicU64,
    /// Overrun: takes no more completions.
    pub(crate) dead: AtomicU32,
    pub(crate) events: AtomicU32,
    /// Completion notification: 0 off, 1 for solicited and failed ones, 2 for any.
    pub(crate) armed: AtomicU32,
    /// A notification is to be delivered by the owner's service thread.
    pub(crate) notify: AtomicU32,
}

const _: () = {
    assert!(size_of::<Header>() <= PAGE && size_of::<ProcSlot>() == 128);
    assert!(size_of::<QpSlot>() == 256 && size_of::<MrSlot>() == 64 && size_of::<CqSlot>() == 64);
    assert!(PROCS_AT + PROCS * size_of::<ProcSlot>() <= TABLES_AT);
    assert!(QP_TABLE.is_multiple_of(CHUNK) && MR_TABLE.is_multiple_of(CHUNK) && CQ_TABLE.is_multiple_of(CHUNK));
};
