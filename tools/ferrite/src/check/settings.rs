//! Points 58 to 60: NCCL itself, and what users set.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::buffer::Buffer;
use crate::check::ensure;
use crate::check::point::{ALONE, Act, Point, Scene, Trial};
use crate::check::stage::{Loop, SOON, Stage, connect_here, within};
use crate::check::teardown::rule;
use crate::check::verdict::Finding;
use crate::error::{Error, Result};
use crate::library::Library;
use crate::link::{Deadline, posted};
use crate::measure::TAG;
use crate::transport::Transport;

const HCA: &str = "NCCL_IB_HCA";
const QPS: &str = "NCCL_IB_QPS_PER_CONNECTION";
const SPLIT: &str = "NCCL_IB_SPLIT_DATA_ON_QPS";
const TIMEOUT: &str = "NCCL_IB_TIMEOUT";
const RETRIES: &str = "NCCL_IB_RETRY_CNT";
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
        trial: Trial::Acts(&[
            Act { scene: Scene { env: &[(HCA, "=softrnic1")], ..ALONE }, play: only_one },
            Act { scene: Scene { env: &[(HCA, "^softrnic0")], ..ALONE }, play: not_zero },
            Act { scene: Scene { env: &[(HCA, "softrnic0:1")], ..ALONE }, play: by_port },
            Act { scene: Scene { env: &[(QPS, "3")], ..ALONE }, play: queue_pairs },
            Act { scene: Scene { env: &[(QPS, "2"), (SPLIT, "1")], ..ALONE }, play: split },
            Act { scene: Scene { env: &[(QPS, "2"), (SPLIT, "0")], ..ALONE }, play: not_split },
            Act { scene: Scene { env: &[(TIMEOUT, "16"), (RETRIES, "1")], ..ALONE }, play: patient },
            Act { scene: Scene { env: &[(TIMEOUT, "10"), (RETRIES, "0")], ..ALONE }, play: hasty },
            Act { scene: Scene { env: &[(GID, "0")], ..ALONE }, play: link_local },
            Act { scene: Scene { env: &[(GID, "7")], ..ALONE }, play: no_such_gid },
            Act { scene: Scene { env: &[(TIMEOUT, "banana")], ..ALONE }, play: nonsense },
        ]),
    },
];

/// The names of the devices.
fn names(stage: &mut Stage<'_>) -> Result<Vec<String>> {
    let transport = stage.transport()?;
    (0..transport.devices()?).map(|device| Ok(transport.properties(device)?.name)).collect()
}

fn only_one(stage: &mut Stage<'_>) -> Result<Finding> {
    let names = names(stage)?;
    let right = names.len() == 1 && names[0].contains("softrnic1") && !names[0].contains("softrnic0");
    ensure!(right, "{HCA}==softrnic1 leaves {}", names.join(", "));
    Ok(Finding::nothing())
}

fn not_zero(stage: &mut Stage<'_>) -> Result<Finding> {
    let names = names(stage)?;
    let right = !names.is_empty() && !names.iter().any(|name| name.contains("softrnic0"));
    ensure!(right, "{HCA}=^softrnic0 leaves {}", names.join(", "));
    Ok(Finding::nothing())
}

fn by_port(stage: &mut Stage<'_>) -> Result<Finding> {
    let names = names(stage)?;
    ensure!(names.len() == 1 && names[0].contains("softrnic0"), "{HCA}=softrnic0:1 leaves {}", names.join(", "));
    Ok(Finding::passed("HCA by name, by exclusion and by port"))
}

fn queue_pairs(stage: &mut Stage<'_>) -> Result<Finding> {
    let transport = stage.transport()?;
    let before = stage.hardware()?.objects()?.queue_pairs;
    let link = connect_here(&transport, 0, 0)?;
    link.carries(&[1000; 10])?;
    let more = stage.hardware()?.objects()?.queue_pairs - before;
    let wanted = 6 * stage.order.rails as u64;
    ensure!(more == wanted, "{QPS}=3: a connection has {more} queue pairs at its two ends, not {wanted}");
    Ok(Finding::passed("3 queue pairs a connection"))
}

/// How many queue pairs of both ends had to do with one message of 1 MiB.
fn busy(stage: &mut Stage<'_>) -> Result<usize> {
    let transport = stage.transport()?;
    let link = connect_here(&transport, 0, 0)?;
    link.carries(&[1 << 20])?;
    Ok(stage.hardware()?.messages()?.into_iter().filter(|messages| *messages > 0).count())
}

fn split(stage: &mut Stage<'_>) -> Result<Finding> {
    let (busy, least) = (busy(stage)?, 2 * stage.order.rails + 1);
    ensure!(busy >= least, "{SPLIT}=1 with 2 queue pairs: {busy} of them took part in a message of 1 MiB, not {least}");
    Ok(Finding::nothing())
}

fn not_split(stage: &mut Stage<'_>) -> Result<Finding> {
    let (busy, most) = (busy(stage)?, stage.order.rails + 1);
    ensure!(busy <= most, "{SPLIT}=0 with 2 queue pairs: {busy} of them took part in a message of 1 MiB, not {most}");
    Ok(Finding::passed("messages cut over them or not"))
}

/// How long it takes until a send fails whose packets vanish.
fn until_lost(stage: &mut Stage<'_>) -> Result<Duration> {
    let transport = stage.transport()?;
    let Loop { send, recv } = connect_here(&transport, 0, transport.devices()? - 1)?;
    let memory = Arc::new(Buffer::new(8192)?);
    let (out, into) = (send.register(&memory)?, recv.register(&memory)?);
    let mut deadline = Deadline::new("a message", SOON);
    let _receive = posted(&mut deadline, || recv.receive(&into, 4096, 64, TAG))?;
    stage.hardware()?.inject(&rule(stage, "drop attempts=all"))?;
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
fn patient(stage: &mut Stage<'_>) -> Result<Finding> {
    let took = until_lost(stage)?;
    let right = (Duration::from_millis(450)..Duration::from_secs(4)).contains(&took);
    ensure!(right, "{TIMEOUT}=16 {RETRIES}=1: an error after {took:?}, not after 0.54 s");
    Ok(Finding::nothing())
}

/// 4 ms, once.
fn hasty(stage: &mut Stage<'_>) -> Result<Finding> {
    let took = until_lost(stage)?;
    ensure!(took < Duration::from_millis(400), "{TIMEOUT}=10 {RETRIES}=0: an error after {took:?}, not after 4 ms");
    Ok(Finding::passed("timeout and retries as set"))
}

fn link_local(stage: &mut Stage<'_>) -> Result<Finding> {
    let transport = stage.transport()?;
    connect_here(&transport, 0, transport.devices()? - 1)?.carries(&[1000])?;
    Ok(Finding::nothing())
}

fn no_such_gid(stage: &mut Stage<'_>) -> Result<Finding> {
    if stage.order.infiniband {
        // Addressed by LID: the entry is of no use.
        return Ok(Finding::nothing());
    }
    let outcome = stage.transport().and_then(|transport| {
        ensure!(transport.devices()? > 0, "no device with this GID");
        connect_here(&transport, 0, 0)?.carries(&[1000])
    });
    ensure!(outcome.is_err(), "{GID}=7, which is empty, and connections work: another one is used");
    Ok(Finding::passed("the GID index as set"))
}

fn nonsense(stage: &mut Stage<'_>) -> Result<Finding> {
    let transport = Transport::without_init(Library::open(&stage.order.source)?);
    let outcome = transport.init();
    if outcome.is_ok() {
        // Some read it only now.
        connect_here(&transport, 0, 0)?;
    }
    let then = if outcome.is_err() { "init refuses" } else { "the default is taken" };
    let otherwise = "a value that is no number is not told";
    Ok(Finding::passed(format!("nonsense is told, {then}")).logging(&[TIMEOUT, "banana"], otherwise))
}
