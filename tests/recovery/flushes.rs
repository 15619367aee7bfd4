//! Flushes of received data to GPU memory while their connection recovers: each ends, and none
//! before its read has been answered.

use crate::common::flushes::Flushes;
use crate::common::prelude::*;
use crate::common::stat::devices;
use crate::fabric::{Fabric, applied, inject_only, recoveries, run, set_port};
use crate::stream::{SHORT, Stream};
use std::ffi::c_void;

/// Where there are two rails, each carries a part of such a message.
const BYTES: usize = 1 << 18;

/// Connected, with a message that each end has received.
fn open(worker: &mut WorkerCtx) -> Result<Flushes> {
    let flushes = Flushes::open(worker, BYTES)?;
    flushes.exchange(worker, BYTES)?;
    Ok(flushes)
}

/// Begins to flush the message that has been received.
fn begin(flushes: &Flushes) -> Result<*mut c_void> {
    let (code, request) = flushes.flush(BYTES)?;
    assert_eq!((code, request.is_null()), (abi::ncclSuccess, false));
    Ok(request)
}

fn finish(flushes: &Flushes, worker: &WorkerCtx, request: *mut c_void) -> Result<()> {
    let mut deadline = worker.deadline("a flush");
    while !flushes.test(request).expect("no error") {
        deadline.idle()?;
    }
    Ok(())
}

/// Tests of a flush that has not to be done: more than a completion that is there already needs.
const IN_VAIN: usize = 1000;

/// Longer than the retries of one read, and much less than those of as many as may fail.
const READ_FAILS: Duration = Duration::from_millis(700);

/// All reads are lost; the connection recovers meanwhile. The flush does not count as done by that.
#[test]
fn a_flush_that_is_under_way_when_the_port_falls_is_done_when_a_read_has_been_answered()
-> Result<()> {
    let env = [("NCCL_IB_TIMEOUT", "14"), ("SOFTRNIC_LOOPBACK_DOWN", "lost")];
    run(Fabric::OneRail, &env, |worker| {
        let flushes = open(worker)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            inject_only("drop attempts=all opcode=read");
            let before = recoveries();
            let request = begin(&flushes)?;
            set_port("softrnic0/1", "down");
            wait_until("the fault is seen", || said(&[" is recovering: "]));
            set_port("softrnic0/1", "up");
            wait_until("the connection goes on", || recoveries() > before);
            let begin = Instant::now();
            while begin.elapsed() < READ_FAILS {
                assert!(flushes.test(request) == Ok(false), "no read has been answered");
                std::thread::sleep(Duration::from_micros(100));
            }
            inject_only("");
            finish(&flushes, worker, request)?;
        }
        worker.barrier()?;
        flushes.exchange(worker, BYTES)?;
        flushes.close(worker)
    })
}

/// The port of rank 0 goes down, and the queue pairs of its connections with it.
fn fall() {
    set_port("softrnic0/1", "down");
    wait_until("the end of the queue pairs", || {
        said(&["recovering the connection", "destroys its queue pairs"])
    });
}

#[test]
fn a_flush_that_begins_while_the_port_is_down_is_done_when_it_is_back() -> Result<()> {
    run(Fabric::OneRail, &[], |worker| {
        let flushes = open(worker)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            fall();
            let request = begin(&flushes)?;
            assert!((0..IN_VAIN).all(|_| flushes.test(request) == Ok(false)), "the port is down");
            set_port("softrnic0/1", "up");
            finish(&flushes, worker, request)?;
        }
        worker.barrier()?;
        flushes.exchange(worker, BYTES)?;
        flushes.close(worker)
    })
}

/// No queue pair of the connection is left then: the read goes over one that the flush makes on the
/// port itself.
#[test]
fn a_flush_is_done_though_the_peer_has_closed_the_connection_during_a_recovery() -> Result<()> {
    run(Fabric::OneRail, &[], |worker| {
        let flushes = open(worker)?;
        worker.barrier()?;
        if worker.rank() == 1 {
            worker.barrier()?;
            flushes.close(worker)?;
            worker.barrier()?;
            return worker.barrier();
        }
        fall();
        let request = begin(&flushes)?;
        worker.barrier()?;
        worker.barrier()?;
        worker.barrier()?;
        set_port("softrnic0/1", "up");
        finish(&flushes, worker, request)?;
        flushes.close(worker)
    })
}

cases! { Result<()>;
    /// The read goes over the device as it is open then, with the key that the memory has there.
    a_flush_that_is_under_way_when_the_device_fails_is_done_when_it_is_back =>
        under_way_when_the_device_fails(&[]);
    a_flush_that_is_under_way_when_the_device_fails_and_completes_nothing_more_is_done_when_it_is_back =>
        under_way_when_the_device_fails(&[("SOFTRNIC_SILENT_FAILURE", "1")]);
}

fn under_way_when_the_device_fails(env: &[(&str, &str)]) -> Result<()> {
    run(Fabric::OneRail, env, |worker| {
        // Its messages make the device fail.
        let trigger = Stream::open(worker, SHORT)?;
        let flushes = open(worker)?;
        let before = begin(&flushes)?;
        finish(&flushes, worker, before)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            inject_only(
                "drop attempts=all opcode=read; device-fatal=500ms device=softrnic0 opcode=write-imm times=1",
            );
            let request = begin(&flushes)?;
            trigger.exchange_until(worker, || said(&["softrnic0: fatal device error"]))?;
            inject_only("");
            finish(&flushes, worker, request)?;
        } else {
            trigger.exchange_until(worker, || said(&["recovering the connection"]))?;
        }
        worker.barrier()?;
        flushes.exchange(worker, BYTES)?;
        let again = begin(&flushes)?;
        finish(&flushes, worker, again)?;
        worker.barrier()?;
        trigger.close_at_once()?;
        flushes.close(worker)
    })
}

/// A device's queue pair that is connected to itself, as that of a flush is: its number, and the
/// work requests that have been posted to it.
fn flush_queue_pair(device: usize) -> Option<[u64; 2]> {
    let devices = devices();
    let queue_pairs = devices[device]["queue_pairs"].as_array().expect("queue pairs");
    let port = format!("softrnic{device}/1");
    let own = queue_pairs
        .iter()
        .find(|qp| qp["peer"]["port"] == port && qp["peer"]["number"] == qp["number"])?;
    Some([&own["number"], &own["work"]["requests"]].map(|value| value.as_u64().expect("a number")))
}

/// The read over rail 0 fails, and is posted again. That over rail 1 is under way all the time,
/// since the device's retry does not come.
#[test]
fn a_read_that_is_under_way_is_not_posted_again_when_that_over_another_rail_is() -> Result<()> {
    run(Fabric::TwoRails, &[("NCCL_IB_TIMEOUT", "22")], |worker| {
        let flushes = open(worker)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            let fails = "qp-error opcode=read device=softrnic0 times=1";
            inject_only(&format!("{fails}; drop attempts=all opcode=read device=softrnic1"));
            let request = begin(&flushes)?;
            let [failed, waiting] =
                [0, 1].map(|device| flush_queue_pair(device).expect("a read over each rail"));
            assert_eq!([failed[1], waiting[1]], [1, 1]);
            wait_until("another read over rail 0", || {
                assert!(
                    flushes.test(request) == Ok(false),
                    "the read over rail 1 has not been answered"
                );
                flush_queue_pair(0).is_some_and(|again| again[0] != failed[0] && again[1] > 0)
            });
            assert!(
                (0..IN_VAIN).all(|_| flushes.test(request) == Ok(false)),
                "the read over rail 1 has not been answered"
            );
            assert_eq!(flush_queue_pair(1), Some(waiting));
        }
        worker.barrier()?;
        flushes.close(worker)
    })
}

/// Twice there is no queue pair to read over, for a reason that is not known to pass.
#[test]
fn a_flush_for_which_no_queue_pair_can_be_connected_is_done_when_one_can() -> Result<()> {
    run(Fabric::OneRail, &[], |worker| {
        let flushes = open(worker)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            inject_only("modify-qp=EINVAL device=softrnic0 times=2");
            let request = begin(&flushes)?;
            finish(&flushes, worker, request)?;
            assert_eq!(applied()[0].1, 2);
        }
        worker.barrier()?;
        flushes.close(worker)
    })
}

/// Nothing comes of the first read any more, and the device says so of a queue that is none of the
/// connection's.
#[test]
fn a_flush_whose_completion_queue_fails_is_done_over_another_one_and_no_connection_ends()
-> Result<()> {
    run(Fabric::OneRail, &[], |worker| {
        let flushes = open(worker)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            inject_only("cq-overrun opcode=read device=softrnic0 times=1");
            let request = begin(&flushes)?;
            wait_until("the failure of the queue", || {
                said(&["softrnic0: a completion queue has failed"])
            });
            finish(&flushes, worker, request)?;
            assert_eq!(applied()[0].1, 1);
        }
        worker.barrier()?;
        flushes.exchange(worker, BYTES)?;
        assert_eq!(recoveries(), 0);
        flushes.close(worker)
    })
}

/// The queue pairs of that rail are gone, and with them its writes; what they have written is read
/// all the same.
#[test]
fn a_flush_of_what_came_over_a_rail_that_is_lost_reads_over_the_other_one() -> Result<()> {
    run(Fabric::TwoRails, &[], |worker| {
        let flushes = open(worker)?;
        flushes.exchange(worker, 8)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            finish(&flushes, worker, begin(&flushes)?)?;
            let used = [0, 1].map(|device| flush_queue_pair(device).is_some());
            assert!(used[0] != used[1], "so short a message comes over one rail");
            let lost = usize::from(used[1]);
            set_port(&format!("softrnic{lost}/1"), "down");
            wait_until("both connections to go on over the other rail", || recoveries() > 1);
            finish(&flushes, worker, begin(&flushes)?)?;
            assert!(flush_queue_pair(1 - lost).is_some());
        }
        worker.barrier()?;
        flushes.exchange(worker, BYTES)?;
        flushes.close(worker)
    })
}

/// Without failover nothing is tried again.
#[test]
fn a_read_that_is_refused_ends_a_connection_that_does_not_recover() -> Result<()> {
    run(Fabric::OneRail, &[("FERRITE_FAILOVER", "0")], |worker| {
        let flushes = open(worker)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            inject_only("post-send=EIO device=softrnic0 times=1");
            let refused = flushes.flush(BYTES)?;
            assert_eq!((refused.0, refused.1.is_null()), (abi::ncclSystemError, true));
            assert_eq!(flushes.flush(BYTES)?, refused, "the error stays");
        }
        worker.barrier()
    })
}
