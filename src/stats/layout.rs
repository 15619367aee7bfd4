//! The layout of the statistics file. The plugin writes it; `ferrite top` uses this file too.
//! docs/stats-file.md describes it for other programs.
//!
//! A file is a header of [`HEADER_WORDS`] words and then records of [`RECORD_WORDS`] words. A word
//! has 8 bytes, in the machine's byte order, and is written atomically. A constant of [`header`] or
//! [`record`] is the index of a word. A text begins at the word of its constant and has the stated
//! number of words; unused bytes are 0.

/// The first word of a file.
pub const MAGIC: u64 = u64::from_ne_bytes(*b"FerrStat");
/// A reader with another major number cannot read the file.
pub const LAYOUT_MAJOR: u64 = 1;
/// Incremented when unused words get a meaning.
pub const LAYOUT_MINOR: u64 = 4;

/// Words of the header.
pub const HEADER_WORDS: usize = 1024;
/// Words of a record: 61 cache lines, an odd number, so that the counters of several records are in
/// different sets of a cache.
pub const RECORD_WORDS: usize = record::LANE_BYTES + record::LANES;
/// Words of a record before minor number 2.
pub const FIRST_RECORD_WORDS: usize = record::TIMED;
/// The file grows by this many records at a time.
pub const CHUNK_RECORDS: usize = 64;
/// The most records of a file.
pub const MAX_RECORDS: usize = 4096;
/// The beginning of these files' names. Then come the process id, a dot, and when the process
/// started, in clock ticks since boot, in hexadecimal digits.
pub const FILE_PREFIX: &str = "ferrite-stats.";

/// Words of the header.
pub mod header {
    /// [`super::MAGIC`], written after the rest of the header.
    pub const MAGIC: usize = 0;
    /// Major number of the layout in the upper 32 bits, minor number in the lower ones.
    pub const LAYOUT: usize = 1;
    /// Bytes of the header.
    pub const HEADER_BYTES: usize = 2;
    /// Bytes of a record.
    pub const RECORD_BYTES: usize = 3;
    /// Records that the file has room for. Many may be free.
    pub const RECORDS: usize = 4;
    /// Process id.
    pub const PID: usize = 5;
    /// When the process started, in clock ticks since boot.
    pub const START_TICKS: usize = 6;
    /// When the file was created, in nanoseconds since 1970.
    pub const CREATED: usize = 7;
    /// The process's own rank plus 1, from the tags of its sends; 0: not known; [`super::SEVERAL`]:
    /// the sends have different ranks.
    pub const OWN_RANK: usize = 8;
    /// Ends of connections without a record in the file, for lack of memory.
    pub const UNLISTED: usize = 9;
    /// The rank from the launcher's environment variable plus 1; 0: there is none.
    pub const LABEL: usize = 10;
    /// When a watcher last looked for stalls, in nanoseconds since 1970.
    pub const LOOKED: usize = 11;
    /// One in this many messages is timed; 0: none.
    pub const SAMPLE: usize = 12;
    /// The kernel's `boot_id`, 16 bytes: processes with the same one share a monotonic clock.
    pub const BOOT: usize = 13;
    /// Words of it.
    pub const BOOT_WORDS: usize = 2;
    /// The monotonic clock at [`CREATED`], in nanoseconds.
    pub const CREATED_MONOTONIC: usize = 15;
    /// Host name.
    pub const HOST: usize = 16;
    /// Words of it.
    pub const HOST_WORDS: usize = 8;
    /// Path of the program.
    pub const PROGRAM: usize = 24;
    /// Words of it.
    pub const PROGRAM_WORDS: usize = 16;
    /// Version of Ferrite.
    pub const VERSION: usize = 40;
    /// Words of it.
    pub const VERSION_WORDS: usize = 4;
    /// The environment variable that [`LABEL`] comes from.
    pub const LABEL_NAME: usize = 44;
    /// Words of it.
    pub const LABEL_NAME_WORDS: usize = 4;
    /// Sums over ends whose records were reused: a row for each device and direction.
    pub const PAST: usize = 256;
    /// Words of a row: the device's name ([`super::record::DEVICE_WORDS`]), the direction, and then
    /// the first [`super::record::COUNTERS`] words of the records, added up.
    pub const PAST_WORDS: usize = 32;
    /// Rows.
    pub const PAST_ROWS: usize = 24;
}

/// Value of [`header::OWN_RANK`]: the process's sends have different ranks.
pub const SEVERAL: u64 = u64::MAX;

/// Words of a record. Each record describes one end of a connection.
pub mod record {
    /// Messages accepted by `isend` or `irecv`.
    pub const BEGUN: usize = 0;
    /// Messages that `test` has reported complete.
    pub const DONE: usize = 1;
    /// Bytes of these messages.
    pub const BYTES: usize = 2;
    /// Sender: messages whose first `isend` returned no request, for lack of a clear-to-send or of
    /// a free request.
    pub const WAITS: usize = 3;
    /// Receiver: flushes begun by `iflush`.
    pub const FLUSHES: usize = 4;
    /// Receiver: flushes that `test` has reported complete.
    pub const FLUSHES_DONE: usize = 5;
    /// How often the connection resumed over new queue pairs.
    pub const RECOVERIES: usize = 6;
    /// Sender: messages that were sent again after a recovery.
    pub const RESENT: usize = 7;
    /// Sender: bytes of these messages.
    pub const RESENT_BYTES: usize = 8;
    /// How often the counters stood still for at least a second while something was outstanding.
    pub const STALLS: usize = 9;
    /// Sender: how often a lane moved to another path.
    pub const MOVES: usize = 10;
    /// The words before this one are counters.
    pub const COUNTERS: usize = 12;

    /// Sender: the value of [`BEGUN`] when an `isend` last returned no request. Equal to it while a
    /// message waits for its clear-to-send.
    pub const REFUSED_AT: usize = 12;
    /// The longest time that the counters stood still, in nanoseconds.
    pub const LONGEST_STALL: usize = 13;
    /// How long they have stood still now, in nanoseconds; 0: they do not.
    pub const STALL: usize = 14;
    /// Sender: bytes posted on each rail, by number, if there are several rails.
    pub const RAIL_BYTES: usize = 16;
    /// Words of it.
    pub const RAILS: usize = 8;

    /// The longest time of a timed message in each stage, in nanoseconds.
    pub const LONGEST: usize = 24;
    /// Stages of an end.
    pub const STAGES: usize = 3;
    /// Stage of a sender: from the `isend` that accepted the previous message to the first `isend`
    /// of this one.
    pub const GPU: usize = 0;
    /// Stage of a sender: from the first `isend` to the accepted one, when the clear-to-send has
    /// arrived.
    pub const CTS: usize = 1;
    /// Stage of a sender: from that `isend` to the poll that finds the message acknowledged.
    pub const WIRE: usize = 2;
    /// Stage of a receiver: from `irecv` to the posting of the write that carries the
    /// clear-to-send.
    pub const ANNOUNCE: usize = 0;
    /// Stage of a receiver: from that posting to the poll that finds all of the message arrived.
    pub const DATA: usize = 1;
    /// Stage of a receiver: from that poll to the next `irecv` on the connection.
    pub const CONSUME: usize = 2;

    /// NCCL's operation of the outstanding messages; 0: not known, or none is outstanding. Bits 0
    /// to 46: its number; bit 47: it has none; bits 48 to 58: the function. Bit 59 is set. Written
    /// once a second.
    pub const OPERATION: usize = 27;
    /// NCCL's number of the communicator of the connection; 0: not known.
    pub const COMMUNICATOR: usize = 28;
    /// A number of the connection that both ends share; 0: not known.
    pub const CONNECTION: usize = 29;

    /// When the present recovery began, in nanoseconds since 1970; 0: there is none, or it began
    /// less than half a second ago. Written once a second.
    pub const RECOVERING: usize = 30;
    /// The attempts of this recovery.
    pub const ATTEMPTS: usize = 31;

    /// [`super::FREE`], [`super::OPEN`] or [`super::CLOSED`] in the lower 8 bits; above them a
    /// number that is incremented each time another end gets the record.
    pub const STATE: usize = 32;
    /// [`super::SENDER`] or [`super::RECEIVER`].
    pub const DIRECTION: usize = 33;
    /// When the connection was set up, in nanoseconds since 1970.
    pub const OPENED: usize = 34;
    /// When it was closed; 0: it is open.
    pub const CLOSED: usize = 35;
    /// Process id of the peer, in its own namespace.
    pub const PEER_PID: usize = 36;
    /// The peer's rank plus 1, from NCCL's tags; 0: not known.
    pub const PEER_RANK: usize = 37;
    /// The rank from the peer's launcher plus 1; 0: there is none.
    pub const PEER_LABEL: usize = 38;
    /// This end's rank plus 1, from NCCL's tags; 0: not known.
    pub const OWN_RANK: usize = 39;
    /// Number of rails in use.
    pub const RAIL_COUNT: usize = 40;
    /// Number of queue pairs in use.
    pub const QP_COUNT: usize = 41;
    /// Queue pair numbers, two in each word, the first one in the lower 32 bits.
    pub const QPS: usize = 42;
    /// Words of it.
    pub const QPS_WORDS: usize = 16;
    /// For the plugin: the sum of the counters when they last changed, and when that was.
    pub const PROGRESS_SEEN: usize = 58;
    /// See [`PROGRESS_SEEN`].
    pub const STILL_SINCE: usize = 59;
    /// Name of the communicator of [`OPERATION`], if the user gave one.
    pub const COMMUNICATOR_NAME: usize = 60;
    /// Words of it.
    pub const COMMUNICATOR_NAME_WORDS: usize = 4;
    /// Name of the device, as reported to NCCL.
    pub const DEVICE: usize = 64;
    /// Words of it.
    pub const DEVICE_WORDS: usize = 8;
    /// Host name of the peer.
    pub const PEER_HOST: usize = 72;
    /// Words of it.
    pub const PEER_HOST_WORDS: usize = 8;
    /// Names of the rails, by number.
    pub const RAIL_NAMES: usize = 80;
    /// Words of each.
    pub const RAIL_NAME_WORDS: usize = 4;
    /// A histogram of 48 words for each stage.
    pub const HISTOGRAMS: usize = 112;
    /// The messages timed last, in a ring, each with the words of [`super::timed`].
    pub const TIMED: usize = 256;
    /// How many there are.
    pub const TIMED_MESSAGES: usize = 25;
    /// Sender: bytes posted on each lane, by index of the queue pair, if queue pairs are lanes.
    pub const LANE_BYTES: usize = 456;
    /// Words of it.
    pub const LANES: usize = 32;
}

/// Words of a timed message, written when it is complete.
pub mod timed {
    /// The message's number plus 1; 0: there is none. Messages are numbered from 0 in the order of
    /// the receives. Receiver: the first of the `irecv`. If the last word differs, the words are
    /// being written.
    pub const MESSAGE: usize = 0;
    /// When a poll found the message complete, by the kernel's monotonic clock, in nanoseconds.
    pub const AT: usize = 1;
    /// The time in each stage, in nanoseconds. [`super::record::CONSUME`] is 0 until the next
    /// `irecv`.
    pub const STAGES: usize = 2;
    /// Bytes of the message in the lower 48 bits; receiver: of all messages of the `irecv`, whose
    /// number is in the upper 8 bits.
    pub const BYTES: usize = 5;
    /// NCCL's operation of the message, as [`super::record::OPERATION`]; 0: not known.
    pub const OPERATION: usize = 6;
    /// See [`MESSAGE`].
    pub const MESSAGE_AGAIN: usize = 7;
    /// Words of it.
    pub const WORDS: usize = 8;
}

/// Value of [`record::STATE`]: no end has the record.
pub const FREE: u64 = 0;
/// Value of [`record::STATE`]: the connection exists.
pub const OPEN: u64 = 1;
/// Value of [`record::STATE`]: this end is closed. The record stays until another end needs it.
pub const CLOSED: u64 = 2;

/// Of [`record::DIRECTION`].
pub const SENDER: u64 = 1;
/// Of [`record::DIRECTION`].
pub const RECEIVER: u64 = 2;

// No words of a record, or of the header, overlap.
const _: () = {
    use record::{
        DEVICE, DEVICE_WORDS, PEER_HOST, PEER_HOST_WORDS, QPS, QPS_WORDS, RAIL_NAME_WORDS,
        RAIL_NAMES,
    };
    assert!(QPS + QPS_WORDS <= DEVICE && DEVICE + DEVICE_WORDS <= PEER_HOST);
    assert!(PEER_HOST + PEER_HOST_WORDS <= RAIL_NAMES);
    assert!(RAIL_NAMES + record::RAILS * RAIL_NAME_WORDS <= record::HISTOGRAMS);
    assert!(
        QPS + QPS_WORDS <= record::PROGRESS_SEEN && record::STILL_SINCE < record::COMMUNICATOR_NAME
    );
    assert!(record::COMMUNICATOR_NAME + record::COMMUNICATOR_NAME_WORDS <= DEVICE);
    assert!(record::RAIL_BYTES + record::RAILS <= record::LONGEST);
    assert!(
        record::LONGEST + record::STAGES <= record::OPERATION && record::CONNECTION < record::STATE
    );
    assert!(
        header::BOOT + header::BOOT_WORDS <= header::CREATED_MONOTONIC
            && header::CREATED_MONOTONIC < header::HOST
    );
    assert!(timed::STAGES + record::STAGES <= timed::BYTES && (RECORD_WORDS / 8) % 2 == 1);
    assert!(record::TIMED + record::TIMED_MESSAGES * timed::WORDS <= record::LANE_BYTES);
    assert!(record::MOVES < record::COUNTERS && record::COUNTERS <= record::REFUSED_AT);
    assert!(header::LABEL_NAME + header::LABEL_NAME_WORDS <= header::PAST);
    assert!(header::PAST + header::PAST_ROWS * header::PAST_WORDS <= HEADER_WORDS);
    assert!(DEVICE_WORDS + 1 + record::COUNTERS <= header::PAST_WORDS);
};

/// `text` as words, cut to `count` words at the end of a character.
pub fn text_words(text: &str, count: usize) -> impl Iterator<Item = u64> {
    let cut =
        (0..=text.len().min(count * 8)).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
    let bytes = &text.as_bytes()[..cut];
    (0..count).map(move |word| {
        let at = |i: usize| bytes.get(word * 8 + i).copied().unwrap_or(0);
        u64::from_ne_bytes(std::array::from_fn(at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_cut_between_characters_and_filled_with_zeros() {
        let bytes =
            |text, count| text_words(text, count).flat_map(u64::to_ne_bytes).collect::<Vec<_>>();
        assert_eq!(bytes("mlx5_0", 1), b"mlx5_0\0\0");
        assert_eq!(bytes("12345678", 1), b"12345678");
        assert_eq!(bytes("1234567é", 1), b"1234567\0");
        assert_eq!(bytes("123456789", 2), b"123456789\0\0\0\0\0\0\0");
    }
}
