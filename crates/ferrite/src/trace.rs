//! `ferrite trace`: messages that the plugin has timed, at both ends of their connections, as a
//! timeline.
//!
//! Like `ferrite top` it opens files for reading only.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

use nccl_net::inspect::operation::Call;
use nccl_net::inspect::stats::layout::{FILE_PREFIX, LAYOUT_MAJOR, header, record, timed};
use serde_json::{Value, json};

use crate::top::stats_file::{End, StatsFile};
use crate::top::table::time;

/// Times are in nanoseconds, by the monotonic clock of the end's machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Timed {
    /// Its number, counted from 0 on, in the order in which the receiver has asked. Receiver: of
    /// the first message of the `irecv`.
    pub(crate) number: u64,
    /// Receiver: messages of the `irecv`. 1 for a sender.
    pub(crate) messages: u8,
    /// Bytes of all of them.
    pub(crate) bytes: u64,
    /// When it was found complete. Of a receiver, the last stage comes after that.
    pub(crate) at: i64,
    /// The time in each stage.
    pub(crate) stages: [i64; record::STAGES],
    /// The operation of NCCL that it is of.
    pub(crate) operation: Option<Call>,
}

/// No machine runs for longer, and no stage takes longer: 18 years.
const MOST: u64 = 1 << 59;

impl Timed {
    /// The message in these words. `None`: there is none, they are being written, or they are not
    /// possible.
    pub(crate) fn new(words: &[u64]) -> Option<Self> {
        let number = words[timed::MESSAGE].checked_sub(1)?;
        let stages: [u64; record::STAGES] =
            std::array::from_fn(|stage| words[timed::STAGES + stage]);
        let all = stages.iter().try_fold(0_u64, |sum, ns| sum.checked_add(*ns))?;
        if words[timed::MESSAGE_AGAIN] != words[timed::MESSAGE]
            || words[timed::AT] >= MOST
            || all >= MOST
        {
            return None;
        }
        Some(Self {
            number,
            messages: (words[timed::BYTES] >> 56) as u8,
            bytes: words[timed::BYTES] & ((1 << 48) - 1),
            at: words[timed::AT] as i64,
            stages: stages.map(|ns| ns as i64),
            operation: Call::from_bits(words[timed::OPERATION]),
        })
    }

    /// All in the words of a record, in no order.
    pub(crate) fn all(record: &[u64]) -> impl Iterator<Item = Self> {
        let words = record.get(record::TIMED..).unwrap_or_default();
        words.chunks_exact(timed::WORDS).take(record::TIMED_MESSAGES).filter_map(Self::new)
    }

    /// Sender: when its `isend` was accepted.
    pub(crate) fn sent(&self) -> i64 {
        self.at - self.stages[record::WIRE]
    }

    /// When its first stage began.
    pub(crate) fn begin(&self, is_sender: bool) -> i64 {
        let before = if is_sender { &self.stages[..] } else { &self.stages[..=record::DATA] };
        self.at - before.iter().sum::<i64>()
    }

    /// When its last stage ended.
    pub(crate) fn end(&self, is_sender: bool) -> i64 {
        if is_sender { self.at } else { self.at + self.stages[record::CONSUME] }
    }

    /// How long the transport had it: a sender from the first `isend`, a receiver from `irecv` to
    /// its completion.
    pub(crate) fn duration(&self, is_sender: bool) -> i64 {
        match is_sender {
            true => self.stages[record::CTS] + self.stages[record::WIRE],
            false => self.stages[record::ANNOUNCE] + self.stages[record::DATA],
        }
    }
}

/// The messages of all processes.
#[derive(Debug, Default)]
pub(crate) struct Recording {
    /// By file.
    pub(crate) processes: BTreeMap<PathBuf, Process>,
    /// Files that are not used, and why.
    pub(crate) unused: BTreeMap<PathBuf, String>,
    /// Files of processes that had ended before.
    pub(crate) left_out: BTreeSet<PathBuf>,
}

/// One process.
#[derive(Debug)]
pub(crate) struct Process {
    /// Process id.
    pub(crate) pid: u64,
    /// Its rank: its launcher's word, or else what its sends tell.
    pub(crate) rank: Option<u64>,
    /// Host name.
    pub(crate) host: String,
    /// One in so many messages is timed.
    pub(crate) sample: u64,
    /// Whether it lived when it was last looked at.
    pub(crate) is_alive: bool,
    /// Names the monotonic clock that its times are by: processes with the same one have the same
    /// clock.
    pub(crate) clock: String,
    /// The time of day at that clock's zero, in nanoseconds since 1970.
    pub(crate) zero: i64,
    /// Its ends, by number and generation of the record.
    pub(crate) ends: BTreeMap<(usize, u64), TimedEnd>,
}

/// One end of a connection, and its messages.
#[derive(Debug)]
pub(crate) struct TimedEnd {
    /// The end.
    pub(crate) end: End,
    /// A number that both ends of a connection have; 0: it is not known.
    pub(crate) connection: u64,
    /// By number.
    pub(crate) messages: BTreeMap<u64, Timed>,
}

impl Recording {
    /// Looks once more at the files of `folder`; unless `only` is empty, at those of the processes
    /// with these ids.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub(crate) fn look(&mut self, folder: &Path, only: &[u64]) -> std::io::Result<()> {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if !path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(FILE_PREFIX))
            {
                continue;
            }
            if self.left_out.contains(&path) {
                continue;
            }
            match StatsFile::read(&path) {
                Ok(file) if !only.is_empty() && !only.contains(&file.pid()) => {}
                Ok(file) => self.add(path, &file),
                // It has ended meanwhile.
                Err(_) if !path.exists() => {}
                Err(why) => drop(self.unused.insert(path, why)),
            }
        }
        Ok(())
    }

    /// Adds what is in a file.
    pub(crate) fn add(&mut self, path: PathBuf, file: &StatsFile) {
        let why = match (file.has_timed_messages(), file.word(header::SAMPLE)) {
            (false, _) => Some(format!(
                "layout {LAYOUT_MAJOR}.{}, of a Ferrite that keeps no timed messages",
                file.word(header::LAYOUT) & 0xffff_ffff
            )),
            (true, 0) => Some("no message is timed: FERRITE_SAMPLE is 0 there".into()),
            _ => None,
        };
        if let Some(why) = why {
            self.unused.insert(path, why);
            return;
        }
        self.unused.remove(&path);
        let process = self.processes.entry(path).or_insert_with(|| Process::new(file));
        process.add(file);
    }

    /// Leaves out the processes of `folder` that have ended, unless all have: their messages are of
    /// another job. They count as long as they live while it is looked.
    pub(crate) fn leave_out_dead(&mut self, folder: &Path) {
        let is_here = |path: &PathBuf| path.parent() == Some(folder);
        let of_here = || self.processes.iter().filter(|(path, _)| is_here(path));
        if of_here().any(|(_, process)| process.is_alive) {
            let dead: Vec<_> = of_here()
                .filter(|(_, process)| !process.is_alive)
                .map(|(path, _)| path.clone())
                .collect();
            self.processes.retain(|path, _| !dead.contains(path));
            self.left_out.extend(dead);
        }
    }

    /// Forgets the messages of living processes that were complete before `time`, by this machine's
    /// monotonic clock.
    pub(crate) fn forget_before(&mut self, time: i64) {
        let ends = self
            .processes
            .values_mut()
            .filter(|process| process.is_alive)
            .flat_map(|one| one.ends.values_mut());
        ends.for_each(|end| end.messages.retain(|_, message| message.at >= time));
    }

    /// Messages at both ends: one that was timed at both counts twice.
    pub(crate) fn len(&self) -> usize {
        self.ends().map(|(_, end)| end.messages.len()).sum()
    }

    /// All ends, with their processes.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (&Process, &TimedEnd)> {
        self.processes
            .values()
            .flat_map(|process| process.ends.values().map(move |end| (process, end)))
    }
}

impl Process {
    fn new(file: &StatsFile) -> Self {
        let [high, low] = std::array::from_fn(|word| file.word(header::BOOT + word));
        let zero =
            file.word(header::CREATED).wrapping_sub(file.word(header::CREATED_MONOTONIC)) as i64;
        let clock =
            if (high, low) == (0, 0) { file.host() } else { format!("{high:016x}{low:016x}") };
        Self {
            pid: file.pid(),
            rank: None,
            host: file.host(),
            sample: file.word(header::SAMPLE),
            is_alive: false,
            clock,
            zero,
            ends: BTreeMap::new(),
        }
    }

    fn add(&mut self, file: &StatsFile) {
        (self.is_alive, self.rank) = (file.is_alive, file.rank());
        for (number, words) in file.records() {
            let end = End::new(number, words);
            let connection = words[record::CONNECTION];
            let known = self.ends.entry((number, end.generation)).or_insert_with(|| TimedEnd {
                end: end.clone(),
                connection,
                messages: BTreeMap::new(),
            });
            known.end = end;
            // Of a receiver the last stage may be known only now.
            known.messages.extend(Timed::all(words).map(|message| (message.number, message)));
        }
    }
}

/// Of all `ends` those that are of one connection: the sender's place and the receiver's.
pub(crate) fn connections<'a>(ends: impl Iterator<Item = &'a TimedEnd>) -> Vec<(usize, usize)> {
    let mut known: BTreeMap<u64, [Vec<usize>; 2]> = BTreeMap::new();
    for (place, end) in ends.enumerate().filter(|(_, end)| end.connection != 0) {
        known.entry(end.connection).or_default()[usize::from(end.end.is_sender)].push(place);
    }
    // A number that several have tells nothing.
    let pair = |[receivers, senders]: &[Vec<usize>; 2]| match (&senders[..], &receivers[..]) {
        ([sender], [receiver]) => Some((*sender, *receiver)),
        _ => None,
    };
    known.values().filter_map(pair).collect()
}

/// The messages that both ends have timed. Of an `irecv` of several messages it is not known which
/// of them the sender's is.
pub(crate) fn messages<'a>(
    sender: &'a TimedEnd,
    receiver: &'a TimedEnd,
) -> impl Iterator<Item = (&'a Timed, &'a Timed)> {
    let of_one = |received: &&Timed| received.messages == 1;
    sender
        .messages
        .values()
        .filter_map(move |sent| Some((sent, receiver.messages.get(&sent.number).filter(of_one)?)))
}

// How far the clocks of several machines are apart, from messages between them.
//
// A sender's `isend` is accepted after the receiver's `irecv` has begun, and before the message is
// found arrived. Both ends number their messages alike, so each message that both have timed bounds
// the difference of their clocks from both sides; messages in the other direction bound it too. The
// middle between the tightest bounds is taken: it is wrong by half their distance at most.

/// How to set one clock against the first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Offset {
    /// What is to be added to its times, in nanoseconds.
    pub(crate) ns: i64,
    /// By how much that may be wrong. `None`: by as much as the machines' times of day are, since
    /// no message tells.
    pub(crate) uncertainty: Option<i64>,
}

/// What the time by the second clock is more than by the first, at least and at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bounds {
    low: i64,
    high: i64,
}

impl Bounds {
    const NONE: Self = Self { low: i64::MIN, high: i64::MAX };

    /// Of a message whose sender has the first clock.
    fn of(sent: &Timed, received: &Timed) -> Self {
        Self { low: received.begin(false) - sent.sent(), high: received.at - sent.sent() }
    }

    fn reversed(self) -> Self {
        Self { low: self.high.saturating_neg(), high: self.low.saturating_neg() }
    }

    fn and(self, other: Self) -> Self {
        Self { low: self.low.max(other.low), high: self.high.min(other.high) }
    }

    fn middle(self) -> i64 {
        ((i128::from(self.low) + i128::from(self.high)) / 2) as i64
    }

    /// Clocks that run at different rates make the bounds contradict each other; their distance is
    /// how far the clocks have gone apart.
    fn half_width(self) -> i64 {
        (self.high.abs_diff(self.low).div_ceil(2)).min(i64::MAX as u64) as i64
    }
}

/// How to set each clock of `ends`, whose pairs `connections` are. The first one by name is as it
/// is.
pub(crate) fn offsets(
    ends: &[(&Process, &TimedEnd)],
    connections: &[(usize, usize)],
) -> BTreeMap<String, Offset> {
    let mut bounds: BTreeMap<(&str, &str), Bounds> = BTreeMap::new();
    for &(sender, receiver) in connections {
        let ((from, sender), (to, receiver)) = (ends[sender], ends[receiver]);
        for (sent, received) in messages(sender, receiver) {
            let found = Bounds::of(sent, received);
            for (key, found) in [((from, to), found), ((to, from), found.reversed())] {
                let known = bounds.entry((&key.0.clock, &key.1.clock)).or_insert(Bounds::NONE);
                *known = known.and(found);
            }
        }
    }
    bounds.retain(|(from, to), _| from != to);
    let zeros: BTreeMap<&str, i64> =
        ends.iter().map(|(process, _)| (process.clock.as_str(), process.zero)).collect();
    set(&zeros, &bounds).into_iter().map(|(clock, offset)| (clock.to_owned(), offset)).collect()
}

/// Sets clock after clock, each by the one whose bounds are tightest of those that are set.
fn set<'a>(
    zeros: &BTreeMap<&'a str, i64>,
    bounds: &BTreeMap<(&'a str, &'a str), Bounds>,
) -> BTreeMap<&'a str, Offset> {
    let Some((first, first_zero)) = zeros.first_key_value() else { return BTreeMap::new() };
    let mut done = BTreeMap::from([(*first, Offset { ns: 0, uncertainty: Some(0) })]);
    while done.len() < zeros.len() {
        let reached = |((from, to), _): &(&(&'a str, &'a str), &Bounds)| {
            done.contains_key(from) && !done.contains_key(to)
        };
        let next = bounds.iter().filter(reached).min_by_key(|(_, bounds)| bounds.half_width());
        let (clock, offset) = match next {
            Some(((from, to), bounds)) => {
                let ns = done[from].ns.saturating_sub(bounds.middle());
                let add = |sum: i64| sum.saturating_add(bounds.half_width());
                (*to, Offset { ns, uncertainty: done[from].uncertainty.map(add) })
            }
            None => {
                let Some((clock, zero)) =
                    zeros.iter().find(|(clock, _)| !done.contains_key(*clock))
                else {
                    break;
                };
                (*clock, Offset { ns: zero.saturating_sub(*first_zero), uncertainty: None })
            }
        };
        done.insert(clock, offset);
    }
    done
}

/// The ends with their messages, whose times are by the first machine's clock once the offset is
/// added.
#[derive(Debug)]
pub(crate) struct Timeline<'a> {
    /// By process, ranks in their order; sending ends before receiving ones.
    pub(crate) ends: Vec<Placed<'a>>,
    /// The places in `ends` of the sender and the receiver of each connection of which both are
    /// known.
    pub(crate) connections: Vec<(usize, usize)>,
    /// How each clock was set.
    pub(crate) clocks: BTreeMap<String, Offset>,
    /// When the first message begins.
    begin: i64,
}

/// An end.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed<'a> {
    /// Its process.
    pub(crate) process: &'a Process,
    /// Number of the process, from 1 on.
    pub(crate) process_number: usize,
    /// The end.
    pub(crate) end: &'a TimedEnd,
    /// What is to be added to its times, in nanoseconds.
    offset: i64,
}

impl<'a> Timeline<'a> {
    /// Of all ends of `recording` that have messages.
    pub(crate) fn new(recording: &'a Recording) -> Self {
        let mut processes: Vec<&Process> = recording.processes.values().collect();
        processes.sort_by_key(|process| {
            (process.rank.is_none(), process.rank, &process.host, process.pid)
        });
        let mut found: Vec<(usize, &Process, &TimedEnd)> = Vec::new();
        for (place, process) in processes.into_iter().enumerate() {
            let mut ends: Vec<_> =
                process.ends.values().filter(|end| !end.messages.is_empty()).collect();
            ends.sort_by_key(|end| (!end.end.is_sender, end.end.peer.rank, &end.end.device));
            found.extend(ends.into_iter().map(|end| (place + 1, process, end)));
        }
        let connections = connections(found.iter().map(|(_, _, end)| *end));
        let with_clock: Vec<_> = found.iter().map(|(_, process, end)| (*process, *end)).collect();
        let clocks = offsets(&with_clock, &connections);
        let ends: Vec<_> = found
            .into_iter()
            .map(|(process_number, process, end)| Placed {
                process,
                process_number,
                end,
                offset: clocks[&process.clock].ns,
            })
            .collect();
        let begins = ends.iter().flat_map(|placed| {
            placed
                .end
                .messages
                .values()
                .map(|message| placed.time(message.begin(placed.end.end.is_sender)))
        });
        let begin = begins.min().unwrap_or(0);
        Self { ends, connections, clocks, begin }
    }

    /// Nanoseconds from the beginning of the timeline to `time` of an end.
    pub(crate) fn since_begin(&self, placed: &Placed<'_>, time: i64) -> i64 {
        placed.time(time).saturating_sub(self.begin)
    }

    /// What there is to say of how the clocks were set; empty if there is one clock.
    pub(crate) fn clock_lines(&self) -> Vec<String> {
        let host = |clock: &str| {
            let of = self.ends.iter().find(|placed| placed.process.clock == clock);
            of.map_or_else(String::new, |placed| placed.process.host.clone())
        };
        let mut clocks = self.clocks.iter();
        let Some((first, _)) = clocks.next() else { return Vec::new() };
        let line = |(clock, offset): (&String, &Offset)| match offset.uncertainty {
            Some(ns) => format!(
                "the clock of {} is set by messages, to {} us of that of {}",
                host(clock),
                (ns as u64).div_ceil(1000),
                host(first)
            ),
            None => format!(
                "the clock of {} is set by the time of day: no message was timed at both ends that leads to {}",
                host(clock),
                host(first)
            ),
        };
        clocks.map(line).collect()
    }
}

impl Placed<'_> {
    fn time(&self, time: i64) -> i64 {
        time.saturating_add(self.offset)
    }

    /// The process, for people.
    pub(crate) fn process_name(&self) -> String {
        let Process { rank, host, pid, .. } = self.process;
        let rank = rank.map_or_else(String::new, |rank| format!("rank {rank}, "));
        format!("{rank}{host}, process {pid}")
    }

    /// The end, for people.
    pub(crate) fn name(&self) -> String {
        let end = &self.end.end;
        let peer = end.peer.rank.map_or_else(
            || "process ".to_owned() + &end.peer.pid.to_string(),
            |rank| format!("rank {rank}"),
        );
        let way = if end.is_sender { "to" } else { "from" };
        format!("{way} {peer} on {} over {}", end.peer.host, end.device)
    }
}

// The timeline in Chrome's trace event format (JSON), which Perfetto and chrome://tracing read.
//
// A process is a process, an end of a connection a thread of it. Each message is a slice, and its
// stages are slices within that. An arrow leads from the `irecv` to the `isend` that its
// clear-to-send lets pass, and from there to the message's arrival.

/// The whole file.
pub(crate) fn document(timeline: &Timeline<'_>) -> Value {
    let mut events = Vec::new();
    let mut last_process = 0;
    for (track, placed) in timeline.ends.iter().enumerate() {
        if placed.process_number != last_process {
            last_process = placed.process_number;
            events.push(named(
                "process_name",
                placed,
                track,
                json!({"name": placed.process_name()}),
            ));
            events.push(named(
                "process_sort_index",
                placed,
                track,
                json!({"sort_index": placed.process_number}),
            ));
        }
        events.push(named("thread_name", placed, track, json!({"name": placed.name()})));
        events.push(named("thread_sort_index", placed, track, json!({"sort_index": track})));
        slices(timeline, placed, track, &mut events);
    }
    let mut arrows = 0;
    for &(sender, receiver) in &timeline.connections {
        for (sent, received) in messages(timeline.ends[sender].end, timeline.ends[receiver].end) {
            let (irecv, isend) = ((receiver, received.begin(false)), (sender, sent.sent()));
            // An arrow ends in a slice, and not where that is over.
            let arrival = (receiver, received.at - 1);
            for (name, from, to) in [("clear-to-send", irecv, isend), ("message", isend, arrival)] {
                arrows += 1;
                events.extend([("s", from), ("f", to)].map(|(phase, (track, time))| {
                    let placed = &timeline.ends[track];
                    json!({"ph": phase, "bp": "e", "id": arrows, "name": name, "cat": "ferrite", "pid": placed.process_number,
                        "tid": track + 1, "ts": us(timeline.since_begin(placed, time))})
                }));
            }
        }
    }
    json!({"displayTimeUnit": "ns", "otherData": {"clocks": timeline.clock_lines()}, "traceEvents": events})
}

fn named(what: &str, placed: &Placed<'_>, track: usize, value: Value) -> Value {
    json!({"ph": "M", "name": what, "pid": placed.process_number, "tid": track + 1, "args": value})
}

/// The slices of an end. Messages are timed one after the other; where rounding says otherwise, one
/// begins when the last has ended.
fn slices(timeline: &Timeline<'_>, placed: &Placed<'_>, track: usize, events: &mut Vec<Value>) {
    let end = &placed.end.end;
    let mut free = i64::MIN;
    for message in placed.end.messages.values() {
        let begin = timeline.since_begin(placed, message.begin(end.is_sender)).max(free);
        let over = timeline.since_begin(placed, message.end(end.is_sender)).max(begin);
        free = over;
        events.push(slice(
            &title(placed, message),
            placed,
            track,
            (begin, over),
            arguments(placed, message),
        ));
        let mut at = begin;
        for (name, ns) in end.stage_names().iter().zip(message.stages) {
            let until = at.saturating_add(ns).min(over);
            if until > at {
                events.push(slice(name, placed, track, (at, until), json!({})));
            }
            at = until;
        }
    }
}

fn slice(
    name: &str,
    placed: &Placed<'_>,
    track: usize,
    (begin, end): (i64, i64),
    arguments: Value,
) -> Value {
    json!({"ph": "X", "name": name, "cat": if placed.end.end.is_sender { "send" } else { "receive" },
        "pid": placed.process_number, "tid": track + 1, "ts": us(begin), "dur": us(end - begin), "args": arguments})
}

/// What a message is called: its operation, if that is known, and its size.
pub(crate) fn title(placed: &Placed<'_>, message: &Timed) -> String {
    let operation = message
        .operation
        .map_or_else(|| format!("message {}", message.number), |call| call.to_string());
    let peer = placed.end.end.peer.rank.map_or_else(String::new, |rank| {
        format!(" {} rank {rank}", if placed.end.end.is_sender { "to" } else { "from" })
    });
    format!("{operation}{peer}, {}", size(message.bytes))
}

fn arguments(placed: &Placed<'_>, message: &Timed) -> Value {
    let end = &placed.end.end;
    let stages = end
        .stage_names()
        .into_iter()
        .zip(message.stages)
        .map(|(name, ns)| (format!("{name}_ns"), json!(ns)));
    let mut arguments: serde_json::Map<String, Value> = stages.collect();
    arguments.extend(
        [
            ("message", json!(message.number)),
            ("bytes", json!(message.bytes)),
            ("messages_of_irecv", json!(message.messages)),
            ("operation", json!(message.operation.map(|call| call.to_string()))),
            ("connection", json!(format!("{:016x}", placed.end.connection))),
            (
                "communicator",
                json!(Some(end.communicator).filter(|id| *id != 0).map(|id| format!("{id:#x}"))),
            ),
            ("rank", json!(placed.process.rank)),
            ("peer_rank", json!(end.peer.rank)),
            ("peer_host", json!(end.peer.host)),
            ("peer_process", json!(end.peer.pid)),
            ("device", json!(end.device)),
            ("queue_pairs", json!(end.queue_pairs)),
            ("transport_ns", json!(message.duration(end.is_sender))),
        ]
        .map(|(name, value)| (name.to_owned(), value)),
    );
    Value::Object(arguments)
}

/// Microseconds, which is the format's unit.
fn us(ns: i64) -> f64 {
    ns as f64 / 1e3
}

/// A number of bytes in at most eight characters.
pub(crate) fn size(bytes: u64) -> String {
    let scaled = |unit: &str, shift: u32| {
        let value = bytes as f64 / f64::from(1_u32 << shift);
        if bytes.is_multiple_of(1 << shift) {
            format!("{value:.0} {unit}")
        } else {
            format!("{value:.1} {unit}")
        }
    };
    match bytes {
        b if b >= 1 << 30 => scaled("GiB", 30),
        b if b >= 1 << 20 => scaled("MiB", 20),
        b if b >= 1 << 10 => scaled("KiB", 10),
        b => format!("{b} B"),
    }
}

/// A message at the ends that have timed it.
#[derive(Debug, Clone, Copy)]
struct Row<'a> {
    sent: Option<(&'a Placed<'a>, &'a Timed)>,
    received: Option<(&'a Placed<'a>, &'a Timed)>,
}

impl Row<'_> {
    /// How long the transport had it: from the first `isend`, or else from `irecv` on.
    fn duration(&self) -> i64 {
        let of =
            |(placed, message): &(&Placed<'_>, &Timed)| message.duration(placed.end.end.is_sender);
        self.sent.iter().chain(&self.received).map(of).next().unwrap_or(0)
    }

    fn line(&self) -> String {
        let Some((placed, message)) = self.sent.or(self.received) else { return String::new() };
        let own =
            |end: Option<(&Placed<'_>, &Timed)>| end.and_then(|(placed, _)| placed.process.rank);
        let peer = placed.end.end.peer.rank;
        let (from, to) = match self.sent {
            Some(_) => (own(self.sent), own(self.received).or(peer)),
            None => (peer, own(self.received)),
        };
        let rank = |rank: Option<u64>| rank.map_or_else(|| "?".into(), |rank| rank.to_string());
        let stages = |end: Option<(&Placed<'_>, &Timed)>| match end {
            Some((_, message)) => message.stages.map(|ns| time(ns as f64)),
            None => ["-", "-", "-"].map(String::from),
        };
        let ([gpu, cts, wire], [announce, data, consume]) =
            (stages(self.sent), stages(self.received));
        let operation = message.operation.map_or_else(String::new, |call| call.to_string());
        format!(
            "{:>8} {:>5} {:>5} {:>8} {gpu:>8} {cts:>8} {wire:>8} {announce:>8} {data:>8} {consume:>8} {:>8} {} {operation}",
            time(self.duration() as f64),
            rank(from),
            rank(to),
            size(message.bytes),
            message.number,
            placed.end.end.device,
        )
        .trim_end()
        .to_owned()
    }
}

/// The `most` slowest messages, the slowest first. A message that both ends have timed has one
/// line.
pub(crate) fn table(timeline: &Timeline<'_>, most: usize) -> String {
    let mut rows = rows(timeline);
    rows.sort_by_key(|row| std::cmp::Reverse(row.duration()));
    let mut text = format!(
        "{:>8} {:>5} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} DEVICE\n",
        "TIME",
        "FROM",
        "TO",
        "SIZE",
        "gpu",
        "cts",
        "wire",
        "announce",
        "data",
        "consume",
        "MESSAGE"
    );
    for row in rows.iter().take(most) {
        let _ = writeln!(text, "{}", row.line());
    }
    text + "FROM, TO: ranks. TIME: cts and wire, or announce and data where the sender's end is not known\n"
}

/// Each message once.
fn rows<'a>(timeline: &'a Timeline<'a>) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    let mut shown = BTreeSet::new();
    for &(sender, receiver) in &timeline.connections {
        let (from, to) = (&timeline.ends[sender], &timeline.ends[receiver]);
        for (sent, received) in messages(from.end, to.end) {
            rows.push(Row { sent: Some((from, sent)), received: Some((to, received)) });
            shown.extend([(sender, sent.number), (receiver, received.number)]);
        }
    }
    for (place, placed) in timeline.ends.iter().enumerate() {
        for message in
            placed.end.messages.values().filter(|message| !shown.contains(&(place, message.number)))
        {
            let only = Some((placed, message));
            rows.push(match placed.end.end.is_sender {
                true => Row { sent: only, received: None },
                false => Row { sent: None, received: only },
            });
        }
    }
    rows
}

/// The number of messages that were timed, each counted once.
pub(crate) fn count(timeline: &Timeline<'_>) -> usize {
    rows(timeline).len()
}

/// The stage in which the slowest messages were for most of their time, and what that means.
/// `None`: there are no messages.
pub(crate) fn advice(timeline: &Timeline<'_>) -> Option<String> {
    let mut rows = rows(timeline);
    rows.sort_by_key(|row| std::cmp::Reverse(row.duration()));
    rows.truncate(rows.len().div_ceil(10));
    let mut sums = [0_i64; 4];
    for row in &rows {
        let stages = |end: Option<(&Placed<'_>, &Timed)>, of: [usize; 2]| {
            end.map_or([0; 2], |(_, message)| of.map(|stage| message.stages[stage]))
        };
        let sent = stages(row.sent, [record::CTS, record::WIRE]);
        // The receiver's stages cover the same time as the sender's: count it once.
        let received = if row.sent.is_some() {
            [0; 2]
        } else {
            stages(row.received, [record::ANNOUNCE, record::DATA])
        };
        sums.iter_mut()
            .zip(sent.into_iter().chain(received))
            .for_each(|(sum, ns)| *sum = sum.saturating_add(ns));
    }
    let words = [
        "cts: the receiver had not asked for the message yet (its GPU had not freed a buffer, or is late)",
        "wire: the path, or the receiver's device",
        "announce: the receiver put several clear-to-sends into one write, or its send queue was full",
        "data: the sender was late, or the path is slow; its machine's files tell which",
    ];
    let all: i64 = sums.iter().fold(0, |sum, ns| sum.saturating_add(*ns));
    let (most, meaning) =
        sums.into_iter().zip(words).max_by_key(|(ns, _)| *ns).filter(|(ns, _)| *ns > 0)?;
    let share = most as f64 / all as f64 * 100.0;
    Some(format!("{share:.0} % of the time of the slowest tenth is {meaning}"))
}

#[cfg(test)]
pub(crate) mod tests {
    use nccl_net::inspect::stats::layout::{
        FIRST_RECORD_WORDS, HEADER_WORDS, OPEN, RECEIVER, RECORD_WORDS, SENDER, record, timed,
    };

    use super::*;
    use crate::top::stats_file::End;
    use crate::top::stats_file::tests::{example, parsed};

    /// The words of a message of 4 KiB.
    pub(crate) fn words(
        number: u64,
        at: u64,
        stages: [u64; record::STAGES],
    ) -> [u64; timed::WORDS] {
        let mut words = [0; timed::WORDS];
        (words[timed::MESSAGE], words[timed::MESSAGE_AGAIN]) = (number + 1, number + 1);
        words[timed::AT] = at;
        words[timed::STAGES..timed::BYTES].copy_from_slice(&stages);
        words[timed::BYTES] = 1 << 56 | 4096;
        words
    }

    #[test]
    fn times_of_both_ends_are_counted_from_the_completion() {
        let one = Timed::new(&words(257, 10_000, [1_000, 200, 30])).expect("it is whole");
        assert_eq!((one.number, one.messages, one.bytes), (257, 1, 4096));
        assert_eq!(
            (one.begin(true), one.sent(), one.end(true), one.duration(true)),
            (8_770, 9_970, 10_000, 230)
        );
        assert_eq!((one.begin(false), one.end(false), one.duration(false)), (8_800, 10_030, 1_200));
    }

    #[test]
    fn words_that_are_half_written_or_impossible_are_no_message() {
        let good = words(1, 10, [1, 2, 3]);
        let changed = |at: usize, value: u64| {
            let mut words = good;
            words[at] = value;
            Timed::new(&words)
        };
        assert!(Timed::new(&good).is_some() && Timed::new(&[0; timed::WORDS]).is_none());
        assert!(changed(timed::MESSAGE, 5).is_none() && changed(timed::MESSAGE_AGAIN, 5).is_none());
        for at in [timed::AT, timed::STAGES, timed::STAGES + 2] {
            assert!(changed(at, u64::MAX).is_none() && changed(at, 1 << 59).is_none(), "word {at}");
        }
        assert!(changed(timed::BYTES, u64::MAX).is_some_and(|one| one.bytes < 1 << 48));
    }

    /// A file in which the first end has these messages: number, completion, stages.
    pub(crate) fn with_messages(messages: &[(u64, u64, [u64; 3])]) -> Vec<u64> {
        let mut file = example();
        for (place, (number, at, stages)) in messages.iter().enumerate() {
            let start = HEADER_WORDS + record::TIMED + place * timed::WORDS;
            file[start..start + timed::WORDS].copy_from_slice(&words(*number, *at, *stages));
        }
        file
    }

    fn numbers(recording: &Recording) -> Vec<u64> {
        recording.ends().flat_map(|(_, end)| end.messages.keys().copied()).collect()
    }

    #[test]
    fn messages_that_the_plugin_has_overwritten_between_two_looks_are_kept() {
        let mut recording = Recording::default();
        for first in [1, 3] {
            let file = with_messages(&[
                (first, 100 * first, [1; 3]),
                (first + 1, 100 * first + 50, [1; 3]),
            ]);
            recording.add("file".into(), &parsed(&file));
        }
        assert_eq!((numbers(&recording), recording.len()), (vec![1, 2, 3, 4], 4));
        recording.forget_before(300);
        assert_eq!(numbers(&recording), [1, 2, 3, 4], "the process is dead");
        recording.processes.values_mut().for_each(|process| process.is_alive = true);
        recording.forget_before(300);
        assert_eq!(numbers(&recording), [3, 4]);
    }

    #[test]
    fn a_record_that_another_end_gets_is_another_end() {
        let mut recording = Recording::default();
        let mut file = with_messages(&[(1, 100, [1; 3])]);
        recording.add("file".into(), &parsed(&file));
        file[HEADER_WORDS + record::STATE] += 0x100;
        file[HEADER_WORDS + record::CONNECTION] = 9;
        recording.add("file".into(), &parsed(&file));
        let connections: Vec<_> = recording.ends().map(|(_, end)| end.connection).collect();
        assert_eq!(connections, [0, 9]);
    }

    #[test]
    fn files_without_timed_messages_are_named_with_the_reason() {
        let mut old = example();
        old[header::LAYOUT] = LAYOUT_MAJOR << 32 | 1;
        old[header::RECORD_BYTES] = FIRST_RECORD_WORDS as u64 * 8;
        let mut untimed = example();
        untimed[header::SAMPLE] = 0;
        let mut recording = Recording::default();
        recording.add("old".into(), &parsed(&old));
        recording.add("untimed".into(), &parsed(&untimed));
        let why: Vec<_> = recording.unused.values().cloned().collect();
        assert!(
            recording.processes.is_empty() && why[0].contains("layout 1.1, of a Ferrite"),
            "{why:?}"
        );
        assert!(why[1].contains("FERRITE_SAMPLE is 0"), "{why:?}");
        recording.add("old".into(), &parsed(&example()));
        assert_eq!(recording.unused.len(), 1, "it has another file now");
    }

    #[test]
    fn any_words_are_taken_or_not() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..100 {
            let mut file = with_messages(&[(1, 100, [1; 3]); 25]);
            for _ in 0..random.usize(1..60) {
                let at = HEADER_WORDS + random.usize(0..RECORD_WORDS);
                file[at] =
                    [random.u64(..), 0, 1, u64::MAX, 1 << 59, (1 << 59) - 1][random.usize(..6)];
            }
            let mut recording = Recording::default();
            recording.add("file".into(), &parsed(&file));
            assert!(recording.len() <= 25);
        }
    }

    /// An end with these messages: number, completion, stages.
    pub(crate) fn end(
        is_sender: bool,
        connection: u64,
        messages: &[(u64, u64, [u64; 3])],
    ) -> TimedEnd {
        let mut record = vec![0; RECORD_WORDS];
        record[record::STATE] = OPEN;
        record[record::DIRECTION] = if is_sender { SENDER } else { RECEIVER };
        let all = messages
            .iter()
            .filter_map(|(number, at, stages)| Timed::new(&words(*number, *at, *stages)));
        TimedEnd {
            end: End::new(0, &record),
            connection,
            messages: all.map(|message| (message.number, message)).collect(),
        }
    }

    #[test]
    fn ends_with_the_same_number_are_of_one_connection_unless_there_are_more_than_two() {
        let ends = [
            (true, 5),
            (false, 7),
            (false, 5),
            (true, 7),
            (true, 0),
            (false, 0),
            (true, 9),
            (true, 8),
            (false, 8),
            (false, 8),
        ];
        let ends: Vec<_> =
            ends.into_iter().map(|(is_sender, number)| end(is_sender, number, &[])).collect();
        assert_eq!(connections(ends.iter()), [(0, 2), (3, 1)]);
    }

    #[test]
    fn messages_with_the_same_number_are_the_same_unless_the_receive_has_several() {
        let sender = end(true, 1, &[(1, 100, [1; 3]), (5, 200, [1; 3]), (9, 300, [1; 3])]);
        let mut receiver = end(false, 1, &[(5, 220, [1; 3]), (9, 310, [1; 3]), (13, 400, [1; 3])]);
        let both = |receiver: &TimedEnd| {
            messages(&sender, receiver).map(|(one, _)| one.number).collect::<Vec<_>>()
        };
        assert_eq!(both(&receiver), [5, 9]);
        receiver.messages.get_mut(&5).expect("it is there").messages = 2;
        assert_eq!(both(&receiver), [9]);
    }

    fn process(clock: &str, zero: i64) -> Process {
        let mut recording = Recording::default();
        recording.add("file".into(), &parsed(&with_messages(&[])));
        let (_, process) = recording.processes.pop_first().expect("one");
        Process { clock: clock.into(), zero, ..process }
    }

    /// A message that is cleared at 1,000 and sent at 1,000 + `wait` by one clock, and arrives
    /// 2,000 later: the sender's end and the receiver's, whose clock is `ahead`.
    fn message(connection: u64, wait: u64, ahead: u64) -> [TimedEnd; 2] {
        let (sent, arrived) = (1_000 + wait, 3_000 + wait);
        let sender = end(true, connection, &[(1, sent + 2_500, [0, 0, 2_500])]);
        [sender, end(false, connection, &[(1, arrived + ahead, [0, arrived - 1_000, 0])])]
    }

    #[test]
    fn a_clock_is_set_by_messages_and_the_uncertainty_is_half_of_what_they_leave_open() {
        let (a, b) = (process("a", 0), process("b", 0));
        let ahead = 5_000_000_000;
        let [[one, two], [three, four]] = [message(1, 1_000, ahead), message(2, 300, ahead)];
        let ends = [(&a, &one), (&b, &two), (&a, &three), (&b, &four)];
        let pairs = connections(ends.iter().map(|(_, end)| *end));
        // From the sending on between -300 and 2,000.
        let offset = offsets(&ends, &pairs)["b"];
        assert_eq!(offset, Offset { ns: -(ahead as i64) - 850, uncertainty: Some(1_150) });
    }

    #[test]
    fn messages_in_the_other_direction_bound_the_difference_too() {
        let (a, b) = (process("a", 0), process("b", 0));
        let [there_from, there_to] = message(1, 1_000, 7_000);
        // The sender's clock is ahead by 7,000.
        let back_from = end(true, 2, &[(1, 1_300 + 2_500 + 7_000, [0, 0, 2_500])]);
        let back_to = end(false, 2, &[(1, 3_300, [0, 2_300, 0])]);
        let ends = [(&a, &there_from), (&b, &there_to), (&b, &back_from), (&a, &back_to)];
        let offset = offsets(&ends, &connections(ends.iter().map(|(_, end)| *end)))["b"];
        // The messages back leave between -2,000 and 300, and those there between -1,000 and 2,000.
        assert_eq!(offset, Offset { ns: -7_000 + 350, uncertainty: Some(650) });
    }

    #[test]
    fn clocks_are_set_over_others_and_those_that_no_message_reaches_by_the_time_of_day() {
        let all =
            [("a", 100), ("b", 0), ("c", 0), ("d", 350)].map(|(clock, zero)| process(clock, zero));
        let [[one, two], [three, four]] = [message(1, 2_000, 10_000), message(2, 2_000, 20_000)];
        let alone = end(true, 3, &[]);
        let ends = [
            (&all[0], &one),
            (&all[1], &two),
            (&all[1], &three),
            (&all[2], &four),
            (&all[3], &alone),
        ];
        let found = offsets(&ends, &connections(ends.iter().map(|(_, end)| *end)));
        let found: Vec<_> = found.values().map(|offset| (offset.ns, offset.uncertainty)).collect();
        assert_eq!(
            found,
            [(0, Some(0)), (-10_000, Some(2_000)), (-30_000, Some(4_000)), (250, None)]
        );
    }

    #[test]
    fn one_clock_is_not_set_and_impossible_times_do_not_overflow() {
        let a = process("a", i64::MIN);
        let b = process("b", i64::MAX);
        let most = (1 << 59) - 1;
        let ends = [
            (&a, &end(true, 1, &[(1, most, [0; 3])])),
            (&b, &end(false, 1, &[(1, 0, [0, most, 0])])),
            (&a, &end(true, 2, &[(1, 0, [0, 0, most])])),
            (&b, &end(false, 2, &[(1, most, [0; 3])])),
            (&process("c", i64::MIN), &end(true, 0, &[])),
        ];
        let found = offsets(&ends, &[(0, 1), (2, 3)]);
        assert_eq!((found["a"].ns, found.len()), (0, 3));
        let (one, two) = (end(true, 1, &[(1, 900, [0; 3])]), end(false, 1, &[(1, 100, [0; 3])]));
        assert_eq!(offsets(&[(&a, &one), (&a, &two)], &[(0, 1)]).len(), 1);
    }

    /// A process for each of these ends, all of one machine.
    fn recording(ends: Vec<TimedEnd>) -> Recording {
        let mut recording = Recording::default();
        for (place, end) in ends.into_iter().enumerate() {
            recording.add(place.to_string().into(), &parsed(&with_messages(&[])));
            let process: &mut Process =
                recording.processes.values_mut().last().expect("it was added");
            (process.rank, process.ends) = (Some(place as u64), [((0, 0), end)].into());
        }
        recording
    }

    #[test]
    fn a_message_of_both_ends_has_one_line_and_the_slowest_comes_first() {
        let sender = end(
            true,
            5,
            &[(1, 900_000, [1_000, 2_000, 3_000]), (5, 2_000_000, [0, 700_000, 100_000])],
        );
        let receiver = end(
            false,
            5,
            &[(5, 1_999_000, [500, 99_000, 20_000]), (9, 3_000_000, [200, 40_000, 0])],
        );
        let recording = recording(vec![sender, receiver]);
        let timeline = Timeline::new(&recording);
        assert_eq!(count(&timeline), 3);
        let text = table(&timeline, 2);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(
            lines[1].join(" "),
            "800 us 0 1 4 KiB 0.0 us 700 us 100 us 0.5 us 99.0 us 20.0 us 5"
        );
        assert_eq!(lines[2].join(" "), "40.2 us ? 1 4 KiB - - - 0.2 us 40.0 us 0.0 us 9");
        assert!(text.lines().count() == 4, "two messages of three: {text}");
        let advice = advice(&timeline).expect("there are messages");
        assert!(advice.starts_with("88 % of the time of the slowest tenth is cts: "), "{advice}");
    }
}
