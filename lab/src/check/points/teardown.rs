//! Points 49 to 53 and 57: peers that die, and communicators that are closed at any time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::check::context::Context;
use crate::check::ensure;
use crate::check::local_messages::connect_locally;
use crate::check::outcome::StepResult;
use crate::check::point::{BOTH_RANKS, Env, Point, RANK0_ONLY, Step, Trial};
use crate::check::wait::{SETTLED, SOON, code, open_files_and_threads, within};
use crate::error::{Error, Result};
use crate::measure::conn::{Bench, TAG};
use crate::nccl::abi;
use crate::transport::buffer::Buffer;
use crate::transport::comm::{RecvBuffer, Request};
use crate::transport::deadline::{Deadline, posted};
use crate::transport::local_conn::LocalConn;

/// Retries that are over in half a second.
const QUICK: (&str, &str) = ("NCCL_IB_TIMEOUT", "14");
/// A transport that recovers connections by itself is not to do so, if it knows this variable.
const NO_FAILOVER: (&str, &str) = ("FERRITE_FAILOVER", "0");
/// Longest that a close may take, on a machine with other work.
const BOUND: Duration = Duration::from_secs(2);
/// Tests of a request that has failed.
const TESTS: u32 = 1_000_000;
/// Connections made and closed.
const CYCLES: u32 = 100;

pub(super) const POINTS: &[Point] = &[
    Point {
        number: 49,
        name: "peer-killed",
        claim: "when the peer is killed, both communicators say ncclRemoteError in time, and again at once",
        trial: Trial::Steps(&[Step { env: Env { vars: &[QUICK], timeout_s: 40, ..BOTH_RANKS }, run: peer_killed }]),
    },
    Point {
        number: 50,
        name: "failed-again",
        claim: "a request that has failed says the same a million times, without flooding the log",
        trial: Trial::Steps(&[Step {
            env: Env { vars: &[QUICK, NO_FAILOVER], timeout_s: 40, ..RANK0_ONLY },
            run: failed_again,
        }]),
    },
    Point {
        number: 51,
        name: "close-in-flight",
        claim: "communicators are closed with requests in flight, after errors and as NULL; what comes late does no harm",
        trial: Trial::Steps(&[Step { env: Env { vars: &[QUICK], timeout_s: 40, ..RANK0_ONLY }, run: close_in_flight }]),
    },
    Point {
        number: 52,
        name: "deregister-in-flight",
        claim: "memory that is taken back while it is written harms no other communicator",
        trial: Trial::Steps(&[Step { env: Env { vars: &[QUICK], timeout_s: 40, ..RANK0_ONLY }, run: dereg_in_flight }]),
    },
    Point {
        number: 53,
        name: "abort",
        claim: "an abort while connecting, with a send that waits, and in a group that lacks messages ends in bounded time",
        trial: Trial::Steps(&[Step { env: Env { timeout_s: 40, ..RANK0_ONLY }, run: abort }]),
    },
    Point {
        number: 57,
        name: "cycles",
        claim: "after 100 connections made and closed there are as many queue pairs, regions, files and threads as before",
        trial: Trial::Steps(&[Step { env: Env { timeout_s: 40, ..RANK0_ONLY }, run: cycles }]),
    },
];

/// Both ways one message after the other, as long as it goes; what `isend` or its test, and `irecv` or its, ended with.
struct Traffic<'b> {
    bench: &'b Bench,
    send: Option<Request<'b>>,
    receive: Option<Request<'b>>,
    messages: u64,
    ends: [Option<Error>; 2],
}

impl<'b> Traffic<'b> {
    fn new(bench: &'b Bench) -> Self {
        Self { bench, send: None, receive: None, messages: 0, ends: [None, None] }
    }

    fn step(&mut self) {
        if self.ends[0].is_none()
            && let Err(problem) = self.send_step()
        {
            self.ends[0] = Some(problem);
        }
        if self.ends[1].is_none()
            && let Err(problem) = self.receive_step()
        {
            self.ends[1] = Some(problem);
        }
    }

    fn send_step(&mut self) -> Result<()> {
        match &mut self.send {
            None => self.send = self.bench.conn.send.send(&self.bench.out, 0, 64, TAG)?,
            Some(request) => {
                if request.test(&mut [0])? {
                    self.send = None;
                }
            }
        }
        Ok(())
    }

    fn receive_step(&mut self) -> Result<()> {
        match &mut self.receive {
            None => self.receive = self.bench.conn.recv.receive(&self.bench.into, 0, 64, TAG)?,
            Some(request) => {
                if request.test(&mut [0])? {
                    self.receive = None;
                    self.messages += 1;
                }
            }
        }
        Ok(())
    }
}

fn peer_killed(ctx: &mut Context<'_>) -> Result<StepResult> {
    if ctx.rank() == 1 {
        ctx.in_killed_child(|ctx| drop(traffic_until_killed(ctx)));
        ctx.worker.barrier()?;
        return Ok(StepResult::nothing());
    }
    let (transport, device) = (ctx.transport()?, ctx.device()?);
    let bench = Bench::open(ctx.worker, &transport, device, 4096)?;
    // The peer is killed after some messages; its parent reaches the barrier when it is gone.
    let mut traffic = Traffic::new(&bench);
    let mut deadline = Deadline::new("traffic before the peer dies", SOON);
    while traffic.messages < 100 && traffic.ends.iter().all(Option::is_none) {
        let before = traffic.messages;
        traffic.step();
        // The pauses of a wait grow with its time.
        if traffic.messages == before { deadline.idle()? } else { deadline.progress() }
    }
    let start = Instant::now();
    while traffic.ends.iter().any(Option::is_none) && start.elapsed() < 2 * SOON {
        traffic.step();
    }
    let took = start.elapsed();
    ctx.worker.barrier()?;
    for (name, end) in ["sending", "receiving"].into_iter().zip(&traffic.ends) {
        let remote = matches!(end, Some(Error::Call { code: abi::ncclRemoteError, .. }));
        let words =
            end.as_ref().map_or_else(|| format!("nothing for {:.0} s", took.as_secs_f64()), ToString::to_string);
        ensure!(remote, "the {name} end says {words} after the peer was killed");
    }
    let again = Instant::now();
    for _ in 0..1000 {
        let codes = [
            code(&bench.conn.send.send(&bench.out, 0, 64, TAG)),
            code(&bench.conn.recv.receive(&bench.into, 0, 64, TAG)),
        ];
        ensure!(codes == [abi::ncclRemoteError; 2], "isend and irecv after the error return {codes:?}");
    }
    ensure!(again.elapsed() < BOUND, "2000 calls after the error take {:?}", again.elapsed());
    Ok(StepResult::passed(format!(
        "both ends: ncclRemoteError after {:.2} s, and at once from then on",
        took.as_secs_f64()
    ))
    .quiet(80))
}

/// The peer, which is killed in mid-traffic.
fn traffic_until_killed(ctx: &mut Context<'_>) -> Result<()> {
    let (transport, device) = (ctx.transport()?, ctx.device()?);
    let bench = Bench::open(ctx.worker, &transport, device, 4096)?;
    let mut traffic = Traffic::new(&bench);
    while traffic.messages < 120 && traffic.ends.iter().all(Option::is_none) {
        traffic.step();
    }
    // SAFETY: a signal to the process itself: nothing is closed or said.
    unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
    Ok(())
}

/// A rule for everything that device 0 of the transport sends: all of its rails.
pub(super) fn rule(ctx: &Context<'_>, action: &str) -> String {
    let rails = (0..ctx.job.rails).map(|rail| {
        let (name, keys) = action.split_once(' ').unwrap_or((action, ""));
        format!("{name} device=softrnic{rail} {keys}")
    });
    rails.collect::<Vec<_>>().join("; ")
}

/// A connection from device 0 to the last one, and memory on both sides.
fn across(ctx: &mut Context<'_>) -> Result<LocalConn> {
    let transport = ctx.transport()?;
    connect_locally(&transport, 0, transport.devices()? - 1)
}

fn failed_again(ctx: &mut Context<'_>) -> Result<StepResult> {
    let conn = across(ctx)?;
    let memory = Arc::new(Buffer::new(8192)?);
    let (out, into) = (conn.send.register(&memory)?, conn.recv.register(&memory)?);
    let mut deadline = Deadline::new("a failure", SOON);
    let mut receive = posted(&mut deadline, || conn.recv.receive(&into, 4096, 64, TAG))?;
    ctx.softrnic()?.inject(&rule(ctx, "qp-error"))?;
    let mut send = posted(&mut deadline, || conn.send.send(&out, 0, 64, TAG))?;
    let mut sizes = [0];
    let first = within(SOON, || {
        // Both are asked: the peer's end is in this process.
        receive.test(&mut [0]).unwrap_or_default();
        match send.test(&mut sizes) {
            Ok(true) => Err(Error::Contract("a send is done whose queue pair has failed".into())),
            Ok(false) => Ok(None),
            Err(problem) => Ok(Some(problem)),
        }
    })?;
    let first = first.ok_or_else(|| Error::Contract("the queue pair has failed, and the send just goes on".into()))?;
    let wanted = code::<()>(&Err(first));
    let start = Instant::now();
    for call in 0..TESTS {
        let now = code(&send.test(&mut sizes));
        ensure!(now == wanted, "test number {call} after the failure returns {now}, the first one {wanted}");
        ensure!(start.elapsed() < 2 * SOON, "{call} tests take {:?}", start.elapsed());
    }
    let took = start.elapsed();
    Ok(StepResult::passed(format!(
        "{TESTS} times code {wanted}, {:.0} ns each, no flood in the log",
        took.as_nanos() as f64 / f64::from(TESTS)
    ))
    .quiet(80))
}

/// Closes both ends and says how long the slower took.
fn close(conn: LocalConn) -> Duration {
    let start = Instant::now();
    // After an error a close may fail too, as long as it ends.
    let codes = [code(&conn.send.close()), code(&conn.recv.close())];
    log::debug!("closed with {codes:?}");
    start.elapsed()
}

fn close_in_flight(ctx: &mut Context<'_>) -> Result<StepResult> {
    const ROUNDS: usize = 24;
    let raw = ctx.raw()?;
    let nulls = [raw.close_send(0), raw.close_recv(0), raw.close_listen(0)];
    let other_conn = across(ctx)?;
    let mut slowest = Duration::ZERO;
    for round in 0..ROUNDS {
        let conn = across(ctx)?;
        let memory = Arc::new(Buffer::new(1 << 16)?);
        let (out, into) = (conn.send.register(&memory)?, conn.recv.register(&memory)?);
        let fault = ["delay=3ms times=4", "qp-error times=1", "drop attempts=all times=4"][round % 3];
        ctx.softrnic()?.inject(&rule(ctx, fault))?;
        let mut requests = Vec::new();
        for i in 0..4 {
            requests.extend(conn.recv.receive(&into, 32_768, 5000, i).unwrap_or_default());
            // Some of them have no receive, some receives no send.
            requests.extend(conn.send.send(&out, 0, 5000, i + 1).unwrap_or_default());
        }
        drop((requests, out, into));
        slowest = slowest.max(close(conn));
        ensure!(slowest < BOUND, "closing takes {slowest:?}");
        ctx.softrnic()?.run(&["inject", "--clear"])?;
    }
    // Time for what is late.
    std::thread::sleep(Duration::from_millis(20));
    other_conn.carries(&[100, 100_000])?;
    Ok(StepResult::passed(format!(
        "{ROUNDS} times, slowest {slowest:.1?}; NULL: codes {nulls:?}; another connection unharmed"
    )))
}

fn dereg_in_flight(ctx: &mut Context<'_>) -> Result<StepResult> {
    const ROUNDS: u32 = 12;
    let other_conn = across(ctx)?;
    for _ in 0..ROUNDS {
        let conn = across(ctx)?;
        let memory = Arc::new(Buffer::new(1 << 20)?);
        let (out, into) = (conn.send.register(&memory)?, conn.recv.register(&memory)?);
        let receive = conn.recv.receive(&into, 1 << 19, 1 << 18, TAG)?;
        ctx.softrnic()?.inject(&rule(ctx, "delay=5ms times=1"))?;
        let send = within(SOON, || conn.send.send(&out, 0, 1 << 18, TAG))?;
        ensure!(receive.is_some() && send.is_some(), "nothing is in flight");
        ctx.softrnic()?.run(&["inject", "--clear"])?;
        // As an abort does: regions first, both ends.
        drop((send, receive, out, into));
        other_conn.carries(&[64, 70_000])?;
        close(conn);
        other_conn.carries(&[64, 70_000])?;
    }
    Ok(StepResult::passed(format!(
        "{ROUNDS} times memory taken back under a delayed write; another connection's data is right"
    )))
}

fn abort(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let mut slowest = Duration::ZERO;
    // While connecting: a listener that is closed, a connect that is never called again.
    for calls in 0..6 {
        let (mut handle, mut listener) = transport.listen(0)?;
        let mut ends = (None, None);
        for _ in 0..calls {
            if ends.0.is_none() {
                ends.0 = transport.connect(0, &mut handle)?;
            }
            if ends.1.is_none() {
                ends.1 = listener.accept()?;
            }
        }
        let start = Instant::now();
        listener.close()?;
        drop(ends);
        slowest = slowest.max(start.elapsed());
        ensure!(slowest < BOUND, "an abort while connecting takes {slowest:?}");
    }
    for (group, sent) in [(0, 0), (4, 0), (4, 1), (4, 3)] {
        slowest = slowest.max(half_a_group(ctx, group, sent)?);
        ensure!(slowest < BOUND, "an abort with {sent} of {group} messages sent takes {slowest:?}");
    }
    connect_locally(&transport, 0, 0)?.carries(&[1000])?;
    Ok(StepResult::passed(format!(
        "six steps of connecting, waiting sends, groups of 4 with 0, 1 and 3 sent; slowest {slowest:.1?}"
    )))
}

/// A receive of `group` messages of which `sent` are sent, and a send that waits; how long closing took.
fn half_a_group(ctx: &mut Context<'_>, group: usize, sent: usize) -> Result<Duration> {
    let conn = across(ctx)?;
    let memory = Arc::new(Buffer::new(1 << 16)?);
    let (out, into) = (conn.send.register(&memory)?, conn.recv.register(&memory)?);
    let places: Vec<_> =
        (0..group).map(|i| RecvBuffer { region: &into, offset: 4096 * i, len: 64, tag: i as i32 }).collect();
    let mut deadline = Deadline::new("a receive", SOON);
    let mut receive = match places[..] {
        [] => None,
        _ => Some(posted(&mut deadline, || conn.recv.receive_group(&places))?),
    };
    let mut sends = Vec::new();
    for i in 0..sent {
        sends.push(posted(&mut deadline, || conn.send.send(&out, 0, 64, i as i32))?);
    }
    let start = Instant::now();
    for _ in 0..1000 {
        ensure!(conn.send.send(&out, 0, 64, 77)?.is_none(), "a send without a receive is taken");
        if let Some(receive) = &mut receive {
            ensure!(!receive.test(&mut [0; 8])?, "a group is done with {sent} of {group} messages");
        }
    }
    drop((receive, sends));
    drop((out, into));
    close(conn);
    Ok(start.elapsed())
}

fn cycles(ctx: &mut Context<'_>) -> Result<StepResult> {
    let softrnic = ctx.softrnic()?;
    let counts = || -> Result<_> { Ok((softrnic.objects()?, open_files_and_threads())) };
    for _ in 0..3 {
        across(ctx)?.carries(&[64])?;
    }
    let before = counts()?;
    for _ in 0..CYCLES {
        let conn = across(ctx)?;
        conn.carries(&[64, 5000])?;
        conn.send.close()?;
        conn.recv.close()?;
    }
    let mut now = counts()?;
    within(SETTLED, || {
        now = counts()?;
        Ok((now == before).then_some(()))
    })?;
    let words = |(objects, (files, threads))| format!("{objects}, {files} files, {threads} threads");
    ensure!(now == before, "before {CYCLES} cycles {}, after them {}", words(before), words(now));
    Ok(StepResult::passed(format!("{CYCLES} cycles: {} before and after", words(before))))
}
