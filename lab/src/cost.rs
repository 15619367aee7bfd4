//! What a message costs the card and its driver, counted by the software device, without a clock.
//!
//! One process sends to itself in a fixed order, as `solo` does. The device is asked what it has
//! counted before and after a number of messages; the difference over their number is the cost of
//! one. The same run gives the same numbers each time.
//!

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use nccl_net::inspect::version;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, Result};
use crate::nccl::library::{Identity, Source};
use crate::nccl::release;
use crate::solo::{Endpoints, Path};
use crate::system::{host, output, subprocess};
use crate::transport::instance;
use crate::transport::instance::Transport;
use crate::verbs::{Verbs, new_fabric_name};

/// Messages of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Case {
    /// Bytes of a message.
    pub(crate) bytes: usize,
    /// Messages in flight.
    pub(crate) depth: usize,
    /// Queue pairs of a connection on each rail. With more than one, messages are split over them.
    /// 0: as many as the environment says.
    pub(crate) queue_pairs: usize,
    /// Ports that are one device: 1 or 2.
    pub(crate) rails: usize,
}

impl Case {
    /// The variables by which transports make it so.
    pub(crate) fn environment(self) -> Vec<(&'static str, String)> {
        let mut all = vec![
            ("NCCL_IB_MERGE_NICS", u8::from(self.rails > 1).to_string()),
            ("SOFTRNIC_DEVICES", if self.rails > 1 { "4" } else { "2" }.into()),
        ];
        if self.queue_pairs > 0 {
            all.push(("NCCL_IB_QPS_PER_CONNECTION", self.queue_pairs.to_string()));
            all.push(("NCCL_IB_SPLIT_DATA_ON_QPS", u8::from(self.queue_pairs > 1).to_string()));
        }
        all
    }

    /// Whether the connections of both are alike.
    pub(crate) fn connects_like(self, other: Self) -> bool {
        (self.queue_pairs, self.rails) == (other.queue_pairs, other.rails)
    }
}

/// `4 queue pairs, 1 rail`
pub(crate) fn connection_words(case: Case) -> String {
    let plural =
        |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    match case.queue_pairs {
        0 => plural(case.rails, "rail"),
        count => format!("{}, {}", plural(count, "queue pair"), plural(case.rails, "rail")),
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B, {} in flight, {}", self.bytes, self.depth, connection_words(*self))
    }
}

// What one message costs, out of what was counted.
//
// Bytes on the wire are those of RoCE v2 over IPv4 with one acknowledgement for each RDMA WRITE.
// Bytes on the bus pass between the card and the memory or the processor at both ends. Headers of
// the bus do not count. Work requests and completions are as large as those of mlx5.
// Locks are those of mlx5: one for each call that posts or polls, none where one thread alone is to
// do so (queue pairs in a thread domain; `ibv_start_poll` on completion queues for a single
// thread).

/// Preamble 8, Ethernet 14, IP 20, UDP 8, transport 12, checksums 4 + 4, gap 12.
const PACKET: u64 = 82;
/// Address, key and length, in the first packet of an RDMA WRITE.
const REMOTE: u64 = 16;
const IMMEDIATE: u64 = 4;
/// A packet with 4 bytes that acknowledges.
const ACKNOWLEDGEMENT: u64 = PACKET + 4;

/// What the driver writes to the card where the card fetches the work requests itself.
const DOORBELL: u64 = 8;
const RECEIVE_REQUEST: u64 = 16;
const COMPLETION: u64 = 64;

/// A row of the table.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quantity {
    /// In JSON.
    pub(crate) name: &'static str,
    /// For people.
    pub(crate) words: &'static str,
    /// The total of what was counted.
    total: fn(&Counted) -> u64,
}

/// All of them, in the order of the table.
pub(crate) const QUANTITIES: [Quantity; 13] = [
    Quantity { name: "requests", words: "send work requests", total: |c| c.requests },
    Quantity { name: "doorbells", words: "doorbells", total: |c| c.doorbells },
    Quantity { name: "inline", words: "requests with inline data", total: |c| c.inline },
    Quantity { name: "fetched", words: "requests fetched by DMA", total: |c| c.fetched },
    Quantity {
        name: "gathered",
        words: "requests whose data is read by DMA",
        total: |c| c.gathered,
    },
    Quantity { name: "receives", words: "receive work requests", total: |c| c.receives },
    Quantity {
        name: "receive_posts",
        words: "calls that post receives",
        total: |c| c.receive_posts,
    },
    Quantity { name: "polls", words: "polls that find completions", total: |c| c.fruitful_polls },
    Quantity {
        name: "empty_polls",
        words: "polls that find nothing",
        total: |c| c.polls - c.fruitful_polls,
    },
    Quantity { name: "completions", words: "completions", total: |c| c.completions },
    Quantity { name: "wire_bytes", words: "bytes on the wire", total: wire_bytes },
    Quantity { name: "bus_bytes", words: "bytes on the bus", total: bus_bytes },
    Quantity { name: "locks", words: "locks that mlx5 takes", total: |c| c.locks },
];

impl Quantity {
    /// Of one message, of so many.
    pub(crate) fn per_message(&self, counted: &Counted, messages: u64) -> f64 {
        (self.total)(counted) as f64 / messages as f64
    }
}

fn wire_bytes(c: &Counted) -> u64 {
    c.bytes
        + PACKET * c.packets
        + REMOTE * c.messages
        + IMMEDIATE * c.immediates
        + ACKNOWLEDGEMENT * c.messages
}

fn bus_bytes(c: &Counted) -> u64 {
    // A request that is pushed is alone in its call.
    let rung = c.doorbells - (c.requests - c.fetched);
    let to_card = c.pushed_bytes + DOORBELL * rung;
    let read = c.fetched_bytes + c.gathered_bytes + RECEIVE_REQUEST * c.receives;
    to_card + read + c.bytes + COMPLETION * c.completions
}

// The memory of a connection's queues, as drivers lay it out in user space: computed from what was
// asked for.
//
// Of each driver the sizes of rdma-core 64: mlx5 (ConnectX), bnxt_re (Broadcom, work requests of
// fixed size) and erdma (Alibaba).

const PAGE: u64 = 4096;

/// A driver.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Driver {
    /// Its name in rdma-core.
    pub(crate) name: &'static str,
    /// Bytes of a queue pair.
    queue_pair: fn(&Capacities) -> u64,
    /// Bytes of a completion queue of so many entries.
    completion_queue: fn(u64) -> u64,
}

/// Those whose layout is known here.
pub(crate) const DRIVERS: [Driver; 3] = [
    Driver {
        name: "mlx5",
        queue_pair: mlx5_queue_pair,
        completion_queue: |entries| pages(64 * power(entries + 1)),
    },
    Driver {
        name: "bnxt_re",
        queue_pair: bnxt_queue_pair,
        completion_queue: |entries| pages(32 * power(entries + 1)),
    },
    Driver {
        name: "erdma",
        queue_pair: erdma_queue_pair,
        completion_queue: |entries| pages(32 * power(entries.max(64))),
    },
];

impl Driver {
    /// Bytes of all these queues.
    pub(crate) fn bytes(&self, queues: &Queues) -> u64 {
        let pairs = queues.queue_pairs.iter().map(self.queue_pair);
        pairs
            .chain(queues.completion_queues.iter().map(|entries| (self.completion_queue)(*entries)))
            .sum()
    }
}

fn power(count: u64) -> u64 {
    count.max(1).next_power_of_two()
}

fn pages(bytes: u64) -> u64 {
    bytes.next_multiple_of(PAGE)
}

/// A send work request has room for each operation. Where they are not named, binding a memory
/// window is the largest.
fn mlx5_queue_pair(cap: &Capacities) -> u64 {
    const BLOCK: u64 = 64;
    const ATOMIC: u64 = 0b110_0000;
    const REMOTE: u64 = 0b001_0011;
    let head = match cap.operations {
        None => 192,
        Some(operations) if operations & ATOMIC != 0 => 48,
        Some(operations) if operations & REMOTE != 0 => 32,
        Some(_) => 16,
    };
    let inline = if cap.inline == 0 { 0 } else { (4 + cap.inline).next_multiple_of(16) };
    let slot = (head + inline.max(16 * cap.send_elements)).next_multiple_of(BLOCK);
    let send = if cap.sends == 0 { 0 } else { power(cap.sends * slot) };
    let receive = if cap.receives == 0 {
        0
    } else {
        (power(cap.receives) * power(16 * cap.receive_elements.max(1))).max(BLOCK)
    };
    pages(send + receive)
}

/// 128 bytes for each work request, and 16 for each send to find it by its packet number. So many
/// sends are kept free.
fn bnxt_queue_pair(cap: &Capacities) -> u64 {
    const SLOT: u64 = 128;
    const FREE: u64 = 128;
    pages(power(cap.sends + 1 + FREE) * (SLOT + 16)) + pages(power(cap.receives + 1) * SLOT)
}

fn erdma_queue_pair(cap: &Capacities) -> u64 {
    pages(power(4 * cap.sends) * 32) + pages(power(cap.receives) * 32)
}

/// All counts of the queue pairs and completion queues that a process has.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counted {
    /// Send work requests, and the calls that posted them.
    pub(crate) requests: u64,
    pub(crate) doorbells: u64,
    /// Requests with inline data.
    pub(crate) inline: u64,
    /// Requests whose data the card reads from memory, and these bytes.
    pub(crate) gathered: u64,
    pub(crate) gathered_bytes: u64,
    /// Requests that the card reads from the queue, and their bytes.
    pub(crate) fetched: u64,
    pub(crate) fetched_bytes: u64,
    /// Bytes of requests that the driver writes to the card.
    pub(crate) pushed_bytes: u64,
    /// Messages that were acknowledged, their packets and bytes, and those with immediate data.
    pub(crate) messages: u64,
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    pub(crate) immediates: u64,
    /// Receive work requests, and the calls that posted them.
    pub(crate) receives: u64,
    pub(crate) receive_posts: u64,
    /// Calls of `ibv_poll_cq`, those that found something, and what they found.
    pub(crate) polls: u64,
    pub(crate) fruitful_polls: u64,
    pub(crate) completions: u64,
    /// Calls that post or poll, and for which mlx5 takes a lock.
    pub(crate) locks: u64,
}

/// What a queue pair was asked to have.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Capacities {
    pub(crate) sends: u64,
    pub(crate) receives: u64,
    pub(crate) send_elements: u64,
    pub(crate) receive_elements: u64,
    pub(crate) inline: u64,
    /// The operations that it was made for: bit n is `ibv_wr_opcode` n. `None`: that was not said.
    pub(crate) operations: Option<u64>,
}

/// The queues of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Queues {
    pub(crate) queue_pairs: Vec<Capacities>,
    /// Entries of each completion queue.
    pub(crate) completion_queues: Vec<u64>,
}

/// A process as the device sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Seen {
    pub(crate) counted: Counted,
    pub(crate) queues: Queues,
    /// Commands to the card's firmware so far, by kind.
    pub(crate) commands: BTreeMap<String, u64>,
}

#[derive(Deserialize)]
struct QueuePair {
    capacities: Capacities,
    counters: Value,
    work: Value,
}

#[derive(Deserialize)]
struct CompletionQueue {
    entries: u64,
    polls: u64,
    fruitful_polls: u64,
    completions: u64,
    locks: u64,
}

impl Seen {
    /// What `text` says of process `pid`.
    ///
    /// # Errors
    /// [`Error::Unreadable`] if it is not what this version of the device prints.
    pub(crate) fn parse(text: &str, pid: u32) -> Result<Self> {
        let stat: Value = serde_json::from_str(text).map_err(|e| unreadable(&e))?;
        let of_process = |entry: &&Value| entry["pid"] == pid;
        let mut seen = Self::default();
        let process = stat["processes"].as_array().into_iter().flatten().find(of_process);
        let commands = process.map_or(Value::Null, |process| process["commands"].clone());
        seen.commands = serde_json::from_value(commands).map_err(|e| unreadable(&e))?;
        for device in stat["devices"].as_array().into_iter().flatten() {
            for entry in device["queue_pairs"].as_array().into_iter().flatten().filter(of_process) {
                seen.add_queue_pair(
                    serde_json::from_value(entry.clone()).map_err(|e| unreadable(&e))?,
                )?;
            }
            for entry in
                device["completion_queues"].as_array().into_iter().flatten().filter(of_process)
            {
                seen.add_completion_queue(
                    &serde_json::from_value(entry.clone()).map_err(|e| unreadable(&e))?,
                );
            }
        }
        Ok(seen)
    }

    fn add_queue_pair(&mut self, pair: QueuePair) -> Result<()> {
        let number = |of: &Value, name: &str| {
            of[name].as_u64().ok_or_else(|| {
                Error::Unreadable(format!("softrnic stat has no {name} of a queue pair"))
            })
        };
        let work = |name: &str| number(&pair.work, name);
        let c = &mut self.counted;
        c.requests += work("requests")?;
        c.doorbells += work("doorbells")?;
        c.inline += work("inline")?;
        c.gathered += work("gathered")?;
        c.gathered_bytes += work("gathered_bytes")?;
        c.fetched += work("fetched")?;
        c.fetched_bytes += work("fetched_bytes")?;
        c.pushed_bytes += work("pushed_bytes")?;
        c.packets += work("packets")?;
        c.immediates += work("immediates")?;
        c.receives += work("receives")?;
        c.receive_posts += work("receive_posts")?;
        c.locks += work("locks")?;
        c.messages += number(&pair.counters, "messages")?;
        c.bytes += number(&pair.counters, "bytes")?;
        self.queues.queue_pairs.push(pair.capacities);
        Ok(())
    }

    fn add_completion_queue(&mut self, queue: &CompletionQueue) {
        self.counted.polls += queue.polls;
        self.counted.fruitful_polls += queue.fruitful_polls;
        self.counted.completions += queue.completions;
        self.counted.locks += queue.locks;
        self.queues.completion_queues.push(queue.entries);
    }
}

impl Counted {
    /// What was counted after `before`.
    pub(crate) fn since(&self, before: &Self) -> Self {
        Self {
            requests: self.requests - before.requests,
            doorbells: self.doorbells - before.doorbells,
            inline: self.inline - before.inline,
            gathered: self.gathered - before.gathered,
            gathered_bytes: self.gathered_bytes - before.gathered_bytes,
            fetched: self.fetched - before.fetched,
            fetched_bytes: self.fetched_bytes - before.fetched_bytes,
            pushed_bytes: self.pushed_bytes - before.pushed_bytes,
            messages: self.messages - before.messages,
            packets: self.packets - before.packets,
            bytes: self.bytes - before.bytes,
            immediates: self.immediates - before.immediates,
            receives: self.receives - before.receives,
            receive_posts: self.receive_posts - before.receive_posts,
            polls: self.polls - before.polls,
            fruitful_polls: self.fruitful_polls - before.fruitful_polls,
            completions: self.completions - before.completions,
            locks: self.locks - before.locks,
        }
    }
}

fn unreadable(problem: &serde_json::Error) -> Error {
    Error::Unreadable(format!("softrnic stat: {problem}"))
}

/// Width of the first column; of each other one.
const WORDS: usize = 36;
const NUMBER: usize = 11;

/// What one transport takes in one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Side {
    /// Its name, and the release of NCCL where it is built in.
    name: String,
    /// The costs of one message, by the names of [`QUANTITIES`].
    per_message: BTreeMap<String, f64>,
    connection: Connection,
}

/// What a connection takes, at both ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Connection {
    queue_pairs: usize,
    completion_queues: usize,
    /// Commands to the card.
    commands: u64,
    /// Bytes of its queues, by the names of [`DRIVERS`].
    queue_bytes: BTreeMap<String, u64>,
}

/// All transports in one case.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    pub(crate) case: Case,
    #[serde(rename = "transports")]
    pub(crate) sides: Vec<Side>,
}

impl Side {
    pub(crate) fn of(report: &CostReport) -> Self {
        let CostReport { identity, messages, counted, queues, commands } = report;
        let name = match identity.nccl_version {
            Some(version) => format!("NCCL {}", release::version_text(version)),
            None => identity.name.clone(),
        };
        let cost = |quantity: &Quantity| {
            (quantity.name.to_owned(), quantity.per_message(counted, *messages))
        };
        let connection = Connection {
            queue_pairs: queues.queue_pairs.len(),
            completion_queues: queues.completion_queues.len(),
            commands: *commands,
            queue_bytes: DRIVERS
                .iter()
                .map(|driver| (driver.name.to_owned(), driver.bytes(queues)))
                .collect(),
        };
        Self { name, per_message: QUANTITIES.iter().map(cost).collect(), connection }
    }
}

/// All cases as one JSON object.
///
/// # Errors
/// [`crate::error::Error::Unreadable`] if a number has no JSON.
pub(crate) fn json(reports: &[CaseReport]) -> Result<String> {
    let all = serde_json::json!({ "schema": "ferrite-cost/1", "tool": version::text(), "cases": reports });
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

/// A table for each case, and one for each kind of connection.
pub(crate) fn text(reports: &[CaseReport]) -> String {
    let mut text = String::new();
    for report in reports {
        text += &heading(&format!("{}; per message", report.case), &report.sides);
        for quantity in &QUANTITIES {
            let cost = |side: &Side| {
                side.per_message.get(quantity.name).map_or_else(|| "-".into(), |cost| count(*cost))
            };
            text += &row(quantity.words, report.sides.iter().map(cost));
        }
        text.push('\n');
    }
    for (index, report) in reports.iter().enumerate() {
        if reports[..index].iter().any(|before| before.case.connects_like(report.case)) {
            continue;
        }
        text += &heading(
            &format!("{}; per connection, both ends", connection_words(report.case)),
            &report.sides,
        );
        text += &row(
            "queue pairs",
            report.sides.iter().map(|side| side.connection.queue_pairs.to_string()),
        );
        text += &row(
            "completion queues",
            report.sides.iter().map(|side| side.connection.completion_queues.to_string()),
        );
        text += &row(
            "commands to the card",
            report.sides.iter().map(|side| side.connection.commands.to_string()),
        );
        for driver in &DRIVERS {
            let bytes = |side: &Side| side.connection.queue_bytes.get(driver.name).copied();
            let kib = |side: &Side| {
                bytes(side)
                    .map_or_else(|| "-".into(), |bytes| format!("{:.0}", bytes as f64 / 1024.0))
            };
            text += &row(
                &format!("queues as {} lays them out, KiB", driver.name),
                report.sides.iter().map(kib),
            );
        }
        text.push('\n');
    }
    text
}

fn heading(words: &str, sides: &[Side]) -> String {
    format!("{words}\n{}", row("", sides.iter().map(|side| side.name.clone())))
}

fn row(words: &str, cells: impl Iterator<Item = String>) -> String {
    let cells: String =
        cells.map(|cell| format!(" {cell:>width$}", width = NUMBER.max(cell.len()))).collect();
    format!("  {words:<WORDS$}{cells}\n")
}

/// As many digits as tell something.
fn count(value: f64) -> String {
    match value {
        1000.0.. => format!("{value:.0}"),
        _ if value.fract() == 0.0 => format!("{value}"),
        _ => format!("{value:.2}"),
    }
}

/// Messages that are counted in each case, at least.
const MESSAGES: u64 = 512;

/// What to count.
#[derive(Debug, Clone)]
pub(crate) struct CostRequest {
    /// This program.
    pub(crate) program: PathBuf,
    /// The software device's command line.
    pub(crate) control: PathBuf,
    /// The folder of its library.
    pub(crate) folder: PathBuf,
    /// The transports.
    pub(crate) sources: Vec<Source>,
    pub(crate) cases: Vec<Case>,
    /// How long a process may say nothing.
    pub(crate) silence: Duration,
}

impl CostRequest {
    /// Counts; `begin` gets what comes next.
    ///
    /// # Errors
    /// [`Error::Worker`] if a transport cannot be tried, or does the wrong thing;
    /// [`Error::Interrupted`].
    pub(crate) fn run(&self, begin: &mut dyn FnMut(&str)) -> Result<Vec<CaseReport>> {
        let mut reports = Vec::new();
        for &case in &self.cases {
            let mut sides = Vec::new();
            for source in &self.sources {
                output::check()?;
                begin(&format!("{case}: {}", source.file().display()));
                sides.push(Side::of(&self.count(source, case)?));
            }
            reports.push(CaseReport { case, sides });
        }
        Ok(reports)
    }

    fn count(&self, source: &Source, case: Case) -> Result<CostReport> {
        let verbs = Verbs::softrnic(&self.folder)?;
        let fabric = new_fabric_name();
        let job = CostJob {
            source: source.clone(),
            verbs: verbs.clone(),
            case,
            rounds: MESSAGES.div_ceil(case.depth as u64),
            control: self.control.clone(),
            fabric: fabric.clone(),
            silence: self.silence.as_secs(),
        };
        let mut command = self.command(case, &serde_json::to_string(&job)?);
        verbs.apply(&mut command, &fabric);
        if std::env::var_os("NCCL_DEBUG").is_none() {
            command.env_remove("NCCL_DEBUG");
        }
        command.env("NCCL_NET_PLUGIN", source.net_plugin()).envs(case.environment());
        let printed = subprocess::run_command(command, self.silence);
        verbs.clean(&fabric);
        output::check()?;
        // The built-in transports print there, too.
        let report = printed.lines.iter().rev().find_map(|line| serde_json::from_str(line).ok());
        match report {
            Some(report) if printed.failure.is_none() => Ok(report),
            _ => Err(Error::Worker {
                rank: 0,
                what: format!("{} with {case}: {}", source.file().display(), printed.words()),
                log: printed.log.iter().rev().take(8).rev().cloned().collect(),
                wrong: printed.code == Some(1),
            }),
        }
    }

    /// Two ports are one device to a transport that finds them on one card in sysfs, which the
    /// software device's command line shows.
    fn command(&self, case: Case, job: &str) -> Command {
        let mut command = match case.rails {
            1 => Command::new(&self.program),
            _ => {
                let mut command = Command::new(&self.control);
                command.arg("run").arg("--library").arg(&self.folder);
                command.args(["--faithful", "--same-card", "--"]).arg(&self.program);
                command
            }
        };
        command.args([WORKER, job]);
        command
    }
}

/// The hidden subcommand that makes a worker of this program.
pub(crate) const WORKER: &str = "cost-worker";
/// Rounds before anything is counted: queues and what is learnt of rails have settled.
const WARM_UP: u64 = 64;
/// Which test the contents of messages are of.
const CONTENTS: u64 = 900;

/// What a worker does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CostJob {
    pub(crate) source: Source,
    pub(crate) verbs: Verbs,
    pub(crate) case: Case,
    /// Rounds that are counted, of as many messages as are in flight.
    pub(crate) rounds: u64,
    /// The software device's command line, and the name of its fabric.
    pub(crate) control: PathBuf,
    pub(crate) fabric: String,
    /// How long nothing may happen; s.
    pub(crate) silence: u64,
}

/// What a worker has found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct CostReport {
    pub(crate) identity: Identity,
    /// Messages that were counted.
    pub(crate) messages: u64,
    pub(crate) counted: Counted,
    pub(crate) queues: Queues,
    /// Commands to the card's firmware that the connection took, with the registration of one
    /// buffer at each end.
    pub(crate) commands: u64,
}

/// Does the job that is written in `text`, and prints what it has found.
///
/// # Errors
/// Those of the transport; [`Error::Unreadable`] if the device's counts are not understood;
/// [`Error::Data`] if a message is wrong.
pub(crate) fn main(text: &str) -> Result<()> {
    let job: CostJob = serde_json::from_str(text)?;
    host::raise_open_files();
    let report = job.perform()?;
    output::write_stdout(&format!("{}\n", serde_json::to_string(&report)?))
}

impl CostJob {
    fn perform(&self) -> Result<CostReport> {
        let Case { bytes, depth, rails, .. } = self.case;
        let transport = Transport::open(&self.source)?;
        let device = |rank: usize| match rails {
            1 => transport.device_of(rank, None),
            _ => instance::device_of(&transport, rank),
        };
        let (listener, sender) = (device(0)?, device(1)?);
        let identity = transport.identity().clone();
        self.verbs.prove()?;
        let endpoints =
            Endpoints { listener, sender, silence: Duration::from_secs(self.silence), transport };
        // What a process needs once is there before anything is counted.
        endpoints.connect()?.close()?;
        let commands_before = self.commands()?;
        let conn = endpoints.connect()?;
        let mut path = Path::new(&endpoints, &conn, bytes, depth)?;
        let commands = self.commands()? - commands_before;
        (0..WARM_UP).try_for_each(|_| path.round(depth))?;
        let before = self.seen()?;
        (0..self.rounds).try_for_each(|_| path.round(depth))?;
        let after = self.seen()?;
        path.fill(CONTENTS)?;
        path.round(depth)?;
        path.check(CONTENTS, depth)?;
        drop(path);
        conn.close()?;
        Ok(CostReport {
            identity,
            messages: self.rounds * depth as u64,
            counted: after.counted.since(&before.counted),
            queues: after.queues,
            commands,
        })
    }

    fn commands(&self) -> Result<u64> {
        Ok(self.seen()?.commands.values().sum())
    }

    /// What the device says of this process.
    fn seen(&self) -> Result<Seen> {
        let output = Command::new(&self.control)
            .args(["--fabric", &self.fabric, "stat", "--json"])
            .output()
            .map_err(|source| {
                Error::io(format!("cannot start {}", self.control.display()), source)
            })?;
        if !output.status.success() {
            let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(Error::Refused(format!("the software device: {words}")));
        }
        Seen::parse(&String::from_utf8_lossy(&output.stdout), std::process::id())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, counted: &Counted) -> f64 {
        let quantity =
            QUANTITIES.iter().find(|quantity| quantity.name == name).expect("a quantity");
        quantity.per_message(counted, 2)
    }

    #[test]
    fn bytes_of_a_message_of_one_packet_with_a_clear_to_send() {
        // Twice: 8 bytes with an immediate, and 32 bytes inline in a chain of two.
        let counted = Counted {
            requests: 4,
            doorbells: 3,
            fetched: 2,
            fetched_bytes: 256,
            pushed_bytes: 128,
            gathered_bytes: 16,
            messages: 4,
            packets: 4,
            bytes: 2 * (8 + 32),
            immediates: 2,
            receives: 2,
            receive_posts: 1,
            polls: 6,
            fruitful_polls: 4,
            completions: 4,
            locks: 10,
            ..Counted::default()
        };
        assert_eq!(of("wire_bytes", &counted), (8 + 82 + 16 + 4 + 86 + 32 + 82 + 16 + 86) as f64);
        let cts = (256 + 8) / 2 + 32;
        let data = 64 + 8 + 8;
        assert_eq!(of("bus_bytes", &counted), (cts + data + 16 + 2 * 64) as f64);
        assert_eq!((of("locks", &counted), of("empty_polls", &counted)), (5.0, 1.0));
    }

    fn bytes(name: &str, sends: u64, receives: u64, inline: u64, entries: u64) -> u64 {
        let driver = DRIVERS.iter().find(|driver| driver.name == name).expect("it is known");
        let pair = Capacities {
            sends,
            receives,
            send_elements: 1,
            receive_elements: 1,
            inline,
            operations: None,
        };
        driver.bytes(&Queues { queue_pairs: vec![pair], completion_queues: vec![entries] })
    }

    #[test]
    fn an_end_of_the_built_in_transport_takes_196_kib_of_mlx5() {
        assert_eq!(bytes("mlx5", 512, 256, 0, 512), (128 + 4 + 64) << 10);
    }

    #[test]
    fn inline_data_makes_slots_larger_where_it_does_not_fit() {
        assert_eq!(bytes("mlx5", 128, 0, 60, 63), (128 * 256) + 4096);
        assert_eq!(bytes("mlx5", 128, 0, 61, 63), power(128 * 320) + 4096);
    }

    #[test]
    fn queue_pairs_for_writes_alone_have_slots_of_64_bytes() {
        let pair = Capacities {
            sends: 256,
            send_elements: 1,
            operations: Some(0b11),
            ..Capacities::default()
        };
        assert_eq!(mlx5_queue_pair(&pair), 256 * 64);
        assert_eq!(
            mlx5_queue_pair(&Capacities { inline: 192, ..pair }),
            256 * 256,
            "6 clear-to-sends of 32 bytes"
        );
    }

    #[test]
    fn queues_of_other_drivers() {
        assert_eq!(bytes("bnxt_re", 512, 256, 0, 512), 1024 * 144 + 512 * 128 + 1024 * 32);
        assert_eq!(bytes("erdma", 512, 256, 0, 512), 512 * 128 + 256 * 32 + 512 * 32);
    }

    #[test]
    fn counts_are_those_of_all_queues_of_one_process() {
        let pair = |pid: u32, n: u64| {
            serde_json::json!({
                "pid": pid,
                "capacities": { "sends": n, "receives": 1, "send_elements": 1, "receive_elements": 1, "inline": 0 },
                "counters": { "messages": n, "bytes": 8 * n },
                "work": {
                    "requests": n, "doorbells": n, "inline": 0, "gathered": n, "gathered_bytes": 8 * n, "fetched": 0,
                    "fetched_bytes": 0, "pushed_bytes": 64 * n, "packets": n, "immediates": n, "receives": 0,
                    "receive_posts": 0, "locks": 4 * n,
                },
            })
        };
        let queue = |pid: u32, n: u64| {
            serde_json::json!({
                "pid": pid, "entries": 511, "polls": 2 * n, "fruitful_polls": n, "completions": n, "locks": 2 * n,
            })
        };
        let stat = serde_json::json!({
            "processes": [{ "pid": 7, "commands": { "create_qp": 2 } }, { "pid": 8, "commands": { "create_qp": 9 } }],
            "devices": [
                { "queue_pairs": [pair(7, 1), pair(8, 100)], "completion_queues": [queue(7, 1), queue(8, 100)] },
                { "queue_pairs": [pair(7, 10)], "completion_queues": [queue(7, 10)] },
            ],
        });
        let seen = Seen::parse(&stat.to_string(), 7).expect("it is understood");
        let Counted { requests, bytes, polls, fruitful_polls, locks, .. } = seen.counted;
        assert_eq!((requests, bytes, polls, fruitful_polls, locks), (11, 88, 22, 11, 66));
        assert_eq!(
            seen.queues.queue_pairs.iter().map(|pair| pair.sends).collect::<Vec<_>>(),
            [1, 10]
        );
        assert_eq!(seen.queues.completion_queues, [511, 511]);
        assert_eq!(seen.commands["create_qp"], 2);
        let before = Counted { requests: 1, ..Counted::default() };
        assert_eq!(seen.counted.since(&before).requests, 10);
        let old = serde_json::json!({ "devices": [{ "queue_pairs": [{ "pid": 7 }] }] });
        assert!(
            Seen::parse(&old.to_string(), 7).is_err(),
            "an older device counts nothing of this"
        );
    }

    fn side(name: &str, cost: f64) -> Side {
        let connection = Connection {
            queue_pairs: 2,
            completion_queues: 2,
            commands: 12,
            queue_bytes: DRIVERS.iter().map(|driver| (driver.name.to_owned(), 4096)).collect(),
        };
        let per_message =
            QUANTITIES.iter().map(|quantity| (quantity.name.to_owned(), cost)).collect();
        Side { name: name.into(), per_message, connection }
    }

    #[test]
    fn a_connection_is_told_once_for_all_sizes_and_depths() {
        let case = Case { bytes: 8, depth: 1, queue_pairs: 1, rails: 1 };
        let report = |case| CaseReport { case, sides: vec![side("A", 2.0), side("B", 0.03125)] };
        let reports =
            [report(case), report(Case { depth: 8, ..case }), report(Case { rails: 2, ..case })];
        let text = text(&reports);
        let headings: Vec<_> =
            text.lines().filter(|line| !line.is_empty() && !line.starts_with(' ')).collect();
        assert_eq!(
            headings,
            [
                "8 B, 1 in flight, 1 queue pair, 1 rail; per message",
                "8 B, 8 in flight, 1 queue pair, 1 rail; per message",
                "8 B, 1 in flight, 1 queue pair, 2 rails; per message",
                "1 queue pair, 1 rail; per connection, both ends",
                "1 queue pair, 2 rails; per connection, both ends",
            ]
        );
        assert!(
            text.contains(&row("doorbells", ["2".into(), "0.03".into()].into_iter())),
            "{text}"
        );
        assert!(
            text.contains(&row(
                "queues as mlx5 lays them out, KiB",
                ["4".into(), "4".into()].into_iter()
            )),
            "{text}"
        );
        let json: Value = serde_json::from_str(&json(&reports).expect("JSON")).expect("JSON");
        assert_eq!(json["tool"], version::text());
        assert_eq!(json["cases"][2]["case"]["rails"], 2);
        assert_eq!(json["cases"][0]["transports"][1]["per_message"]["doorbells"], 0.03125);
        assert_eq!(json["cases"][0]["transports"][0]["connection"]["queue_bytes"]["mlx5"], 4096);
    }

    #[test]
    fn counts_have_two_places_where_they_are_no_whole_numbers() {
        assert_eq!(
            [0.0, 1.0, 0.5, 4.03125, 70_000.25].map(count),
            ["0", "1", "0.50", "4.03", "70000"],
            "no more than tell something"
        );
    }
}
