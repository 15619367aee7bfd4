//! Peers that die, give up or close while a connection recovers.

use crate::common::prelude::*;
use crate::fabric::{Fabric, run};
use crate::stream::{SHORT, Stream};
use testkit::crash::die;

fn is_remote(error: &Error) -> bool {
    matches!(error, Error::Call { code: abi::ncclRemoteError, .. })
}

/// Messages until rank 1, a child process, is killed `time` after both ends have connected; rank 0
/// gets an error.
fn a_peer_dies(rules: &str, time: Duration) -> Result<()> {
    run(Fabric::OneRail, &[("SOFTRNIC_FAULTS", rules)], |worker| {
        if worker.rank() == 1 {
            in_child_that_dies(|| {
                let Ok(mut stream) = Stream::open(worker, SHORT) else { return };
                let Ok(()) = worker.barrier() else { return };
                let killer = move || {
                    std::thread::sleep(time);
                    die();
                };
                std::thread::spawn(killer);
                drop(stream.exchange(worker, usize::MAX));
                std::thread::sleep(time);
            });
            return worker.barrier();
        }
        let mut stream = Stream::open(worker, SHORT)?;
        worker.barrier()?;
        let error = stream.exchange(worker, usize::MAX).expect_err("the peer has died");
        assert!(is_remote(&error), "{error}");
        assert!(said(&["has died"]), "{}", log());
        stream.close_at_once()?;
        worker.barrier()
    })
}

cases! { Result<()>;
    the_death_of_a_peer_is_reported_while_this_end_has_no_port =>
        a_peer_dies("port-down=30s device=softrnic0 message=60 times=1", Duration::from_millis(500));
    the_death_of_a_peer_is_reported_while_the_peer_has_no_port =>
        a_peer_dies("port-down=30s device=softrnic1 message=60 times=1", Duration::from_millis(500));
}

#[test]
fn the_death_of_a_peer_is_reported_amid_flaps() -> Result<()> {
    a_peer_dies(
        "port-down=2ms device=softrnic0 message=20; port-down=2ms device=softrnic1 message=25",
        Duration::from_millis(700),
    )
}

/// Rank 1 gives up after so long, with messages under way. Its closing does not fail, and rank 0 is
/// told.
fn a_peer_gives_up(fabric: Fabric, rules: &str, times: &[u64]) -> Result<()> {
    run(fabric, &[("SOFTRNIC_FAULTS", rules)], |worker| {
        for time in times {
            worker.begin(format!("to give up after {time} ms"))?;
            let mut stream = Stream::open(worker, SHORT)?;
            worker.barrier()?;
            if worker.rank() == 1 {
                stream.exchange_for(worker, Duration::from_millis(*time))?;
                stream.close_at_once()?;
            } else {
                let error = stream.exchange(worker, usize::MAX).expect_err("the peer has given up");
                assert!(is_remote(&error), "{error}");
                stream.close_at_once()?;
            }
            worker.barrier()?;
            // A port that is down comes back.
            std::thread::sleep(Duration::from_millis(20));
        }
        worker.barrier()
    })
}

#[test]
fn a_peer_that_gives_up_during_a_recovery_is_reported_at_any_step() -> Result<()> {
    let times: Vec<_> = (0..30).map(|round| 20 + 3 * round).collect();
    let rules =
        "port-down=5ms device=softrnic0 message=20; port-down=5ms device=softrnic1 message=25";
    a_peer_gives_up(Fabric::OneRail, rules, &times)
}

cases! { Result<()>;
    a_peer_that_gives_up_while_its_port_is_down_is_reported =>
        a_peer_gives_up(Fabric::OneRail, "port-down device=softrnic1 message=20", &[300]);
    a_peer_that_gives_up_while_the_other_port_is_down_is_reported =>
        a_peer_gives_up(Fabric::OneRail, "port-down device=softrnic0 message=20", &[300]);
}

/// The receiver has all messages and closes; the sender has had no acknowledgement of the last one.
#[test]
fn messages_that_were_not_acknowledged_are_done_when_the_receiver_closes_in_good_order()
-> Result<()> {
    const COUNT: i32 = 5;
    let rules = "drop-ack attempts=all opcode=write-imm device=softrnic0 message=5..";
    run(Fabric::OneRail, &[("SOFTRNIC_FAULTS", rules)], |worker| good_order(worker, COUNT))
}

fn good_order(worker: &mut WorkerCtx, count: i32) -> Result<()> {
    let transport = plugin_transport()?;
    let PeerConn { send, recv } = PeerConn::open(worker, &transport, worker.rank())?;
    let memory = Arc::new(Buffer::new(4096)?);
    let mut deadline = worker.deadline("messages one way");
    if worker.rank() == 1 {
        let into = recv.register(&memory)?;
        for number in 0..count {
            let receive = posted(&mut deadline, || recv.receive(&into, 0, 64, number))?;
            finished(&mut deadline, receive, &mut [0])?;
        }
        drop(into);
        recv.close()?;
        return worker.barrier();
    }
    let out = send.register(&memory)?;
    for number in 0..count {
        let sending = posted(&mut deadline, || send.send(&out, 0, 64, number))?;
        finished(&mut deadline, sending, &mut [0])?;
    }
    // It has closed: another message cannot be sent.
    let error = loop {
        match send.send(&out, 0, 64, count) {
            Ok(_) => deadline.idle()?,
            Err(error) => break error,
        }
    };
    assert!(is_remote(&error), "{error}");
    worker.barrier()
}
