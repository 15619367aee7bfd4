//! A stream of messages with some in flight, either way or both ways at once.
//!
//! Each pass of the loop posts at most one receive and one send and tests the oldest of each, as
//! NCCL's progress thread does.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::measure::metric::Direction;
use crate::measure::plan::DEPTH;
use crate::measure::sample;
use crate::pair::worker_ctx::{PeerConn, WorkerCtx};
use crate::transport::buffer::Buffer;
use crate::transport::comm::{RecvComm, Region, Request, SendComm};
use crate::transport::deadline::{Deadline, finished, posted};
use crate::transport::instance::Transport;
use crate::transport::listener::{Handle, Listener};

/// Messages in flight.
const IN_FLIGHT: usize = DEPTH as usize;

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

/// What to do with the contents. By default nothing.
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

/// Runs `count` messages over each of the connections at once. Returns the messages of all of them
/// that this side completes in a second, not counting the first part, which fills the pipe.
///
/// # Errors
/// Those of [`run`].
pub(crate) fn rate(
    worker: &WorkerCtx,
    benches: &[Bench],
    (bytes, direction): (usize, Direction),
    count: u64,
) -> Result<f64> {
    let flow = Flow::new(bytes, worker.rank(), direction, count);
    let mut flows: Vec<_> =
        benches.iter().map(|bench| Running::new(bench, flow, SizesOnly(bytes))).collect();
    let filling = (count / 8).max(DEPTH.into()).min(count / 2);
    let all = (flow.sends + flow.receives) * benches.len() as u64;
    let filled = all / count.max(1) * filling;
    let mut deadline = worker.deadline("a stream").with_own_cpu(worker.cpu().is_some());
    let mut start = None;
    while flows.iter().any(|flow| !flow.is_done()) {
        let mut moved = false;
        for flow in &mut flows {
            moved |= flow.step()?;
        }
        if !moved {
            deadline.idle()?;
            continue;
        }
        deadline.progress();
        if start.is_none() {
            let done: u64 = flows.iter().map(|flow| flow.sends.done + flow.receives.done).sum();
            start = (done >= filled).then(|| (Instant::now(), done));
        }
    }
    let (start, done) = start.ok_or(Error::Misuse("a stream of no messages"))?;
    Ok((all - done) as f64 / start.elapsed().as_secs_f64())
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
        let memory = [Arc::new(worker.buffer(bytes)?), Arc::new(worker.buffer(bytes)?)];
        Self::over(worker, transport, device, &memory)
    }

    /// Connects, and registers memory for sending and for receiving.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub(crate) fn over(
        worker: &mut WorkerCtx,
        transport: &Transport,
        device: usize,
        [out, into]: &[Arc<Buffer>; 2],
    ) -> Result<Self> {
        let conn = PeerConn::open(worker, transport, device)?;
        let out = conn.send.register(out)?;
        let into = conn.recv.register(into)?;
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

/// The median of `count` half round trips of `bytes`; microseconds. Rank 1 answers, and has none.
///
/// # Errors
/// Those of the transport; [`Error::Data`] if a size is wrong.
pub(crate) fn half_round_trip(
    worker: &WorkerCtx,
    bench: &Bench,
    bytes: usize,
    count: u64,
) -> Result<f64> {
    let first = worker.rank() == 0;
    let mut times_us =
        Vec::with_capacity(if first { usize::try_from(count).unwrap_or(0) } else { 0 });
    let mut deadline = worker.deadline("a ping-pong").with_own_cpu(worker.cpu().is_some());
    let Bench { out, into, conn } = bench;
    // Two places, so that a receive is never posted over bytes that just came.
    let place = |round: u64| (round % 2) as usize * bytes.next_multiple_of(4096);
    let receive = |round, deadline: &mut _| {
        posted(deadline, || conn.recv.receive(into, place(round), bytes, TAG))
    };
    let send = |deadline: &mut _| posted(deadline, || conn.send.send(out, 0, bytes, TAG));
    let mut expected = receive(0, &mut deadline)?;
    let mut answer = None;
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
    Ok(sample::median(&mut times_us).unwrap_or(f64::NAN))
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

/// Makes `connections` from rank 0 to rank 1, `at_once` pending at a time, keeps them open until
/// the last is ready, and closes them. The milliseconds that took but for the closing. The carrying
/// of the handles, which NCCL's bootstrap does, is not counted.
///
/// # Errors
/// Those of the transport; [`crate::error::Error::Stalled`].
pub(crate) fn set_up(
    worker: &mut WorkerCtx,
    transport: &Transport,
    device: usize,
    amount: (u32, u32),
) -> Result<f64> {
    let mut open = Ends::default();
    let ms = open.add(worker, transport, (device, 0), amount)?;
    worker.barrier()?;
    open.close()?;
    Ok(ms)
}

/// The ends that this process holds, in the same order as the peer's.
#[derive(Default)]
pub(crate) struct Ends {
    pub(crate) sending: Vec<SendComm>,
    pub(crate) receiving: Vec<RecvComm>,
}

impl Ends {
    /// Makes so many connections more, as [`set_up`] does but from this rank, and keeps them open.
    ///
    /// # Errors
    /// As of [`set_up`].
    pub(crate) fn add(
        &mut self,
        worker: &mut WorkerCtx,
        transport: &Transport,
        (device, from): (usize, usize),
        (connections, at_once): (u32, u32),
    ) -> Result<f64> {
        let (mut left, mut total_ms) = (connections, 0.0);
        while left > 0 {
            let count = left.min(at_once.max(1));
            let mine = batch(worker, transport, (device, from), count as usize, self)?;
            let theirs = f64::from_bits(worker.swap(mine.slower_ms.to_bits())?);
            let listening = f64::from_bits(worker.swap(mine.listening_ms.to_bits())?);
            total_ms += mine.slower_ms.max(theirs) + mine.listening_ms + listening;
            left -= count;
        }
        Ok(total_ms)
    }

    /// Closes all of them.
    ///
    /// # Errors
    /// Those of the transport.
    pub(crate) fn close(self) -> Result<()> {
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
    (device, from): (usize, usize),
    count: usize,
    open: &mut Ends,
) -> Result<Batch> {
    let milliseconds = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
    if worker.rank() == from {
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
    let mut ready = BTreeMap::new();
    while ready.len() < handles.len() {
        let before = ready.len();
        for (place, slot) in handles.iter_mut().enumerate() {
            let Some(handle) = slot else { continue };
            if let Some(comm) = transport.connect(device, handle)? {
                ready.insert(place, comm);
                *slot = None;
            }
        }
        match ready.len() == before {
            true => deadline.idle()?,
            false => deadline.progress(),
        }
    }
    open.sending.extend(ready.into_values());
    Ok(())
}

fn accept_all(
    worker: &WorkerCtx,
    listeners: &mut [Option<Listener>],
    open: &mut Ends,
) -> Result<()> {
    let mut deadline = worker.deadline("accepting");
    let mut ready = BTreeMap::new();
    while ready.len() < listeners.len() {
        let before = ready.len();
        for (place, slot) in listeners.iter_mut().enumerate() {
            let Some(listener) = slot else { continue };
            let Some(comm) = listener.accept()? else { continue };
            ready.insert(place, comm);
            if let Some(listener) = slot.take() {
                listener.close()?;
            }
        }
        match ready.len() == before {
            true => deadline.idle()?,
            false => deadline.progress(),
        }
    }
    open.receiving.extend(ready.into_values());
    Ok(())
}
