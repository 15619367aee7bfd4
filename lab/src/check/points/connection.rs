//! Points 13 to 20: setting up connections with a peer that keeps the rules.

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::check::context::{
    BOTH_RANKS, Context, Point, RANK0_ONLY, SETTLED, SOON, Slowest, arrived, code,
    connect_and_accept, connect_locally, done, exchange, first_pointer, no_more_than,
    open_files_and_threads, within,
};
use crate::check::raw::{FILLS, Opaque, Raw};
use crate::check::relay::Relay;
use crate::check::report::StepResult;
use crate::check::{ensure, relay};
use crate::error::{Error, Result};
use crate::measure::stream::{Bench, TAG};
use crate::measure::{plan, stream};
use crate::nccl::abi;
use crate::nccl::library::Source;
use crate::pair::worker_ctx::PeerConn;
use crate::system::host;
use crate::transport::buffer::Buffer;
use crate::transport::comm::{RecvBuffer, Region, Request, SendComm};
use crate::transport::deadline::{Deadline, posted};
use crate::transport::instance::Transport;
use crate::transport::listener::{Handle, Listener, LocalConn};

/// Longer than any call may take that only looks; far more than 1 ms, since this machine has other
/// work too.
const BLOCKING: Duration = Duration::from_millis(20);
/// Connections in all, and at once.
const MANY: (u32, u32) = (1000, 128);
/// Calls of `connect` after which a sender is killed.
const DEATHS: [u32; 6] = [1, 2, 3, 4, 6, 20];

pub(super) const POINTS: &[Point] = &[
    point!(13, "handle", RANK0_ONLY => handle;
        "listen writes 128 bytes at most, with no pointer of the listener's process in them"),
    point!(14, "never-blocks", RANK0_ONLY => never_blocks;
        "connect before accept, accept before connect and both in turn work from one thread; no call waits"),
    point!(15, "device-handle", RANK0_ONLY => device_handle;
        "connect and accept take NULL for the device handle, and leave a NULL behind the pointer alone"),
    point!(16, "pending-is-null", RANK0_ONLY => pending;
        "no communicator comes before the peer has done its part, and what comes works at once"),
    point!(17, "accept-completes-last", BOTH_RANKS => killed_sender;
        "a sender that is killed before its connect has completed is never accepted"),
    point!(18, "two-senders", RANK0_ONLY => two_senders;
        "of two senders to one listener with one accept, one pairs and the other gets an error or keeps waiting"),
    point!(19, "close-listener", RANK0_ONLY => close_listener;
        "a listener may be closed without an accept, in the middle of one, and right after it"),
    point!(20, "many-connections", BOTH_RANKS.within(40) => many;
        "1000 connections come about, 128 at once, polled in turn"),
];

fn handle(ctx: &mut Context<'_>) -> Result<StepResult> {
    let raw = ctx.raw()?;
    for fill in FILLS {
        let (code, bytes, comm) = raw.listen(0, fill);
        ensure!(code == 0 && comm != 0, "listen returns {code}");
        ensure!(
            bytes[128..].iter().all(|byte| *byte == fill),
            "listen writes past the 128 bytes of the handle"
        );
        if let Some((at, address)) = first_pointer(&bytes[..128], fill, &host::ranges()?) {
            let what = format!(
                "the bytes of the handle from {at} on are {address:#x}, an address of this process"
            );
            return Err(Error::Contract(what));
        }
        ensure!(raw.close_listen(comm) == 0, "closeListen fails");
    }
    Ok(StepResult::passed("nothing behind byte 127, no address of the listener's process"))
}

/// So many calls of one before the other is called at all.
const ORDERS: [(usize, usize); 3] = [(200, 0), (0, 200), (0, 0)];

fn never_blocks(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let mut slowest = Duration::MAX;
    // The host may have had the processors of a virtual machine: the best of three rounds counts.
    for _ in 0..3 {
        let mut round = Slowest::default();
        for (connects, accepts) in ORDERS {
            one_order(&transport, connects, accepts, &mut round)?;
        }
        slowest = slowest.min(round.0);
    }
    ensure!(slowest < BLOCKING, "one of the calls took {slowest:?} in each of three rounds");
    Ok(StepResult::passed(format!(
        "three orders; the slowest call took {slowest:.1?} in the best of three rounds"
    )))
}

fn one_order(
    transport: &Transport,
    connects: usize,
    accepts: usize,
    slowest: &mut Slowest,
) -> Result<()> {
    let (mut handle, mut listener) = transport.listen(0)?;
    let (mut send, mut recv) = (None, None);
    for _ in 0..connects {
        if send.is_none() {
            send = slowest.time(|| transport.connect(0, &mut handle))?;
        }
    }
    for _ in 0..accepts {
        ensure!(recv.is_none(), "accept gives a communicator before anybody has connected");
        recv = slowest.time(|| listener.accept())?;
    }
    let mut deadline = Deadline::new("connecting and accepting in turn", SOON);
    while send.is_none() || recv.is_none() {
        if send.is_none() {
            send = slowest.time(|| transport.connect(0, &mut handle))?;
        }
        if recv.is_none() {
            recv = slowest.time(|| listener.accept())?;
        }
        deadline.idle()?;
    }
    match (send, recv) {
        (Some(send), Some(recv)) => LocalConn { send, recv }.carries(&[64]),
        _ => Err(Error::Misuse("the loop ends with both")),
    }
}

/// Connects and accepts with or without places for device handles; the communicators.
pub(super) fn connect_raw(raw: Raw, with_place: bool) -> Result<(Opaque, Opaque)> {
    let (code, bytes, listener) = raw.listen(0, 0);
    ensure!(code == 0, "listen returns {code}");
    let mut handle = Handle([0; _]);
    handle.0.copy_from_slice(&bytes[..128]);
    let (mut send, mut recv) = (0, 0);
    let (mut sending, mut receiving) = (std::ptr::null_mut(), std::ptr::null_mut());
    let mut deadline = Deadline::new("a connection", SOON);
    while send == 0 || recv == 0 {
        if send == 0 {
            let (code, comm) = raw.connect(0, &mut handle, with_place.then_some(&mut sending));
            ensure!(code == 0, "connect returns {code}");
            send = comm;
        }
        if recv == 0 {
            let (code, comm) = raw.accept(listener, with_place.then_some(&mut receiving));
            ensure!(code == 0, "accept returns {code}");
            recv = comm;
        }
        deadline.idle()?;
    }
    ensure!(
        sending.is_null() && receiving.is_null(),
        "a host transport has written a device handle"
    );
    ensure!(raw.close_listen(listener) == 0, "closeListen fails");
    Ok((send, recv))
}

fn device_handle(ctx: &mut Context<'_>) -> Result<StepResult> {
    let raw = ctx.raw()?;
    for with_place in [true, false] {
        let (send, recv) = connect_raw(raw, with_place)?;
        ensure!(raw.close_send(send) == 0 && raw.close_recv(recv) == 0, "closing fails");
    }
    Ok(StepResult::passed("connected with NULL, and with a place that held NULL and still does"))
}

fn pending(ctx: &mut Context<'_>) -> Result<StepResult> {
    const CALLS: usize = 2000;
    let transport = ctx.transport()?;
    let raw = ctx.raw()?;
    let (mut handle, mut listener) = transport.listen(0)?;
    for _ in 0..CALLS {
        let (code, comm) = raw.connect(0, &mut handle, None);
        ensure!(code == 0, "connect returns {code} while nobody has accepted yet");
        ensure!(comm == 0, "connect gives a communicator although nobody has accepted yet");
    }
    let pair = connect_and_accept(&transport, 0, &mut handle, &mut listener)?;
    // The receiving end first, since a message waits for it; each at the first call.
    let memory = Arc::new(Buffer::new(4096)?);
    let (out, into) = (pair.send.register(&memory)?, pair.recv.register(&memory)?);
    let receive = pair.recv.receive(&into, 2048, 64, 1)?;
    ensure!(receive.is_some(), "a new communicator takes no receive");
    let send = within(SOON, || pair.send.send(&out, 0, 64, 1))?;
    ensure!(send.is_some(), "a new communicator takes no send");
    Ok(StepResult::passed(format!(
        "{CALLS} calls of connect before the first accept: NULL and success"
    )))
}

/// Rank 1's children die after so many calls of connect; rank 0 accepts meanwhile.
fn killed_sender(ctx: &mut Context<'_>) -> Result<StepResult> {
    let mut accepted = 0;
    for calls in DEATHS {
        if ctx.rank() == 1 {
            sender_that_dies(ctx, calls)?;
            continue;
        }
        let (handle, mut listener) = ctx.transport()?.listen(0)?;
        ctx.swap_handles(&handle)?;
        // That the peer is dead may be told; what must not come is a communicator.
        let came = match within(Duration::from_millis(120), || listener.accept()) {
            Err(Error::Call { .. }) => None,
            other => other?,
        };
        let completed = ctx.worker.swap(0)? == 1;
        ensure!(
            came.is_none() || completed,
            "a sender was accepted that died after {calls} calls, before connect gave it anything"
        );
        accepted += u32::from(came.is_some());
    }
    if ctx.rank() == 1 {
        return Ok(StepResult::nothing());
    }
    let transport = ctx.transport()?;
    connect_locally(&transport, 0, 0)?.carries(&[100])?;
    Ok(StepResult::passed(format!(
        "{} senders killed after 1 to 20 calls, {accepted} of which had completed",
        DEATHS.len()
    )))
}

fn sender_that_dies(ctx: &mut Context<'_>, calls: u32) -> Result<()> {
    let mut handle = ctx.swap_handles(&Handle([0; _]))?;
    let (mut told, says) = std::io::pipe().map_err(|e| Error::io("pipe", e))?;
    ctx.in_killed_child(|ctx| {
        let Ok(transport) = ctx.transport() else { return };
        for _ in 0..calls {
            if let Ok(Some(comm)) = transport.connect(0, &mut handle) {
                Write::write_all(&mut &says, b"x").unwrap_or_default();
                // Closing would be more than a death.
                std::mem::forget(comm);
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    });
    drop(says);
    let mut words = Vec::new();
    std::io::Read::read_to_end(&mut told, &mut words).map_err(|e| Error::io("pipe", e))?;
    ctx.worker.swap(u64::from(!words.is_empty())).map(drop)
}

/// Both senders of a listener with one accept.
struct TwoSenders {
    transport: Transport,
    handles: [Handle; 2],
    comms: [Option<SendComm>; 2],
    problems: [Option<Error>; 2],
}

impl TwoSenders {
    fn advance(&mut self) {
        for i in 0..2 {
            if self.comms[i].is_none() && self.problems[i].is_none() {
                match self.transport.connect(0, &mut self.handles[i]) {
                    Ok(comm) => self.comms[i] = comm,
                    Err(problem) => self.problems[i] = Some(problem),
                }
            }
        }
    }

    /// Sends from both what they can; the one that did, and whether the other one has failed.
    fn send(&mut self, out: &Region) -> Option<(usize, bool)> {
        let mut winner = None;
        within(SOON, || {
            for i in 0..2 {
                let Some(comm) = self.comms[i]
                    .as_ref()
                    .filter(|_| winner != Some(i) && self.problems[i].is_none())
                else {
                    continue;
                };
                match comm.send(out, 0, 100, 1) {
                    Ok(Some(_)) => winner = winner.or(Some(i)),
                    Ok(None) => {}
                    Err(problem) => self.problems[i] = Some(problem),
                }
            }
            let loser = winner.map(|winner| 1 - winner);
            let over =
                |loser: &usize| self.problems[*loser].is_some() || self.comms[*loser].is_none();
            Ok(loser.filter(over))
        })
        .ok();
        winner.map(|winner| (winner, self.problems[1 - winner].is_some()))
    }
}

fn two_senders(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let (handle, mut listener) = transport.listen(0)?;
    let mut senders =
        TwoSenders { transport, handles: [handle; 2], comms: [None, None], problems: [None, None] };
    let mut deadline = Deadline::new("one of two senders", SOON);
    let recv = loop {
        senders.advance();
        if let Some(recv) = listener.accept()? {
            break recv;
        }
        deadline.idle()?;
    };
    listener.close()?;
    // What becomes of the other one shows in a moment.
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(300) || senders.comms.iter().all(Option::is_none)
    {
        senders.advance();
        deadline.idle()?;
    }
    let memory = Arc::new(Buffer::new(8192)?);
    let into = recv.register(&memory)?;
    let receive = recv
        .receive(&into, 4096, 100, 1)?
        .ok_or_else(|| Error::Contract("no receive is taken".into()))?;
    let out = recv.register(&memory)?;
    let Some((winner, told)) = senders.send(&out) else {
        return Err(Error::Contract("neither of two senders can send to the one receiver".into()));
    };
    done(receive, &mut [0])?;
    let fate = match (told, senders.comms[1 - winner].is_some(), &senders.problems[1 - winner]) {
        (true, false, Some(problem)) => format!("fails: {problem}"),
        (true, true, Some(problem)) => format!("fails at its first use: {problem}"),
        (false, true, _) => {
            return Err(Error::Contract(
                "the second sender has a communicator that nobody holds the other end of".into(),
            ));
        }
        _ => "keeps waiting".into(),
    };
    Ok(StepResult::passed(format!("one pairs and works; the other {fate}")))
}

fn close_listener(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    transport.listen(0)?.1.close()?;
    // In the middle of an accept: after one call of each, after two, …, until they are connected.
    let mut steps = 0;
    while half_done(&transport, steps + 1)? {
        steps += 1;
        ensure!(steps < 1000, "the two never connect");
    }
    // Right after the accept, as NCCL does.
    connect_locally(&transport, 0, 0)?.carries(&[4096])?;
    Ok(StepResult::passed(format!("without an accept, at {steps} steps of one, right after one")))
}

/// Closes a listener after so many calls of connect and accept; false if that was too late.
fn half_done(transport: &Transport, calls: usize) -> Result<bool> {
    let (mut handle, mut listener) = transport.listen(0)?;
    let mut send = None;
    for _ in 0..calls {
        if send.is_none() {
            send = transport.connect(0, &mut handle)?;
        }
        if listener.accept()?.is_some() {
            return Ok(false);
        }
    }
    listener.close()?;
    // The sender gets an error, or waits for ever; or it has a communicator without a peer.
    let start = Instant::now();
    while send.is_none() && start.elapsed() < Duration::from_millis(20) {
        match transport.connect(0, &mut handle) {
            Ok(made) => send = made,
            Err(_) => break,
        }
    }
    Ok(true)
}

fn many(ctx: &mut Context<'_>) -> Result<StepResult> {
    let (transport, device) = (ctx.transport()?, ctx.device()?);
    let total = stream::set_up(ctx.worker, &transport, device, MANY)?;
    Ok(StepResult::passed(format!(
        "{} connections, {} at once, in {:.1} s",
        MANY.0,
        MANY.1,
        total / 1e3
    )))
}

/// A short time limit for handshakes, for transports that have one.
const IMPATIENT: (&str, &str) = ("FERRITE_HANDSHAKE_TIMEOUT", "2");
/// Longer than that.
const TIME_LIMIT: Duration = Duration::from_secs(4);
/// Bytes of the caller's first frame that are turned, one at a time.
const TURNED: [usize; 8] = [0, 7, 8, 9, 10, 12, 16, 31];

pub(super) const PEER_POINTS: &[Point] = &[
    point!(21, "unauthenticated-clients", RANK0_ONLY.vars(&[IMPATIENT]) => unauthenticated_clients;
        "garbage, port scans and cut-off greetings at the listener are ignored without waiting; the peer is served"),
    point!(22, "late-accept", RANK0_ONLY.vars(&[IMPATIENT]) => late;
        "a peer may accept as late as it likes: connect asks to be called again, holds nothing more, and works then"),
    point!(23, "unequal-peers",
        BOTH_RANKS.vars(&[("SOFTRNIC_MTU", "4096,softrnic1/1=1024")]) => unequal,
        BOTH_RANKS.rank1_vars(&[
            ("NCCL_IB_QPS_PER_CONNECTION", "3"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1"),
        ]) => unequal,
        BOTH_RANKS.rank1_vars(&[
            ("NCCL_IB_ADAPTIVE_ROUTING", "1"), ("NCCL_IB_AR_THRESHOLD", "0"),
        ]) => unequal,
        BOTH_RANKS.vars(&[("SOFTRNIC_PORTS", "2")]) => unequal_ports;
        "other MTU, other port, other settings at the other end: data right, or a clear error on both sides"),
    point!(24, "foreign-peers",
        RANK0_ONLY.vars(&[IMPATIENT]).within(60) => turned_bytes,
        RANK0_ONLY.vars(&[IMPATIENT]) => foreign_handles,
        RANK0_ONLY.vars(&[IMPATIENT]) => built_in_peer;
        "another version, another network and the built-in transport at the other end are errors, never a hang"),
    point!(25, "loopback", RANK0_ONLY => loopback;
        "a device connects to itself and to another of the host, within one process and thread"),
    point!(26, "queue-pair-limit",
        RANK0_ONLY.vars(&[("SOFTRNIC_MAX_QP", "9"), IMPATIENT]) => limit;
        "more communicators than the device has queue pairs: an error, nothing left behind, the rest works"),
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
        ensure!(
            transport.connect(0, &mut with_port)?.is_none(),
            "connected to somebody who says nothing"
        );
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
    ensure!(
        !whole.is_empty(),
        "connect says nothing to a listener: this check knows no other way to tell"
    );
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
            Error::Contract(format!(
                "after {} unauthenticated clients the peer is not served: {problem}",
                kept.len()
            ))
        })?
        .carries(&[1000])?;
    Ok(StepResult::passed(format!(
        "{} unauthenticated clients, silent and not; then the peer is served",
        kept.len()
    )))
}

/// Calls accept a few times: no communicator, no error, no waiting.
fn accept_nothing(listener: &mut Listener, client: usize) -> Result<()> {
    for _ in 0..4 {
        let start = Instant::now();
        let came = listener.accept().map_err(|problem| {
            Error::Contract(format!("client {client} (of 7 kinds) makes accept fail: {problem}"))
        })?;
        ensure!(came.is_none(), "client {client} was accepted");
        ensure!(
            start.elapsed() < Duration::from_secs(1),
            "accept waited {:?} for client {client}",
            start.elapsed()
        );
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// The peer does not accept for longer than any time limit of the transport: its process lives, and
/// may be busy for hours.
fn late(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let (mut handle, mut listener) = transport.listen(0)?;
    let mut files = [0; 2];
    let start = Instant::now();
    within(TIME_LIMIT, || {
        let came = transport.connect(0, &mut handle).map_err(|problem| {
            Error::Contract(format!(
                "connect gives up on a peer that lives, after {:?}: {problem}",
                start.elapsed()
            ))
        })?;
        ensure!(came.is_none(), "connected to somebody who has not accepted");
        files[1] = open_files_and_threads().0;
        files[0] = if files[0] == 0 && start.elapsed() > Duration::from_millis(200) {
            files[1]
        } else {
            files[0]
        };
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
    ensure!(
        (mine == 0) == (theirs == 0),
        "one end fails, the other one does not: codes {mine} and {theirs}"
    );
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
            let seed = |rank| plan::seed(round, rank, i as u64);
            plan::fill(bench.out.memory(), 0, size, seed(ctx.rank()))?;
            let PeerConn { send, recv } = &bench.conn;
            let (_, came) = exchange((send, &bench.out, 0, size), (recv, &bench.into, 0, size))?;
            arrived(&bench.into, 0, size, seed(1 - ctx.rank()), came)?;
        }
    }
    Ok(())
}

/// A byte of the sender's first message is inverted on its way: the end that receives it has to
/// fail, and neither end may wait for ever.
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
            let told = |problem| {
                format!("byte {at} of the greeting is wrong, both connect, and then: {problem}")
            };
            carried.map_or_else(|problem| Err(Error::Contract(told(problem))), |()| Ok(false))
        }
        Err(Error::Call { .. }) => Ok(true),
        Err(problem) => Err(problem),
        Ok(None) => {
            let passed = relays.iter().map(Relay::passed).sum::<usize>();
            let words = format!(
                "byte {at} of the greeting is wrong, and both wait on after 4 s ({passed} bytes passed)"
            );
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
        ensure!(
            outcome.is_err(),
            "handle {i}, which is not the listener's: no error after {TIME_LIMIT:?}"
        );
    }
    Ok(StepResult::passed(format!("{} foreign handles refused", foreign.len())))
}

fn built_in_peer(ctx: &mut Context<'_>) -> Result<StepResult> {
    let Some(nccl) =
        ctx.job.built_in.clone().filter(|_| !matches!(ctx.job.source, Source::Stock { .. }))
    else {
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

/// Connects within this process; where one end fails, the other one is called until it has failed
/// too.
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
            let words = recv
                .err()
                .map_or_else(|| "neither end fails".into(), |problem| problem.to_string());
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
    ensure!(
        clean.is_some(),
        "before {before}; after the error and closing everything {}",
        softrnic.objects()?
    );
    Ok(StepResult::passed(format!("{count} connections fit, then {problem}; all given back")))
}

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

pub(super) const TEARDOWN_POINTS: &[Point] = &[
    point!(49, "peer-killed", BOTH_RANKS.vars(&[QUICK]).within(40) => peer_killed;
        "when the peer is killed, both communicators say ncclRemoteError in time, and again at once"),
    point!(50, "failed-again", RANK0_ONLY.vars(&[QUICK, NO_FAILOVER]).within(40) => failed_again;
        "a request that has failed says the same a million times, without flooding the log"),
    point!(51, "close-in-flight", RANK0_ONLY.vars(&[QUICK]).within(40) => close_in_flight;
        "communicators are closed with requests in flight, after errors and as NULL; what comes late does no harm"),
    point!(52, "deregister-in-flight", RANK0_ONLY.vars(&[QUICK]).within(40) => dereg_in_flight;
        "memory that is taken back while it is written harms no other communicator"),
    point!(53, "abort", RANK0_ONLY.within(40) => abort;
        "an abort while connecting, with a send that waits, and in a group that lacks messages ends in bounded time"),
    point!(57, "cycles", RANK0_ONLY.within(40) => cycles;
        "after 100 connections made and closed there are no more queue pairs, regions, files and threads than before"),
];

/// Both ways one message after the other, as long as it goes; what `isend` or its test, and `irecv`
/// or its, ended with.
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
        let words = end.as_ref().map_or_else(
            || format!("nothing for {:.0} s", took.as_secs_f64()),
            ToString::to_string,
        );
        ensure!(remote, "the {name} end says {words} after the peer was killed");
    }
    let again = Instant::now();
    for _ in 0..1000 {
        let codes = [
            code(&bench.conn.send.send(&bench.out, 0, 64, TAG)),
            code(&bench.conn.recv.receive(&bench.into, 0, 64, TAG)),
        ];
        ensure!(
            codes == [abi::ncclRemoteError; 2],
            "isend and irecv after the error return {codes:?}"
        );
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
    let first = first.ok_or_else(|| {
        Error::Contract("the queue pair has failed, and the send is still pending".into())
    })?;
    let wanted = code::<()>(&Err(first));
    let start = Instant::now();
    for call in 0..TESTS {
        let now = code(&send.test(&mut sizes));
        ensure!(
            now == wanted,
            "test number {call} after the failure returns {now}, the first one {wanted}"
        );
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
        let fault =
            ["delay=3ms times=4", "qp-error times=1", "drop attempts=all times=4"][round % 3];
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

/// A receive of `group` messages of which `sent` are sent, and a send that waits; how long closing
/// took.
fn half_a_group(ctx: &mut Context<'_>, group: usize, sent: usize) -> Result<Duration> {
    let conn = across(ctx)?;
    let memory = Arc::new(Buffer::new(1 << 16)?);
    let (out, into) = (conn.send.register(&memory)?, conn.recv.register(&memory)?);
    let places: Vec<_> = (0..group)
        .map(|i| RecvBuffer { region: &into, offset: 4096 * i, len: 64, tag: i as i32 })
        .collect();
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

/// A transport may keep a thread for so long that has nothing to do.
const IDLE: Duration = Duration::from_secs(15);

fn cycles(ctx: &mut Context<'_>) -> Result<StepResult> {
    let softrnic = ctx.softrnic()?;
    for _ in 0..3 {
        across(ctx)?.carries(&[64])?;
    }
    let before = (softrnic.objects()?, open_files_and_threads());
    for _ in 0..CYCLES {
        let conn = across(ctx)?;
        conn.carries(&[64, 5000])?;
        conn.send.close()?;
        conn.recv.close()?;
    }
    let mut now = before.0;
    within(SETTLED, || {
        now = softrnic.objects()?;
        Ok((now == before.0).then_some(()))
    })?;
    let (objects, (files, threads)) = before;
    ensure!(now == objects, "before {CYCLES} cycles {objects}, after them {now}");
    no_more_than(before.1, IDLE)?;
    Ok(StepResult::passed(format!(
        "{CYCLES} cycles: {objects}, {files} files, {threads} threads before and after"
    )))
}
