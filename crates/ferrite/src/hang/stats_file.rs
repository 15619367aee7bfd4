//! The connections in a statistics file. The process may be dead: then they are as it left them.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::top::stats_file::{self, holder};
use lab::error::{Error, Result};
use nccl_net::inspect::operation::Call;
use nccl_net::inspect::stats::layout::{
    FILE_PREFIX, FIRST_RECORD_WORDS, HEADER_WORDS, LAYOUT_MAJOR, MAGIC, MAX_RECORDS, OPEN, SENDER, header, record,
};

/// One end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Name of the device.
    pub device: String,
    /// Whether it is the sending end.
    pub sends: bool,
    /// The peer, for people.
    pub peer: String,
    /// Messages that NCCL has begun, and those that it has been told are done.
    pub begun: u64,
    /// Of these, the ones that are done.
    pub done: u64,
    /// Whether a message waits to be asked for.
    pub wants: bool,
    /// For how long nothing has moved although something is outstanding; zero: for less than a second.
    pub stall: Duration,
    /// The operation of NCCL that the outstanding messages are of, for people; empty: it is not known.
    pub operation: String,
}

impl Connection {
    /// Whether something is outstanding.
    pub fn is_waiting(&self) -> bool {
        self.begun != self.done || self.wants
    }
}

/// The file of the living process `pid` in the usual folder: the one on which it holds the lock, as the kernel tells. A file's name does not: the
/// number may have been given to another process, and anybody may make a file of that name.
pub fn of_living(pid: u32) -> Option<PathBuf> {
    living().into_iter().find(|(holder, _)| *holder == pid).map(|(_, path)| path)
}

/// The file that the dead process `pid` has left in the usual folder; the newest one if there are several.
pub fn of_dead(pid: u32) -> Option<PathBuf> {
    let prefix = format!("{FILE_PREFIX}{pid}.");
    let is_left =
        |path: &PathBuf| name(path).starts_with(&prefix) && open(path).is_ok_and(|file| holder(&file).is_none());
    let left = paths().into_iter().filter(is_left);
    left.max_by_key(|path| fs::metadata(path).and_then(|metadata| metadata.modified()).ok())
}

/// The living processes that have files in the usual folder.
pub fn processes() -> Vec<u32> {
    living().into_iter().map(|(holder, _)| holder).collect()
}

/// The files of living processes, each with its process.
fn living() -> Vec<(u32, PathBuf)> {
    let files = paths().into_iter().filter(|path| name(path).starts_with(FILE_PREFIX));
    files.filter_map(|path| Some((holder(&open(&path).ok()?).filter(|pid| *pid != 0)?, path))).collect()
}

/// Opened without waiting for a writer.
fn open(path: &Path) -> std::io::Result<File> {
    File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn paths() -> Vec<PathBuf> {
    let folder = std::env::var_os("FERRITE_STATS_DIR").filter(|folder| !folder.is_empty());
    let entries = fs::read_dir(folder.unwrap_or_else(|| "/dev/shm".into()));
    entries.map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect()).unwrap_or_default()
}

/// The open connections in the file at `path`.
///
/// # Errors
/// It cannot be read, or is no statistics file of a layout that is known.
pub fn connections(path: &Path) -> Result<Vec<Connection>> {
    let unreadable = |why: String| Error::Unreadable(format!("{}: {why}", path.display()));
    let bytes = stats_file::whole(&open(path).map_err(|e| unreadable(e.to_string()))?).map_err(unreadable)?;
    in_file(&bytes).ok_or_else(|| unreadable("no statistics file of this version".into()))
}

/// The open connections in a file with these bytes. `None`: it is no statistics file of a layout that is known.
pub(crate) fn in_file(bytes: &[u8]) -> Option<Vec<Connection>> {
    let words: Vec<_> = bytes.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes)).collect();
    let is_known = |words: &[u64]| {
        words.len() >= HEADER_WORDS
            && words[header::MAGIC] == MAGIC
            && words[header::LAYOUT] >> 32 == LAYOUT_MAJOR
            && words[header::HEADER_BYTES] == (HEADER_WORDS * 8) as u64
            && words[header::RECORD_BYTES].is_multiple_of(8)
            // Records of later minor versions are longer.
            && (FIRST_RECORD_WORDS * 8..=1 << 20).contains(&(words[header::RECORD_BYTES] as usize))
    };
    if !is_known(&words) {
        return None;
    }
    let records = words[HEADER_WORDS..].chunks_exact(words[header::RECORD_BYTES] as usize / 8).take(MAX_RECORDS);
    Some(records.filter(|words| words[record::STATE] & 0xff == OPEN).map(connection).collect())
}

fn connection(words: &[u64]) -> Connection {
    let text = |at: usize, count: usize| {
        let bytes: Vec<_> = words[at..at + count].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).chars().filter(|c| !c.is_control()).collect::<String>()
    };
    let ranks = [words[record::PEER_RANK], words[record::PEER_LABEL]];
    let rank = ranks.into_iter().find(|rank| *rank != 0).map(|rank| format!("rank {} ", rank - 1));
    let host = text(record::PEER_HOST, record::PEER_HOST_WORDS);
    let sends = words[record::DIRECTION] == SENDER;
    let name = text(record::COMMUNICATOR_NAME, record::COMMUNICATOR_NAME_WORDS);
    Connection {
        device: text(record::DEVICE, record::DEVICE_WORDS),
        sends,
        peer: format!("{}on {host} (pid {})", rank.unwrap_or_default(), words[record::PEER_PID]),
        begun: words[record::BEGUN],
        done: words[record::DONE],
        stall: Duration::from_nanos(words[record::STALL]),
        wants: sends && words[record::REFUSED_AT] == words[record::BEGUN],
        operation: match (Call::from_bits(words[record::OPERATION]), name) {
            (None, _) => String::new(),
            (Some(call), name) if name.is_empty() => call.to_string(),
            (Some(call), name) => format!("{call} of communicator {name}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nccl_net::inspect::operation::Function;
    use nccl_net::inspect::stats::layout::RECORD_WORDS;

    fn file(words: &[u64]) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        fs::write(&path, words.iter().flat_map(|word| word.to_ne_bytes()).collect::<Vec<_>>()).expect("written");
        (folder, path)
    }

    fn header_words() -> Vec<u64> {
        let mut words = vec![0; HEADER_WORDS];
        words[header::MAGIC] = MAGIC;
        words[header::LAYOUT] = LAYOUT_MAJOR << 32;
        words[header::HEADER_BYTES] = (HEADER_WORDS * 8) as u64;
        words[header::RECORD_BYTES] = (RECORD_WORDS * 8) as u64;
        words
    }

    #[test]
    fn open_connections_are_read_and_free_records_are_not() {
        let mut words = header_words();
        words.extend(vec![0; 2 * RECORD_WORDS]);
        let record = &mut words[HEADER_WORDS + RECORD_WORDS..];
        record[record::STATE] = 5 << 8 | OPEN;
        record[record::DIRECTION] = SENDER;
        (record[record::BEGUN], record[record::DONE], record[record::REFUSED_AT]) = (9, 7, u64::MAX);
        (record[record::PEER_RANK], record[record::PEER_PID]) = (4, 77);
        record[record::STALL] = 12_000_000_000;
        record[record::DEVICE] = u64::from_ne_bytes(*b"mlx5_0\0\0");
        record[record::PEER_HOST] = u64::from_ne_bytes(*b"n-0412\0\0");
        record[record::OPERATION] = Call { function: Function::AllGather, number: Some(7) }.to_bits();
        record[record::COMMUNICATOR_NAME] = u64::from_ne_bytes(*b"tp\0\0\0\0\0\0");
        let (_folder, path) = file(&words);
        let peer = "rank 3 on n-0412 (pid 77)".into();
        let operation = "AllGather number 7 of communicator tp".into();
        let device = "mlx5_0".into();
        let stall = Duration::from_secs(12);
        let expected = Connection { device, sends: true, peer, begun: 9, done: 7, wants: false, stall, operation };
        assert_eq!(connections(&path).expect("valid"), [expected]);
    }

    #[test]
    fn a_file_that_is_none_is_refused_and_one_that_is_cut_is_read_as_far_as_it_goes() {
        let mut words = header_words();
        words.extend(vec![OPEN; RECORD_WORDS - 1]);
        let (_folder, path) = file(&words);
        assert_eq!(connections(&path).expect("valid"), []);
        for at in [header::MAGIC, header::LAYOUT, header::HEADER_BYTES, header::RECORD_BYTES] {
            let mut wrong = words.clone();
            wrong[at] ^= 1 << 40;
            let (_folder, path) = file(&wrong);
            assert!(connections(&path).is_err(), "word {at}");
        }
        let (_folder, path) = file(&words[..100]);
        assert!(connections(&path).is_err());
        // A named pipe whose writer does not come.
        let (folder, _) = file(&[]);
        let pipe = folder.path().join("pipe");
        let name = std::ffi::CString::new(pipe.as_os_str().as_encoded_bytes()).expect("a path");
        // SAFETY: a valid text.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        assert!(connections(&pipe).is_err_and(|why| why.to_string().contains("not a regular file")));
    }
}
