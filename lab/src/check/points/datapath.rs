//! Points 35 to 40: messages, their sizes and their groups.

use std::sync::Arc;
use std::time::Duration;

use crate::check::context::Context;
use crate::check::ensure;
use crate::check::local_messages::{arrived, connect_locally, exchange};
use crate::check::outcome::StepResult;
use crate::check::point::{BOTH_RANKS, Env, Point, RANK0_ONLY, Step, Trial};
use crate::check::raw::{GARBAGE, Raw};
use crate::check::wait::{SOON, done, within};
use crate::error::{Error, Result};
use crate::measure::conn::Bench;
use crate::measure::pattern;
use crate::measure::verify::{self, memory_needed};
use crate::transport::buffer::Buffer;
use crate::transport::comm::{RecvBuffer, Region, Request};
use crate::transport::deadline::{Deadline, posted};
use crate::transport::instance::Transport;
use crate::transport::local_conn::LocalConn;

/// Around every edge that there may be.
const SIZES: [usize; 24] = [
    0,
    1,
    2,
    63,
    64,
    65,
    127,
    128,
    129,
    255,
    256,
    4095,
    4096,
    4097,
    8191,
    8192,
    8193,
    16383,
    65535,
    65536,
    65537,
    524_288,
    1_000_003,
    1 << 20,
];
/// The largest message that NCCL sends.
const LARGEST: usize = 1 << 30;
/// Groups that are outstanding at once, of so many messages.
const GROUPS: (usize, usize) = (32, 8);

/// Messages are split over three queue pairs.
const THREE_QPS: Env =
    Env { vars: &[("NCCL_IB_QPS_PER_CONNECTION", "3"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")], ..RANK0_ONLY };

pub(super) const POINTS: &[Point] = &[
    Point {
        number: 35,
        name: "send-before-receive",
        claim: "isend before any receive succeeds with a request that is NULL, whatever was in its place",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: send_first }]),
    },
    Point {
        number: 36,
        name: "sizes",
        claim: "messages of 0 bytes to 1 GiB arrive whole, at any address",
        trial: Trial::Steps(&[
            Step { env: RANK0_ONLY, run: sizes },
            Step { env: THREE_QPS, run: sizes },
            Step { env: Env { timeout_s: 60, ..RANK0_ONLY }, run: largest },
        ]),
    },
    Point {
        number: 37,
        name: "unequal-sizes",
        claim: "both ends report the lesser of what is sent and what there is room for; nothing is written behind it",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: unequal }, Step { env: THREE_QPS, run: unequal }]),
    },
    Point {
        number: 38,
        name: "groups",
        claim: "1 to 8 messages received together find their places by tag, in whatever order they are sent",
        trial: Trial::Steps(&[Step { env: BOTH_RANKS, run: verified }, Step { env: RANK0_ONLY, run: groups }]),
    },
    Point {
        number: 39,
        name: "sizes-array",
        claim: "test writes as many sizes as there are messages, when they are there; NULL for sizes is taken",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: sizes_array }]),
    },
    Point {
        number: 40,
        name: "256-outstanding",
        claim: "256 messages may be outstanding on a communicator; one more is to be tried again, and is no error",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: outstanding }]),
    },
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
            let seed = pattern::seed(i as u64, from, to as u64);
            pattern::fill(&mine, from, size, seed)?;
            theirs.set(0, to + size + 64, 0xee)?;
            let (went, came) = exchange((&conn.send, &out, from, size), (&conn.recv, &into, to, size))?;
            ensure!(went as usize == size, "a send of {size} bytes says that it sent {went}");
            arrived(&into, to, size, seed, came)?;
            let beside =
                pattern::untouched(&theirs, 0, to, 0xee)?.or(pattern::untouched(&theirs, to + size, 64, 0xee)?);
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
        pattern::fill(&mine, place, 4096, i as u64)?;
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
    let cases =
        [(0, 64), (1, 4096), (64, 63), (8, 0), (5000, 128), (4096, 1 << 20), (1 << 20, 65_537), (100_000, 99_999)];
    for (i, (size, room)) in cases.into_iter().enumerate() {
        let less = size.min(room);
        pattern::fill(&mine, 0, size, i as u64)?;
        theirs.set(0, size.max(room) + 64, 0xee)?;
        let (went, came) = exchange((&conn.send, &out, 0, size), (&conn.recv, &into, 0, room))?;
        ensure!(went as usize == less, "{size} bytes into room for {room}: the send says {went}");
        // A prefix, up to a word that is cut: words depend on their place alone.
        arrived(&into, 0, less & !7, i as u64, came & !7)?;
        ensure!(came as usize == less, "{size} bytes into room for {room}: the receive says {came}");
        let behind = pattern::untouched(&theirs, less, size.max(room) + 64 - less, 0xee)?;
        ensure!(behind.is_none(), "{size} bytes into room for {room}: bytes are written behind byte {less}");
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
    Ok(StepResult::passed(format!("{messages} messages between two processes, in groups of up to {groups}")))
}

/// A group of receives: message `i` has tag `10 + i`, room for 4096 bytes at `i` pages.
fn places(into: &Region, count: usize) -> Vec<RecvBuffer<'_>> {
    (0..count).map(|i| RecvBuffer { region: into, offset: i * 4096, len: 4096, tag: 10 + i as i32 }).collect()
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
    Ok(StepResult::passed(format!("{tried} orders of four, with empty ones, and a send that has to wait among others")))
}

fn one_group(conn: &LocalConn, out: &Region, into: &Region, order: [usize; 4], round: u64) -> Result<()> {
    const LENGTHS: [usize; 4] = [0, 1000, 4096, 1];
    // A send with a tag of no receive must not delay the others.
    let unmatched = conn.send.send(out, 0, 8, 99)?;
    ensure!(unmatched.is_none(), "a send finds a receive that is not posted, or not of its tag");
    let mut deadline = Deadline::new("a group", SOON);
    let receive = posted(&mut deadline, || conn.recv.receive_group(&places(into, 4)))?;
    let mut sends: Vec<Request<'_>> = Vec::new();
    for i in order {
        pattern::fill(out.memory(), i * 4096, LENGTHS[i], round * 4 + i as u64)?;
        sends.push(posted(&mut deadline, || conn.send.send(out, i * 4096, LENGTHS[i], 10 + i as i32))?);
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
            ensure!(sizes == [-77; 8], "test writes sizes of a receive that is not done: {sizes:?}");
        }
        let send =
            within(SOON, || Ok(Some(raw.isend(&conn.send, start, 60, 1, out.raw() as usize)).filter(|s| s.1 != 0)))?;
        let (_, send) = send.ok_or_else(|| Error::Contract("isend finds no receive".into()))?;
        until_done(raw, send, None)?;
        until_done(raw, receive, Some(&mut sizes))?;
        ensure!(sizes[0] == 60, "the size of the message is {}", sizes[0]);
        ensure!(sizes[1..] == [-77; 7], "test writes more sizes than there are messages: {sizes:?}");
    }
    grouped_sizes(&conn, &into, &out)?;
    Ok(StepResult::passed("not before, not more than there are messages; a send without a place for its size"))
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
    ensure!(sizes == [0, 10, 20, -77, -77, -77, -77, -77], "the sizes of a group of three are {sizes:?}");
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
        ensure!(receives.len() >= GROUPS.0, "round {round}: {} groups of 8 receives, then no more", receives.len());
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
                done(posted(&mut Deadline::new("a late send", SOON), || conn.send.send(&out, 0, 8, tag))?, &mut [0])?;
            }
        }
        for receive in receives {
            let mut sizes = [-1; 8];
            done(receive, &mut sizes)?;
            ensure!(sizes == [8; 8], "the sizes of a group are {sizes:?}");
        }
    }
    Ok(StepResult::passed("32 groups of 8 receives and 256 sends and no error beyond, three times over"))
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
        let place = |member| RecvBuffer { region: into, offset: member * 8, len: 8, tag: tag_of(group, member) };
        let places: Vec<_> = (0..GROUPS.1).map(place).collect();
        match conn.recv.receive_group(&places)? {
            Some(request) => receives.push(request),
            None => break,
        }
    }
    Ok(receives)
}

/// As many sends as are taken, of those that are received.
fn all_sends<'l>(conn: &'l LocalConn, out: &Region, receives: &mut [Request<'_>]) -> Result<Vec<Request<'l>>> {
    let mut sends = Vec::new();
    for group in 0..receives.len() {
        for member in 0..GROUPS.1 {
            let is_last = (group, member) == (receives.len() - 1, GROUPS.1 - 1);
            let taken = within(Duration::from_millis(50), || {
                // The receiving end has to be looked after as well; the last group lacks a message until the end.
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
