//! The words of a record about NCCL's communicator and operation. Other threads write them than the
//! one inside the communicator.

use super::file::Words;
use super::layout::{SENDER, record};
use super::record::ConnStats;
use super::table::{put_text, unix_ns};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// These words of one record. Must not be used after its [`ConnStats`] is dropped.
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

    /// The rank of the peer in the communicator of the connection, taken from the tags of receives.
    /// `None`: this is a sender, or nothing was received yet. (The rank known at set-up may be of
    /// another communicator.)
    pub fn peer_rank(&self) -> Option<u32> {
        if self.is_sender() || self.word(record::BEGUN).load(Ordering::Relaxed) == 0 {
            return None;
        }
        self.word(record::PEER_RANK).load(Ordering::Relaxed).checked_sub(1).map(|rank| rank as u32)
    }

    /// Whether messages or flushes are outstanding, or `isend` waits for a clear-to-send.
    pub fn is_waiting(&self) -> bool {
        let of = |at| self.word(at).load(Ordering::Relaxed);
        let begun = of(record::BEGUN);
        begun != of(record::DONE)
            || of(record::REFUSED_AT) == begun
            || of(record::FLUSHES) != of(record::FLUSHES_DONE)
    }

    /// How many messages have begun, if the end waits for nothing.
    pub fn idle_after(&self) -> Option<u64> {
        (!self.is_waiting()).then(|| self.word(record::BEGUN).load(Ordering::Relaxed))
    }

    /// The end waits in the operation `call`, in the communicator named `name`. 0: it waits for
    /// nothing, or the operation is not known.
    pub fn set_operation(&self, call: u64, name: &str) {
        self.word(record::OPERATION).store(call, Ordering::Relaxed);
        put_text(&self.words[record::COMMUNICATOR_NAME..][..record::COMMUNICATOR_NAME_WORDS], name);
    }

    /// The connection has been recovering for this time, with this many attempts. `None`: it works.
    pub fn set_recovery(&self, lasted: Option<(Duration, u32)>) {
        let (since, attempts) = match lasted {
            None => (0, 0),
            Some((lasted, attempts)) => {
                (unix_ns().saturating_sub(lasted.as_nanos() as u64), attempts)
            }
        };
        self.word(record::ATTEMPTS).store(attempts.into(), Ordering::Relaxed);
        self.word(record::RECOVERING).store(since, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::record::{Direction, Opening};

    fn opened(direction: Direction) -> ConnStats {
        let opening = Opening {
            direction,
            device: "mlx5_0",
            peer_host: "n-0007",
            peer_pid: 7,
            peer_rank: Some(3),
            peer_label: None,
            connection: 0,
        };
        ConnStats::open(&opening)
    }

    #[test]
    fn the_peers_rank_is_reported_by_messages_that_a_receiver_asks_for_and_by_nothing_else() {
        let [mut receiver, mut sender] = [Direction::Receive, Direction::Send].map(opened);
        assert_eq!(
            Labels::of(&receiver).peer_rank(),
            None,
            "what was known at the set-up may be of another communicator"
        );
        assert!(receiver.handle_begun(1) && sender.handle_begun(1));
        receiver.handle_due_receive(0, 1, Some(9));
        sender.handle_due_send(0, Some(9));
        assert_eq!([&receiver, &sender].map(|end| Labels::of(end).peer_rank()), [Some(9), None]);
    }

    #[test]
    fn an_end_waits_while_a_message_is_outstanding_or_refused() {
        let mut sender = opened(Direction::Send);
        let labels = Labels::of(&sender);
        assert!(!labels.is_waiting());
        sender.handle_refused();
        assert!(labels.is_waiting(), "it is to be asked for");
        let _ = sender.handle_begun(1);
        assert!(labels.is_waiting(), "it is outstanding");
        labels.word(record::DONE).store(1, Ordering::Relaxed);
        assert!(!labels.is_waiting());
    }
}
