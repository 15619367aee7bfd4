//! Many connections between two processes: how long they take to make, the commands to the card,
//! the memory, and what they cost while nothing is sent. One transport, once: a script repeats it
//! and takes turns between transports (`scripts/connections.py`).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cost::Seen;
use crate::error::{Error, Result};
use crate::measure::plan;
use crate::measure::stream::{Ends, TAG, set_up};
use crate::measure::turns::PENDING;
use crate::nccl::library::Source;
use crate::pair::parent::Pair;
use crate::pair::worker_ctx::WorkerMessage;
use crate::pair::{Setting, WorkerCtx};
use crate::system::host;
use crate::transport::buffer::Buffer;
use crate::transport::comm::{RecvComm, Region, Request as Pending, SendComm};
use crate::transport::instance::Transport;
use crate::verbs::Verbs;

/// The hidden subcommand that makes a worker of this program.
pub(crate) const WORKER: &str = "connections-worker";
/// What a worker says at the points where its parent looks at the device.
const POINTS: [&str; 3] = ["before", "held", "after"];
/// What it says when its connections begin to carry messages.
const TRAFFIC: &str = "traffic";
/// How long a process may take to end.
const EXIT_TIMEOUT: Duration = Duration::from_secs(60);

/// What both processes do.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) source: Source,
    pub(crate) verbs: Verbs,
    /// Connections that are made, and closed, one at a time before the others.
    pub(crate) singles: u32,
    /// Connections that are held at once.
    pub(crate) connections: u32,
    /// Whether as many lead back.
    pub(crate) both_ways: bool,
    /// How long they are held without a call; ms.
    pub(crate) idle_ms: u64,
    /// How long each carries messages after that; ms.
    pub(crate) traffic_ms: u64,
}

/// Memory of a process, bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Memory {
    rss: u64,
    pss: u64,
}

/// What a process has used up so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Used {
    cpu_ms: f64,
    /// How often one of its threads has slept.
    wake_ups: u64,
}

/// What one process of the pair has found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct End {
    /// The transport's name for itself.
    name: String,
    /// The first connection of the process, ms.
    first_ms: f64,
    /// Each of the single ones, ms.
    single_ms: Vec<f64>,
    /// Those that are held, ms for all.
    all_ms: f64,
    /// Memory before and after these, and after they have been idle.
    memory: [Memory; 3],
    /// Processor time and wake-ups while idle.
    idle: Used,
    /// Times of the rounds in which each connection has carried a message, ms.
    rounds_ms: Vec<f64>,
    /// Lines that the process printed while its connections carried messages.
    #[serde(default)]
    lines: usize,
    /// Commands to the card that these took, by kind, and what came after. The parent fills it in.
    #[serde(default)]
    commands: [BTreeMap<String, u64>; 2],
}

/// Runs the job once; what both ends say.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) program: PathBuf,
    /// The software device's command line.
    pub(crate) control: PathBuf,
    pub(crate) silence: Duration,
    pub(crate) job: Job,
    /// A fault rule that is put in force after so many ms of the traffic.
    pub(crate) fault: Option<(String, u64)>,
}

impl Request {
    /// Does it.
    ///
    /// # Errors
    /// [`Error::Worker`] if a process fails; [`Error::Interrupted`].
    pub(crate) fn run(&self) -> Result<[End; 2]> {
        let mut setting = Setting::new(self.job.verbs.clone());
        setting.net_plugin = self.job.source.net_plugin().into();
        setting.silence = self.silence + Duration::from_millis(self.job.idle_ms);
        let mut pair = Pair::spawn(&self.program, &[OsString::from(WORKER)], &setting)?;
        pair.send(&self.job)?;
        let (mut ends, mut counts, mut waiting) = ([None, None], Vec::new(), 0);
        let mut lines = [0, 0];
        while let Some((rank, message)) = pair.next_message()? {
            let WorkerMessage::Value { value } = message else { continue };
            if value.as_str().is_some_and(|word| POINTS.contains(&word)) {
                waiting += 1;
                if waiting % 2 == 0 {
                    counts.push(self.commands(&pair)?);
                    if waiting == 4 {
                        lines = [0, 1].map(|rank| pair.log(rank).len());
                    }
                    pair.send(&())?;
                }
                continue;
            }
            if value == TRAFFIC {
                if rank == 0
                    && let Some((rule, at_ms)) = &self.fault
                {
                    std::thread::sleep(Duration::from_millis(*at_ms));
                    self.control(&pair, &["inject", rule])?;
                }
                continue;
            }
            ends[rank] = Some(serde_json::from_value::<End>(value)?);
        }
        pair.ended(EXIT_TIMEOUT)?;
        let ([Some(mut zero), Some(mut one)], 3) = (ends, counts.len()) else {
            return Err(Error::Misuse("a process ended without a result"));
        };
        for (rank, end) in [&mut zero, &mut one].into_iter().enumerate() {
            end.commands = [0, 1].map(|point| {
                let earlier = |kind: &String| counts[point][rank].get(kind).copied().unwrap_or(0);
                let new = counts[point + 1][rank].iter();
                let new = new.map(|(kind, count)| (kind.clone(), count - earlier(kind)));
                new.filter(|(_, count)| *count > 0).collect()
            });
            end.lines = pair.log(rank).len().saturating_sub(lines[rank]);
        }
        Ok([zero, one])
    }

    /// Commands of both processes so far, by kind.
    fn commands(&self, pair: &Pair) -> Result<[BTreeMap<String, u64>; 2]> {
        let text = self.control(pair, &["stat", "--json"])?;
        let of = |rank| Seen::parse(&text, pair.pid(rank)).map(|seen| seen.commands);
        Ok([of(0)?, of(1)?])
    }

    /// What the software device's command line says to these arguments.
    fn control(&self, pair: &Pair, arguments: &[&str]) -> Result<String> {
        let output = Command::new(&self.control)
            .args(["--fabric", pair.fabric()])
            .args(arguments)
            .output()
            .map_err(|e| Error::io(format!("cannot start {}", self.control.display()), e))?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Refused(format!("the software device: {words}")));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

/// The body of the hidden subcommand; the exit code.
pub(crate) fn main() -> i32 {
    WorkerCtx::main(WORKER, work)
}

fn work(worker: &mut WorkerCtx) -> Result<()> {
    let job: Job = worker.receive_job()?;
    worker.begin("loading the transport")?;
    let transport = Transport::open(&job.source)?;
    let device = transport.device_of(worker.rank(), None)?;
    job.verbs.prove()?;
    let mut end = End { name: transport.name().to_owned(), ..End::default() };
    worker.begin("making single connections")?;
    end.first_ms = set_up(worker, &transport, device, (1, 1))?;
    for _ in 0..job.singles {
        end.single_ms.push(set_up(worker, &transport, device, (1, 1))?);
    }
    look(worker, POINTS[0])?;
    worker.begin(format!("making {} connections", job.connections))?;
    end.memory[0] = memory()?;
    let mut open = Ends::default();
    end.all_ms = open.add(worker, &transport, (device, 0), (job.connections, PENDING))?;
    if job.both_ways {
        end.all_ms += open.add(worker, &transport, (device, 1), (job.connections, PENDING))?;
    }
    end.memory[1] = memory()?;
    look(worker, POINTS[1])?;
    worker.begin("being idle")?;
    let before = used();
    std::thread::sleep(Duration::from_millis(job.idle_ms));
    let after = used();
    end.idle =
        Used { cpu_ms: after.cpu_ms - before.cpu_ms, wake_ups: after.wake_ups - before.wake_ups };
    end.memory[2] = memory()?;
    if job.traffic_ms > 0 {
        end.rounds_ms = carry(worker, &open, Duration::from_millis(job.traffic_ms))?;
    }
    look(worker, POINTS[2])?;
    worker.begin("closing the connections")?;
    worker.barrier()?;
    open.close()?;
    worker.barrier()?;
    worker.report(&end)
}

/// Waits until the parent has looked at the device, and the peer has come as far.
fn look(worker: &mut WorkerCtx, point: &str) -> Result<()> {
    worker.report(&point)?;
    worker.receive_job::<()>()?;
    worker.barrier()
}

/// Bytes of a message.
const BYTES: usize = 256;

/// Has each connection carry a message, again and again, for so long. Both processes begin each
/// round together. Each byte is compared. The times of the rounds, ms.
fn carry(worker: &mut WorkerCtx, open: &Ends, lasts: Duration) -> Result<Vec<f64>> {
    let (sends, receives) = (open.sending.len(), open.receiving.len());
    let out = Arc::new(Buffer::new(sends.max(1) * BYTES)?);
    let into = Arc::new(Buffer::new(receives.max(1) * BYTES)?);
    let register = |comm: &SendComm| comm.register(&out);
    let from = open.sending.iter().map(register).collect::<Result<Vec<_>>>()?;
    let register = |comm: &RecvComm| comm.register(&into);
    let to = open.receiving.iter().map(register).collect::<Result<Vec<_>>>()?;
    worker.barrier()?;
    worker.begin("carrying messages")?;
    worker.report(&TRAFFIC)?;
    let (begun, mut times) = (Instant::now(), Vec::new());
    let (rank, mut deadline) = (worker.rank(), worker.deadline("a message of each connection"));
    while worker.agree(u64::from(begun.elapsed() < lasts))? == 1 {
        let round = times.len() as u64;
        let seed = |rank: usize, index: usize| plan::seed(round, rank, index as u64);
        (0..sends).try_for_each(|i| plan::fill(&out, i * BYTES, BYTES, seed(rank, i)))?;
        let start = Instant::now();
        let mut posted = Posted::default();
        loop {
            let before = posted.calls();
            posted.receive(open, &to)?;
            posted.send(open, &from)?;
            posted.test()?;
            if posted.done == sends + receives {
                break;
            }
            match posted.calls() == before {
                true => deadline.idle()?,
                false => deadline.progress(),
            }
        }
        times.push(start.elapsed().as_secs_f64() * 1e3);
        for index in 0..receives {
            if let Some(wrong) = plan::check(&into, index * BYTES, BYTES, seed(1 - rank, index))? {
                return Err(Error::Data(format!(
                    "round {round}, connection {index}, offset {}: expected {:#04x}, got {:#04x}",
                    wrong.offset, wrong.expected, wrong.got
                )));
            }
        }
    }
    Ok(times)
}

/// The requests of a round.
#[derive(Default)]
struct Posted<'c> {
    pending: Vec<Pending<'c>>,
    /// Connections that have been asked to receive and to send, in order.
    received: usize,
    sent: usize,
    /// Connections whose receive is not announced at the sender yet.
    refused: Vec<usize>,
    done: usize,
}

impl<'c> Posted<'c> {
    fn calls(&self) -> usize {
        self.received + self.sent + self.done - self.refused.len()
    }

    fn receive(&mut self, open: &'c Ends, to: &'c [Region]) -> Result<()> {
        while let Some((comm, region)) =
            open.receiving.get(self.received).zip(to.get(self.received))
        {
            match comm.receive(region, self.received * BYTES, BYTES, TAG)? {
                Some(request) => self.pending.push(request),
                None => break,
            }
            self.received += 1;
        }
        Ok(())
    }

    fn send(&mut self, open: &'c Ends, from: &'c [Region]) -> Result<()> {
        self.refused.extend(self.sent..open.sending.len());
        self.sent = open.sending.len();
        for index in std::mem::take(&mut self.refused) {
            match open.sending[index].send(&from[index], index * BYTES, BYTES, TAG)? {
                Some(request) => self.pending.push(request),
                None => self.refused.push(index),
            }
        }
        Ok(())
    }

    fn test(&mut self) -> Result<()> {
        for mut request in std::mem::take(&mut self.pending) {
            match request.test(&mut [0])? {
                true => self.done += 1,
                false => self.pending.push(request),
            }
        }
        Ok(())
    }
}

fn memory() -> Result<Memory> {
    const FILE: &str = "/proc/self/smaps_rollup";
    let text = fs::read_to_string(FILE).map_err(|e| Error::io(format!("cannot read {FILE}"), e))?;
    let bytes = |name: &str| host::kilobytes(&text, name);
    match (bytes("Rss"), bytes("Pss")) {
        (Some(rss), Some(pss)) => Ok(Memory { rss, pss }),
        _ => Err(Error::Unreadable(format!("{FILE} does not say Rss and Pss"))),
    }
}

fn used() -> Used {
    // SAFETY: all bytes zero is a valid rusage; getrusage fills it in.
    let usage = unsafe {
        let mut usage = std::mem::zeroed::<libc::rusage>();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    };
    let ms = |time: libc::timeval| time.tv_sec as f64 * 1e3 + time.tv_usec as f64 / 1e3;
    Used { cpu_ms: ms(usage.ru_utime) + ms(usage.ru_stime), wake_ups: usage.ru_nvcsw as u64 }
}
