//! All that was timed, on one clock.

use std::collections::BTreeMap;

use super::clocks::{self, Offset};
use super::pairs;
use super::recording::{Process, Recording, TimedEnd};

/// The ends with their messages, whose times are by the first machine's clock once the offset is added.
#[derive(Debug)]
pub(crate) struct Timeline<'a> {
    /// By process, ranks in their order; sending ends before receiving ones.
    pub(crate) ends: Vec<Placed<'a>>,
    /// The places in `ends` of the sender and the receiver of each connection of which both are known.
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
        processes.sort_by_key(|process| (process.rank.is_none(), process.rank, &process.host, process.pid));
        let mut found: Vec<(usize, &Process, &TimedEnd)> = Vec::new();
        for (place, process) in processes.into_iter().enumerate() {
            let mut ends: Vec<_> = process.ends.values().filter(|end| !end.messages.is_empty()).collect();
            ends.sort_by_key(|end| (!end.end.is_sender, end.end.peer.rank, &end.end.device));
            found.extend(ends.into_iter().map(|end| (place + 1, process, end)));
        }
        let connections = pairs::connections(found.iter().map(|(_, _, end)| *end));
        let with_clock: Vec<_> = found.iter().map(|(_, process, end)| (*process, *end)).collect();
        let clocks = clocks::offsets(&with_clock, &connections);
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
            placed.end.messages.values().map(|message| placed.time(message.begin(placed.end.end.is_sender)))
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
        let peer = end
            .peer
            .rank
            .map_or_else(|| "process ".to_owned() + &end.peer.pid.to_string(), |rank| format!("rank {rank}"));
        let way = if end.is_sender { "to" } else { "from" };
        format!("{way} {peer} on {} over {}", end.peer.host, end.device)
    }
}
