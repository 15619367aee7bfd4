//! Lanes that a connection takes by itself when it has sent enough, with `FERRITE_LANES=auto`, and
//! only then.

use crate::common::bench::Bench;
use crate::common::connect::{connect, connect_through, relay_to};
use crate::common::log::{log, said};
use crate::common::plugin_transport;
use crate::common::process::{alone, pair};
use crate::common::setting::{set, talkative};
use crate::common::stat::own_queues;
use crate::statistics::{in_folder, own_words, records};
use crate::transport::{queue_pairs_with_data, sum, with_data};
use lab::error::{Error, Result};
use lab::pair::{Setting, WorkerCtx};
use lab::transport::buffer::Buffer;
use lab::transport::deadline::{finished, posted};
use nccl_net::testing::stats::layout::{SENDER, record};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use testkit::dist::dist;
use testkit::{Missing, Scratch, program, require, wait_until};

const AUTO: (&str, &str) = ("FERRITE_LANES", "auto");
/// A connection takes lanes after 1 MiB of large messages.
const SOON: (&str, &str) = ("FERRITE_LANES_AFTER_MB", "1");
/// Every second message is timed, so that a leg of a trial takes some forty messages.
const OFTEN: (&str, &str) = ("FERRITE_SAMPLE", "1");
/// All lanes share one way, whose speed the software device keeps.
const ONE_PATH: [(&str, &str); 2] = [("SOFTRNIC_PATHS", "1"), ("SOFTRNIC_PATH_MBS", "100")];
/// Lanes take paths of their own, by chance, and each path is slow.
const PATHS: [(&str, &str); 2] = [("SOFTRNIC_PATHS", "8"), ("SOFTRNIC_PATH_MBS", "20")];
const TAKES: &str =
    "requests 4 queue pair(s) per rail: to compare them with one queue pair (FERRITE_LANES=auto)";
const GIVES_UP: &str = "requests 1 queue pair(s) per rail: they were no faster than one queue pair (FERRITE_LANES=auto)";
const COMPARES: &str =
    "requests 1 queue pair(s) per rail: to compare one queue pair with them (FERRITE_LANES=auto)";

/// Two processes in which connections compare soon, over a fabric with `paths`.
fn automatic(paths: &[(&str, &str)]) -> Result<Setting, Missing> {
    talkative(&[&[AUTO, SOON, OFTEN], paths].concat())
}

/// Sends messages of `bytes` each way until it `is_enough` for both ends, or so many times.
fn carries(
    worker: &mut WorkerCtx,
    bench: &Bench,
    sizes: (usize, usize),
    is_enough: impl FnMut() -> bool,
) -> Result<()> {
    carries_for(2, worker, bench, sizes, is_enough)
}

/// The same for so many of the ends.
fn carries_for(
    ends: u64,
    worker: &mut WorkerCtx,
    bench: &Bench,
    (bytes, most): (usize, usize),
    mut is_enough: impl FnMut() -> bool,
) -> Result<()> {
    for round in 0..most {
        bench.exchange(worker, round, bytes, bytes)?;
        let own = u64::from(is_enough());
        if own + worker.swap(own)? >= ends {
            break;
        }
    }
    Ok(())
}

/// Nobody has asked for lanes: however much is sent, the queue pair is the one that the connection
/// began with.
#[test]
fn by_default_a_connection_that_has_sent_much_keeps_its_one_queue_pair() -> Result<()> {
    pair(&require!(talkative(&[SOON])), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        bench.exchange(worker, 0, 1 << 19, 1 << 19)?;
        let first = numbers_of_queue_pairs();
        carries(worker, &bench, (1 << 19, 40), || false)?;
        assert_eq!((queue_pairs_with_data(), numbers_of_queue_pairs()), (1, first), "{}", log());
        assert!(said(&["ignores FERRITE_LANES_AFTER_MB"]), "{}", log());
        assert!(
            !said(&["queue pair(s) per rail: "]) && !said(&["recovering"]) && !said(&["recovered"]),
            "{}",
            log()
        );
        worker.barrier()
    })?;
    Ok(())
}

/// Those of this process: one for what it sends, one for what it receives.
fn numbers_of_queue_pairs() -> BTreeSet<u64> {
    own_queues("queue_pairs")
        .iter()
        .map(|pair| pair["number"].as_u64().expect("a number"))
        .collect()
}

/// The sender continues with one queue pair and with lanes in turn, and lanes are faster each time.
#[test]
fn a_connection_takes_lanes_when_it_has_sent_much_in_large_messages_and_keeps_them_if_they_are_faster()
-> Result<()> {
    pair(&require!(automatic(&PATHS)), |worker| {
        let count = |words: &str| log().matches(words).count();
        loop {
            let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
            let (taken, given_up) = (count(TAKES), count(GIVES_UP));
            assert_eq!(queue_pairs_with_data(), 0);
            bench.exchange(worker, 0, 1 << 17, 1 << 17)?;
            assert_eq!(queue_pairs_with_data(), 1);
            carries(worker, &bench, (1 << 17, 5000), || {
                count(TAKES) == taken + 2 || count(GIVES_UP) > given_up
            })?;
            // More than the last leg takes.
            carries(worker, &bench, (1 << 17, 200), || false)?;
            // Of one end, all lanes may be on one path.
            let is_kept = u64::from(count(GIVES_UP) == given_up);
            if is_kept + worker.swap(is_kept)? == 2 {
                assert!(said(&[TAKES]) && said(&[COMPARES]), "{}", log());
                assert_eq!(queue_pairs_with_data(), 4, "{}", log());
                return worker.barrier();
            }
        }
    })?;
    Ok(())
}

/// Whatever becomes of its lanes, every byte arrives once.
#[test]
fn all_arrives_while_lanes_are_taken_and_given_up() -> Result<()> {
    pair(&require!(automatic(&[])), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        for round in 0..600 {
            let size = [1_000_000, 100_000, 8, 0][round % 4];
            bench.exchange(worker, round, size, size)?;
        }
        assert!(said(&[TAKES]), "{}", log());
        worker.barrier()
    })?;
    Ok(())
}

/// They share a path, so that one queue pair is as fast.
#[test]
fn lanes_that_are_no_faster_are_given_up() -> Result<()> {
    pair(&require!(automatic(&ONE_PATH)), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        carries(worker, &bench, (1 << 17, 5000), || said(&[GIVES_UP]))?;
        // On a busy machine a first comparison may be undecided, and a second one made.
        assert!(said(&[TAKES]) && said(&[GIVES_UP]), "{}", log());
        worker.barrier()
    })?;
    Ok(())
}

/// Lanes are faster, so that each connection would have three queue pairs more.
#[test]
fn lanes_add_no_more_queue_pairs_than_the_budget_has() -> Result<()> {
    const CONNECTIONS: usize = 4;
    const BUDGET: &str = "FERRITE_LANES_BUDGET";
    for budget in ["2", "3"] {
        let budget = [&PATHS[..], &[(BUDGET, budget)]].concat();
        pair(&require!(automatic(&budget)), |worker| {
            // As this process has it, in which the loop is in its first turn.
            let has_room = std::env::var(BUDGET).is_ok_and(|budget| budget == "3");
            let most = if has_room { CONNECTIONS + 3 } else { CONNECTIONS };
            let open = |_| Bench::open(worker, plugin_transport()?, 1 << 20);
            let benches = (0..CONNECTIONS).map(open).collect::<Result<Vec<_>>>()?;
            for round in 0..80 {
                benches
                    .iter()
                    .try_for_each(|bench| bench.exchange(worker, round, 1 << 18, 1 << 18))?;
                assert!(queue_pairs_with_data() <= most, "more than {most}: {}", log());
            }
            let asked = u64::from(said(&[TAKES]));
            assert_eq!(asked + worker.swap(asked)? > 0, has_room, "{}", log());
            worker.barrier()
        })?;
    }
    Ok(())
}

#[test]
fn small_messages_need_no_lanes() -> Result<()> {
    pair(&require!(automatic(&[])), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        carries(worker, &bench, (60_000, 300), || false)?;
        assert_eq!(queue_pairs_with_data(), 1);
        assert!(!said(&[TAKES]), "{}", log());
        worker.barrier()
    })?;
    Ok(())
}

/// The sender asks, and the connection continues with one queue pair.
#[test]
fn a_peer_that_has_one_queue_pair_keeps_the_connection_at_one() -> Result<()> {
    pair(&require!(automatic(&[])), |worker| {
        if worker.rank() == 1 {
            set("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
        }
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        carries_for(1, worker, &bench, (1 << 19, 1000), || said(&[TAKES]))?;
        assert_eq!(said(&[TAKES]), worker.rank() == 0, "{}", log());
        carries_for(1, worker, &bench, (1 << 19, 1000), || said(&[" recovered in "]))?;
        let mut most = 0;
        carries(worker, &bench, (1 << 19, 10), || {
            most = most.max(queue_pairs_with_data());
            false
        })?;
        assert_eq!(most, 1, "{}", log());
        worker.barrier()
    })?;
    Ok(())
}

/// A peer with this setting cuts no messages: it is not asked for lanes.
fn is_not_asked_for_lanes(name: &str, value: &str) -> Result<()> {
    pair(&require!(automatic(&[])), |worker| {
        if worker.rank() == 1 {
            set(name, value);
        }
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        carries(worker, &bench, (1 << 19, 60), || false)?;
        assert!(!said(&[TAKES]), "{}", log());
        assert!(worker.rank() == 1 || queue_pairs_with_data() == 1, "{}", log());
        worker.barrier()
    })?;
    Ok(())
}

#[test]
fn a_peer_that_has_one_lane_is_not_asked_for_more() -> Result<()> {
    is_not_asked_for_lanes("FERRITE_LANES", "1")
}

/// Its queue pairs would take turns, and be no lanes.
#[test]
fn a_peer_with_queue_pairs_that_cuts_no_messages_is_not_asked_for_lanes() -> Result<()> {
    is_not_asked_for_lanes("NCCL_IB_QPS_PER_CONNECTION", "4")
}

/// The first attempt of a connection to have four queue pairs fails, and it continues.
#[test]
fn a_card_that_refuses_what_lanes_need_harms_no_connection() -> Result<()> {
    pair(&require!(automatic(&[])), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        bench.exchange(worker, 0, 1000, 1000)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            let rule = "modify-qp=ENOMEM times=1";
            let inject = Command::new(dist().join("bin/softrnic")).args(["inject", rule]).status();
            assert!(inject.expect("softrnic runs").success());
        }
        worker.barrier()?;
        // Either end may be the one whose command is refused. A machine that is late makes more
        // than two attempts of it.
        let again = || {
            log()
                .lines()
                .any(|line| line.contains(" recovered in ") && !line.contains("(1 attempt(s))"))
        };
        carries_for(1, worker, &bench, (1 << 19, 1000), again)?;
        let again = u64::from(again());
        assert!(again + worker.swap(again)? > 0, "{}", log());
        carries(worker, &bench, (1 << 19, 20), || false)?;
        worker.barrier()
    })?;
    Ok(())
}

/// Each device has a queue pair for each end of the two connections, and no more.
#[test]
fn a_card_that_has_no_more_queue_pairs_leaves_the_connection_as_it_was() -> Result<()> {
    pair(&require!(automatic(&[("SOFTRNIC_MAX_QP", "2")])), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        carries(worker, &bench, (1 << 19, 1000), || said(&[TAKES]))?;
        assert!(said(&[TAKES]), "{}", log());
        carries(worker, &bench, (1 << 19, 1000), || said(&[" recovered in "]))?;
        carries(worker, &bench, (1 << 19, 2), || false)?;
        assert_eq!(queue_pairs_with_data(), 1, "{}", log());
        worker.barrier()
    })?;
    Ok(())
}

/// A card has as many queue pairs as all connections have with one each, and a few more, and is
/// slow to make them. Each connection wants four at about the same time: those that others take are
/// not missing where the old ones are gone.
#[test]
fn connections_that_want_lanes_at_once_leave_each_other_what_they_had() -> Result<()> {
    const CONNECTIONS: usize = 40;
    let most = (2 * CONNECTIONS + 20).to_string();
    let short = [("SOFTRNIC_MAX_QP", &*most), ("SOFTRNIC_COMMAND_US", "1000")];
    pair(&require!(automatic(&short)), |worker| {
        let open = |_| Bench::open(worker, plugin_transport()?, 1 << 20);
        let benches = (0..CONNECTIONS).map(open).collect::<Result<Vec<_>>>()?;
        let mut most = 0;
        for round in 0..60 {
            benches
                .iter()
                .try_for_each(|bench| bench.exchange(worker, round, 256 << 10, 256 << 10))?;
            most = most.max(queue_pairs_with_data());
        }
        assert!(most > CONNECTIONS, "{most} queue pairs: none has taken lanes");
        worker.barrier()
    })?;
    Ok(())
}

/// How often the completion queues of this process have been polled.
fn polls() -> u64 {
    own_queues("completion_queues")
        .iter()
        .map(|queue| queue["polls"].as_u64().expect("a number"))
        .sum()
}

/// What is under way when the queue pairs are replaced is sent again: of two messages that might
/// be, the one that had begun before. The device loses it, and its own retry would come much later.
#[test]
fn a_connection_that_is_about_to_take_lanes_begins_no_message() -> Result<()> {
    // As much as a connection may have to send before it measures.
    const BYTES: usize = 2 << 20;
    // The first one, and 16 that are timed, each after one that is not. With the next one the
    // change begins.
    const BEFORE: usize = 34;
    let folder = Scratch::new();
    let env = [("NCCL_IB_TIMEOUT", "22"), ("FERRITE_STALL_MS", "0")];
    alone(&in_folder(require!(automatic(&env)), &folder), |worker| {
        let folder = PathBuf::from(std::env::var("FERRITE_STATS_DIR").expect("it is set"));
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let (send, recv) = connect(worker, &transport, &handle, &mut listener)?;
        let memory = || Buffer::new(BYTES).map(Arc::new);
        let (out, into) = (send.register(&memory()?)?, recv.register(&memory()?)?);
        let mut deadline = worker.deadline("messages around a change of lanes");
        for _ in 0..BEFORE {
            let receive = posted(&mut deadline, || recv.receive(&into, 0, BYTES, 0))?;
            let sending = posted(&mut deadline, || send.send(&out, 0, BYTES, 0))?;
            finished(&mut deadline, sending, &mut [0])?;
            finished(&mut deadline, receive, &mut [0])?;
        }
        let inject = ["inject", "drop opcode=write-imm times=1"];
        program::stdout_of(Command::new(dist().join("bin/softrnic")).args(inject));
        let mut receive = || posted(&mut deadline, || recv.receive(&into, 0, BYTES, 0));
        let receives = [receive()?, receive()?];
        let mut lost = Some(posted(&mut deadline, || send.send(&out, 0, BYTES, 0))?);
        wait_until("the change of lanes", || {
            if lost.as_mut().is_some_and(|lost| lost.test(&mut [0]).expect("it goes on")) {
                lost = None;
            }
            said(&["recovering the connection", "sends nothing until"])
        });
        assert!(said(&[TAKES]), "{}", log());
        // No call of NCCL polls now, but the thread that has begun the change looks at what is
        // acknowledged.
        let before = polls();
        wait_until("messages are held back", || polls() > before || said(&[" recovered in "]));
        let next = posted(&mut deadline, || send.send(&out, 0, BYTES, 0))?;
        for request in lost.into_iter().chain([next]).chain(receives) {
            finished(&mut deadline, request, &mut [0])?;
        }
        let words = own_words(&folder);
        let sender =
            records(&words).find(|end| end[record::DIRECTION] == SENDER).expect("the sender");
        assert_eq!(sender[record::RESENT], 1, "{}", log());
        Ok(())
    })
}

/// The peer would not hear of the change, and queue pairs that work are not given up for it.
#[test]
fn a_connection_takes_no_lanes_while_there_is_no_control_connection() -> Result<()> {
    const BYTES: usize = 256 << 10;
    alone(&require!(automatic(&[])), |worker| {
        let transport = plugin_transport()?;
        let (handle, _first) = transport.listen(0)?;
        let mut relay = relay_to(&handle);
        let (send, recv, _listener) = connect_through(worker, &transport, &mut relay)?;
        let memory = || Buffer::new(BYTES).map(Arc::new);
        let (out, into) = (send.register(&memory()?)?, recv.register(&memory()?)?);
        let message = |bytes, mut between: Box<dyn FnMut() + '_>| {
            let mut deadline = worker.deadline("a message");
            let receive = posted(&mut deadline, || recv.receive(&into, 0, bytes, 0))?;
            let sending = posted(&mut deadline, || {
                between();
                send.send(&out, 0, bytes, 0)
            })?;
            for mut request in [sending, receive] {
                while !request.test(&mut [0])? {
                    between();
                    deadline.idle()?;
                }
            }
            Ok::<_, Error>(())
        };
        relay.reset();
        // The sender asks its device whether the peer's still acknowledges once it knows of the
        // reset: that is one more request.
        let mut sent = 0;
        while sum(&with_data(), "requests") <= sent {
            message(4096, Box::new(|| ()))?;
            sent += 1;
        }
        (0..200).try_for_each(|_| message(BYTES, Box::new(|| ())))?;
        assert!(!said(&[TAKES]), "{}", log());
        while !said(&[TAKES]) {
            message(BYTES, Box::new(|| relay.forward()))?;
        }
        Ok(())
    })
}
