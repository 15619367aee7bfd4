//! Faults while a lane is given another path: with the first message on a queue pair that is new for that.

use crate::common::log::{log, said};
use crate::fabric::{Fabric, applied, end, exchange_until, inject_only, run, softrnic};
use crate::paths::{MOVED, NEW_PATHS, open};
use ferrite::error::Result;
use serde_json::Value;

/// How many queue pairs rank 0's port has connected to rank 1's so far, as those that are there now show it.
fn connections_so_far() -> u64 {
    let all: Value = serde_json::from_str(&softrnic(&["stat", "--json"])).expect("JSON");
    let queue_pairs = all["devices"][0]["queue_pairs"].as_array().expect("queue pairs");
    queue_pairs.iter().filter_map(|qp| qp["flow"].as_u64()).max().map_or(0, |latest| latest + 1)
}

/// Two of four lanes share a path, so that one of them moves. The first message on the first queue pair that is made for that brings
/// `fault`, of rank 0's device. Every byte of every message is checked, before and after.
fn all_arrives_despite(fault: &str) -> Result<()> {
    // A processor that others have is no fault: nothing but a move makes queue pairs.
    let env = [NEW_PATHS, ("SOFTRNIC_PATHS", "8"), ("SOFTRNIC_PATH_MBS", "20"), ("FERRITE_STALL_MS", "0")];
    run(Fabric::Lanes, &env, |worker| {
        let (mut stream, _) = open(worker, |count| count == 3)?;
        worker.barrier()?;
        if worker.rank() == 0 {
            let next = connections_so_far();
            inject_only(&format!("{fault} device=softrnic0 flow={next} message=1 times=1"));
        }
        worker.barrier()?;
        exchange_until(worker, &mut stream, "until a lane has moved and the fault has happened", || {
            applied().iter().all(|(_, count)| *count > 0)
        })?;
        let moved = u64::from(said(&[MOVED]));
        assert!(moved + worker.swap(moved)? > 0, "{}", log());
        stream.exchange(worker, 200)?;
        end(worker, stream)
    })
}

#[test]
fn all_arrives_if_a_new_queue_pair_fails_while_a_lane_is_moved() -> Result<()> {
    all_arrives_despite("qp-error")
}

#[test]
fn all_arrives_if_the_port_falls_while_a_lane_is_moved() -> Result<()> {
    all_arrives_despite("port-down=20ms")
}
