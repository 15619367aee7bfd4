//! Devices that fail and come back: they are opened again, and the connections resume over them
//! with the memory that NCCL has registered.

use crate::common::prelude::*;
use crate::errors::ends_with;
use crate::fabric::{
    Fabric, all_arrives, all_arrives_on_each_fabric, applied, begin_softrnic, end, exchange_until,
    inject_only, run, softrnic,
};
use crate::rails::until_rail_1;
use crate::stream::{LONG, SHORT, Shape, Stream};

all_arrives_on_each_fabric!(
    all_arrives_if_a_device_of_rank_0_fails_for_300_ms,
    "device-fatal=300ms device=RANK0 message=60 times=1",
    crate::stream::LONG,
    300
);

all_arrives_on_each_fabric!(
    all_arrives_if_a_device_of_rank_1_fails_for_300_ms,
    "device-fatal=300ms device=RANK1 message=60 times=1",
    crate::stream::LONG,
    300
);

#[test]
fn all_arrives_if_devices_of_both_ranks_fail_at_once() -> Result<()> {
    let rules = "device-fatal=200ms device=softrnic0 message=60 times=1; device-fatal=300ms device=softrnic1 message=60 times=1";
    all_arrives(Fabric::OneRail, rules, LONG, 300)
}

// The receiver's device refuses to move queue pairs to state ERROR, and still receives.
all_arrives_on_each_fabric!(
    all_arrives_if_a_device_refuses_commands_before_it_fails,
    "device-fatal=100ms refuses=400ms device=RANK1 message=50 times=1; \
     late=200ms attempts=all opcode=write-imm device=RANK0 message=60.. for=100ms",
    crate::stream::SHORT,
    600
);

/// The other rail could resume at once, but the device still writes what comes late over the queue
/// pairs that it does not give up.
#[test]
fn nothing_is_written_to_a_buffer_that_is_used_again_by_a_device_that_refuses_commands()
-> Result<()> {
    let rules = "device-fatal=100ms refuses=400ms device=softrnic1 message=50 times=1; \
                 late=200ms attempts=all opcode=write-imm device=softrnic3 message=60.. for=100ms";
    run(Fabric::TwoRails, &[("SOFTRNIC_FAULTS", rules)], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        let is_over = || {
            let are_applied = applied().iter().all(|(_, count)| *count > 0);
            are_applied && said(&["softrnic1: the device that was lost is closed"])
        };
        exchange_until(worker, &mut stream, "the device fails, and is back", is_over)?;
        end(worker, stream)
    })
}

/// Both cards of rank 0 are away at the same time.
#[test]
fn all_arrives_if_both_devices_of_a_rank_fail() -> Result<()> {
    let rules = "device-fatal=1s device=softrnic0 message=60 times=1; device-fatal=2s device=softrnic1 message=80 times=1";
    all_arrives(Fabric::TwoRails, rules, LONG, 300)
}

/// The device fails again soon after the connection has gone on.
#[test]
fn all_arrives_if_a_device_fails_again_and_again() -> Result<()> {
    all_arrives(
        Fabric::OneRail,
        "device-fatal=20ms device=softrnic0 message=20 times=10",
        SHORT,
        600,
    )
}

/// Each time it is closed before it is opened again, or soon after.
#[test]
fn nothing_is_left_of_devices_that_have_failed() -> Result<()> {
    const TIMES: usize = 3;
    let rule = "device-fatal=20ms device=softrnic0 message=20 times=3";
    run(Fabric::OneRail, &[("SOFTRNIC_FAULTS", rule)], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        let times = || applied().iter().all(|(_, count)| *count == TIMES as u64);
        exchange_until(worker, &mut stream, "a device that has come back", times)?;
        stream.exchange(worker, 50)?;
        if worker.rank() == 0 {
            let count = |words: &str| log().matches(words).count();
            // Of two faults at the same time the device fails once.
            let back =
                || count("softrnic0: the device is back after a fatal error, and open again");
            let closed = || count("softrnic0: the device that was lost is closed");
            wait_until("all that were lost are closed", || back() > 0 && closed() >= back());
        }
        end(worker, stream)
    })
}

/// Rank 0 loses rail 1, or rank 1 does: the connection resumes over rail 0, and rail 1 carries its
/// part again when the device is back.
fn a_device_of_rail_1_returns(device: &str) -> Result<()> {
    run(Fabric::TwoRails, &[], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        let is_part = |bytes: u64| bytes > 20 * SHORT.bytes as u64 / 5;
        until_rail_1(worker, &mut stream, "both rails", is_part)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            inject_only(&format!("device-fatal=3s device={device} times=1"));
        }
        until_rail_1(worker, &mut stream, "rail 0 alone", |bytes| bytes == 0)?;
        // Memory that is registered while the device is away is registered there later.
        let mut stream = stream.with_new_memory()?;
        until_rail_1(worker, &mut stream, "both rails again", is_part)?;
        assert!(said(&["recovered on rail(s) 0 of"]), "{}", log());
        end(worker, stream)
    })
}

cases! { Result<()>;
    a_rail_carries_its_part_again_when_its_device_of_rank_0_is_back =>
        a_device_of_rail_1_returns("softrnic1");
    a_rail_carries_its_part_again_when_its_device_of_rank_1_is_back =>
        a_device_of_rail_1_returns("softrnic3");
}

/// Device 0 fails for so long, once there is a message of `trigger`, and both ranks know.
fn fail_device_0(worker: &mut WorkerCtx, trigger: &Stream, time: &str) -> Result<()> {
    worker.barrier()?;
    if worker.rank() == 0 {
        inject_only(&format!("device-fatal={time} device=softrnic0 times=1"));
        trigger.exchange_until(worker, || said(&["softrnic0: fatal device error"]))?;
    } else {
        trigger.exchange_until(worker, || said(&["recovering the connection"]))?;
    }
    worker.barrier()
}

/// The only device is away when memory is registered, which messages are sent from and received to
/// when it is back.
#[test]
fn memory_that_is_registered_while_the_only_device_is_away_can_be_used_when_it_is_back()
-> Result<()> {
    run(Fabric::OneRail, &[], |worker| {
        let trigger = Stream::open(worker, SHORT)?;
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 20)?;
        fail_device_0(worker, &trigger, "2s")?;
        let mut stream = stream.with_new_memory()?;
        stream.exchange(worker, 100)?;
        trigger.close_at_once()?;
        end(worker, stream)
    })
}

/// It is registered when the device is back.
#[test]
fn memory_can_be_registered_while_a_device_refuses_commands_before_it_fails() -> Result<()> {
    run(Fabric::OneRail, &[], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 20)?;
        worker.barrier()?;
        let failing = (worker.rank() == 0).then(|| {
            begin_softrnic(&["fail", "softrnic0", "--refuses", "300", "--back-after", "200"])
        });
        if failing.is_some() {
            wait_until("the device refuses", || softrnic(&["stat"]).contains("REFUSES COMMANDS"));
        }
        let mut stream = stream.with_new_memory()?;
        stream.exchange(worker, 100)?;
        if let Some(mut failing) = failing {
            assert!(failing.wait().expect("it is ours").success());
        }
        // It may have been quicker than the device.
        stream.exchange(worker, 100)?;
        end(worker, stream)
    })
}

/// A device that completes nothing any more is not waited for for ever, and a connection that
/// begins on it gets the loss reported, though it sees no time go by without success.
#[test]
fn all_arrives_if_a_device_that_fails_completes_nothing_more() -> Result<()> {
    let rules = "device-fatal=300ms device=softrnic1 message=60 times=1";
    let env =
        [("SOFTRNIC_FAULTS", rules), ("SOFTRNIC_SILENT_FAILURE", "1"), ("FERRITE_STALL_MS", "0")];
    run(Fabric::OneRail, &env, |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 200)?;
        end(worker, stream)
    })
}

/// Other connections of the same device resume as well, one over which nothing is sent meanwhile
/// too; and new ones can be made.
#[test]
fn all_connections_of_a_device_resume_and_new_ones_can_be_made() -> Result<()> {
    const COUNT: usize = 8;
    run(Fabric::OneRail, &[], |worker| {
        let transport = plugin_transport()?;
        let (device, shape) = (worker.rank(), Shape { depth: 2, bytes: 4096 });
        let open = |worker: &mut WorkerCtx| {
            let link = PeerConn::open(worker, &transport, device)?;
            Stream::over(link, transport.clone(), shape)
        };
        let mut idle = open(worker)?;
        let mut streams = (0..COUNT).map(|_| open(worker)).collect::<Result<Vec<_>>>()?;
        streams.iter_mut().try_for_each(|stream| stream.exchange(worker, 4))?;
        worker.barrier()?;
        if worker.rank() == 0 {
            inject_only("device-fatal=100ms device=softrnic0 times=1");
        }
        worker.barrier()?;
        Stream::exchange_over_all(&mut streams, worker, 50)?;
        let mut new = open(worker)?;
        new.exchange(worker, 20)?;
        idle.exchange(worker, 20)?;
        new.close()?;
        idle.close()?;
        let first = streams.pop().expect("a stream");
        streams.into_iter().try_for_each(Stream::close)?;
        end(worker, first)
    })
}

/// No connection is there that would wait for the device.
#[test]
fn a_connection_can_be_made_over_a_device_that_has_come_back() -> Result<()> {
    run(Fabric::OneRail, &[], |worker| {
        let stream = Stream::open(worker, SHORT)?;
        fail_device_0(worker, &stream, "1500ms")?;
        stream.close_at_once()?;
        std::thread::sleep(Duration::from_millis(1700));
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 50)?;
        stream.close()
    })
}

#[test]
fn a_device_that_does_not_return_ends_the_connection_at_both_ends_after_the_time_set() -> Result<()>
{
    let rules = "device-fatal=1000s device=softrnic0 message=60 times=1";
    run(Fabric::OneRail, &[("SOFTRNIC_FAULTS", rules), ("FERRITE_GIVE_UP", "2")], |worker| {
        const END: &str = "could not be recovered within 2 s";
        ends_with(worker, &[END])?;
        // Rank 1 names the fault: the device's event, a completion or a refused work request of the
        // device, or silence, whatever is seen first.
        let faults = ["softrnic0: ", "(softrnic0, ", "has been acknowledged for"];
        assert!(worker.rank() == 0 || faults.iter().any(|fault| said(&[END, fault])), "{}", log());
        // Unless the peer gives up first: then its words are reported.
        let words = [
            "softrnic0 was lost by a fatal error", "and is not back",
            "not in the list of RDMA devices",
        ];
        let is_reported = said(&words) || said(&["the peer gave up"]);
        assert!(worker.rank() == 1 || is_reported, "{}", log());
        Ok(())
    })
}

/// Another device of the process has the same GUID, and is there all the time.
#[test]
fn a_device_with_the_same_guid_is_not_taken_for_the_one_that_is_lost() -> Result<()> {
    let rules = "device-fatal=1000s device=softrnic0 message=60 times=1";
    let env = [("SOFTRNIC_FAULTS", rules), ("SOFTRNIC_SAME_GUID", "1"), ("FERRITE_GIVE_UP", "2")];
    run(Fabric::OneRail, &env, |worker| ends_with(worker, &["could not be recovered within 2 s"]))
}

#[test]
fn a_device_that_fails_ends_the_connection_at_once_if_failover_is_switched_off() -> Result<()> {
    let rules = "device-fatal=100ms device=softrnic0 message=60 times=1";
    run(Fabric::OneRail, &[("SOFTRNIC_FAULTS", rules), ("FERRITE_FAILOVER", "0")], |worker| {
        ends_with(worker, &[])
    })
}

/// The receiver's device acknowledges what it has not written, and fails: the sender may have
/// reported to NCCL that it is sent.
#[test]
fn what_a_device_has_acknowledged_and_not_written_ends_the_connection_at_both_ends() -> Result<()> {
    let rules = "forget peer=softrnic1 opcode=write-imm message=40..60; \
                 device-fatal=200ms device=softrnic1 opcode=write-imm message=60 times=1";
    run(Fabric::OneRail, &[("SOFTRNIC_FAULTS", rules)], |worker| {
        ends_with(worker, &["was acknowledged by the peer's device and lost there"])
    })
}

/// The device is back, and refuses memory for a while.
#[test]
fn a_device_that_is_back_and_cannot_register_memory_is_asked_again() -> Result<()> {
    run(Fabric::OneRail, &[], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 20)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            inject_only(
                "device-fatal=100ms device=softrnic0 times=1; reg-mr=ENOMEM device=softrnic0 times=1",
            );
        }
        worker.barrier()?;
        stream.exchange(worker, 100)?;
        assert!(
            worker.rank() == 1
                || said(&["cannot register memory again on softrnic0", "ibv_reg_mr"]),
            "{}",
            log()
        );
        end(worker, stream)
    })
}

/// Clear-to-sends are sent from registered memory, for which there is no room at first on the new
/// queue pairs.
#[test]
fn memory_that_clear_to_sends_are_sent_from_is_asked_for_again() -> Result<()> {
    run(Fabric::OneRail, &[("SOFTRNIC_MAX_INLINE", "0")], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 20)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            // Clear-to-sends are the writes without an immediate: a queue pair of the data would
            // fail without need of new memory.
            inject_only(
                "qp-error opcode=write device=softrnic0 times=1; reg-mr=ENOMEM device=softrnic0 times=1",
            );
        }
        exchange_until(worker, &mut stream, "both faults", || {
            applied().iter().all(|(_, count)| *count > 0)
        })?;
        stream.exchange(worker, 50)?;
        end(worker, stream)
    })
}

#[test]
fn a_return_of_the_device_is_reported_once() -> Result<()> {
    run(
        Fabric::OneRail,
        &[("SOFTRNIC_FAULTS", "device-fatal=50ms device=softrnic0 message=60 times=1")],
        |worker| {
            let mut stream = Stream::open(worker, SHORT)?;
            stream.exchange(worker, 200)?;
            if worker.rank() == 0 {
                wait_until("the line", || {
                    said(&["INFO", "softrnic0: the device is back after a fatal error"])
                });
            }
            let lines = lab::nccl::debug_log::lines();
            let told = lines.iter().filter(|line| line.contains("the device is back")).count();
            assert_eq!(told, usize::from(worker.rank() == 0), "{lines:#?}");
            end(worker, stream)
        },
    )
}
