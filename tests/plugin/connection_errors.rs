//! Connections that end while messages are on their way: peers that die or give up, memory that is
//! gone. Both sides get an error.

use crate::common::prelude::*;
use testkit::crash::die;

/// Both ways one message per round, for so many rounds.
fn traffic(worker: &mut WorkerCtx, rounds: usize) -> Result<()> {
    let transport = plugin_transport()?;
    let link = PeerConn::open(worker, &transport, 0)?;
    let memory = Arc::new(Buffer::new(4096)?);
    let (out, into) = (link.send.register(&memory)?, link.recv.register(&memory)?);
    let mut deadline = worker.deadline("traffic");
    let mut round = || {
        let receive = posted(&mut deadline, || link.recv.receive(&into, 2048, 64, 0))?;
        let send = posted(&mut deadline, || link.send.send(&out, 0, 64, 0))?;
        finished(&mut deadline, send, &mut [0])?;
        finished(&mut deadline, receive, &mut [0])
    };
    let outcome = (0..rounds).try_for_each(|_| round());
    if worker.rank() == 1 {
        die();
    }
    let error = outcome.expect_err("the peer has died");
    assert!(matches!(error, Error::Call { code: abi::ncclRemoteError, .. }), "{error}");
    assert_logged("has died");
    // The same again, at once and without another line, on both communicators; and closing is no
    // problem.
    wait_until("the error on both communicators", || {
        link.recv.receive(&into, 2048, 64, 0).is_err() && link.send.send(&out, 0, 64, 0).is_err()
    });
    let lines = lab::nccl::debug_log::lines().len();
    for _ in 0..1000 {
        assert!(link.recv.receive(&into, 2048, 64, 0).is_err());
        assert!(link.send.send(&out, 0, 64, 0).is_err());
    }
    assert!(lab::nccl::debug_log::lines().len() <= lines + 2, "the log is flooded");
    drop((out, into));
    link.close()
}

#[test]
fn a_peer_killed_in_mid_traffic_is_reported_once_on_both_communicators() -> Result<()> {
    both(setting(), |worker| {
        match worker.rank() {
            0 => traffic(worker, usize::MAX)?,
            _ => in_child_that_dies(|| drop(traffic(worker, 1000))),
        }
        worker.barrier()
    })
}

/// NCCL aborts a communicator with messages on their way: the other side gets an error, and need
/// not wait for its device.
#[test]
fn a_receiver_closed_with_receives_outstanding_ends_the_sender() -> Result<()> {
    alone(setting(), |worker| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let (send, recv) = connect(worker, &transport, &handle, &mut listener)?;
        let memory = Arc::new(Buffer::new(8192)?);
        let (out, into) = (send.register(&memory)?, recv.register(&memory)?);
        let mut deadline = worker.deadline("the end");
        let _never_tested = recv.receive(&into, 4096, 64, 7)?.expect("room");
        drop(into);
        recv.close()?;
        while send.send(&out, 0, 64, 0).is_ok() {
            deadline.idle()?;
        }
        assert_logged("the peer gave up: the receiver was closed with receives outstanding");
        Ok(())
    })
}

/// A buffer is freed too early: the device refuses the write, and the line says which write, where,
/// and the likely cause.
#[test]
fn a_failed_completion_names_both_ends_and_the_likely_cause() -> Result<()> {
    alone(setting(), |worker| {
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let (send, recv) = connect(worker, &transport, &handle, &mut listener)?;
        let (mine, theirs) = (Arc::new(Buffer::new(4096)?), Arc::new(Buffer::new(4096)?));
        let (out, into) = (send.register(&mine)?, recv.register(&theirs)?);
        let mut deadline = worker.deadline("the failure");
        let _never_arrives = recv.receive(&into, 0, 64, 7)?.expect("room");
        drop(into);
        let mut sending = posted(&mut deadline, || send.send(&out, 0, 64, 7))?;
        let failure = loop {
            match sending.test(&mut [0]) {
                Ok(done) => assert!(!done, "the buffer is gone"),
                Err(error) => break error,
            }
            deadline.idle()?;
        };
        assert!(matches!(failure, Error::Call { code: abi::ncclRemoteError, .. }), "{failure}");
        let line = lab::nccl::debug_log::lines()
            .into_iter()
            .find(|l| l.contains("sending data on softrnic1"))
            .expect("a line");
        for part in [
            "remote access error (status 10)", "local GID ", "remote GID ", "queue pair ",
            "peer softrnic0 port 1", "likely: ",
        ] {
            assert!(line.contains(part), "{part:?} is not in {line}");
        }
        Ok(())
    })
}
