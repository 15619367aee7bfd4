//! Points 35 to 40: messages, their sizes and their groups.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::check::context::{
    BOTH_RANKS, Context, Env, Point, RANK0_ONLY, SETTLED, SOON, Softrnic, arrived, code,
    connect_locally, done, exchange, sent_meanwhile, within,
};
use crate::check::ensure;
use crate::check::raw::{GARBAGE, Opaque, Raw};
use crate::check::report::StepResult;
use crate::error::{Error, Result};
use crate::measure::stream::{Bench, TAG};
use crate::measure::verify::memory_needed;
use crate::measure::{plan, verify};
use crate::system::host;
use crate::transport::buffer::Buffer;
use crate::transport::comm::{RecvBuffer, Region, Request, SendComm};
use crate::transport::deadline::{Deadline, finished, posted};
use crate::transport::instance::Transport;
use crate::transport::listener::LocalConn;

/// Around every edge that there may be.
const SIZES: [usize; 24] = [
    0, 1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 4095, 4096, 4097, 8191, 8192, 8193, 16383, 65535,
    65536, 65537, 524_288, 1_000_003, 1_048_576,
];
/// The largest message that NCCL sends.
const LARGEST: usize = 1 << 30;
/// Groups that are outstanding at once, of so many messages.
const GROUPS: (usize, usize) = (32, 8);

/// Messages are split over three queue pairs.
const THREE_QPS: Env =
    RANK0_ONLY.vars(&[("NCCL_IB_QPS_PER_CONNECTION", "3"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")]);

pub(super) const POINTS: &[Point] = &[
    point!(35, "send-before-receive", RANK0_ONLY => send_first;
        "isend before any receive succeeds with a request that is NULL, whatever was in its place"),
    point!(36, "sizes", RANK0_ONLY => sizes, THREE_QPS => sizes, RANK0_ONLY.within(60) => largest;
        "messages of 0 bytes to 1 GiB arrive whole, at any address"),
    point!(37, "unequal-sizes", RANK0_ONLY => unequal, THREE_QPS => unequal;
        "both ends report the lesser of what is sent and what there is room for; nothing is written behind it"),
    point!(38, "groups", BOTH_RANKS => verified, RANK0_ONLY => groups;
        "1 to 8 messages received together find their places by tag, in whatever order they are sent"),
    point!(39, "sizes-array", RANK0_ONLY => sizes_array;
        "test writes as many sizes as there are messages, when they are there; NULL for sizes is taken"),
    point!(40, "256-outstanding", RANK0_ONLY => outstanding;
        "256 messages may be outstanding on a communicator; one more is to be tried again, and is no error"),
];

fn send_first(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, raw) = (ctx.transport()?, ctx.raw()?);
    let conn = connect_locally(&transport, 0, 0)?;
    let memory = Arc::new(Buffer::new(4096)?);
    let out = conn.send.register(&memory)?;
    let start = memory.address(0, 8)? as usize;
    for call in 0..1000 {
        let (code, request) = raw.isend(&conn.send, start, 8, 1, out.raw() as usize);
        ensure!(code == 0, "isend number {call} returns {code}");
        ensure!(request != GARBAGE, "isend leaves garbage in the place of the request");
        ensure!(request == 0, "isend gives a request although nothing is to be received yet");
    }
    conn.carries(&[8])?;
    Ok(StepResult::passed("1000 calls: success and NULL over garbage; then the message is sent"))
}

fn sizes(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let conn = connect_locally(&transport, 0, 0)?;
    let (mine, theirs) = (Arc::new(Buffer::new(2 << 20)?), Arc::new(Buffer::new(2 << 20)?));
    let (out, into) = (conn.send.register(&mine)?, conn.recv.register(&theirs)?);
    for (i, size) in SIZES.into_iter().enumerate() {
        // Neither end is aligned, and they are not alike.
        for (from, to) in [(0, 0), (1, 64), (77, 3)] {
            let seed = plan::seed(i as u64, from, to as u64);
            plan::fill(&mine, from, size, seed)?;
            theirs.set(0, to + size + 64, 0xee)?;
            let (went, came) =
                exchange((&conn.send, &out, from, size), (&conn.recv, &into, to, size))?;
            ensure!(went as usize == size, "a send of {size} bytes says that it sent {went}");
            arrived(&into, to, size, seed, came)?;
            let beside = plan::untouched(&theirs, 0, to, 0xee)?.or(plan::untouched(
                &theirs,
                to + size,
                64,
                0xee,
            )?);
            ensure!(beside.is_none(), "a message of {size} bytes writes beside its place");
        }
    }
    Ok(StepResult::nothing())
}

fn largest(ctx: &mut Context<'_>) -> Result<StepResult> {
    if !ctx.can_pin(3 << 30) {
        return Err(Error::Missing("3 GiB of free memory"));
    }
    let transport = ctx.transport()?;
    let conn = connect_locally(&transport, 0, 0)?;
    let (mine, theirs) = (Arc::new(Buffer::new(LARGEST)?), Arc::new(Buffer::new(LARGEST)?));
    let (out, into) = (conn.send.register(&mine)?, conn.recv.register(&theirs)?);
    // Looked at in a few places: a gibibyte of pattern takes long.
    let places = [0, 4096, (1 << 29) - 64, (1 << 29) + 4096, LARGEST - 4096];
    for (i, place) in places.into_iter().enumerate() {
        plan::fill(&mine, place, 4096, i as u64)?;
    }
    let (went, came) = exchange((&conn.send, &out, 0, LARGEST), (&conn.recv, &into, 0, LARGEST))?;
    ensure!((went, came) == (1 << 30, 1 << 30), "1 GiB: {went} bytes sent, {came} received");
    for (i, place) in places.into_iter().enumerate() {
        arrived(&into, place, 4096, i as u64, 4096)?;
    }
    Ok(StepResult::passed(format!(
        "{} sizes at 3 pairs of odd addresses, over 1 and 3 queue pairs; 1 GiB at once",
        SIZES.len()
    )))
}

fn unequal(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let conn = connect_locally(&transport, 0, 0)?;
    let (mine, theirs) = (Arc::new(Buffer::new(2 << 20)?), Arc::new(Buffer::new(2 << 20)?));
    let (out, into) = (conn.send.register(&mine)?, conn.recv.register(&theirs)?);
    let cases = [
        (0, 64),
        (1, 4096),
        (64, 63),
        (8, 0),
        (5000, 128),
        (4096, 1 << 20),
        (1 << 20, 65_537),
        (100_000, 99_999),
    ];
    for (i, (size, room)) in cases.into_iter().enumerate() {
        let less = size.min(room);
        plan::fill(&mine, 0, size, i as u64)?;
        theirs.set(0, size.max(room) + 64, 0xee)?;
        let (went, came) = exchange((&conn.send, &out, 0, size), (&conn.recv, &into, 0, room))?;
        ensure!(went as usize == less, "{size} bytes into room for {room}: the send says {went}");
        // A prefix, up to a word that is cut: words depend on their place alone.
        arrived(&into, 0, less & !7, i as u64, came & !7)?;
        ensure!(
            came as usize == less,
            "{size} bytes into room for {room}: the receive says {came}"
        );
        let behind = plan::untouched(&theirs, less, size.max(room) + 64 - less, 0xee)?;
        ensure!(
            behind.is_none(),
            "{size} bytes into room for {room}: bytes are written behind byte {less}"
        );
    }
    Ok(StepResult::passed(format!("{} pairs of sizes, over 1 and 3 queue pairs", cases.len())))
}

/// What `ferrite verify` does, between two processes.
fn verified(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, device) = (ctx.transport()?, ctx.device()?);
    let sizes = [1, 129, 65_537];
    let bench = Bench::open(ctx.worker, &transport, device, memory_needed(&sizes))?;
    let groups = transport.properties(device)?.max_receives.clamp(1, 8) as usize;
    let checks = verify::all(ctx.worker, &bench, &sizes, groups)?;
    if let Some(wrong) = checks.iter().find(|check| check.wrong > 0) {
        return Err(Error::Contract(wrong.fault.clone().unwrap_or_default()));
    }
    let messages: u64 = checks.iter().map(|check| check.messages).sum();
    Ok(StepResult::passed(format!(
        "{messages} messages between two processes, in groups of up to {groups}"
    )))
}

/// A group of receives: message `i` has tag `10 + i`, room for 4096 bytes at `i` pages.
fn places(into: &Region, count: usize) -> Vec<RecvBuffer<'_>> {
    (0..count)
        .map(|i| RecvBuffer { region: into, offset: i * 4096, len: 4096, tag: 10 + i as i32 })
        .collect()
}

fn groups(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let conn = connect_locally(&transport, 0, 0)?;
    let (mine, theirs) = (Arc::new(Buffer::new(1 << 16)?), Arc::new(Buffer::new(1 << 16)?));
    let (out, into) = (conn.send.register(&mine)?, conn.recv.register(&theirs)?);
    // Every order of four: the sizes are told apart by place, and some are 0.
    let mut tried = 0;
    for order in 0..256_usize {
        let order = [order & 3, order >> 2 & 3, order >> 4 & 3, order >> 6 & 3];
        if (0..4).all(|i| order.contains(&i)) {
            one_group(&conn, &out, &into, order, tried)?;
            tried += 1;
        }
    }
    Ok(StepResult::passed(format!(
        "{tried} orders of four, with empty ones, and a send that has to wait among others"
    )))
}

fn one_group(
    conn: &LocalConn,
    out: &Region,
    into: &Region,
    order: [usize; 4],
    round: u64,
) -> Result<()> {
    const LENGTHS: [usize; 4] = [0, 1000, 4096, 1];
    // A send with a tag of no receive must not delay the others.
    let unmatched = conn.send.send(out, 0, 8, 99)?;
    ensure!(unmatched.is_none(), "a send finds a receive that is not posted, or not of its tag");
    let mut deadline = Deadline::new("a group", SOON);
    let receive = posted(&mut deadline, || conn.recv.receive_group(&places(into, 4)))?;
    let mut sends: Vec<Request<'_>> = Vec::new();
    for i in order {
        plan::fill(out.memory(), i * 4096, LENGTHS[i], round * 4 + i as u64)?;
        sends.push(posted(&mut deadline, || {
            conn.send.send(out, i * 4096, LENGTHS[i], 10 + i as i32)
        })?);
        let other = conn.send.send(out, 0, 8, 99)?;
        ensure!(other.is_none(), "a send with a tag of no receive is taken");
    }
    let mut sizes = [-1; 4];
    done(receive, &mut sizes)?;
    for send in sends {
        done(send, &mut [0])?;
    }
    (0..4).try_for_each(|i| arrived(into, i * 4096, LENGTHS[i], round * 4 + i as u64, sizes[i]))
}

fn sizes_array(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, raw) = (ctx.transport()?, ctx.raw()?);
    let conn = connect_locally(&transport, 0, 0)?;
    let memory = Arc::new(Buffer::new(1 << 16)?);
    let (out, into) = (conn.send.register(&memory)?, conn.recv.register(&memory)?);
    let start = memory.address(0, 1)? as usize;
    for _ in 0..50 {
        let (code, receive) = raw.irecv(&conn.recv, &into, 4096, 100, 1);
        ensure!(code == 0 && receive != 0, "irecv returns {code}");
        let mut sizes = [-77; 8];
        for _ in 0..20 {
            let (code, over) = raw.test(receive, Some(&mut sizes));
            ensure!(code == 0 && !over, "a receive is done before anything was sent");
            ensure!(
                sizes == [-77; 8],
                "test writes sizes of a receive that is not done: {sizes:?}"
            );
        }
        let send = within(SOON, || {
            Ok(Some(raw.isend(&conn.send, start, 60, 1, out.raw() as usize)).filter(|s| s.1 != 0))
        })?;
        let (_, send) = send.ok_or_else(|| Error::Contract("isend finds no receive".into()))?;
        until_done(raw, send, None)?;
        until_done(raw, receive, Some(&mut sizes))?;
        ensure!(sizes[0] == 60, "the size of the message is {}", sizes[0]);
        ensure!(
            sizes[1..] == [-77; 7],
            "test writes more sizes than there are messages: {sizes:?}"
        );
    }
    grouped_sizes(&conn, &into, &out)?;
    Ok(StepResult::passed(
        "not before, not more than there are messages; a send without a place for its size",
    ))
}

fn until_done(raw: Raw, request: usize, mut sizes: Option<&mut [i32; 8]>) -> Result<()> {
    let end = within(SOON, || {
        let (code, over) = raw.test(request, sizes.as_deref_mut().map(|sizes| &mut sizes[..]));
        Ok((over || code != 0).then_some(code))
    })?;
    ensure!(end == Some(0), "test ends with {end:?}");
    Ok(())
}

fn grouped_sizes(conn: &LocalConn, into: &Region, out: &Region) -> Result<()> {
    let mut deadline = Deadline::new("a group of three", SOON);
    let receive = posted(&mut deadline, || conn.recv.receive_group(&places(into, 3)))?;
    for i in [2, 0, 1] {
        let send = posted(&mut deadline, || conn.send.send(out, 0, i * 10, 10 + i as i32));
        // The first sends of a group wait for the last.
        drop(send?);
    }
    let mut sizes = [-77; 8];
    done(receive, &mut sizes)?;
    ensure!(
        sizes == [0, 10, 20, -77, -77, -77, -77, -77],
        "the sizes of a group of three are {sizes:?}"
    );
    Ok(())
}

fn outstanding(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let conn = connect_locally(&transport, 0, 0)?;
    let (mine, theirs) = (Arc::new(Buffer::new(1 << 16)?), Arc::new(Buffer::new(1 << 16)?));
    let (out, into) = (conn.send.register(&mine)?, conn.recv.register(&theirs)?);
    let least = GROUPS.0 * GROUPS.1;
    for round in 0..3 {
        let mut receives = all_receives(&conn, &into)?;
        ensure!(
            receives.len() >= GROUPS.0,
            "round {round}: {} groups of 8 receives, then no more",
            receives.len()
        );
        let sends = all_sends(&conn, &out, &mut receives)?;
        ensure!(sends.len() >= least, "round {round}: {} sends, then no more", sends.len());
        let (received, sent) = (receives.len(), sends.len());
        if round == 0 {
            check_capacity(&transport, received, sent)?;
        }
        for send in sends {
            done(send, &mut [0])?;
        }
        // Groups that the sends did not fill.
        for group in sent / GROUPS.1..received {
            for member in 0..GROUPS.1 {
                let tag = tag_of(group, member);
                done(
                    posted(&mut Deadline::new("a late send", SOON), || {
                        conn.send.send(&out, 0, 8, tag)
                    })?,
                    &mut [0],
                )?;
            }
        }
        for receive in receives {
            let mut sizes = [-1; 8];
            done(receive, &mut sizes)?;
            ensure!(sizes == [8; 8], "the sizes of a group are {sizes:?}");
        }
    }
    Ok(StepResult::passed(
        "32 groups of 8 receives and 256 sends and no error beyond, three times over",
    ))
}

fn check_capacity(transport: &Transport, receives: usize, sends: usize) -> Result<()> {
    ensure!(
        receives < 5000 && sends < 40_000,
        "{}: there is no limit: {receives} groups, {sends} sends",
        transport.name()
    );
    Ok(())
}

fn tag_of(group: usize, member: usize) -> i32 {
    (group * GROUPS.1 + member) as i32
}

/// As many groups as are taken.
fn all_receives<'l>(conn: &'l LocalConn, into: &Region) -> Result<Vec<Request<'l>>> {
    let mut receives = Vec::new();
    while receives.len() < 5000 {
        let group = receives.len();
        let place = |member| RecvBuffer {
            region: into,
            offset: member * 8,
            len: 8,
            tag: tag_of(group, member),
        };
        let places: Vec<_> = (0..GROUPS.1).map(place).collect();
        match conn.recv.receive_group(&places)? {
            Some(request) => receives.push(request),
            None => break,
        }
    }
    Ok(receives)
}

/// As many sends as are taken, of those that are received.
fn all_sends<'l>(
    conn: &'l LocalConn,
    out: &Region,
    receives: &mut [Request<'_>],
) -> Result<Vec<Request<'l>>> {
    let mut sends = Vec::new();
    for group in 0..receives.len() {
        for member in 0..GROUPS.1 {
            let is_last = (group, member) == (receives.len() - 1, GROUPS.1 - 1);
            let taken = within(Duration::from_millis(50), || {
                // The receiving end has to be looked after as well; the last group lacks a message
                // until the end.
                if let Some(receive) = receives.last_mut().filter(|_| !is_last) {
                    ensure!(!receive.test(&mut [0; 8])?, "a group is done that lacks messages");
                }
                conn.send.send(out, 0, 8, tag_of(group, member))
            })?;
            match taken {
                Some(request) => sends.push(request),
                None => return Ok(sends),
            }
        }
    }
    Ok(sends)
}

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
/// Asks the software device for what NICs do with lines of 128 bytes; it costs time, and other
/// devices do not read it.
const WHOLE_LINES: (&str, &str) = ("SOFTRNIC_LINES", "1");
const QPS3: (&str, &str) = ("NCCL_IB_QPS_PER_CONNECTION", "3");
const SPLIT: (&str, &str) = ("NCCL_IB_SPLIT_DATA_ON_QPS", "1");
const ROUTED: (&str, &str) = ("NCCL_IB_ADAPTIVE_ROUTING", "1");
const EAGER: (&str, &str) = ("NCCL_IB_AR_THRESHOLD", "0");
const DELAYS: (&str, &str) = ("SOFTRNIC_FAULTS", "delay=150us chance=0.1");

pub(super) const ORDER_POINTS: &[Point] = &[
    point!(41, "many-messages",
        RANK0_ONLY.vars(&[LAX]) => many, RANK0_ONLY.vars(&[LAX]).within(600).long() => very_many;
        "counters of messages may wrap: more than 2^16 on one communicator, with --long more than 2^24"),
    point!(42, "order-of-tests", RANK0_ONLY.within(90) => order_of_tests;
        "requests are tested oldest first or in any order, unfinished ones a million times, and memory stays"),
    point!(43, "later-first",
        RANK0_ONLY.vars(&[QPS3]) => later_first, RANK0_ONLY.vars(&[QPS3, DELAYS]) => later_first;
        "a request may be found done after a later one, and its data is there then"),
    point!(44, "polled-lines",
        BOTH_RANKS.vars(&[WHOLE_LINES]) => polled,
        BOTH_RANKS.vars(&[WHOLE_LINES, QPS3, SPLIT]) => polled,
        BOTH_RANKS.vars(&[WHOLE_LINES, ROUTED, EAGER]) => polled;
        "a consumer that polls flags in the data sees each line of 128 bytes whole, on any number of queue pairs"),
    point!(45, "data-before-completion",
        BOTH_RANKS.vars(&[QPS3, SPLIT, DELAYS]) => delayed,
        BOTH_RANKS.vars(&[QPS3, ROUTED, EAGER, DELAYS]) => delayed;
        "no completion comes before the data, with delays on some of the queue pairs and adaptive routing"),
    point!(46, "gpu-memory", needs "a GPU";
        "messages between GPU and host memory are right, and flushed where that is needed"),
    point!(47, "threads", RANK0_ONLY => threads;
        "two and eight threads drive communicators of one device at the same time"),
    point!(48, "optional-slots", RANK0_ONLY => slots;
        "getDeviceMr and irecvConsumed are NULL in a transport without device code"),
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
            let send = sent_meanwhile(&mut deadline, &mut receive, || {
                conn.send.send(&out, place, 8, TAG)
            })?;
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
            let send = sent_meanwhile(&mut deadline, &mut receive, || {
                conn.send.send(&out, 8192, 8 * i, TAG)
            })?;
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
            plan::fill(&mine, i * SIZE, SIZE, round * 8 + i as u64)?;
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
    Ok(StepResult::passed(
        "40 times 8 messages over 3 queue pairs, found done from the last to the first",
    ))
}

/// The word at place `word` of line `line` in message `round`; the last of a line is the flag.
fn line_word(round: u64, line: usize, word: usize) -> u64 {
    if word == LINE / 8 - 1 { round + 1 } else { plan::seed(round, line, word as u64) | 1 }
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
    let words =
        (0..lines).flat_map(|line| (0..LINE / 8).map(move |word| line_word(round, line, word)));
    let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bench.out.memory().write(0, &bytes)?;
    ctx.worker.barrier()?;
    let mut deadline = ctx.worker.deadline("sending lines");
    let send = posted(&mut deadline, || bench.conn.send.send(&bench.out, 0, lines * LINE, TAG))?;
    finished(&mut deadline, send, &mut [0])?;
    ctx.worker.barrier()
}

/// Looks at the flags only, until all are there; then the request is tested. The device has to
/// write a line's last word after all words before it, in each message that it is given; the
/// transport must not cut a line over two messages whose order is not kept, and must not write into
/// lines by itself.
fn see_lines(ctx: &mut Context<'_>, bench: &Bench, round: u64, lines: usize) -> Result<()> {
    let memory = bench.into.memory();
    memory.set(0, lines * LINE, 0)?;
    let mut deadline = ctx.worker.deadline("the flags of a message");
    let mut receive =
        posted(&mut deadline, || bench.conn.recv.receive(&bench.into, 0, lines * LINE, TAG))?;
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
    ensure!(
        sizes[0] as usize == lines * LINE,
        "{} bytes are reported of {}",
        sizes[0],
        lines * LINE
    );
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
    let how = if std::env::var_os(SPLIT.0).is_some() {
        "cut over 3 queue pairs"
    } else {
        "with adaptive routing"
    };
    Ok(StepResult::passed(format!("{messages} messages {how}, a tenth of the packets late")))
}

fn threads(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    for count in [2, 8] {
        let links = (0..count)
            .map(|_| connect_locally(&transport, 0, 0))
            .collect::<Result<Vec<LocalConn>>>()?;
        let outcomes: Vec<Result<()>> = std::thread::scope(|scope| {
            let work =
                |conn: &LocalConn| (0..60).try_for_each(|_| conn.carries(&[8, 3000, 50_000]));
            let threads: Vec<_> =
                links.iter().map(|conn| scope.spawn(move || work(conn))).collect();
            let panicked = |_| Err(Error::Contract("a thread panicked".into()));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        outcomes.into_iter().collect::<Result<()>>()?;
    }
    Ok(StepResult::passed(
        "2 and 8 threads, each with a communicator and registrations of its own, 180 messages each",
    ))
}

fn slots(ctx: &mut Context<'_>) -> Result<StepResult> {
    let [device, consumed] = ctx.raw()?.lacks_device_slots();
    ensure!(
        device && consumed,
        "getDeviceMr is {}NULL, irecvConsumed is {}NULL",
        not(device),
        not(consumed)
    );
    Ok(StepResult::passed("both NULL"))
}

fn not(is_null: bool) -> &'static str {
    if is_null { "" } else { "not " }
}

/// Registrations of each of two threads.
const CONCURRENT: usize = 2000;

pub(super) const REGISTRATION_POINTS: &[Point] = &[
    point!(27, "odd-ranges", RANK0_ONLY => odd_ranges;
        "memory of any address and size is registered: unaligned, one byte, more than 4 GiB; none at all does no harm"),
    point!(28, "overlapping-ranges", RANK0_ONLY => overlapping;
        "a range may be registered often, within others and over their edges, and given back in any order"),
    point!(29, "replaced-memory", RANK0_ONLY => replaced;
        "other memory at the same address, registered after the old was given back, is what is sent"),
    point!(30, "dma-buf", needs "a GPU: the software device takes a dma-buf of a GPU's memory only";
        "a dma-buf may be closed after its registration, at any offset, and is addressed as the memory is"),
    point!(31, "dma-buf-refused", RANK0_ONLY => refused;
        "a dma-buf that cannot be registered is an error, after which memory is registered as before"),
    point!(32, "deregister-nothing", RANK0_ONLY => nothing;
        "deregMr of NULL, and after a registration that failed, does no harm"),
    point!(33, "concurrent-registration", RANK0_ONLY => concurrent;
        "two threads register and deregister with two communicators of one device at the same time"),
    point!(34, "memlock", RANK0_ONLY => memlock;
        "when memory cannot be locked, the log names the limit (ulimit -l) and what it is"),
];

/// Memory regions of the device, once the transport has given back what it gives back late.
fn regions_are(softrnic: &Softrnic, count: u64) -> Result<()> {
    let mut now = 0;
    let same = within(SETTLED, || {
        now = softrnic.objects()?.memory_regions;
        Ok((now == count).then_some(()))
    })?;
    ensure!(same.is_some(), "{now} memory regions on the device, not {count} as before");
    Ok(())
}

/// Address space without memory behind it, until it is touched.
struct Space {
    start: usize,
    len: usize,
}

impl Space {
    /// `at`: replaces what is there; 0: anywhere.
    fn new(at: usize, len: usize) -> Result<Self> {
        let fixed = if at == 0 { 0 } else { libc::MAP_FIXED };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | fixed;
        // SAFETY: an anonymous mapping: at an address of the kernel's choice, or in the place of
        // one of the caller's own.
        let start = unsafe {
            libc::mmap(
                at as *mut libc::c_void,
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(Error::last_os(format!("cannot map {len} bytes")));
        }
        Ok(Self { start: start as usize, len })
    }

    fn fill(&self, offset: usize, len: usize, value: u8) {
        // SAFETY: inside the mapping; no other code uses it.
        unsafe { ((self.start + offset) as *mut u8).write_bytes(value, len) };
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // SAFETY: this object's own mapping.
        unsafe { libc::munmap(self.start as *mut libc::c_void, self.len) };
    }
}

/// Sends bytes of memory that was registered by hand, and checks them.
fn send_raw(
    ctx: &mut Context<'_>,
    send: &SendComm,
    at: usize,
    memory: Opaque,
    value: u8,
) -> Result<()> {
    let raw = ctx.raw()?;
    let (code, request) = within(SOON, || {
        let (code, request) = raw.isend(send, at, 1, 1, memory);
        Ok((code != 0 || request != 0).then_some((code, request)))
    })?
    .unwrap_or((0, 0));
    ensure!(code == 0 && request != 0, "isend returns {code} for the byte {value:#x}");
    let finished = within(SOON, || {
        let (code, done) = raw.test(request, Some(&mut [0]));
        Ok((code != 0 || done).then_some(code))
    })?;
    ensure!(finished == Some(0), "the send of one byte ends with {finished:?}");
    Ok(())
}

fn odd_ranges(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, raw) = (ctx.transport()?, ctx.raw()?);
    let conn = connect_locally(&transport, 0, 0)?;
    let whole = ctx.can_pin(5 << 30);
    let space = Space::new(0, (4 << 30) + (1 << 20))?;
    let landing = Arc::new(Buffer::new(4096)?);
    let into = conn.recv.register(&landing)?;
    // From where, how much, and which byte is sent.
    let ranges = [
        (0, 4096, 0),
        (1, 1, 1),
        (4095, 2, 4096),
        (13, 100_001, 100_013),
        (7, (4 << 30) + 77, (4 << 30) + 50),
    ];
    for (i, (offset, size, byte)) in
        ranges.into_iter().enumerate().filter(|(_, (_, size, _))| whole || *size <= 1 << 20)
    {
        let value = 0x31 + i as u8;
        space.fill(byte, 1, value);
        let (code, memory) = raw.register(&conn.send, space.start + offset, size);
        ensure!(
            code == 0 && memory != 0,
            "{size} bytes at an address that ends in {offset}: regMr returns {code}"
        );
        let receive = conn
            .recv
            .receive(&into, 0, 1, 1)?
            .ok_or_else(|| Error::Contract("no receive".into()))?;
        send_raw(ctx, &conn.send, space.start + byte, memory, value)?;
        done(receive, &mut [0])?;
        ensure!(
            landing.read(0, 1)? == [value],
            "of {size} bytes at {offset}, byte {byte} arrives wrong"
        );
        ensure!(raw.deregister(&conn.send, memory) == 0, "deregMr fails");
    }
    let (code, memory) = raw.register(&conn.send, space.start, 0);
    if memory != 0 {
        ensure!(raw.deregister(&conn.send, memory) == 0, "deregMr of nothing fails");
    }
    conn.carries(&[100])?;
    Ok(StepResult::passed(format!(
        "{}; a size of 0 is {}",
        if whole {
            "5 ranges up to 4 GiB + 77 bytes"
        } else {
            "4 small ranges; 5 GiB are not free"
        },
        if code == 0 { "taken" } else { "refused" }
    )))
}

fn overlapping(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, raw, softrnic) = (ctx.transport()?, ctx.raw()?, ctx.softrnic()?);
    let conn = connect_locally(&transport, 0, 0)?;
    let before = softrnic.objects()?.memory_regions;
    let memory = Buffer::new(1 << 20)?;
    let start = memory.address(0, 1 << 20)? as usize;
    let mut ranges = vec![(0, 65536); 8];
    ranges.extend([
        (4096, 4096),
        (100, 50),
        (60000, 100_000),
        (65536, 65536),
        (0, 1 << 20),
        (8192, 4096),
    ]);
    // Again and again, each time given back in another order.
    for step in [1, 3, 5, 9, 11, 13] {
        let mut handles = Vec::new();
        for (offset, size) in &ranges {
            let (code, handle) = raw.register(&conn.send, start + offset, *size);
            ensure!(code == 0 && handle != 0, "regMr of {size} bytes at {offset} returns {code}");
            handles.push(handle);
        }
        for i in 0..handles.len() {
            // 14 ranges, and steps that have no factor in common with 14.
            let code = raw.deregister(&conn.send, handles[i * step % ranges.len()]);
            ensure!(code == 0, "deregMr returns {code}");
        }
        regions_are(&softrnic, before)?;
    }
    Ok(StepResult::passed(format!("14 ranges, 6 orders; {before} memory regions before and after")))
}

fn replaced(ctx: &mut Context<'_>) -> Result<StepResult> {
    const LEN: usize = 1 << 16;
    let (transport, raw, softrnic) = (ctx.transport()?, ctx.raw()?, ctx.softrnic()?);
    let conn = connect_locally(&transport, 0, 0)?;
    let landing = Arc::new(Buffer::new(4096)?);
    let into = conn.recv.register(&landing)?;
    let before = softrnic.objects()?.memory_regions;
    let mut space = Space::new(0, LEN)?;
    for round in 0..20_u8 {
        space.fill(0, LEN, round + 1);
        let (code, memory) = raw.register(&conn.send, space.start, LEN);
        ensure!(code == 0, "regMr returns {code}");
        let receive = conn
            .recv
            .receive(&into, 0, 1, 1)?
            .ok_or_else(|| Error::Contract("no receive".into()))?;
        send_raw(ctx, &conn.send, space.start + 5000, memory, round + 1)?;
        done(receive, &mut [0])?;
        let got = landing.read(0, 1)?;
        ensure!(
            got == [round + 1],
            "memory number {} at this address is sent, not number {}",
            got[0],
            round + 1
        );
        ensure!(raw.deregister(&conn.send, memory) == 0, "deregMr fails");
        // A region that outlives this would be of the old pages.
        regions_are(&softrnic, before)?;
        let start = space.start;
        std::mem::forget(space);
        space = Space::new(start, LEN)?;
    }
    Ok(StepResult::passed("20 times other memory at the same address"))
}

fn refused(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, raw) = (ctx.transport()?, ctx.raw()?);
    let conn = connect_locally(&transport, 0, 0)?;
    let memory = Buffer::new(1 << 16)?;
    let start = memory.address(0, 1)? as usize;
    for fd in [1 << 20, 0] {
        let (code, handle) = raw.register_dmabuf(&conn.send, start, 1 << 16, fd);
        ensure!(code != 0, "file {fd} is no dma-buf, and regMrDmaBuf succeeds");
        ensure!(handle == 0, "regMrDmaBuf fails with {code} and leaves a handle");
    }
    conn.carries(&[1000])?;
    Ok(StepResult::passed(
        "two files that are none are refused; memory is registered and sent as before",
    ))
}

fn nothing(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, raw, softrnic) = (ctx.transport()?, ctx.raw()?, ctx.softrnic()?);
    let conn = connect_locally(&transport, 0, 0)?;
    let told = raw.deregister(&conn.send, 0);
    softrnic.inject("reg-mr=ENOMEM")?;
    let memory = Buffer::new(1 << 16)?;
    let (failed, handle) = raw.register(&conn.send, memory.address(0, 1)? as usize, 1 << 16);
    ensure!(
        failed != 0 && handle == 0,
        "a registration that the device refuses: code {failed}, handle {handle:#x}"
    );
    raw.deregister(&conn.send, handle);
    softrnic.run(&["inject", "--clear"])?;
    conn.carries(&[1000])?;
    Ok(StepResult::passed(format!(
        "deregMr(NULL) returns {told}; a failed registration {failed}, with NULL"
    )))
}

fn concurrent(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, raw, softrnic) = (ctx.transport()?, ctx.raw()?, ctx.softrnic()?);
    let conns = [connect_locally(&transport, 0, 0)?, connect_locally(&transport, 0, 0)?];
    let before = softrnic.objects()?.memory_regions;
    let memory = Buffer::new(1 << 20)?;
    let start = memory.address(0, 1 << 20)? as usize;
    let failures: Vec<u32> = std::thread::scope(|scope| {
        let work = |conn: usize| {
            let send = &conns[conn].send;
            // Ranges of both overlap, and each has two at a time.
            let register = |i: usize| {
                raw.register(send, start + (i % 7) * 4096 + conn * 100, 4096 + (i % 13) * 4096)
            };
            (0..CONCURRENT).fold(0, |failures, i| {
                let (one, two) = (register(i), register(i + 1));
                let codes =
                    [one.0, two.0, raw.deregister(send, one.1), raw.deregister(send, two.1)];
                failures + codes.into_iter().filter(|code| *code != 0).count() as u32
            })
        };
        let threads = [0, 1].map(|conn| scope.spawn(move || work(conn)));
        threads.into_iter().map(|thread| thread.join().unwrap_or(u32::MAX)).collect()
    });
    ensure!(failures == [0, 0], "calls that failed: {failures:?}");
    regions_are(&softrnic, before)?;
    conns.iter().try_for_each(|conn| conn.carries(&[1000]))?;
    Ok(StepResult::passed(format!(
        "{CONCURRENT} times two registrations by each of two threads; {before} regions as before"
    )))
}

fn memlock(ctx: &mut Context<'_>) -> Result<StepResult> {
    let limit = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
    // SAFETY: the structure is readable; the limit is this process's own.
    let code_of_limit = unsafe { libc::setrlimit(libc::RLIMIT_MEMLOCK, &raw const limit) };
    ensure!(code_of_limit == 0, "this process cannot lower its limit of locked memory");
    let transport = ctx.transport()?;
    let conn = connect_locally(&transport, 0, 0)?;
    ctx.softrnic()?.inject("reg-mr=ENOMEM")?;
    let memory = Arc::new(Buffer::new(1 << 20)?);
    let outcome = conn.send.register(&memory);
    ensure!(outcome.is_err(), "the device refuses, and regMr succeeds");
    let otherwise = "the message does not name the limit that is usually the cause";
    Ok(StepResult::passed(format!(
        "ENOMEM with a limit of 64 KiB: code {}, the log names the limit",
        code(&outcome)
    ))
    .logging(&["memlock|locked memory|ulimit -l"], otherwise))
}
