//! A message that was timed at one end of its connection.

use nccl_net::inspect::operation::Call;
use nccl_net::inspect::stats::layout::{record, timed};

/// Times are in nanoseconds, by the monotonic clock of the end's machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timed {
    /// Its number, counted from 0 on, in the order in which the receiver has asked. Receiver: of the first message of the `irecv`.
    pub(crate) number: u64,
    /// Receiver: messages of the `irecv`. 1 for a sender.
    pub(crate) messages: u8,
    /// Bytes of all of them.
    pub(crate) bytes: u64,
    /// When it was found complete. Of a receiver, the last stage comes after that.
    pub(crate) at: i64,
    /// The time in each stage.
    pub(crate) stages: [i64; record::STAGES],
    /// The operation of NCCL that it is of.
    pub(crate) operation: Option<Call>,
}

/// No machine runs for longer, and no stage takes longer: 18 years.
const MOST: u64 = 1 << 59;

impl Timed {
    /// The message in these words. `None`: there is none, they are being written, or they are not possible.
    pub(crate) fn new(words: &[u64]) -> Option<Self> {
        let number = words[timed::MESSAGE].checked_sub(1)?;
        let stages: [u64; record::STAGES] = std::array::from_fn(|stage| words[timed::STAGES + stage]);
        let all = stages.iter().try_fold(0_u64, |sum, ns| sum.checked_add(*ns))?;
        if words[timed::MESSAGE_AGAIN] != words[timed::MESSAGE] || words[timed::AT] >= MOST || all >= MOST {
            return None;
        }
        Some(Self {
            number,
            messages: (words[timed::BYTES] >> 56) as u8,
            bytes: words[timed::BYTES] & ((1 << 48) - 1),
            at: words[timed::AT] as i64,
            stages: stages.map(|ns| ns as i64),
            operation: Call::from_bits(words[timed::OPERATION]),
        })
    }

    /// All in the words of a record, in no order.
    pub(crate) fn all(record: &[u64]) -> impl Iterator<Item = Self> {
        let words = record.get(record::TIMED..).unwrap_or_default();
        words.chunks_exact(timed::WORDS).take(record::TIMED_MESSAGES).filter_map(Self::new)
    }

    /// Sender: when its `isend` was accepted.
    pub(crate) fn sent(&self) -> i64 {
        self.at - self.stages[record::WIRE]
    }

    /// When its first stage began.
    pub(crate) fn begin(&self, is_sender: bool) -> i64 {
        let before = if is_sender { &self.stages[..] } else { &self.stages[..=record::DATA] };
        self.at - before.iter().sum::<i64>()
    }

    /// When its last stage ended.
    pub(crate) fn end(&self, is_sender: bool) -> i64 {
        if is_sender { self.at } else { self.at + self.stages[record::CONSUME] }
    }

    /// How long the transport had it: a sender from the first `isend`, a receiver from `irecv` to its completion.
    pub(crate) fn duration(&self, is_sender: bool) -> i64 {
        match is_sender {
            true => self.stages[record::CTS] + self.stages[record::WIRE],
            false => self.stages[record::ANNOUNCE] + self.stages[record::DATA],
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// The words of a message of 4 KiB.
    pub(crate) fn words(number: u64, at: u64, stages: [u64; record::STAGES]) -> [u64; timed::WORDS] {
        let mut words = [0; timed::WORDS];
        (words[timed::MESSAGE], words[timed::MESSAGE_AGAIN]) = (number + 1, number + 1);
        words[timed::AT] = at;
        words[timed::STAGES..timed::BYTES].copy_from_slice(&stages);
        words[timed::BYTES] = 1 << 56 | 4096;
        words
    }

    #[test]
    fn times_of_both_ends_are_counted_from_the_completion() {
        let one = Timed::new(&words(257, 10_000, [1_000, 200, 30])).expect("it is whole");
        assert_eq!((one.number, one.messages, one.bytes), (257, 1, 4096));
        assert_eq!((one.begin(true), one.sent(), one.end(true), one.duration(true)), (8_770, 9_970, 10_000, 230));
        assert_eq!((one.begin(false), one.end(false), one.duration(false)), (8_800, 10_030, 1_200));
    }

    #[test]
    fn words_that_are_half_written_or_impossible_are_no_message() {
        let good = words(1, 10, [1, 2, 3]);
        let changed = |at: usize, value: u64| {
            let mut words = good;
            words[at] = value;
            Timed::new(&words)
        };
        assert!(Timed::new(&good).is_some() && Timed::new(&[0; timed::WORDS]).is_none());
        assert!(changed(timed::MESSAGE, 5).is_none() && changed(timed::MESSAGE_AGAIN, 5).is_none());
        for at in [timed::AT, timed::STAGES, timed::STAGES + 2] {
            assert!(changed(at, u64::MAX).is_none() && changed(at, 1 << 59).is_none(), "word {at}");
        }
        assert!(changed(timed::BYTES, u64::MAX).is_some_and(|one| one.bytes < 1 << 48));
    }
}
