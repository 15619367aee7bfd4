//! Rank 1 of a pair whose rank 0 is on another host: the process, and what passes on what it says.

use std::ffi::OsString;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::hosts::line_conn::LineConn;
use crate::pair::child::{ChildProcess, status_words};
use crate::pair::message::{WorkerMessage, to_json};
use crate::pair::setting::Setting;
use crate::system::{host, interrupt};

/// The other host takes what is sent within this time.
const SEND: Duration = Duration::from_secs(10);
/// How long the process may take to end after it has closed its socket.
const EXIT: Duration = Duration::from_secs(10);
/// How many of its last lines the other host gets, and how many bytes of each.
const LINES: usize = 12;
const LINE: usize = 2000;
/// How often it is looked for an interrupt.
const LOOK: Duration = Duration::from_millis(100);

/// What the other host hears of the process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Heard {
    /// It has said this.
    Said(WorkerMessage),
    /// It has ended: how, unless well; and its last lines.
    Ended { failure: Option<String>, log: Vec<String> },
}

enum Event {
    /// `None`: it has closed its socket.
    Said(Option<WorkerMessage>),
    /// What the other host wants it to do.
    Job(Value),
    /// The other host is gone, or does not want it any more.
    Closed,
}

/// The process of rank 1.
pub(crate) struct HostEnd {
    child: ChildProcess,
    sender: Sender<Event>,
    events: Receiver<Event>,
}

impl HostEnd {
    /// Starts it, with a socket to rank 0.
    pub(crate) fn start(
        program: &Path,
        arguments: &[OsString],
        setting: &Setting,
        fabric: &str,
        peer: TcpStream,
    ) -> Result<Self> {
        let (sender, events) = channel();
        let cpus = if setting.pin { host::cpus()? } else { Vec::new() };
        let cpu = (cpus.len() >= 2).then(|| cpus[1]);
        let pages = setting.pages.as_ref().map(|pages| &pages[1]);
        let command = setting.command(program, arguments, fabric);
        let said = sender.clone();
        let hear = move |message| said.send(Event::Said(message)).is_ok();
        let child = ChildProcess::start(command, 1, cpu, peer.into(), setting.silence, pages, hear)?;
        Ok(Self { child, sender, events })
    }

    /// Passes its job on, which `adapt` makes one of this host, and what it says, until it has ended. It is ended if the other host closes
    /// `control`.
    ///
    /// # Errors
    /// [`Error::Interrupted`]; [`Error::Io`] of `control`.
    pub(crate) fn pass_on(mut self, control: TcpStream, adapt: impl Fn(Value) -> Result<Value>) -> Result<()> {
        let failed = |e| Error::io("the connection to the other host", e);
        let (listening, closing) = (control.try_clone().map_err(failed)?, control.try_clone().map_err(failed)?);
        let sender = self.sender.clone();
        let listener = std::thread::spawn(move || listen(LineConn::new(listening), &sender));
        let outcome = self.serve(&mut LineConn::new(control), adapt);
        self.child.stop();
        closing.shutdown(Shutdown::Both).unwrap_or_default();
        listener.join().unwrap_or_default();
        outcome
    }

    fn serve(&mut self, control: &mut LineConn, adapt: impl Fn(Value) -> Result<Value>) -> Result<()> {
        loop {
            interrupt::check()?;
            let heard = match self.events.recv_timeout(LOOK) {
                Ok(Event::Said(Some(message))) => Heard::Said(message),
                Ok(Event::Said(None)) => self.ended(),
                Ok(Event::Job(job)) => match adapt(job) {
                    Ok(job) => {
                        // A process that is gone has closed its socket, which is told.
                        self.child.control.write_all(format!("{}\n", to_json(&job)?).as_bytes()).unwrap_or_default();
                        continue;
                    }
                    Err(problem) => Heard::Ended { failure: Some(problem.to_string()), log: Vec::new() },
                },
                Ok(Event::Closed) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
                Err(RecvTimeoutError::Timeout) => continue,
            };
            let is_last = matches!(heard, Heard::Ended { .. });
            // What cannot be sent, for its length, is told instead; the other host may be gone, which is seen as the end of the stream.
            if let Err(why) = control.send(&heard, SEND) {
                let heard = Heard::Ended { failure: Some(why), log: Vec::new() };
                control.send(&heard, SEND).unwrap_or_default();
                return Ok(());
            }
            if is_last {
                return Ok(());
            }
        }
    }

    fn ended(&mut self) -> Heard {
        let failure = match self.child.reap(EXIT) {
            Some(status) if status.success() => None,
            Some(status) => Some(format!("the process died ({})", status_words(status))),
            None => Some("the process fell silent".into()),
        };
        let short = |line: String| line.chars().take(LINE).collect();
        Heard::Ended { failure, log: self.child.last_lines(LINES).into_iter().map(short).collect() }
    }
}

/// The one job, and then the end of the stream.
fn listen(mut conn: LineConn, sender: &Sender<Event>) {
    const LONG: Duration = Duration::from_secs(24 * 3600);
    if let Ok(job) = conn.receive(LONG) {
        sender.send(Event::Job(job)).unwrap_or_default();
        drop(conn.receive::<Value>(LONG));
    }
    sender.send(Event::Closed).unwrap_or_default();
}
