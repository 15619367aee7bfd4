//! The command line, as users run it.

// Every test file uses another part of this.
#![allow(dead_code, missing_docs, unreachable_pub, reason = "shared by several test programs")]

use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use crate::common::verbs::{ibv_get_device_list, library_path};

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

/// As [`softrnic`]; it must fail. What it says.
pub fn refused(args: &[&str]) -> String {
    let output = softrnic(args);
    assert!(!output.status.success(), "{args:?} succeeded");
    String::from_utf8(output.stderr).expect("UTF-8")
}

/// A folder with the library under its installed name; goes when dropped.
pub struct LibraryDir(PathBuf);

impl LibraryDir {
    pub fn new(test: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("softrnic-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        symlink(library_path(), dir.join("libibverbs.so.1")).expect("a link");
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for LibraryDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// An empty folder of this test's own; it goes with all that is in it.
pub struct Folder(PathBuf);

impl Folder {
    pub fn new(test: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("softrnic-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a folder");
        Self(dir)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    /// `softrnic` with these arguments, for the fabrics of this folder and with none named by the environment.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_softrnic"));
        command.args(args).env("SOFTRNIC_SHM_DIR", &self.0).env_remove("SOFTRNIC_FABRIC");
        command
    }

    /// Names of what is in it.
    pub fn names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("the folder").flatten();
        let mut names: Vec<_> = entries.map(|entry| entry.file_name().into_string().expect("UTF-8")).collect();
        names.sort_unstable();
        names
    }

    /// Has `starter` start this test program as a process of `fabric` in this folder; it takes part when this returns.
    pub fn hold_by(&self, fabric: &str, mut starter: Command) -> Holder {
        starter.args([HOLD, "--exact", "--nocapture"]).env(HOLDS, "1");
        starter.env("SOFTRNIC_FABRIC", fabric).env("SOFTRNIC_SHM_DIR", &self.0).env("SOFTRNIC_QUIET", "1");
        Holder::wait_for(starter)
    }

    /// As [`Self::hold_by`], in this session.
    pub fn hold(&self, fabric: &str) -> Holder {
        self.hold_by(fabric, Command::new(std::env::current_exe().expect("own path")))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The test that a program that uses [`Holder`] must have; it calls [`hold_if_asked`].
pub const HOLD: &str = "holds_a_fabric_until_its_input_ends";
pub const HOLDS: &str = "SOFTRNIC_TEST_HOLDS";

/// Body of the test [`HOLD`]: takes part in the fabric until the input ends. With `fork`, so does a child that the
/// process has forked afterwards, in its way.
pub fn hold_if_asked() {
    let Some(how) = std::env::var_os(HOLDS) else { return };
    let mut count = 0;
    assert!(!ibv_get_device_list(&mut count).is_null());
    // SAFETY: the child reads its input and ends without handlers.
    if how == "fork" && unsafe { libc::fork() } == 0 {
        let _ = std::io::stdin().read(&mut [0]);
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    println!("\nholding");
    let _ = std::io::stdin().read(&mut [0]);
}

/// A process that takes part in a fabric; killed when dropped.
pub struct Holder(pub Child);

impl Holder {
    /// Starts it and waits until it takes part.
    pub fn wait_for(mut starter: Command) -> Self {
        let mut child = starter.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("start");
        let mut lines = BufReader::new(child.stdout.as_mut().expect("piped")).lines();
        while lines.next().expect("the line").expect("text") != "holding" {}
        Self(child)
    }

    /// Lets it end by itself.
    pub fn end(mut self) {
        drop(self.0.stdin.take());
        assert!(self.0.wait().expect("wait").success());
    }

    /// Kills it, but keeps its input open for its children.
    pub fn kill(&mut self) {
        self.0.kill().expect("kill");
        self.0.wait().expect("wait");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command that runs this test program in a process id namespace of its own; `None` (told): there can be none.
pub fn in_other_namespace(program: &Path) -> Option<Command> {
    let rootless = ["--user", "--map-root-user"];
    // SAFETY: no preconditions.
    let skipped = if unsafe { libc::geteuid() } == 0 { rootless.len() } else { 0 };
    let unshare = || {
        let mut command = Command::new("unshare");
        command.args(&rootless[skipped..]).args(["--pid", "--fork", "--kill-child", "--mount-proc"]);
        command
    };
    if unshare().arg("true").output().is_ok_and(|output| output.status.success()) {
        let mut command = unshare();
        command.arg(program);
        return Some(command);
    }
    crate::common::tools::skipped("process id namespaces")
}
