//! Streams whose every byte is checked, over one connection or over several at once.

use crate::error::Result;
use crate::measure::byte_check::{Check, Expected, UNTOUCHED};
use crate::measure::conn::{Bench, GUARD};
use crate::measure::direction::Direction;
use crate::measure::pattern::{self, seed};
use crate::measure::plan::DEPTH;
use crate::measure::stream::{self, Contents, Flow, Running};
use crate::pair::worker_ctx::WorkerCtx;

/// Messages of a stream, unless told otherwise.
const USUAL: u64 = 3 * DEPTH as u64;
/// Most bytes of such a stream.
const USUAL_BYTES: u64 = 40 << 20;

/// What is streamed over each connection, both ways at once with [`DEPTH`] in flight.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Stream {
    /// What its check is called.
    pub kind: &'static str,
    /// The size of each message.
    pub bytes: usize,
    /// How many messages each way.
    pub messages: u64,
}

impl Stream {
    /// So many messages that each place is used again, but not too many bytes.
    pub(crate) fn usual(kind: &'static str, bytes: usize) -> Self {
        let messages = (USUAL_BYTES / bytes.max(1) as u64).clamp(DEPTH.into(), USUAL);
        Self { kind, bytes, messages }
    }
}

/// Runs the stream over all connections at once; the check of each. `test` tells contents apart, as do the
/// connections.
///
/// # Errors
/// Those of the transport. A wrong byte is no error here: it is counted.
pub(crate) fn run(worker: &mut WorkerCtx, benches: &[&Bench], stream: Stream, test: u64) -> Result<Vec<Check>> {
    let Stream { kind, bytes, messages } = stream;
    let rank = worker.rank();
    let mut flow = Flow::new(bytes, rank, Direction::Both, messages);
    flow.stride += 4096;
    let mut flows = Vec::new();
    for (bench, number) in benches.iter().zip(0_u64..) {
        let test = test + (number << 32);
        bench.into.memory().set(0, DEPTH as usize * flow.stride, UNTOUCHED)?;
        let contents = Checked { bench, bytes, test, rank, prepared: 0, check: Check::new(rank, kind, bytes) };
        flows.push(Running::new(bench, flow, contents));
    }
    worker.barrier()?;
    stream::run(worker, &mut flows)?;
    worker.barrier()?;
    Ok(flows.into_iter().map(|flow| flow.contents.check).collect())
}

struct Checked<'b> {
    bench: &'b Bench,
    bytes: usize,
    test: u64,
    rank: usize,
    /// Messages below this index are filled in: a send may be tried many times.
    prepared: u64,
    check: Check,
}

impl Contents for Checked<'_> {
    fn prepare(&mut self, index: u64, offset: usize) -> Result<()> {
        if index < self.prepared {
            return Ok(());
        }
        self.prepared = index + 1;
        let seed = seed(self.test, self.rank, index);
        pattern::fill(self.bench.out.memory(), offset, self.bytes, seed)
    }

    fn arrived(&mut self, index: u64, offset: usize, size: i32) -> Result<()> {
        let expected =
            Expected { place: offset, len: self.bytes, seed: seed(self.test, 1 - self.rank, index), guard: GUARD };
        self.check.count(self.bench, &expected, size)
    }
}
