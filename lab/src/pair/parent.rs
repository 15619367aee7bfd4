//! The parent of a pair: starts both processes, receives their messages, and says why one failed.

use std::ffi::OsString;
use std::io::Write;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::error::{Error, Result};
use crate::pair::child::{ChildProcess, LINES_KEPT, status_words};
use crate::pair::message::{WorkerMessage, to_json};
use crate::pair::setting::Setting;
use crate::system::{host, interrupt};
use crate::verbs::libibverbs::{Verbs, new_fabric_name};

/// How many of a process's last lines an error shows.
const LINES_SHOWN: usize = 12;
/// How long the other process gets to give a more precise reason after a failure.
const PEER_REASON_TIMEOUT: Duration = Duration::from_millis(700);
/// How long a process may take to end after it has closed its socket: its memory may be large, and the machine busy.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a process that has failed gets to end by itself.
const OWN_EXIT_TIMEOUT: Duration = Duration::from_millis(300);
/// How often the parent looks for an interrupt while no message comes.
const INTERRUPT_POLL: Duration = Duration::from_millis(100);

/// Two running processes. Dropping it kills them; the kernel does so if this process dies.
#[derive(Debug)]
pub struct Pair {
    children: [ChildProcess; 2],
    messages: Receiver<(usize, Option<WorkerMessage>)>,
    silence: Duration,
    verbs: Verbs,
    fabric: String,
}

/// What a pair has of the process that runs on another host.
#[derive(Debug)]
pub(crate) struct SocketsToHost {
    /// To the program that has started it there.
    pub(crate) control: TcpStream,
    /// To the process itself.
    pub(crate) peer: TcpStream,
    /// The fabric that both work on.
    pub(crate) fabric: String,
}

/// How a process of a pair is started.
struct Process<'a> {
    arguments: &'a [OsString],
    /// Its socket to the other one.
    peer: OwnedFd,
    /// It passes on what a process of another host says.
    is_stand_in: bool,
}

/// Something that a process of a pair says or does.
#[derive(Debug)]
pub(crate) enum PairEvent {
    /// A value, or that it failed.
    Said(usize, WorkerMessage),
    /// It has ended, or is about to.
    Closed(usize),
    /// Nothing within the limit.
    Nothing,
}

impl Pair {
    /// Starts `program arguments` twice.
    ///
    /// # Errors
    /// [`Error::Io`] if a process cannot be started.
    pub fn spawn(program: &Path, arguments: &[OsString], setting: &Setting) -> Result<Self> {
        let (zero, one) = UnixStream::pair().map_err(|e| Error::io("socketpair", e))?;
        let process = |peer: UnixStream| Process { arguments, peer: peer.into(), is_stand_in: false };
        Self::start(program, [process(zero), process(one)], setting, new_fabric_name())
    }

    /// Starts rank 0 as `program arguments`; rank 1 runs on another host, and `program stand_in` is a process that stands for it here.
    pub(crate) fn spawn_with_other_host(
        program: &Path,
        [arguments, stand_in]: [&[OsString]; 2],
        setting: &Setting,
        other: SocketsToHost,
    ) -> Result<Self> {
        let zero = Process { arguments, peer: other.peer.into(), is_stand_in: false };
        let one = Process { arguments: stand_in, peer: other.control.into(), is_stand_in: true };
        Self::start(program, [zero, one], setting, other.fabric)
    }

    fn start(program: &Path, [zero, one]: [Process<'_>; 2], setting: &Setting, fabric: String) -> Result<Self> {
        let (sender, messages) = channel();
        let cpus = if setting.pin { host::cpus()? } else { Vec::new() };
        let start = |rank: usize, process: Process<'_>| {
            let command = setting.command(program, process.arguments, &fabric);
            let cpu = (cpus.len() >= 2 && !process.is_stand_in).then(|| cpus[rank]);
            let pages = setting.pages.as_ref().map(|pages| &pages[rank]);
            let sender = sender.clone();
            let hear = move |message| sender.send((rank, message)).is_ok();
            ChildProcess::start(command, rank, cpu, process.peer, setting.silence, pages, hear)
        };
        Ok(Self {
            children: [start(0, zero)?, start(1, one)?],
            messages,
            silence: setting.silence,
            verbs: setting.verbs.clone(),
            fabric,
        })
    }

    /// Sends the same value to both.
    ///
    /// # Errors
    /// [`Error::Worker`] if one is gone.
    pub fn send<T: Serialize>(&mut self, value: &T) -> Result<()> {
        let mut line = to_json(value)?;
        line.push('\n');
        for rank in 0..2 {
            let sent = self.children[rank].control.write_all(line.as_bytes());
            if sent.is_err() {
                return Err(self.died(rank));
            }
        }
        Ok(())
    }

    /// Sends a value to one of them; whether it is still there.
    ///
    /// # Errors
    /// [`Error::Unreadable`] if the value is no JSON.
    pub(crate) fn send_to<T: Serialize>(&mut self, rank: usize, value: &T) -> Result<bool> {
        let mut line = to_json(value)?;
        line.push('\n');
        Ok(self.children[rank].control.write_all(line.as_bytes()).is_ok())
    }

    /// The next thing one of them reports, and its rank; `None` when both are done.
    ///
    /// # Errors
    /// [`Error::Worker`] if one failed, died or was silent for too long; [`Error::Interrupted`].
    pub fn next_message(&mut self) -> Result<Option<(usize, WorkerMessage)>> {
        loop {
            if self.children.iter().all(|child| child.done) {
                return Ok(None);
            }
            let (rank, message) = self.receive_message()?;
            match message {
                Some(WorkerMessage::Done) => self.children[rank].done = true,
                Some(WorkerMessage::Failed { message, peer_gone, wrong }) => {
                    return Err(self.failure(rank, message, peer_gone, wrong));
                }
                Some(WorkerMessage::Begin { what }) => {
                    self.children[rank].doing.clone_from(&what);
                    return Ok(Some((rank, WorkerMessage::Begin { what })));
                }
                Some(message @ WorkerMessage::Value { .. }) => return Ok(Some((rank, message))),
                None if self.children[rank].done => {}
                None => return Err(self.died(rank)),
            }
        }
    }

    /// What one of them says or does within `limit`. Unlike [`Self::next_message`] it takes the failure of a process for an event.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub(crate) fn next_event(&mut self, limit: Duration) -> Result<PairEvent> {
        let end = Instant::now() + limit;
        loop {
            interrupt::check()?;
            let left = end.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left.min(INTERRUPT_POLL)) {
                Ok((rank, Some(WorkerMessage::Done))) => self.children[rank].done = true,
                Ok((rank, Some(WorkerMessage::Begin { what }))) => self.children[rank].doing = what,
                Ok((rank, Some(message))) => return Ok(PairEvent::Said(rank, message)),
                Ok((rank, None)) => return Ok(PairEvent::Closed(rank)),
                Err(_) if left.is_zero() => return Ok(PairEvent::Nothing),
                Err(RecvTimeoutError::Timeout) => {}
                // Both have closed their sockets.
                Err(RecvTimeoutError::Disconnected) => std::thread::sleep(left.min(INTERRUPT_POLL)),
            }
        }
    }

    /// What the process of `rank` said last that it was doing.
    pub(crate) fn doing(&self, rank: usize) -> &str {
        &self.children[rank].doing
    }

    /// Kills the process of `rank`.
    pub(crate) fn kill(&mut self, rank: usize) {
        self.children[rank].stop();
    }

    /// Sends the process of `rank` a signal, unless it has ended and that has been seen.
    pub(crate) fn signal(&mut self, rank: usize, signal: i32) {
        self.children[rank].signal(signal);
    }

    /// How the process of `rank` ended, in words, once it has closed its socket.
    pub(crate) fn exit_words(&mut self, rank: usize) -> String {
        let status = self.children[rank].reap(EXIT_TIMEOUT);
        status.map_or_else(|| "it fell silent".into(), status_words)
    }

    /// The next message of either process, or `None` when one has closed its socket.
    fn receive_message(&mut self) -> Result<(usize, Option<WorkerMessage>)> {
        let end = Instant::now() + self.silence;
        loop {
            interrupt::check()?;
            let left = end.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left.min(INTERRUPT_POLL)) {
                Ok(message) => return Ok(message),
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Err(self.hung()),
            }
        }
    }

    /// To be called when both are done: waits until both processes have ended, each with exit code 0.
    ///
    /// # Errors
    /// [`Error::Worker`] if one crashes on its way out, or does not end within `limit`.
    pub fn ended(&mut self, limit: Duration) -> Result<()> {
        for rank in 0..2 {
            let what = match self.children[rank].reap(limit) {
                Some(status) if status.success() => continue,
                Some(status) => format!("the process died after its work ({})", status_words(status)),
                None => format!("the process did not end within {}", host::seconds(limit)),
            };
            return Err(self.worker_error(rank, what, false));
        }
        Ok(())
    }

    /// The process id of `rank`.
    pub fn pid(&self, rank: usize) -> u32 {
        self.children[rank].pid()
    }

    /// The name of the pair's fabric on the software device.
    pub fn fabric(&self) -> &str {
        &self.fabric
    }

    /// The last lines that the process of `rank` and its transport printed.
    pub fn log(&self, rank: usize) -> Vec<String> {
        self.children[rank].last_lines(LINES_KEPT)
    }

    /// An error for a process that has reported a failure, unless the other one reports the cause of it.
    fn failure(&mut self, rank: usize, message: String, peer_gone: bool, wrong: bool) -> Error {
        if peer_gone && let Some(better) = self.reason_of_other(rank) {
            return better;
        }
        self.worker_error(rank, message, wrong)
    }

    /// The error of the other process, if it reports one or dies in the time it gets.
    fn reason_of_other(&mut self, rank: usize) -> Option<Error> {
        let end = Instant::now() + PEER_REASON_TIMEOUT;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (other, message) = self.messages.recv_timeout(left).ok()?;
            match message {
                Some(WorkerMessage::Failed { message, peer_gone: false, wrong }) => {
                    return Some(self.worker_error(other, message, wrong));
                }
                // It knows no better.
                Some(WorkerMessage::Failed { .. }) if other != rank => return None,
                None if other != rank && !self.children[other].done => {
                    return Some(self.died(other));
                }
                // Two threads receive the messages of the two processes: this one may have been sent before the failure.
                Some(WorkerMessage::Begin { what }) => self.children[other].doing = what,
                _ => {}
            }
        }
    }

    fn died(&mut self, rank: usize) -> Error {
        let what = match self.children[rank].reap(EXIT_TIMEOUT) {
            Some(status) => format!("the process died while {} ({})", self.children[rank].doing, status_words(status)),
            None => format!("the process fell silent while {}", self.children[rank].doing),
        };
        self.worker_error(rank, what, false)
    }

    fn hung(&mut self) -> Error {
        let rank = usize::from(self.children[0].done);
        let what = format!(
            "no sign of life for {} (rank 0 was {}, rank 1 was {})",
            host::seconds(self.silence),
            self.children[0].doing,
            self.children[1].doing
        );
        self.worker_error(rank, what, false)
    }

    fn worker_error(&mut self, rank: usize, what: String, wrong: bool) -> Error {
        let child = &mut self.children[rank];
        // A process that has failed by itself is about to end, and its last lines may not have been read yet.
        if child.reap(OWN_EXIT_TIMEOUT).is_none() {
            child.stop();
        }
        Error::Worker { rank, what, log: child.last_lines(LINES_SHOWN), wrong }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for child in &mut self.children {
            if !(child.done && child.reap(PEER_REASON_TIMEOUT).is_some()) {
                child.stop();
            }
        }
        self.verbs.clean(&self.fabric);
    }
}
