//! Paths whose round trip is longer than a path without any acknowledgement is trusted for. It is
//! so long here that a busy machine does not add as much.

use crate::common::prelude::*;
use crate::fabric::{Fabric, inject_only, recoveries, run};
use crate::stream::{Shape, Stream};

const SHAPE: Shape = Shape { depth: 1, bytes: 4096 };
/// Each way. No suspicion comes as late as two of these after a message, if nothing is known of the
/// path.
const ONE_WAY_US: &str = "320000";
/// Attempts until a test waits for as long as that, and two more.
const MOST_ATTEMPTS: u32 = 11;

/// How many attempts each recovery of this process's connections has taken.
fn attempts() -> Vec<u32> {
    let text = log();
    let counts = text.lines().filter_map(|line| {
        let (_, rest) = line.split_once(" recovered")?;
        rest.split_once(" ms (")?.1.split_once(" attempt(s)")?.0.parse().ok()
    });
    counts.collect()
}

/// The first message is suspected, and that costs no more attempts than it takes to wait for one
/// round trip. From then on the round trip is known: messages are not suspected, those of another
/// connection to the same port neither, and a fault does not cost so many attempts again.
fn is_learnt(fabric: Fabric) -> Result<()> {
    run(fabric, &[("SOFTRNIC_PATHS", "1"), ("SOFTRNIC_PATH_US", ONE_WAY_US)], |worker| {
        let mut stream = Stream::open(worker, SHAPE)?;
        stream.exchange(worker, 2)?;
        worker.barrier()?;
        assert!(attempts().iter().all(|count| *count <= MOST_ATTEMPTS), "{}", log());
        let before = recoveries();
        stream.exchange(worker, 3)?;
        let mut other = Stream::open(worker, SHAPE)?;
        other.exchange(worker, 2)?;
        worker.barrier()?;
        // One more for a machine that stands still.
        assert!(recoveries() <= before + 1, "{}", log());
        let before = recoveries();
        worker.barrier()?;
        if worker.rank() == 0 {
            inject_only("qp-error device=softrnic0 opcode=write-imm times=1");
        }
        worker.barrier()?;
        stream.exchange(worker, 2)?;
        worker.barrier()?;
        assert!(attempts()[before..].iter().all(|count| *count <= 2), "{}", log());
        let own = (recoveries() - before) as u64;
        assert!(worker.swap(own)? + own > 0, "no connection has recovered: {}", log());
        worker.barrier()?;
        other.close()?;
        stream.close()
    })
}

cases! { Result<()>;
    a_long_round_trip_is_learnt => is_learnt(Fabric::OneRail);
    a_long_round_trip_is_learnt_on_two_rails => is_learnt(Fabric::TwoRails);
}
