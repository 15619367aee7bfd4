//! The process that starts the two others, keeps the clock, does what the script says, and collects
//! how it ended.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nccl_net::inspect::version;

use crate::error::{Error, Result};
use crate::nccl::library::Source;
use crate::outlast::report::{End, EndAt, Outcome, Received, Report};
use crate::outlast::scenario::{Fault, OutlastJob, Ports, Step, StreamPlan};
use crate::outlast::worker::{STREAM_ENDED, WORKER};
use crate::pair::parent::{Pair, PairEvent, Setting};
use crate::pair::worker_ctx::WorkerMessage;
use crate::system::host::Threads;
use crate::verbs::Verbs;

/// How long a pair may take to connect.
const CONNECTING: Duration = Duration::from_secs(60);
/// How long an end that has hung by its own account may take to say so.
const GRACE: Duration = Duration::from_secs(3);
/// After so long without progress it is noted what the threads have had of the processors, to be
/// told if the limit passes.
const NOTED: Duration = Duration::from_secs(1);
/// How long closing may take.
const CLOSING: Duration = Duration::from_secs(5);

/// What to run.
#[derive(Debug, Clone)]
pub(crate) struct OutlastRequest {
    /// This program.
    pub(crate) program: PathBuf,
    /// The software device's command line.
    pub(crate) control: PathBuf,
    /// The folder of its library.
    pub(crate) folder: PathBuf,
    /// The transport.
    pub(crate) source: Source,
    /// Variables of the transport: those of the scenario, and the switches.
    pub(crate) variables: Vec<(String, String)>,
    /// The scenario's name.
    pub(crate) scenario: String,
    /// Which ports.
    pub(crate) ports: Ports,
    /// The faults, in the order of their times.
    pub(crate) script: Vec<Step>,
    /// The messages.
    pub(crate) stream: StreamPlan,
    /// Of the software device's random decisions.
    pub(crate) seed: u64,
    /// The command line, for the record.
    pub(crate) command: String,
    /// What is said of the variables, such as ` with switches`.
    pub(crate) suffix: &'static str,
}

/// What is known of a run while it lasts.
struct Run {
    pair: Pair,
    device: Device,
    transport: String,
    devices: [String; 2],
    ends: [Option<EndAt>; 2],
    /// Processes that the script has killed.
    killed: [bool; 2],
    received: Received,
    script: Vec<String>,
    /// The threads of both processes, when they had been silent for [`NOTED`].
    noted: Option<[Threads; 2]>,
}

impl OutlastRequest {
    /// Runs it once, in fresh processes on a fabric of their own.
    ///
    /// # Errors
    /// Whatever makes the run invalid: the connection is not made, the software device refuses a
    /// step. How the stream ends is no error, nor are wrong bytes.
    pub(crate) fn run(&self, repetition: u32) -> Result<Outcome> {
        let began = Instant::now();
        let mut run = self.start()?;
        let start = self.connected(&mut run)?;
        self.stream(&mut run, start)?;
        let counted = run.device.counted(if self.ports == Ports::One { 1 } else { 2 }).ok();
        run.finish()?;
        let is_ferrite = run.transport == "Ferrite";
        let told = [0, 1].map(|rank| PeerObserver::read(&run.pair.log(rank)));
        let Run { ends, received, transport, devices, script, .. } = run;
        let nothing = || EndAt { end: End::Hang { text: "it said nothing".into() }, at_ms: 0 };
        let mut ends = ends.map(|end| end.unwrap_or_else(nothing));
        for (end, told) in ends.iter_mut().zip(&told) {
            if let End::Error { text, .. } = &mut end.end {
                text.clone_from(&told.warning);
            }
        }
        let payload_bytes = received.messages * self.stream.bytes as u64;
        let is_whole = received.messages == self.stream.messages;
        let is_stock = matches!(self.source, Source::Stock { .. });
        let most = |of: fn(&PeerObserver) -> u64| told.iter().map(of).max();
        Ok(Outcome {
            tool: version::text().into(),
            command: self.command.clone(),
            scenario: self.scenario.clone(),
            side: format!("{transport}{}", self.suffix),
            repetition,
            seed: self.seed,
            devices,
            script,
            ends,
            planned: (self.stream.messages, self.stream.bytes),
            payload_bytes,
            sent_bytes: counted.map(|counted| counted.sender_bytes),
            resent_bytes: counted
                .filter(|_| is_whole)
                .map(|counted| counted.sender_bytes.saturating_sub(payload_bytes)),
            lost_transmissions: counted.map(|counted| counted.losses),
            recoveries: most(|told| told.recoveries).filter(|_| is_stock || is_ferrite),
            failures: most(|told| told.failures).filter(|_| is_stock),
            received,
            seconds: began.elapsed().as_secs_f64(),
        })
    }

    /// Looks at the rules of the script before anything starts.
    ///
    /// # Errors
    /// [`Error::Usage`] with the software device's words.
    pub(crate) fn require_rules(&self, script: &[Step]) -> Result<()> {
        let rules = script
            .iter()
            .filter_map(|step| if let Fault::Rule(rule) = &step.fault { Some(rule) } else { None });
        rules
            .into_iter()
            .try_for_each(|rule| Device::require_rule(&self.control, &self.folder, rule))
    }

    fn start(&self) -> Result<Run> {
        let verbs = Verbs::softrnic(&self.folder)?;
        let mut setting = Setting::new(verbs.clone());
        setting.net_plugin = self.source.net_plugin().into();
        setting.pin = false;
        setting.silence = CONNECTING;
        let is_fused = self.ports == Ports::Two;
        setting = setting
            .env("NCCL_IB_MERGE_NICS", if is_fused { "1" } else { "0" })
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("SOFTRNIC_QUIET", "1")
            .env("SOFTRNIC_DEVICES", if self.ports == Ports::One { "2" } else { "4" })
            .env("SOFTRNIC_SEED", self.seed.to_string());
        for (name, value) in
            self.variables.iter().filter(|(name, _)| std::env::var_os(name).is_none())
        {
            setting = setting.env(name, value);
        }
        let (program, arguments) = self.command_line(is_fused);
        let mut pair = Pair::spawn(&program, &arguments, &setting)?;
        let line_faults = self.script.iter().filter_map(|step| match step.fault {
            Fault::Line(fault) => Some((step.at.as_millis() as u64, fault)),
            _ => None,
        });
        pair.send(&OutlastJob {
            source: self.source.clone(),
            verbs,
            is_fused,
            stream: self.stream.clone(),
            line_faults: line_faults.collect(),
        })?;
        let device = Device::new(&self.control, pair.fabric());
        Ok(Run {
            pair,
            device,
            transport: String::new(),
            devices: [const { String::new() }; 2],
            ends: [None, None],
            killed: [false; 2],
            received: Received::default(),
            script: Vec::new(),
            noted: None,
        })
    }

    /// Two ports are one device to a transport that finds them on one card in sysfs, which the
    /// software device's command line shows.
    fn command_line(&self, is_fused: bool) -> (PathBuf, Vec<OsString>) {
        if !is_fused {
            return (self.program.clone(), vec![WORKER.into()]);
        }
        let mut words: Vec<OsString> =
            vec!["run".into(), "--library".into(), self.folder.clone().into()];
        words.extend(["--faithful".into(), "--same-card".into(), "--".into()]);
        words.extend([self.program.clone().into(), WORKER.into()]);
        (self.control.clone(), words)
    }

    /// Waits until both have connected; when that was.
    fn connected(&self, run: &mut Run) -> Result<Instant> {
        let mut ready = [false; 2];
        while let Some((rank, message)) = run.pair.next_message()? {
            let WorkerMessage::Value { value } = message else { continue };
            if let Report::Started { transport, device } = serde_json::from_value(value)? {
                run.transport = transport;
                run.devices[rank] = device;
                ready[rank] = true;
            }
            if ready == [true; 2] {
                return Ok(Instant::now());
            }
        }
        Err(Error::Unreadable("both processes ended without a connection".into()))
    }

    /// Does the script's steps at their times, until both ends have come to their end.
    fn stream(&self, run: &mut Run, start: Instant) -> Result<()> {
        let mut steps: VecDeque<&Step> = self.script.iter().collect();
        let limit = Duration::from_millis(self.stream.limit_ms + self.stream.settle_ms) + GRACE;
        // How long nothing has been heard, without what the steps take: this process listens to
        // nobody meanwhile.
        let mut silence = Duration::ZERO;
        while run.ends.iter().any(Option::is_none) {
            if let Some(step) = steps.front().filter(|step| start.elapsed() >= step.at) {
                run.perform(step, start)?;
                steps.pop_front();
                continue;
            }
            let until_step = steps
                .front()
                .map_or(limit, |step| (start + step.at).saturating_duration_since(Instant::now()));
            let wait = until_step.min(Duration::from_millis(100));
            let event = run.pair.next_event(wait)?;
            if run.heard(event, start)? {
                (silence, run.noted) = (Duration::ZERO, None);
            } else {
                silence += wait;
            }
            if silence > NOTED && run.noted.is_none() {
                run.noted = Some(run.threads());
            }
            if silence > limit {
                run.give_up(start, silence);
            }
        }
        Ok(())
    }
}

impl Run {
    /// One step of the script.
    fn perform(&mut self, step: &Step, start: Instant) -> Result<()> {
        match step.fault {
            Fault::Kill(rank) if self.ends[rank].is_none() => {
                self.killed[rank] = true;
                self.pair.kill(rank);
            }
            Fault::Stop(rank) => self.pair.signal(rank, libc::SIGSTOP),
            Fault::Continue(rank) => self.pair.signal(rank, libc::SIGCONT),
            _ => {}
        }
        let done = self.device.apply(&step.fault);
        let (now, fault) = (start.elapsed().as_millis(), &step.fault);
        // With its last process the fabric is gone.
        let may_be_gone = self.killed.contains(&true) || self.ends.iter().any(Option::is_some);
        match done {
            Err(problem) if may_be_gone => {
                self.script.push(format!("{now} ms: {fault} could not be done: {problem}"))
            }
            Err(problem) => return Err(problem),
            Ok(()) => self.script.push(format!("{now} ms: {fault}")),
        }
        Ok(())
    }

    /// Whether the event is a sign of progress.
    fn heard(&mut self, event: PairEvent, start: Instant) -> Result<bool> {
        let at_ms = start.elapsed().as_millis() as u64;
        match event {
            PairEvent::Nothing => return Ok(false),
            PairEvent::Said(rank, WorkerMessage::Value { value }) => {
                match serde_json::from_value(value)? {
                    Report::Started { .. } => {}
                    Report::Progress(received) => self.received = received,
                    Report::Ended { end, received } => {
                        self.ends[rank] = Some(end);
                        self.received =
                            received.unwrap_or_else(|| std::mem::take(&mut self.received));
                    }
                }
            }
            PairEvent::Said(rank, WorkerMessage::Failed { message, .. }) => {
                return Err(Error::Worker {
                    rank,
                    what: message,
                    log: self.last_lines(rank),
                    wrong: false,
                });
            }
            PairEvent::Said(..) => {}
            PairEvent::Closed(rank) if self.ends[rank].is_none() => {
                let text = self.pair.exit_words(rank);
                let end = if self.killed[rank] { End::Killed } else { End::Died { text } };
                self.ends[rank] = Some(EndAt { end, at_ms });
            }
            PairEvent::Closed(_) => {}
        }
        Ok(true)
    }

    fn threads(&self) -> [Threads; 2] {
        [0, 1].map(|rank| Threads::read(self.pair.pid(rank)))
    }

    /// Kills what has not come to its end, and says that it hung, and what its threads did.
    fn give_up(&mut self, start: Instant, silence: Duration) {
        // Before anything is killed: what one waits for may be the other.
        let (now, noted) = (self.threads(), self.noted.take());
        for rank in 0..2 {
            if self.ends[rank].is_none() {
                let mut text = format!(
                    "no call returned for {:.0} s while {}",
                    silence.as_secs_f64(),
                    self.pair.doing(rank)
                );
                if let Some(noted) = &noted {
                    text += &format!("; {}", now[rank].since(&noted[rank]));
                }
                self.pair.kill(rank);
                self.ends[rank] = Some(EndAt {
                    end: End::Hang { text },
                    at_ms: start.elapsed().as_millis() as u64,
                });
            }
        }
    }

    fn last_lines(&self, rank: usize) -> Vec<String> {
        let lines = self.pair.log(rank);
        lines[lines.len().saturating_sub(12)..].to_vec()
    }

    /// Lets both close their connections. One that does not, or dies of it, is killed; how the
    /// stream ended is known.
    fn finish(&mut self) -> Result<()> {
        for rank in 0..2 {
            self.pair.send_to(rank, &())?;
        }
        let end = Instant::now() + CLOSING;
        let mut closed = [false; 2];
        while closed != [true; 2] && Instant::now() < end {
            match self.pair.next_event(Duration::from_millis(100))? {
                PairEvent::Closed(rank) => closed[rank] = true,
                PairEvent::Said(..) | PairEvent::Nothing => {}
            }
        }
        Ok(())
    }
}

/// The command line of the software device, and the fabric of one run.
#[derive(Debug)]
pub(super) struct Device {
    program: PathBuf,
    fabric: String,
}

/// What ports have counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counted {
    /// Bytes that were sent from the sender's ports and acknowledged.
    pub(super) sender_bytes: u64,
    /// Transmissions from any port that got no answer.
    pub(super) losses: u64,
}

impl Device {
    pub(super) fn new(program: &Path, fabric: &str) -> Self {
        Self { program: program.into(), fabric: fabric.into() }
    }

    /// Whether the device understands a rule, before there is a fabric.
    ///
    /// # Errors
    /// [`Error::Usage`] with the device's words if it does not.
    pub(super) fn require_rule(program: &Path, folder: &Path, rule: &str) -> Result<()> {
        let output = Command::new(program)
            .args(["run", "--faults", rule, "--library"])
            .arg(folder)
            .args(["--", "true"])
            .output()
            .map_err(|source| Error::io(format!("cannot start {}", program.display()), source))?;
        if output.status.success() {
            return Ok(());
        }
        let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(Error::Usage(format!(
            "--fault {rule:?}: {}",
            why.rsplit_once("\": ").map_or(why.as_str(), |(_, words)| words)
        )))
    }

    /// Does what the fault says, if it is one of the device.
    ///
    /// # Errors
    /// [`Error::Usage`] with the device's words if it refuses.
    pub(super) fn apply(&self, fault: &Fault) -> Result<()> {
        match fault {
            Fault::Rule(rule) => self.run(&["inject", rule]).map(drop),
            Fault::Clear => self.run(&["inject", "--clear"]).map(drop),
            Fault::Change(words) => {
                self.run(&words.iter().map(String::as_str).collect::<Vec<_>>()).map(drop)
            }
            Fault::Kill(_) | Fault::Stop(_) | Fault::Continue(_) | Fault::Line(_) => Ok(()),
        }
    }

    /// The counters of all ports; the first `sender_devices` devices are the sender's.
    ///
    /// # Errors
    /// [`Error::Usage`] if there is no fabric any more; [`Error::Unreadable`].
    pub(super) fn counted(&self, sender_devices: usize) -> Result<Counted> {
        let text = self.run(&["stat", "--json"])?;
        let stat: serde_json::Value = serde_json::from_str(&text)
            .map_err(|e| Error::Unreadable(format!("softrnic stat: {e}")))?;
        let mut counted = Counted::default();
        for (index, device) in stat["devices"].as_array().into_iter().flatten().enumerate() {
            for port in device["ports"].as_array().into_iter().flatten() {
                let counter = |name: &str| port["counters"][name].as_u64().unwrap_or(0);
                counted.losses += counter("losses");
                counted.sender_bytes += if index < sender_devices { counter("bytes") } else { 0 };
            }
        }
        Ok(counted)
    }

    fn run(&self, words: &[&str]) -> Result<String> {
        let output = Command::new(&self.program)
            .args(["--fabric", &self.fabric])
            .args(words)
            .output()
            .map_err(|source| {
                Error::io(format!("cannot start {}", self.program.display()), source)
            })?;
        if !output.status.success() {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Usage(format!("softrnic {}: {why}", words.join(" "))));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// Words, all in one line, for a port or connection that is used again after a failure: the
/// built-in transport's, and Ferrite's.
const RECOVERED: [&[&str]; 2] = [
    &["has been recovered for resiliency context"],
    &["connection to ", " recovered", "attempt(s)"],
];
/// For a failure that does not end the connection: the built-in transport's.
const FAILED: [&[&str]; 1] = [&["marked as failed. Initiating"]];

/// What the log of one process tells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PeerObserver {
    /// Times that something is used again after a failure.
    pub(super) recoveries: u64,
    /// Times that something has failed.
    pub(super) failures: u64,
    /// The last warning of the stream.
    pub(super) warning: String,
}

impl PeerObserver {
    /// Of the lines that the process printed, up to the end of its stream.
    pub(super) fn read(lines: &[String]) -> Self {
        let end = lines.iter().position(|line| line == STREAM_ENDED).unwrap_or(lines.len());
        let lines = &lines[..end];
        let has = |line: &String, words: &[&str]| words.iter().all(|word| line.contains(word));
        let count = |any: &[&[&str]]| {
            lines.iter().filter(|line| any.iter().any(|words| has(line, words))).count()
        };
        let warning = lines
            .iter()
            .rev()
            .find_map(|line| line.split_once("WARN "))
            .map_or("", |(_, text)| text);
        Self {
            recoveries: count(&RECOVERED) as u64,
            failures: count(&FAILED) as u64,
            warning: without_place(warning).trim().to_owned(),
        }
    }
}

/// Without the `FILE:LINE ` that a plugin's warnings have in front of them here.
fn without_place(text: &str) -> &str {
    match text.split_once(' ') {
        Some((place, rest)) if place.contains(".rs:") || place.contains(".cc:") => rest,
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_after_the_stream_does_not_count() {
        let lines = [
            "host:1:2 [0] NCCL INFO NET/IB: Device 1 marked as failed. Initiating recovery? Yes",
            "host:1:2 [0] NCCL INFO NET/IB: Device 1 was already marked as failed.",
            "host:1:2 [0] NCCL WARN NET/IB: Got completion from peer with status=12",
            "WARN src/net/send.rs:7 NET/Ferrite : the peer is gone",
            STREAM_ENDED,
            "WARN src/x.rs:1 closing",
            "Device 1 has been recovered for resiliency context",
        ];
        let lines = lines.map(String::from);
        let ferrite = "INFO softrnic0: connection to 127.0.0.1:5 recovered in 12 ms (1 attempt(s))"
            .to_owned();
        assert_eq!(
            PeerObserver::read(&[ferrite, "connection to x recovered".into()]).recoveries,
            1
        );
        let told = PeerObserver {
            recoveries: 0,
            failures: 1,
            warning: "NET/Ferrite : the peer is gone".into(),
        };
        assert_eq!(PeerObserver::read(&lines), told);
        assert_eq!(
            PeerObserver::read(&lines[..3]).warning,
            "NET/IB: Got completion from peer with status=12"
        );
        assert_eq!(PeerObserver::read(&[]), PeerObserver::default());
    }
}
