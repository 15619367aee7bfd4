//! The process that starts the two others, keeps the clock, does what the script says, and collects how it ended.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use nccl_net::inspect::version;

use crate::error::{Error, Result};
use crate::nccl::library::Source;
use crate::outlast::device::Device;
use crate::outlast::fault::{Fault, Step};
use crate::outlast::outcome::{End, EndAt, Outcome, Received, Report};
use crate::outlast::plan::{LineFault, OutlastJob, StreamPlan};
use crate::outlast::scenario::Ports;
use crate::outlast::transport_log::PeerObserver;
use crate::outlast::worker::WORKER;
use crate::pair::message::{WorkerMessage, json_error};
use crate::pair::parent::{Pair, PairEvent};
use crate::pair::setting::Setting;
use crate::system::threads::Threads;
use crate::verbs::libibverbs::Verbs;

/// How long a pair may take to connect.
const CONNECTING: Duration = Duration::from_secs(60);
/// How long an end that has hung by its own account may take to say so.
const GRACE: Duration = Duration::from_secs(3);
/// After so long without progress it is noted what the threads have had of the processors, to be told if the limit passes.
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
    /// Whatever makes the run invalid: the connection is not made, the software device refuses a step. How the stream ends is no
    /// error, nor are wrong bytes.
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
        let rules =
            script.iter().filter_map(|step| if let Fault::Rule(rule) = &step.fault { Some(rule) } else { None });
        rules.into_iter().try_for_each(|rule| Device::require_rule(&self.control, &self.folder, rule))
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
            // Each process sees the other's devices too, as if they were spare ones of its own.
            .env("FERRITE_SPARE", if self.ports == Ports::OneOfTwo { "1" } else { "0" })
            .env("SOFTRNIC_QUIET", "1")
            .env("SOFTRNIC_DEVICES", if self.ports == Ports::One { "2" } else { "4" })
            .env("SOFTRNIC_SEED", self.seed.to_string());
        for (name, value) in self.variables.iter().filter(|(name, _)| std::env::var_os(name).is_none()) {
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
            devices: if self.ports == Ports::OneOfTwo { [Some(0), Some(2)] } else { [None, None] },
            stream: self.stream.clone(),
            line_faults: line_faults.collect::<Vec<(u64, LineFault)>>(),
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

    /// Two ports are one device to a transport that finds them on one card in sysfs, which the software device's command line shows.
    fn command_line(&self, is_fused: bool) -> (PathBuf, Vec<OsString>) {
        if !is_fused {
            return (self.program.clone(), vec![WORKER.into()]);
        }
        let mut words: Vec<OsString> = vec!["run".into(), "--library".into(), self.folder.clone().into()];
        words.extend(["--faithful".into(), "--same-card".into(), "--".into()]);
        words.extend([self.program.clone().into(), WORKER.into()]);
        (self.control.clone(), words)
    }

    /// Waits until both have connected; when that was.
    fn connected(&self, run: &mut Run) -> Result<Instant> {
        let mut ready = [false; 2];
        while let Some((rank, message)) = run.pair.next_message()? {
            let WorkerMessage::Value { value } = message else { continue };
            if let Report::Started { transport, device } = serde_json::from_value(value).map_err(|e| json_error(&e))? {
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
        // How long nothing has been heard, without what the steps take: this process listens to nobody meanwhile.
        let mut silence = Duration::ZERO;
        while run.ends.iter().any(Option::is_none) {
            if let Some(step) = steps.front().filter(|step| start.elapsed() >= step.at) {
                run.perform(step, start)?;
                steps.pop_front();
                continue;
            }
            let until_step =
                steps.front().map_or(limit, |step| (start + step.at).saturating_duration_since(Instant::now()));
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
            Err(problem) if may_be_gone => self.script.push(format!("{now} ms: {fault} could not be done: {problem}")),
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
                match serde_json::from_value(value).map_err(|e| json_error(&e))? {
                    Report::Started { .. } => {}
                    Report::Progress(received) => self.received = received,
                    Report::Ended { end, received } => {
                        self.ends[rank] = Some(end);
                        self.received = received.unwrap_or_else(|| std::mem::take(&mut self.received));
                    }
                }
            }
            PairEvent::Said(rank, WorkerMessage::Failed { message, .. }) => {
                return Err(Error::Worker { rank, what: message, log: self.last_lines(rank), wrong: false });
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
                let mut text =
                    format!("no call returned for {:.0} s while {}", silence.as_secs_f64(), self.pair.doing(rank));
                if let Some(noted) = &noted {
                    text += &format!("; {}", now[rank].since(&noted[rank]));
                }
                self.pair.kill(rank);
                self.ends[rank] = Some(EndAt { end: End::Hang { text }, at_ms: start.elapsed().as_millis() as u64 });
            }
        }
    }

    fn last_lines(&self, rank: usize) -> Vec<String> {
        let lines = self.pair.log(rank);
        lines[lines.len().saturating_sub(12)..].to_vec()
    }

    /// Lets both close their connections. One that does not, or dies of it, is killed; how the stream ended is known.
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
