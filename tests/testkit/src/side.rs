//! Tests in processes of their own: a library reads its settings once, and some tests kill.
//!
//! A test function runs more than once: first as libtest starts it, then in each process that it
//! starts, which is this program asked for this one test. There the body runs, and then the process
//! ends: what follows in the test function is run by the first one alone, and what precedes by all
//! of them.

use crate::peer::Peer;
use crate::process::{BODY_DONE, Process};
use crate::role::Role;
use std::cell::Cell;
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;

/// Whether this process was started by a test as one of its sides.
#[must_use]
pub fn is_one() -> bool {
    Role::of_this_process().is_some()
}

/// Runs `body` in a process of its own, with `env` added to its environment.
#[track_caller]
pub fn alone(env: &[(&str, &str)], body: impl FnOnce()) {
    let Some(call) = reach(|_, _| body()) else { return };
    let (_mine, theirs) = UnixStream::pair().expect("a pair of sockets");
    Process::start_at(Role { call, side: 0 }, theirs.into(), env).finish();
}

/// Runs `body` in two processes, sides 0 and 1, with a socket between them.
#[track_caller]
pub fn pair(env: &[(&str, &str)], body: impl FnOnce(usize, Peer)) {
    let Some(call) = reach(body) else { return };
    let (zero, one) = UnixStream::pair().expect("a pair of sockets");
    let start =
        |side, socket: UnixStream| Process::start_at(Role { call, side }, socket.into(), env);
    let processes = [start(0, zero), start(1, one)];
    let ended = processes.map(Process::ended);
    // The first to fail is seldom the first in the list: all are shown.
    let failed = ended.iter().any(|ended| !ended.is_body_done());
    assert!(!failed, "side 0: {}\nside 1: {}", ended[0], ended[1]);
    ended.iter().for_each(super::process::Ended::repeat_skips);
}

/// For tests that start their processes themselves ([`Process::start`]): runs `body` and ends if
/// this process is one of them.
pub fn enter(body: impl FnOnce(usize, Peer)) {
    if let Some(role) = Role::of_this_process().filter(|role| role.call == 0) {
        run(role, body);
    }
}

/// Ends this process at once, as one whose body has ended well, without its exit handlers.
pub fn exit_without_handlers() -> ! {
    // SAFETY: ends here.
    unsafe { libc::_exit(BODY_DONE) }
}

/// The number of this call, in the test itself; `None` where it is another call that this process
/// was started for. Where it is this one, the body runs and the process ends.
fn reach(body: impl FnOnce(usize, Peer)) -> Option<usize> {
    thread_local! {
        // A test has a thread of its own.
        static CALLS: Cell<usize> = const { Cell::new(0) };
    }
    let call = CALLS.get() + 1;
    CALLS.set(call);
    match Role::of_this_process() {
        None => Some(call),
        Some(role) if role.call == call => run(role, body),
        Some(_) => None,
    }
}

fn run(role: Role, body: impl FnOnce(usize, Peer)) -> ! {
    // SAFETY: the starter made descriptor 0 a socket for this process alone, which takes it once:
    // it ends below.
    let socket = unsafe { UnixStream::from_raw_fd(0) };
    body(role.side, Peer::new(socket));
    std::process::exit(BODY_DONE)
}
