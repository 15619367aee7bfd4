//! Points 21 to 26: unauthenticated clients, peers that wait, and peers with other settings.

use std::io::Write;
use std::net::Shutdown;
use std::time::{Duration, Instant};

use crate::check::context::Context;
use crate::check::ensure;
use crate::check::local_messages::{arrived, connect_and_accept, connect_locally, exchange};
use crate::check::outcome::StepResult;
use crate::check::point::{BOTH_RANKS, Env, Point, RANK0_ONLY, Step, Trial};
use crate::check::relay::{self, Relay};
use crate::check::wait::{SETTLED, SOON, open_files_and_threads, within};
use crate::error::{Error, Result};
use crate::measure::conn::Bench;
use crate::measure::pattern;
use crate::nccl::library::Source;
use crate::pair::peer_conn::PeerConn;
use crate::transport::deadline::Deadline;
use crate::transport::instance::Transport;
use crate::transport::listener::{Handle, Listener};
use crate::transport::local_conn::LocalConn;

/// A short time limit for handshakes, for transports that have one.
const IMPATIENT: (&str, &str) = ("FERRITE_HANDSHAKE_TIMEOUT", "2");
/// Longer than that.
const TIME_LIMIT: Duration = Duration::from_secs(4);
/// Bytes of the caller's first frame that are turned, one at a time.
const TURNED: [usize; 8] = [0, 7, 8, 9, 10, 12, 16, 31];

pub(super) const POINTS: &[Point] = &[
    Point {
        number: 21,
        name: "unauthenticated-clients",
        claim: "garbage, port scans and cut-off greetings at the listener are ignored without waiting; the peer is served",
        trial: Trial::Steps(&[Step { env: Env { vars: &[IMPATIENT], ..RANK0_ONLY }, run: unauthenticated_clients }]),
    },
    Point {
        number: 22,
        name: "late-accept",
        claim: "a peer may accept as late as it likes: connect asks to be called again, holds nothing more, and works then",
        trial: Trial::Steps(&[Step { env: Env { vars: &[IMPATIENT], ..RANK0_ONLY }, run: late }]),
    },
    Point {
        number: 23,
        name: "unequal-peers",
        claim: "other MTU, other port, other settings at the other end: data right, or a clear error on both sides",
        trial: Trial::Steps(&[
            Step { env: Env { vars: &[("SOFTRNIC_MTU", "4096,softrnic1/1=1024")], ..BOTH_RANKS }, run: unequal },
            Step {
                env: Env {
                    rank1_vars: &[("NCCL_IB_QPS_PER_CONNECTION", "3"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")],
                    ..BOTH_RANKS
                },
                run: unequal,
            },
            Step {
                env: Env {
                    rank1_vars: &[("NCCL_IB_ADAPTIVE_ROUTING", "1"), ("NCCL_IB_AR_THRESHOLD", "0")],
                    ..BOTH_RANKS
                },
                run: unequal,
            },
            Step { env: Env { vars: &[("SOFTRNIC_PORTS", "2")], ..BOTH_RANKS }, run: unequal_ports },
        ]),
    },
    Point {
        number: 24,
        name: "foreign-peers",
        claim: "another version, another network and the built-in transport at the other end are errors, never a hang",
        trial: Trial::Steps(&[
            Step { env: Env { vars: &[IMPATIENT], timeout_s: 60, ..RANK0_ONLY }, run: turned_bytes },
            Step { env: Env { vars: &[IMPATIENT], ..RANK0_ONLY }, run: foreign_handles },
            Step { env: Env { vars: &[IMPATIENT], ..RANK0_ONLY }, run: built_in_peer },
        ]),
    },
    Point {
        number: 25,
        name: "loopback",
        claim: "a device connects to itself and to another of the host, within one process and thread",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: loopback }]),
    },
    Point {
        number: 26,
        name: "queue-pair-limit",
        claim: "more communicators than the device has queue pairs: an error, nothing left behind, the rest works",
        trial: Trial::Steps(&[Step {
            env: Env { vars: &[("SOFTRNIC_MAX_QP", "9"), IMPATIENT], ..RANK0_ONLY },
            run: limit,
        }]),
    },
];

/// When nothing more has come for so long, what has come is all that is said before an answer.
const WHOLE: Duration = Duration::from_millis(300);

/// What the transport says first to a listener; empty if nothing comes.
fn greeting(transport: &Transport) -> Result<Vec<u8>> {
    let (handle, listener, handle_port) = relay::listen(transport, 0)?;
    let (socket, port) = handle_port.listen_instead()?;
    let mut with_port = handle_port.with_port(&handle, port);
    let (mut client, mut words, mut latest) = (None, Vec::new(), None::<Instant>);
    within(SOON, || {
        ensure!(transport.connect(0, &mut with_port)?.is_none(), "connected to somebody who says nothing");
        client = client.take().or_else(|| relay::accept_one(&socket));
        if let Some(more) = client.as_mut().and_then(relay::read_available) {
            words.extend(more);
            latest = Some(Instant::now());
        }
        Ok(latest.is_some_and(|at| at.elapsed() > WHOLE).then_some(()))
    })?;
    listener.close()?;
    Ok(words)
}

fn unauthenticated_clients(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let whole = greeting(&transport)?;
    ensure!(!whole.is_empty(), "connect says nothing to a listener: this check knows no other way to tell");
    let mut inverted = whole.clone();
    inverted[0] ^= 0xff;
    let openings: Vec<Vec<u8>> = vec![
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        vec![0; 4096],
        Vec::new(),
        vec![0xff; 3],
        whole[..1].to_vec(),
        whole[..whole.len() / 2].to_vec(),
        inverted,
    ];
    let (handle, mut listener, handle_port) = relay::listen(&transport, 0)?;
    let mut kept = Vec::new();
    for (i, opening) in openings.iter().enumerate() {
        for hangs_up in [false, true] {
            let mut client = handle_port.connect_to_port()?;
            client.write_all(opening).unwrap_or_default();
            if hangs_up {
                client.shutdown(Shutdown::Both).unwrap_or_default();
            }
            accept_nothing(&mut listener, i)?;
            kept.push(client);
        }
    }
    let mut mine = handle;
    connect_and_accept(&transport, 0, &mut mine, &mut listener)
        .map_err(|problem| {
            Error::Contract(format!("after {} unauthenticated clients the peer is not served: {problem}", kept.len()))
        })?
        .carries(&[1000])?;
    Ok(StepResult::passed(format!("{} unauthenticated clients, silent and not; then the peer is served", kept.len())))
}

/// Calls accept a few times: no communicator, no error, no waiting.
fn accept_nothing(listener: &mut Listener, client: usize) -> Result<()> {
    for _ in 0..4 {
        let start = Instant::now();
        let came = listener
            .accept()
            .map_err(|problem| Error::Contract(format!("client {client} (of 7 kinds) makes accept fail: {problem}")))?;
        ensure!(came.is_none(), "client {client} was accepted");
        ensure!(start.elapsed() < Duration::from_secs(1), "accept waited {:?} for client {client}", start.elapsed());
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The peer does not accept for longer than any time limit of the transport: its process lives, and may be busy for hours.
fn late(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let (mut handle, mut listener) = transport.listen(0)?;
    let mut files = [0; 2];
    let start = Instant::now();
    within(TIME_LIMIT, || {
        let came = transport.connect(0, &mut handle).map_err(|problem| {
            Error::Contract(format!("connect gives up on a peer that lives, after {:?}: {problem}", start.elapsed()))
        })?;
        ensure!(came.is_none(), "connected to somebody who has not accepted");
        files[1] = open_files_and_threads().0;
        files[0] = if files[0] == 0 && start.elapsed() > Duration::from_millis(200) { files[1] } else { files[0] };
        std::thread::sleep(Duration::from_millis(1));
        Ok(None::<()>)
    })?;
    let waited = start.elapsed();
    ensure!(files[1] <= files[0] + 1, "{} files after 0.2 s, {} at the end", files[0], files[1]);
    connect_and_accept(&transport, 0, &mut handle, &mut listener)?.carries(&[1000])?;
    Ok(StepResult::passed(format!("accepted after {:.1} s, and works", waited.as_secs_f64())))
}

/// The setting that differs in each step.
const DIFFERENT_SETTING: [&str; 4] = ["MTU", "queue pairs", "routing", "port"];

/// A connection each way, whose ends are unlike, and messages of some sizes over it.
fn unequal(ctx: &mut Context<'_>) -> Result<StepResult> {
    let device = ctx.device()?;
    exchange_codes(ctx, device)
}

/// The two ports of a device count as devices: an even one here, an odd one there.
fn unequal_ports(ctx: &mut Context<'_>) -> Result<StepResult> {
    let last = ctx.transport()?.devices()? - 1;
    let device = if ctx.rank() == 0 { 0 } else { last };
    exchange_codes(ctx, device)
}

fn exchange_codes(ctx: &mut Context<'_>, device: usize) -> Result<StepResult> {
    let mine = match messages(ctx, device) {
        Ok(()) => 0,
        Err(Error::Call { code, .. }) => u64::from(code),
        Err(other) => return Err(other),
    };
    let theirs = ctx.worker.swap(mine)?;
    ensure!((mine == 0) == (theirs == 0), "one end fails, the other one does not: codes {mine} and {theirs}");
    let unlike = DIFFERENT_SETTING.get(ctx.job.step).copied().unwrap_or_default();
    Ok(StepResult::passed(match mine {
        0 => format!("other {unlike}: data right"),
        _ => format!("other {unlike}: codes {mine} and {theirs}"),
    }))
}

fn messages(ctx: &mut Context<'_>, device: usize) -> Result<()> {
    const SIZES: [usize; 6] = [0, 8, 1025, 8193, 65537, 1 << 20];
    let transport = ctx.transport()?;
    let bench = Bench::open(ctx.worker, &transport, device, 1 << 20)?;
    for round in 0..5 {
        for (i, size) in SIZES.into_iter().enumerate() {
            let seed = |rank| pattern::seed(round, rank, i as u64);
            pattern::fill(bench.out.memory(), 0, size, seed(ctx.rank()))?;
            let PeerConn { send, recv } = &bench.conn;
            let (_, came) = exchange((send, &bench.out, 0, size), (recv, &bench.into, 0, size))?;
            arrived(&bench.into, 0, size, seed(1 - ctx.rank()), came)?;
        }
    }
    Ok(())
}

/// A byte of the sender's first message is inverted on its way: the end that receives it has to fail, and neither end may wait for ever.
fn turned_bytes(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let length = greeting(&transport)?.len();
    let mut ends = Vec::new();
    for at in TURNED.into_iter().filter(|at| *at < length) {
        ends.push(turned(&transport, at)?);
    }
    connect_locally(&transport, 0, 0)?.carries(&[1000])?;
    let told = ends.iter().filter(|told| **told).count();
    Ok(StepResult::passed(format!(
        "{} bytes of the greeting turned: {told} told as errors, the rest harmless",
        ends.len()
    )))
}

/// Whether a turned byte at `at` led to an error.
fn turned(transport: &Transport, at: usize) -> Result<bool> {
    let (handle, mut listener, handle_port) = relay::listen(transport, 0)?;
    let (socket, port) = handle_port.listen_instead()?;
    let mut with_port = handle_port.with_port(&handle, port);
    let (mut relays, mut send, mut recv) = (Vec::new(), None, None);
    let outcome = within(TIME_LIMIT, || {
        if let Some(client) = relay::accept_one(&socket) {
            relays.push(Relay::new(client, handle_port.port, Some(at))?);
        }
        relays.retain_mut(Relay::pass);
        if send.is_none() {
            send = transport.connect(0, &mut with_port)?;
        }
        if recv.is_none() {
            recv = listener.accept()?;
        }
        Ok((send.is_some() && recv.is_some()).then_some(()))
    });
    match outcome {
        Ok(Some(())) => {
            let (Some(send), Some(recv)) = (send, recv) else { return Ok(false) };
            let carried = LocalConn { send, recv }.carries(&[1000]);
            let told = |problem| format!("byte {at} of the greeting is wrong, both connect, and then: {problem}");
            carried.map_or_else(|problem| Err(Error::Contract(told(problem))), |()| Ok(false))
        }
        Err(Error::Call { .. }) => Ok(true),
        Err(problem) => Err(problem),
        Ok(None) => {
            let passed = relays.iter().map(Relay::passed).sum::<usize>();
            let words =
                format!("byte {at} of the greeting is wrong, and both wait on after 4 s ({passed} bytes passed)");
            Err(Error::Contract(words))
        }
    }
}

fn foreign_handles(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let (mine, _listener) = transport.listen(0)?;
    // The first bytes say whose it is and in which version.
    let mut foreign = vec![Handle([0; _]), Handle([0x42; _]), Handle([0xff; _])];
    foreign.extend([0, 1, 8].map(|at| {
        let mut handle = mine;
        handle.0[at] ^= 0xff;
        handle
    }));
    for (i, handle) in foreign.iter_mut().enumerate() {
        let outcome = within(TIME_LIMIT, || transport.connect(0, handle));
        ensure!(outcome.is_err(), "handle {i}, which is not the listener's: no error after {TIME_LIMIT:?}");
    }
    Ok(StepResult::passed(format!("{} foreign handles refused", foreign.len())))
}

fn built_in_peer(ctx: &mut Context<'_>) -> Result<StepResult> {
    let Some(nccl) = ctx.job.built_in.clone().filter(|_| !matches!(ctx.job.source, Source::Stock { .. })) else {
        return Ok(StepResult::skipped(
            "a peer of another kind: needs a plugin, and NCCL 2.21.5 in the cache (ferrite wheel)",
        ));
    };
    let (mine, built_in) = (ctx.transport()?, Transport::open(&Source::stock(nccl))?);
    // Here the plugin connects to the built-in's listener.
    let (mut handle, _listener) = built_in.listen(0)?;
    let outcome = within(TIME_LIMIT, || mine.connect(0, &mut handle));
    let Err(words) = outcome else {
        return Err(Error::Contract("the built-in's handle is not refused".into()));
    };
    // And there the built-in calls the plugin's listener.
    let (handle, mut listener, handle_port) = relay::listen(&mine, 0)?;
    let (theirs, _other, other) = relay::listen(&built_in, 0)?;
    let mut with_port = other.with_port(&theirs, handle_port.port);
    let mut told = None;
    within(Duration::from_secs(1), || {
        if told.is_none() {
            told = built_in.connect(0, &mut with_port).err();
        }
        ensure!(listener.accept()?.is_none(), "the built-in transport was accepted");
        Ok(None::<()>)
    })?;
    let mut handle = handle;
    connect_and_accept(&mine, 0, &mut handle, &mut listener)?.carries(&[1000])?;
    Ok(StepResult::passed(format!(
        "to the built-in: {words}; the built-in as a client is dismissed and the listener lives"
    )))
}

fn loopback(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let count = transport.devices()?;
    for (from, to) in [(0, 0), (0, count - 1), (count - 1, 0)] {
        connect_locally(&transport, from, to)?.carries(&[0, 1, 100_000])?;
    }
    Ok(StepResult::passed(format!("device 0 to itself, and to and from device {}", count - 1)))
}

/// Connects within this process; where one end fails, the other one is called until it has failed too.
fn connect_or_fail(transport: &Transport) -> Result<Result<LocalConn>> {
    let (mut handle, mut listener) = transport.listen(0)?;
    let (mut send, mut recv) = (Ok(None), Ok(None));
    let mut deadline = Deadline::new("the end of a connection that cannot be", SOON);
    loop {
        if let Ok(None) = send {
            send = transport.connect(0, &mut handle);
        }
        if let Ok(None) = recv {
            recv = listener.accept();
        }
        match (send, recv) {
            (Ok(Some(send)), Ok(Some(recv))) => return Ok(Ok(LocalConn { send, recv })),
            // An end that has a communicator drops it; the other end has no peer any more.
            (Err(problem), _) | (Ok(Some(_)), Err(problem)) => return Ok(Err(problem)),
            (pending_send, pending_recv) => (send, recv) = (pending_send, pending_recv),
        }
        if deadline.idle().is_err() {
            let words = recv.err().map_or_else(|| "neither end fails".into(), |problem| problem.to_string());
            return Err(Error::Contract(format!("{words}; the connecting end is never told")));
        }
    }
}

fn limit(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let softrnic = ctx.softrnic()?;
    let before = softrnic.objects()?;
    let mut kept = Vec::new();
    let problem = loop {
        ensure!(kept.len() < 10, "the limit of 9 queue pairs is not felt");
        match connect_or_fail(&transport)? {
            Ok(pair) => kept.push(pair),
            Err(problem) => break problem,
        }
    };
    ensure!(matches!(problem, Error::Call { .. }), "no error: {problem}");
    let count = kept.len();
    ensure!(count > 0, "not even one connection within 9 queue pairs: {problem}");
    kept.pop().map_or(Ok(()), |pair| pair.carries(&[5000]))?;
    connect_locally(&transport, 0, 0)?.carries(&[5000])?;
    drop(kept);
    let clean = within(SETTLED, || Ok(Some(softrnic.objects()?).filter(|now| *now == before)))?;
    ensure!(clean.is_some(), "before {before}; after the error and closing everything {}", softrnic.objects()?);
    Ok(StepResult::passed(format!("{count} connections fit, then {problem}; all given back")))
}
