//! The records of this process: which are free, and whose memory they are in.

use super::file::{self, Chunk, Header, StatsFile, Words, add};
use super::layout::{
    CHUNK_RECORDS, CLOSED, FREE, HEADER_WORDS, LAYOUT_MAJOR, LAYOUT_MINOR, MAGIC, OPEN,
    RECORD_WORDS, header, record, text_words,
};
use super::{clock, stalls};
use crate::version;
use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// The process's data in the header.
#[derive(Debug, Clone, Default)]
pub struct ProcessInfo {
    /// When it started, in clock ticks since boot.
    pub start_ticks: u64,
    /// The namespace of its process id; 0: not known.
    pub pid_namespace: u64,
    /// Host name.
    pub host: String,
    /// Path of the program.
    pub program: String,
    /// The launcher's environment variable with the rank, and the rank.
    pub label: Option<(&'static str, u32)>,
    /// One in this many messages is timed; 0: none.
    pub sample: u32,
    /// The kernel's `boot_id`; 0: not known.
    pub boot: [u64; header::BOOT_WORDS],
}

/// All records.
#[derive(Debug)]
pub(super) struct Table {
    /// The process that made it.
    pub(super) owner: u32,
    pub(super) header: &'static Header,
    file: Option<StatsFile>,
    chunks: Vec<&'static Chunk>,
    /// How many chunks are in the file; they precede the others.
    listed_chunks: usize,
    /// Free records, the one that has been free for longest first.
    free: VecDeque<usize>,
    start: Instant,
    /// When stalls were last looked for, in nanoseconds since `start`.
    looked: u64,
}

/// The least time between two looks for stalls, in nanoseconds.
const LOOK_EVERY_NS: u64 = 500_000_000;

impl Table {
    /// No records, in private memory.
    pub(super) fn private() -> Self {
        let header = file::private();
        Self {
            owner: std::process::id(),
            header,
            file: None,
            chunks: Vec::new(),
            listed_chunks: 0,
            free: VecDeque::new(),
            start: Instant::now(),
            looked: 0,
        }
    }

    /// No records, in a file in `folder`.
    ///
    /// # Errors
    /// The file cannot be created.
    pub(super) fn in_file(folder: &Path, process: &ProcessInfo) -> Result<Self, String> {
        let path = StatsFile::path(folder, process.start_ticks, process.pid_namespace);
        // Files of dead processes go first: the new file may need their room.
        super::dead::sweep(folder, &path);
        let file = StatsFile::create(path)?;
        describe(file.header, process);
        Ok(Self { header: file.header, file: Some(file), ..Self::private() })
    }

    /// A free record and its number. All words are 0 except the upper bits of its state.
    pub(super) fn take(&mut self) -> (usize, &'static Words) {
        if self.free.is_empty() {
            self.grow();
        }
        let number = self.free.pop_front().unwrap_or(0);
        let words = &self.chunks[number / CHUNK_RECORDS][number % CHUNK_RECORDS];
        let state = words[record::STATE].load(Ordering::Relaxed);
        if state & 0xff == CLOSED {
            self.keep_sums(words);
        }
        words[record::STATE].store((state & !0xff) + 0x100 + FREE, Ordering::Release);
        let others = words.iter().enumerate().filter(|(at, _)| *at != record::STATE);
        others.for_each(|(_, word)| word.store(0, Ordering::Relaxed));
        self.count_unlisted(number, 1);
        (number, words)
    }

    /// The end with record `number`, whose words are `words`, is closed.
    pub(super) fn give_back(&mut self, number: usize, words: &Words) {
        words[record::CLOSED].store(unix_ns(), Ordering::Relaxed);
        let state = words[record::STATE].load(Ordering::Relaxed);
        words[record::STATE].store((state & !0xff) | CLOSED, Ordering::Release);
        self.count_unlisted(number, u64::MAX);
        self.free.push_back(number);
    }

    /// As [`super::process::check_stalls`].
    pub(super) fn check_stalls(&mut self) -> bool {
        let now = self.start.elapsed().as_nanos() as u64 + 1;
        if now - self.looked < LOOK_EVERY_NS {
            return true;
        }
        self.looked = now;
        self.header[header::LOOKED].store(unix_ns(), Ordering::Relaxed);
        let all = self.chunks.iter().flat_map(|chunk| chunk.iter());
        all.filter(|words| stalls::check_record(words, now)).count() > 0
    }

    fn count_unlisted(&self, number: usize, change: u64) {
        if self.file.is_some() && number >= self.listed_chunks * CHUNK_RECORDS {
            add(&self.header[header::UNLISTED], change);
        }
    }

    fn grow(&mut self) {
        // Once the file could not grow, it is not grown again: its records come before all others.
        let is_next = self.listed_chunks == self.chunks.len();
        let chunk = self.file.as_mut().filter(|_| is_next).and_then(StatsFile::grow);
        self.listed_chunks += usize::from(chunk.is_some());
        let first = self.chunks.len() * CHUNK_RECORDS;
        self.chunks.push(chunk.unwrap_or_else(file::private));
        self.free.extend(first..first + CHUNK_RECORDS);
    }

    /// Adds the counters of a closed end, whose record is reused, to those of its device and
    /// direction.
    fn keep_sums(&self, words: &Words) {
        const KEY: usize = record::DEVICE_WORDS + 1;
        let key: Vec<u64> = (record::DEVICE..record::DEVICE + record::DEVICE_WORDS)
            .chain([record::DIRECTION])
            .map(|at| words[at].load(Ordering::Relaxed))
            .collect();
        let rows =
            &self.header[header::PAST..header::PAST + header::PAST_ROWS * header::PAST_WORDS];
        let is_it = |row: &&[AtomicU64]| {
            let known: Vec<u64> =
                row[..KEY].iter().map(|word| word.load(Ordering::Relaxed)).collect();
            known == key || known.iter().all(|word| *word == 0)
        };
        let Some(row) = rows.chunks(header::PAST_WORDS).find(is_it) else { return };
        row.iter().zip(&key).for_each(|(word, value)| word.store(*value, Ordering::Relaxed));
        for (sum, counter) in row[KEY..].iter().zip(&words[..record::COUNTERS]) {
            add(sum, counter.load(Ordering::Relaxed));
        }
    }
}

/// Writes the constant words of the header, the magic word last.
fn describe(words: &Header, process: &ProcessInfo) {
    let label = process.label.unwrap_or_default();
    let numbers = [
        (header::LAYOUT, LAYOUT_MAJOR << 32 | LAYOUT_MINOR),
        (header::HEADER_BYTES, HEADER_WORDS as u64 * 8),
        (header::RECORD_BYTES, RECORD_WORDS as u64 * 8),
        (header::PID, std::process::id().into()),
        (header::START_TICKS, process.start_ticks),
        (header::CREATED, unix_ns()),
        (header::CREATED_MONOTONIC, clock::monotonic()),
        (header::BOOT, process.boot[0]),
        (header::BOOT + 1, process.boot[1]),
        (header::SAMPLE, process.sample.into()),
        (header::LABEL, process.label.map_or(0, |(_, rank)| u64::from(rank) + 1)),
    ];
    for (at, value) in numbers {
        words[at].store(value, Ordering::Relaxed);
    }
    put_text(&words[header::HOST..][..header::HOST_WORDS], &process.host);
    put_text(&words[header::PROGRAM..][..header::PROGRAM_WORDS], &process.program);
    put_text(&words[header::VERSION..][..header::VERSION_WORDS], version::text());
    put_text(&words[header::LABEL_NAME..][..header::LABEL_NAME_WORDS], label.0);
    words[header::MAGIC].store(MAGIC, Ordering::Release);
}

/// Writes `text` into `words`, and zeros behind it.
pub(super) fn put_text(words: &[AtomicU64], text: &str) {
    words
        .iter()
        .zip(text_words(text, words.len()))
        .for_each(|(word, value)| word.store(value, Ordering::Relaxed));
}

/// Nanoseconds since 1970.
pub(super) fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64)
}

/// Marks a filled record as that of an open end.
pub(super) fn publish(words: &Words) {
    let state = words[record::STATE].load(Ordering::Relaxed);
    words[record::STATE].store((state & !0xff) | OPEN, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(words: &Words) -> u64 {
        words[record::STATE].load(Ordering::Relaxed) & 0xff
    }

    #[test]
    fn the_record_that_has_been_free_for_longest_is_taken_first_and_comes_empty() {
        let mut table = Table::private();
        let taken: Vec<_> = (0..CHUNK_RECORDS + 1).map(|_| table.take()).collect();
        assert_eq!((taken[CHUNK_RECORDS].0, table.chunks.len()), (CHUNK_RECORDS, 2));
        publish(taken[3].1);
        taken[3].1[record::BEGUN].store(7, Ordering::Relaxed);
        table.give_back(3, taken[3].1);
        assert_eq!(
            (state(taken[3].1), taken[3].1[record::BEGUN].load(Ordering::Relaxed)),
            (CLOSED, 7),
            "still there"
        );
        let others = CHUNK_RECORDS - 1;
        assert!((0..others).all(|_| table.take().0 != 3));
        let (number, words) = table.take();
        assert_eq!(
            (number, state(words), words[record::BEGUN].load(Ordering::Relaxed)),
            (3, FREE, 0)
        );
        assert_eq!(words[record::STATE].load(Ordering::Relaxed) >> 8, 2, "the second end");
    }

    #[test]
    fn counters_of_ends_whose_records_are_given_away_are_added_up_by_device_and_direction() {
        let mut table = Table::private();
        for round in 0..2 {
            let taken: Vec<_> = (0..CHUNK_RECORDS).map(|_| table.take()).collect();
            for (number, words) in &taken {
                put_text(
                    &words[record::DEVICE..][..record::DEVICE_WORDS],
                    ["mlx5_0", "mlx5_1"][number % 2],
                );
                words[record::DIRECTION].store(1 + (*number as u64 / 2) % 2, Ordering::Relaxed);
                words[record::BYTES].store(1000 * (round + 1), Ordering::Relaxed);
            }
            taken.iter().for_each(|(number, words)| table.give_back(*number, words));
        }
        let past = &table.header[header::PAST..];
        let sums: Vec<u64> = past
            .chunks(header::PAST_WORDS)
            .map(|row| row[record::DEVICE_WORDS + 1 + record::BYTES].load(Ordering::Relaxed))
            .take(5)
            .collect();
        assert_eq!(
            sums,
            [16_000, 16_000, 16_000, 16_000, 0],
            "of the first round; the second one's are still there"
        );
    }
}
