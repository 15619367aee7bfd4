//! Every byte of every message checked, and the bytes beside them.

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::measure::metric::Direction;
use crate::measure::plan::{DEPTH, Difference, ODD_SIZES, seed};
use crate::measure::stream::{Bench, Contents, Flow, GUARD, Running, TAG};
use crate::measure::{plan, stream};
use crate::pair::worker_ctx::WorkerCtx;
use crate::transport::comm::RecvBuffer;
use crate::transport::deadline::{Deadline, finished, posted};

/// Sends that are longer than the receive: bytes sent, bytes posted.
const TRUNCATED: [(usize, usize); 5] =
    [(8, 3), (64, 63), (4096, 1000), (65537, 4096), (1 << 20, 65536)];

/// Bytes of each of the two regions that the checks need.
pub(crate) fn memory_needed(sizes: &[usize]) -> usize {
    let largest = sizes.iter().chain(&ODD_SIZES).copied().max().unwrap_or(0);
    DEPTH as usize * (largest.next_multiple_of(4096) + 4096) + GUARD
}

/// All checks; each process returns those of what it received.
///
/// # Errors
/// Those of the transport. A wrong byte is no error here: it is counted.
pub(crate) fn all(
    worker: &mut WorkerCtx,
    bench: &Bench,
    sizes: &[usize],
    groups: usize,
) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for (test, &bytes) in ODD_SIZES.iter().enumerate() {
        checks.push(single(worker, bench, bytes, test as u64)?);
    }
    for (test, &bytes) in sizes.iter().enumerate() {
        worker.begin(format!("verifying a stream of {bytes} B"))?;
        checks.extend(run(worker, &[bench], Stream::usual("stream", bytes), 100 + test as u64)?);
    }
    for messages in 1..=groups {
        worker.begin(format!("verifying grouped receives of {messages}"))?;
        for sender in 0..2 {
            checks.extend(grouped(worker, bench, messages, sender)?);
        }
    }
    worker.begin("verifying truncated messages")?;
    for (test, &(sent, room)) in TRUNCATED.iter().enumerate() {
        checks.push(truncated(worker, bench, sent, room, 300 + test as u64)?);
    }
    Ok(checks)
}

/// Sends and receives one message; the size that arrived and the size that was said to be sent.
fn one(worker: &WorkerCtx, bench: &Bench, bytes: usize, room: usize) -> Result<(i32, i32)> {
    let Bench { out, into, conn } = bench;
    let mut deadline = worker.deadline("a single message");
    let (mut sent, mut got) = ([0], [0]);
    let receive = posted(&mut deadline, || conn.recv.receive(into, 0, room, TAG))?;
    let send = posted(&mut deadline, || conn.send.send(out, 0, bytes, TAG))?;
    both(&mut deadline, (send, &mut sent), (receive, &mut got))?;
    Ok((got[0], sent[0]))
}

/// Tests both in turn: neither may depend on the other being done first.
fn both(
    deadline: &mut Deadline,
    (mut send, sent): (crate::transport::comm::Request<'_>, &mut [i32]),
    (mut receive, got): (crate::transport::comm::Request<'_>, &mut [i32]),
) -> Result<()> {
    let (mut send_done, mut receive_done) = (false, false);
    while !(send_done && receive_done) {
        send_done = send_done || send.test(sent)?;
        receive_done = receive_done || receive.test(got)?;
        deadline.idle()?;
    }
    Ok(())
}

/// One message at a time each way, into exactly its size and into more.
fn single(worker: &mut WorkerCtx, bench: &Bench, bytes: usize, test: u64) -> Result<Check> {
    let mut check = Check::new(worker.rank(), "single", bytes);
    for (index, slack) in [0, 1, GUARD / 2].into_iter().enumerate() {
        let index = index as u64;
        plan::fill(bench.out.memory(), 0, bytes, seed(test, worker.rank(), index))?;
        bench.into.memory().set(0, bytes + GUARD, UNTOUCHED)?;
        worker.barrier()?;
        let (got, sent) = one(worker, bench, bytes, bytes + slack)?;
        let expected = Expected {
            place: 0,
            len: bytes,
            seed: seed(test, 1 - worker.rank(), index),
            guard: GUARD,
        };
        check.count(bench, &expected, got)?;
        check.sent(sent, bytes);
    }
    worker.barrier()?;
    Ok(check)
}

/// Rounds of a grouped receive of `messages`, sent by `sender` in another order than posted.
fn grouped(
    worker: &mut WorkerCtx,
    bench: &Bench,
    messages: usize,
    sender: usize,
) -> Result<Option<Check>> {
    const ROUNDS: u64 = 4;
    const ROOM: usize = 64 << 10;
    let stride = ROOM + 4096;
    // Sizes from nothing to the whole room, different in each place of each round.
    let len =
        |round: u64, i: usize| [0, 1, 8, 129, 4096, 5000, ROOM - 1, ROOM][(round as usize + i) % 8];
    let content = |round, i: usize| seed(200 + messages as u64, sender, round * 8 + i as u64);
    let mut check = Check::new(worker.rank(), "group", messages);
    for round in 0..ROUNDS {
        if worker.rank() == sender {
            for i in 0..messages {
                plan::fill(bench.out.memory(), i * stride, len(round, i), content(round, i))?;
            }
            worker.barrier()?;
            send_group(worker, bench, messages, round, &|i| (i * stride, len(round, i)))?;
        } else {
            bench.into.memory().set(0, messages * stride + GUARD, UNTOUCHED)?;
            worker.barrier()?;
            let sizes = receive_group(worker, bench, messages, ROOM, stride)?;
            for (i, &size) in sizes.iter().enumerate().take(messages) {
                let expected = Expected {
                    place: i * stride,
                    len: len(round, i),
                    seed: content(round, i),
                    guard: GUARD,
                };
                check.count(bench, &expected, size)?;
            }
        }
        worker.barrier()?;
    }
    Ok((worker.rank() != sender).then_some(check))
}

fn group_tag(place: usize) -> i32 {
    100 + 7 * place as i32
}

/// Sends the messages of a group, starting in the middle, so that order does not tell them apart.
fn send_group(
    worker: &WorkerCtx,
    bench: &Bench,
    messages: usize,
    round: u64,
    place: &dyn Fn(usize) -> (usize, usize),
) -> Result<()> {
    let mut deadline = worker.deadline("the sends of a group");
    let mut requests = Vec::new();
    for step in 0..messages {
        let i = (step + round as usize) % messages;
        let (offset, len) = place(i);
        let post = || bench.conn.send.send(&bench.out, offset, len, group_tag(i));
        requests.push(posted(&mut deadline, post)?);
    }
    for request in requests {
        finished(&mut deadline, request, &mut [0])?;
    }
    Ok(())
}

fn receive_group(
    worker: &WorkerCtx,
    bench: &Bench,
    messages: usize,
    room: usize,
    stride: usize,
) -> Result<[i32; 8]> {
    let places: Vec<RecvBuffer<'_>> = (0..messages)
        .map(|i| RecvBuffer {
            region: &bench.into,
            offset: i * stride,
            len: room,
            tag: group_tag(i),
        })
        .collect();
    let mut deadline = worker.deadline("a grouped receive");
    let mut sizes = [-1; 8];
    let request = posted(&mut deadline, || bench.conn.recv.receive_group(&places))?;
    finished(&mut deadline, request, &mut sizes)?;
    Ok(sizes)
}

/// A send of more than the receive has room for: both sides report the room.
fn truncated(
    worker: &mut WorkerCtx,
    bench: &Bench,
    bytes: usize,
    room: usize,
    test: u64,
) -> Result<Check> {
    let mut check = Check::new(worker.rank(), "truncate", bytes);
    plan::fill(bench.out.memory(), 0, bytes, seed(test, worker.rank(), 0))?;
    bench.into.memory().set(0, bytes + GUARD, UNTOUCHED)?;
    worker.barrier()?;
    let (got, sent) = one(worker, bench, bytes, room)?;
    let expected = Expected {
        place: 0,
        len: room,
        // A prefix of the longer message, up to a word that is cut: words depend on their place
        // alone.
        seed: seed(test, 1 - worker.rank(), 0),
        guard: bytes - room + GUARD,
    };
    check.count(bench, &expected, got)?;
    check.sent(sent, room);
    worker.barrier()?;
    Ok(check)
}

/// What memory holds before a receive.
pub(super) const UNTOUCHED: u8 = 0xee;
/// One kind of check at one size, in one process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Check {
    /// The rank that received.
    pub rank: usize,
    /// `single`, `stream`, `group`, `truncate`, `parallel` or `long`.
    pub kind: String,
    /// The size of the messages; of a group, how many.
    pub bytes: u64,
    /// Messages received.
    pub messages: u64,
    /// Messages with a wrong byte or size.
    pub wrong: u64,
    /// A description of the first fault.
    pub fault: Option<String>,
}

impl Check {
    pub(super) fn new(rank: usize, kind: &str, bytes: usize) -> Self {
        Self { rank, kind: kind.into(), bytes: bytes as u64, messages: 0, wrong: 0, fault: None }
    }

    /// Counts a message whose size should be `len`, and its fault if it has one.
    pub(super) fn count(&mut self, bench: &Bench, expected: &Expected, got: i32) -> Result<()> {
        self.messages += 1;
        if let Some(fault) = expected.fault(bench, got)? {
            let index = self.messages - 1;
            self.wrong(&format!("message {index}, {fault}"));
        }
        Ok(())
    }

    /// Counts a send that reports another size than `len`.
    pub(super) fn sent(&mut self, got: i32, len: usize) {
        if got as usize != len {
            self.wrong(&format!("the size of the send is {got}, not {len}"));
        }
    }

    fn wrong(&mut self, fault: &str) {
        self.wrong += 1;
        let Self { rank, kind, bytes, .. } = self;
        let what = if kind == "group" {
            format!("rank {rank}, group of {bytes}: {fault}")
        } else {
            format!("rank {rank}, {kind} of {} B: {fault}", *bytes)
        };
        self.fault.get_or_insert(what);
    }
}

/// What should be found in the receiving memory.
pub(super) struct Expected {
    pub(super) place: usize,
    pub(super) len: usize,
    pub(super) seed: u64,
    /// Bytes after the message that nothing may have touched.
    pub(super) guard: usize,
}

impl Expected {
    fn fault(&self, bench: &Bench, got: i32) -> Result<Option<String>> {
        if got as usize != self.len {
            return Ok(Some(format!("the size is {got}, not {}", self.len)));
        }
        let memory = bench.into.memory();
        if let Some(at) = plan::check(memory, self.place, self.len, self.seed)? {
            return Ok(Some(words("", at)));
        }
        let after = self.place + self.len;
        let at = plan::untouched(memory, after, self.guard, UNTOUCHED)?;
        Ok(at.map(|at| words("past the end, ", at)))
    }
}

fn words(place: &str, at: Difference) -> String {
    let Difference { offset, expected, got } = at;
    format!("{place}offset {offset}: expected {expected:#04x}, got {got:#04x}")
}

/// The checks of both ranks, one per kind and size, in the order they ran.
pub fn merged(checks: &[Check]) -> Vec<Check> {
    let mut merged: Vec<Check> = Vec::new();
    for check in checks {
        let same = |other: &&mut Check| other.kind == check.kind && other.bytes == check.bytes;
        match merged.iter_mut().find(same) {
            None => merged.push(check.clone()),
            Some(other) => {
                other.messages += check.messages;
                other.wrong += check.wrong;
                other.fault = other.fault.take().or_else(|| check.fault.clone());
            }
        }
    }
    merged
}

/// Messages of a stream, by default.
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

/// Runs the stream over all connections at once; the check of each. `test` tells contents apart, as
/// do the connections.
///
/// # Errors
/// Those of the transport. A wrong byte is no error here: it is counted.
pub(crate) fn run(
    worker: &mut WorkerCtx,
    benches: &[&Bench],
    stream: Stream,
    test: u64,
) -> Result<Vec<Check>> {
    let Stream { kind, bytes, messages } = stream;
    let rank = worker.rank();
    let mut flow = Flow::new(bytes, rank, Direction::Both, messages);
    flow.stride += 4096;
    let mut flows = Vec::new();
    for (bench, number) in benches.iter().zip(0_u64..) {
        let test = test + (number << 32);
        bench.into.memory().set(0, DEPTH as usize * flow.stride, UNTOUCHED)?;
        let contents =
            Checked { bench, bytes, test, rank, prepared: 0, check: Check::new(rank, kind, bytes) };
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
        plan::fill(self.bench.out.memory(), offset, self.bytes, seed)
    }

    fn arrived(&mut self, index: u64, offset: usize, size: i32) -> Result<()> {
        let expected = Expected {
            place: offset,
            len: self.bytes,
            seed: seed(self.test, 1 - self.rank, index),
            guard: GUARD,
        };
        self.check.count(self.bench, &expected, size)
    }
}
