//! The slowest messages, as a table.

use std::collections::BTreeSet;
use std::fmt::Write;

use super::chrome::size;
use super::pairs;
use super::timed::Timed;
use super::timeline::{Placed, Timeline};
use crate::top::table::time;
use nccl_net::inspect::stats::layout::record;

/// A message at the ends that have timed it.
#[derive(Debug, Clone, Copy)]
struct Row<'a> {
    sent: Option<(&'a Placed<'a>, &'a Timed)>,
    received: Option<(&'a Placed<'a>, &'a Timed)>,
}

impl Row<'_> {
    /// How long the transport had it: from the first `isend`, or else from `irecv` on.
    fn duration(&self) -> i64 {
        let of = |(placed, message): &(&Placed<'_>, &Timed)| message.duration(placed.end.end.is_sender);
        self.sent.iter().chain(&self.received).map(of).next().unwrap_or(0)
    }

    fn line(&self) -> String {
        let Some((placed, message)) = self.sent.or(self.received) else { return String::new() };
        let own = |end: Option<(&Placed<'_>, &Timed)>| end.and_then(|(placed, _)| placed.process.rank);
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
        let ([gpu, cts, wire], [announce, data, consume]) = (stages(self.sent), stages(self.received));
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

/// The `most` slowest messages, the slowest first. A message that both ends have timed has one line.
pub(crate) fn table(timeline: &Timeline<'_>, most: usize) -> String {
    let mut rows = rows(timeline);
    rows.sort_by_key(|row| std::cmp::Reverse(row.duration()));
    let mut text = format!(
        "{:>8} {:>5} {:>5} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} {:>8} DEVICE\n",
        "TIME", "FROM", "TO", "SIZE", "gpu", "cts", "wire", "announce", "data", "consume", "MESSAGE"
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
        for (sent, received) in pairs::messages(from.end, to.end) {
            rows.push(Row { sent: Some((from, sent)), received: Some((to, received)) });
            shown.extend([(sender, sent.number), (receiver, received.number)]);
        }
    }
    for (place, placed) in timeline.ends.iter().enumerate() {
        for message in placed.end.messages.values().filter(|message| !shown.contains(&(place, message.number))) {
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

/// The stage in which the slowest messages were for most of their time, and what that means. `None`: there are no messages.
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
        // What the sender's end tells of the same time is not counted twice.
        let received = if row.sent.is_some() { [0; 2] } else { stages(row.received, [record::ANNOUNCE, record::DATA]) };
        sums.iter_mut().zip(sent.into_iter().chain(received)).for_each(|(sum, ns)| *sum = sum.saturating_add(ns));
    }
    let words = [
        "cts: the receiver had not asked for the message yet (its GPU had not freed a buffer, or is late)",
        "wire: the path, or the receiver's device",
        "announce: the receiver put several clear-to-sends into one write, or its send queue was full",
        "data: the sender was late, or the path is slow; its machine's files tell which",
    ];
    let all: i64 = sums.iter().fold(0, |sum, ns| sum.saturating_add(*ns));
    let (most, meaning) = sums.into_iter().zip(words).max_by_key(|(ns, _)| *ns).filter(|(ns, _)| *ns > 0)?;
    let share = most as f64 / all as f64 * 100.0;
    Some(format!("{share:.0} % of the time of the slowest tenth is {meaning}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::stats_file::tests::parsed;
    use crate::trace::pairs::tests::end;
    use crate::trace::recording::tests::with_messages;
    use crate::trace::recording::{Process, Recording};

    /// A process for each of these ends, all of one machine.
    fn recording(ends: Vec<crate::trace::recording::TimedEnd>) -> Recording {
        let mut recording = Recording::default();
        for (place, end) in ends.into_iter().enumerate() {
            recording.add(place.to_string().into(), &parsed(&with_messages(&[])));
            let process: &mut Process = recording.processes.values_mut().last().expect("it was added");
            (process.rank, process.ends) = (Some(place as u64), [((0, 0), end)].into());
        }
        recording
    }

    #[test]
    fn a_message_of_both_ends_has_one_line_and_the_slowest_comes_first() {
        let sender = end(true, 5, &[(1, 900_000, [1_000, 2_000, 3_000]), (5, 2_000_000, [0, 700_000, 100_000])]);
        let receiver = end(false, 5, &[(5, 1_999_000, [500, 99_000, 20_000]), (9, 3_000_000, [200, 40_000, 0])]);
        let recording = recording(vec![sender, receiver]);
        let timeline = Timeline::new(&recording);
        assert_eq!(count(&timeline), 3);
        let text = table(&timeline, 2);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1].join(" "), "800 us 0 1 4 KiB 0.0 us 700 us 100 us 0.5 us 99.0 us 20.0 us 5");
        assert_eq!(lines[2].join(" "), "40.2 us ? 1 4 KiB - - - 0.2 us 40.0 us 0.0 us 9");
        assert!(text.lines().count() == 4, "two messages of three: {text}");
        let advice = advice(&timeline).expect("there are messages");
        assert!(advice.starts_with("88 % of the time of the slowest tenth is cts: "), "{advice}");
    }
}
