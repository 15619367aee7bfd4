//! Lanes that a connection takes by itself when it has sent enough, as it does unless `FERRITE_LANES` says otherwise.

use crate::common::bench::Bench;
use crate::common::log::{log, said};
use crate::common::plugin_transport;
use crate::common::process::pair;
use crate::common::setting::{set, talkative};
use crate::transport::queue_pairs_with_data;
use ferrite::error::Result;
use ferrite::pair::WorkerCtx;
use std::process::Command;
use testkit::dist::dist;
use testkit::require;

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

#[test]
fn a_connection_takes_lanes_when_it_has_sent_much_in_large_messages() -> Result<()> {
    pair(&require!(talkative(&[SOON])), |worker| {
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
    pair(&require!(talkative(&[SOON])), |worker| {
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
    pair(&require!(talkative(&[SOON])), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        carries(worker, &bench, (1_000_000, 5000), || said(&["asks for 1", GIVES_UP]))?;
        assert!(said(&["asks for 1", GIVES_UP]), "{}", log());
        worker.barrier()
    })?;
    Ok(())
}

#[test]
fn small_messages_need_no_lanes() -> Result<()> {
    pair(&require!(talkative(&[SOON])), |worker| {
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
    pair(&require!(talkative(&[SOON])), |worker| {
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
        pair(&require!(talkative(&[SOON])), |worker| {
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
    pair(&require!(talkative(&[SOON])), |worker| {
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
    pair(&require!(talkative(&[SOON, ("SOFTRNIC_MAX_QP", "2")])), |worker| {
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
    let short = [SOON, ("SOFTRNIC_MAX_QP", &most), ("SOFTRNIC_COMMAND_US", "1000")];
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
