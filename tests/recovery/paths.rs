//! A fabric with several equal paths: lanes that share one get apart, one that loses packets is
//! left, and a slow receiver moves nobody.

use crate::common::prelude::*;
use crate::fabric::{Fabric, end, exchange_until, inject_only, run, softrnic};
use crate::stream::{Shape, Stream};
use std::process::Command;
use testkit::dist::built;

/// Long enough that lanes show their speed.
pub(crate) const SHAPE: Shape = Shape { depth: 8, bytes: 128 << 10 };
pub(crate) const NEW_PATHS: (&str, &str) = ("FERRITE_NEW_PATHS", "1");
/// What the log says of a lane that is moved.
pub(crate) const MOVED: &str = "stays slow and moves to another path";

/// The bytes that each path of rank 0's port has been given so far.
fn carried() -> Vec<u64> {
    let text = softrnic(&["stat"]);
    let of_port = text.lines().skip_while(|line| !line.starts_with("softrnic0")).skip(1);
    let paths = of_port
        .take_while(|line| !line.starts_with("softrnic"))
        .filter(|line| line.contains(" path "));
    let bytes = |line: &str| {
        line.trim_end_matches(" bytes").rsplit(' ').next().and_then(|bytes| bytes.parse().ok())
    };
    paths.map(|line| bytes(line).unwrap_or_else(|| panic!("no bytes in {line:?}"))).collect()
}

/// The paths that have carried a hundredth of what rank 0 has sent since `before`, or more;
/// clear-to-sends are less.
fn used_since(before: &mut Vec<u64>) -> Vec<usize> {
    let was = std::mem::replace(before, carried());
    let sent: Vec<_> = before.iter().zip(was).map(|(now, was)| now - was).collect();
    let all: u64 = sent.iter().sum();
    (0..sent.len()).filter(|path| sent[*path] > all / 100).collect()
}

/// Exchanges messages, and returns these paths.
fn paths_of(worker: &WorkerCtx, stream: &mut Stream) -> Result<Vec<usize>> {
    let mut before = carried();
    stream.exchange(worker, 14)?;
    Ok(used_since(&mut before))
}

/// A connection of four lanes at rank 0's end on a number of paths that `is_wanted`: each has
/// labels of its own.
pub(crate) fn open(
    worker: &mut WorkerCtx,
    is_wanted: impl Fn(usize) -> bool,
) -> Result<(Stream, Vec<usize>)> {
    open_by(worker, |worker| Stream::open(worker, SHAPE), is_wanted)
}

/// The same, opened by `open`.
pub(crate) fn open_by(
    worker: &mut WorkerCtx,
    mut open: impl FnMut(&mut WorkerCtx) -> Result<Stream>,
    is_wanted: impl Fn(usize) -> bool,
) -> Result<(Stream, Vec<usize>)> {
    loop {
        let mut stream = open(worker)?;
        let paths = paths_of(worker, &mut stream)?;
        if worker.agree(u64::from(is_wanted(paths.len())))? == 1 {
            return Ok((stream, paths));
        }
        stream.close()?;
    }
}

/// How often lanes of this process's connection have moved, as `ferrite paths` shows it.
fn shown_moves() -> u64 {
    let ferrite = built("bin/ferrite").unwrap_or_else(|missing| panic!("{missing}"));
    let own = format!("pid={}", std::process::id());
    let text = program::stdout_of(
        Command::new(ferrite).args(["paths", "--interval", "0.1", "--filter", &own]),
    );
    // The rank, rank and host of the peer, device, GB/s, recoveries, moves.
    let moves = text.lines().nth(1).and_then(|line| line.split_whitespace().nth(6)?.parse().ok());
    moves.unwrap_or_else(|| panic!("no moves in {text:?}"))
}

/// A move leads to another path by chance, and after four that have brought nothing a connection
/// rests. Then others try it, in other processes, whose moves are counted anew.
#[test]
fn lanes_that_share_a_path_get_apart() -> Result<()> {
    const MOVES: usize = 4;
    // Tells this process what rank 0's has seen.
    const APART: &str = "LANES_ARE_APART";
    let folder = Scratch::new();
    let are_apart = folder.join("are-apart");
    let apart = (APART, are_apart.to_str().expect("UTF-8"));
    let env = [NEW_PATHS, ("SOFTRNIC_PATHS", "8"), ("SOFTRNIC_PATH_MBS", "20"), apart];
    let moves = || log().matches(MOVED).count();
    for _ in 0..10 {
        run(Fabric::Lanes, &env, |worker| {
            // Two share a path. Two on each of two paths would be alike, as all on one would be,
            // and none of them slow.
            let (mut stream, first) = open(worker, |count| count == 3)?;
            let mut before = carried();
            exchange_until(worker, &mut stream, "until lanes are on more paths, or rest", || {
                used_since(&mut before).len() > first.len() || moves() >= MOVES
            })?;
            let now = paths_of(worker, &mut stream)?;
            if worker.rank() == 0 && now.len() > first.len() {
                assert!(said(&[MOVED]) && shown_moves() > 0, "{}", log());
                std::fs::write(std::env::var(APART).expect("it is set"), "")
                    .expect("it can be written");
            }
            worker.barrier()?;
            stream.close()
        })?;
        if are_apart.exists() {
            return Ok(());
        }
    }
    panic!("lanes share a path after ten times four moves");
}

/// `loss` is in force on one of the paths that lanes are on: that one is left, and the others are
/// kept.
fn is_left(loss: &str) -> Result<()> {
    let env = [NEW_PATHS, ("SOFTRNIC_PATHS", "8"), ("SOFTRNIC_PATH_MBS", "200")];
    run(Fabric::Lanes, &env, |worker| {
        let (mut stream, first) = open(worker, |count| count > 1)?;
        if worker.rank() == 0 {
            inject_only(&format!("{loss} path={} device=softrnic0", first[0]));
        }
        worker.barrier()?;
        let mut before = carried();
        exchange_until(worker, &mut stream, "until a path is left", || {
            !used_since(&mut before).contains(&first[0])
        })?;
        let now = paths_of(worker, &mut stream)?;
        assert!(
            worker.rank() != 0 || first[1..].iter().all(|path| now.contains(path)),
            "{first:?}, then {now:?}"
        );
        worker.barrier()?;
        stream.close()
    })
}

cases! { Result<()>;
    a_dead_path_is_left_by_the_lanes_on_it_alone => is_left("drop attempts=all");
    a_path_that_loses_packets_is_left_by_the_lanes_on_it_alone =>
        is_left("drop attempts=all chance=0.1");
}

/// The receiver asks for messages now and then only. None of `stream`'s lanes at rank 0's end is
/// slower than the others.
fn no_lane_moves(worker: &mut WorkerCtx, mut stream: Stream) -> Result<()> {
    for _ in 0..300 {
        if worker.rank() == 1 {
            std::thread::sleep(Duration::from_millis(2));
        }
        stream.exchange(worker, 4)?;
    }
    assert!(worker.rank() == 1 || !said(&["moves to another path"]), "{}", log());
    worker.barrier()?;
    stream.close()
}

#[test]
fn a_slow_receiver_moves_no_lane() -> Result<()> {
    let env = [NEW_PATHS, ("SOFTRNIC_PATHS", "1"), ("SOFTRNIC_PATH_MBS", "1000")];
    run(Fabric::Lanes, &env, |worker| {
        let stream = Stream::open(worker, SHAPE)?;
        no_lane_moves(worker, stream)
    })
}

#[test]
fn a_slow_receiver_moves_no_lane_of_four_on_paths_of_their_own() -> Result<()> {
    let env = [NEW_PATHS, ("SOFTRNIC_PATHS", "4"), ("SOFTRNIC_PATH_MBS", "100")];
    run(Fabric::Lanes, &env, |worker| {
        let (stream, _) = open(worker, |count| count == 4)?;
        no_lane_moves(worker, stream)
    })
}

/// Each device has six queue pairs for two ends of four lanes, so that one connection has two.
#[test]
fn connections_with_fewer_lanes_than_asked_for_recover() -> Result<()> {
    let env = [
        ("SOFTRNIC_MAX_QP", "6"),
        ("SOFTRNIC_FAULTS", "qp-error device=softrnic0 message=60 times=1"),
    ];
    run(Fabric::Lanes, &env, |worker| {
        let mut stream = Stream::open(worker, SHAPE)?;
        stream.exchange(worker, 60)?;
        end(worker, stream)
    })
}
