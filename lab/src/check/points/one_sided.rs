//! The points of one-sided operations, which NCCL's built-in transport has from 2.29 on. NCCL
//! passes none to a network plugin. Two ranks, host memory, each rank with a window and with words
//! for signals.
//!
//! The transport's `init` asks for GPU memory by DMA-BUF, which the software device has without a
//! GPU (`SOFTRNIC_GPU`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::check::context::{
    BOTH_RANKS, Context, Env, Point, SETTLED, SOON, Variable, code, no_more_than,
    open_files_and_threads,
};
use crate::check::ensure;
use crate::check::report::StepResult;
use crate::cost::Seen;
use crate::error::{Error, Result};
use crate::measure::plan;
use crate::nccl::library::Source;
use crate::nccl::one_sided::{
    ADD, Begun, Group, INCREMENT, Listening, Move, ONLY_GROWS, STRICT, Signal, Table, Window,
};
use crate::solo::{Endpoints, Path};
use crate::system::dist::Dist;
use crate::transport::buffer::Buffer;
use crate::transport::deadline::Deadline;
use crate::transport::instance::Transport;
use crate::transport::listener::Handle;

const GPU: Variable = ("SOFTRNIC_GPU", "dmabuf");
const PLAIN: Env = BOTH_RANKS.vars(&[GPU]);
const ADVERSE: Env = BOTH_RANKS.vars(&[GPU, ("SOFTRNIC_STRICT", "1")]);
/// Retries that last half a second.
const QUICK: Env = BOTH_RANKS.vars(&[GPU, ("NCCL_IB_TIMEOUT", "14")]);

pub(super) const POINTS: &[Point] = &[
    point!(1, "table", PLAIN => table;
        "each function is in the library; the host's thread starts operations"),
    point!(2, "close", PLAIN => close;
        "connecting and closing again leaves no file, thread or object behind"),
    point!(3, "put", PLAIN => put, ADVERSE => put;
        "every byte of a put arrives, and none beside it is written"),
    point!(4, "put-to-itself", PLAIN => put_to_itself;
        "a rank may put to itself, and test alone completes the put"),
    point!(5, "signal", PLAIN => signal;
        "a word grows by the values of its signals, with data or without; no other word changes"),
    point!(6, "order", PLAIN => order, ADVERSE => order;
        "when a signal is seen, its data is there, and that of all puts before it"),
    point!(7, "get", PLAIN => get, ADVERSE => get;
        "every byte of a get arrives, and none beside it is written"),
    point!(8, "flush", PLAIN => flush;
        "a flush of each rank's memory completes"),
    point!(9, "many", PLAIN => many;
        "256 operations at a time, tested from the last to the first, all complete once"),
    point!(10, "follows", PLAIN => follows;
        "several operations that are started together all complete"),
    point!(11, "four-gib", PLAIN => four_gib;
        "a put of 4 GiB and 8 bytes is written as a whole, or is an error"),
    point!(12, "too-many", PLAIN => too_many;
        "more operations than the transport has room for are an error, and later ones work"),
    point!(13, "unknown-operation", PLAIN => unknown_operation;
        "a signal that is neither INC nor ADD is an error"),
    point!(14, "past-the-window", PLAIN => put_past, PLAIN => signal_past;
        "a put or a signal past the end of a window is an error"),
    point!(15, "port-down", QUICK => port_down;
        "a port that goes down for good is an error in time"),
    point!(16, "cost", PLAIN => cost;
        "time, work requests and doorbells of each operation, beside a message of Ferrite"),
];

/// Room for the largest put, and for guards around it.
const ROOM: usize = plan::LARGEST + 8192;
/// Where received bytes begin: off the alignment of the sent ones.
const INTO: usize = ROOM + 4096 + 64;
/// Bytes beside received ones that stay as they are, and their value.
const GUARD: usize = 64;
const UNTOUCHED: u8 = 0xa5;
/// Words for signals of a rank.
const WORDS: u64 = 512;

/// One of the two ranks.
struct Rank {
    group: Group,
    window: Window,
    words: Window,
    peer: u32,
}

/// Connects both ranks.
fn connected(ctx: &mut Context<'_>) -> Result<Group> {
    let (table, ..) = Table::open(ctx.job.source.file())?;
    let device = ctx.rank() as i32;
    let listening = Listening::begin(table, device)?;
    let mut theirs = Handle([0; _]);
    theirs.0.copy_from_slice(&ctx.worker.exchange(&listening.handle.0)?);
    listening.connect(ctx.rank(), theirs)
}

impl Rank {
    fn open(ctx: &mut Context<'_>) -> Result<Self> {
        let group = connected(ctx)?;
        let window = group.register(Arc::new(Buffer::new(2 * ROOM + 4096)?), 0)?;
        let words = Arc::new(Buffer::new(WORDS as usize * 8)?);
        let words = group.register(words, STRICT | ONLY_GROWS)?;
        let peer = 1 - ctx.rank() as u32;
        Ok(Self { group, window, words, peer })
    }

    fn close(self) -> Result<()> {
        self.group.deregister(self.window)?;
        self.group.deregister(self.words)?;
        self.group.close()
    }

    /// `size` bytes from the window's start to [`INTO`], both and `at` bytes further.
    fn data(&self, at: usize, size: usize) -> Move<'_> {
        let [here, there] = [at, INTO + at].map(|offset| (&self.window, offset as u64));
        Move { here, there, size }
    }

    /// `value` onto the word of this number.
    fn onto(&self, word: u64, value: u64) -> Signal<'_> {
        Signal { word: (&self.words, word * 8), value, operation: ADD }
    }

    /// Tests until it is done.
    fn done(&self, operation: &Begun) -> Result<()> {
        let mut deadline = Deadline::new("a one-sided operation", SOON);
        while !self.group.is_done(operation)? {
            deadline.idle()?;
        }
        Ok(())
    }

    fn word(&self, number: u64) -> Result<u64> {
        let at = self.words.memory.address(number as usize * 8, 8)?;
        // SAFETY: aligned and in the buffer; the device changes it as a whole.
        Ok(unsafe { AtomicU64::from_ptr(at.cast()) }.load(Ordering::Acquire))
    }

    /// Waits until the word is `value`; an error if it is more.
    fn reaches(&self, number: u64, value: u64) -> Result<()> {
        let mut deadline = Deadline::new("a signal", SOON);
        loop {
            match self.word(number)? {
                seen if seen == value => return Ok(()),
                seen => ensure!(seen < value, "word {number} is {seen} after signals of {value}"),
            }
            deadline.idle()?;
        }
    }

    fn fill(&self, at: usize, size: usize, seed: u64) -> Result<()> {
        plan::fill(&self.window.memory, at, size, seed)
    }

    /// The bytes at [`INTO`], `at` bytes further, are those of `seed`.
    fn arrived(&self, at: usize, size: usize, seed: u64) -> Result<()> {
        let wrong = plan::check(&self.window.memory, INTO + at, size, seed)?;
        ensure!(
            wrong.is_none(),
            "{}",
            wrong.map_or_else(String::new, |wrong| {
                let plan::Difference { offset, expected, got } = wrong;
                format!("byte {offset} of {size} is {got:#04x}, not {expected:#04x}")
            })
        );
        Ok(())
    }

    fn guard(&self, size: usize) -> Result<()> {
        self.window.memory.set(INTO - GUARD, size + 2 * GUARD, UNTOUCHED)
    }

    fn is_guarded(&self, size: usize) -> Result<()> {
        for at in [INTO - GUARD, INTO + size] {
            let wrong = plan::untouched(&self.window.memory, at, GUARD, UNTOUCHED)?;
            ensure!(wrong.is_none(), "bytes beside the {size} are written");
        }
        Ok(())
    }
}

fn table(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (table, name, functions) = Table::open(ctx.job.source.file())?;
    connected(ctx)?.close()?;
    Ok(StepResult::passed(format!("{name}, version {}: {functions} functions", table.version())))
}

fn close(ctx: &mut Context<'_>) -> Result<StepResult> {
    let mut before = None;
    let mut words = String::new();
    for round in 0..3 {
        let start = Instant::now();
        let rank = Rank::open(ctx)?;
        ctx.worker.barrier()?;
        let open = ctx.softrnic()?.objects()?;
        words = format!(
            "connected within {:.0} ms; both ranks: {open}",
            start.elapsed().as_secs_f64() * 1e3
        );
        ctx.worker.barrier()?;
        rank.close()?;
        ctx.worker.barrier()?;
        let now = ctx.softrnic()?.objects()?;
        // What the process has once is there after the first round.
        let (then, counts) = *before.get_or_insert_with(|| (now, open_files_and_threads()));
        ensure!(now == then, "after {} rounds {now}, after the first one {then}", round + 1);
        no_more_than(counts, SETTLED)?;
        ctx.worker.barrier()?;
    }
    Ok(StepResult::passed(words))
}

fn put(ctx: &mut Context<'_>) -> Result<StepResult> {
    let rank = Rank::open(ctx)?;
    let seeds = |size: usize| [0, 1].map(|rank| plan::seed(1, rank, size as u64));
    for size in plan::ODD_SIZES {
        rank.fill(0, size, seeds(size)[ctx.rank()])?;
        rank.guard(size)?;
        ctx.worker.barrier()?;
        rank.done(&rank.group.put(rank.peer, rank.data(0, size))?)?;
        // It may be used again as soon as the put is done.
        rank.window.memory.set(0, size, 0)?;
        ctx.worker.barrier()?;
        rank.arrived(0, size, seeds(size)[1 - ctx.rank()])?;
        rank.is_guarded(size)?;
    }
    rank.close()?;
    Ok(StepResult::passed(format!("{} sizes up to 4 MiB", plan::ODD_SIZES.len())))
}

fn put_to_itself(ctx: &mut Context<'_>) -> Result<StepResult> {
    let rank = Rank::open(ctx)?;
    let me = ctx.rank() as u32;
    for (round, size) in (1..).zip([8, 4097, 1 << 20]) {
        rank.fill(0, size, round)?;
        rank.done(&rank.group.signal(me, Some(rank.data(0, size)), rank.onto(3, 1))?)?;
        rank.reaches(3, round)?;
        rank.arrived(0, size, round)?;
    }
    ctx.worker.barrier()?;
    rank.close()?;
    Ok(StepResult::passed("puts with signals of three sizes"))
}

fn signal(ctx: &mut Context<'_>) -> Result<StepResult> {
    const VALUES: [u64; 4] = [5, 1 << 40, 1, u32::MAX as u64];
    let rank = Rank::open(ctx)?;
    let mut sum = 0;
    for value in VALUES {
        for data in [None, Some(rank.data(0, 100))] {
            let begun = rank.group.signal(rank.peer, data, rank.onto(7, value))?;
            rank.done(&begun)?;
            sum += value;
        }
    }
    // The value of an increment does not count.
    let one = Signal { operation: INCREMENT, ..rank.onto(7, 99) };
    rank.done(&rank.group.signal(rank.peer, None, one)?)?;
    sum += 1;
    rank.reaches(7, sum)?;
    ctx.worker.barrier()?;
    for other in (0..WORDS).filter(|number| *number != 7) {
        let value = rank.word(other)?;
        ensure!(value == 0, "word {other}, which nobody signals, is {value}");
    }
    rank.close()?;
    Ok(StepResult::passed(format!("{} signals make {sum}", 2 * VALUES.len() + 1)))
}

/// Ping-pong of three puts, the last with a signal.
fn order(ctx: &mut Context<'_>) -> Result<StepResult> {
    const ROUNDS: u64 = 100;
    const PIECES: [(usize, usize); 3] = [(0, 70_001), (131_072, 8), (262_144, 4097)];
    let rank = Rank::open(ctx)?;
    for round in 1..=ROUNDS {
        for turn in 0..2 {
            let seed = |piece: usize| plan::seed(2 + piece as u64, turn, round);
            if turn != ctx.rank() {
                rank.reaches(0, round)?;
                for (piece, (at, size)) in PIECES.into_iter().enumerate() {
                    rank.arrived(at, size, seed(piece)).map_err(|problem| {
                        let words = format!("signal {round} is seen before its data: {problem}");
                        Error::Contract(words)
                    })?;
                }
                continue;
            }
            let mut begun = Vec::new();
            for (piece, (at, size)) in PIECES.into_iter().enumerate() {
                rank.fill(at, size, seed(piece))?;
                let data = rank.data(at, size);
                begun.push(match piece {
                    2 => rank.group.signal(rank.peer, Some(data), rank.onto(0, 1))?,
                    _ => rank.group.put(rank.peer, data)?,
                });
            }
            begun.iter().try_for_each(|begun| rank.done(begun))?;
        }
    }
    ctx.worker.barrier()?;
    rank.close()?;
    Ok(StepResult::passed(format!("{ROUNDS} rounds of three puts each way")))
}

fn get(ctx: &mut Context<'_>) -> Result<StepResult> {
    let rank = Rank::open(ctx)?;
    for size in plan::ODD_SIZES.into_iter().filter(|size| *size > 0) {
        rank.fill(0, size, plan::seed(9, ctx.rank(), size as u64))?;
        rank.guard(size)?;
        ctx.worker.barrier()?;
        let Move { here, there, size } = rank.data(0, size);
        let back = Move { here: there, there: here, size };
        rank.done(&rank.group.get(rank.peer, back)?)?;
        rank.arrived(0, size, plan::seed(9, 1 - ctx.rank(), size as u64))?;
        rank.is_guarded(size)?;
        ctx.worker.barrier()?;
    }
    rank.close()?;
    Ok(StepResult::passed("19 sizes up to 4 MiB"))
}

fn flush(ctx: &mut Context<'_>) -> Result<StepResult> {
    let rank = Rank::open(ctx)?;
    let me = ctx.rank() as u32;
    rank.done(&rank.group.flush(me, &rank.words)?)?;
    rank.done(&rank.group.flush(me, &rank.window)?)?;
    ctx.worker.barrier()?;
    rank.close()?;
    Ok(StepResult::passed("of the window and of the words"))
}

/// As many as NCCL has in flight where the transport takes groups of eight.
const MANY: usize = 256;

fn many(ctx: &mut Context<'_>) -> Result<StepResult> {
    let rank = Rank::open(ctx)?;
    for round in 1..=3_u64 {
        rank.fill(0, MANY * 64, plan::seed(20, ctx.rank(), round))?;
        ctx.worker.barrier()?;
        let one =
            |index| rank.group.signal(rank.peer, Some(rank.data(index * 64, 64)), rank.onto(1, 1));
        let begun: Vec<Begun> = (0..MANY).map(one).collect::<Result<_>>()?;
        begun.iter().rev().try_for_each(|begun| rank.done(begun))?;
        rank.reaches(1, round * MANY as u64)?;
        rank.arrived(0, MANY * 64, plan::seed(20, 1 - ctx.rank(), round))?;
        ctx.worker.barrier()?;
    }
    rank.close()?;
    Ok(StepResult::passed(format!("3 times {MANY} puts with signals")))
}

fn follows(ctx: &mut Context<'_>) -> Result<StepResult> {
    const COUNT: usize = 100;
    let mut rank = Rank::open(ctx)?;
    if rank.group.table.version() < 15 {
        return Err(Error::Missing("version 15 of the table"));
    }
    rank.fill(0, COUNT * 64, plan::seed(30, ctx.rank(), 0))?;
    ctx.worker.barrier()?;
    let mut begun = Vec::new();
    let before = seen(ctx)?;
    for index in 0..COUNT {
        rank.group.follows = index + 1 < COUNT;
        begun.push(rank.group.put(rank.peer, rank.data(index * 64, 64))?);
    }
    begun.iter().try_for_each(|begun| rank.done(begun))?;
    let after = seen(ctx)?.counted.since(&before.counted);
    ctx.worker.barrier()?;
    rank.arrived(0, COUNT * 64, plan::seed(30, 1 - ctx.rank(), 0))?;
    rank.close()?;
    Ok(StepResult::passed(format!("{COUNT} puts, {} doorbells", after.doorbells)))
}

/// The window's pages are those of a file of 1 MiB, again and again.
fn four_gib(ctx: &mut Context<'_>) -> Result<StepResult> {
    const SIZE: usize = (4 << 30) + 8;
    let group = connected(ctx)?;
    let window = group.register(Arc::new(Buffer::repeated(SIZE + 4096, 1 << 20)?), 0)?;
    let rank = Rank {
        words: group.register(Arc::new(Buffer::new(4096)?), STRICT | ONLY_GROWS)?,
        group,
        window,
        peer: 1 - ctx.rank() as u32,
    };
    let value = ctx.rank() as u8 + 1;
    rank.window.memory.set(0, 1 << 20, value)?;
    ctx.worker.barrier()?;
    let mut end = Ok(());
    if ctx.rank() == 0 {
        let here = (&rank.window, 0);
        let data = Move { here, there: here, size: SIZE };
        end = rank.group.signal(rank.peer, Some(data), rank.onto(0, 1)).and_then(|b| rank.done(&b));
        if !matches!(end, Ok(()) | Err(Error::Call { .. })) {
            return end.map(|()| StepResult::nothing());
        }
    }
    ctx.worker.barrier()?;
    let (signals, all) = (rank.word(0)?, rank.window.memory.read(0, 1 << 20)?);
    let written = all.iter().filter(|byte| **byte != value).count() as u64;
    let signals = ctx.worker.swap(signals)?;
    let written = ctx.worker.swap(written)?;
    if ctx.rank() == 0 && end.is_ok() {
        ensure!(
            written == 1 << 20,
            "done, and the peer has {signals} signal, but {written} bytes were written"
        );
    }
    Ok(StepResult::passed(match code(&end) {
        0 => "written".to_owned(),
        code => format!("error {code}"),
    }))
}

fn too_many(ctx: &mut Context<'_>) -> Result<StepResult> {
    let rank = Rank::open(ctx)?;
    let mut begun = Vec::new();
    let refused = loop {
        match rank.group.put(rank.peer, rank.data(0, 8)) {
            Ok(one) if begun.len() < 100_000 => begun.push(one),
            Ok(_) => return Ok(StepResult::passed("100,000 puts at a time")),
            Err(problem) => break problem,
        }
    };
    let count = begun.len();
    begun.iter().try_for_each(|begun| rank.done(begun))?;
    rank.done(&rank.group.put(rank.peer, rank.data(0, 8))?)?;
    ctx.worker.barrier()?;
    rank.close()?;
    Ok(StepResult::passed(format!("put {} is error {}", count + 1, code(&Err::<(), _>(refused)))))
}

/// Rank 0 does `attempt`. One of its operations must fail in time, and must not complete.
fn fails(
    ctx: &mut Context<'_>,
    attempt: impl FnOnce(&mut Context<'_>, &Rank) -> Result<Vec<Begun>>,
) -> Result<StepResult> {
    let rank = Rank::open(ctx)?;
    ctx.worker.barrier()?;
    if ctx.rank() == 1 {
        // Its memory is there until rank 0 has done all.
        return ctx.worker.barrier().map(|()| StepResult::nothing());
    }
    let begun = attempt(ctx, &rank);
    let place = if begun.is_ok() { "by test" } else { "at once" };
    let end = begun.and_then(|begun| begun.iter().try_for_each(|begun| rank.done(begun)));
    ctx.worker.barrier()?;
    match end {
        Ok(()) => Err(Error::Contract("it is done".into())),
        Err(Error::Call { code, .. }) => Ok(StepResult::passed(format!("error {code} {place}"))),
        Err(other) => Err(other),
    }
}

fn unknown_operation(ctx: &mut Context<'_>) -> Result<StepResult> {
    fails(ctx, |_, rank| {
        let signal = Signal { operation: 7, ..rank.onto(0, 1) };
        Ok(vec![rank.group.signal(rank.peer, None, signal)?])
    })
}

fn put_past(ctx: &mut Context<'_>) -> Result<StepResult> {
    fails(ctx, |_, rank| {
        let there = (&rank.window, rank.window.memory.len() as u64 - 8);
        Ok(vec![rank.group.put(rank.peer, Move { there, ..rank.data(0, 64) })?])
    })
}

fn signal_past(ctx: &mut Context<'_>) -> Result<StepResult> {
    fails(ctx, |_, rank| Ok(vec![rank.group.signal(rank.peer, None, rank.onto(WORDS, 1))?]))
}

fn port_down(ctx: &mut Context<'_>) -> Result<StepResult> {
    fails(ctx, |ctx, rank| {
        rank.done(&rank.group.put(rank.peer, rank.data(0, 8))?)?;
        ctx.softrnic()?.run(&["port", "softrnic1/1", "down"])?;
        Ok(vec![rank.group.signal(rank.peer, Some(rank.data(0, 8)), rank.onto(0, 1))?])
    })
}

/// What the device has counted of this process.
fn seen(ctx: &Context<'_>) -> Result<Seen> {
    Seen::parse(&ctx.softrnic()?.run(&["stat", "--json"])?, std::process::id())
}

const BATCH: u32 = 200;

/// The least time of one of several batches, per operation, and what the device counts.
fn cost_of(ctx: &Context<'_>, mut one: impl FnMut() -> Result<()>) -> Result<String> {
    let before = seen(ctx)?;
    let (mut least, mut batches) = (Duration::MAX, 0);
    while batches < 20 {
        let start = Instant::now();
        (0..BATCH).try_for_each(|_| one())?;
        least = least.min(start.elapsed());
        batches += 1;
    }
    let counted = seen(ctx)?.counted.since(&before.counted);
    let each = |count: u64| count as f64 / f64::from(batches * BATCH);
    Ok(format!(
        "{:.0} ns, {:.2} requests, {:.2} doorbells",
        least.as_secs_f64() * 1e9 / f64::from(BATCH),
        each(counted.requests),
        each(counted.doorbells)
    ))
}

/// One operation at a time, of rank 0 with itself: so the bytes of all are copied in one process. A
/// message of Ferrite's is sent, received and tested, so both its ends are in the figure.
fn cost(ctx: &mut Context<'_>) -> Result<StepResult> {
    let rank = Rank::open(ctx)?;
    let mut all = Vec::new();
    if ctx.rank() == 0 {
        let ferrite = Dist::find()?.plugin().ok();
        let ferrite = ferrite.map(|path| Transport::open(&Source::plugin(path))).transpose()?;
        for size in [8, 65_536] {
            let data = rank.data(0, size);
            let (group, me) = (&rank.group, 0);
            let put = cost_of(ctx, || rank.done(&group.put(me, data)?))?;
            let signal =
                cost_of(ctx, || rank.done(&group.signal(me, Some(data), rank.onto(0, 1))?))?;
            all.push(format!("{size} B: put {put}; put and signal {signal}"));
            if group.table.version() > 12 {
                let Move { here, there, size } = data;
                let back = Move { here: there, there: here, size };
                all.push(format!("get {}", cost_of(ctx, || rank.done(&group.get(me, back)?))?));
            }
            if let Some(transport) = &ferrite {
                let (listener, sender) = (transport.device_of(1, None)?, 0);
                let transport = transport.clone();
                let ends = Endpoints { transport, listener, sender, silence: SOON };
                let conn = ends.connect()?;
                let mut path = Path::new(&ends, &conn, size, 1)?;
                all.push(format!("Ferrite's message {}", cost_of(ctx, || path.round(1))?));
            }
        }
    }
    ctx.worker.barrier()?;
    rank.close()?;
    Ok(StepResult::passed(all.join("; ")))
}
