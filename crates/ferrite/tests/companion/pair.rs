//! Two processes driven from one test: the happy path, and every way in which one can fail.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{loopback, setting};
use lab::error::Error;
use lab::error::Result;
use lab::nccl::library::Source;
use lab::pair;
use lab::pair::PeerConn;
use lab::pair::worker_ctx::Pages;
use lab::transport::Transport;
use lab::transport::buffer::Buffer;
use lab::transport::deadline::finished;
use lab::transport::deadline::posted;
use testkit::test_name;

#[test]
fn a_message_arrives_each_way() -> Result<()> {
    let sizes = pair::run(&test_name(), &setting(), |worker| {
        let transport = Transport::open(&Source::plugin(loopback()))?;
        assert_eq!(transport.name(), "Loopback");
        assert_eq!(transport.devices()?, 1);
        assert_eq!(transport.properties(0)?.name, "loop0");
        let link = PeerConn::open(worker, &transport, 0)?;
        let memory = Arc::new(Buffer::new(8192)?);
        let (out, into) = (link.send.register(&memory)?, link.recv.register(&memory)?);
        let text = format!("hello from {}", worker.rank());
        memory.write(0, text.as_bytes())?;
        let mut deadline = worker.deadline("a message");
        let mut sizes = [0];
        let receive = posted(&mut deadline, || link.recv.receive(&into, 4096, 4096, 5))?;
        let send = posted(&mut deadline, || link.send.send(&out, 0, text.len(), 5))?;
        finished(&mut deadline, send, &mut sizes)?;
        finished(&mut deadline, receive, &mut sizes)?;
        let got = memory.read(4096, usize::try_from(sizes[0]).unwrap_or(0))?;
        drop((out, into));
        link.close()?;
        Ok(String::from_utf8_lossy(&got).into_owned())
    })?;
    assert_eq!(sizes, ["hello from 1", "hello from 0"]);
    Ok(())
}

#[test]
fn buffers_lie_in_the_pages_that_the_parent_has_for_the_rank() -> Result<()> {
    let mut setting = setting();
    setting.pages = Some(Pages::of_both_ranks()?);
    let mut seen = Vec::new();
    // The same closure in two pairs of processes, one after the other.
    for _ in 0..2 {
        seen.push(pair::run(&test_name(), &setting, |worker| {
            let (first, second) = (worker.buffer(4096)?, worker.buffer(8192)?);
            let found = [first.read(0, 1)?[0], second.read(8191, 1)?[0]];
            first.write(0, &[10 + worker.rank() as u8])?;
            second.write(8191, &[20 + worker.rank() as u8])?;
            Ok(found)
        })?);
    }
    assert_eq!(seen, [[[0, 0], [0, 0]], [[10, 20], [11, 21]]]);
    Ok(())
}

/// What the parent gets when the processes do `body`.
fn failing(test: &str, body: impl FnOnce(&mut pair::WorkerCtx) -> Result<()>) -> (usize, String, Vec<String>) {
    match pair::run(test, &setting(), body) {
        Err(Error::Worker { rank, what, log, .. }) => (rank, what, log),
        other => panic!("expected a failed worker, got {other:?}"),
    }
}

#[test]
fn a_dead_process_is_named_with_its_last_lines() {
    let (rank, what, log) = failing("pair::a_dead_process_is_named_with_its_last_lines", |worker| {
        worker.begin("dying")?;
        if worker.rank() == 1 {
            eprintln!("goodbye");
            std::process::abort();
        }
        worker.barrier()
    });
    assert_eq!(rank, 1);
    assert_eq!(what, "the process died while dying (signal 6 SIGABRT)");
    assert!(log.iter().any(|line| line == "goodbye"), "{log:?}");
}

#[test]
fn a_hung_process_is_given_up() {
    let mut setting = setting();
    setting.silence = Duration::from_secs(5);
    let outcome = pair::run(&test_name(), &setting, |worker| {
        worker.begin("sleeping")?;
        std::thread::sleep(Duration::from_secs(3600));
        Ok(())
    });
    let Err(Error::Worker { what, .. }) = outcome else { panic!("expected a failed worker, got {outcome:?}") };
    assert!(what.contains("no sign of life for 5.0 s"), "{what}");
    assert!(what.contains("rank 1 was sleeping"), "{what}");
}

#[test]
fn the_error_of_the_process_that_failed_first_is_reported() {
    let (rank, what, _) = failing("pair::the_error_of_the_process_that_failed_first_is_reported", |worker| {
        if worker.rank() == 1 {
            return Err(Error::Data("the real reason".into()));
        }
        // The peer's end closes when its process ends.
        worker.barrier()
    });
    assert_eq!((rank, what.as_str()), (1, "wrong data: the real reason"));
}

#[test]
fn a_failed_assertion_is_reported() {
    let (_, what, _) = failing("pair::a_failed_assertion_is_reported", |worker| {
        assert!(worker.rank() > 1, "no such rank");
        Ok(())
    });
    assert_eq!(what, "wrong data: no such rank");
}

#[test]
fn a_failing_init_shows_the_transports_own_words() {
    let mut setting = setting().env("LOOPBACK_FAULT", "init");
    setting.pin = false;
    let outcome = pair::run(&test_name(), &setting, |_| Transport::open(&Source::plugin(loopback())).map(|_| ()));
    let Err(Error::Worker { what, log, .. }) = outcome else {
        panic!("expected a failed worker, got {outcome:?}");
    };
    assert!(what.starts_with("Loopback: init returned 2 (ncclSystemError"), "{what}");
    assert!(log.iter().any(|line| line.contains("told to fail")), "{log:?}");
}

#[test]
fn a_wrong_test_name_is_a_clear_error() {
    let outcome = pair::run("no_such_test", &setting(), |_| Ok(()));
    assert!(matches!(outcome, Err(Error::Misuse(_))), "{outcome:?}");
}
