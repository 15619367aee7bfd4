//! Work requests and queue pairs that fail: some are cured by new queue pairs, others are the fault
//! of a program.

use crate::common::prelude::*;
use crate::fabric::{Fabric, all_arrives_on_each_fabric, applied, end, recoveries, run};
use crate::stream::{SHORT, Stream};

all_arrives_on_each_fabric!(
    all_arrives_if_queue_pairs_of_both_ends_fail,
    "qp-error device=RANK0 message=60 times=2; qp-error device=RANK1 message=80 times=2",
    crate::stream::SHORT,
    300
);

all_arrives_on_each_fabric!(
    all_arrives_if_devices_cannot_reach_their_own_memory_for_once,
    "operation-error device=RANK0 message=60 times=2; operation-error device=RANK1 message=80 times=2",
    crate::stream::SHORT,
    300
);

all_arrives_on_each_fabric!(
    all_arrives_if_completion_queues_of_both_ends_fail,
    "cq-overrun device=RANK0 message=60 times=2; cq-overrun device=RANK1 message=80 times=2",
    crate::stream::SHORT,
    300
);

// Polls that find nothing are counted as well, so these are in the midst of messages, while there
// are several.
all_arrives_on_each_fabric!(
    all_arrives_if_completion_queues_cannot_be_polled,
    "poll-cq=EIO device=RANK0 message=40.. every=97 times=5; poll-cq=EIO device=RANK1 message=40.. every=97 times=5",
    crate::stream::SHORT,
    300
);

// Among them are messages, clear-to-sends and what is sent again.
all_arrives_on_each_fabric!(
    all_arrives_if_work_requests_are_refused,
    "post-send=EIO device=RANK0 message=60.. every=97 times=5; post-send=EIO device=RANK1 message=60.. every=89 times=5",
    crate::stream::SHORT,
    300
);

/// Only the refusal shows what was not posted.
#[test]
fn a_refused_work_request_is_known_by_its_refusal() -> Result<()> {
    let rules = "post-send=EIO message=60.. every=97 times=5";
    run(Fabric::OneRail, &[("SOFTRNIC_FAULTS", rules), ("FERRITE_STALL_MS", "0")], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 300)?;
        end(worker, stream)
    })
}

// The second message over new queue pairs is one that is sent again.
all_arrives_on_each_fabric!(
    all_arrives_if_queue_pairs_fail_again_and_again_while_messages_are_sent_again,
    "qp-error device=RANK0 message=60 times=1; qp-error device=RANK0 opcode=write-imm message=2 times=5",
    crate::stream::SHORT,
    300
);

// The first writes over new queue pairs of the receiver are those of clear-to-sends after the
// missing list.
all_arrives_on_each_fabric!(
    all_arrives_if_queue_pairs_of_the_receiver_fail_right_after_its_missing_list,
    "qp-error device=RANK1 message=60 times=1; qp-error device=RANK1 opcode=write message=1 times=5",
    crate::stream::SHORT,
    300
);

/// Messages both ways until there is an error, which has to be a remote one; the log has to have
/// all of `words` in one line. Closing with messages under way does not fail.
pub(crate) fn ends_with(worker: &mut WorkerCtx, words: &[&str]) -> Result<()> {
    let mut stream = Stream::open(worker, SHORT)?;
    let error = stream.exchange(worker, usize::MAX).expect_err("a connection that ends");
    assert!(matches!(error, Error::Call { code: abi::ncclRemoteError, .. }), "{error}");
    worker.barrier()?;
    // The end of one of the connections at each rank says all; those of the peer's may be first.
    wait_until(format_args!("{words:?} in the log"), || said(words));
    stream.close_at_once()?;
    worker.barrier()
}

/// A key that the peer does not know any more is the error of a program: the same would come of it
/// again.
#[test]
fn a_refused_key_ends_the_connection_at_both_ends_and_nothing_is_sent_again() -> Result<()> {
    let rules = "access-error opcode=write-imm device=softrnic0 message=60 times=1";
    run(Fabric::OneRail, &[("SOFTRNIC_FAULTS", rules)], |worker| {
        ends_with(worker, &[])?;
        let words = ["remote access error", "sending data on softrnic0"];
        assert!(worker.rank() == 1 || said(&words), "{}", log());
        assert_eq!(recoveries(), 0, "{}", log());
        Ok(())
    })
}

/// The receiver's device flushes a clear-to-send, which new queue pairs would cure; the sender has
/// not polled the refusal by then.
#[test]
fn a_refused_key_ends_the_connection_if_the_peer_finds_a_fault_first() -> Result<()> {
    let rules = "access-error opcode=write-imm device=softrnic0 times=1";
    run(Fabric::OneRail, &[("SOFTRNIC_FAULTS", rules)], |worker| {
        let transport = plugin_transport()?;
        let PeerConn { send, recv } = PeerConn::open(worker, &transport, worker.rank())?;
        let memory = Arc::new(Buffer::new(4096)?);
        let mut deadline = worker.deadline("an error");
        if worker.rank() == 0 {
            let out = send.register(&memory)?;
            let sending = posted(&mut deadline, || send.send(&out, 0, 64, 1))?;
            wait_until("the fence that the receiver asks for", || {
                said(&["recovering the connection", "destroys its queue pairs"])
            });
            let error = finished(&mut deadline, sending, &mut [0])
                .expect_err("it is refused again and again");
            assert!(matches!(error, Error::Call { code: abi::ncclRemoteError, .. }), "{error}");
            assert!(said(&["remote access error"]), "{}", log());
            return worker.barrier();
        }
        let into = recv.register(&memory)?;
        let mut receives = Vec::new();
        let error = loop {
            let posted = if receives.len() < 32 { recv.receive(&into, 0, 64, 1) } else { Ok(None) };
            match posted.map(|receive| receives.extend(receive)) {
                Err(error) => break error,
                Ok(()) => deadline.idle()?,
            }
            if let Some(Err(error)) = receives.first_mut().map(|receive| receive.test(&mut [0])) {
                break error;
            }
        };
        assert!(matches!(error, Error::Call { code: abi::ncclRemoteError, .. }), "{error}");
        worker.barrier()
    })
}

/// Of two messages the first one is complete and the second one is refused, and both are found by
/// the same poll. The rank `first` asks before the other one, which has been told by then that the
/// connection has failed.
fn a_complete_message_ends_well_before_one_that_fails(first: usize) -> Result<()> {
    let rules = "access-error opcode=write-imm device=softrnic0 message=2 times=1";
    let env = [
        ("SOFTRNIC_FAULTS", rules),
        ("FERRITE_FAILOVER", "0"),
        ("NCCL_IB_RETURN_ASYNC_EVENTS", "0"),
    ];
    run(Fabric::OneRail, &env, |worker| {
        let transport = plugin_transport()?;
        let PeerConn { send, recv } = PeerConn::open(worker, &transport, worker.rank())?;
        let memory = Arc::new(Buffer::new(4096)?);
        let (out, into) = (send.register(&memory)?, recv.register(&memory)?);
        let mut deadline = worker.deadline("a message and an error");
        let mut begin = || {
            posted(&mut deadline, || match worker.rank() {
                0 => send.send(&out, 0, 64, 1),
                _ => recv.receive(&into, 0, 64, 1),
            })
        };
        let mut requests = Some((begin()?, begin()?));
        if worker.rank() == 0 {
            wait_until("the refusal", || applied().iter().all(|(_, count)| *count == 1));
        }
        for rank in [first, 1 - first] {
            worker.barrier()?;
            if let Some((complete, refused)) = requests.take_if(|_| worker.rank() == rank) {
                finished(&mut deadline, complete, &mut [0])?;
                finished(&mut deadline, refused, &mut [0]).expect_err("the key is refused");
            }
        }
        worker.barrier()
    })
}

cases! { Result<()>;
    a_message_that_is_complete_ends_well_if_the_sender_finds_first_that_the_next_one_has_failed =>
        a_complete_message_ends_well_before_one_that_fails(0);
    a_message_that_is_complete_ends_well_if_the_receiver_finds_first_that_the_next_one_has_failed =>
        a_complete_message_ends_well_before_one_that_fails(1);
}

#[test]
fn a_port_that_does_not_return_ends_the_connection_at_both_ends_after_the_time_set() -> Result<()> {
    let rules = "port-down device=softrnic0 message=60 times=1";
    run(Fabric::OneRail, &[("SOFTRNIC_FAULTS", rules), ("FERRITE_GIVE_UP", "2")], |worker| {
        ends_with(worker, &["could not be recovered within 2 s", "softrnic0"])
    })
}

/// NCCL may close such a connection much later.
#[test]
fn a_recovery_that_is_given_up_leaves_no_completion_queue() -> Result<()> {
    let rules = "port-down device=softrnic0 message=60 times=1";
    run(Fabric::OneRail, &[("SOFTRNIC_FAULTS", rules), ("FERRITE_GIVE_UP", "2")], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        assert!(!own_queues("completion_queues").is_empty());
        stream.exchange(worker, usize::MAX).expect_err("a connection that ends");
        wait_until("the end of the queues", || own_queues("completion_queues").is_empty());
        worker.barrier()?;
        stream.close_at_once()?;
        worker.barrier()
    })
}

#[test]
fn a_path_that_carries_nothing_any_more_ends_the_connection_at_both_ends_after_the_time_set()
-> Result<()> {
    let rules = "drop attempts=all opcode=write-imm device=softrnic0 message=1..";
    run(Fabric::OneRail, &[("SOFTRNIC_FAULTS", rules), ("FERRITE_GIVE_UP", "2")], |worker| {
        ends_with(worker, &["could not be recovered within"])
    })
}

/// Without recovery at one of the ends there is none.
#[test]
fn a_port_that_falls_ends_the_connection_if_one_end_has_failover_switched_off() -> Result<()> {
    let rules = "port-down device=softrnic0 message=60 times=1";
    let quick = [("SOFTRNIC_FAULTS", rules), ("NCCL_IB_TIMEOUT", "8"), ("NCCL_IB_RETRY_CNT", "2")];
    run(Fabric::OneRail, &quick, |worker| {
        if worker.rank() == 1 {
            set("FERRITE_FAILOVER", "0");
        }
        ends_with(worker, &[])?;
        assert!(!said(&["recovering the connection"]), "{}", log());
        Ok(())
    })
}

/// The sender does not notice: no clear-to-send has come, so it has posted nothing that could fail.
#[test]
fn a_failed_clear_to_send_ends_a_connection_that_does_not_recover() -> Result<()> {
    let rule = "qp-error opcode=write device=softrnic1 times=1";
    let env = [
        ("SOFTRNIC_FAULTS", rule),
        ("FERRITE_FAILOVER", "0"),
        ("NCCL_IB_RETURN_ASYNC_EVENTS", "0"),
    ];
    run(Fabric::OneRail, &env, |worker| {
        let PeerConn { send: _send, recv } =
            PeerConn::open(worker, &plugin_transport()?, worker.rank())?;
        if worker.rank() == 1 {
            let into = recv.register(&Arc::new(Buffer::new(64)?))?;
            let mut deadline = worker.deadline("an error");
            let receive = posted(&mut deadline, || recv.receive(&into, 0, 64, 1))?;
            finished(&mut deadline, receive, &mut [0]).expect_err("its clear-to-send has failed");
            assert!(said(&["sending a clear-to-send on softrnic1"]), "{}", log());
        }
        worker.barrier()
    })
}

/// Rank `fails` has begun a message, and NCCL calls nothing more: the event of the queue pair has
/// its completions polled.
fn recovers_before_anything_is_tested(fails: usize, rule: &str) -> Result<()> {
    run(Fabric::OneRail, &[("SOFTRNIC_FAULTS", rule), ("FERRITE_STALL_MS", "0")], |worker| {
        let transport = plugin_transport()?;
        let PeerConn { send, recv } = PeerConn::open(worker, &transport, worker.rank())?;
        let memory = Arc::new(Buffer::new(64)?);
        let (out, into) = (send.register(&memory)?, recv.register(&memory)?);
        let (mut deadline, rank) = (worker.deadline("a message"), worker.rank());
        let mut begin = || {
            let request = posted(&mut deadline, || match rank {
                0 => send.send(&out, 0, 64, 1),
                _ => recv.receive(&into, 0, 64, 1),
            })?;
            if rank == fails {
                wait_until("the recovery", || recoveries() == 1);
            }
            Ok::<_, Error>(request)
        };
        // First the receive.
        let receive = if rank == 1 { Some(begin()?) } else { None };
        worker.barrier()?;
        let request = receive.map_or_else(begin, Ok)?;
        worker.barrier()?;
        finished(&mut worker.deadline("its end"), request, &mut [0])?;
        worker.barrier()
    })
}

cases! { Result<()>;
    a_failed_clear_to_send_is_cured_before_its_receive_is_tested =>
        recovers_before_anything_is_tested(1, "qp-error opcode=write device=softrnic1 times=1");
    a_failed_message_is_cured_before_its_send_is_tested =>
        recovers_before_anything_is_tested(0, "qp-error opcode=write-imm device=softrnic0 times=1");
}
