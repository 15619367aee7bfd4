//! Every byte of every message checked, and the bytes beside them.

use serde::{Deserialize, Serialize};

use crate::comm::Place;
use crate::error::Result;
use crate::link::{Deadline, finished, posted};
use crate::measure::pattern::{self, Difference, seed};
use crate::measure::streams::{self, Stream};
use crate::measure::{Bench, GUARD, TAG};
use crate::plan::{DEPTH, ODD_SIZES};
use crate::seat::Seat;

/// What memory holds before a receive.
pub(super) const UNTOUCHED: u8 = 0xee;
/// Sends that are longer than the receive: bytes sent, bytes posted.
const TRUNCATED: [(usize, usize); 5] = [(8, 3), (64, 63), (4096, 1000), (65537, 4096), (1 << 20, 65536)];

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
    /// The first fault, in words.
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
    fn sent(&mut self, got: i32, len: usize) {
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
        if let Some(at) = pattern::check(memory, self.place, self.len, self.seed)? {
            return Ok(Some(words("", at)));
        }
        let after = self.place + self.len;
        let at = pattern::untouched(memory, after, self.guard, UNTOUCHED)?;
        Ok(at.map(|at| words("past the end, ", at)))
    }
}

fn words(place: &str, at: Difference) -> String {
    let Difference { offset, expected, got } = at;
    format!("{place}offset {offset}: expected {expected:#04x}, got {got:#04x}")
}

/// Bytes of each of the two regions that the checks need.
pub fn memory_needed(sizes: &[usize]) -> usize {
    let largest = sizes.iter().chain(&ODD_SIZES).copied().max().unwrap_or(0);
    DEPTH as usize * (largest.next_multiple_of(4096) + 4096) + GUARD
}

/// All checks; each process returns those of what it received.
///
/// # Errors
/// Those of the transport. A wrong byte is no error here: it is counted.
pub fn all(seat: &mut Seat, bench: &Bench, sizes: &[usize], groups: usize) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    for (test, &bytes) in ODD_SIZES.iter().enumerate() {
        checks.push(single(seat, bench, bytes, test as u64)?);
    }
    for (test, &bytes) in sizes.iter().enumerate() {
        seat.begin(format!("verifying a stream of {bytes} B"))?;
        checks.extend(streams::run(seat, &[bench], Stream::usual("stream", bytes), 100 + test as u64)?);
    }
    seat.begin("verifying grouped receives")?;
    for messages in 1..=groups {
        for sender in 0..2 {
            checks.extend(grouped(seat, bench, messages, sender)?);
        }
    }
    seat.begin("verifying truncated messages")?;
    for (test, &(sent, room)) in TRUNCATED.iter().enumerate() {
        checks.push(truncated(seat, bench, sent, room, 300 + test as u64)?);
    }
    Ok(checks)
}

/// Sends and receives one message; the size that arrived and the size that was said to be sent.
fn one(seat: &Seat, bench: &Bench, bytes: usize, room: usize) -> Result<(i32, i32)> {
    let Bench { out, into, link } = bench;
    let mut deadline = seat.deadline("a single message");
    let (mut sent, mut got) = ([0], [0]);
    let receive = posted(&mut deadline, || link.recv.receive(into, 0, room, TAG))?;
    let send = posted(&mut deadline, || link.send.send(out, 0, bytes, TAG))?;
    both(&mut deadline, (send, &mut sent), (receive, &mut got))?;
    Ok((got[0], sent[0]))
}

/// Tests both in turn: neither may depend on the other being done first.
fn both(
    deadline: &mut Deadline,
    (mut send, sent): (crate::comm::Request<'_>, &mut [i32]),
    (mut receive, got): (crate::comm::Request<'_>, &mut [i32]),
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
fn single(seat: &mut Seat, bench: &Bench, bytes: usize, test: u64) -> Result<Check> {
    let mut check = Check::new(seat.rank(), "single", bytes);
    for (index, slack) in [0, 1, GUARD / 2].into_iter().enumerate() {
        let index = index as u64;
        pattern::fill(bench.out.memory(), 0, bytes, seed(test, seat.rank(), index))?;
        bench.into.memory().set(0, bytes + GUARD, UNTOUCHED)?;
        seat.barrier()?;
        let (got, sent) = one(seat, bench, bytes, bytes + slack)?;
        let expected = Expected { place: 0, len: bytes, seed: seed(test, 1 - seat.rank(), index), guard: GUARD };
        check.count(bench, &expected, got)?;
        check.sent(sent, bytes);
    }
    seat.barrier()?;
    Ok(check)
}

/// Rounds of a grouped receive of `messages`, sent by `sender` in another order than posted.
fn grouped(seat: &mut Seat, bench: &Bench, messages: usize, sender: usize) -> Result<Option<Check>> {
    const ROUNDS: u64 = 4;
    const ROOM: usize = 64 << 10;
    let stride = ROOM + 4096;
    // Sizes from nothing to the whole room, different in each place of each round.
    let len = |round: u64, i: usize| [0, 1, 8, 129, 4096, 5000, ROOM - 1, ROOM][(round as usize + i) % 8];
    let content = |round, i: usize| seed(200 + messages as u64, sender, round * 8 + i as u64);
    let mut check = Check::new(seat.rank(), "group", messages);
    for round in 0..ROUNDS {
        if seat.rank() == sender {
            for i in 0..messages {
                pattern::fill(bench.out.memory(), i * stride, len(round, i), content(round, i))?;
            }
            seat.barrier()?;
            send_group(seat, bench, messages, round, &|i| (i * stride, len(round, i)))?;
        } else {
            bench.into.memory().set(0, messages * stride + GUARD, UNTOUCHED)?;
            seat.barrier()?;
            let sizes = receive_group(seat, bench, messages, ROOM, stride)?;
            for (i, &size) in sizes.iter().enumerate().take(messages) {
                let expected =
                    Expected { place: i * stride, len: len(round, i), seed: content(round, i), guard: GUARD };
                check.count(bench, &expected, size)?;
            }
        }
        seat.barrier()?;
    }
    Ok((seat.rank() != sender).then_some(check))
}

fn group_tag(place: usize) -> i32 {
    100 + 7 * place as i32
}

/// Sends the messages of a group, starting in the middle, so that order does not tell them apart.
fn send_group(
    seat: &Seat,
    bench: &Bench,
    messages: usize,
    round: u64,
    place: &dyn Fn(usize) -> (usize, usize),
) -> Result<()> {
    let mut deadline = seat.deadline("the sends of a group");
    let mut requests = Vec::new();
    for step in 0..messages {
        let i = (step + round as usize) % messages;
        let (offset, len) = place(i);
        let post = || bench.link.send.send(&bench.out, offset, len, group_tag(i));
        requests.push(posted(&mut deadline, post)?);
    }
    for request in requests {
        finished(&mut deadline, request, &mut [0])?;
    }
    Ok(())
}

fn receive_group(seat: &Seat, bench: &Bench, messages: usize, room: usize, stride: usize) -> Result<[i32; 8]> {
    let places: Vec<Place<'_>> = (0..messages)
        .map(|i| Place { region: &bench.into, offset: i * stride, len: room, tag: group_tag(i) })
        .collect();
    let mut deadline = seat.deadline("a grouped receive");
    let mut sizes = [-1; 8];
    let request = posted(&mut deadline, || bench.link.recv.receive_group(&places))?;
    finished(&mut deadline, request, &mut sizes)?;
    Ok(sizes)
}

/// A send of more than the receive has room for: both sides report the room.
fn truncated(seat: &mut Seat, bench: &Bench, bytes: usize, room: usize, test: u64) -> Result<Check> {
    let mut check = Check::new(seat.rank(), "truncate", bytes);
    pattern::fill(bench.out.memory(), 0, bytes, seed(test, seat.rank(), 0))?;
    bench.into.memory().set(0, bytes + GUARD, UNTOUCHED)?;
    seat.barrier()?;
    let (got, sent) = one(seat, bench, bytes, room)?;
    let expected = Expected {
        place: 0,
        len: room,
        // A prefix of the longer message, up to a word that is cut: words depend on their place
        // alone.
        seed: seed(test, 1 - seat.rank(), 0),
        guard: bytes - room + GUARD,
    };
    check.count(bench, &expected, got)?;
    check.sent(sent, room);
    seat.barrier()?;
    Ok(check)
}
