//! The command line, as users run it.

// Every test file uses another part of this.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "shared by several test programs")]

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output};

use crate::common::verbs::{ibv_get_device_list, library_path};
use testkit::process::this_program;
use testkit::side::enter;
use testkit::{Missing, Peer, Process, Scratch};

/// `softrnic` with these arguments; it finds the fabric by the environment of the test.
pub fn softrnic(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_softrnic")).args(args).output().expect("softrnic runs")
}

/// As [`softrnic`]; it must succeed. What it prints.
pub fn control(args: &[&str]) -> String {
    let output = softrnic(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// What `softrnic stat` shows.
pub fn stat() -> serde_json::Value {
    serde_json::from_str(&control(&["stat", "--json"])).expect("JSON")
}

/// As [`softrnic`]; it must fail. What it says.
pub fn refused(args: &[&str]) -> String {
    let output = softrnic(args);
    assert!(!output.status.success(), "{args:?} succeeded");
    String::from_utf8(output.stderr).expect("UTF-8")
}

/// A folder with the library under its installed name; goes when dropped.
pub struct LibraryDir(Scratch);

impl LibraryDir {
    pub fn new() -> Self {
        let folder = Scratch::new();
        symlink(library_path(), folder.join("libibverbs.so.1")).expect("a link");
        Self(folder)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

/// An empty folder of this test's own; it goes with all that is in it.
pub struct Folder(Scratch);

impl Folder {
    pub fn new() -> Self {
        Self(Scratch::new())
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `softrnic` with these arguments, for the fabrics of this folder and with none named by the
    /// environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softrnic"));
        command.args(args).env("SOFTRNIC_SHM_DIR", self.path()).env_remove("SOFTRNIC_FABRIC");
        command
    }

    /// Names of what is in it.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.path()).expect("the folder").flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect();
        names.sort_unstable();
        names
    }

    /// Starts this test again by `starter`, as a process of `fabric` in this folder that holds it
    /// ([`hold_if_started`]); it takes part when this returns.
    pub fn hold_by(&self, fabric: &str, starter: Command) -> Holder {
        self.hold_as(starter, &[("SOFTRNIC_FABRIC", fabric)])
    }

    /// As [`Self::hold_by`], in this session.
    pub fn hold(&self, fabric: &str) -> Holder {
        self.hold_by(fabric, Command::new(this_program()))
    }

    /// As [`Self::hold_by`], with these variables, by which the process finds its fabric.
    pub fn hold_as(&self, starter: Command, env: &[(&str, &str)]) -> Holder {
        let folder = self.path().to_str().expect("UTF-8");
        let all = [&[("SOFTRNIC_SHM_DIR", folder), ("SOFTRNIC_QUIET", "1")], env].concat();
        let (process, mut socket) = Process::start_by(starter, 0, &all);
        assert_eq!(socket.try_recv::<u8>(), Some(HOLDING), "{}", process.output());
        Holder { process, socket }
    }
}

/// What a process says that takes part in its fabric.
const HOLDING: u8 = 1;
/// A holder forks a child, which outlives it.
pub const FORKS: &str = "SOFTRNIC_TEST_FORKS";

/// A test that uses a [`Holder`] begins with this. In a process that the test has started, takes
/// part in the fabric until the test lets it end.
pub fn hold_if_started() {
    enter(|_, mut socket| {
        let mut count = 0;
        assert!(!ibv_get_device_list(&mut count).is_null());
        // SAFETY: the child waits at its copy of the socket and ends without handlers.
        if std::env::var_os(FORKS).is_some() && unsafe { libc::fork() } == 0 {
            socket.try_recv::<u8>();
            // SAFETY: as above.
            unsafe { libc::_exit(0) };
        }
        socket.send(&HOLDING);
        socket.try_recv::<u8>();
    });
}

/// A process that takes part in a fabric; killed when dropped.
pub struct Holder {
    process: Process,
    socket: Peer,
}

impl Holder {
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Lets it end by itself.
    pub fn end(self) {
        drop(self.socket);
        self.process.finish();
    }

    /// Kills it. The end of the socket that its children wait for stays open as long as what this
    /// returns.
    #[must_use]
    pub fn kill(mut self) -> Peer {
        self.process.signal(libc::SIGKILL);
        let ended = self.process.ended();
        assert!(ended.is_killed_by(libc::SIGKILL), "{ended}");
        self.socket
    }
}

/// A command that runs `program` in a process id namespace of its own.
///
/// # Errors
/// There can be none.
pub fn in_other_namespace(program: &Path) -> Result<Command, Missing> {
    let rootless = ["--user", "--map-root-user"];
    // SAFETY: no preconditions.
    let needed = if unsafe { libc::geteuid() } == 0 { &[][..] } else { &rootless };
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(needed).args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        command
    };
    if unshare().arg("true").output().is_ok_and(|output| output.status.success()) {
        let mut command = unshare();
        command.arg(program);
        return Ok(command);
    }
    Err(Missing::new("process id namespaces"))
}
