//! Lanes that a connection takes by itself when it has sent enough, as it does unless `FERRITE_LANES` says otherwise.

use crate::common::bench::Bench;
use crate::common::log::{log, said};
use crate::common::plugin_transport;
use crate::common::process::pair;
use crate::common::setting::{set, talkative};
use crate::lanes::is_said_at_an_end;
use crate::transport::queue_pairs_with_data;
use ferrite::error::Result;
use ferrite::pair::WorkerCtx;
use std::process::Command;
use testkit::dist::dist;
use testkit::require;

/// A connection takes lanes after 1 MiB of large messages.
const SOON: (&str, &str) = ("FERRITE_LANES_AFTER_MB", "1");
const TAKES: &str = "queue pair(s) per rail: large messages (FERRITE_LANES=auto)";

/// Sends messages of `bytes` each way until `is_enough` at both ends, or so many times.
fn carries(
    worker: &mut WorkerCtx,
    bench: &Bench,
    (bytes, most): (usize, usize),
    is_enough: impl Fn() -> bool,
) -> Result<()> {
    for round in 0..most {
        bench.exchange(worker, round, bytes, bytes)?;
        let own = u64::from(is_enough());
        if own + worker.swap(own)? == 2 {
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
        carries(worker, &bench, (1 << 19, 1000), || queue_pairs_with_data() == 4)?;
        assert_eq!(queue_pairs_with_data(), 4, "{}", log());
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

/// No lane is faster than another: all are given up, and none has moved.
fn lanes_are_given_up(env: &[(&str, &str)]) -> Result<()> {
    const GIVES_UP: &str = "queue pair(s) per rail: all lanes have carried as much (FERRITE_LANES=auto)";
    pair(&require!(talkative(env)), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        carries(worker, &bench, (1_000_000, 5000), || said(&["asks for 1", GIVES_UP]))?;
        assert!(said(&["asks for 1", GIVES_UP]), "{}", log());
        // What follows is tried with one queue pair, and depends on how fast that is.
        assert!(!said(&["gets another path"]), "{}", log());
        worker.barrier()
    })?;
    Ok(())
}

#[test]
fn lanes_that_carry_as_much_are_given_up() -> Result<()> {
    lanes_are_given_up(&[SOON])
}

#[test]
fn lanes_are_given_up_where_switches_spread_packets() -> Result<()> {
    // Late enough that shares would have been learnt on paths that lanes share.
    let late = ("FERRITE_LANES_AFTER_MB", "32");
    lanes_are_given_up(&[late, ("SOFTRNIC_PATHS", "4"), ("SOFTRNIC_PATH_MBS", "500"), ("SOFTRNIC_SPRAY", "1")])
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

/// The sender asks once, and the connection goes on with one queue pair.
#[test]
fn a_peer_that_has_one_queue_pair_keeps_the_connection_at_one() -> Result<()> {
    pair(&require!(talkative(&[SOON])), |worker| {
        if worker.rank() == 1 {
            set("FERRITE_LANES", "1");
        }
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        carries(worker, &bench, (1 << 19, 200), || false)?;
        assert_eq!(queue_pairs_with_data(), 1, "{}", log());
        assert_eq!(said(&["asks for 4", TAKES]), worker.rank() == 0, "{}", log());
        worker.barrier()
    })?;
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
        carries(worker, &bench, (1 << 19, 300), || said(&["asks for 4", TAKES]))?;
        carries(worker, &bench, (1 << 19, 20), || false)?;
        is_said_at_an_end(worker, &["goes on, after", "and 2 attempt(s)"])?;
        worker.barrier()
    })?;
    Ok(())
}

/// Each device has a queue pair for each end of the two connections, and no more.
#[test]
fn a_card_that_has_no_more_queue_pairs_leaves_the_connection_as_it_was() -> Result<()> {
    pair(&require!(talkative(&[SOON, ("SOFTRNIC_MAX_QP", "2")])), |worker| {
        let bench = Bench::open(worker, plugin_transport()?, 1 << 20)?;
        carries(worker, &bench, (1 << 19, 100), || false)?;
        assert!(said(&["asks for 4", TAKES]), "{}", log());
        assert_eq!(queue_pairs_with_data(), 1, "{}", log());
        worker.barrier()
    })?;
    Ok(())
}
