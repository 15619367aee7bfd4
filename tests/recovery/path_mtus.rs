//! Paths that lose large packets only, as where a switch takes smaller ones than both ports say.

use crate::common::prelude::*;
use crate::errors::ends_with;
use crate::fabric::{Fabric, exchange_until, recoveries, run};
use crate::stream::{LONG, Stream};

/// What the log says when a connection has a smaller MTU.
const LOWERED: [&str; 3] =
    ["packets of 2048 bytes from", "check the MTU", "now uses packets of up to 1024 bytes"];

/// The packets of `rank`, or of both, are lost that are larger than 1024 bytes: its end says so,
/// and continues with smaller ones. There is no fault after that.
fn smaller_packets_are_taken(fabric: Fabric, rule: &str, rank: Option<usize>) -> Result<()> {
    smaller_packets_are_taken_with(&[], fabric, rule, rank)
}

/// The same with these variables.
fn smaller_packets_are_taken_with(
    env: &[(&str, &str)],
    fabric: Fabric,
    rule: &str,
    rank: Option<usize>,
) -> Result<()> {
    let rule = format!("drop larger=1024 attempts=all {rule}");
    run(fabric, &[env, &[("SOFTRNIC_FAULTS", &rule)]].concat(), |worker| {
        let mut stream = Stream::open(worker, LONG)?;
        exchange_until(worker, &mut stream, "until the MTU is smaller", || {
            rank == Some(1) || said(&LOWERED)
        })?;
        stream.exchange(worker, 60)?;
        worker.barrier()?;
        assert!(rank.is_some_and(|rank| rank != worker.rank()) || said(&LOWERED), "{}", log());
        let before = recoveries();
        stream.exchange(worker, 200)?;
        worker.barrier()?;
        assert_eq!(recoveries(), before, "{}", log());
        worker.barrier()?;
        stream.close()
    })
}

#[test]
fn a_path_that_loses_large_packets_has_smaller_ones() -> Result<()> {
    smaller_packets_are_taken(Fabric::OneRail, "", None)
}

/// All retries are over before the test of new queue pairs is.
#[test]
fn a_path_that_loses_large_packets_has_smaller_ones_with_short_retries() -> Result<()> {
    let short = [("NCCL_IB_TIMEOUT", "8"), ("NCCL_IB_RETRY_CNT", "3")];
    smaller_packets_are_taken_with(&short, Fabric::OneRail, "", None)
}

cases! { Result<()>;
    a_path_that_loses_large_packets_one_way_has_smaller_ones =>
        smaller_packets_are_taken(Fabric::OneRail, "device=softrnic1", Some(1));
    paths_of_lanes_that_lose_large_packets_have_smaller_ones =>
        smaller_packets_are_taken(Fabric::Lanes, "", None);
    /// The second rail is left out, tried again, and taken in with smaller packets.
    one_rail_of_two_that_loses_large_packets_has_smaller_ones =>
        smaller_packets_are_taken(Fabric::TwoRails, "device=softrnic1", Some(0));
}

/// No MTU is as small. The error says what arrives and what is lost, what it may be, and not that
/// the peer has not answered.
#[test]
fn a_path_that_loses_all_packets_with_data_ends_with_an_error_that_says_so() -> Result<()> {
    let env = [("SOFTRNIC_FAULTS", "drop larger=200 attempts=all"), ("FERRITE_GIVE_UP", "4")];
    run(Fabric::OneRail, &env, |worker| {
        ends_with(
            worker,
            &[
                "could not be recovered", "packets of 256 bytes from", "packets of 0 bytes arrive",
                "Likely: a link or switch",
            ],
        )?;
        assert!(!said(&["could not be recovered", "The peer has not answered"]), "{}", log());
        // The fault is logged once and then ever more seldom, though each attempt finds it.
        assert!(
            log().lines().filter(|line| line.contains(" is recovering: ")).count() < 6,
            "{}",
            log()
        );
        Ok(())
    })
}
