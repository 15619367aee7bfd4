//! One of the two processes of a run: connects, streams, says how it ended.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Result};
use crate::nccl::library::Source;
use crate::nccl::release;
use crate::outlast::buffers::RecvBuffers;
use crate::outlast::control_relay::ControlRelay;
use crate::outlast::outcome::{End, EndAt, Received, Report};
use crate::outlast::pace::Pace;
use crate::outlast::plan::OutlastJob;
use crate::outlast::{receiver, sender};
use crate::pair::worker_ctx::WorkerCtx;
use crate::system::output;
use crate::transport::comm::{RecvComm, Region, SendComm};
use crate::transport::fused;
use crate::transport::instance::Transport;
use crate::transport::listener::Handle;

/// The hidden subcommand that makes such a process.
pub(crate) const WORKER: &str = "outlast-worker";

/// How often the receiver tells how far it is.
const TELLING: Duration = Duration::from_millis(100);

/// The line that separates what the transport printed while it streamed from what it printed afterwards.
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
        true => fused::device_of(&transport, worker.rank())?,
        false => transport.device_of(worker.rank(), job.devices[worker.rank()])?,
    };
    job.verbs.prove()?;
    let identity = transport.identity();
    let started = Report::Started {
        // Of a plugin that NCCL's loader has taken, NCCL's version says nothing.
        transport: match identity.nccl_version.filter(|_| matches!(job.source, Source::Stock { .. })) {
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
    let region = comm.register(&Arc::new(worker.buffer(sender::memory_needed(job.stream.bytes))?))?;
    worker.barrier()?;
    worker.report(started)?;
    worker.begin("sending")?;
    let mut pace = Pace::start(job.stream.limit_ms);
    let outcome = sender::run(&comm, &region, &job.stream, &mut pace);
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
        let (handle, listener, relay) = ControlRelay::listen(transport, device, job.line_faults.clone())?;
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
    let region = comm.register(&Arc::new(worker.buffer(RecvBuffers::memory_needed(job.stream.bytes))?))?;
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
    let outcome = receiver::run(&comm, &region, &mut buffers, &job.stream, &mut pace, &mut received, &mut tell);
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
        Err(Error::Call { call, code, .. }) => End::Error { call: call.into(), code, text: String::new() },
        Err(Error::Stalled { what, .. }) => End::Hang { text: what },
        Err(other) => return Err(other),
    };
    Ok(EndAt { end, at_ms: now_ms as u64 })
}

fn report_end(worker: &mut WorkerCtx, end: EndAt, received: Option<Received>) -> Result<()> {
    output::write_stderr(format_args!("{STREAM_ENDED}"));
    worker.report(&Report::Ended { end, received })
}

/// Closes the connection: at once after a failure, as a program does that gives up; else when both ends have come to their end,
/// which the parent tells.
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
