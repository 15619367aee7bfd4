//! A process that runs this test again as one of its sides.

use crate::name::test_name;
use crate::peer::Peer;
use crate::role::Role;
use crate::skip;
use std::fmt::{Display, Formatter, Result as Format};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

/// Status of a process whose body has ended well. A test program that found no test of that name
/// ends with 0.
pub(crate) const BODY_DONE: i32 = 33;

/// A started process. It is killed when this is dropped, and by the kernel when the thread that
/// started it ends, so that it does not outlive its test.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// What it prints.
    output: File,
}

/// How a process ended.
#[derive(Debug)]
pub struct Ended {
    /// As the kernel tells it.
    pub status: ExitStatus,
    /// All that it printed, on either output.
    pub output: String,
}

impl Process {
    /// Starts the test that calls this once more, with `env` added to its environment; there,
    /// [`crate::side::enter`] runs its body with the number `side`. The socket leads to that
    /// process.
    #[must_use]
    pub fn start(side: usize, env: &[(&str, &str)]) -> (Self, Peer) {
        Self::start_by(Command::new(this_program()), side, env)
    }

    /// As [`Self::start`], where `starter` runs the program: this one, or one that runs it and has
    /// its path as last argument, as `unshare --pid --fork` does.
    #[must_use]
    pub fn start_by(starter: Command, side: usize, env: &[(&str, &str)]) -> (Self, Peer) {
        let (mine, theirs) = UnixStream::pair().expect("a pair of sockets");
        (Self::run_at(starter, Role { call: 0, side }, theirs.into(), env), Peer::new(mine))
    }

    /// Starts this test once more, to run `role` with `socket` as its standard input.
    pub(crate) fn start_at(role: Role, socket: OwnedFd, env: &[(&str, &str)]) -> Self {
        Self::run_at(Command::new(this_program()), role, socket, env)
    }

    fn run_at(mut command: Command, role: Role, socket: OwnedFd, env: &[(&str, &str)]) -> Self {
        let test = test_name();
        let output = tempfile::tempfile().expect("a temporary file");
        let copy = || output.try_clone().expect("a descriptor");
        command.args([&test, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"]);
        command.envs(env.iter().copied()).env(Role::VARIABLE, role.print(&test));
        command.stdin(socket).stdout(copy()).stderr(copy());
        // SAFETY: a system call with plain numbers.
        unsafe { command.pre_exec(die_with_parent) };
        Self { child: command.spawn().expect("this program starts"), output }
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal, unless it has ended.
    pub fn signal(&mut self, signal: i32) {
        if !self.is_running() {
            return;
        }
        // SAFETY: plain numbers; it has not been waited for, so that nobody else has its id.
        let rc = unsafe { libc::kill(self.child.id() as i32, signal) };
        assert_eq!(rc, 0, "{}", io::Error::last_os_error());
    }

    /// Whether it has not ended yet.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("a child of this process").is_none()
    }

    /// What it has printed so far.
    #[must_use]
    pub fn output(&self) -> String {
        // By offset: the process writes where the descriptor's own position is.
        let length = self.output.metadata().expect("a file of ours").len();
        let mut bytes = vec![0; usize::try_from(length).expect("it fits into memory")];
        self.output.read_exact_at(&mut bytes, 0).expect("a readable file");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Waits for its end, however that comes.
    #[must_use]
    pub fn ended(mut self) -> Ended {
        let status = self.child.wait().expect("a child of this process");
        Ended { status, output: self.output() }
    }

    /// Waits for its end; its body must have ended well.
    #[track_caller]
    pub fn finish(self) {
        let ended = self.ended();
        assert!(ended.is_body_done(), "{ended}");
        ended.repeat_skips();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Of one that has been waited for, both say so without doing anything.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Ended {
    /// Whether the body of the test was found there and has ended well.
    #[must_use]
    pub fn is_body_done(&self) -> bool {
        self.status.code() == Some(BODY_DONE)
    }

    /// Whether it was killed by that signal.
    #[must_use]
    pub fn is_killed_by(&self, signal: i32) -> bool {
        self.status.signal() == Some(signal)
    }

    /// What was missing there, by its own account.
    #[must_use]
    pub fn missing(&self) -> Vec<&str> {
        // libtest may have begun the line with the name of the test.
        let is_begun = |before: &str| {
            before.is_empty() || (before.starts_with("test ") && before.ends_with(" ... "))
        };
        let missing = self.output.lines().filter_map(|line| line.split_once("skipped: "));
        missing.filter(|(before, _)| is_begun(before)).map(|(_, missing)| missing).collect()
    }

    /// What was skipped there was skipped here.
    pub(crate) fn repeat_skips(&self) {
        self.missing().into_iter().for_each(skip::skipped);
    }
}

impl Display for Ended {
    fn fmt(&self, f: &mut Formatter<'_>) -> Format {
        match self.status.code() {
            Some(BODY_DONE) => f.write_str("the body ended well"),
            Some(0) => f.write_str("the test program ended without having run the body"),
            _ => write!(f, "{}", self.status),
        }?;
        write!(f, "; it printed:\n{}", self.output)
    }
}

/// The path of the test program.
#[must_use]
pub fn this_program() -> PathBuf {
    std::env::current_exe().expect("the path of this program")
}

/// Has the kernel kill this process when the thread that started it ends.
pub(crate) fn die_with_parent() -> io::Result<()> {
    // SAFETY: plain numbers.
    match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
