//! One of the two processes of a run: connects, streams, says how it ended.

use std::net::TcpListener;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use crate::check::relay;
use crate::check::relay::Relay;
use crate::error::{Error, Result};
use crate::measure::plan;
use crate::measure::plan::seed;
use crate::measure::stream::TAG;
use crate::nccl::library::Source;
use crate::nccl::release;
use crate::outlast::report::{End, EndAt, Received, Report};
use crate::outlast::scenario::{BUFFERS, DEPTH, LineFault, OutlastJob, StreamPlan};
use crate::pair::worker_ctx::WorkerCtx;
use crate::system::output;
use crate::transport::buffer::Buffer;
use crate::transport::comm::{RecvComm, Region, Request, SendComm};
use crate::transport::instance;
use crate::transport::instance::Transport;
use crate::transport::listener::{Handle, Listener};

/// The hidden subcommand that makes such a process.
pub(crate) const WORKER: &str = "outlast-worker";

/// How often the receiver tells how far it is.
const TELLING: Duration = Duration::from_millis(100);

/// The line that separates what the transport printed while it streamed from what it printed
/// afterwards.
pub(super) const STREAM_ENDED: &str = "ferrite: the stream has ended here";

/// The body of the hidden subcommand; the exit code.
pub(crate) fn main() -> i32 {
    WorkerCtx::main(WORKER, work)
}

fn work(worker: &mut WorkerCtx) -> Result<()> {
    let job: OutlastJob = worker.receive_job()?;
    worker.begin("loading the transport")?;
    let transport = Transport::open(&job.source)?;
    let device = match job.is_fused {
        true => instance::device_of(&transport, worker.rank())?,
        false => transport.device_of(worker.rank(), None)?,
    };
    job.verbs.prove()?;
    let identity = transport.identity();
    let started = Report::Started {
        // Of a plugin that NCCL's loader has taken, NCCL's version says nothing.
        transport: match identity
            .nccl_version
            .filter(|_| matches!(job.source, Source::Stock { .. }))
        {
            Some(version) => format!("{} {}", identity.name, release::version_text(version)),
            None => identity.name.clone(),
        },
        device: transport.properties(device)?.name,
    };
    worker.begin("connecting")?;
    if worker.rank() == 0 {
        send(worker, &transport, device, &job, &started)
    } else {
        receive(worker, &transport, device, &job, &started)
    }
}

fn send(
    worker: &mut WorkerCtx,
    transport: &Transport,
    device: usize,
    job: &OutlastJob,
    started: &Report,
) -> Result<()> {
    let mut handle = Handle([0; _]);
    let theirs = worker.receive_bytes(size_of::<Handle>())?;
    handle.0.copy_from_slice(&theirs);
    let mut deadline = worker.deadline("connecting");
    let comm = loop {
        match transport.connect(device, &mut handle)? {
            Some(comm) => break comm,
            None => deadline.idle()?,
        }
    };
    let region = comm.register(&Arc::new(worker.buffer(memory_needed(job.stream.bytes))?))?;
    worker.barrier()?;
    worker.report(started)?;
    worker.begin("sending")?;
    let mut pace = Pace::start(job.stream.limit_ms);
    let outcome = run_sender(&comm, &region, &job.stream, &mut pace);
    let end = end_of(outcome, pace.now_ms())?;
    report_end(worker, end.clone(), None)?;
    close(worker, &end, (comm, region), SendComm::close)
}

fn receive(
    worker: &mut WorkerCtx,
    transport: &Transport,
    device: usize,
    job: &OutlastJob,
    started: &Report,
) -> Result<()> {
    let (handle, mut listener, relay) = if job.line_faults.is_empty() {
        let (handle, listener) = transport.listen(device)?;
        (handle, listener, None)
    } else {
        let (handle, listener, relay) =
            ControlRelay::listen(transport, device, job.line_faults.clone())?;
        (handle, listener, Some(relay))
    };
    worker.send_bytes(&handle.0)?;
    let mut deadline = worker.deadline("accepting");
    let comm = loop {
        match listener.accept()? {
            Some(comm) => break comm,
            None => deadline.idle()?,
        }
    };
    listener.close()?;
    let region =
        comm.register(&Arc::new(worker.buffer(RecvBuffers::memory_needed(job.stream.bytes))?))?;
    let mut buffers = RecvBuffers::new(region.memory(), job.stream.bytes)?;
    worker.barrier()?;
    worker.report(started)?;
    worker.begin("receiving")?;
    let mut pace = Pace::start(job.stream.limit_ms);
    relay.iter().for_each(ControlRelay::start);
    let (mut received, mut told) = (Received::default(), Instant::now());
    let mut tell = |so_far: &Received| {
        if told.elapsed() < TELLING {
            return Ok(());
        }
        told = Instant::now();
        worker.report(&Report::Progress(so_far.clone()))
    };
    let outcome = run_receiver(
        &comm, &region, &mut buffers, &job.stream, &mut pace, &mut received, &mut tell,
    );
    let end = end_of(outcome, pace.now_ms())?;
    // Late writes may still be under way.
    std::thread::sleep(Duration::from_millis(job.stream.settle_ms));
    buffers.look_at_all(&mut received)?;
    report_end(worker, end.clone(), Some(received))?;
    close(worker, &end, (comm, region), RecvComm::close)
}

/// How this end came out of it; an error if the run itself is not valid.
fn end_of(outcome: Result<()>, now_ms: f64) -> Result<EndAt> {
    let end = match outcome {
        Ok(()) => End::Finished,
        // The parent knows the transport's words.
        Err(Error::Call { call, code, .. }) => {
            End::Error { call: call.into(), code, text: String::new() }
        }
        Err(Error::Stalled { what, .. }) => End::Hang { text: what },
        Err(other) => return Err(other),
    };
    Ok(EndAt { end, at_ms: now_ms as u64 })
}

fn report_end(worker: &mut WorkerCtx, end: EndAt, received: Option<Received>) -> Result<()> {
    output::write_stderr(format_args!("{STREAM_ENDED}"));
    worker.report(&Report::Ended { end, received })
}

/// Closes the connection: at once after a failure, as a program does that gives up; else when both
/// ends have come to their end, which the parent tells.
fn close<C>(
    worker: &mut WorkerCtx,
    end: &EndAt,
    (comm, region): (C, Region),
    close: impl FnOnce(C) -> Result<()>,
) -> Result<()> {
    if end.end == End::Finished {
        worker.begin("waiting for the other end")?;
        let () = worker.receive_job()?;
        worker.begin("closing")?;
        drop(region);
        return close(comm);
    }
    worker.begin("closing after a failure")?;
    drop(region);
    // What closing says after a failure is no part of how the stream ended.
    if let Err(problem) = close(comm) {
        log::debug!("closing: {problem}");
    }
    worker.begin("waiting for the other end")?;
    worker.receive_job()
}

/// What a source buffer holds while no message is in it: a device that reads it then sends wrong
/// bytes.
const USED: u8 = 0x5c;

/// Bytes of memory that the messages are sent from.
pub(super) fn memory_needed(bytes: usize) -> usize {
    DEPTH * stride(bytes)
}

fn stride(bytes: usize) -> usize {
    bytes.next_multiple_of(4096).max(4096)
}

/// Sends all messages in order, with up to [`DEPTH`] in flight.
///
/// # Errors
/// Those of the transport; [`Error::Stalled`] past the limit.
pub(super) fn run_sender(
    comm: &SendComm,
    region: &Region,
    plan: &StreamPlan,
    pace: &mut Pace,
) -> Result<()> {
    let mut requests: [Option<Request<'_>>; DEPTH] = [const { None }; DEPTH];
    let (mut prepared, mut posted, mut done) = (0_u64, 0_u64, 0_u64);
    let place = |index: u64| (index % DEPTH as u64) as usize * stride(plan.bytes);
    while done < plan.messages {
        let mut moved = false;
        if posted < plan.messages
            && posted - done < DEPTH as u64
            && pace.is_past(posted * plan.period_us)
        {
            if prepared == posted {
                plan::fill(region.memory(), place(posted), plan.bytes, message_seed(posted))?;
                prepared += 1;
            }
            if let Some(request) = comm.send(region, place(posted), plan.bytes, TAG)? {
                requests[(posted % DEPTH as u64) as usize] = Some(request);
                posted += 1;
                moved = true;
            }
        }
        let oldest = &mut requests[(done % DEPTH as u64) as usize];
        if let Some(request) = oldest
            && request.test(&mut [0])?
        {
            *oldest = None;
            region.memory().set(place(done), plan.bytes, USED)?;
            done += 1;
            moved = true;
        }
        if moved
            || posted == done && posted < plan.messages && !pace.is_past(posted * plan.period_us)
        {
            pace.progress();
        }
        if !moved && pace.idle() {
            let what =
                if posted == done { "a receive of the peer" } else { "the completion of a send" };
            return Err(Error::Stalled {
                what: format!("message {done}: {what}"),
                after: pace.limit(),
            });
        }
    }
    Ok(())
}

/// Receives all messages in order and compares each, with [`DEPTH`] receives posted. `tell` hears
/// of each message.
///
/// # Errors
/// Those of the transport and of `tell`; [`Error::Stalled`] past the limit.
pub(super) fn run_receiver(
    comm: &RecvComm,
    region: &Region,
    buffers: &mut RecvBuffers<'_>,
    plan: &StreamPlan,
    pace: &mut Pace,
    received: &mut Received,
    tell: &mut impl FnMut(&Received) -> Result<()>,
) -> Result<()> {
    let mut requests: [Option<Request<'_>>; DEPTH] = [const { None }; DEPTH];
    let (mut posted, mut done, mut pause) = (0_u64, 0_u64, plan.pause);
    while done < plan.messages {
        let mut moved = false;
        if posted < plan.messages && posted - done < DEPTH as u64 {
            buffers.before_post(posted, received)?;
            if let Some(request) = comm.receive(region, buffers.place(posted), plan.bytes, TAG)? {
                requests[(posted % DEPTH as u64) as usize] = Some(request);
                posted += 1;
                moved = true;
            }
        }
        let oldest = &mut requests[(done % DEPTH as u64) as usize];
        let mut size = [-1];
        if let Some(request) = oldest
            && request.test(&mut size)?
        {
            *oldest = None;
            count(received, pace.now_ms());
            buffers.arrived(done, size[0], received)?;
            done += 1;
            moved = true;
            tell(received)?;
        }
        if moved {
            pace.progress();
            continue;
        }
        if let Some((_, time)) =
            pause.take_if(|(message, _)| done == *message && posted - done == DEPTH as u64)
        {
            std::thread::sleep(Duration::from_millis(time));
        }
        if pace.idle() {
            return Err(Error::Stalled { what: format!("message {done}"), after: pace.limit() });
        }
    }
    Ok(())
}

/// One more message is complete.
fn count(received: &mut Received, now_ms: f64) {
    let gap = now_ms - received.last_ms;
    if received.messages > 0 && gap > received.longest_gap_ms {
        received.longest_gap_ms = gap;
        received.gap_at_ms = received.last_ms;
    }
    received.messages += 1;
    received.last_ms = now_ms;
}

// The receive buffers: every byte is looked at when a message arrives, and again before its buffer
// is used next.
//
// When a message has arrived and was compared, its buffer is filled with a guard pattern of its
// own. No write may land there until the next receive is posted for it: a byte that differs by then
// was written late.

/// Bytes after each message where nothing may be written.
const TAIL: usize = 4096;
/// What they hold.
const UNTOUCHED: u8 = 0xee;
/// Seeds of messages and of guards are of different tests.
const MESSAGES: u64 = 1;
const GUARDS: u64 = 2;
/// Notes that are kept.
const NOTES: usize = 8;

/// The seed of message `index`.
pub(super) fn message_seed(index: u64) -> u64 {
    seed(MESSAGES, 0, index)
}

/// The receive buffers of a stream.
#[derive(Debug)]
pub(super) struct RecvBuffers<'r> {
    memory: &'r Buffer,
    bytes: usize,
    /// How often each buffer has been filled with a guard.
    uses: [u64; BUFFERS],
    /// Buffers that no receive is posted for.
    is_guarded: [bool; BUFFERS],
}

impl<'r> RecvBuffers<'r> {
    /// Bytes of memory for messages of `bytes`.
    pub(super) fn memory_needed(bytes: usize) -> usize {
        BUFFERS * Self::stride(bytes)
    }

    fn stride(bytes: usize) -> usize {
        bytes.next_multiple_of(4096) + TAIL
    }

    /// All of them guarded.
    pub(super) fn new(memory: &'r Buffer, bytes: usize) -> Result<Self> {
        let mut buffers = Self { memory, bytes, uses: [0; BUFFERS], is_guarded: [false; BUFFERS] };
        for buffer in 0..BUFFERS {
            memory.set(buffer * Self::stride(bytes), Self::stride(bytes), UNTOUCHED)?;
            buffers.guard(buffer)?;
        }
        Ok(buffers)
    }

    /// Where message `index` goes.
    pub(super) fn place(&self, index: u64) -> usize {
        Self::buffer(index) * Self::stride(self.bytes)
    }

    fn buffer(index: u64) -> usize {
        (index % BUFFERS as u64) as usize
    }

    fn guard_seed(&self, buffer: usize) -> u64 {
        seed(GUARDS, buffer % 2, self.uses[buffer] * BUFFERS as u64 + buffer as u64)
    }

    fn guard(&mut self, buffer: usize) -> Result<()> {
        self.uses[buffer] += 1;
        self.is_guarded[buffer] = true;
        let place = buffer * Self::stride(self.bytes);
        plan::fill(self.memory, place, self.bytes, self.guard_seed(buffer))
    }

    /// A receive for message `index` is about to be posted: its buffer is looked at, once.
    pub(super) fn before_post(&mut self, index: u64, received: &mut Received) -> Result<()> {
        self.look_again(
            Self::buffer(index),
            &format!("before message {index} was posted"),
            received,
        )
    }

    /// All buffers that no receive is posted for are looked at.
    pub(super) fn look_at_all(&mut self, received: &mut Received) -> Result<()> {
        (0..BUFFERS).try_for_each(|buffer| self.look_again(buffer, "at the end", received))
    }

    fn look_again(&mut self, buffer: usize, when: &str, received: &mut Received) -> Result<()> {
        if !std::mem::take(&mut self.is_guarded[buffer]) {
            return Ok(());
        }
        let (memory, place) = (self.memory, buffer * Self::stride(self.bytes));
        let guard = self.guard_seed(buffer);
        let wrong =
            plan::wrong_bytes(memory, place, self.bytes, guard)? + self.wrong_tail(place)?;
        if wrong > 0 {
            received.wrong_later += wrong;
            let found = plan::check(memory, place, self.bytes, guard)?
                .map_or(0, |difference| difference.offset);
            let what = self.contents(place + found, found, received.messages)?;
            note(
                received,
                format!(
                    "buffer {buffer}, {when}: {wrong} B changed after its message was complete{what}"
                ),
            );
        }
        Ok(())
    }

    /// Message `index` is complete, with `size` bytes.
    pub(super) fn arrived(&mut self, index: u64, size: i32, received: &mut Received) -> Result<()> {
        let (memory, place) = (self.memory, self.place(index));
        if size as usize != self.bytes {
            received.wrong_sizes += 1;
            note(received, format!("message {index} came with {size} B, not {}", self.bytes));
        }
        let expected = message_seed(index);
        let in_message = plan::wrong_bytes(memory, place, self.bytes, expected)?;
        if in_message > 0 {
            let found = plan::check(memory, place, self.bytes, expected)?
                .map_or(0, |difference| difference.offset);
            let what = self.contents(place + found, found, index)?;
            note(
                received,
                format!(
                    "message {index}: {in_message} of {} B wrong, from byte {found} on{what}",
                    self.bytes
                ),
            );
        }
        let beside = self.wrong_tail(place)?;
        if beside > 0 {
            note(received, format!("message {index}: {beside} B written past its end"));
        }
        received.wrong_on_arrival += in_message + beside;
        self.guard(Self::buffer(index))
    }

    /// Wrong bytes after the message at `place`, which are put right.
    fn wrong_tail(&self, place: usize) -> Result<u64> {
        let (start, len) = (place + self.bytes, Self::stride(self.bytes) - self.bytes);
        let memory = self.memory;
        if plan::untouched(memory, start, len, UNTOUCHED)?.is_none() {
            return Ok(0);
        }
        let wrong = memory.read(start, len)?.iter().filter(|byte| **byte != UNTOUCHED).count();
        memory.set(start, len, UNTOUCHED)?;
        Ok(wrong as u64)
    }

    /// Which message or guard the word at `place` is of, in words; `offset`: where in a message
    /// that is.
    fn contents(&self, place: usize, offset: usize, near: u64) -> Result<String> {
        let word = offset - offset % 8;
        let Ok(bytes) = self.memory.read(place - offset % 8, 8) else { return Ok(String::new()) };
        let index = (word / 8) as u64;
        let is = |seed: u64| plan::word(seed, index).to_le_bytes()[..] == bytes[..];
        let messages = near.saturating_sub(8 * BUFFERS as u64)..near + 2 * BUFFERS as u64;
        if let Some(other) = messages.into_iter().find(|message| is(message_seed(*message))) {
            return Ok(format!(" (there are bytes of message {other})"));
        }
        let buffer = place / Self::stride(self.bytes);
        if is(self.guard_seed(buffer)) {
            return Ok(" (nothing was written there)".into());
        }
        Ok(String::new())
    }
}

fn note(received: &mut Received, text: String) {
    if received.notes.len() < NOTES {
        received.notes.push(text);
    }
}

/// Calls that find nothing before the process sleeps for a moment, so that both processes make
/// progress where they share processors.
const POLLS: u32 = 64;
const NAP: Duration = Duration::from_micros(50);
/// From one look to the next no more than this counts as waiting: in the rest this process was
/// stopped, or the whole machine, and the other end may have been as well.
const LONGEST_LOOK: Duration = Duration::from_secs(1);

/// The clock of one end.
#[derive(Debug)]
pub(super) struct Pace {
    start: Instant,
    /// Since the last progress.
    waited: Duration,
    looked: Instant,
    limit: Duration,
    polls: u32,
}

impl Pace {
    /// The stream begins now; an end without progress for `limit_ms` counts as hung.
    pub(super) fn start(limit_ms: u64) -> Self {
        let start = Instant::now();
        Self {
            start,
            waited: Duration::ZERO,
            looked: start,
            limit: Duration::from_millis(limit_ms),
            polls: 0,
        }
    }

    /// How long an end may be without progress.
    pub(super) fn limit(&self) -> Duration {
        self.limit
    }

    /// Since the start; ms.
    pub(super) fn now_ms(&self) -> f64 {
        self.start.elapsed().as_secs_f64() * 1e3
    }

    /// Whether so many microseconds have passed since the start.
    pub(super) fn is_past(&self, microseconds: u64) -> bool {
        self.start.elapsed() >= Duration::from_micros(microseconds)
    }

    /// Something was found.
    pub(super) fn progress(&mut self) {
        (self.waited, self.looked) = (Duration::ZERO, Instant::now());
        self.polls = 0;
    }

    /// Nothing was found: waits a moment; true past the limit.
    pub(super) fn idle(&mut self) -> bool {
        self.polls = self.polls.saturating_add(1);
        let is_napping = self.polls >= POLLS;
        if is_napping {
            std::thread::sleep(NAP);
        } else {
            std::thread::yield_now();
        }
        let now = Instant::now();
        self.waited += now.saturating_duration_since(self.looked).min(LONGEST_LOOK);
        self.looked = now;
        is_napping && self.waited > self.limit
    }
}

/// The relay's thread ends with the process.
#[derive(Debug)]
struct ControlRelay {
    start: Arc<OnceLock<Instant>>,
}

impl ControlRelay {
    /// A listener of the transport on `device`, and a handle that leads to it through a relay.
    ///
    /// # Errors
    /// Those of `listen`; [`Error::Unreadable`] if the transport's listener is not found in its
    /// handle.
    fn listen(
        transport: &Transport,
        device: usize,
        faults: Vec<(u64, LineFault)>,
    ) -> Result<(Handle, Listener, Self)> {
        let (handle, listener, behind) = relay::listen(transport, device)?;
        let (socket, port) = behind.listen_instead()?;
        let start = Arc::new(OnceLock::new());
        let theirs = start.clone();
        std::thread::spawn(move || pass_all(&socket, behind.port, &theirs, faults));
        Ok((behind.with_port(&handle, port), listener, Self { start }))
    }

    /// The stream begins: times count from now.
    fn start(&self) {
        self.start.get_or_init(Instant::now);
    }
}

fn pass_all(
    socket: &TcpListener,
    port: u16,
    start: &OnceLock<Instant>,
    mut faults: Vec<(u64, LineFault)>,
) {
    let mut lines: Vec<Relay> = Vec::new();
    loop {
        let now = start.get().map_or(Duration::ZERO, Instant::elapsed);
        if let Some(&(at, fault)) = faults.first()
            && start.get().is_some()
            && now >= Duration::from_millis(at)
        {
            faults.remove(0);
            match fault {
                LineFault::Cut => lines.drain(..).for_each(Relay::reset),
                LineFault::Silent(time) => std::thread::sleep(Duration::from_millis(time)),
            }
        }
        if let Some(caller) = relay::accept_one(socket)
            && let Ok(line) = Relay::new(caller, port, None)
        {
            lines.push(line);
        }
        lines.retain_mut(Relay::pass);
        if lines.is_empty() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_lies_between_two_messages() {
        let mut received = Received::default();
        for now in [500.0, 502.0, 540.0, 545.0] {
            count(&mut received, now);
        }
        assert_eq!((received.longest_gap_ms, received.gap_at_ms), (38.0, 502.0));
        assert_eq!((received.messages, received.last_ms), (4, 545.0));
    }

    const BYTES: usize = 100;

    /// Three messages have arrived right; what was written afterwards is in the result.
    fn after(write: impl FnOnce(&Buffer, &RecvBuffers<'_>)) -> Received {
        let memory = Buffer::new(RecvBuffers::memory_needed(BYTES)).expect("memory");
        let (mut buffers, mut received) =
            (RecvBuffers::new(&memory, BYTES).expect("inside"), Received::default());
        for index in 0..3 {
            buffers.before_post(index, &mut received).expect("inside");
            plan::fill(&memory, buffers.place(index), BYTES, message_seed(index)).expect("inside");
            buffers.arrived(index, BYTES as i32, &mut received).expect("inside");
        }
        assert_eq!(received, Received::default());
        write(&memory, &buffers);
        buffers.look_at_all(&mut received).expect("inside");
        received
    }

    #[test]
    fn a_late_write_is_seen_with_the_message_it_is_of() {
        assert_eq!(after(|_, _| {}), Received::default());
        let received = after(|memory, buffers| {
            plan::fill(memory, buffers.place(2), BYTES, message_seed(2)).expect("inside");
        });
        assert!(received.wrong_later > 90 && received.wrong_later <= 100, "{received:?}");
        assert!(received.notes[0].ends_with(" (there are bytes of message 2)"), "{received:?}");
        // Two bytes past the end, and one of a buffer that has not had a message yet.
        let received = after(|memory, buffers| {
            memory.write(buffers.place(1) + BYTES, b"xy").expect("inside");
            memory.write(buffers.place(19), b"\x00").expect("inside");
        });
        assert_eq!(received.wrong_later, 3, "{received:?}");
    }

    #[test]
    fn a_message_that_was_not_written_is_told_apart_from_another_message() {
        let memory = Buffer::new(RecvBuffers::memory_needed(BYTES)).expect("memory");
        let (mut buffers, mut received) =
            (RecvBuffers::new(&memory, BYTES).expect("inside"), Received::default());
        buffers.before_post(0, &mut received).expect("inside");
        buffers.arrived(0, BYTES as i32, &mut received).expect("inside");
        buffers.before_post(1, &mut received).expect("inside");
        plan::fill(&memory, buffers.place(1), BYTES, message_seed(4)).expect("inside");
        buffers.arrived(1, 99, &mut received).expect("inside");
        assert!(received.notes[0].ends_with(" (nothing was written there)"), "{received:?}");
        assert_eq!(received.notes[1], "message 1 came with 99 B, not 100");
        assert!(received.notes[2].ends_with(" (there are bytes of message 4)"), "{received:?}");
        assert_eq!((received.wrong_sizes, received.wrong_later), (1, 0));
    }

    /// Looks, and finds nothing, so long after the last time.
    fn look_after(pace: &mut Pace, time: Duration) -> bool {
        pace.looked = pace.looked.checked_sub(time).expect("the machine has been up for longer");
        pace.idle()
    }

    #[test]
    fn the_time_in_which_a_process_was_stopped_is_not_waited() {
        let mut pace = Pace { polls: POLLS, ..Pace::start(5000) };
        assert!(!look_after(&mut pace, Duration::from_secs(20)), "it was stopped for as long");
        assert!(pace.waited >= LONGEST_LOOK);
        assert!(
            (0..30).any(|_| look_after(&mut pace, Duration::from_millis(900))),
            "it has looked again and again"
        );
        pace.progress();
        assert_eq!((pace.waited, pace.polls), (Duration::ZERO, 0));
    }
}
