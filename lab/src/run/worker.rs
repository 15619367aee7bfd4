//! What one process of a pair does with a [`Job`]: load, prove, run the tasks, report.

use std::time::Instant;

use crate::error::Result;
use crate::measure::byte_check::{self, Check};
use crate::measure::checked_stream::{self, Stream};
use crate::measure::conn::Bench;
use crate::measure::plan::{DEPTH, Job, LARGEST, Task};
use crate::measure::sample::{Key, Sample};
use crate::measure::{latency, setup, stream, verify};
use crate::nccl::debug_log;
use crate::nccl::library::Library;
use crate::pair::worker_ctx::WorkerCtx;
use crate::results::loaded::LoadedTransport;
use crate::run::worker_report::Report;
use crate::transport::fused;
use crate::transport::instance::Transport;
use crate::verbs::port_counters::PortCounters;

/// The hidden subcommand that makes a worker of this program.
pub(crate) const WORKER: &str = "worker";

/// The body of the hidden subcommand `worker`; the exit code.
pub(crate) fn main() -> i32 {
    WorkerCtx::main(WORKER, work)
}

fn work(worker: &mut WorkerCtx) -> Result<()> {
    let job: Job = worker.receive_job()?;
    worker.begin("loading the transport")?;
    let start = Instant::now();
    let library = Library::open(job.source_of(worker.rank()))?;
    let load_ms = start.elapsed().as_secs_f64() * 1e3;
    worker.begin(format!("in init of {}", library.identity().name))?;
    let transport = Transport::without_init(library);
    let start = Instant::now();
    transport.init()?;
    let init_ms = start.elapsed().as_secs_f64() * 1e3;
    let device = match job.fused {
        true => fused::device_of(&transport, worker.rank())?,
        false => transport.device_of(worker.rank(), job.devices[worker.rank()])?,
    };
    let devices = (0..transport.devices()?).map(|device| transport.properties(device)).collect::<Result<_>>()?;
    let loaded = LoadedTransport {
        identity: transport.identity().clone(),
        version: version_in_log(transport.name(), &debug_log::lines()),
        verbs: job.verbs.prove()?,
        cpu: worker.cpu(),
        devices,
        device,
        load_ms,
        init_ms,
    };
    let before = PortCounters::read(&loaded.devices[device]);
    worker.report(&Report::Loaded(Box::new(loaded.clone())))?;
    perform(worker, &transport, &loaded, &job)?;
    if let Some(traffic) = before.and_then(|before| before.until_now(&loaded.devices[device])) {
        worker.report(&Report::PortCounters(traffic))?;
    }
    worker.barrier()
}

fn perform(worker: &mut WorkerCtx, transport: &Transport, loaded: &LoadedTransport, job: &Job) -> Result<()> {
    let device = loaded.device;
    let mut benches: Vec<Bench> = Vec::new();
    for task in &job.tasks {
        worker.begin(task.words())?;
        match task {
            Task::Setup { connections, at_once } => {
                let sample = setup::measure(worker, transport, device, *connections, *at_once)?;
                report(worker, sample)?;
                continue;
            }
            Task::Renumber { connections, times } => {
                for _ in 0..*times {
                    setup::measure(worker, transport, device, *connections, *connections)?;
                }
                continue;
            }
            Task::Parallel { sizes } => {
                let checks = parallel(worker, transport, sizes)?;
                worker.report(&Report::Checks { checks })?;
                continue;
            }
            _ => {}
        }
        while benches.len() < job.streams.max(1) as usize {
            benches.push(Bench::open(worker, transport, device, memory_for(&job.tasks))?);
        }
        let bench = &benches[0];
        match task {
            Task::Setup { .. } | Task::Renumber { .. } | Task::Parallel { .. } => {}
            Task::Latency { bytes } => {
                let sample = latency::measure(worker, bench, *bytes, job.slice_ms)?;
                report(worker, sample)?;
            }
            Task::Stream { metric, bytes, direction } => {
                let key = Key { metric: *metric, bytes: *bytes as u64, direction: *direction, depth: DEPTH };
                let sample = stream::measure(worker, &benches, key, job.slice_ms)?;
                report(worker, sample)?;
            }
            Task::Verify { sizes } => {
                let groups = loaded.devices[device].max_receives.clamp(1, 8);
                let groups = worker.agree(groups as u64)? as usize;
                let checks = verify::all(worker, bench, sizes, groups)?;
                worker.report(&Report::Checks { checks })?;
            }
            Task::Long { bytes, messages } => {
                let checks = long(worker, bench, *bytes, *messages)?;
                worker.report(&Report::Checks { checks })?;
            }
        }
    }
    worker.begin("closing")?;
    benches.into_iter().try_for_each(Bench::close)
}

/// One connection each way on the first device and one on the second, used at once by this thread.
fn parallel(worker: &mut WorkerCtx, transport: &Transport, sizes: &[usize]) -> Result<Vec<Check>> {
    let mut benches = Vec::new();
    for device in 0..2 {
        let device = transport.device_of(worker.rank(), Some(device))?;
        benches.push(Bench::open(worker, transport, device, verify::memory_needed(sizes))?);
    }
    let mut checks = Vec::new();
    for (test, &bytes) in sizes.iter().enumerate() {
        worker.begin(format!("verifying two streams of {bytes} B at once"))?;
        let both: Vec<&Bench> = benches.iter().collect();
        checks.extend(checked_stream::run(worker, &both, Stream::usual("parallel", bytes), 500 + test as u64)?);
    }
    benches.into_iter().try_for_each(Bench::close)?;
    Ok(checks)
}

/// A long stream, in parts: between two of them this process shows that it is alive.
fn long(worker: &mut WorkerCtx, bench: &Bench, bytes: usize, messages: u64) -> Result<Vec<Check>> {
    const PART: u64 = 1000;
    let mut checks = Vec::new();
    let mut done = 0;
    while done < messages {
        worker.begin(format!("verifying messages from {done} on of {messages}"))?;
        let part = Stream { kind: "long", bytes, messages: PART.min(messages - done) };
        checks.extend(checked_stream::run(worker, &[bench], part, 1000 + done)?);
        done += part.messages;
    }
    Ok(byte_check::merged(&checks))
}

fn report(worker: &mut WorkerCtx, sample: Option<Sample>) -> Result<()> {
    sample.map_or(Ok(()), |sample| worker.report(&Report::Sample(sample)))
}

/// Bytes of each region that the largest of the tasks needs.
fn memory_for(tasks: &[Task]) -> usize {
    let need = |task: &Task| match task {
        Task::Setup { .. } | Task::Renumber { .. } | Task::Parallel { .. } => 0,
        Task::Latency { bytes } => 2 * bytes.next_multiple_of(4096),
        Task::Stream { bytes, .. } => DEPTH as usize * bytes.next_multiple_of(4096).max(4096),
        Task::Verify { sizes } => verify::memory_needed(sizes),
        Task::Long { bytes, .. } => verify::memory_needed(&[*bytes]),
    };
    tasks.iter().map(need).max().unwrap_or(LARGEST)
}

/// `0.1.0` of a log line that says `NAME 0.1.0` or `NAME v0.1.0` or `NAME version 0.1.0`.
fn version_in_log(name: &str, lines: &[String]) -> Option<String> {
    lines.iter().find_map(|line| {
        line.match_indices(name).find_map(|(at, _)| {
            let rest = line[at + name.len()..].trim_start();
            let rest = rest.strip_prefix("version ").unwrap_or(rest);
            let rest = rest.strip_prefix('v').unwrap_or(rest);
            let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || ".-+".contains(c)));
            let word = &rest[..end.unwrap_or(rest.len())];
            let numbered = word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.');
            numbered.then(|| word.trim_end_matches('.').to_owned())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_found_in_the_log() {
        let found = |line: &str| version_in_log("Ferrite", &["x".into(), line.into()]);
        assert_eq!(found("INFO NET/Ferrite : Ferrite 0.1.0 (abc)"), Some("0.1.0".into()));
        assert_eq!(found("INFO Ferrite v1.2.3-rc1, 2 devices"), Some("1.2.3-rc1".into()));
        assert_eq!(found("INFO Ferrite version 1.2."), Some("1.2".into()));
        assert_eq!(found("INFO Ferrite: 2 devices"), None);
        assert_eq!(found("INFO NET/IB 1.2.3"), None);
    }
}
