//! Points 58 to 60: NCCL itself, and what users set.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::check::context::Context;
use crate::check::ensure;
use crate::check::local_messages::connect_locally;
use crate::check::outcome::StepResult;
use crate::check::point::{Env, Point, RANK0_ONLY, Step, Trial};
use crate::check::points::teardown::rule;
use crate::check::wait::{SOON, within};
use crate::error::{Error, Result};
use crate::measure::conn::TAG;
use crate::nccl::library::Library;
use crate::transport::buffer::Buffer;
use crate::transport::deadline::{Deadline, posted};
use crate::transport::instance::Transport;
use crate::transport::local_conn::LocalConn;

const HCA: &str = "NCCL_IB_HCA";
const QPS: &str = "NCCL_IB_QPS_PER_CONNECTION";
const SPLIT: &str = "NCCL_IB_SPLIT_DATA_ON_QPS";
const TIMEOUT: &str = "NCCL_IB_TIMEOUT";
const RETRIES: &str = "NCCL_IB_RETRY_CNT";
/// A transport that recovers connections by itself is not to do so, if it knows this variable.
const NO_FAILOVER: (&str, &str) = ("FERRITE_FAILOVER", "0");
const GID: &str = "NCCL_IB_GID_INDEX";

pub(super) const POINTS: &[Point] = &[
    Point {
        number: 58,
        name: "newest-nccl",
        claim: "the same file works in the newest NCCL, also after all communicators were destroyed",
        trial: Trial::Needs("a GPU: NCCL makes no communicator without one"),
    },
    Point {
        number: 59,
        name: "same-graph",
        claim: "NCCL chooses the same graph as with its own transport, and all collectives are right",
        trial: Trial::Needs("a GPU: NCCL makes no communicator without one"),
    },
    Point {
        number: 60,
        name: "variables",
        claim: "NCCL_IB_* variables do what they do for the built-in transport, and values that make no sense are told",
        trial: Trial::Steps(&[
            Step { env: Env { vars: &[(HCA, "=softrnic1")], ..RANK0_ONLY }, run: only_one },
            Step { env: Env { vars: &[(HCA, "^softrnic0")], ..RANK0_ONLY }, run: not_zero },
            Step { env: Env { vars: &[(HCA, "softrnic0:1")], ..RANK0_ONLY }, run: by_port },
            Step { env: Env { vars: &[(QPS, "3")], ..RANK0_ONLY }, run: queue_pairs },
            Step { env: Env { vars: &[(QPS, "2"), (SPLIT, "1")], ..RANK0_ONLY }, run: split },
            Step { env: Env { vars: &[(QPS, "2"), (SPLIT, "0")], ..RANK0_ONLY }, run: not_split },
            Step { env: Env { vars: &[(TIMEOUT, "16"), (RETRIES, "1"), NO_FAILOVER], ..RANK0_ONLY }, run: patient },
            Step { env: Env { vars: &[(TIMEOUT, "10"), (RETRIES, "0"), NO_FAILOVER], ..RANK0_ONLY }, run: hasty },
            Step { env: Env { vars: &[(GID, "0")], ..RANK0_ONLY }, run: link_local },
            Step { env: Env { vars: &[(GID, "7")], ..RANK0_ONLY }, run: no_such_gid },
            Step { env: Env { vars: &[(TIMEOUT, "banana")], ..RANK0_ONLY }, run: nonsense },
        ]),
    },
];

/// The names of the devices.
fn names(ctx: &mut Context<'_>) -> Result<Vec<String>> {
    let transport = ctx.transport()?;
    (0..transport.devices()?).map(|device| Ok(transport.properties(device)?.name)).collect()
}

fn only_one(ctx: &mut Context<'_>) -> Result<StepResult> {
    let names = names(ctx)?;
    let right = names.len() == 1 && names[0].contains("softrnic1") && !names[0].contains("softrnic0");
    ensure!(right, "{HCA}==softrnic1 leaves {}", names.join(", "));
    Ok(StepResult::nothing())
}

fn not_zero(ctx: &mut Context<'_>) -> Result<StepResult> {
    let names = names(ctx)?;
    let right = !names.is_empty() && !names.iter().any(|name| name.contains("softrnic0"));
    ensure!(right, "{HCA}=^softrnic0 leaves {}", names.join(", "));
    Ok(StepResult::nothing())
}

fn by_port(ctx: &mut Context<'_>) -> Result<StepResult> {
    let names = names(ctx)?;
    ensure!(names.len() == 1 && names[0].contains("softrnic0"), "{HCA}=softrnic0:1 leaves {}", names.join(", "));
    Ok(StepResult::passed("HCA by name, by exclusion and by port"))
}

fn queue_pairs(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let before = ctx.softrnic()?.objects()?.queue_pairs;
    let conn = connect_locally(&transport, 0, 0)?;
    conn.carries(&[1000; 10])?;
    let more = ctx.softrnic()?.objects()?.queue_pairs - before;
    let wanted = 6 * ctx.job.rails as u64;
    ensure!(more == wanted, "{QPS}=3: a connection has {more} queue pairs at its two ends, not {wanted}");
    Ok(StepResult::passed("3 queue pairs a connection"))
}

/// How many queue pairs of both ends had to do with one message of 1 MiB.
fn busy(ctx: &mut Context<'_>) -> Result<usize> {
    let transport = ctx.transport()?;
    let conn = connect_locally(&transport, 0, 0)?;
    conn.carries(&[1 << 20])?;
    Ok(ctx.softrnic()?.messages()?.into_iter().filter(|messages| *messages > 0).count())
}

fn split(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (busy, least) = (busy(ctx)?, 2 * ctx.job.rails + 1);
    ensure!(busy >= least, "{SPLIT}=1 with 2 queue pairs: {busy} of them took part in a message of 1 MiB, not {least}");
    Ok(StepResult::nothing())
}

fn not_split(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (busy, most) = (busy(ctx)?, ctx.job.rails + 1);
    ensure!(busy <= most, "{SPLIT}=0 with 2 queue pairs: {busy} of them took part in a message of 1 MiB, not {most}");
    Ok(StepResult::passed("messages cut over them or not"))
}

/// How long it takes until a send fails whose packets vanish.
fn until_lost(ctx: &mut Context<'_>) -> Result<Duration> {
    let transport = ctx.transport()?;
    let LocalConn { send, recv } = connect_locally(&transport, 0, transport.devices()? - 1)?;
    let memory = Arc::new(Buffer::new(8192)?);
    let (out, into) = (send.register(&memory)?, recv.register(&memory)?);
    let mut deadline = Deadline::new("a message", SOON);
    let _receive = posted(&mut deadline, || recv.receive(&into, 4096, 64, TAG))?;
    ctx.softrnic()?.inject(&rule(ctx, "drop attempts=all"))?;
    let mut sending = posted(&mut deadline, || send.send(&out, 0, 64, TAG))?;
    let start = Instant::now();
    let failed = within(SOON, || match sending.test(&mut [0]) {
        Ok(true) => Err(Error::Contract("a message is sent although all of its packets vanish".into())),
        Ok(false) => Ok(None),
        Err(_) => Ok(Some(start.elapsed())),
    })?;
    failed.ok_or_else(|| Error::Contract("no error although all packets vanish".into()))
}

/// 4.096 us · 2^16, twice: more than half a second.
fn patient(ctx: &mut Context<'_>) -> Result<StepResult> {
    let took = until_lost(ctx)?;
    let right = (Duration::from_millis(450)..Duration::from_secs(4)).contains(&took);
    ensure!(right, "{TIMEOUT}=16 {RETRIES}=1: an error after {took:?}, not after 0.54 s");
    Ok(StepResult::nothing())
}

/// 4 ms, once.
fn hasty(ctx: &mut Context<'_>) -> Result<StepResult> {
    let took = until_lost(ctx)?;
    ensure!(took < Duration::from_millis(400), "{TIMEOUT}=10 {RETRIES}=0: an error after {took:?}, not after 4 ms");
    Ok(StepResult::passed("timeout and retries as set"))
}

fn link_local(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    connect_locally(&transport, 0, transport.devices()? - 1)?.carries(&[1000])?;
    Ok(StepResult::nothing())
}

fn no_such_gid(ctx: &mut Context<'_>) -> Result<StepResult> {
    if ctx.job.infiniband {
        // Addressed by LID: the entry is of no use.
        return Ok(StepResult::nothing());
    }
    let outcome = ctx.transport().and_then(|transport| {
        ensure!(transport.devices()? > 0, "no device with this GID");
        connect_locally(&transport, 0, 0)?.carries(&[1000])
    });
    ensure!(outcome.is_err(), "{GID}=7, which is empty, and connections work: another one is used");
    Ok(StepResult::passed("the GID index as set"))
}

fn nonsense(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = Transport::without_init(Library::open(&ctx.job.source)?);
    let outcome = transport.init();
    if outcome.is_ok() {
        // Some read it only now.
        connect_locally(&transport, 0, 0)?;
    }
    let then = if outcome.is_err() { "init refuses" } else { "the default is taken" };
    let otherwise = "a value that is no number is not told";
    Ok(StepResult::passed(format!("nonsense is told, {then}")).logging(&[TIMEOUT, "banana"], otherwise))
}
