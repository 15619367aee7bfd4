//! Points 13 to 20: setting up connections with a peer that keeps the rules.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::check::context::Context;
use crate::check::ensure;
use crate::check::local_messages::{connect_and_accept, connect_locally};
use crate::check::outcome::StepResult;
use crate::check::point::{BOTH_RANKS, Env, Point, RANK0_ONLY, Step, Trial};
use crate::check::pointer::first_pointer;
use crate::check::raw::{FILLS, Opaque, Raw};
use crate::check::slowest::Slowest;
use crate::check::wait::{SOON, done, within};
use crate::error::{Error, Result};
use crate::measure::setup;
use crate::system::maps;
use crate::transport::buffer::Buffer;
use crate::transport::comm::{Region, SendComm};
use crate::transport::deadline::Deadline;
use crate::transport::instance::Transport;
use crate::transport::listener::Handle;
use crate::transport::local_conn::LocalConn;

/// Longer than any call may take that only looks; far more than 1 ms, since this machine has other work too.
const BLOCKING: Duration = Duration::from_millis(20);
/// Connections in all, and at once.
const MANY: (u32, u32) = (1000, 128);
/// Calls of `connect` after which a sender is killed.
const DEATHS: [u32; 6] = [1, 2, 3, 4, 6, 20];

pub(super) const POINTS: &[Point] = &[
    Point {
        number: 13,
        name: "handle",
        claim: "listen writes 128 bytes at most, with no pointer of the listener's process in them",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: handle }]),
    },
    Point {
        number: 14,
        name: "never-blocks",
        claim: "connect before accept, accept before connect and both in turn work from one thread; no call waits",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: never_blocks }]),
    },
    Point {
        number: 15,
        name: "device-handle",
        claim: "connect and accept take NULL for the device handle, and leave a NULL behind the pointer alone",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: device_handle }]),
    },
    Point {
        number: 16,
        name: "pending-is-null",
        claim: "no communicator comes before the peer has done its part, and what comes works at once",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: pending }]),
    },
    Point {
        number: 17,
        name: "accept-completes-last",
        claim: "a sender that is killed before its connect has completed is never accepted",
        trial: Trial::Steps(&[Step { env: BOTH_RANKS, run: killed_sender }]),
    },
    Point {
        number: 18,
        name: "two-senders",
        claim: "of two senders to one listener with one accept, one pairs and the other is told or left waiting",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: two_senders }]),
    },
    Point {
        number: 19,
        name: "close-listener",
        claim: "a listener may be closed without an accept, in the middle of one, and right after it",
        trial: Trial::Steps(&[Step { env: RANK0_ONLY, run: close_listener }]),
    },
    Point {
        number: 20,
        name: "many-connections",
        claim: "1000 connections come about, 128 at once, polled in turn",
        trial: Trial::Steps(&[Step { env: Env { timeout_s: 40, ..BOTH_RANKS }, run: many }]),
    },
];

fn handle(ctx: &mut Context<'_>) -> Result<StepResult> {
    let raw = ctx.raw()?;
    for fill in FILLS {
        let (code, bytes, comm) = raw.listen(0, fill);
        ensure!(code == 0 && comm != 0, "listen returns {code}");
        ensure!(bytes[128..].iter().all(|byte| *byte == fill), "listen writes past the 128 bytes of the handle");
        if let Some((at, address)) = first_pointer(&bytes[..128], fill, &maps::ranges()?) {
            let what = format!("the bytes of the handle from {at} on are {address:#x}, an address of this process");
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
    Ok(StepResult::passed(format!("three orders; the slowest call took {slowest:.1?} in the best of three rounds")))
}

fn one_order(transport: &Transport, connects: usize, accepts: usize, slowest: &mut Slowest) -> Result<()> {
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
    ensure!(sending.is_null() && receiving.is_null(), "a host transport has written a device handle");
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
    Ok(StepResult::passed(format!("{CALLS} calls of connect before the first accept: NULL and success")))
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
                std::io::Write::write_all(&mut &says, b"x").unwrap_or_default();
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
                let Some(comm) = self.comms[i].as_ref().filter(|_| winner != Some(i) && self.problems[i].is_none())
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
            let over = |loser: &usize| self.problems[*loser].is_some() || self.comms[*loser].is_none();
            Ok(loser.filter(over))
        })
        .ok();
        winner.map(|winner| (winner, self.problems[1 - winner].is_some()))
    }
}

fn two_senders(ctx: &mut Context<'_>) -> Result<StepResult> {
    let transport = ctx.transport()?;
    let (handle, mut listener) = transport.listen(0)?;
    let mut senders = TwoSenders { transport, handles: [handle; 2], comms: [None, None], problems: [None, None] };
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
    while start.elapsed() < Duration::from_millis(300) || senders.comms.iter().all(Option::is_none) {
        senders.advance();
        deadline.idle()?;
    }
    let memory = Arc::new(Buffer::new(8192)?);
    let into = recv.register(&memory)?;
    let receive = recv.receive(&into, 4096, 100, 1)?.ok_or_else(|| Error::Contract("no receive is taken".into()))?;
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
        _ => "goes on waiting".into(),
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
    let sample = setup::measure(ctx.worker, &transport, device, MANY.0, MANY.1)?;
    let total = sample.and_then(|sample| sample.values.get("total").copied()).unwrap_or(0.0);
    Ok(StepResult::passed(format!("{} connections, {} at once, in {:.1} s", MANY.0, MANY.1, total / 1e3)))
}
