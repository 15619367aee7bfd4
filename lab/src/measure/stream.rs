//! A stream of messages with some in flight, either way or both ways at once.
//!
//! Each pass of the loop posts at most one receive and one send and tests the oldest of each, as
//! NCCL's progress thread does.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::measure::metric::Metric;
use crate::measure::plan::{DEPTH, Direction};
use crate::measure::sample;
use crate::measure::sample::{Key, Sample};
use crate::pair::worker_ctx::{PeerConn, WorkerCtx};
use crate::transport::comm::{RecvComm, Region, Request, SendComm};
use crate::transport::deadline::{Deadline, finished, posted};
use crate::transport::instance::Transport;
use crate::transport::listener::{Handle, Listener};

/// Messages in flight.
const IN_FLIGHT: usize = DEPTH as usize;
/// Parts that a measurement is cut into, an odd number: their median shrugs off a short
/// disturbance.
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

/// Measures the stream, as much over each of the connections at once, in [`PARTS`] with a common
/// start each; the sample is on rank 0. The time of a part is that of the slower side, to its last
/// completion on the slowest connection.
///
/// # Errors
/// Those of [`run`].
pub(crate) fn measure(
    worker: &mut WorkerCtx,
    benches: &[Bench],
    key: Key,
    slice_ms: u64,
) -> Result<Option<Sample>> {
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
fn timed(
    worker: &mut WorkerCtx,
    benches: &[Bench],
    bytes: usize,
    direction: Direction,
    count: u64,
) -> Result<f64> {
    let flow = Flow::new(bytes, worker.rank(), direction, count);
    let mut flows: Vec<_> =
        benches.iter().map(|bench| Running::new(bench, flow, SizesOnly(bytes))).collect();
    worker.barrier()?;
    let start = Instant::now();
    run(worker, &mut flows)?;
    let mine = start.elapsed().as_nanos() as u64;
    let theirs = worker.swap(mine)?;
    Ok(mine.max(theirs) as f64 / 1e9)
}

/// Room after each message where nothing may be written; bytes.
pub(crate) const GUARD: usize = 256;

/// The tag of messages that need none.
pub(crate) const TAG: i32 = 7;

/// A connection each way with registered memory on both sides: what the tests run on.
///
/// Field order is the order of closing: regions before their communicators.
#[derive(Debug)]
pub(crate) struct Bench {
    /// Where messages are sent from.
    pub out: Region,
    /// Where messages are received.
    pub into: Region,
    /// The connections.
    pub conn: PeerConn,
}

impl Bench {
    /// Connects and registers `bytes` for sending and as much for receiving.
    ///
    /// # Errors
    /// Those of [`PeerConn::open`] and of registration.
    pub(crate) fn open(
        worker: &mut WorkerCtx,
        transport: &Transport,
        device: usize,
        bytes: usize,
    ) -> Result<Self> {
        let conn = PeerConn::open(worker, transport, device)?;
        let out = conn.send.register(&Arc::new(worker.buffer(bytes)?))?;
        let into = conn.recv.register(&Arc::new(worker.buffer(bytes)?))?;
        Ok(Self { out, into, conn })
    }

    /// Deregisters and closes; both processes do so at the same time.
    ///
    /// # Errors
    /// Those of [`PeerConn::close`].
    pub(crate) fn close(self) -> Result<()> {
        let Self { out, into, conn } = self;
        drop((out, into));
        conn.close()
    }
}

// Ping-pong with one message outstanding.
//
// The receive of the next message is posted before the answer to the last one is sent, as NCCL
// does and as perftest does; so a half round trip is what one message needs, without the time its
// receiver needs to announce itself. A round ends when both the answer has come and the send has
// completed.

/// Round trips that are not counted.
const WARM_UP: u64 = 200;
/// Round trips that are timed, at least and at most.
const ROUNDS: (u64, u64) = (500, 200_000);

/// Measures the latency of `bytes`; the sample is on rank 0.
///
/// # Errors
/// Those of the transport; [`Error::Data`] if a size is wrong.
pub(crate) fn measure_latency(
    worker: &mut WorkerCtx,
    bench: &Bench,
    bytes: usize,
    slice_ms: u64,
) -> Result<Option<Sample>> {
    let mut times_us = rounds(worker, bench, bytes, WARM_UP)?;
    let typical_us = 2.0 * sample::median(&mut times_us).unwrap_or(10.0);
    let count = (slice_ms as f64 * 1e3 / typical_us.max(0.1)) as u64;
    let count = worker.agree(count.clamp(ROUNDS.0, ROUNDS.1))?;
    let mut times_us = rounds(worker, bench, bytes, count)?;
    if worker.rank() != 0 {
        return Ok(None);
    }
    times_us.sort_by(f64::total_cmp);
    let at = |fraction| sample::quantile_of_sorted(&times_us, fraction).unwrap_or(f64::NAN);
    let key =
        Key { metric: Metric::Latency, bytes: bytes as u64, direction: Direction::Both, depth: 1 };
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
    let mut times_us =
        Vec::with_capacity(if first { usize::try_from(count).unwrap_or(0) } else { 0 });
    let mut deadline = worker.deadline("a ping-pong");
    let Bench { out, into, conn } = bench;
    // Two places, so that a receive is never posted over bytes that just came.
    let place = |round: u64| (round % 2) as usize * bytes.next_multiple_of(4096);
    let receive = |round, deadline: &mut _| {
        posted(deadline, || conn.recv.receive(into, place(round), bytes, TAG))
    };
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
fn both(
    deadline: &mut Deadline,
    mut send: Option<Request<'_>>,
    mut receive: Request<'_>,
) -> Result<i32> {
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

const HANDLE: usize = size_of::<Handle>();

/// Makes `connections` from rank 0 to rank 1, `at_once` pending at a time, and keeps them open
/// until the last is ready. The carrying of the handles, which NCCL's bootstrap does, is not
/// counted. The sample is on rank 0.
///
/// # Errors
/// Those of the transport; [`crate::error::Error::Stalled`].
pub(crate) fn measure_setup(
    worker: &mut WorkerCtx,
    transport: &Transport,
    device: usize,
    connections: u32,
    at_once: u32,
) -> Result<Option<Sample>> {
    let mut open = Ends::default();
    let mut batches_ms = Vec::new();
    let mut left = connections;
    while left > 0 {
        let count = left.min(at_once.max(1));
        let mine = batch(worker, transport, device, count as usize, &mut open)?;
        let theirs = f64::from_bits(worker.swap(mine.slower_ms.to_bits())?);
        let listening = f64::from_bits(worker.swap(mine.listening_ms.to_bits())?);
        batches_ms.push(mine.slower_ms.max(theirs) + mine.listening_ms + listening);
        left -= count;
    }
    worker.barrier()?;
    let closing = Instant::now();
    open.close()?;
    let closing_ms = closing.elapsed().as_secs_f64() * 1e3;
    let closing_ms = closing_ms.max(f64::from_bits(worker.swap(closing_ms.to_bits())?));
    if worker.rank() != 0 {
        return Ok(None);
    }
    Ok(Some(sample(&mut batches_ms, connections, at_once, closing_ms)))
}

fn sample(batches_ms: &mut [f64], connections: u32, at_once: u32, closing_ms: f64) -> Sample {
    let total: f64 = batches_ms.iter().sum();
    batches_ms.sort_by(f64::total_cmp);
    let at = |fraction| sample::quantile_of_sorted(batches_ms, fraction).unwrap_or(f64::NAN);
    let key = Key {
        metric: if at_once > 1 { Metric::SetupMany } else { Metric::SetupOne },
        bytes: 0,
        direction: Direction::Forward,
        depth: at_once,
    };
    let mut values = vec![
        ("total", total),
        ("close_total", closing_ms),
        ("connections", f64::from(connections)),
    ];
    if at_once <= 1 {
        values.extend([("min", at(0.0)), ("typ", at(0.5)), ("p99", at(0.99))]);
    }
    Sample::new(key, &values)
}

/// The ends that this process holds: sending ones on rank 0, receiving ones on rank 1.
#[derive(Default)]
struct Ends {
    sending: Vec<SendComm>,
    receiving: Vec<RecvComm>,
}

impl Ends {
    fn close(self) -> Result<()> {
        self.sending.into_iter().try_for_each(SendComm::close)?;
        self.receiving.into_iter().try_for_each(RecvComm::close)
    }
}

/// What one side of one batch took.
struct Batch {
    listening_ms: f64,
    slower_ms: f64,
}

fn batch(
    worker: &mut WorkerCtx,
    transport: &Transport,
    device: usize,
    count: usize,
    open: &mut Ends,
) -> Result<Batch> {
    let milliseconds = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    if worker.rank() == 0 {
        let mut handles: Vec<Option<Handle>> = worker
            .receive_bytes(count * HANDLE)?
            .chunks_exact(HANDLE)
            .map(|bytes| {
                let mut handle = Handle([0; _]);
                handle.0.copy_from_slice(bytes);
                Some(handle)
            })
            .collect();
        worker.barrier()?;
        let start = Instant::now();
        connect_all(worker, transport, device, &mut handles, open)?;
        return Ok(Batch { listening_ms: 0.0, slower_ms: milliseconds(start) });
    }
    let start = Instant::now();
    let (mut handles, mut listeners) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let (handle, listener) = transport.listen(device)?;
        handles.extend(handle.0);
        listeners.push(Some(listener));
    }
    let listening_ms = milliseconds(start);
    worker.send_bytes(&handles)?;
    worker.barrier()?;
    let start = Instant::now();
    accept_all(worker, &mut listeners, open)?;
    Ok(Batch { listening_ms, slower_ms: milliseconds(start) })
}

/// Polls every pending connection in turn, as NCCL's service thread does.
fn connect_all(
    worker: &WorkerCtx,
    transport: &Transport,
    device: usize,
    handles: &mut [Option<Handle>],
    open: &mut Ends,
) -> Result<()> {
    let mut deadline = worker.deadline("connecting");
    let goal = open.sending.len() + handles.len();
    while open.sending.len() < goal {
        let before = open.sending.len();
        for slot in handles.iter_mut() {
            let Some(handle) = slot else { continue };
            if let Some(comm) = transport.connect(device, handle)? {
                open.sending.push(comm);
                *slot = None;
            }
        }
        match open.sending.len() == before {
            true => deadline.idle()?,
            false => deadline.progress(),
        }
    }
    Ok(())
}

fn accept_all(
    worker: &WorkerCtx,
    listeners: &mut [Option<Listener>],
    open: &mut Ends,
) -> Result<()> {
    let mut deadline = worker.deadline("accepting");
    let goal = open.receiving.len() + listeners.len();
    while open.receiving.len() < goal {
        let before = open.receiving.len();
        for slot in listeners.iter_mut() {
            let Some(listener) = slot else { continue };
            let Some(comm) = listener.accept()? else { continue };
            open.receiving.push(comm);
            if let Some(listener) = slot.take() {
                listener.close()?;
            }
        }
        match open.receiving.len() == before {
            true => deadline.idle()?,
            false => deadline.progress(),
        }
    }
    Ok(())
}
