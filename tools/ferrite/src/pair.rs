//! Two fresh processes with a line to each other: rank 0 and rank 1.
//!
//! The tool starts itself again as a worker ([`Pair::spawn`]). A test starts its own binary again,
//! so that both ends are written as one closure ([`run`]):
//!
//! ```no_run
//! use ferrite::library::Source;
//! use ferrite::link::Link;
//! use ferrite::pair::{self, Setting};
//! use ferrite::transport::Transport;
//! use ferrite::verbs::Verbs;
//!
//! // in a #[test] fn zero_bytes(), module `data`
//! # fn main() -> ferrite::error::Result<()> {
//! let setting = Setting::new(Verbs::softrnic("dist/softrnic".as_ref())?);
//! let sizes = pair::run("data::zero_bytes", &setting, |seat| {
//!     let transport = Transport::open(&Source::plugin("dist/lib/libnccl-net.so"))?;
//!     let link = Link::open(seat, &transport, 0)?;
//!     link.close()?;
//!     Ok(seat.rank()) // sent back to the parent as JSON
//! })?;
//! assert_eq!(sizes, [0, 1]);
//! # Ok(())
//! # }
//! ```

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result};
use crate::member::{LINES_KEPT, Member, status_words};
use crate::pages::Pages;
use crate::seat::{Note, Seat, json_error, to_json};
use crate::verbs::{Verbs, fresh_fabric};
use crate::{host, interrupt};

/// How many of a process's last lines an error shows.
const LINES_SHOWN: usize = 12;
/// How long the other process gets to give a better reason after a failure.
const SECOND_OPINION: Duration = Duration::from_millis(700);
/// How long a process may take to be gone that has closed its line: its memory may be large, and the machine busy.
const GOING: Duration = Duration::from_secs(10);
/// How long a process that has failed gets to end by itself.
const LAST_WORDS: Duration = Duration::from_millis(300);
/// How often is looked for an interrupt while nothing is heard.
const GLANCE: Duration = Duration::from_millis(100);
/// The test whose closure a process of [`run`] is to execute.
const TASK: &str = "FERRITE_TASK";

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
}

impl Setting {
    /// The usual: pinned, hung after 60 s of silence, `NCCL_NET_PLUGIN=none`.
    pub fn new(verbs: Verbs) -> Self {
        let silence = Duration::from_secs(60);
        Self { verbs, net_plugin: "none".into(), pin: true, silence, pages: None, env: Vec::new() }
    }

    /// With one more variable.
    #[must_use]
    pub fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.env.push((name.into(), value.into()));
        self
    }
}

/// Two running processes. Dropping it kills them; the kernel does so if this process dies.
#[derive(Debug)]
pub struct Pair {
    members: [Member; 2],
    notes: Receiver<(usize, Option<Note>)>,
    silence: Duration,
    verbs: Verbs,
    fabric: String,
}

impl Pair {
    /// Starts `program arguments` twice.
    ///
    /// # Errors
    /// [`Error::Io`] if a process cannot be started.
    pub fn spawn(program: &PathBuf, arguments: &[OsString], setting: &Setting) -> Result<Self> {
        let (sender, notes) = channel();
        let fabric = fresh_fabric();
        let (peer0, peer1) = UnixStream::pair().map_err(|e| Error::io("socketpair", e))?;
        let cpus = if setting.pin { host::cpus()? } else { Vec::new() };
        let start = |rank: usize, peer: UnixStream| {
            let mut command = Command::new(program);
            command.args(arguments);
            setting.verbs.apply(&mut command, &fabric);
            command.env("NCCL_NET_PLUGIN", &setting.net_plugin);
            command.envs(setting.env.iter().map(|(name, value)| (name, value)));
            let cpu = (cpus.len() >= 2).then(|| cpus[rank]);
            let pages = setting.pages.as_ref().map(|pages| &pages[rank]);
            Member::start(command, rank, cpu, peer, setting.silence, pages, sender.clone())
        };
        Ok(Self {
            members: [start(0, peer0)?, start(1, peer1)?],
            notes,
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
            let sent = self.members[rank].control.write_all(line.as_bytes());
            if sent.is_err() {
                return Err(self.death(rank));
            }
        }
        Ok(())
    }

    /// The next thing one of them reports, and its rank; `None` when both are done.
    ///
    /// # Errors
    /// [`Error::Worker`] if one failed, died or was silent for too long; [`Error::Interrupted`].
    pub fn next_note(&mut self) -> Result<Option<(usize, Note)>> {
        loop {
            if self.members.iter().all(|member| member.done) {
                return Ok(None);
            }
            let (rank, note) = self.heard()?;
            match note {
                Some(Note::Done) => self.members[rank].done = true,
                Some(Note::Failed { message, peer_gone, wrong }) => {
                    return Err(self.failure(rank, message, peer_gone, wrong));
                }
                Some(Note::Begin { what }) => {
                    self.members[rank].doing.clone_from(&what);
                    return Ok(Some((rank, Note::Begin { what })));
                }
                Some(note @ Note::Value { .. }) => return Ok(Some((rank, note))),
                None if self.members[rank].done => {}
                None => return Err(self.death(rank)),
            }
        }
    }

    /// What one of them says next, or the end of what it says.
    fn heard(&mut self) -> Result<(usize, Option<Note>)> {
        let end = Instant::now() + self.silence;
        loop {
            interrupt::check()?;
            let left = end.saturating_duration_since(Instant::now());
            match self.notes.recv_timeout(left.min(GLANCE)) {
                Ok(note) => return Ok(note),
                Err(RecvTimeoutError::Timeout) if !left.is_zero() => {}
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Err(self.hang()),
            }
        }
    }

    /// To be called when both are done: waits until both processes have ended, each with exit code 0.
    ///
    /// # Errors
    /// [`Error::Worker`] if one crashes on its way out, or does not end within `limit`.
    pub fn ended(&mut self, limit: Duration) -> Result<()> {
        for rank in 0..2 {
            let what = match self.members[rank].reap(limit) {
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
        self.members[rank].pid()
    }

    /// The name of the pair's fabric on the software device.
    pub fn fabric(&self) -> &str {
        &self.fabric
    }

    /// The last lines that the process of `rank` and its transport printed.
    pub fn log(&self, rank: usize) -> Vec<String> {
        self.members[rank].last_lines(LINES_KEPT)
    }

    /// An error for a process that has said it failed, unless the other one knows better.
    fn failure(&mut self, rank: usize, message: String, peer_gone: bool, wrong: bool) -> Error {
        if peer_gone && let Some(better) = self.second_opinion(rank) {
            return better;
        }
        self.worker_error(rank, message, wrong)
    }

    /// What the other process has to say about its end.
    fn second_opinion(&mut self, rank: usize) -> Option<Error> {
        let end = Instant::now() + SECOND_OPINION;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let (other, note) = self.notes.recv_timeout(left).ok()?;
            match note {
                Some(Note::Failed { message, peer_gone: false, wrong }) => {
                    return Some(self.worker_error(other, message, wrong));
                }
                None if other != rank && !self.members[other].done => {
                    return Some(self.death(other));
                }
                // The two are heard by threads of their own: what it was about to do may be heard only now.
                Some(Note::Begin { what }) => self.members[other].doing = what,
                _ => {}
            }
        }
    }

    fn death(&mut self, rank: usize) -> Error {
        let what = match self.members[rank].reap(GOING) {
            Some(status) => format!("the process died while {} ({})", self.members[rank].doing, status_words(status)),
            None => format!("the process fell silent while {}", self.members[rank].doing),
        };
        self.worker_error(rank, what, false)
    }

    fn hang(&mut self) -> Error {
        let rank = usize::from(self.members[0].done);
        let what = format!(
            "no sign of life for {} (rank 0 was {}, rank 1 was {})",
            host::seconds(self.silence),
            self.members[0].doing,
            self.members[1].doing
        );
        self.worker_error(rank, what, false)
    }

    fn worker_error(&mut self, rank: usize, what: String, wrong: bool) -> Error {
        let member = &mut self.members[rank];
        // One that has failed by itself is about to end, and its last lines are on the way.
        if member.reap(LAST_WORDS).is_none() {
            member.stop();
        }
        Error::Worker { rank, what, log: member.last_lines(LINES_SHOWN), wrong }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for member in &mut self.members {
            if !(member.done && member.reap(SECOND_OPINION).is_some()) {
                member.stop();
            }
        }
        self.verbs.clean(&self.fabric);
    }
}

/// Runs `body` in two processes, from within the test whose full name is `test`, and returns what
/// they returned. The test binary is started again for that one test; in there this function does
/// not return. A panic of `body` (a failed assertion) is reported as that process's failure.
///
/// # Errors
/// [`Error::Worker`] if a process failed, died or hung; [`Error::Io`] if it could not be started.
pub fn run<T, F>(test: &str, setting: &Setting, body: F) -> Result<[T; 2]>
where
    T: Serialize + DeserializeOwned,
    F: FnOnce(&mut Seat) -> Result<T>,
{
    if std::env::var_os(TASK).is_some_and(|task| task == test)
        && let Some(seat) = Seat::take()?
    {
        std::process::exit(seat.run(|seat| sit(seat, body)));
    }
    let _turn = Turn::wait();
    let program = std::env::current_exe().map_err(|e| Error::io("no own binary", e))?;
    let arguments: Vec<OsString> =
        [test, "--exact", "--nocapture", "--include-ignored"].iter().map(OsString::from).collect();
    let mut setting = setting.clone();
    setting.env.push((TASK.into(), test.into()));
    let mut pair = Pair::spawn(&program, &arguments, &setting)?;
    let mut results = [None, None];
    while let Some((rank, note)) = pair.next_note().map_err(no_such_test)? {
        if let Note::Value { value } = note {
            results[rank] = Some(serde_json::from_value(value).map_err(|e| json_error(&e))?);
        }
    }
    match results {
        [Some(zero), Some(one)] => Ok([zero, one]),
        _ => Err(Error::Misuse("a process ended without a result")),
    }
}

/// The right to run a pair of polling processes, while other tests of this program wait: more
/// pairs than the machine has CPUs for slow each other down beyond any limit of patience.
#[derive(Debug)]
pub struct Turn(());

static RUNNING: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

impl Turn {
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

impl Drop for Turn {
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

fn sit<T: Serialize>(seat: &mut Seat, body: impl FnOnce(&mut Seat) -> Result<T>) -> Result<()> {
    let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| body(seat)));
    match outcome {
        Ok(result) => seat.report(&result?),
        Err(payload) => {
            let text = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied());
            Err(Error::Data(text.unwrap_or("the body panicked").into()))
        }
    }
}
