//! Tests in processes of their own: the library reads its settings once, and some tests kill.
//!
//! A test function runs twice: the first time it starts this program again, once per side, and waits; in the started
//! process it runs the body.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SIDE: &str = "SOFTRNIC_TEST_SIDE";

/// Which side of which test this process is.
fn side_of(test: &str) -> Option<usize> {
    let side = std::env::var(SIDE).ok()?;
    let (name, number) = side.split_once(':')?;
    (name == test).then(|| number.parse().expect("a number"))
}

/// A line to the other side, or to the coordinating test.
pub struct Line(UnixStream);

impl Line {
    /// What this process was started with.
    fn inherited() -> Self {
        // SAFETY: the starter made descriptor 0 a socket for us alone.
        let stream = unsafe { UnixStream::from_raw_fd(0) };
        stream.set_read_timeout(Some(Duration::from_secs(120))).expect("timeout");
        Self(stream)
    }

    pub fn send<T: Copy>(&mut self, value: &T) {
        // SAFETY: plain data, sent to the same program on the same machine.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) };
        self.0.write_all(bytes).expect("the other side lives");
    }

    pub fn recv<T: Copy + Default>(&mut self) -> T {
        let mut value = T::default();
        // SAFETY: plain data, as sent.
        let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut value).cast::<u8>(), size_of::<T>()) };
        self.0.read_exact(bytes).expect("the other side lives");
        value
    }

    /// As [`Self::send`], to somebody who may be dead. False: he is.
    pub fn try_send<T: Copy>(&mut self, value: &T) -> bool {
        // SAFETY: plain data, sent to the same program on the same machine.
        let bytes = unsafe { std::slice::from_raw_parts((&raw const *value).cast::<u8>(), size_of::<T>()) };
        self.0.write_all(bytes).is_ok()
    }

    /// As [`Self::recv`], from somebody who may be dead. `None`: he is.
    pub fn try_recv<T: Copy + Default>(&mut self) -> Option<T> {
        let mut value = T::default();
        // SAFETY: plain data, as sent.
        let bytes = unsafe { std::slice::from_raw_parts_mut((&raw mut value).cast::<u8>(), size_of::<T>()) };
        match self.0.read_exact(bytes) {
            Ok(()) => Some(value),
            Err(error) if matches!(error.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) => None,
            Err(error) => panic!("neither word nor death of the other side: {error}"),
        }
    }

    pub fn swap<T: Copy + Default>(&mut self, mine: &T) -> T {
        self.send(mine);
        self.recv()
    }

    /// Both sides are here.
    pub fn meet(&mut self) {
        assert_eq!(self.swap(&77u8), 77);
    }
}

/// A name for a fabric that nobody else uses.
pub fn fabric_name(test: &str) -> String {
    format!("test-{}-{}", std::process::id(), &test[..test.len().min(40)])
}

/// This program again, as side `side` of `test`.
pub fn start(test: &str, side: usize, line: UnixStream, env: &[(&str, &str)]) -> Child {
    let mut command = Command::new(std::env::current_exe().expect("own path"));
    command.args([test, "--exact", "--nocapture", "--test-threads=1"]);
    command.env(SIDE, format!("{test}:{side}")).env("SOFTRNIC_QUIET", "1").envs(env.iter().copied());
    command.stdin(OwnedFd::from(line)).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("start")
}

/// The process ended well, or its output is shown.
pub fn finish(child: Child) {
    let output = child.wait_with_output().expect("wait");
    assert!(
        output.status.success(),
        "{}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

/// All ended well, or the output of those that did not is shown: the first to fail is seldom the first in the list.
fn finish_all(children: [Child; 2]) {
    let outputs = children.map(|child| child.wait_with_output().expect("wait"));
    for (side, output) in outputs.iter().enumerate().filter(|(_, output)| !output.status.success()) {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        eprintln!("side {side}: {}\n{out}\n{err}", output.status);
    }
    assert!(outputs.iter().all(|output| output.status.success()));
}

/// Runs `body` in a process of its own.
pub fn alone(test: &str, env: &[(&str, &str)], body: impl FnOnce()) {
    if side_of(test).is_some() {
        return body();
    }
    let fabric = fabric_name(test);
    let (_mine, theirs) = UnixStream::pair().expect("socket pair");
    let mut all = vec![("SOFTRNIC_FABRIC", fabric.as_str())];
    all.extend_from_slice(env);
    finish(start(test, 0, theirs, &all));
    assert_clean(&fabric);
}

/// Runs `body` in two processes that have a line to each other.
pub fn pair(test: &str, env: &[(&str, &str)], body: impl FnOnce(usize, Line)) {
    if let Some(side) = side_of(test) {
        return body(side, Line::inherited());
    }
    let fabric = fabric_name(test);
    let (a, b) = UnixStream::pair().expect("socket pair");
    let mut all = vec![("SOFTRNIC_FABRIC", fabric.as_str())];
    all.extend_from_slice(env);
    let children = [start(test, 0, a, &all), start(test, 1, b, &all)];
    finish_all(children);
    assert_clean(&fabric);
}

/// For tests that start their sides themselves: runs `body` if this process is one of them.
pub fn is_side(test: &str, body: impl FnOnce(usize, Line)) -> bool {
    side_of(test).map(|side| body(side, Line::inherited())).is_some()
}

/// The coordinator's end of a line.
pub fn line(stream: UnixStream) -> Line {
    stream.set_read_timeout(Some(Duration::from_secs(120))).expect("timeout");
    Line(stream)
}

/// The fabric's file is gone.
pub fn assert_clean(fabric: &str) {
    let path = format!("/dev/shm/{fabric}");
    assert!(!std::path::Path::new(&path).exists(), "{path} was left behind");
}
