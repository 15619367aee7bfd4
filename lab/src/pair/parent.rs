//! The parent of a pair: starts both processes, receives their messages, and says why one failed.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, PipeReader, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::hosts::LineConn;
use crate::pair::worker_ctx::{Pages, StartInfo, WORKER_VARIABLE, WorkerCtx, WorkerMessage};
use crate::system::{host, output};
use crate::verbs::{Verbs, new_fabric_name};

/// How many of a process's last lines an error shows.
const LINES_SHOWN: usize = 12;
/// How long the other process gets to give a more precise reason after a failure.
const PEER_REASON_TIMEOUT: Duration = Duration::from_millis(700);
/// How long a process may take to end after it has closed its socket: its memory may be large, and
/// the machine busy.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);
/// How long a process that has failed gets to end by itself.
const OWN_EXIT_TIMEOUT: Duration = Duration::from_millis(300);
/// How often the parent looks for an interrupt while no message comes.
const INTERRUPT_POLL: Duration = Duration::from_millis(100);

/// How to start a pair.
#[derive(Debug, Clone)]
pub struct Setting {
    /// The libibverbs of both processes.
    pub verbs: Verbs,
    /// `NCCL_NET_PLUGIN` of both processes.
    pub net_plugin: String,
    /// Whether each process keeps to a CPU of its own, where there are two.
    pub pin: bool,
    /// How long a process may be silent before it counts as hung.
    pub silence: Duration,
    /// What each rank takes its buffers from instead of fresh memory.
    pub pages: Option<[Pages; 2]>,
    /// More environment, for both alike.
    pub env: Vec<(OsString, OsString)>,
    /// Whether the other process is on another host.
    pub between_hosts: bool,
}

impl Setting {
    /// The usual: pinned, hung after five minutes of silence, `NCCL_NET_PLUGIN=none`.
    pub fn new(verbs: Verbs) -> Self {
        let silence = Duration::from_secs(300);
        Self {
            verbs,
            net_plugin: "none".into(),
            pin: true,
            silence,
            pages: None,
            env: Vec::new(),
            between_hosts: false,
        }
    }

    /// With one more variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }

    /// What starts a process of the pair that works on `fabric`.
    pub(crate) fn command(&self, program: &Path, arguments: &[OsString], fabric: &str) -> Command {
        let mut command = Command::new(program);
        command.args(arguments);
        let verbs = &self.verbs;
        let settings =
            if self.between_hosts { verbs.settings_between_hosts() } else { verbs.settings() };
        verbs.apply_with(settings, &mut command, fabric);
        command.env("NCCL_NET_PLUGIN", &self.net_plugin);
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// Two running processes. Dropping it kills them; the kernel does so if this process dies.
#[derive(Debug)]
pub struct Pair {
    children: [ChildProcess; 2],
    messages: Receiver<(usize, Option<WorkerMessage>)>,
    silence: Duration,
    /// When all has to be over.
    pub(crate) until: Option<Instant>,
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
        let process =
            |peer: UnixStream| Process { arguments, peer: peer.into(), is_stand_in: false };
        Self::start(program, [process(zero), process(one)], setting, new_fabric_name())
    }

    /// Starts rank 0 as `program arguments`; rank 1 runs on another host, and `program stand_in` is
    /// a process that stands for it here.
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

    fn start(
        program: &Path,
        [zero, one]: [Process<'_>; 2],
        setting: &Setting,
        fabric: String,
    ) -> Result<Self> {
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
            until: None,
            verbs: setting.verbs.clone(),
            fabric,
        })
    }

    /// Sends the same value to both.
    ///
    /// # Errors
    /// [`Error::Worker`] if one is gone.
    pub fn send<T: Serialize>(&mut self, value: &T) -> Result<()> {
        let mut line = serde_json::to_string(value)?;
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
        let mut line = serde_json::to_string(value)?;
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

    /// What one of them says or does within `limit`. Unlike [`Self::next_message`] it takes the
    /// failure of a process for an event.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub(crate) fn next_event(&mut self, limit: Duration) -> Result<PairEvent> {
        let end = Instant::now() + limit;
        loop {
            output::check()?;
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
            output::check()?;
            if self.until.is_some_and(|until| Instant::now() > until) {
                return Err(Error::Late { doing: self.children[0].doing.clone() });
            }
            let left = end.saturating_duration_since(Instant::now());
            match self.messages.recv_timeout(left.min(INTERRUPT_POLL)) {
                Ok(message) => return Ok(message),
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(self.hung());
                }
            }
        }
    }

    /// To be called when both are done: waits until both processes have ended, each with exit code
    /// 0.
    ///
    /// # Errors
    /// [`Error::Worker`] if one crashes on its way out, or does not end within `limit`.
    pub fn ended(&mut self, limit: Duration) -> Result<()> {
        for rank in 0..2 {
            let what = match self.children[rank].reap(limit) {
                Some(status) if status.success() => continue,
                Some(status) => {
                    format!("the process died after its work ({})", status_words(status))
                }
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

    /// An error for a process that has reported a failure, unless the other one reports the cause
    /// of it.
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
                // Two threads receive the messages of the two processes: this one may have been
                // sent before the failure.
                Some(WorkerMessage::Begin { what }) => self.children[other].doing = what,
                _ => {}
            }
        }
    }

    fn died(&mut self, rank: usize) -> Error {
        let what = match self.children[rank].reap(EXIT_TIMEOUT) {
            Some(status) => format!(
                "the process died while {} ({})",
                self.children[rank].doing,
                status_words(status)
            ),
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
        // A process that has failed by itself is about to end, and its last lines may not have been
        // read yet.
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

/// How many of a process's last lines are kept.
pub(crate) const LINES_KEPT: usize = 10_000;

#[derive(Debug)]
pub(crate) struct ChildProcess {
    child: Child,
    pub(crate) control: UnixStream,
    log: Arc<Mutex<VecDeque<String>>>,
    readers: Vec<JoinHandle<()>>,
    /// What it said it is about to do.
    pub(crate) doing: String,
    /// It said it was done.
    pub(crate) done: bool,
}

impl ChildProcess {
    /// Starts it with `peer` as its socket to the other one. `hear` gets what it says, then `None`;
    /// false: nobody listens any more.
    pub(crate) fn start(
        mut command: Command,
        rank: usize,
        cpu: Option<usize>,
        peer: OwnedFd,
        silence: Duration,
        pages: Option<&Pages>,
        hear: impl Fn(Option<WorkerMessage>) -> bool + Send + 'static,
    ) -> Result<Self> {
        let failed = |what: &'static str| move |source| Error::io(what, source);
        let (control, theirs) = UnixStream::pair().map_err(failed("socketpair"))?;
        let (reader, writer) = std::io::pipe().map_err(failed("pipe"))?;
        let pages = pages.map(Pages::descriptor);
        let worker = StartInfo {
            rank,
            control: theirs.as_raw_fd(),
            peer: peer.as_raw_fd(),
            silence,
            cpu,
            pages,
        };
        let descriptors = [Some(theirs.as_raw_fd()), Some(peer.as_raw_fd()), pages];
        command
            .env(WORKER_VARIABLE, worker.print())
            .stdin(Stdio::null())
            .stdout(writer.try_clone().map_err(failed("pipe"))?)
            .stderr(writer);
        // SAFETY: the closure makes system calls only, on descriptors that are open until the
        // child has started.
        unsafe {
            command.pre_exec(move || {
                host::die_with_parent()?;
                output::ignore_sigint();
                descriptors.iter().flatten().try_for_each(|d| host::keep_across_exec(*d))
            });
        }
        let child = command.spawn().map_err(|source| {
            Error::io(format!("cannot start {}", command.get_program().display()), source)
        })?;
        // The child has its own copies; with these gone, its end is seen as the end of the stream.
        drop((theirs, peer, command));
        let log = Arc::new(Mutex::new(VecDeque::new()));
        let listening = control.try_clone().map_err(failed("dup"))?;
        let readers = vec![
            std::thread::spawn(move || read_messages(listening, &hear)),
            std::thread::spawn({
                let log = log.clone();
                move || read_log(rank, reader, &log)
            }),
        ];
        Ok(Self { child, control, log, readers, doing: "starting".into(), done: false })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, if the process ends within `limit`.
    pub(crate) fn reap(&mut self, limit: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    self.join_readers();
                    return Some(status);
                }
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
                Ok(None) | Err(_) => return None,
            }
        }
    }

    pub(crate) fn signal(&mut self, signal: i32) {
        // One that has been waited for may have left its number to another process.
        if matches!(self.child.try_wait(), Ok(None)) {
            // SAFETY: our own child, which has not been waited for.
            unsafe { libc::kill(self.child.id() as i32, signal) };
        }
    }

    pub(crate) fn stop(&mut self) {
        if let Err(problem) = self.child.kill() {
            log::debug!("kill: {problem}");
        }
        if let Err(problem) = self.child.wait() {
            log::debug!("wait: {problem}");
        }
        self.join_readers();
    }

    /// The streams have ended with the process, so this is short.
    fn join_readers(&mut self) {
        for reader in self.readers.drain(..) {
            if reader.join().is_err() {
                log::debug!("a reader panicked");
            }
        }
    }

    pub(crate) fn last_lines(&self, most: usize) -> Vec<String> {
        self.log
            .lock()
            .map(|log| log.iter().skip(log.len().saturating_sub(most)).cloned().collect())
            .unwrap_or_default()
    }
}

fn read_messages(control: UnixStream, hear: &dyn Fn(Option<WorkerMessage>) -> bool) {
    for line in BufReader::new(control).lines().map_while(|line| line.ok()) {
        let message = serde_json::from_str(&line).unwrap_or_else(|problem| WorkerMessage::Failed {
            message: format!("unreadable report ({problem}): {line}"),
            peer_gone: false,
            wrong: false,
        });
        if !hear(Some(message)) {
            return;
        }
    }
    hear(None);
}

fn read_log(rank: usize, reader: PipeReader, log: &Mutex<VecDeque<String>>) {
    let mut reader = BufReader::new(reader);
    let mut bytes = Vec::new();
    while reader.read_until(b'\n', &mut bytes).is_ok_and(|n| n > 0) {
        let line = String::from_utf8_lossy(&bytes).trim_end().to_owned();
        bytes.clear();
        log::debug!("rank {rank}: {line}");
        if let Ok(mut log) = log.lock() {
            if log.len() == LINES_KEPT {
                log.pop_front();
            }
            log.push_back(line);
        }
    }
}

pub(crate) fn status_words(status: ExitStatus) -> String {
    let Some(signal) = status.signal() else {
        return format!("exit code {}", status.code().unwrap_or_default());
    };
    let name = match signal {
        libc::SIGSEGV => " SIGSEGV",
        libc::SIGABRT => " SIGABRT",
        libc::SIGBUS => " SIGBUS",
        libc::SIGKILL => " SIGKILL",
        libc::SIGILL => " SIGILL",
        libc::SIGFPE => " SIGFPE",
        libc::SIGTERM => " SIGTERM",
        _ => "",
    };
    format!("signal {signal}{name}")
}

// A process of this host that stands for rank 1 on another one: its parent sees what it would see
// of rank 1 itself. Its peer's socket is the connection to the program that has started rank 1
// there.

/// The hidden subcommands that make a worker of this program, and one of these.
pub(crate) const WORKER: &str = "worker";
pub(crate) const STAND_IN: &str = "stand-in";

/// The parent gives rank 1 up earlier.
const STAND_IN_SILENCE: Duration = Duration::from_secs(2 * 3600);

/// The body of the hidden subcommand; the exit code.
pub(crate) fn main() -> i32 {
    WorkerCtx::main(STAND_IN, stand_in)
}

fn stand_in(worker: &mut WorkerCtx) -> Result<()> {
    let mut conn = LineConn::new(TcpStream::from(worker.peer()?));
    let other_host = |why: String| Error::Unreadable(format!("the other host: {why}"));
    let job: Value = worker.receive_job()?;
    conn.send(&job, SEND_LIMIT).map_err(other_host)?;
    let (mut doing, mut is_done) = (String::from("starting"), false);
    loop {
        match conn.receive::<Heard>(STAND_IN_SILENCE).map_err(other_host)? {
            Heard::Said(WorkerMessage::Done) => is_done = true,
            Heard::Said(failed @ WorkerMessage::Failed { .. }) => {
                worker.send_message(&failed)?;
                is_done = true;
            }
            Heard::Said(message) => {
                if let WorkerMessage::Begin { what } = &message {
                    doing.clone_from(what);
                }
                worker.send_message(&message)?;
            }
            Heard::Ended { failure, log } => {
                log.iter().for_each(|line| output::write_stderr(format_args!("{line}")));
                return match failure {
                    Some(failure) if !is_done => {
                        Err(Error::Unreadable(format!("{failure} on the other host while {doing}")))
                    }
                    None if !is_done => {
                        Err(Error::Unreadable("it has ended before it was done".into()))
                    }
                    _ => Ok(()),
                };
            }
        }
    }
}

/// The other host takes what is sent within this time.
const SEND_LIMIT: Duration = Duration::from_secs(10);
/// How long the process may take to end after it has closed its socket.
const EXIT: Duration = Duration::from_secs(10);
/// How many of its last lines the other host gets, and how many bytes of each.
const LINES: usize = 12;
const LINE: usize = 2000;
/// How often it is looked for an interrupt.
const LOOK: Duration = Duration::from_millis(100);

/// What the other host hears of the process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Heard {
    /// It has said this.
    Said(WorkerMessage),
    /// It has ended: how, unless well; and its last lines.
    Ended { failure: Option<String>, log: Vec<String> },
}

enum Event {
    /// `None`: it has closed its socket.
    Said(Option<WorkerMessage>),
    /// What the other host wants it to do.
    Job(Value),
    /// The other host is gone, or does not want it any more.
    Closed,
}

/// The process of rank 1.
pub(crate) struct HostEnd {
    child: ChildProcess,
    sender: Sender<Event>,
    events: Receiver<Event>,
}

impl HostEnd {
    /// Starts it, with a socket to rank 0.
    pub(crate) fn start(
        program: &Path,
        arguments: &[OsString],
        setting: &Setting,
        fabric: &str,
        peer: TcpStream,
    ) -> Result<Self> {
        let (sender, events) = channel();
        let cpus = if setting.pin { host::cpus()? } else { Vec::new() };
        let cpu = (cpus.len() >= 2).then(|| cpus[1]);
        let pages = setting.pages.as_ref().map(|pages| &pages[1]);
        let command = setting.command(program, arguments, fabric);
        let said = sender.clone();
        let hear = move |message| said.send(Event::Said(message)).is_ok();
        let child =
            ChildProcess::start(command, 1, cpu, peer.into(), setting.silence, pages, hear)?;
        Ok(Self { child, sender, events })
    }

    /// Passes its job on, which `adapt` makes one of this host, and what it says, until it has
    /// ended. It is ended if the other host closes `control`.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; [`Error::Io`] of `control`.
    pub(crate) fn pass_on(
        mut self,
        control: TcpStream,
        adapt: impl Fn(Value) -> Result<Value>,
    ) -> Result<()> {
        let failed = |e| Error::io("the connection to the other host", e);
        let (listening, closing) =
            (control.try_clone().map_err(failed)?, control.try_clone().map_err(failed)?);
        let sender = self.sender.clone();
        let listener = std::thread::spawn(move || listen(LineConn::new(listening), &sender));
        let outcome = self.serve(&mut LineConn::new(control), adapt);
        self.child.stop();
        closing.shutdown(Shutdown::Both).unwrap_or_default();
        listener.join().unwrap_or_default();
        outcome
    }

    fn serve(
        &mut self,
        control: &mut LineConn,
        adapt: impl Fn(Value) -> Result<Value>,
    ) -> Result<()> {
        loop {
            output::check()?;
            let heard = match self.events.recv_timeout(LOOK) {
                Ok(Event::Said(Some(message))) => Heard::Said(message),
                Ok(Event::Said(None)) => self.ended(),
                Ok(Event::Job(job)) => match adapt(job) {
                    Ok(job) => {
                        // A process that is gone has closed its socket: that is reported.
                        self.child
                            .control
                            .write_all(format!("{}\n", serde_json::to_string(&job)?).as_bytes())
                            .unwrap_or_default();
                        continue;
                    }
                    Err(problem) => {
                        Heard::Ended { failure: Some(problem.to_string()), log: Vec::new() }
                    }
                },
                Ok(Event::Closed) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => continue,
            };
            let is_last = matches!(heard, Heard::Ended { .. });
            // An error replaces what is too long to send. The other host may be gone,
            // which is seen as the end of the stream.
            if let Err(why) = control.send(&heard, SEND_LIMIT) {
                let heard = Heard::Ended { failure: Some(why), log: Vec::new() };
                control.send(&heard, SEND_LIMIT).unwrap_or_default();
                return Ok(());
            }
            if is_last {
                return Ok(());
            }
        }
    }

    fn ended(&mut self) -> Heard {
        let failure = match self.child.reap(EXIT) {
            Some(status) if status.success() => None,
            Some(status) => Some(format!("the process died ({})", status_words(status))),
            None => Some("the process fell silent".into()),
        };
        let short = |line: String| line.chars().take(LINE).collect();
        Heard::Ended { failure, log: self.child.last_lines(LINES).into_iter().map(short).collect() }
    }
}

/// The one job, and then the end of the stream.
fn listen(mut conn: LineConn, sender: &Sender<Event>) {
    const LONG: Duration = Duration::from_secs(24 * 3600);
    if let Ok(job) = conn.receive(LONG) {
        sender.send(Event::Job(job)).unwrap_or_default();
        drop(conn.receive::<Value>(LONG));
    }
    sender.send(Event::Closed).unwrap_or_default();
}

/// The variable with the name of the test whose body a worker process is to run.
const TASK: &str = "FERRITE_TASK";

/// Runs `body` in two processes, from within the test whose full name is `test`, and returns what
/// they returned. The test binary is started again for that one test; in there this function does
/// not return. A panic of `body` (a failed assertion) is reported as that process's failure.
///
/// The processes run the test from its top, so their body is that of its first call, whichever call
/// has started them: what differs between the calls of a test has to be in the environment.
///
/// # Errors
/// [`Error::Worker`] if a process failed, died or hung; [`Error::Io`] if it could not be started.
pub fn run<T, F>(test: &str, setting: &Setting, body: F) -> Result<[T; 2]>
where
    T: Serialize + DeserializeOwned,
    F: FnOnce(&mut WorkerCtx) -> Result<T>,
{
    if std::env::var_os(TASK).is_some_and(|task| task == test)
        && let Some(worker) = WorkerCtx::from_environment()?
    {
        std::process::exit(worker.run(|worker| sit(worker, body)));
    }
    let _turn = PairPermit::wait();
    let program = std::env::current_exe().map_err(|e| Error::io("no own binary", e))?;
    let arguments: Vec<OsString> =
        [test, "--exact", "--nocapture", "--include-ignored"].iter().map(OsString::from).collect();
    let mut setting = setting.clone();
    setting.env.push((TASK.into(), test.into()));
    let mut pair = Pair::spawn(&program, &arguments, &setting)?;
    let mut results = [None, None];
    while let Some((rank, message)) = pair.next_message().map_err(no_such_test)? {
        if let WorkerMessage::Value { value } = message {
            results[rank] = Some(serde_json::from_value(value)?);
        }
    }
    match results {
        [Some(zero), Some(one)] => Ok([zero, one]),
        _ => Err(Error::Misuse("a process ended without a result")),
    }
}

/// The right to run a pair of polling processes, while other tests of this program wait: more
/// pairs than the machine has CPUs for slow each other down beyond every time limit.
#[derive(Debug)]
pub struct PairPermit(());

static RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

impl PairPermit {
    /// Waits for it; [`run`] does so by itself.
    pub fn wait() -> Self {
        let most = (host::cpus().map_or(1, |cpus| cpus.len()) / 2).max(1);
        let (running, ended) = &RUNNING;
        // A count is right even if a holder of the lock panicked.
        let mut running = running.lock().unwrap_or_else(PoisonError::into_inner);
        while *running >= most {
            running = ended.wait(running).unwrap_or_else(PoisonError::into_inner);
        }
        *running += 1;
        Self(())
    }
}

impl Drop for PairPermit {
    fn drop(&mut self) {
        let (running, ended) = &RUNNING;
        *running.lock().unwrap_or_else(PoisonError::into_inner) -= 1;
        ended.notify_one();
    }
}

/// A test harness that found nothing to run ends well and says nothing.
fn no_such_test(problem: Error) -> Error {
    match problem {
        Error::Worker { log, .. } if log.iter().any(|line| line == "running 0 tests") => {
            Error::Misuse("no test of that name: pass its full path")
        }
        other => other,
    }
}

fn sit<T: Serialize>(
    worker: &mut WorkerCtx,
    body: impl FnOnce(&mut WorkerCtx) -> Result<T>,
) -> Result<()> {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(worker)));
    match outcome {
        Ok(result) => worker.report(&result?),
        Err(payload) => {
            let text = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied());
            Err(Error::Data(text.unwrap_or("the body panicked").into()))
        }
    }
}
