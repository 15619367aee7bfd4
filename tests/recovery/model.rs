//! The model of `ferrite ecmp` and the software device: the same queue pairs take the same paths, and lanes on a slow path have less in
//! both. What shares are exactly depends on how the machine runs the processes, so only their order is compared; and rates with a tolerance,
//! where paths are so slow that the machine keeps up with them.

use crate::common::stat::devices;
use crate::fabric::{Fabric, exchange_until, inject_only, run};
use crate::stream::{Shape, Stream};
use ferrite::ecmp::device_paths::{path_of, rate, shares};
use ferrite::error::Result;
use ferrite::pair::WorkerCtx;
use serde_json::Value;
use std::collections::BTreeMap;
use std::net::Ipv6Addr;
use std::time::Instant;

/// Shares are learnt from messages of 64 KiB and more.
const SHAPE: Shape = Shape { depth: 8, bytes: 80 << 10 };
const PATHS: u32 = 4;
/// The GID that connections use, with its index as a variable has it.
const GID: (u64, &str) = (1, "1");
/// Of the paths in bytes in a microsecond, and of the slow one, with its rule.
const SPEED: (f64, &str) = (100.0, "100");
const SLOW: (f64, &str) = (5.0, "slow=0.005");

/// A queue pair of rank 0's port.
#[derive(Debug, Clone, Copy, PartialEq)]
struct QueuePair {
    number: u32,
    peer: u32,
    path: u32,
    /// What it has sent so far.
    bytes: u64,
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("no number: {value}"))
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Those of rank 0's port that are connected.
fn queue_pairs() -> Vec<QueuePair> {
    let devices = devices();
    let connected = items(&devices[0]["queue_pairs"]).filter(|qp| !qp["peer"].is_null());
    let of = |qp: &Value| QueuePair {
        number: number(&qp["number"]) as u32,
        peer: number(&qp["peer"]["number"]) as u32,
        path: number(&qp["path"]) as u32,
        bytes: number(&qp["counters"]["bytes"]),
    };
    connected.map(of).collect()
}

/// The addresses of both ports.
fn addresses() -> [Ipv6Addr; 2] {
    let devices = devices();
    [0, 1].map(|device| {
        let gids = &devices[device]["ports"][0]["gids"];
        let gid = items(gids).find(|gid| number(&gid["index"]) == GID.0).expect("the entry");
        gid["gid"].as_str().expect("text").parse().expect("an address")
    })
}

/// What each lane of rank 0's connection has sent since `before`, by queue pair. Clear-to-sends are far less.
fn sent_since(before: &[QueuePair]) -> Vec<(QueuePair, u64)> {
    let was: BTreeMap<u32, u64> = before.iter().map(|qp| (qp.number, qp.bytes)).collect();
    let sent: Vec<_> = queue_pairs().into_iter().map(|qp| (qp, qp.bytes - was.get(&qp.number).unwrap_or(&0))).collect();
    let all: u64 = sent.iter().map(|(_, bytes)| bytes).sum();
    sent.into_iter().filter(|(_, bytes)| *bytes > all / 1000).collect()
}

/// Whether each lane on `slow` has less than each that is not.
fn has_less<T: PartialOrd + Copy>(lanes: &[(QueuePair, T)], slow: u32) -> bool {
    let of = |is_slow: bool| lanes.iter().filter(move |(qp, _)| (qp.path == slow) == is_slow).map(|(_, share)| *share);
    of(true).all(|slow| of(false).all(|other| slow < other))
}

/// A connection whose `count` queue pairs with data are not all on one path.
fn open(worker: &mut WorkerCtx, count: usize) -> Result<(Stream, Vec<QueuePair>)> {
    loop {
        let mut stream = Stream::open(worker, SHAPE)?;
        let before = queue_pairs();
        stream.exchange(worker, 14)?;
        let lanes: Vec<QueuePair> = sent_since(&before).into_iter().map(|(qp, _)| qp).collect();
        let is_wanted = lanes.len() == count && lanes.iter().any(|qp| qp.path != lanes[0].path);
        if worker.agree(u64::from(is_wanted))? == 1 {
            return Ok((stream, lanes));
        }
        stream.close()?;
    }
}

#[test]
fn the_model_and_the_software_device_agree_on_paths_and_on_which_lanes_have_less() -> Result<()> {
    let paths = [("SOFTRNIC_PATHS", "4"), ("SOFTRNIC_PATH_MBS", SPEED.1)];
    // What is late on the slow path is no fault.
    let env = [paths[0], paths[1], ("NCCL_IB_GID_INDEX", GID.1), ("FERRITE_STALL_MS", "0")];
    run(Fabric::Lanes, &env, |worker| {
        let (mut stream, lanes) = open(worker, 4)?;
        let slow = lanes.first().map_or(0, |qp| qp.path);
        if worker.rank() == 0 {
            let addresses = addresses();
            for qp in queue_pairs() {
                assert_eq!(qp.path, path_of(addresses, [qp.number, qp.peer], PATHS), "{qp:?} {addresses:?}");
            }
            let speed = |path| if path == slow { SLOW.0 } else { SPEED.0 };
            let speeds: Vec<f64> = (0..PATHS).map(speed).collect();
            let paths = lanes.iter().map(|qp| qp.path as usize).collect();
            let model = shares(&[paths], &speeds)?;
            let of_lanes: Vec<_> = lanes.iter().copied().zip(model[0].iter().copied()).collect();
            assert!(has_less(&of_lanes, slow), "{of_lanes:?}");
            inject_only(&format!("{} path={slow} device=softrnic0", SLOW.1));
        }
        worker.barrier()?;
        let mut before = queue_pairs();
        exchange_until(worker, &mut stream, "until lanes on the slow path have less", || {
            let sent = sent_since(&std::mem::replace(&mut before, queue_pairs()));
            sent.len() == 4 && has_less(&sent, slow)
        })?;
        worker.barrier()?;
        stream.close()
    })
}

/// Of each path, in bytes in a microsecond: what a machine can copy many times over.
const LITTLE: (f64, &str) = (5.0, "5");
/// So much of a rate in the model is not told apart: messages of the software device are of several lengths.
const TOLERANCE: f64 = 0.2;
/// The time of so many is measured.
const MESSAGES: usize = 300;
/// So often at most.
const MOST_ROUNDS: usize = 100;

/// What rank 0's port has sent over its paths.
fn carried() -> u64 {
    queue_pairs().iter().map(|qp| qp.bytes).sum()
}

/// A connection over several queue pairs is never faster than in the model, and as fast as there as soon as the machine lets it: where it had
/// to wait for a processor, the next messages are looked at.
fn rate_is_as_in_the_model(fabric: Fabric, env: &[(&str, &str)], policy: &str) -> Result<()> {
    let paths = [("SOFTRNIC_PATHS", "4"), ("SOFTRNIC_PATH_MBS", LITTLE.1), ("FERRITE_STALL_MS", "0")];
    run(fabric, &[&paths, env].concat(), |worker| {
        let count = policy.split_once(':').and_then(|(_, count)| count.parse().ok()).expect("a number");
        let (mut stream, lanes) = open(worker, count)?;
        let paths: Vec<usize> = lanes.iter().map(|qp| qp.path as usize).collect();
        let due = if worker.rank() == 0 { rate(policy, &paths, &[LITTLE.0; PATHS as usize])? } else { 0.0 };
        for round in 0.. {
            assert!(round < MOST_ROUNDS, "{policy} on {paths:?} does not get as fast as in the model: {due:.2}");
            worker.begin("messages whose rate is as in the model")?;
            worker.barrier()?;
            let (since, before) = (Instant::now(), carried());
            stream.exchange(worker, MESSAGES)?;
            let rate = (carried() - before) as f64 / since.elapsed().as_micros() as f64;
            let text = format!("{policy} on {paths:?}: {rate:.2}, {due:.2} in the model");
            println!("{text}");
            assert!(worker.rank() == 1 || rate < due * (1.0 + TOLERANCE), "{text}");
            let is_enough = worker.rank() == 0 && rate > due * (1.0 - TOLERANCE);
            if worker.agree(u64::from(is_enough))? == 1 {
                break;
            }
        }
        worker.barrier()?;
        stream.close()
    })
}

#[test]
fn rates_in_turn_are_as_in_the_model() -> Result<()> {
    rate_is_as_in_the_model(Fabric::OneRail, &[("NCCL_IB_QPS_PER_CONNECTION", "3")], "turns:3")
}

#[test]
fn rates_of_even_parts_are_as_in_the_model() -> Result<()> {
    rate_is_as_in_the_model(Fabric::Split, &[], "even:3")
}

#[test]
fn rates_of_lanes_are_as_in_the_model() -> Result<()> {
    rate_is_as_in_the_model(Fabric::Lanes, &[], "shares:4")
}
