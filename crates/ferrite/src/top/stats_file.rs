//! One file of statistics as it is at a moment.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use nccl_net::inspect::operation::Call;
use nccl_net::inspect::stats::histogram;
use nccl_net::inspect::stats::histogram::{BUCKETS, lower_bound};
use nccl_net::inspect::stats::layout::{
    CLOSED, FILE_PREFIX, FIRST_RECORD_WORDS, HEADER_WORDS, LAYOUT_MAJOR, MAGIC, MAX_RECORDS, OPEN,
    RECORD_WORDS, SENDER, SEVERAL, header, record,
};
use nccl_net::inspect::stats::lock::holder;

/// A longer file is not one of these.
const MAX_BYTES: u64 = 8 * (HEADER_WORDS + MAX_RECORDS * RECORD_WORDS) as u64 * 4;

/// A process, as its file describes it.
#[derive(Debug, Clone)]
pub(crate) struct StatsFile {
    words: Vec<u64>,
    header_words: usize,
    record_words: usize,
    /// Whether the process lives.
    pub(crate) is_alive: bool,
}

impl StatsFile {
    /// Reads the file.
    ///
    /// # Errors
    /// The text says why it cannot be read or is none of Ferrite's.
    pub(crate) fn read(path: &Path) -> Result<Self, String> {
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let file =
            File::options().read(true).custom_flags(flags).open(path).map_err(|e| e.to_string())?;
        let owner = file.metadata().map_err(|e| e.to_string())?.uid();
        // SAFETY: no arguments.
        let own = unsafe { libc::geteuid() };
        if owner != own && owner != 0 && own != 0 {
            return Err(format!("it belongs to user {owner}, and this is user {own}"));
        }
        Ok(Self { is_alive: holder(file.as_fd()).is_some(), ..Self::parse(&whole(&file)?)? })
    }

    /// The file with these bytes, of a process that is not known to live.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default()))
            .collect();
        let of = |at: usize| words.get(at).copied().unwrap_or(0);
        match of(header::MAGIC) {
            MAGIC => {}
            0 => return Err("empty: its process has just begun, or died at once".into()),
            _ => return Err("not a file of Ferrite's statistics".into()),
        }
        let (major, minor) = (of(header::LAYOUT) >> 32, of(header::LAYOUT) & 0xffff_ffff);
        if major != LAYOUT_MAJOR {
            let which = if major < LAYOUT_MAJOR { "an older" } else { "a newer" };
            return Err(format!(
                "layout {major}.{minor}, of {which} Ferrite; this program reads {LAYOUT_MAJOR}.*"
            ));
        }
        let (header_bytes, record_bytes) = (of(header::HEADER_BYTES), of(header::RECORD_BYTES));
        let is_possible = |bytes: u64, least: usize| {
            bytes.is_multiple_of(8) && (least as u64 * 8..=1 << 20).contains(&bytes)
        };
        if !is_possible(header_bytes, HEADER_WORDS)
            || !is_possible(record_bytes, FIRST_RECORD_WORDS)
        {
            return Err(format!(
                "impossible: a header of {header_bytes} bytes and records of {record_bytes}"
            ));
        }
        let (header_words, record_words) = (header_bytes as usize / 8, record_bytes as usize / 8);
        let there = words.len().saturating_sub(header_words) / record_words;
        if words.len() < header_words || of(header::RECORDS) > there as u64 {
            return Err(format!(
                "cut: {} records are announced, and there are {there}",
                of(header::RECORDS)
            ));
        }
        Ok(Self { words, header_words, record_words, is_alive: false })
    }

    /// A word of the header.
    pub(crate) fn word(&self, at: usize) -> u64 {
        self.words[at]
    }

    /// Whether records have the words of [`record::TIMED`].
    pub(crate) fn has_timed_messages(&self) -> bool {
        self.record_words >= record::LANE_BYTES
    }

    /// A text of the header.
    pub(crate) fn text(&self, at: usize, words: usize) -> String {
        text(&self.words[at..at + words])
    }

    /// The records that have or had an end, each with its number.
    pub(crate) fn records(&self) -> impl Iterator<Item = (usize, &[u64])> {
        let count = self.words[header::RECORDS] as usize;
        let all =
            self.words[self.header_words..].chunks_exact(self.record_words).take(count).enumerate();
        all.filter(|(_, words)| matches!(words[record::STATE] & 0xff, OPEN | CLOSED))
    }

    /// Process id.
    pub(crate) fn pid(&self) -> u64 {
        self.word(header::PID)
    }

    /// Host name.
    pub(crate) fn host(&self) -> String {
        self.text(header::HOST, header::HOST_WORDS)
    }

    /// The process's rank: its launcher's word, or else what its sends tell.
    pub(crate) fn rank(&self) -> Option<u64> {
        let own = Some(self.word(header::OWN_RANK)).filter(|rank| *rank != SEVERAL);
        [Some(self.word(header::LABEL)), own]
            .into_iter()
            .flatten()
            .find_map(|rank| rank.checked_sub(1))
    }
}

/// What is in the file, which was opened without waiting for a writer. It is copied whole, and not
/// mapped: another process could cut it short.
///
/// # Errors
/// The text says why it cannot be read or cannot be one of Ferrite's.
pub(crate) fn whole(file: &File) -> Result<Vec<u8>, String> {
    if !file.metadata().map_err(|e| e.to_string())?.is_file() {
        return Err("not a regular file".into());
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|e| e.to_string())?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(format!("more than {MAX_BYTES} bytes"));
    }
    Ok(bytes)
}

/// The text in these words: what cannot be printed is replaced.
pub(crate) fn text(words: &[u64]) -> String {
    let bytes: Vec<u8> =
        words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The names of a sender's stages and of a receiver's.
pub(crate) const STAGES: [[&str; record::STAGES]; 2] =
    [["gpu", "cts", "wire"], ["announce", "data", "consume"]];

/// Times by bucket.
pub(crate) type Buckets = [u32; BUCKETS];

/// The end at a moment.
#[derive(Debug, Clone)]
pub(crate) struct End {
    /// Number of its record.
    pub(crate) number: usize,
    /// Changes when the record is given to another end.
    pub(crate) generation: u64,
    /// Whether the connection stands.
    pub(crate) is_open: bool,
    /// Whether it is the sender.
    pub(crate) is_sender: bool,
    /// The device.
    pub(crate) device: String,
    /// Host, process and rank of the peer.
    pub(crate) peer: Peer,
    /// This end's rank, as its messages tell it.
    pub(crate) own_rank: Option<u64>,
    /// The counters: the first words of the record.
    pub(crate) counters: [u64; record::COUNTERS],
    /// Whether a message waits for its clear-to-send.
    pub(crate) is_refused: bool,
    /// For how long something has been outstanding without any progress, in nanoseconds; 0: for
    /// less than a second.
    pub(crate) stall: u64,
    /// The longest such time.
    pub(crate) longest_stall: u64,
    /// Since when the connection has been recovering, in nanoseconds since 1970, and the attempts
    /// since then.
    pub(crate) recovering: Option<(u64, u64)>,
    /// Names of the rails, and the bytes that a sender has given to each, if there are several.
    pub(crate) rails: Vec<(String, u64)>,
    /// Numbers of the queue pairs.
    pub(crate) queue_pairs: Vec<u32>,
    /// The bytes that a sender has given to each queue pair, if they are lanes.
    pub(crate) lanes: Vec<u64>,
    /// The times of each stage.
    pub(crate) stages: [Buckets; record::STAGES],
    /// The longest time of each stage, in nanoseconds.
    pub(crate) longest: [u64; record::STAGES],
    /// NCCL's number of the communicator that the connection is for; 0: it is not known.
    pub(crate) communicator: u64,
    /// The operation of NCCL that the outstanding messages are of, and the name of its
    /// communicator, which may be empty.
    pub(crate) operation: Option<(Call, String)>,
}

/// The other end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Host name.
    pub(crate) host: String,
    /// Process id.
    pub(crate) pid: u64,
    /// Its launcher's word, or else what messages tell.
    pub(crate) rank: Option<u64>,
}

impl End {
    /// The end whose record has this number and these words.
    pub(crate) fn new(number: usize, words: &[u64]) -> Self {
        let of = |at: usize| words[at];
        let counters = std::array::from_fn(of);
        let rank = [record::PEER_LABEL, record::PEER_RANK]
            .into_iter()
            .find_map(|at| of(at).checked_sub(1));
        let rails = (0..of(record::RAIL_COUNT).min(record::RAILS as u64) as usize).map(|rail| {
            let name = &words[record::RAIL_NAMES + rail * record::RAIL_NAME_WORDS..]
                [..record::RAIL_NAME_WORDS];
            (text(name), of(record::RAIL_BYTES + rail))
        });
        let numbers = words[record::QPS..][..record::QPS_WORDS]
            .iter()
            .flat_map(|word| [*word as u32, (word >> 32) as u32]);
        Self {
            number,
            generation: of(record::STATE) >> 8,
            is_open: of(record::STATE) & 0xff == OPEN,
            is_sender: of(record::DIRECTION) == SENDER,
            device: text(&words[record::DEVICE..][..record::DEVICE_WORDS]),
            peer: Peer {
                host: text(&words[record::PEER_HOST..][..record::PEER_HOST_WORDS]),
                pid: of(record::PEER_PID),
                rank,
            },
            own_rank: of(record::OWN_RANK).checked_sub(1),
            counters,
            is_refused: of(record::REFUSED_AT) == of(record::BEGUN),
            stall: of(record::STALL),
            longest_stall: of(record::LONGEST_STALL),
            recovering: Some((of(record::RECOVERING), of(record::ATTEMPTS)))
                .filter(|(since, _)| *since != 0),
            rails: rails.collect(),
            queue_pairs: numbers
                .take(of(record::QP_COUNT).min(2 * record::QPS_WORDS as u64) as usize)
                .collect(),
            lanes: lanes(words),
            stages: std::array::from_fn(|stage| buckets(words, stage)),
            longest: std::array::from_fn(|stage| of(record::LONGEST + stage)),
            communicator: of(record::COMMUNICATOR),
            operation: Call::from_bits(of(record::OPERATION)).map(|call| {
                (call, text(&words[record::COMMUNICATOR_NAME..][..record::COMMUNICATOR_NAME_WORDS]))
            }),
        }
    }

    /// Messages that are under way.
    pub(crate) fn outstanding(&self) -> u64 {
        self.counters[record::BEGUN].saturating_sub(self.counters[record::DONE])
    }

    /// The names of its stages.
    pub(crate) fn stage_names(&self) -> [&'static str; record::STAGES] {
        STAGES[usize::from(!self.is_sender)]
    }
}

/// The bytes of each lane; none of a file of an older minor layout, or where queue pairs are no
/// lanes.
fn lanes(words: &[u64]) -> Vec<u64> {
    let count = words[record::QP_COUNT].min(record::LANES as u64) as usize;
    let bytes = words.get(record::LANE_BYTES..record::LANE_BYTES + count).unwrap_or_default();
    if bytes.iter().all(|bytes| *bytes == 0) { Vec::new() } else { bytes.to_vec() }
}

fn buckets(words: &[u64], stage: usize) -> Buckets {
    let words = &words[record::HISTOGRAMS + stage * histogram::WORDS..][..histogram::WORDS];
    std::array::from_fn(|bucket| (words[bucket / 2] >> (32 * (bucket % 2))) as u32)
}

/// The time in nanoseconds that a share of `quantile` of the samples does not exceed: the middle of
/// its bucket. `None`: there are too few samples to tell.
pub(crate) fn quantile(buckets: &Buckets, quantile: f64) -> Option<f64> {
    let total: u64 = buckets.iter().map(|count| u64::from(*count)).sum();
    // Of 100 samples, one is above the 99th percentile.
    if (total as f64) * (1.0 - quantile) < 1.0 {
        return None;
    }
    let wanted = (total as f64 * quantile).ceil() as u64;
    let mut seen = 0;
    let bucket = buckets.iter().position(|count| {
        seen += u64::from(*count);
        seen >= wanted
    })?;
    Some((lower_bound(bucket) as f64 * lower_bound(bucket + 1) as f64).sqrt())
}

/// All processes at a moment.
#[derive(Debug)]
pub(crate) struct Processes {
    /// When they were looked at.
    pub(crate) at: Instant,
    /// The living ones, by file.
    pub(crate) living: BTreeMap<PathBuf, Process>,
    /// The dead ones' files.
    pub(crate) dead: Vec<PathBuf>,
    /// Files that cannot be read, and why.
    pub(crate) unreadable: Vec<(PathBuf, String)>,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Its header.
    pub(crate) file: StatsFile,
    /// Its ends, open and closed.
    pub(crate) ends: Vec<End>,
}

impl Processes {
    /// Reads the files of `folder`. One that vanishes meanwhile is none.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn read(folder: &Path) -> std::io::Result<Self> {
        let at = Instant::now();
        let (mut living, mut dead, mut unreadable) = (BTreeMap::new(), Vec::new(), Vec::new());
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FILE_PREFIX))
            {
                continue;
            }
            match StatsFile::read(&path) {
                Ok(file) if file.is_alive => {
                    let ends =
                        file.records().map(|(number, words)| End::new(number, words)).collect();
                    living.insert(path, Process { file, ends });
                }
                Ok(_) => dead.push(path),
                Err(_) if !path.exists() => {}
                Err(why) => unreadable.push((path, why)),
            }
        }
        dead.sort();
        unreadable.sort();
        Ok(Self { at, living, dead, unreadable })
    }

    /// The process whose end is asked for, and the end.
    pub(crate) fn end(&self, path: &Path, number: usize, generation: u64) -> Option<&End> {
        let ends = &self.living.get(path)?.ends;
        ends.iter().find(|end| end.number == number && end.generation == generation)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use nccl_net::inspect::stats::layout::{CHUNK_RECORDS, LAYOUT_MINOR, SENDER, text_words};

    use super::*;

    /// A file of 64 records, of which the first is that of a sender to a process on n-0412.
    pub(crate) fn example() -> Vec<u64> {
        let mut words = vec![0; HEADER_WORDS + CHUNK_RECORDS * RECORD_WORDS];
        for (at, value) in [
            (header::MAGIC, MAGIC),
            (header::LAYOUT, LAYOUT_MAJOR << 32 | LAYOUT_MINOR),
            (header::HEADER_BYTES, HEADER_WORDS as u64 * 8),
            (header::RECORD_BYTES, RECORD_WORDS as u64 * 8),
            (header::RECORDS, CHUNK_RECORDS as u64),
            (header::PID, 815),
            (header::LABEL, 7),
            (header::SAMPLE, 64),
        ] {
            words[at] = value;
        }
        put(&mut words[header::HOST..][..header::HOST_WORDS], "n-0411");
        let end = &mut words[HEADER_WORDS..][..RECORD_WORDS];
        for (at, value) in [
            (record::STATE, 0x100 | OPEN),
            (record::DIRECTION, SENDER),
            (record::PEER_PID, 3021),
            (record::PEER_LABEL, 119),
            (record::REFUSED_AT, u64::MAX),
            (record::RAIL_COUNT, 1),
        ] {
            end[at] = value;
        }
        put(&mut end[record::DEVICE..][..record::DEVICE_WORDS], "mlx5_3");
        put(&mut end[record::PEER_HOST..][..record::PEER_HOST_WORDS], "n-0412");
        words
    }

    fn put(words: &mut [u64], text: &str) {
        let count = words.len();
        words.iter_mut().zip(text_words(text, count)).for_each(|(word, value)| *word = value);
    }

    pub(crate) fn bytes(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_ne_bytes()).collect()
    }

    pub(crate) fn parsed(words: &[u64]) -> StatsFile {
        StatsFile::parse(&bytes(words)).expect("it is valid")
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let file = parsed(&example());
        assert_eq!((file.pid(), file.host().as_str(), file.rank()), (815, "n-0411", Some(6)));
        assert_eq!(
            file.records().map(|(number, _)| number).collect::<Vec<_>>(),
            [0],
            "the others are free"
        );
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_a_reason() {
        let changed = |at: usize, value: u64| {
            let mut words = example();
            words[at] = value;
            StatsFile::parse(&bytes(&words)).expect_err("refused")
        };
        assert!(changed(header::MAGIC, 0).contains("empty"));
        assert!(changed(header::MAGIC, 5).contains("not a file of Ferrite's"));
        assert!(changed(header::LAYOUT, 0).contains("layout 0.0, of an older Ferrite"));
        assert!(changed(header::LAYOUT, 9 << 32).contains("layout 9.0, of a newer Ferrite"));
        for bytes in [0, 7, 8, 2040, 2049, u64::MAX, 1 << 40] {
            assert!(changed(header::RECORD_BYTES, bytes).contains("impossible"), "{bytes}");
            assert!(changed(header::HEADER_BYTES, bytes).contains("impossible"), "{bytes}");
        }
        assert!(
            changed(header::RECORDS, 65)
                .contains("cut: 65 records are announced, and there are 64")
        );
        assert!(changed(header::RECORDS, u64::MAX).contains("cut"));
        let whole = bytes(&example());
        for length in 0..200 {
            assert!(StatsFile::parse(&whole[..whole.len() * length / 200]).is_err(), "{length}");
        }
    }

    #[test]
    fn a_later_minor_layout_with_longer_records_is_read() {
        let mut words = example();
        words[header::LAYOUT] += 7;
        words[header::RECORD_BYTES] += 512;
        words[header::RECORDS] = 1;
        assert_eq!(parsed(&words).records().count(), 1);
    }

    #[test]
    fn an_older_minor_layout_with_shorter_records_is_read() {
        let mut words = example();
        words[header::LAYOUT] = LAYOUT_MAJOR << 32 | 1;
        words[header::RECORD_BYTES] = FIRST_RECORD_WORDS as u64 * 8;
        words.truncate(HEADER_WORDS + CHUNK_RECORDS * FIRST_RECORD_WORDS);
        let file = parsed(&words);
        assert_eq!(
            file.records().map(|(_, words)| words.len()).collect::<Vec<_>>(),
            [FIRST_RECORD_WORDS]
        );
    }

    #[test]
    fn any_words_are_read_or_refused() {
        let mut random = fastrand::Rng::with_seed(5);
        for _ in 0..300 {
            let mut words = example();
            for _ in 0..random.usize(1..40) {
                let at = random.usize(1..HEADER_WORDS + RECORD_WORDS);
                words[at] = [random.u64(..), 0, 1, u64::MAX][random.usize(..4)];
            }
            if let Ok(file) = StatsFile::parse(&bytes(&words)) {
                let ends: Vec<_> =
                    file.records().map(|(number, words)| End::new(number, words)).collect();
                assert!(ends.len() <= CHUNK_RECORDS);
            }
        }
    }

    #[test]
    fn quantiles_need_enough_samples_and_are_in_the_middle_of_a_bucket() {
        let mut buckets = [0; BUCKETS];
        assert_eq!(quantile(&buckets, 0.5), None);
        buckets[histogram::bucket_of(1000)] = 98;
        buckets[histogram::bucket_of(1_000_000)] = 1;
        assert_eq!(quantile(&buckets, 0.99), None, "99 samples");
        buckets[histogram::bucket_of(1_000_000)] = 2;
        let near = |found: Option<f64>, ns: f64| {
            found.is_some_and(|found| (found / ns - 1.0).abs() < 0.125)
        };
        assert!(near(quantile(&buckets, 0.5), 1000.0), "{:?}", quantile(&buckets, 0.5));
        assert!(near(quantile(&buckets, 0.99), 1e6), "{:?}", quantile(&buckets, 0.99));
    }
}
