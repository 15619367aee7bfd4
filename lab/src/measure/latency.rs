//! Ping-pong with one message outstanding.
//!
//! The receive of the next message is posted before the answer to the last one is sent, as NCCL
//! does and as perftest does; so a half round trip is what one message needs, without the time its
//! receiver needs to announce itself. A round ends when both the answer has come and the send has
//! completed.

use std::time::Instant;

use crate::error::{Error, Result};
use crate::measure::conn::{Bench, TAG};
use crate::measure::direction::Direction;
use crate::measure::estimate;
use crate::measure::metric::Metric;
use crate::measure::sample::{Key, Sample};
use crate::pair::worker_ctx::WorkerCtx;
use crate::transport::comm::Request;
use crate::transport::deadline::{Deadline, finished, posted};

/// Round trips that are not counted.
const WARM_UP: u64 = 200;
/// Round trips that are timed, at least and at most.
const ROUNDS: (u64, u64) = (500, 200_000);

/// Measures the latency of `bytes`; the sample is on rank 0.
///
/// # Errors
/// Those of the transport; [`Error::Data`] if a size is wrong.
pub(crate) fn measure(worker: &mut WorkerCtx, bench: &Bench, bytes: usize, slice_ms: u64) -> Result<Option<Sample>> {
    let mut times_us = rounds(worker, bench, bytes, WARM_UP)?;
    let typical_us = 2.0 * estimate::median(&mut times_us).unwrap_or(10.0);
    let count = (slice_ms as f64 * 1e3 / typical_us.max(0.1)) as u64;
    let count = worker.agree(count.clamp(ROUNDS.0, ROUNDS.1))?;
    let mut times_us = rounds(worker, bench, bytes, count)?;
    if worker.rank() != 0 {
        return Ok(None);
    }
    times_us.sort_by(f64::total_cmp);
    let at = |fraction| estimate::quantile_of_sorted(&times_us, fraction).unwrap_or(f64::NAN);
    let key = Key { metric: Metric::Latency, bytes: bytes as u64, direction: Direction::Both, depth: 1 };
    let values = [
        ("min", at(0.0)),
        ("typ", at(0.5)),
        ("p90", at(0.9)),
        ("p99", at(0.99)),
        ("p99.9", at(0.999)),
        ("max", at(1.0)),
        ("avg", times_us.iter().sum::<f64>() / times_us.len() as f64),
        ("iterations", count as f64),
    ];
    Ok(Some(Sample::new(key, &values)))
}

/// Half round trips in microseconds, one per round; none on rank 1, which answers.
fn rounds(worker: &mut WorkerCtx, bench: &Bench, bytes: usize, count: u64) -> Result<Vec<f64>> {
    let first = worker.rank() == 0;
    let mut times_us = Vec::with_capacity(if first { usize::try_from(count).unwrap_or(0) } else { 0 });
    let mut deadline = worker.deadline("a ping-pong");
    let Bench { out, into, conn } = bench;
    // Two places, so that a receive is never posted over bytes that just came.
    let place = |round: u64| (round % 2) as usize * bytes.next_multiple_of(4096);
    let receive = |round, deadline: &mut _| posted(deadline, || conn.recv.receive(into, place(round), bytes, TAG));
    let send = |deadline: &mut _| posted(deadline, || conn.send.send(out, 0, bytes, TAG));
    let mut expected = receive(0, &mut deadline)?;
    let mut answer = None;
    worker.barrier()?;
    // The clock is read once a round: it lies between an answer and the next message.
    let mut start = Instant::now();
    for round in 0..count {
        if first {
            answer = Some(send(&mut deadline)?);
        }
        let size = both(&mut deadline, answer.take(), expected)?;
        if size as usize != bytes {
            return Err(Error::Data(format!("a message of {bytes} B came with {size} B")));
        }
        // One more than is sent: both end with a receive posted, taken by the last exchange.
        expected = receive(round + 1, &mut deadline)?;
        if !first {
            answer = Some(send(&mut deadline)?);
            continue;
        }
        let end = Instant::now();
        times_us.push((end - start).as_secs_f64() * 1e6 / 2.0);
        start = end;
    }
    if let Some(answer) = answer {
        finished(&mut deadline, answer, &mut [0])?;
    }
    let last = send(&mut deadline)?;
    both(&mut deadline, Some(last), expected)?;
    worker.barrier()?;
    Ok(times_us)
}

/// Tests both until both are done, the receive first: whether a send completes before or after the
/// answer arrives is the transport's business. The size that arrived.
fn both(deadline: &mut Deadline, mut send: Option<Request<'_>>, mut receive: Request<'_>) -> Result<i32> {
    let (mut size, mut arrived) = ([0], false);
    loop {
        arrived = arrived || receive.test(&mut size)?;
        if let Some(request) = &mut send
            && request.test(&mut [0])?
        {
            send = None;
        }
        if arrived && send.is_none() {
            deadline.progress();
            return Ok(size[0]);
        }
        deadline.idle()?;
    }
}
