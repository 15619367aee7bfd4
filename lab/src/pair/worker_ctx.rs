//! One process of a pair: its rank, its socket to the process that started it, its socket to its
//! peer.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::nccl::abi;
use crate::system::environments::Environments;
use crate::system::{host, output};
use crate::transport::buffer::Buffer;
use crate::transport::comm::{RecvComm, SendComm};
use crate::transport::deadline::Deadline;
use crate::transport::instance::Transport;
use crate::transport::listener;
use crate::transport::listener::Handle;

/// What the sides are called, by their places.
pub(crate) const LABELS: [u8; 2] = *b"AB";

/// The exit code of a worker process that could not start.
const NOT_STARTED: i32 = 2;

/// `rank:control descriptor:peer descriptor:silence in ms:cpu or -:descriptor of its pages or -`
pub(crate) const WORKER_VARIABLE: &str = "FERRITE_WORKER";

/// What a worker process has: its rank, and sockets to its parent and to its peer.
#[derive(Debug)]
pub struct WorkerCtx {
    rank: usize,
    cpu: Option<usize>,
    silence: Duration,
    control: BufReader<UnixStream>,
    /// Or a TCP socket, where the peer is on another host: what is called here does for both.
    peer: UnixStream,
    pages: Option<PageAllocator>,
    environments: Option<Environments>,
}

impl WorkerCtx {
    /// The context that the environment describes; `None` in a process that was not started as one
    /// of a pair. To be called once: it owns the descriptors. Pins the process and raises its
    /// limit of open files.
    ///
    /// # Errors
    /// [`Error::Usage`] if the description is not understood, [`Error::Io`] if the process cannot
    /// be pinned.
    pub fn from_environment() -> Result<Option<Self>> {
        let Some(text) = std::env::var_os(WORKER_VARIABLE) else {
            return Ok(None);
        };
        let worker = text.to_str().and_then(StartInfo::parse).ok_or_else(|| {
            Error::Usage(format!(
                "{WORKER_VARIABLE} does not describe a worker process: {}",
                text.display()
            ))
        })?;
        // SAFETY: the process that started this one made both descriptors for this process alone
        // and let them survive exec; take() is called once.
        let (control, peer) = unsafe {
            (
                UnixStream::from(OwnedFd::from_raw_fd(worker.control)),
                UnixStream::from(OwnedFd::from_raw_fd(worker.peer)),
            )
        };
        peer.set_read_timeout(Some(worker.silence))
            .map_err(|source| Error::io("cannot set a timeout", source))?;
        host::raise_open_files();
        host::line_buffered_stdout();
        if let Some(cpu) = worker.cpu {
            host::pin(cpu)?;
        }
        // SAFETY: as above.
        let pages = worker.pages.map(|pages| unsafe { OwnedFd::from_raw_fd(pages) });
        let pages = pages.map(PageAllocator::new).transpose()?;
        let control = BufReader::new(control);
        Ok(Some(Self {
            rank: worker.rank,
            cpu: worker.cpu,
            silence: worker.silence,
            control,
            peer,
            pages,
            environments: None,
        }))
    }

    /// 0 or 1.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The CPU this process is pinned to.
    pub fn cpu(&self) -> Option<usize> {
        self.cpu
    }

    /// Memory for a transport to work on, in the pages that all pairs of a run use, if there are
    /// any; otherwise fresh.
    ///
    /// # Errors
    /// [`Error::Io`] if the system has no memory left.
    pub fn buffer(&mut self, len: usize) -> Result<Buffer> {
        self.pages.as_mut().map_or_else(|| Buffer::new(len), |pages| pages.buffer(len))
    }

    /// Gives each side its own variables. To be called before the first transport is loaded, so
    /// while this process has one thread.
    ///
    /// # Errors
    /// [`Error::Usage`] if a variable has a zero byte.
    pub(crate) fn separate(&mut self, variables: [&[(String, String)]; 2]) -> Result<()> {
        self.environments = Some(Environments::new(&variables)?);
        Ok(())
    }

    /// To be called before the functions of a side: the environment becomes that of this side, and
    /// the parent sees which one it is if this process fails. No system call, since blocks are
    /// timed between two of these.
    ///
    /// # Errors
    /// [`Error::Misuse`] never.
    pub(crate) fn enter_side(&mut self, place: usize) -> Result<()> {
        if let Some(environments) = &mut self.environments {
            environments.enter(place);
        }
        self.pages.as_ref().map_or(Ok(()), |pages| pages.board.write(0, &[LABELS[place]]))
    }

    /// A deadline for one step that polls, a little shorter than the pair's limit of silence: so
    /// that this process reports what it waited for before its parent ends it.
    pub fn deadline(&self, what: &'static str) -> Deadline {
        Deadline::new(what, self.silence * 4 / 5)
    }

    /// The socket to the peer, for another use.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be had twice.
    pub(crate) fn peer(&self) -> Result<OwnedFd> {
        self.peer
            .try_clone()
            .map(OwnedFd::from)
            .map_err(|e| Error::io("cannot have a socket twice", e))
    }

    /// Sends a message to the parent.
    ///
    /// # Errors
    /// [`Error::Io`] if it is gone.
    pub fn send_message(&mut self, message: &WorkerMessage) -> Result<()> {
        let mut line = serde_json::to_string(message)?;
        line.push('\n');
        self.control
            .get_mut()
            .write_all(line.as_bytes())
            .map_err(|source| Error::io("the parent process is gone", source))
    }

    /// Tells the parent what this process does next.
    ///
    /// # Errors
    /// As [`WorkerCtx::send_message`].
    pub fn begin(&mut self, what: impl Into<String>) -> Result<()> {
        self.send_message(&WorkerMessage::Begin { what: what.into() })
    }

    /// Hands the parent a value.
    ///
    /// # Errors
    /// As [`WorkerCtx::send_message`].
    pub fn report<T: Serialize>(&mut self, value: &T) -> Result<()> {
        let value = serde_json::to_value(value)?;
        self.send_message(&WorkerMessage::Value { value })
    }

    /// The next value that the parent sends.
    ///
    /// # Errors
    /// [`Error::Io`] if it is gone, [`Error::Unreadable`] if the value is not the one expected.
    pub fn receive_job<T: DeserializeOwned>(&mut self) -> Result<T> {
        let mut line = String::new();
        self.control
            .read_line(&mut line)
            .map_err(|source| Error::io("the parent process is gone", source))?;
        Ok(serde_json::from_str(&line)?)
    }

    /// Sends bytes to the peer and receives as many from it.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub fn exchange(&mut self, mine: &[u8]) -> Result<Vec<u8>> {
        self.send_bytes(mine)?;
        self.receive_bytes(mine.len())
    }

    /// Sends bytes to the peer. Few enough (some KiB) that both may do so at once.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub fn send_bytes(&mut self, mine: &[u8]) -> Result<()> {
        self.peer.write_all(mine).map_err(peer_gone)
    }

    /// Receives exactly `len` bytes from the peer.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub fn receive_bytes(&mut self, len: usize) -> Result<Vec<u8>> {
        let mut theirs = vec![0; len];
        self.peer.read_exact(&mut theirs).map_err(peer_gone)?;
        Ok(theirs)
    }

    /// Sends a number to the peer and receives its number.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub fn swap(&mut self, mine: u64) -> Result<u64> {
        let mut theirs = [0; 8];
        self.peer.write_all(&mine.to_le_bytes()).map_err(peer_gone)?;
        self.peer.read_exact(&mut theirs).map_err(peer_gone)?;
        Ok(u64::from_le_bytes(theirs))
    }

    /// Returns when both processes have called it.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub fn barrier(&mut self) -> Result<()> {
        self.swap(0).map(|_| ())
    }

    /// Rank 0's number, known to both.
    ///
    /// # Errors
    /// [`Error::PeerGone`].
    pub fn agree(&mut self, mine: u64) -> Result<u64> {
        let theirs = self.swap(mine)?;
        Ok(if self.rank == 0 { mine } else { theirs })
    }

    /// What the hidden subcommand `name` does in a worker process: `work`, with the context that
    /// the environment describes. The exit code.
    pub(crate) fn main(name: &str, work: impl FnOnce(&mut Self) -> Result<()>) -> i32 {
        match Self::from_environment() {
            Ok(Some(worker)) => return worker.run(work),
            Ok(None) => output::write_stderr(format_args!(
                "`{name}` is how ferrite starts itself; it is no command of its own"
            )),
            Err(problem) => output::write_stderr(format_args!("{problem}")),
        }
        NOT_STARTED
    }

    /// Does the work and reports to the parent how it ended; the process's exit code.
    pub fn run(mut self, work: impl FnOnce(&mut Self) -> Result<()>) -> i32 {
        let outcome = work(&mut self);
        let message = match &outcome {
            Ok(()) => WorkerMessage::Done,
            Err(problem) => WorkerMessage::Failed {
                message: problem.to_string(),
                // Both may be what the other process's failure leads to.
                peer_gone: matches!(
                    problem,
                    Error::PeerGone | Error::Call { code: abi::ncclRemoteError, .. }
                ),
                wrong: problem.is_wrong(),
            },
        };
        if let Err(problem) = self.send_message(&message) {
            output::write_stderr(format_args!("{problem}"));
        }
        i32::from(outcome.is_err())
    }
}

/// A message from a worker process to its parent: one JSON object a line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum WorkerMessage {
    /// It is about to do this.
    Begin {
        /// In words, for the progress line and for a report of a hang.
        what: String,
    },
    /// It has this to report.
    Value {
        /// Whatever the two sides agreed upon.
        value: Value,
    },
    /// It cannot continue.
    Failed {
        /// Why.
        message: String,
        /// The reason lies with the peer, which has a better one.
        peer_gone: bool,
        /// The transport did the wrong thing, see [`Error::is_wrong`].
        wrong: bool,
    },
    /// It is done.
    Done,
}

/// The contents of [`WORKER_VARIABLE`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StartInfo {
    pub(crate) rank: usize,
    pub(crate) control: RawFd,
    pub(crate) peer: RawFd,
    pub(crate) silence: Duration,
    pub(crate) cpu: Option<usize>,
    pub(crate) pages: Option<RawFd>,
}

impl StartInfo {
    fn parse(text: &str) -> Option<Self> {
        let words: Vec<&str> = text.split(':').collect();
        let [rank, control, peer, silence, cpu, pages] = words[..] else {
            return None;
        };
        Some(Self {
            rank: rank.parse().ok().filter(|rank| *rank < 2)?,
            control: control.parse().ok()?,
            peer: peer.parse().ok()?,
            silence: Duration::from_millis(silence.parse().ok()?),
            cpu: optional(cpu)?,
            pages: optional(pages)?,
        })
    }

    pub(crate) fn print(&self) -> String {
        let Self { rank, control, peer, silence, cpu, pages } = self;
        let word = |value: Option<String>| value.unwrap_or_else(|| "-".into());
        let (cpu, pages) = (word(cpu.map(|n| n.to_string())), word(pages.map(|n| n.to_string())));
        format!("{rank}:{control}:{peer}:{}:{cpu}:{pages}", silence.as_millis())
    }
}

/// A number, or nothing for `-`; `None` for anything else.
fn optional<T: std::str::FromStr>(word: &str) -> Option<Option<T>> {
    if word == "-" { Some(None) } else { word.parse().ok().map(Some) }
}

fn peer_gone(problem: std::io::Error) -> Error {
    log::debug!("the socket to the peer: {problem}");
    Error::PeerGone
}

/// A connection in each direction between the two processes.
#[derive(Debug)]
pub struct PeerConn {
    /// Towards the peer.
    pub send: SendComm,
    /// From the peer.
    pub recv: RecvComm,
}

impl PeerConn {
    /// Connects both ways; both processes call it.
    ///
    /// # Errors
    /// Those of the transport's calls; [`Error::Stalled`], [`Error::PeerGone`].
    pub fn open(worker: &mut WorkerCtx, transport: &Transport, device: usize) -> Result<Self> {
        let (handle, mut listener) = transport.listen(device)?;
        let mut theirs = Handle([0; _]);
        theirs.0.copy_from_slice(&worker.exchange(&handle.0)?);
        let mut deadline = worker.deadline("connecting both ways");
        let (send, recv) = listener::connect_and_accept(
            transport,
            device,
            &mut theirs,
            &mut listener,
            &mut deadline,
            || (),
        )?;
        listener.close()?;
        Ok(Self { send, recv })
    }

    /// Closes both directions; both processes call it, since a transport may need the peer.
    ///
    /// # Errors
    /// Those of the transport's calls; [`Error::Misuse`] while memory is registered.
    pub fn close(self) -> Result<()> {
        let sent = self.send.close();
        self.recv.close()?;
        sent
    }
}

// Memory that outlives the processes that use it, so that all pairs of a run move data in the same
// pages.
//
// Where a buffer's pages lie in physical memory decides which of them share places in a cache. A
// process that maps fresh memory gets what the one before it gave back, so its speed depends on who
// ran before it. With the same pages for all, that is the same for all.

/// The pages of one rank, as the process that starts the pairs holds them: an anonymous file in
/// memory, which is empty until a process of the pair takes some.
#[derive(Debug, Clone)]
pub struct Pages(Arc<OwnedFd>);

impl Pages {
    /// Of both ranks.
    ///
    /// # Errors
    /// [`Error::Io`] if the system gives none.
    pub fn of_both_ranks() -> Result<[Self; 2]> {
        Ok([Self::new()?, Self::new()?])
    }

    fn new() -> Result<Self> {
        let name = c"ferrite-pages";
        // SAFETY: memfd_create, which glibc has from 2.27 on only: the name is a C string; the
        // result is a descriptor of this process, or -1.
        let descriptor =
            unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), libc::MFD_CLOEXEC) };
        let descriptor = RawFd::try_from(descriptor).unwrap_or(-1);
        if descriptor < 0 {
            return Err(Error::last_os("cannot make a file in memory"));
        }
        // SAFETY: the descriptor has just been made, and nothing else owns it.
        Ok(Self(Arc::new(unsafe { OwnedFd::from_raw_fd(descriptor) })))
    }

    /// The side that the process of this rank called last, if it has called any.
    pub(crate) fn side_shown(&self) -> Option<char> {
        let mut label = [0];
        let file = File::from(self.0.try_clone().ok()?);
        file.read_exact_at(&mut label, 0).ok()?;
        (label[0] != 0).then_some(char::from(label[0]))
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// The pages of one rank, inside the process that uses them.
#[derive(Debug)]
pub(crate) struct PageAllocator {
    file: File,
    /// The first page: what the parent reads.
    board: Buffer,
    /// Bytes that buffers of this process lie in.
    taken: u64,
}

const PAGE: u64 = 4096;

impl PageAllocator {
    pub(crate) fn new(descriptor: OwnedFd) -> Result<Self> {
        let file = File::from(descriptor);
        grow(&file, PAGE)?;
        let board = Buffer::in_file(&file, 0, 1)?;
        Ok(Self { file, board, taken: PAGE })
    }

    /// A buffer in pages that no other buffer of this process lies in: the same pages for the same
    /// calls in the same order. They hold what was left in them.
    pub(crate) fn buffer(&mut self, len: usize) -> Result<Buffer> {
        let start = self.taken;
        let end = start + len.max(1).next_multiple_of(PAGE as usize) as u64;
        grow(&self.file, end)?;
        self.taken = end;
        Buffer::in_file(&self.file, start, len)
    }
}

/// Extends the file to `end` if it is shorter.
fn grow(file: &File, end: u64) -> Result<()> {
    let failed = |e| Error::io(format!("cannot make room for {end} bytes in memory"), e);
    let size = file.metadata().map_err(failed)?.len();
    if size < end { file.set_len(end).map_err(failed) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_description_survives_the_environment() {
        for (cpu, pages) in [(None, Some(11)), (Some(7), None)] {
            let worker = StartInfo {
                rank: 1,
                control: 5,
                peer: 9,
                silence: Duration::from_millis(1500),
                cpu,
                pages,
            };
            assert_eq!(StartInfo::parse(&worker.print()), Some(worker));
        }
        for wrong in
            ["", "2:3:4:5:-:-", "0:3:4", "0:x:4:5:-:-", "0:1:2:3:-", "0:1:2:3:-:-:9", "0:1:2:3:4:x"]
        {
            assert_eq!(StartInfo::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn another_user_finds_the_same_pages_in_the_same_order() {
        let [pages, other] = Pages::of_both_ranks().expect("memory");
        let share = |pages: &Pages| {
            PageAllocator::new(pages.0.try_clone().expect("a descriptor")).expect("memory")
        };
        let (mut first, mut second) = (share(&pages), share(&pages));
        let buffers =
            |share: &mut PageAllocator| [5000, 1].map(|len| share.buffer(len).expect("memory"));
        let [mine, beside] = buffers(&mut first);
        let [theirs, _] = buffers(&mut second);
        mine.write(4999, b"x").expect("inside");
        beside.write(0, b"y").expect("inside");
        assert_eq!(theirs.read(4999, 1).expect("inside"), b"x");
        let [unrelated, _] = buffers(&mut share(&other));
        assert_eq!(unrelated.read(4999, 1).expect("inside"), [0]);
    }
}
