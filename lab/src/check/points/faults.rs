//! Points 54 to 56: ports and queue pairs that fail, addresses that change, processes that fork.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::check::context::{
    BOTH_RANKS, Context, Point, RANK0_ONLY, SOON, arrived, connect_locally, exchange,
};
use crate::check::ensure;
use crate::check::report::StepResult;
use crate::error::{Error, Result};
use crate::measure::plan;
use crate::measure::stream::Bench;
use crate::pair::worker_ctx::PeerConn;
use crate::transport::buffer::Buffer;

/// Retries that last half a second.
const QUICK: (&str, &str) = ("NCCL_IB_TIMEOUT", "14");
/// How long a transport that recovers connections by itself tries it, if it knows this variable.
const GIVE_UP: (&str, &str) = ("FERRITE_GIVE_UP", "2");
const SHORT: (&str, &str) =
    ("SOFTRNIC_FAULTS", "port-down=40ms device=softrnic0 message=60 times=1");
const DOWN: (&str, &str) = ("SOFTRNIC_FAULTS", "port-down device=softrnic0 message=60 times=1");
const ERROR: (&str, &str) = ("SOFTRNIC_FAULTS", "qp-error device=softrnic0 message=60 times=1");
const FATAL: (&str, &str) = ("SOFTRNIC_FAULTS", "device-fatal device=softrnic0 message=60 times=1");

pub(super) const POINTS: &[Point] = &[
    point!(54, "failures-in-traffic",
        BOTH_RANKS.vars(&[QUICK, SHORT]).within(40) => survive,
        BOTH_RANKS.vars(&[QUICK, DOWN, GIVE_UP]).within(40) => survive,
        BOTH_RANKS.vars(&[QUICK, ERROR]).within(40) => survive,
        BOTH_RANKS.vars(&[QUICK, FATAL, GIVE_UP]).within(40) => survive;
        "a port that goes down, a queue pair or a device that fails: all data right, or an error at both ends in time"),
    point!(55, "address-change", RANK0_ONLY => address_change;
        "a changed GID or LID and a port that goes down are logged with the device; new connections use the new address"),
    point!(56, "fork", RANK0_ONLY => fork;
        "a child that is forked after init, writes to its memory and ends does not disturb the parent's"),
];

/// How a process came out of it.
enum End {
    /// With all of its messages.
    Whole,
    /// With an error of this code.
    PeerObserver(u32),
}

/// Messages both ways; something happens in the middle.
fn survive(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, device) = (ctx.transport()?, ctx.device()?);
    let bench = Bench::open(ctx.worker, &transport, device, 1 << 17)?;
    let start = Instant::now();
    let (end, slowest) = stream(ctx, &bench)?;
    let took = start.elapsed();
    let mine = match end {
        End::Whole => 0,
        End::PeerObserver(code) => u64::from(code),
    };
    let theirs = ctx.worker.swap(mine)?;
    ensure!(slowest < 2 * SOON && took < 20 * SOON, "a message takes {slowest:?}, all {took:?}");
    let what = std::env::var(SHORT.0).unwrap_or_default();
    let what = what.split([' ', '=']).next().unwrap_or_default().to_owned();
    Ok(StepResult::passed(match (mine, theirs) {
        (0, 0) => format!("{what}: all data right"),
        _ => format!("{what}: codes {mine} and {theirs} after {:.2} s", took.as_secs_f64()),
    }))
}

/// Exchanges 300 messages each way and checks each, until the first error. Returns how it ended,
/// and the longest time of a message.
fn stream(ctx: &mut Context<'_>, bench: &Bench) -> Result<(End, Duration)> {
    const SIZE: usize = 10_000;
    let mut slowest = Duration::ZERO;
    for i in 0..300 {
        let begin = Instant::now();
        let outcome = round(ctx, bench, SIZE, i);
        slowest = slowest.max(begin.elapsed());
        match outcome {
            Ok(()) => {}
            Err(Error::Call { code, .. }) => return Ok((End::PeerObserver(code), slowest)),
            Err(Error::Stalled { after, .. }) => {
                return Err(Error::Contract(format!(
                    "message {i}: neither data nor an error for {:.0} s",
                    after.as_secs_f64()
                )));
            }
            Err(other) => return Err(other),
        }
    }
    Ok((End::Whole, slowest))
}

fn round(ctx: &Context<'_>, bench: &Bench, size: usize, index: u64) -> Result<()> {
    let (mine, theirs) = (plan::seed(1, ctx.rank(), index), plan::seed(1, 1 - ctx.rank(), index));
    plan::fill(bench.out.memory(), 0, size, mine)?;
    let PeerConn { send, recv } = &bench.conn;
    let (_, came) = exchange((send, &bench.out, 0, size), (recv, &bench.into, 0, size))?;
    arrived(&bench.into, 0, size, theirs, came)
}

fn address_change(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let softrnic = ctx.softrnic()?;
    let last = transport.devices()? - 1;
    let before = connect_locally(&transport, 0, last)?;
    before.carries(&[1000])?;
    let words = if ctx.job.infiniband {
        softrnic.run(&["port", "softrnic0/1", "--lid", "77"])?;
        ["softrnic0", "lid"]
    } else {
        softrnic.run(&["gid", "softrnic0/1", "add", "1", "::ffff:10.82.1.77"])?;
        ["softrnic0", "gid"]
    };
    // The event takes a moment to be told and logged.
    std::thread::sleep(Duration::from_millis(150));
    let after = connect_locally(&transport, 0, last).map_err(|problem| {
        Error::Contract(format!("no new connection after the address has changed: {problem}"))
    })?;
    after.carries(&[1000, 100_000]).map_err(|problem| {
        Error::Contract(format!(
            "a connection that is made after the address has changed does not carry: {problem}"
        ))
    })?;
    let back = connect_locally(&transport, last, 0)?;
    back.carries(&[1000])?;
    softrnic.run(&["port", "softrnic0/1", "down"])?;
    std::thread::sleep(Duration::from_millis(150));
    Ok(StepResult::passed(format!(
        "{} of softrnic0 changed, its port went down: both logged; new connections work",
        words[1]
    ))
    .logging(&words, "the change of the address is not logged with the device")
    .logging(&["softrnic0", "port"], "the end of the port is not logged with the device"))
}

/// What the child does at its end.
#[derive(Clone, Copy)]
enum Exit {
    AtOnce,
    WithHandlers,
}

fn fork(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let conn = connect_locally(&transport, 0, transport.devices()? - 1)?;
    let (mine, theirs) = (Arc::new(Buffer::new(1 << 16)?), Arc::new(Buffer::new(1 << 16)?));
    let (out, into) = (conn.send.register(&mine)?, conn.recv.register(&theirs)?);
    // Where libibverbs protects registered pages, a child has none of them.
    let is_soft = ctx.job.softrnic.is_some();
    let others = (Buffer::new(1 << 16)?, Buffer::new(1 << 16)?);
    let (first, second) = if is_soft { (&*mine, &*theirs) } else { (&others.0, &others.1) };
    for (round, exit) in [Exit::AtOnce, Exit::WithHandlers, Exit::AtOnce].into_iter().enumerate() {
        conn.message(&out, &into, 50_000, round as u64)?;
        child(first, second, exit)?;
        conn.message(&out, &into, 50_000, 100 + round as u64)?;
    }
    connect_locally(&transport, 0, 0)?.carries(&[1000])?;
    Ok(StepResult::passed(
        "three children; messages before and after (pages that a device has pinned: needs a kernel device)",
    ))
}

/// A child that writes to its copies of both buffers, and ends.
fn child(mine: &Buffer, theirs: &Buffer, exit: Exit) -> Result<()> {
    // SAFETY: the child writes to memory and ends; it takes no lock that a thread of the parent may
    // hold.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let wrote = mine.set(0, 1 << 16, 0x77).is_ok() && theirs.set(0, 1 << 16, 0x77).is_ok();
        let code = i32::from(!wrote);
        // SAFETY: the end of the child; with handlers as a child does that returns from its main
        // function.
        unsafe {
            match exit {
                Exit::AtOnce => libc::_exit(code),
                Exit::WithHandlers => libc::exit(code),
            }
        }
    }
    let mut status = 0;
    // SAFETY: the child that was just made.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    ensure!(waited == child && status == 0, "the child ends with status {status:#x}");
    Ok(())
}
