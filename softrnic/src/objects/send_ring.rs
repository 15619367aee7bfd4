//! Records of executed requests, between their execution and the poll that reports them.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::host::sync::AtomicU64;

/// What became of one request. Two words, so that poller and executor need no lock in common.
#[derive(Debug)]
struct Record {
    wr_id: AtomicU64,
    /// Status | opcode << 8 | has a completion << 16 | byte count << 32.
    rest: AtomicU64,
}

/// Records of executed requests: filled under the queue's lock, emptied under the CQ's.
#[derive(Debug)]
pub(crate) struct SendRing {
    done: AtomicU64,
    freed: AtomicU64,
    polled: AtomicU64,
    mask: u64,
    records: Box<[Record]>,
}

/// A completion taken from the ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Taken {
    pub(crate) wr_id: u64,
    pub(crate) status: u32,
    pub(crate) opcode: u32,
    pub(crate) byte_len: u32,
}

impl SendRing {
    /// With room for `entries` records, a power of two.
    pub(crate) fn new(entries: usize) -> Self {
        Self {
            done: AtomicU64::new(0),
            freed: AtomicU64::new(0),
            polled: AtomicU64::new(0),
            mask: entries as u64 - 1,
            records: (0..entries).map(|_| Record { wr_id: AtomicU64::new(0), rest: AtomicU64::new(0) }).collect(),
        }
    }

    /// Requests whose slots are in use, given how many were posted.
    pub(crate) fn in_use(&self, posted: u64) -> u64 {
        // Pairs with the poller's store: a record is not written again before it has been read. `tests/models` cannot show that: in each
        // order that its checker tries, a load returns what was stored before.
        posted - self.freed.load(Acquire)
    }

    /// Records the outcome of request number `at`.
    pub(crate) fn record(&self, at: u64, wr_id: u64, status: u32, opcode: u32, byte_len: u32, is_completion: bool) {
        let record = &self.records[(at & self.mask) as usize];
        record.wr_id.store(wr_id, Relaxed);
        let rest = u64::from(status) | u64::from(opcode) << 8 | u64::from(is_completion) << 16;
        record.rest.store(rest | u64::from(byte_len) << 32, Relaxed);
        // Pairs with the poller's load in `take`.
        self.done.store(at + 1, Release);
    }

    /// The next completion, if there is one. Call under the CQ's lock.
    pub(crate) fn take(&self) -> Option<Taken> {
        let done = self.done.load(Acquire);
        let mut at = self.polled.load(Relaxed);
        while at != done {
            let record = &self.records[(at & self.mask) as usize];
            let (wr_id, rest) = (record.wr_id.load(Relaxed), record.rest.load(Relaxed));
            at += 1;
            if rest & 1 << 16 != 0 {
                self.polled.store(at, Relaxed);
                self.freed.store(at, Release);
                let (status, opcode) = (rest as u32 & 0xff, rest as u32 >> 8 & 0xff);
                return Some(Taken { wr_id, status, opcode, byte_len: (rest >> 32) as u32 });
            }
        }
        self.polled.store(at, Relaxed);
        None
    }

    /// Whether records wait to be looked at.
    pub(crate) fn has_more(&self) -> bool {
        self.polled.load(Relaxed) != self.done.load(Acquire)
    }

    /// Empties the ring up to `posted`; returns how many completions that threw away.
    pub(crate) fn discard(&self, posted: u64) -> u64 {
        let thrown = std::iter::from_fn(|| self.take()).count();
        self.done.store(posted, Relaxed);
        self.polled.store(posted, Relaxed);
        self.freed.store(posted, Release);
        thrown as u64
    }
}
