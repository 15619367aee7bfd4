//! A stream of messages with some in flight, either way or both ways at once.
//!
//! Each pass of the loop posts at most one receive and one send and tests the oldest of each, as
//! NCCL's progress thread does.

use std::fmt;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::measure::conn::{Bench, TAG};
use crate::measure::direction::Direction;
use crate::measure::plan::DEPTH;
use crate::measure::sample::{Key, Sample};
use crate::pair::worker_ctx::WorkerCtx;
use crate::transport::comm::Request;

/// Messages in flight.
const IN_FLIGHT: usize = DEPTH as usize;
/// Parts that a measurement is cut into, an odd number: their median shrugs off a short disturbance.
pub(crate) const PARTS: usize = 5;
/// Messages of a part, at least and at most.
const MESSAGES: (u64, u64) = (16, 4_000_000);

/// How many messages this process sends and receives, and how.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Flow {
    /// The size of each message.
    pub bytes: usize,
    /// The distance between the places of two messages in flight; bytes.
    pub stride: usize,
    /// Messages to send.
    pub sends: u64,
    /// Messages to receive.
    pub receives: u64,
}

impl Flow {
    /// `count` messages in `direction`, as `rank` sees it.
    pub(crate) fn new(bytes: usize, rank: usize, direction: Direction, count: u64) -> Self {
        let sends = direction.sends(rank);
        let receives = direction.sends(1 - rank);
        Self {
            bytes,
            stride: bytes.next_multiple_of(4096).max(4096),
            sends: if sends { count } else { 0 },
            receives: if receives { count } else { 0 },
        }
    }

    /// Where message `index` lies.
    pub(super) fn place(&self, index: u64) -> usize {
        (index % IN_FLIGHT as u64) as usize * self.stride
    }
}

/// What to do with the contents. Does nothing unless told otherwise.
pub(crate) trait Contents {
    /// Message `index` will be sent from `offset`.
    ///
    /// # Errors
    /// Whatever makes the run invalid.
    fn prepare(&mut self, _index: u64, _offset: usize) -> Result<()> {
        Ok(())
    }

    /// Message `index` has arrived at `offset`.
    ///
    /// # Errors
    /// Whatever makes the run invalid.
    fn arrived(&mut self, index: u64, offset: usize, size: i32) -> Result<()>;
}

/// Looks at the sizes only, for the timed passes.
#[derive(Debug)]
struct SizesOnly(usize);

impl Contents for SizesOnly {
    #[inline]
    fn arrived(&mut self, index: u64, _: usize, size: i32) -> Result<()> {
        if size as usize == self.0 {
            return Ok(());
        }
        Err(Error::Data(format!("message {index} of {} B came with {size} B", self.0)))
    }
}

/// The requests of one direction, oldest first.
struct Window<'c> {
    requests: [Option<Request<'c>>; IN_FLIGHT],
    posted: u64,
    done: u64,
}

impl<'c> Window<'c> {
    fn new() -> Self {
        Self { requests: [const { None }; IN_FLIGHT], posted: 0, done: 0 }
    }

    fn has_room(&self, total: u64) -> bool {
        self.posted < total && self.posted - self.done < IN_FLIGHT as u64
    }

    fn push(&mut self, request: Request<'c>) {
        self.requests[(self.posted % IN_FLIGHT as u64) as usize] = Some(request);
        self.posted += 1;
    }

    /// The size of the oldest, if it is done.
    fn pop(&mut self) -> Result<Option<i32>> {
        let slot = &mut self.requests[(self.done % IN_FLIGHT as u64) as usize];
        let mut size = [0];
        let Some(request) = slot else { return Ok(None) };
        if !request.test(&mut size)? {
            return Ok(None);
        }
        *slot = None;
        self.done += 1;
        Ok(Some(size[0]))
    }
}

/// A flow on its way over one connection.
pub(crate) struct Running<'b, C> {
    bench: &'b Bench,
    flow: Flow,
    /// What to do with the contents.
    pub contents: C,
    receives: Window<'b>,
    sends: Window<'b>,
}

impl<C> fmt::Debug for Running<'_, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Running").field("flow", &self.flow).finish_non_exhaustive()
    }
}

impl<'b, C: Contents> Running<'b, C> {
    /// Before its first message.
    pub(crate) fn new(bench: &'b Bench, flow: Flow, contents: C) -> Self {
        Self { bench, flow, contents, receives: Window::new(), sends: Window::new() }
    }

    #[inline]
    fn is_done(&self) -> bool {
        self.receives.done >= self.flow.receives && self.sends.done >= self.flow.sends
    }

    /// One pass; whether anything happened.
    #[inline]
    fn step(&mut self) -> Result<bool> {
        let Self { bench: Bench { out, into, conn }, flow, contents, receives, sends } = self;
        let before = receives.posted + receives.done + sends.posted + sends.done;
        if receives.has_room(flow.receives) {
            let place = flow.place(receives.posted);
            if let Some(request) = conn.recv.receive(into, place, flow.bytes, TAG)? {
                receives.push(request);
            }
        }
        if sends.has_room(flow.sends) {
            let place = flow.place(sends.posted);
            contents.prepare(sends.posted, place)?;
            if let Some(request) = conn.send.send(out, place, flow.bytes, TAG)? {
                sends.push(request);
            }
        }
        let (next, place) = (receives.done, flow.place(receives.done));
        if let Some(size) = receives.pop()? {
            contents.arrived(next, place, size)?;
        }
        sends.pop()?;
        Ok(before != receives.posted + receives.done + sends.posted + sends.done)
    }
}

/// Runs the flows to their end on this side, in turn, in this thread.
///
/// # Errors
/// Those of the transport and of the contents; [`Error::Stalled`].
pub(crate) fn run<C: Contents>(worker: &WorkerCtx, flows: &mut [Running<'_, C>]) -> Result<()> {
    let mut deadline = worker.deadline("a stream");
    while flows.iter().any(|flow| !flow.is_done()) {
        let mut moved = false;
        for flow in flows.iter_mut() {
            moved |= flow.step()?;
        }
        if moved {
            deadline.progress();
        } else {
            deadline.idle()?;
        }
    }
    Ok(())
}

/// Measures the stream, as much over each of the connections at once, in [`PARTS`] with a common start each; the sample is on rank 0.
/// The time of a part is that of the slower side, to its last completion on the slowest connection.
///
/// # Errors
/// Those of [`run`].
pub(crate) fn measure(worker: &mut WorkerCtx, benches: &[Bench], key: Key, slice_ms: u64) -> Result<Option<Sample>> {
    let bytes = key.bytes as usize;
    let warm_up = ((4 << 20) / bytes.max(1)).clamp(16, 400) as u64;
    timed(worker, benches, bytes, key.direction, warm_up / 2)?;
    let seconds = timed(worker, benches, bytes, key.direction, warm_up)?;
    let count = slice_ms as f64 / 1e3 / (seconds / warm_up as f64).max(1e-9) / PARTS as f64;
    let count = worker.agree((count as u64).clamp(MESSAGES.0, MESSAGES.1))?;
    let mut seconds = Vec::new();
    for _ in 0..PARTS {
        seconds.push(timed(worker, benches, bytes, key.direction, count)?);
    }
    if worker.rank() != 0 {
        return Ok(None);
    }
    seconds.sort_by(f64::total_cmp);
    let ways = if key.direction == Direction::Both { 2.0 } else { 1.0 } * benches.len() as f64;
    let rate = key.metric.info().rate.ok_or(Error::Misuse("a metric that no stream measures"))?;
    let value = |seconds: f64| rate(ways * count as f64 / seconds, bytes as f64);
    let values = [
        ("peak", value(seconds[0])),
        ("typ", value(seconds[PARTS / 2])),
        ("avg", value(seconds.iter().sum::<f64>() / PARTS as f64)),
        ("iterations", (count * PARTS as u64) as f64),
    ];
    Ok(Some(Sample::new(key, &values)))
}

/// The seconds that the slower side needs.
fn timed(worker: &mut WorkerCtx, benches: &[Bench], bytes: usize, direction: Direction, count: u64) -> Result<f64> {
    let flow = Flow::new(bytes, worker.rank(), direction, count);
    let mut flows: Vec<_> = benches.iter().map(|bench| Running::new(bench, flow, SizesOnly(bytes))).collect();
    worker.barrier()?;
    let start = Instant::now();
    run(worker, &mut flows)?;
    let mine = start.elapsed().as_nanos() as u64;
    let theirs = worker.swap(mine)?;
    Ok(mine.max(theirs) as f64 / 1e9)
}
