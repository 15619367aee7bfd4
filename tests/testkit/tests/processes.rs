//! Tests in processes of their own: a program apart, because it looks at how its own tests end.

use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::process::Process;
use testkit::side::{alone, enter, exit_without_handlers, pair};
use testkit::wait::wait_until;

/// The processes of [`pair`] and [`alone`] are others than the test's, and each has its
/// environment.
#[test]
fn a_body_runs_in_a_process_of_its_own_with_its_environment() {
    // Before the call: both processes come by here.
    let pid = std::process::id().to_string();
    let env = [("TESTKIT_PARENT", pid.as_str()), ("TESTKIT_WORD", "one")];
    alone(&env, || {
        assert_ne!(
            std::env::var("TESTKIT_PARENT").expect("it is set"),
            std::process::id().to_string()
        );
        assert_eq!(std::env::var("TESTKIT_WORD").as_deref(), Ok("one"));
    });
}

#[test]
fn a_test_may_have_several_bodies_each_in_its_own_process() {
    static RUN: AtomicUsize = AtomicUsize::new(0);
    alone(&[("TESTKIT_WORD", "one")], || {
        RUN.fetch_add(1, Ordering::Relaxed);
        assert_eq!(std::env::var("TESTKIT_WORD").as_deref(), Ok("one"));
    });
    alone(&[("TESTKIT_WORD", "two")], || {
        assert_eq!(RUN.load(Ordering::Relaxed), 0, "the first body has run in this process");
        assert_eq!(std::env::var("TESTKIT_WORD").as_deref(), Ok("two"));
    });
    assert!(!testkit::side::is_one(), "what follows is for the test itself");
}

#[test]
fn two_processes_have_a_socket_between_them() {
    pair(&[], |side, mut peer| {
        assert_eq!(peer.swap(&side), 1 - side);
        peer.barrier();
    });
}

#[test]
#[should_panic(expected = "this reason")]
fn a_body_that_panics_fails_the_test_which_shows_what_it_printed() {
    alone(&[], || panic!("this reason"));
}

#[test]
#[should_panic(expected = "side 1: exit status: 101")]
fn a_panic_of_one_side_fails_the_test() {
    pair(&[], |side, _peer| assert_eq!(side, 0));
}

#[test]
#[should_panic(expected = "without having run the body")]
fn a_process_that_does_not_reach_a_body_fails_the_test() {
    let (process, _peer) = Process::start(0, &[]);
    // In the started process this is where it would be reached.
    if testkit::side::is_one() {
        std::process::exit(0);
    }
    process.finish();
}

#[test]
fn a_body_that_ends_its_process_without_handlers_has_ended_well() {
    extern "C" fn fail() {
        // SAFETY: ends here.
        unsafe { libc::_exit(1) };
    }
    alone(&[], || {
        // SAFETY: a function that may be called at the end.
        assert_eq!(unsafe { libc::atexit(fail) }, 0);
        exit_without_handlers();
    });
}

/// What a process does that is to be examined.
fn dies_in_its_way(side: usize, mut peer: testkit::Peer) {
    println!("side {side} was here");
    match side {
        0 => std::process::abort(),
        1 => testkit::crash::die(),
        2 => {
            peer.send(&1_u8);
            peer.recv::<u8>();
        }
        _ => unreachable!("there are three"),
    }
}

#[test]
fn a_process_that_aborts_or_is_killed_can_be_examined() {
    enter(dies_in_its_way);
    for (side, signal) in [(0, libc::SIGABRT), (1, libc::SIGKILL)] {
        let (process, mut peer) = Process::start(side, &[]);
        assert_eq!(peer.try_recv::<u8>(), None);
        let ended = process.ended();
        assert!(ended.is_killed_by(signal) && !ended.is_body_done(), "{ended}");
        assert!(ended.output.contains(&format!("side {side} was here")), "{ended}");
    }
    let (mut process, mut peer) = Process::start(2, &[]);
    assert_eq!(peer.recv::<u8>(), 1);
    assert!(process.is_running() && process.output().contains("side 2 was here"));
    process.signal(libc::SIGTERM);
    wait_until("its end", || !process.is_running());
    assert!(process.ended().is_killed_by(libc::SIGTERM));
}

#[test]
fn a_process_can_be_started_by_another_program() {
    enter(|side, mut peer| {
        assert_eq!((side, std::env::var("TESTKIT_WORD").as_deref()), (7, Ok("by env")));
        peer.send(&1_u8);
    });
    let mut starter = std::process::Command::new("env");
    starter.arg("TESTKIT_WORD=by env").arg(testkit::process::this_program());
    let (process, mut peer) = Process::start_by(starter, 7, &[("TESTKIT_WORD", "overwritten")]);
    assert_eq!(peer.try_recv::<u8>(), Some(1));
    process.finish();
}

#[test]
fn a_process_that_is_dropped_is_killed() {
    enter(dies_in_its_way);
    let (process, mut peer) = Process::start(2, &[]);
    assert_eq!(peer.recv::<u8>(), 1);
    let pid = process.pid() as i32;
    drop(process);
    assert_eq!(peer.try_recv::<u8>(), None, "its end of the socket is closed");
    // SAFETY: only asks whether there is such a child.
    let rc = unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::WNOHANG) };
    assert_eq!(rc, -1, "it is waited for");
}
