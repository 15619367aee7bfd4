//! Points 41 to 48: many messages, in order and out of it, and by several threads.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::check::context::Context;
use crate::check::ensure;
use crate::check::local_messages::{arrived, connect_locally, sent_meanwhile};
use crate::check::outcome::StepResult;
use crate::check::point::{BOTH_RANKS, Env, Point, RANK0_ONLY, Step, Trial};
use crate::check::wait::{SOON, done};
use crate::error::{Error, Result};
use crate::measure::conn::{Bench, TAG};
use crate::measure::pattern;
use crate::measure::verify::{self, memory_needed};
use crate::system::host;
use crate::transport::buffer::Buffer;
use crate::transport::comm::Request;
use crate::transport::deadline::{Deadline, finished, posted};
use crate::transport::local_conn::LocalConn;

/// More than any counter of 16 bits holds.
const MESSAGES: u64 = 70_000;
/// More than any of 24 bits.
const LONG: u64 = (1 << 24) + 10;
/// Tests of a request that is not done.
const TESTS: u32 = 1_000_000;
/// Bytes that have to arrive together.
const LINE: usize = 128;

/// Many messages take long where each is read late.
const LAX: (&str, &str) = ("SOFTRNIC_STRICT", "0");
/// Asks the software device for what NICs do with lines of 128 bytes; it costs time, and other devices do not read it.
const WHOLE_LINES: (&str, &str) = ("SOFTRNIC_LINES", "1");
const QPS3: (&str, &str) = ("NCCL_IB_QPS_PER_CONNECTION", "3");
const SPLIT: (&str, &str) = ("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
const ROUTED: (&str, &str) = ("NCCL_IB_ADAPTIVE_ROUTING", "1");
const EAGER: (&str, &str) = ("NCCL_IB_AR_THRESHOLD", "0");
const DELAYS: (&str, &str) = ("SOFTRNIC_FAULTS", "delay=150us chance=0.1");

pub(super) const POINTS: &[Point] = &[
    Point {
        number: 41,
        name: "many-messages",
        claim: "counters of messages may wrap: more than 2^16 on one communicator, with --long more than 2^24",
        trial: Trial::Steps(&[
            Step { env: Env { vars: &[LAX], ..RANK0_ONLY }, run: many },
            Step { env: Env { vars: &[LAX], timeout_s: 600, long: true, ..RANK0_ONLY }, run: very_many },
        ]),
    },
    Point {
        number: 42,
        name: "order-of-tests",
        claim: "requests are tested oldest first or in any order, unfinished ones a million times, and memory stays",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: order_of_tests }]),
    },
    Point {
        number: 43,
        name: "later-first",
        claim: "a request may be found done after a later one, and its data is there then",
        trial: Trial::Steps(&[
            Step { env: Env { vars: &[QPS3], ..RANK0_ONLY }, run: later_first },
            Step { env: Env { vars: &[QPS3, DELAYS], ..RANK0_ONLY }, run: later_first },
        ]),
    },
    Point {
        number: 44,
        name: "polled-lines",
        claim: "a consumer that polls flags in the data sees each line of 128 bytes whole, on any number of queue pairs",
        trial: Trial::Steps(&[
            Step { env: Env { vars: &[WHOLE_LINES], ..BOTH_RANKS }, run: polled },
            Step { env: Env { vars: &[WHOLE_LINES, QPS3, SPLIT], ..BOTH_RANKS }, run: polled },
            Step { env: Env { vars: &[WHOLE_LINES, ROUTED, EAGER], ..BOTH_RANKS }, run: polled },
        ]),
    },
    Point {
        number: 45,
        name: "data-before-completion",
        claim: "no completion comes before the data, with delays on some of the queue pairs and adaptive routing",
        trial: Trial::Steps(&[
            Step { env: Env { vars: &[QPS3, SPLIT, DELAYS], ..BOTH_RANKS }, run: delayed },
            Step { env: Env { vars: &[QPS3, ROUTED, EAGER, DELAYS], ..BOTH_RANKS }, run: delayed },
        ]),
    },
    Point {
        number: 46,
        name: "gpu-memory",
        claim: "messages between GPU and host memory are right, and flushed where that is needed",
        trial: Trial::Needs("a GPU"),
    },
    Point {
        number: 47,
        name: "threads",
        claim: "two and eight threads drive communicators of one device at the same time",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: threads }]),
    },
    Point {
        number: 48,
        name: "optional-slots",
        claim: "getDeviceMr and irecvConsumed are NULL in a transport without device code",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: slots }]),
    },
];

fn many(ctx: &mut Context<'_>) -> Result<StepResult> {
    counted(ctx, MESSAGES)
}

fn very_many(ctx: &mut Context<'_>) -> Result<StepResult> {
    counted(ctx, LONG)
}

/// Messages of 8 bytes that carry their numbers.
fn counted(ctx: &mut Context<'_>, messages: u64) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let conn = connect_locally(&transport, 0, 0)?;
    let (mine, theirs) = (Arc::new(Buffer::new(4096)?), Arc::new(Buffer::new(4096)?));
    let (out, into) = (conn.send.register(&mine)?, conn.recv.register(&theirs)?);
    let mut deadline = Deadline::new("one of many messages", SOON);
    let mut flying: VecDeque<(u64, Request<'_>, Request<'_>)> = VecDeque::new();
    let mut next = 0;
    let mut told = Instant::now();
    while next < messages || !flying.is_empty() {
        while flying.len() < 8 && next < messages {
            let place = (next % 8) as usize * 8;
            mine.write(place, &next.to_le_bytes())?;
            let mut receive = posted(&mut deadline, || conn.recv.receive(&into, place, 8, TAG))?;
            let send = sent_meanwhile(&mut deadline, &mut receive, || conn.send.send(&out, place, 8, TAG))?;
            flying.push_back((next, receive, send));
            next += 1;
        }
        let Some((number, receive, send)) = flying.pop_front() else { break };
        finished(&mut deadline, receive, &mut [0])?;
        finished(&mut deadline, send, &mut [0])?;
        let got = theirs.read((number % 8) as usize * 8, 8)?;
        ensure!(got == number.to_le_bytes(), "message {number} arrives as {got:02x?}");
        if told.elapsed() > Duration::from_secs(2) {
            ctx.worker.begin(format!("message {number} of {messages}"))?;
            told = Instant::now();
        }
    }
    Ok(StepResult::passed(format!("{messages} messages on one communicator, each with its number")))
}

fn order_of_tests(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let conn = connect_locally(&transport, 0, 0)?;
    let memory = Arc::new(Buffer::new(1 << 16)?);
    let (out, into) = (conn.send.register(&memory)?, conn.recv.register(&memory)?);
    let mut deadline = Deadline::new("a message", SOON);
    // Not done, since nothing is sent.
    let mut waiting = posted(&mut deadline, || conn.recv.receive(&into, 0, 8, TAG))?;
    let mut sizes = [-1];
    ensure!(!waiting.test(&mut sizes)?, "a receive is done before anything was sent");
    let before = host::resident()?.all;
    for _ in 0..TESTS {
        ensure!(!waiting.test(&mut sizes)?, "a receive is done before anything was sent");
    }
    let grown = host::resident()?.all.saturating_sub(before);
    ensure!(grown < 1 << 20, "a million tests take {} KiB of memory", grown >> 10);
    let send = posted(&mut deadline, || conn.send.send(&out, 8192, 8, TAG))?;
    done(send, &mut [0])?;
    done(waiting, &mut sizes)?;
    for round in 0..64_usize {
        let mut requests = Vec::new();
        for i in 0..8 {
            let mut receive = posted(&mut deadline, || conn.recv.receive(&into, i * 64, 64, TAG))?;
            let send = sent_meanwhile(&mut deadline, &mut receive, || conn.send.send(&out, 8192, 8 * i, TAG))?;
            requests.extend([receive, send]);
        }
        // Each round in another order; the first in the order of posting.
        while !requests.is_empty() {
            let next = (round * 7919 + requests.len() * 31 * round) % requests.len();
            let request = if round == 0 { requests.remove(0) } else { requests.swap_remove(next) };
            finished(&mut deadline, request, &mut sizes)?;
        }
    }
    Ok(StepResult::passed(format!(
        "{TESTS} tests of one unfinished request ({grown} bytes of growth); 64 orders of 16"
    )))
}

fn later_first(ctx: &mut Context<'_>) -> Result<StepResult> {
    const SIZE: usize = 20_000;
    let transport = ctx.transport()?;
    let conn = connect_locally(&transport, 0, transport.devices()? - 1)?;
    let (mine, theirs) = (Arc::new(Buffer::new(8 * SIZE)?), Arc::new(Buffer::new(8 * SIZE)?));
    let (out, into) = (conn.send.register(&mine)?, conn.recv.register(&theirs)?);
    let mut deadline = Deadline::new("a message", SOON);
    for round in 0..40 {
        let (mut requests, mut sends) = (Vec::new(), Vec::new());
        for i in 0..8 {
            pattern::fill(&mine, i * SIZE, SIZE, round * 8 + i as u64)?;
            requests.push(posted(&mut deadline, || conn.recv.receive(&into, i * SIZE, SIZE, TAG))?);
        }
        for i in 0..8 {
            let send = || conn.send.send(&out, i * SIZE, SIZE, TAG);
            sends.push(sent_meanwhile(&mut deadline, &mut requests[7], send)?);
        }
        // The last first.
        for (i, receive) in requests.into_iter().enumerate().rev() {
            let mut sizes = [-1];
            finished(&mut deadline, receive, &mut sizes)?;
            arrived(&into, i * SIZE, SIZE, round * 8 + i as u64, sizes[0])?;
        }
        for send in sends.into_iter().rev() {
            finished(&mut deadline, send, &mut [0])?;
        }
    }
    Ok(StepResult::passed("40 times 8 messages over 3 queue pairs, found done from the last to the first"))
}

/// The word at place `word` of line `line` in message `round`; the last of a line is the flag.
fn line_word(round: u64, line: usize, word: usize) -> u64 {
    if word == LINE / 8 - 1 { round + 1 } else { pattern::seed(round, line, word as u64) | 1 }
}

fn polled(ctx: &mut Context<'_>) -> Result<StepResult> {
    const LINES: [usize; 5] = [1, 2, 63, 512, 4800];
    let (transport, device) = (ctx.transport()?, ctx.device()?);
    let bench = Bench::open(ctx.worker, &transport, device, LINES[4] * LINE)?;
    let mut round = 0;
    for lines in LINES {
        for _ in 0..12 {
            if ctx.rank() == 0 {
                send_lines(ctx, &bench, round, lines)?
            } else {
                see_lines(ctx, &bench, round, lines)?
            }
            round += 1;
        }
    }
    Ok(StepResult::passed(if std::env::var_os(EAGER.0).is_some() {
        "messages of 1 to 4800 lines, read while they arrive: one queue pair, three, and adaptive routing"
    } else {
        ""
    }))
}

fn send_lines(ctx: &mut Context<'_>, bench: &Bench, round: u64, lines: usize) -> Result<()> {
    let words = (0..lines).flat_map(|line| (0..LINE / 8).map(move |word| line_word(round, line, word)));
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bench.out.memory().write(0, &bytes)?;
    ctx.worker.barrier()?;
    let mut deadline = ctx.worker.deadline("sending lines");
    let send = posted(&mut deadline, || bench.conn.send.send(&bench.out, 0, lines * LINE, TAG))?;
    finished(&mut deadline, send, &mut [0])?;
    ctx.worker.barrier()
}

/// Looks at the flags only, until all are there; then the request is tested. The device has to write a line's last word
/// after all words before it, in each message that it is given; the transport must not cut a line over two messages whose
/// order is not kept, and must not write into lines by itself.
fn see_lines(ctx: &mut Context<'_>, bench: &Bench, round: u64, lines: usize) -> Result<()> {
    let memory = bench.into.memory();
    memory.set(0, lines * LINE, 0)?;
    let mut deadline = ctx.worker.deadline("the flags of a message");
    let mut receive = posted(&mut deadline, || bench.conn.recv.receive(&bench.into, 0, lines * LINE, TAG))?;
    ctx.worker.barrier()?;
    let mut sizes = [-1];
    let mut over = false;
    for line in 0..lines {
        let start = memory.address(line * LINE, LINE)?.cast::<u64>();
        // SAFETY: inside the buffer and aligned; written by the device, hence volatile.
        let word = |word: usize| u64::from_le(unsafe { start.add(word).read_volatile() });
        while word(LINE / 8 - 1) != round + 1 {
            // A transport may need to be asked before data flows.
            over = over || receive.test(&mut sizes)?;
            deadline.idle()?;
        }
        deadline.progress();
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        let torn = (0..LINE / 8).find(|&at| word(at) != line_word(round, line, at));
        ensure!(
            torn.is_none(),
            "line {line} of {lines} has its flag, and not its word {}: the transport writes lines in parts, or the device \
             does not write them in ascending order",
            torn.unwrap_or(0)
        );
    }
    if !over {
        finished(&mut deadline, receive, &mut sizes)?;
    }
    ensure!(sizes[0] as usize == lines * LINE, "{} bytes are reported of {}", sizes[0], lines * LINE);
    ctx.worker.barrier()
}

fn delayed(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, device) = (ctx.transport()?, ctx.device()?);
    let sizes = [129, 8193, 65_537];
    let bench = Bench::open(ctx.worker, &transport, device, memory_needed(&sizes))?;
    let checks = verify::all(ctx.worker, &bench, &sizes, 4)?;
    if let Some(wrong) = checks.iter().find(|check| check.wrong > 0) {
        return Err(Error::Contract(wrong.fault.clone().unwrap_or_default()));
    }
    let messages: u64 = checks.iter().map(|check| check.messages).sum();
    let how = if std::env::var_os(SPLIT.0).is_some() { "cut over 3 queue pairs" } else { "with adaptive routing" };
    Ok(StepResult::passed(format!("{messages} messages {how}, a tenth of the packets late")))
}

fn threads(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    for count in [2, 8] {
        let links = (0..count).map(|_| connect_locally(&transport, 0, 0)).collect::<Result<Vec<LocalConn>>>()?;
        let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
            let work = |conn: &LocalConn| (0..60).try_for_each(|_| conn.carries(&[8, 3000, 50_000]));
            let threads: Vec<_> = links.iter().map(|conn| scope.spawn(move || work(conn))).collect();
            let panicked = |_| Err(Error::Contract("a thread panicked".into()));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        outcomes.into_iter().collect::<Result<()>>()?;
    }
    Ok(StepResult::passed("2 and 8 threads, each with a communicator and registrations of its own, 180 messages each"))
}

fn slots(ctx: &mut Context<'_>) -> Result<StepResult> {
    let [device, consumed] = ctx.raw()?.lacks_device_slots();
    ensure!(device && consumed, "getDeviceMr is {}NULL, irecvConsumed is {}NULL", not(device), not(consumed));
    Ok(StepResult::passed("both NULL"))
}

fn not(is_null: bool) -> &'static str {
    if is_null { "" } else { "not " }
}
