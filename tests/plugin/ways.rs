//! The fast path through `isend`, `irecv` and `test` does what the slow one does: the same calls
//! are answered alike, the same data arrives, and the counters of both ends and of the device are
//! the same.

use crate::common::prelude::*;
use crate::statistics::{in_folder, own_words, records};
use nccl_net::inspect::stats::layout::record;
use serde_json::Value;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// Calls of a schedule.
const CALLS: usize = 3000;
/// Messages outstanding at most.
const DEPTH: usize = 24;
/// Where the data of messages is: twice as many places as messages that are outstanding.
const PLACE: usize = 1 << 16;
const PLACES: usize = 2 * DEPTH;
/// Inline and not, nothing, one immediate and a whole place.
const SIZES: [usize; 8] = [0, 1, 8, 28, 29, 1000, 8192, PLACE];
/// A group in so many receives.
const GROUP_IN: u64 = 12;

/// Numbers that look random, the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        // Marsaglia's xorshift.
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn size(&mut self) -> usize {
        SIZES[self.below(SIZES.len() as u64) as usize]
    }
}

/// What a call has answered.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Later,
    Begun,
    Pending,
    /// With the sizes, and the data of a receive.
    Done(Vec<i32>, Vec<Vec<u8>>),
}

/// All that can be seen of a connection.
#[derive(Debug, PartialEq, Eq)]
struct Seen {
    answers: Vec<Answer>,
    /// Of the records of both ends.
    counters: Vec<Vec<u64>>,
    /// The counters of the queue pairs and completion queues.
    device: Vec<Value>,
}

/// A connection, and what is outstanding on it.
struct Traffic<'a> {
    send: &'a SendComm,
    recv: &'a RecvComm,
    out: &'a Region,
    into: &'a Region,
    dice: Dice,
    /// Tags of the messages that are expected, and for how many bytes there is room.
    expected: VecDeque<(i32, usize)>,
    receives: VecDeque<(Request<'a>, Vec<usize>)>,
    sends: VecDeque<Request<'a>>,
    /// Messages sent and receives begun.
    count: [usize; 2],
}

impl<'a> Traffic<'a> {
    fn receive(&mut self) -> Result<Answer> {
        let members =
            if self.dice.below(GROUP_IN) == 0 { 2 + self.dice.below(3) as usize } else { 1 };
        let sizes: Vec<usize> = (0..members).map(|_| self.dice.size()).collect();
        if self.expected.len() + self.receives.len() + members > DEPTH {
            return Ok(Answer::Later);
        }
        let at: Vec<usize> = (0..members).map(|i| (self.count[1] + i) % PLACES * PLACE).collect();
        let place = |i: usize| RecvBuffer {
            region: self.into,
            offset: at[i],
            len: sizes[i],
            tag: i as i32,
        };
        let places: Vec<_> = (0..members).map(place).collect();
        let request = match members {
            1 => self.recv.receive(self.into, at[0], sizes[0], 0)?,
            _ => self.recv.receive_group(&places)?,
        };
        let Some(request) = request else { return Ok(Answer::Later) };
        self.count[1] += members;
        self.expected.extend(sizes.iter().enumerate().map(|(i, size)| (i as i32, *size)));
        self.receives.push_back((request, at));
        Ok(Answer::Begun)
    }

    /// Into the next receive, whether or not there is one. Now and then more than it has room for.
    fn send(&mut self) -> Result<Answer> {
        let (tag, room) = self.expected.front().copied().unwrap_or((0, 8));
        let size =
            if self.dice.below(8) == 0 { PLACE } else { self.dice.below(room as u64 + 1) as usize };
        let at = self.count[0] % PLACES * PLACE;
        let Some(request) = self.send.send(self.out, at, size, tag)? else {
            return Ok(Answer::Later);
        };
        self.count[0] += 1;
        self.expected.pop_front();
        self.sends.push_back(request);
        Ok(Answer::Begun)
    }

    /// The oldest, or another one.
    fn pick(&mut self, count: usize) -> usize {
        if self.dice.below(3) == 0 { self.dice.below(count as u64) as usize } else { 0 }
    }

    fn test_send(&mut self) -> Result<Answer> {
        if self.sends.is_empty() {
            return Ok(Answer::Later);
        }
        let (which, mut sizes) = (self.pick(self.sends.len()), [-1]);
        if !self.sends[which].test(&mut sizes)? {
            return Ok(Answer::Pending);
        }
        self.sends.remove(which);
        Ok(Answer::Done(sizes.to_vec(), Vec::new()))
    }

    fn test_receive(&mut self) -> Result<Answer> {
        if self.receives.is_empty() {
            return Ok(Answer::Later);
        }
        let (which, mut sizes) = (self.pick(self.receives.len()), [-1; 4]);
        let (request, at) = &mut self.receives[which];
        if !request.test(&mut sizes)? {
            return Ok(Answer::Pending);
        }
        let sizes = sizes[..at.len()].to_vec();
        let read = |(at, size): (&usize, &i32)| self.into.memory().read(*at, *size as usize);
        let data = at.iter().zip(&sizes).map(read).collect::<Result<_>>()?;
        self.receives.remove(which);
        Ok(Answer::Done(sizes, data))
    }

    fn call(&mut self) -> Result<Answer> {
        match self.dice.below(8) {
            0 | 1 => self.receive(),
            2 | 3 => self.send(),
            4 | 5 => self.test_send(),
            _ => self.test_receive(),
        }
    }
}

/// One message, all of whose calls the calling thread makes.
fn exchange(
    worker: &WorkerCtx,
    send: &SendComm,
    recv: &RecvComm,
    out: &Region,
    into: &Region,
) -> Result<()> {
    let mut deadline = worker.deadline("a message");
    let receive = posted(&mut deadline, || recv.receive(into, 0, 8, 0))?;
    let sending = posted(&mut deadline, || send.send(out, 0, 8, 0))?;
    finished(&mut deadline, sending, &mut [0])?;
    finished(&mut deadline, receive, &mut [0])
}

/// Makes the calls of schedule `seed` over a connection of its own. `is_general`: two threads have
/// called before, so that no call takes the fast path.
fn run(
    worker: &WorkerCtx,
    transport: &Transport,
    folder: &Path,
    seed: u64,
    is_general: bool,
) -> Result<Seen> {
    let (handle, mut listener) = transport.listen(0)?;
    let (send, recv) = connect(worker, transport, &handle, &mut listener)?;
    let memory = || Buffer::new(PLACES * PLACE).map(Arc::new);
    let (out, into) = (send.register(&memory()?)?, recv.register(&memory()?)?);
    out.memory().write(0, &pattern(seed as usize, PLACES * PLACE))?;
    into.memory().set(0, PLACES * PLACE, 0xee)?;
    let first = || exchange(worker, &send, &recv, &out, &into);
    first()?;
    match is_general {
        true => std::thread::scope(|scope| scope.spawn(first).join().expect("no panic"))?,
        false => first()?,
    }
    let mut traffic = Traffic {
        send: &send,
        recv: &recv,
        out: &out,
        into: &into,
        dice: Dice(seed),
        expected: VecDeque::new(),
        receives: VecDeque::new(),
        sends: VecDeque::new(),
        count: [0; 2],
    };
    let answers = (0..CALLS).map(|_| traffic.call()).collect::<Result<Vec<_>>>()?;
    let done = answers.iter().filter(|answer| matches!(answer, Answer::Done(..))).count();
    assert!(done > CALLS / 16, "{done} of {CALLS} calls have found a message complete");
    let words = own_words(folder);
    let counted =
        |end: &[u64]| [&end[..record::STALLS], &end[record::MOVES..record::COUNTERS]].concat();
    let counters = records(&words).map(counted).collect();
    Ok(Seen { answers, counters, device: device() })
}

/// What the device has counted for the queues of this process.
fn device() -> Vec<Value> {
    let pairs = own_queues("queue_pairs").into_iter().map(|pair| pair["work"].clone());
    pairs.chain(own_queues("completion_queues")).collect()
}

/// Without it every call takes the slow path.
fn membarrier() -> std::result::Result<(), Missing> {
    // SAFETY: a question.
    let commands = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_QUERY, 0) };
    let has = commands >= 0 && commands & i64::from(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED) != 0;
    if has { Ok(()) } else { Err(Missing::new("the kernel has no membarrier")) }
}

#[test]
fn the_fast_path_and_the_slow_one_do_the_same() -> Result<()> {
    let folder = Scratch::new();
    // Not strict: the device does everything at once, so that both runs find the same.
    let setting = in_folder(require!(setting()), &folder)
        .env("FERRITE_SAMPLE", "7")
        .env("SOFTRNIC_STRICT", "0");
    require!(membarrier());
    // Queues for one thread, and others.
    let domains = |value| setting.clone().env("FERRITE_THREAD_DOMAINS", value);
    ["1", "0"]
        .into_iter()
        .try_for_each(|value| alone(Ok(domains(value)), |worker| do_the_same(worker)))
}

fn do_the_same(worker: &WorkerCtx) -> Result<()> {
    let transport = plugin_transport()?;
    let folder = PathBuf::from(std::env::var("FERRITE_STATS_DIR").expect("it is set"));
    for seed in 1..=4 {
        let [short, general] =
            [false, true].map(|is_general| run(worker, &transport, &folder, seed, is_general));
        let (short, general) = (short?, general?);
        for (call, (short, general)) in short.answers.iter().zip(&general.answers).enumerate() {
            assert_eq!(short, general, "call {call} of schedule {seed}");
        }
        assert_eq!(
            (short.counters, short.device),
            (general.counters, general.device),
            "schedule {seed}"
        );
    }
    Ok(())
}

/// Every 32nd write of clear-to-sends has a completion, which comes before that of its message.
#[test]
fn a_message_is_reported_by_the_first_test_after_its_acknowledgement() -> Result<()> {
    let setting = require!(setting()).env("SOFTRNIC_STRICT", "0");
    require!(membarrier());
    let domains = |value| setting.clone().env("FERRITE_THREAD_DOMAINS", value);
    ["1", "0"]
        .into_iter()
        .try_for_each(|value| alone(Ok(domains(value)), |worker| test_once(worker)))
}

fn test_once(worker: &WorkerCtx) -> Result<()> {
    let transport = plugin_transport()?;
    let (handle, mut listener) = transport.listen(0)?;
    let (send, recv) = connect(worker, &transport, &handle, &mut listener)?;
    let memory = || Buffer::new(8).map(Arc::new);
    let (out, into) = (send.register(&memory()?)?, recv.register(&memory()?)?);
    let mut deadline = worker.deadline("a message");
    for message in 0..100 {
        let mut receive = posted(&mut deadline, || recv.receive(&into, 0, 8, 0))?;
        let sending = posted(&mut deadline, || send.send(&out, 0, 8, 0))?;
        finished(&mut deadline, sending, &mut [0])?;
        assert!(receive.test(&mut [0])?, "message {message}");
    }
    Ok(())
}
