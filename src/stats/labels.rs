//! What a record says of NCCL's communicator and operation. It is written by others than the thread that is inside of the communicator.

use super::file::Words;
use super::layout::{SENDER, record};
use super::record::ConnStats;
use super::table::put_text;
use std::sync::atomic::{AtomicU64, Ordering};

/// These words of a record. To be used no longer than the [`ConnStats`] that it is of.
#[derive(Debug, Clone, Copy)]
pub struct Labels {
    words: &'static Words,
}

impl Labels {
    /// Those of `stats`.
    pub fn of(stats: &ConnStats) -> Self {
        Self { words: stats.words }
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[at]
    }

    /// The connection is for NCCL's communicator number `id`. 0 is none: NCCL's numbers are hashes.
    pub fn set_communicator(&self, id: Option<u64>) {
        self.word(record::COMMUNICATOR).store(id.unwrap_or(0), Ordering::Relaxed);
    }

    /// The number of NCCL's communicator, if it is known.
    pub fn communicator(&self) -> Option<u64> {
        Some(self.word(record::COMMUNICATOR).load(Ordering::Relaxed)).filter(|id| *id != 0)
    }

    /// Whether this is the sending end.
    pub fn is_sender(&self) -> bool {
        self.word(record::DIRECTION).load(Ordering::Relaxed) == SENDER
    }

    /// The peer's rank, as far as it was known at the set-up, or as messages tell it.
    pub fn peer_rank(&self) -> Option<u32> {
        self.word(record::PEER_RANK).load(Ordering::Relaxed).checked_sub(1).map(|rank| rank as u32)
    }

    /// The messages that are outstanding are of the operation `call`, in a communicator that is called `name`; 0: not known.
    pub fn set_operation(&self, call: u64, name: &str) {
        self.word(record::OPERATION).store(call, Ordering::Relaxed);
        put_text(&self.words[record::COMMUNICATOR_NAME..][..record::COMMUNICATOR_NAME_WORDS], name);
    }
}
