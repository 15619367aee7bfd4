//! The arguments of `ferrite trace`, and how long it looks.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;

use crate::trace;
use crate::trace::{Recording, Timeline};
use lab::cli::exit::Exit;
use lab::error::{Error, Result};
use lab::system::output;

#[derive(Debug, Args)]
#[command(after_help = "\
Collects the messages that the plugin times, one in FERRITE_SAMPLE of each connection, from the statistics files of this \
machine's processes (docs/slow.md). It changes nothing. Open the output at https://ui.perfetto.dev.\n\n\
With --seconds 0, and for a process that was killed, it has the last 25 messages of each end. If other processes run, it leaves \
out those that ended before the command began, unless you give their PID or --seconds 0. For several machines, copy \
/dev/shm/ferrite-stats.* of each into a folder of its own, and give each with --folder.\n\n\
Exit code 0: written; 2: a folder cannot be read, or the output cannot be written; 3: no message was timed; 130: interrupted, \
and what was collected is written.")]
pub(super) struct Trace {
    /// Only these processes [default: all]
    #[arg(value_name = "PID")]
    pids: Vec<u64>,
    /// Seconds to collect; 0: only what the files hold
    #[arg(long, value_name = "S", default_value_t = 5.0, value_parser = parse_seconds)]
    seconds: f64,
    /// End after N messages, which bounds the memory. A message counts at each of its two ends
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    most: u32,
    /// File to write; an existing one is replaced [default: ferrite-trace.json, or the next free
    /// name (ferrite-trace.2.json)]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// List the N slowest messages
    #[arg(long, value_name = "N", default_value_t = 20)]
    slowest: usize,
    /// Folder of the statistics files; can be given several times
    #[arg(long, value_name = "FOLDER", env = "FERRITE_STATS_DIR", default_value = "/dev/shm")]
    folder: Vec<PathBuf>,
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=3600.0).contains(seconds));
    seconds.ok_or_else(|| "0 to 3600 seconds are possible".into())
}

impl Trace {
    pub(super) fn run(self) -> Result<Exit> {
        let output = self.output.clone().unwrap_or_else(free_name);
        output::require_writable(&output)?;
        let start = monotonic();
        let (recording, is_interrupted) = self.record()?;
        for (path, why) in &recording.unused {
            output::write_stderr(format_args!("{}: {why}", path.display()));
        }
        let recording = self.of_this_time(recording, start);
        if recording.len() == 0 {
            let places: Vec<_> =
                self.folder.iter().map(|folder| folder.display().to_string()).collect();
            let (who, places) = (recording.processes.len(), places.join(", "));
            let why = match who {
                0 => format!("no process has a statistics file in {places}"),
                _ => format!("none of {who} process(es) with files in {places} timed a message"),
            };
            output::write_stderr(format_args!("ferrite trace: {why}"));
            return Ok(if is_interrupted { Exit::Interrupted } else { Exit::TooFew });
        }
        let timeline = Timeline::new(&recording);
        output::write_file(&output, &trace::document(&timeline).to_string())?;
        output::write_stdout(&self.text(&recording, &timeline, &output))?;
        Ok(if is_interrupted { Exit::Interrupted } else { Exit::Good })
    }

    /// Looks at the files again and again. Returns whether the user has ended that.
    fn record(&self) -> Result<(Recording, bool)> {
        /// Between two looks. 25 messages are timed in this time if 640,000 a second go over a
        /// connection.
        const PAUSE: Duration = Duration::from_millis(10);
        let until = Instant::now() + Duration::from_secs_f64(self.seconds);
        let mut recording = Recording::default();
        let has_old = self.seconds > 0.0 && self.pids.is_empty();
        let mut is_first = true;
        loop {
            let began = Instant::now();
            for folder in &self.folder {
                let looked = recording.look(folder, &self.pids);
                looked.map_err(|e| Error::io(folder.display().to_string(), e))?;
                if has_old && is_first {
                    recording.leave_out_dead(folder);
                }
            }
            is_first = false;
            if recording.len() >= self.most as usize && self.seconds > 0.0 {
                let (count, most) = (recording.len(), self.most);
                output::write_stderr(format_args!(
                    "ferrite trace: ended early: {count} messages are there, and --most is {most}"
                ));
                return Ok((recording, false));
            }
            if Instant::now() >= until || output::received() {
                return Ok((recording, output::received()));
            }
            // Where the files are long, looking at them takes no more than a fifth of a CPU.
            std::thread::sleep(
                PAUSE.max(4 * began.elapsed()).min(until.saturating_duration_since(Instant::now())),
            );
        }
    }

    /// Without what was complete before the command began.
    fn of_this_time(&self, mut recording: Recording, start: i64) -> Recording {
        if self.seconds > 0.0 {
            recording.forget_before(start);
        }
        recording
    }

    fn text(&self, recording: &Recording, timeline: &Timeline<'_>, output: &Path) -> String {
        let samples: Vec<u64> =
            recording.processes.values().map(|process| process.sample).collect();
        let sample = match (samples.iter().min(), samples.iter().max()) {
            (Some(least), Some(most)) if least != most => format!("one in {least} to {most}"),
            (Some(sample), _) => format!("one in {sample}"),
            _ => "none".into(),
        };
        let mut text = format!(
            "{} timed message(s), {sample} is timed; {} connection(s) with both ends, {} end(s), {} process(es)\n",
            trace::count(timeline),
            timeline.connections.len(),
            timeline.ends.len(),
            recording.processes.len()
        );
        if !recording.left_out.is_empty() {
            text += &format!(
                "left out {} file(s) of processes that had ended: give a PID, or use --seconds 0\n",
                recording.left_out.len()
            );
        }
        text.extend(timeline.clock_lines().into_iter().map(|line| line + "\n"));
        text.extend(trace::advice(timeline).map(|line| line + "\n"));
        text += &format!("\n{}\n", trace::table(timeline, self.slowest));
        text + &format!("written to {}: open it at https://ui.perfetto.dev\n", output.display())
    }
}

/// The name of the output where none is given: no file of an earlier run has it.
fn free_name() -> PathBuf {
    let numbered = (2..).map(|number| PathBuf::from(format!("ferrite-trace.{number}.json")));
    let mut names = std::iter::once(PathBuf::from("ferrite-trace.json")).chain(numbered);
    names.find(|name| !name.exists()).unwrap_or_default()
}

/// This machine's monotonic clock in nanoseconds.
fn monotonic() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a valid place for the time.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}
