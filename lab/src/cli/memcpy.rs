//! The arguments of `ferrite memcpy`, and its table.

use std::time::Duration;

use clap::Args;

use crate::cli::device_args::DeviceArgs;
use crate::cli::exit::Exit;
use crate::cli::size::parse_size;
use crate::cli::source_args::SourceArgs;
use crate::error::{Error, Result};
use crate::measure::copy::BETWEEN;
use crate::measure::direction::Direction;
use crate::measure::estimate;
use crate::measure::metric::Metric;
use crate::measure::plan::{DEPTH, Job, Task};
use crate::measure::sample::{Sample, size_text};
use crate::run::progress::Progress;
use crate::run::session::{Runner, Session};
use crate::system::output;

/// The size whose cost per message is stated.
const SMALL: usize = 8;

#[derive(Debug, Args)]
#[command(after_help = "\
A transport on the software device moves bytes by copying them. Each repetition is a fresh pair of processes that takes \
the sizes in turn: a stream of messages from rank 0 to rank 1, 8 in flight, then plain memcpy by rank 0 over the same \
number of buffers of the same size, then the kernel's copy from process to process (process_vm_writev), which the \
device itself uses. The ratios are made within each repetition; [..] is an interval of order statistics over \
the repetitions.\n\n\
Exit code 0: measured, and the data right; 1: a byte is wrong; 2: it could not be measured; 130: interrupted.")]
pub(super) struct Memcpy {
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    devices: DeviceArgs,
    /// Message sizes
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = parse_size, default_value = "64K,256K,1M,4M")]
    sizes: Vec<usize>,
    /// Repetitions; six or more give intervals of 95 % and above
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u16).range(1..=1000))]
    reps: u16,
    /// Time of each measurement; ms
    #[arg(long, value_name = "MS", default_value_t = 125, value_parser = clap::value_parser!(u64).range(1..=60_000))]
    slice: u64,
    /// A worker that is silent for so long counts as hung; s
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=3600))]
    timeout: u64,
    /// Let the workers run on any CPU instead of one each
    #[arg(long)]
    no_pin: bool,
}

impl Memcpy {
    pub(super) fn run(self) -> Result<Exit> {
        let runner = Runner::of_this_program(Duration::from_secs(self.timeout), !self.no_pin)?;
        let mut job = Job {
            devices: self.devices.devices(),
            verbs: self.devices.verbs()?,
            source: self.source.source()?,
            peer: None,
            fused: false,
            slice_ms: self.slice,
            variables: Vec::new(),
            streams: 1,
            tasks: vec![Task::Verify { sizes: self.sizes.clone() }],
        };
        job.verbs.clean_stale();
        let measuring = tasks(&self.sizes);
        let mut progress = Progress::new(u64::from(self.reps) * measuring.len() as u64);
        let first = runner.run(&job, &mut |_| {})?;
        if let Some(check) = first.checks.iter().find(|check| check.wrong != 0) {
            let fault = check.fault.clone().unwrap_or_default();
            return Err(Error::Data(format!(
                "{} of {} messages of {} B were wrong: {fault}",
                check.wrong, check.messages, check.bytes
            )));
        }
        job.tasks = measuring;
        let mut sessions = Vec::new();
        for repetition in 1..=self.reps {
            progress.phase(format!("repetition {repetition}"));
            sessions.push(runner.run(&job, &mut |what| progress.step(what))?);
        }
        progress.finish();
        output::write_stdout(&table(&sessions, &self.sizes))?;
        Ok(Exit::Good)
    }
}

/// What one pair measures.
fn tasks(sizes: &[usize]) -> Vec<Task> {
    let stream = |metric, bytes| Task::Stream { metric, bytes, direction: Direction::Forward };
    let mut tasks = vec![stream(Metric::MessageRate, SMALL), Task::Latency { bytes: SMALL }];
    for &bytes in sizes {
        tasks.extend([stream(Metric::Bandwidth, bytes), Task::Copy { bytes }]);
    }
    tasks
}

/// The headline of `metric` at `bytes` in each session.
fn values(sessions: &[Session], metric: Metric, bytes: usize) -> Vec<f64> {
    named(sessions, metric, bytes, metric.info().headline)
}

fn named(sessions: &[Session], metric: Metric, bytes: usize, name: &str) -> Vec<f64> {
    let is_it = |sample: &&Sample| sample.key.metric == metric && sample.key.bytes == bytes as u64;
    sessions.iter().filter_map(|session| session.samples.iter().find(is_it)?.values.get(name).copied()).collect()
}

fn row(size: &str, cells: &[String; 5]) -> String {
    let [ours, plain, ratio, between, share] = cells;
    format!("{size:>5} {ours:>21} {plain:>23} {ratio:>19} {between:>23} {share:>19}\n")
}

fn table(sessions: &[Session], sizes: &[usize]) -> String {
    let heads = ["transport [GB/s]", "memcpy [GB/s]", "ratio", "kernel's copy [GB/s]", "ratio"];
    let mut text = row("size", &heads.map(String::from));
    for &bytes in sizes {
        let ours = values(sessions, Metric::Bandwidth, bytes);
        let [plain, between] = ["typ", BETWEEN].map(|name| named(sessions, Metric::Copy, bytes, name));
        let ratio = |to: &[f64]| spread(&ours.iter().zip(to).map(|(ours, to)| ours / to).collect::<Vec<_>>(), 2);
        let cells = [spread(&ours, 2), spread(&plain, 2), ratio(&plain), spread(&between, 2), ratio(&between)];
        text += &row(&size_text(bytes as u64), &cells);
    }
    let rates = values(sessions, Metric::MessageRate, SMALL);
    let each: Vec<f64> = rates.iter().map(|mega| 1.0 / mega).collect();
    let latency = values(sessions, Metric::Latency, SMALL);
    text += &format!("{SMALL} B, {DEPTH} in flight: {} us a message\n", spread(&each, 3));
    text += &format!("{SMALL} B, ping-pong: {} us one way\n", spread(&latency, 3));
    let coverage = estimate::estimate(&latency).map_or(0.0, |estimate| estimate.coverage * 100.0);
    text + &format!("medians of {} repetitions, with intervals of {coverage:.0} %; GB is 10^9 bytes\n", sessions.len())
}

/// The median and its interval.
fn spread(values: &[f64], digits: usize) -> String {
    estimate::estimate(values).map_or_else(String::new, |found| {
        format!("{:.digits$} [{:.digits$}, {:.digits$}]", found.median, found.low, found.high)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_stream_is_followed_by_plain_copies_of_its_size() {
        let tasks = tasks(&[65536, 4 << 20]);
        let copies = tasks.iter().enumerate().filter(|(_, task)| matches!(task, Task::Copy { .. }));
        for (at, task) in copies {
            let Task::Copy { bytes } = task else { continue };
            let before = Task::Stream { metric: Metric::Bandwidth, bytes: *bytes, direction: Direction::Forward };
            assert_eq!(tasks[at - 1], before);
        }
        assert_eq!(tasks.len(), 6);
    }

    #[test]
    fn a_spread_shows_median_and_ends() {
        assert_eq!(spread(&[1.0, 3.0, 2.0], 1), "2.0 [1.0, 3.0]");
    }
}
