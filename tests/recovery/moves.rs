//! Faults while a lane is given another path: with the first message on a queue pair that is new
//! for that.

use crate::common::prelude::*;
use crate::common::stat::devices;
use crate::control::{AT_ONCE, open_through_relays};
use crate::fabric::{Fabric, applied, end, exchange_until, inject_only, run, softrnic};
use crate::paths::{MOVED, NEW_PATHS, SHAPE, open, open_by};
use crate::stream::Stream;

/// A processor that others have is no fault: nothing but a move makes queue pairs.
const ENV: [(&str, &str); 4] =
    [NEW_PATHS, ("SOFTRNIC_PATHS", "8"), ("SOFTRNIC_PATH_MBS", "20"), ("FERRITE_STALL_MS", "0")];

/// How many queue pairs rank 0's port has connected to rank 1's so far, as those that are there now
/// show it.
fn connections_so_far() -> u64 {
    let devices = devices();
    let queue_pairs = devices[0]["queue_pairs"].as_array().expect("queue pairs");
    queue_pairs.iter().filter_map(|qp| qp["flow"].as_u64()).max().map_or(0, |latest| latest + 1)
}

/// Lanes of a connection.
const LANES: usize = 4;
/// So many attempts to replace queue pairs meet the fault. One may be given up before it has sent
/// anything, on a machine that is late.
const ATTEMPTS: usize = 4;

/// Puts a fault of rank 0's device into force, for the first of the queue pairs that are made from
/// now on in each attempt.
fn inject_on_the_next_queue_pairs(worker: &mut WorkerCtx, fault: &str) -> Result<()> {
    worker.barrier()?;
    if worker.rank() == 0 {
        let flows = (connections_so_far()..).step_by(LANES).take(ATTEMPTS);
        let rules: Vec<_> =
            flows.map(|flow| format!("{fault} device=softrnic0 flow={flow}")).collect();
        inject_only(&rules.join("; "));
    }
    worker.barrier()
}

/// Messages until a rule in force has been applied; at one end a lane has moved. No rule is in
/// force any more.
fn exchange_until_it_has_happened(worker: &mut WorkerCtx, stream: &mut Stream) -> Result<()> {
    exchange_until(worker, stream, "until a lane has moved and the fault has happened", || {
        applied().iter().any(|(_, count)| *count > 0)
    })?;
    let moved = u64::from(said(&[MOVED]));
    assert!(moved + worker.swap(moved)? > 0, "{}", log());
    if worker.rank() == 0 {
        softrnic(&["inject", "--clear"]);
    }
    worker.barrier()
}

/// Two of four lanes share a path, so that one of them moves. The first message on the first queue
/// pair that is made for that brings `fault`, of rank 0's device. Every byte of every message is
/// checked, before and after.
fn all_arrives_despite(fault: &str) -> Result<()> {
    run(Fabric::Lanes, &ENV, |worker| {
        let (mut stream, _) = open(worker, |count| count == 3)?;
        inject_on_the_next_queue_pairs(worker, fault)?;
        exchange_until_it_has_happened(worker, &mut stream)?;
        stream.exchange(worker, 200)?;
        end(worker, stream)
    })
}

cases! { Result<()>;
    all_arrives_if_a_new_queue_pair_fails_while_a_lane_is_moved =>
        all_arrives_despite("qp-error message=1 times=1");
    all_arrives_if_the_port_falls_while_a_lane_is_moved =>
        all_arrives_despite("port-down=20ms message=1 times=1");
    all_arrives_if_a_new_queue_pair_reaches_nobody_for_a_time_while_a_lane_is_moved =>
        all_arrives_despite("drop attempts=all message=1.. for=100ms");
    all_arrives_if_the_port_gets_other_addresses_while_a_lane_is_moved =>
        all_arrives_despite("port-down=20ms gid=other message=1 times=1");
    all_arrives_if_the_device_fails_while_a_lane_is_moved =>
        all_arrives_despite("device-fatal=200ms message=1 times=1");
    all_arrives_if_the_completion_queue_fails_while_a_lane_is_moved =>
        all_arrives_despite("cq-overrun message=1 times=1");
}

/// The control connections are reset after so many pieces of what the ends say to each other of the
/// move. Each time in other processes: one has few moves.
fn all_arrives_although_control_connections_are_reset(
    pieces: impl IntoIterator<Item = usize>,
) -> Result<()> {
    const PIECES: &str = "RESET_AFTER_PIECES";
    pieces.into_iter().try_for_each(|pieces| {
        let pieces = pieces.to_string();
        let env = [&ENV[..], &[(PIECES, &*pieces)]].concat();
        run(Fabric::Lanes, &env, |worker| {
            // As this process has it, in which the loop is in its first turn.
            let pieces: usize =
                std::env::var(PIECES).expect("it is set").parse().expect("a number");
            worker.begin(format!("a move with a reset after {pieces} pieces"))?;
            let mut relay = None;
            let open = |worker: &mut WorkerCtx| {
                let (stream, relayed) = open_through_relays(worker, AT_ONCE, SHAPE)?;
                relay = Some(relayed);
                Ok(stream)
            };
            let (mut stream, _) = open_by(worker, open, |count| count == 3)?;
            let relay = relay.expect("a connection is open");
            relay.reset_after(pieces);
            worker.barrier()?;
            // Either end may be the one that moves a lane first.
            let happened = |worker: &mut WorkerCtx, here: bool| -> Result<bool> {
                Ok(u64::from(here) + worker.swap(here.into())? > 0)
            };
            while !(happened(worker, said(&[MOVED]))? & happened(worker, relay.resets() > 0)?) {
                stream.exchange(worker, 20)?;
            }
            stream.exchange(worker, 100)?;
            worker.barrier()?;
            stream.close()
        })
    })
}

cases! { Result<()>;
    all_arrives_if_the_control_connection_is_reset_while_a_lane_is_moved =>
        all_arrives_although_control_connections_are_reset([2]);
    all_arrives_if_the_control_connection_is_reset_at_any_step_of_a_move =>
        all_arrives_although_control_connections_are_reset(1..8);
}

/// Rank 0, a child process, dies with the first message on a new queue pair; rank 1 gets an error.
#[test]
fn the_death_of_a_peer_while_a_lane_is_moved_is_reported() -> Result<()> {
    run(Fabric::Lanes, &ENV, |worker| {
        if worker.rank() == 0 {
            in_child_that_dies(|| {
                let Ok((mut stream, _)) = open(worker, |count| count == 3) else { return };
                let Ok(()) = inject_on_the_next_queue_pairs(worker, "kill message=1 times=1")
                else {
                    return;
                };
                drop(stream.exchange(worker, usize::MAX));
                // It would have died before.
                std::process::exit(1);
            });
            return worker.barrier();
        }
        let (mut stream, _) = open(worker, |count| count == 3)?;
        inject_on_the_next_queue_pairs(worker, "")?;
        let error = stream.exchange(worker, usize::MAX).expect_err("the peer has died");
        assert!(matches!(error, Error::Call { code: abi::ncclRemoteError, .. }), "{error}");
        assert!(said(&["has died"]), "{}", log());
        stream.close_at_once()?;
        worker.barrier()
    })
}
