//! One file of statistics as it is at a moment.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nccl_net::inspect::stats::layout::{
    CLOSED, FIRST_RECORD_WORDS, HEADER_WORDS, LAYOUT_MAJOR, MAGIC, MAX_RECORDS, OPEN, RECORD_WORDS, SEVERAL, header,
    record,
};

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
        let file = File::options().read(true).custom_flags(flags).open(path).map_err(|e| e.to_string())?;
        let owner = file.metadata().map_err(|e| e.to_string())?.uid();
        // SAFETY: no arguments.
        let own = unsafe { libc::geteuid() };
        if owner != own && owner != 0 && own != 0 {
            return Err(format!("it belongs to user {owner}, and this is user {own}"));
        }
        Ok(Self { is_alive: holder(&file).is_some(), ..Self::parse(&whole(&file)?)? })
    }

    /// The file with these bytes, of a process that is not known to live.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let words: Vec<u64> =
            bytes.chunks_exact(8).map(|word| u64::from_ne_bytes(word.try_into().unwrap_or_default())).collect();
        let of = |at: usize| words.get(at).copied().unwrap_or(0);
        match of(header::MAGIC) {
            MAGIC => {}
            0 => return Err("empty: its process has just begun, or died at once".into()),
            _ => return Err("not a file of Ferrite's statistics".into()),
        }
        let (major, minor) = (of(header::LAYOUT) >> 32, of(header::LAYOUT) & 0xffff_ffff);
        if major != LAYOUT_MAJOR {
            let which = if major < LAYOUT_MAJOR { "an older" } else { "a newer" };
            return Err(format!("layout {major}.{minor}, of {which} Ferrite; this program reads {LAYOUT_MAJOR}.*"));
        }
        let (header_bytes, record_bytes) = (of(header::HEADER_BYTES), of(header::RECORD_BYTES));
        let is_possible =
            |bytes: u64, least: usize| bytes.is_multiple_of(8) && (least as u64 * 8..=1 << 20).contains(&bytes);
        if !is_possible(header_bytes, HEADER_WORDS) || !is_possible(record_bytes, FIRST_RECORD_WORDS) {
            return Err(format!("impossible: a header of {header_bytes} bytes and records of {record_bytes}"));
        }
        let (header_words, record_words) = (header_bytes as usize / 8, record_bytes as usize / 8);
        let there = words.len().saturating_sub(header_words) / record_words;
        if words.len() < header_words || of(header::RECORDS) > there as u64 {
            return Err(format!("cut: {} records are announced, and there are {there}", of(header::RECORDS)));
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
        let all = self.words[self.header_words..].chunks_exact(self.record_words).take(count).enumerate();
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
        [Some(self.word(header::LABEL)), own].into_iter().flatten().find_map(|rank| rank.checked_sub(1))
    }
}

/// What is in the file, which was opened without waiting for a writer. It is copied whole, and not mapped: another process could cut it
/// short.
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
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The process that has the lock on the first byte, by its number in this process's namespace; 0: it is not in that. `None`: nobody has it.
pub(crate) fn holder(file: &File) -> Option<u32> {
    // SAFETY: plain numbers, for which 0 is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence, lock.l_len) = (libc::F_WRLCK as libc::c_short, libc::SEEK_SET as libc::c_short, 1);
    // SAFETY: a valid descriptor and a valid lock.
    let asked = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    let is_locked = asked == 0 && lock.l_type != libc::F_UNLCK as libc::c_short;
    is_locked.then(|| u32::try_from(lock.l_pid).unwrap_or(0))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use nccl_net::inspect::stats::layout::{CHUNK_RECORDS, LAYOUT_MINOR, SENDER, text_words};

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
        assert_eq!(file.records().map(|(number, _)| number).collect::<Vec<_>>(), [0], "the others are free");
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
        assert!(changed(header::RECORDS, 65).contains("cut: 65 records are announced, and there are 64"));
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
        assert_eq!(file.records().map(|(_, words)| words.len()).collect::<Vec<_>>(), [FIRST_RECORD_WORDS]);
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
                    file.records().map(|(number, words)| super::super::end::End::new(number, words)).collect();
                assert!(ends.len() <= CHUNK_RECORDS);
            }
        }
    }
}
