//! Tests in processes of their own: a library reads its settings once, and some tests kill.
//!
//! A test function runs more than once: first as libtest starts it, then in each process that it starts, which is this program
//! asked for this one test. There the body runs, and then the process ends: what follows in the test function is run by the
//! first one alone, and what precedes by all of them.

use crate::name::test_name;
use crate::peer::Peer;
use crate::process::{BODY_DONE, Process};
use std::cell::Cell;
use std::os::fd::FromRawFd;
use std::os::unix::net::UnixStream;

/// Which body of a test a process is to run, and as which of its sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Calls of [`alone`] and [`pair`] in a test count from 1; 0 is [`enter`].
    pub(crate) call: usize,
    pub(crate) side: usize,
}

impl Place {
    pub(crate) const VARIABLE: &str = "TESTKIT_SIDE";

    pub(crate) fn print(self, test: &str) -> String {
        format!("{}:{}:{test}", self.call, self.side)
    }

    fn parse(text: &str, test: &str) -> Option<Self> {
        let mut words = text.splitn(3, ':');
        let (call, side, name) = (words.next()?, words.next()?, words.next()?);
        (name == test).then_some(Self { call: call.parse().ok()?, side: side.parse().ok()? })
    }

    /// Where this process was started to be.
    fn of_this_process() -> Option<Self> {
        Self::parse(&std::env::var(Self::VARIABLE).ok()?, &test_name())
    }
}

/// Whether this process was started by a test as one of its sides.
#[must_use]
pub fn is_one() -> bool {
    Place::of_this_process().is_some()
}

/// Runs `body` in a process of its own, with `env` added to its environment.
///
/// # Panics
/// With what that printed, if it does not end well.
#[track_caller]
pub fn alone(env: &[(&str, &str)], body: impl FnOnce()) {
    let Some(call) = reach(|_, _| body()) else { return };
    let (_mine, theirs) = UnixStream::pair().expect("a pair of sockets");
    Process::start_at(Place { call, side: 0 }, theirs.into(), env).finish();
}

/// Runs `body` in two processes, sides 0 and 1, with a socket between them.
///
/// # Panics
/// With what both printed, if one does not end well.
#[track_caller]
pub fn pair(env: &[(&str, &str)], body: impl FnOnce(usize, Peer)) {
    let Some(call) = reach(body) else { return };
    let (zero, one) = UnixStream::pair().expect("a pair of sockets");
    let start = |side, socket: UnixStream| Process::start_at(Place { call, side }, socket.into(), env);
    let processes = [start(0, zero), start(1, one)];
    let ended = processes.map(Process::ended);
    // The first to fail is seldom the first in the list: all are shown.
    let failed = ended.iter().any(|ended| !ended.is_body_done());
    assert!(!failed, "side 0: {}\nside 1: {}", ended[0], ended[1]);
    ended.iter().for_each(super::process::Ended::repeat_skips);
}

/// For tests that start their processes themselves ([`Process::start`]): runs `body` and ends if this process is one of them.
pub fn enter(body: impl FnOnce(usize, Peer)) {
    if let Some(place) = Place::of_this_process().filter(|place| place.call == 0) {
        run(place, body);
    }
}

/// The number of this call, in the test itself; `None` where it is another call that this process was started for. Where it is
/// this one, the body runs and the process ends.
fn reach(body: impl FnOnce(usize, Peer)) -> Option<usize> {
    thread_local! {
        // A test has a thread of its own.
        static CALLS: Cell<usize> = const { Cell::new(0) };
    }
    let call = CALLS.get() + 1;
    CALLS.set(call);
    match Place::of_this_process() {
        None => Some(call),
        Some(place) if place.call == call => run(place, body),
        Some(_) => None,
    }
}

fn run(place: Place, body: impl FnOnce(usize, Peer)) -> ! {
    // SAFETY: the starter made descriptor 0 a socket for this process alone, which takes it once: it ends below.
    let socket = unsafe { UnixStream::from_raw_fd(0) };
    body(place.side, Peer::new(socket));
    std::process::exit(BODY_DONE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_read_as_printed_and_only_by_its_own_test() {
        let place = Place { call: 2, side: 1 };
        assert_eq!(Place::parse(&place.print("a::b"), "a::b"), Some(place));
        assert_eq!(Place::parse(&place.print("a::b"), "a"), None);
        for wrong in ["", "1", "1:2", "x:2:a", "1:x:a"] {
            assert_eq!(Place::parse(wrong, "a"), None, "{wrong}");
        }
    }
}
