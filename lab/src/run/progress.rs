//! Shows how far a long run is: a bar on a terminal, a line a step elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

use crate::system::{host, output};

/// Without a terminal, at most one line in this time.
const SPARSE: Duration = Duration::from_secs(10);

/// Progress over a known number of steps, on stderr.
#[derive(Debug)]
pub(crate) struct Progress {
    bar: Option<ProgressBar>,
    phase: String,
    done: u64,
    total: u64,
    last: Option<Instant>,
}

impl Progress {
    /// A bar if stderr is a terminal, sparse lines else.
    pub(crate) fn new(total: u64) -> Self {
        let bar = host::stderr_is_terminal().then(|| {
            let bar = ProgressBar::new(total);
            let style = "{elapsed_precise} [{bar:32}] {percent:>3}%  {msg}";
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(250));
            bar
        });
        Self { bar, phase: String::new(), done: 0, total, last: None }
    }

    /// A new pair of processes.
    pub(crate) fn phase(&mut self, phase: impl Into<String>) {
        self.phase = phase.into();
        if self.bar.is_none() && self.last.is_none_or(|last| last.elapsed() >= SPARSE) {
            let percent = 100 * self.done / self.total.max(1);
            output::write_stderr(format_args!("{percent:>3} %  {}", self.phase));
            self.last = Some(Instant::now());
        }
    }

    /// One more step has begun.
    pub(crate) fn step(&mut self, what: &str) {
        self.done = (self.done + 1).min(self.total);
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
            bar.set_message(format!("{}: {what}", self.phase));
        }
    }

    /// The steps up to `done` are behind, whatever was heard of them.
    pub(crate) fn reach(&mut self, done: u64) {
        self.done = done.min(self.total);
        if let Some(bar) = &self.bar {
            bar.set_position(self.done);
        }
    }

    /// Removes the bar.
    pub(crate) fn finish(self) {
        if let Some(bar) = self.bar {
            bar.finish_and_clear();
        }
    }
}
