//! One process of a pair, as the process that started it sees it.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, PipeReader};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::pair::message::WorkerMessage;
use crate::pair::pages::Pages;
use crate::pair::worker_ctx::{StartInfo, WORKER_VARIABLE};
use crate::system::{host, interrupt};

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
    /// Starts it with `peer` as its socket to the other one. `hear` gets what it says, then `None`; false: nobody listens any more.
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
        let worker = StartInfo { rank, control: theirs.as_raw_fd(), peer: peer.as_raw_fd(), silence, cpu, pages };
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
                interrupt::ignore_sigint();
                descriptors.iter().flatten().try_for_each(|d| host::keep_across_exec(*d))
            });
        }
        let child = command
            .spawn()
            .map_err(|source| Error::io(format!("cannot start {}", command.get_program().display()), source))?;
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
