//! Connections of one port that resume over a port of another card while their own is unusable.

use crate::common::log::{log, said};
use crate::common::process::pair;
use crate::common::setting::{set, talkative};
use crate::fabric::{end, exchange_until, inject_only, recoveries, sent, set_port};
use crate::stream::{LONG, SHORT, Shape, Stream};
use lab::error::Result;
use lab::pair::WorkerCtx;
use std::time::Duration;
use testkit::require;
use testkit::wait::wait_until;

/// Runs `body` in two processes that each have two cards with a port. The connection of rank 0
/// is set up over softrnic0, and softrnic2 is its spare; that of rank 1 over softrnic3, and its
/// spare is softrnic1.
pub(crate) fn run(
    rules: &str,
    env: &[(&str, &str)],
    body: impl FnOnce(&mut WorkerCtx) -> Result<()>,
) -> Result<()> {
    let setting = require!(talkative(&[
        ("SOFTRNIC_DEVICES", "6"),
        ("FERRITE_SPARE", "1"),
        ("SOFTRNIC_FAULTS", rules)
    ]));
    let setting = env.iter().fold(setting, |setting, (name, value)| setting.env(name, value));
    pair(&setting, |worker| {
        set("NCCL_IB_HCA", ["=softrnic0,softrnic2", "=softrnic1,softrnic3"][worker.rank()]);
        body(worker)
    })
    .map(drop)
}

/// What the log of a rank says when it has borrowed a port.
pub(crate) const BORROWED: [&str; 2] =
    ["over the borrowed port softrnic2", "over the borrowed port softrnic1"];

/// 300 messages each way, during which `ranks` borrow their spares and the others do not.
fn all_arrives_over_spares(
    rules: &str,
    env: &[(&str, &str)],
    shape: Shape,
    ranks: &[usize],
) -> Result<()> {
    run(rules, env, |worker| {
        let mut stream = Stream::open(worker, shape)?;
        stream.exchange(worker, 300)?;
        let rank = worker.rank();
        assert_eq!(said(&[BORROWED[rank]]), ranks.contains(&rank), "rank {rank}: {}", log());
        end(worker, stream)
    })
}

#[test]
fn all_arrives_over_a_borrowed_port_if_the_only_one_of_rank_0_falls_for_good() -> Result<()> {
    all_arrives_over_spares("port-down device=softrnic0 message=60 times=1", &[], LONG, &[0])
}

#[test]
fn all_arrives_over_a_borrowed_port_if_the_only_one_of_rank_1_falls_for_good() -> Result<()> {
    all_arrives_over_spares("port-down device=softrnic3 message=60 times=1", &[], LONG, &[1])
}

#[test]
fn all_arrives_over_borrowed_ports_if_those_of_both_ends_fall_for_good() -> Result<()> {
    let rules = "port-down device=softrnic0 message=60 times=1; port-down device=softrnic3 message=60 times=1";
    all_arrives_over_spares(rules, &[], SHORT, &[0, 1])
}

#[test]
fn all_arrives_over_a_borrowed_port_if_messages_are_split_over_queue_pairs() -> Result<()> {
    let split = [("NCCL_IB_QPS_PER_CONNECTION", "3"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")];
    all_arrives_over_spares("port-down device=softrnic0 message=60 times=1", &split, LONG, &[0])
}

/// Its memory keys are gone with it, and nothing can be registered on it any more.
#[test]
fn all_arrives_over_a_borrowed_port_if_the_only_device_fails_for_good() -> Result<()> {
    run("device-fatal device=softrnic0 message=60 times=1", &[], |worker| {
        let mut stream = Stream::open(worker, LONG)?;
        stream.exchange(worker, 300)?;
        assert_eq!(said(&[BORROWED[0]]), worker.rank() == 0, "{}", log());
        let mut stream = stream.with_new_memory()?;
        stream.exchange(worker, 100)?;
        end(worker, stream)
    })
}

/// The port stays active. Whether rank 1 borrows its spare too depends on who is first.
#[test]
fn all_arrives_over_a_borrowed_port_if_nothing_comes_through_the_own_one_any_more() -> Result<()> {
    all_arrives_despite_a_path_that_loses(
        "drop attempts=all device=softrnic0; drop-ack attempts=all peer=softrnic0",
    )
}

/// Acknowledgements come through.
#[test]
fn all_arrives_over_a_borrowed_port_if_no_request_comes_through_the_own_one_any_more() -> Result<()>
{
    all_arrives_despite_a_path_that_loses("drop attempts=all device=softrnic0")
}

fn all_arrives_despite_a_path_that_loses(rules: &'static str) -> Result<()> {
    run("", &[], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        stream.exchange(worker, 20)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            inject_only(rules);
        }
        stream.exchange(worker, 300)?;
        assert!(worker.rank() == 1 || said(&[BORROWED[0]]), "{}", log());
        end(worker, stream)
    })
}

#[test]
fn no_port_is_borrowed_for_less_than_100_ms() -> Result<()> {
    all_arrives_over_spares("port-down=20ms device=softrnic0 message=60 times=1", &[], SHORT, &[])
}

#[test]
fn no_port_is_borrowed_if_that_is_switched_off() -> Result<()> {
    let off = [("FERRITE_SPARE", "0")];
    all_arrives_over_spares("port-down=500ms device=softrnic0 message=60 times=1", &off, SHORT, &[])
}

#[test]
fn a_port_whose_card_cannot_register_the_memory_is_not_borrowed() -> Result<()> {
    let rules = "port-down device=softrnic0 message=60 times=1; reg-mr=ENOMEM device=softrnic2";
    run(rules, &[], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        if worker.rank() == 0 {
            std::thread::spawn(|| {
                wait_until("the other port is tried", || {
                    said(&["softrnic2 cannot be borrowed", "ibv_reg_mr"])
                });
                set_port("softrnic0/1", "up");
            });
        }
        stream.exchange(worker, 300)?;
        assert!(!said(&["over the borrowed port"]), "{}", log());
        end(worker, stream)
    })
}

/// Both ports of rank 0 fall, one after the other, and then the first is back.
#[test]
fn a_connection_waits_if_its_borrowed_port_falls_too() -> Result<()> {
    run("", &[], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        until_borrowed(worker, &mut stream)?;
        if worker.rank() == 0 {
            set_port("softrnic2/1", "down");
            std::thread::spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                set_port("softrnic0/1", "up");
            });
        }
        stream.exchange(worker, 100)?;
        until_own(worker, &mut stream)?;
        end(worker, stream)
    })
}

#[test]
fn all_arrives_over_a_third_card_if_a_borrowed_port_falls_too() -> Result<()> {
    run("", &[], |worker| {
        if worker.rank() == 0 {
            set("NCCL_IB_HCA", "=softrnic0,softrnic2,softrnic4");
        }
        let mut stream = Stream::open(worker, SHORT)?;
        until_borrowed(worker, &mut stream)?;
        if worker.rank() == 0 {
            set_port("softrnic2/1", "down");
        }
        stream.exchange(worker, 100)?;
        let is_third = said(&["over the borrowed port softrnic4"]);
        assert!(worker.rank() == 1 || is_third, "{}", log());
        end(worker, stream)
    })
}

/// Takes the own port of rank 0 down, and exchanges messages until the connection resumes over the
/// other.
fn until_borrowed(worker: &mut WorkerCtx, stream: &mut Stream) -> Result<()> {
    worker.barrier()?;
    if worker.rank() == 0 {
        set_port("softrnic0/1", "down");
    }
    let before = sent("softrnic2/1");
    exchange_until(worker, stream, "a borrowed port", || sent("softrnic2/1") > before)
}

/// Messages until the own port of rank 0 carries them, and the other one does not.
fn until_own(worker: &mut WorkerCtx, stream: &mut Stream) -> Result<()> {
    let counts = || [sent("softrnic0/1"), sent("softrnic2/1")];
    let mut before = counts();
    exchange_until(worker, stream, "the own port", || {
        let now = counts();
        let is_own = now[0] > before[0] && now[1] == before[1];
        before = now;
        is_own
    })
}

/// Memory that is registered meanwhile is registered on both cards.
#[test]
fn a_connection_goes_back_to_its_own_port_with_memory_that_was_registered_meanwhile() -> Result<()>
{
    run("", &[], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        until_borrowed(worker, &mut stream)?;
        let mut stream = stream.with_new_memory()?;
        stream.exchange(worker, 50)?;
        if worker.rank() == 0 {
            set_port("softrnic0/1", "up");
        }
        until_own(worker, &mut stream)?;
        until_borrowed(worker, &mut stream)?;
        assert!(recoveries() >= 1, "{}", log());
        end(worker, stream)
    })
}

/// A port is given back because it falls too, and borrowed again when it is active: the connection
/// has used no other one in between.
#[test]
fn memory_that_is_registered_between_two_loans_of_a_port_can_be_used_over_it() -> Result<()> {
    run("", &[], |worker| {
        let mut stream = Stream::open(worker, SHORT)?;
        until_borrowed(worker, &mut stream)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            let fences = || {
                lab::nccl::debug_log::lines()
                    .iter()
                    .filter(|line| line.contains("destroys its queue pairs"))
                    .count()
            };
            let before = fences();
            set_port("softrnic2/1", "down");
            // The sender and the receiver of this rank.
            wait_until("the end of the queue pairs", || fences() >= before + 2);
            // The port is given back right after that.
            std::thread::sleep(Duration::from_millis(200));
        }
        worker.barrier()?;
        let mut stream = stream.with_new_memory()?;
        worker.barrier()?;
        if worker.rank() == 0 {
            set_port("softrnic2/1", "up");
        }
        stream.exchange(worker, 100)?;
        end(worker, stream)
    })
}
