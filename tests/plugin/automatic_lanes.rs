//! Lanes that a connection takes by itself when it has sent enough, with `FERRITE_LANES=auto`, and only then.

use crate::common::bench::Bench;
use crate::common::connect::connect;
use crate::common::log::{log, said};
use crate::common::plugin_transport;
use crate::common::process::{alone, pair};
use crate::common::setting::{set, talkative};
use crate::common::stat::own_queues;
use crate::statistics::{in_folder, own_words, records};
use crate::transport::queue_pairs_with_data;
use ferrite::error::Result;
use ferrite::pair::WorkerCtx;
use ferrite::transport::buffer::Buffer;
use ferrite::transport::deadline::{finished, posted};
use nccl_net::testing::stats::layout::{SENDER, record};
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use testkit::dist::dist;
use testkit::{Scratch, program, require, wait_until};

const AUTO: (&str, &str) = ("FERRITE_LANES", "auto");
/// A connection takes lanes after 1 MiB of large messages.
const SOON: (&str, &str) = ("FERRITE_LANES_AFTER_MB", "1");
const TAKES: &str = "queue pair(s) per rail: large messages (FERRITE_LANES=auto)";

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

/// Nobody has asked for lanes: however much is sent, the queue pair is the one that the connection began with.
#[test]
fn by_default_a_connection_that_has_sent_much_keeps_its_one_queue_pair() -> Result<()> {
    pair(&require!(talkative(&[SOON])), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        bench.exchange(worker, 0, 1 << 19, 1 << 19)?;
        let first = numbers_of_queue_pairs();
        carries(worker, &bench, (1 << 19, 40), || false)?;
        assert_eq!((queue_pairs_with_data(), numbers_of_queue_pairs()), (1, first), "{}", log());
        assert!(said(&["does not honour FERRITE_LANES_AFTER_MB"]), "{}", log());
        assert!(!said(&["queue pair(s) per rail: "]) && !said(&["recovers"]) && !said(&["goes on"]), "{}", log());
        worker.barrier()
    })?;
    Ok(())
}

/// Those of this process: one for what it sends, one for what it receives.
fn numbers_of_queue_pairs() -> BTreeSet<u64> {
    own_queues("queue_pairs").iter().map(|pair| pair["number"].as_u64().expect("a number")).collect()
}

#[test]
fn a_connection_takes_lanes_when_it_has_sent_much_in_large_messages() -> Result<()> {
    pair(&require!(talkative(&[AUTO, SOON])), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        assert_eq!(queue_pairs_with_data(), 0);
        bench.exchange(worker, 0, 1 << 19, 1 << 19)?;
        assert_eq!(queue_pairs_with_data(), 1);
        // The lanes carry as much, so they are given up again, maybe as soon as they have been seen.
        let mut had_four = false;
        carries(worker, &bench, (1 << 19, 1000), || {
            had_four |= queue_pairs_with_data() == 4;
            had_four
        })?;
        assert!(had_four, "{}", log());
        assert!(said(&["asks for 4", TAKES]), "{}", log());
        worker.barrier()
    })?;
    Ok(())
}

/// Whatever becomes of its lanes, every byte arrives once.
#[test]
fn all_arrives_while_lanes_are_taken_and_given_up() -> Result<()> {
    pair(&require!(talkative(&[AUTO, SOON])), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        for round in 0..600 {
            let size = [1_000_000, 100_000, 8, 0][round % 4];
            bench.exchange(worker, round, size, size)?;
        }
        assert!(said(&["asks for 4", TAKES]), "{}", log());
        worker.barrier()
    })?;
    Ok(())
}

/// No lane is faster than another: all are given up. Where switches spread packets that depends on how busy this machine is, whose processors
/// carry them; the model of a fabric has that.
#[test]
fn lanes_that_carry_as_much_are_given_up() -> Result<()> {
    const GIVES_UP: &str = "queue pair(s) per rail: all lanes have carried as much (FERRITE_LANES=auto)";
    pair(&require!(talkative(&[AUTO, SOON])), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        carries(worker, &bench, (1_000_000, 5000), || said(&["asks for 1", GIVES_UP]))?;
        assert!(said(&["asks for 1", GIVES_UP]), "{}", log());
        worker.barrier()
    })?;
    Ok(())
}

#[test]
fn small_messages_need_no_lanes() -> Result<()> {
    pair(&require!(talkative(&[AUTO, SOON])), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        carries(worker, &bench, (60_000, 100), || false)?;
        assert_eq!(queue_pairs_with_data(), 1);
        assert!(!said(&[TAKES]), "{}", log());
        worker.barrier()
    })?;
    Ok(())
}

/// The sender asks, and the connection goes on with one queue pair.
#[test]
fn a_peer_that_has_one_queue_pair_keeps_the_connection_at_one() -> Result<()> {
    pair(&require!(talkative(&[AUTO, SOON])), |worker| {
        if worker.rank() == 1 {
            set("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
        }
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        carries_for(1, worker, &bench, (1 << 19, 1000), || said(&["asks for 4", TAKES]))?;
        assert_eq!(said(&["asks for 4", TAKES]), worker.rank() == 0, "{}", log());
        carries_for(1, worker, &bench, (1 << 19, 1000), || said(&["goes on, after"]))?;
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

/// However many queue pairs it has: they would take turns, and be no lanes.
#[test]
fn a_peer_that_cuts_no_messages_is_not_asked_for_lanes() -> Result<()> {
    for (name, value) in [("FERRITE_LANES", "1"), ("NCCL_IB_QPS_PER_CONNECTION", "4")] {
        pair(&require!(talkative(&[AUTO, SOON])), |worker| {
            if worker.rank() == 1 {
                set(name, value);
            }
            let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
            carries(worker, &bench, (1 << 19, 40), || false)?;
            assert!(!said(&[TAKES]), "{}", log());
            assert!(worker.rank() == 1 || queue_pairs_with_data() == 1, "{}", log());
            worker.barrier()
        })?;
    }
    Ok(())
}

/// The first attempt of a connection to have four queue pairs fails, and it goes on.
#[test]
fn a_card_that_refuses_what_lanes_need_harms_no_connection() -> Result<()> {
    pair(&require!(talkative(&[AUTO, SOON])), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        bench.exchange(worker, 0, 1000, 1000)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            let rule = "modify-qp=ENOMEM times=1";
            let inject = Command::new(dist().join("bin/softrnic")).args(["inject", rule]).status();
            assert!(inject.expect("softrnic runs").success());
        }
        worker.barrier()?;
        // Either end may be the one whose command is refused. A machine that is late makes more than two attempts of it.
        let again = || log().lines().any(|line| line.contains("goes on, after") && !line.contains("and 1 attempt(s)"));
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
    pair(&require!(talkative(&[AUTO, SOON, ("SOFTRNIC_MAX_QP", "2")])), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        carries(worker, &bench, (1 << 19, 1000), || said(&["asks for 4", TAKES]))?;
        assert!(said(&["asks for 4", TAKES]), "{}", log());
        carries(worker, &bench, (1 << 19, 1000), || said(&["goes on, after"]))?;
        carries(worker, &bench, (1 << 19, 2), || false)?;
        assert_eq!(queue_pairs_with_data(), 1, "{}", log());
        worker.barrier()
    })?;
    Ok(())
}

/// A card has as many queue pairs as all connections have with one each, and a few more, and is slow to make them. Each connection wants four at
/// about the same time: those that others take are not missing where the old ones are gone.
#[test]
fn connections_that_want_lanes_at_once_leave_each_other_what_they_had() -> Result<()> {
    const CONNECTIONS: usize = 40;
    let most = (2 * CONNECTIONS + 20).to_string();
    let short = [AUTO, SOON, ("SOFTRNIC_MAX_QP", &most), ("SOFTRNIC_COMMAND_US", "1000")];
    pair(&require!(talkative(&short)), |worker| {
        let open = |_| Bench::open(worker, plugin_transport()?, 1 << 20);
        let benches = (0..CONNECTIONS).map(open).collect::<Result<Vec<_>>>()?;
        let mut most = 0;
        for round in 0..6 {
            benches.iter().try_for_each(|bench| bench.exchange(worker, round, 640 << 10, 640 << 10))?;
            most = most.max(queue_pairs_with_data());
        }
        assert!(most > CONNECTIONS, "{most} queue pairs: none has taken lanes");
        worker.barrier()
    })?;
    Ok(())
}

/// How often the completion queues of this process have been polled.
fn polls() -> u64 {
    own_queues("completion_queues").iter().map(|queue| queue["polls"].as_u64().expect("a number")).sum()
}

/// What is under way when the queue pairs are replaced is sent again: of two messages that might be, the one that had begun before. The
/// device loses it, and its own retry would come much later.
#[test]
fn a_connection_that_is_about_to_take_lanes_begins_no_message() -> Result<()> {
    // What is sent before the message that is lost is one message, of as much as a connection may have to send before it takes lanes.
    const BYTES: usize = 2 << 20;
    let folder = Scratch::new();
    let env = [AUTO, SOON, ("NCCL_IB_TIMEOUT", "22"), ("FERRITE_STALL_MS", "0")];
    alone(&in_folder(require!(talkative(&env)), &folder), |worker| {
        let folder = PathBuf::from(std::env::var("FERRITE_STATS_DIR").expect("it is set"));
        let transport = plugin_transport()?;
        let (handle, mut listener) = transport.listen(0)?;
        let (send, recv) = connect(worker, &transport, &handle, &mut listener)?;
        let memory = || Buffer::new(BYTES).map(Arc::new);
        let (out, into) = (send.register(&memory()?)?, recv.register(&memory()?)?);
        let mut deadline = worker.deadline("messages around a change of lanes");
        let receive = posted(&mut deadline, || recv.receive(&into, 0, BYTES, 0))?;
        let sending = posted(&mut deadline, || send.send(&out, 0, BYTES, 0))?;
        finished(&mut deadline, sending, &mut [0])?;
        finished(&mut deadline, receive, &mut [0])?;
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
        assert!(said(&["asks for 4", TAKES]), "{}", log());
        // No call of NCCL polls now, but the thread that has begun the change looks at what is acknowledged.
        let before = polls();
        wait_until("messages are held back", || polls() > before || said(&["goes on, after"]));
        let next = posted(&mut deadline, || send.send(&out, 0, BYTES, 0))?;
        for request in lost.into_iter().chain([next]).chain(receives) {
            finished(&mut deadline, request, &mut [0])?;
        }
        let words = own_words(&folder);
        let sender = records(&words).find(|end| end[record::DIRECTION] == SENDER).expect("the sender");
        assert_eq!(sender[record::RESENT], 1, "{}", log());
        Ok(())
    })
}
